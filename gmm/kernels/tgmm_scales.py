"""Scales of tgmm's operands: on its sums, once, as they are written.

    out[i] = (lhs_i^T @ dout_i) * lhs_scale^T * dout_scale

The scales of all columns are in VMEM from the start. Those of dout lie as the
columns of a result do. Those of lhs scale its rows: they lie along lanes, where
they take little room, and those of a tile are spread to whole registers before
its first sum is written. (Doing that for each sum would keep the XLU busy,
which transposes lhs at that time.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.kernels import launch
from gmm.kernels.grid import LANES, cdiv, move, round_up
from gmm.kernels.plan import Plan

# Of lhs, [1, 1] or [1, k], and of dout, [1, 1] or [1, n]; None for none.
Scales = Sequence[jax.Array | None]


class Buffers(NamedTuple):
  """Scratch; None for what an operand does not have.

  Attributes:
    lhs: VMEM, scales of lhs, as `arrays` lays them out.
    dout: VMEM, those of dout.
    spread: VMEM [tile_k in whole registers, 128]: those of a tile of lhs, each
      in all lanes of its row.
    sem: DMA semaphore [1].
  """

  lhs: Any = None
  dout: Any = None
  spread: Any = None
  sem: Any = None

  @property
  def there(self) -> list[Any]:
    """Those of the operands that have scales, in the order of `arrays`."""
    return [x for x in (self.lhs, self.dout) if x is not None]


def arrays(plan: Plan, scales: Scales) -> list[jax.Array]:
  """The scales that there are, float32 and as the kernel reads them."""
  found = []
  for scale, shape in zip(scales, _shapes(plan), strict=True):
    if scale is None:
      continue
    scale = scale.astype(np.float32)
    if scale.shape == (1, 1):
      found.append(jnp.broadcast_to(scale, shape))
      continue
    pads = {1: shape[0] * shape[1] - scale.shape[1]}
    found.append(launch.pad_axes(scale, pads).reshape(shape))
  return found


def scratch(plan: Plan) -> Buffers:
  """The scratch of a plan's scales."""
  shapes = _shapes_there(plan)
  if not any(shapes):
    return Buffers()
  refs = [shape and pltpu.VMEM(shape, jnp.float32) for shape in shapes]
  return Buffers(*refs, pltpu.SemaphoreType.DMA((1,)))


def vmem_bytes(plan: Plan) -> int:
  """Bytes of that scratch, in whole registers."""
  return sum(
    round_up(shape[0], 8) * shape[1] * 4
    for shape in _shapes_there(plan)
    if shape is not None
  )


def hbm_bytes(plan: Plan) -> int:
  """Bytes of the scales, as `arrays` lays them out: each core reads them."""
  there = plan.problem.lhs_scales, plan.problem.dout_scales
  shapes = zip(_shapes(plan), there, strict=True)
  return sum(rows * lanes * 4 for (rows, lanes), count in shapes if count)


def fetch(sources: list[Any], buf: Buffers) -> None:
  """Copies scales to VMEM."""
  for source, target in zip(sources, buf.there, strict=True):
    move(source, target, buf.sem.at[0], "start")
    move(source, target, buf.sem.at[0], "wait")


def spread(buf: Buffers, start: Any) -> None:
  """Spreads the scales of the tile whose columns of lhs begin at `start`."""
  if buf.lhs is None:
    return
  first = lax.div(jnp.int32(start), np.int32(LANES))
  square = (LANES, LANES)
  lane, row = (lax.broadcasted_iota(jnp.int32, square, a) for a in (1, 0))

  @pl.loop(0, buf.spread.shape[0] // LANES)
  def _(i: jax.Array) -> None:
    scales = buf.lhs[pl.ds(first + i, 1), :]
    own = jnp.where(lane == row, scales, np.float32(0))
    own = jnp.sum(own, axis=1, keepdims=True)
    at = pl.ds(pl.multiple_of(i * LANES, LANES), LANES)
    buf.spread[at, :] = jnp.broadcast_to(own, square)


def scaled(
  total: jax.Array, buf: Buffers, rows: pl.Slice, columns: pl.Slice
) -> jax.Array:
  """Sums of a finished result, scaled.

  Args:
    total: [rows, columns].
    buf: the scratch.
    rows: where they are in their tile.
    columns: of dout; they start at a multiple of 128.
  """
  # One after the other: the product of both scales may be too small a number.
  if buf.lhs is not None:
    own, width = buf.spread[rows, :], total.shape[1]
    whole = [own] * (width // LANES)
    if width % LANES:
      whole.append(own[:, : width % LANES])
    own = whole[0] if len(whole) == 1 else jnp.concatenate(whole, axis=1)
    total = total.astype(np.float32) * own
  if buf.dout is not None:
    total = total.astype(np.float32) * buf.dout[:, columns]
  return total


def _shapes(plan: Plan) -> tuple[tuple[int, int], tuple[int, int]]:
  """Of lhs's and dout's scales: of whole tiles, in whole registers."""
  k, n = plan.k.count * plan.tile_k, plan.n.count * plan.tile_n
  return (round_up(cdiv(k, LANES), 8), LANES), (1, round_up(n, LANES))


def _shapes_there(plan: Plan) -> list[tuple[int, int] | None]:
  """Of the scratch; None for what is not needed."""
  lhs, dout = _shapes(plan)
  has_lhs, has_dout = plan.problem.lhs_scales, plan.problem.dout_scales
  tile = (round_up(plan.tile_k, LANES), LANES)
  return [
    lhs if has_lhs else None,
    dout if has_dout else None,
    tile if has_lhs else None,
  ]
