"""docs/sharding.md's programs, compiled for TPUs: what moves weights.

Every program is compiled with its gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gmm import aot
from testing import recipes

# Weights have more bytes than activations do, on each device.
G, K, N, M = 8, 256, 512, 128

# The axes of a mesh; and, from a function that makes a spec on that mesh, what
# a program takes before its sizes, the sizes, and what it returns.
Layout = tuple[Mapping[str, int], Callable[..., tuple[Any, Any, Any]]]


def _struct(
  mesh: Any, shape: Any, *axes: Any, dtype: Any = jnp.bfloat16
) -> jax.ShapeDtypeStruct:
  sharding = NamedSharding(mesh, P(*axes))
  return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _expert_parallel(devices: int) -> Layout:
  axes = {"expert": devices}
  return axes, lambda spec: (
    [spec((M, K)), spec((G, K, N), "expert")],
    spec((G,), dtype=jnp.int32),
    spec((M, N)),
  )


def _fsdp(devices: int) -> Layout:
  axes = {"data": devices}
  return axes, lambda spec: (
    [spec((devices * M, K), "data"), spec((G, K, N), None, "data")],
    spec((devices, G), "data", dtype=jnp.int32),
    spec((devices * M, N), "data"),
  )


def _experts_in_shards(devices: int) -> Layout:
  axes = {"expert": devices // 2, "data": 2}
  return axes, lambda spec: (
    [spec((2 * M, K), "data"), spec((G, K, N), "expert", "data")],
    spec((2, G), "data", dtype=jnp.int32),
    spec((2 * M, N), ("data", "expert")),
  )


def _tensor_parallel(devices: int, lanes: int = 128) -> Layout:
  axes, n = {"model": devices}, lanes * devices
  columns, rows = (None, None, "model"), (None, "model")
  return axes, lambda spec: (
    [
      spec((M, K)),
      spec((G, K, n), *columns),
      spec((G, K, n), *columns),
      spec((G, n, K), *rows),
    ],
    spec((G,), dtype=jnp.int32),
    spec((M, K)),
  )


def _tokens_exchanged(devices: int) -> Layout:
  axes = {"expert": devices}
  return axes, lambda spec: (
    [spec((devices * M, K), "expert"), spec((G, K, N), "expert")],
    spec((devices, G), "expert", dtype=jnp.int32),
    spec((devices * M, N), "expert"),
  )


_GATHERED = ("all-gather", "reduce-scatter")
# Recipe -> its layout, and the collectives that it is for.
_RECIPES = {
  "expert_parallel": (_expert_parallel, ("all-reduce",)),
  "fsdp": (_fsdp, _GATHERED),
  "experts_in_shards": (_experts_in_shards, (*_GATHERED, "all-reduce")),
  "tensor_parallel": (_tensor_parallel, ("all-reduce",)),
  "tokens_exchanged": (_tokens_exchanged, ("all-to-all",)),
}
RECIPES = tuple(_RECIPES)


def readable(recipe: str, chip: str, devices: int) -> bool:
  """Whether this jax can read what libtpu makes of a recipe.

  TODO: drop when jax 0.10 is no longer supported: it cannot read tpu7x's
  all-to-all, nor any collective on eight devices of tpu7x.
  """
  old = jax.__version_info__ < (0, 12) and chip == "tpu7x"
  return not old or (devices < 8 and recipe != "tokens_exchanged")


def faults(recipe: str, chip: str, devices: int) -> list[str]:
  """What a recipe and its gradients do with a weight that is not meant.

  Args:
    recipe: one of RECIPES.
    chip: as in `aot.compile_for`.
    devices: 4 or 8.

  Returns:
    Each copy of a weight, and each collective or kernel that is missing.
  """
  copies, text = weight_copies(recipe, chip, devices)
  _, collectives = _RECIPES[recipe]
  wanted = (*collectives, "gmm_v2-nn", "gmm_v2-nt", "tgmm_v2-tn")
  missing = [f"no {name}" for name in wanted if name not in text]
  return [*map(str, copies), *missing]


def weight_copies(
  recipe: str, chip: str, devices: int, **options: Any
) -> tuple[tuple[aot.Copy, ...], str]:
  """Compiles a recipe with its gradients.

  Args:
    recipe: as in `faults`.
    chip: as in `faults`.
    devices: as in `faults`.
    **options: of its layout.

  Returns:
    All that moves as much as one device's part of a weight, but collectives;
    and the program's HLO.
  """
  layout, _ = _RECIPES[recipe]
  program = recipes.load()[recipe]
  if recipe == "tokens_exchanged":
    program = program(M // devices)
  axes, specs = layout(devices, **options)
  mesh = aot.mesh(chip, tuple(axes.values()), tuple(axes))
  weights, sizes, dout = specs(functools.partial(_struct, mesh))

  def step(weights: Any, sizes: Any, dout: Any) -> tuple[jax.Array, ...]:
    out, vjp = jax.vjp(lambda *weights: program(*weights, sizes), *weights)
    return out, *vjp(dout)

  with jax.set_mesh(mesh):
    compiled = aot.compile_for(
      step,
      weights,
      sizes,
      dout,
      chip=chip,
      out_shardings=(dout.sharding, *(x.sharding for x in weights)),
    )
  shard = min(
    x.dtype.itemsize * np.prod(x.sharding.shard_shape(x.shape))
    for x in weights[1:]
  )
  copies = aot.weight_copies(compiled, min_bytes=int(shard))
  return copies, compiled.as_text()
