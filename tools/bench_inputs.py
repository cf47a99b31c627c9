"""Operands for the bench, drawn on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tools import bench_programs as programs
from tools import bench_shapes as shapes


def drawing(
  shape: shapes.Shape, level: str, target: programs.Target
) -> Callable[[jax.Array], tuple[jax.Array, ...]]:
  """A function of a seed that draws operands of a level, all but the groups.

  Rows that have no weight here are NaN: nothing may read them.
  """
  specs = programs.specs(shape.workload, level, target.dtype)
  groups = shapes.groups(shape, level)
  arrays = specs[:3] if level == "vjp" else specs[:2]
  first, last = groups.first_row, groups.first_row + groups.rows

  def draw(seed):
    keys = jax.random.split(jax.random.key(seed), len(arrays))
    drawn = []
    for key, spec in zip(keys, arrays, strict=True):
      x = jax.random.normal(key, spec.shape, spec.dtype)
      if x.ndim == 2:
        row = jnp.arange(x.shape[0])[:, None]
        x = jnp.where((first <= row) & (row < last), x, jnp.nan)
      drawn.append(x)
    return tuple(drawn)

  return draw


def draw_sets(
  shape: shapes.Shape,
  level: str,
  target: programs.Target,
  *,
  count: int,
  device: jax.Device,
) -> list[tuple[Any, ...]]:
  """Some sets of a level's operands, each of its own seed.

  Args:
    shape: of the operands.
    level: of the programs that take them.
    target: what these are made for.
    count: how many.
    device: where they go, row-major.
  """
  seed = jax.ShapeDtypeStruct((), jnp.int32)
  draw = programs.compile_on(
    drawing(shape, level, target), (seed,), device, interpret=False
  )
  groups = shapes.groups(shape, level)
  given = [groups.sizes]
  if groups.offset is not None:
    given.append(np.int32(groups.offset))
  given = jax.device_put(given, device)
  seeds = np.random.SeedSequence(list(shape.key.encode())).generate_state(count)
  return [(*draw(np.int32(s & 0x7FFFFFFF)), *given) for s in seeds]
