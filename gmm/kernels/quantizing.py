"""Rows of lhs, quantised in VMEM as they are multiplied.

Each row has one scale for each block of k: the weight's own block, or
`quantization.LHS_BLOCK` columns. Tiles of k hold whole blocks, so that neither
scales nor values depend on the tiling. A product's rows are quantised once, for
all pieces of columns; the sum over a block is scaled by row before it is added
to the others.

Blocks need be no multiple of a register's 128 lanes. Each has a place of its
own in the scratch, which is zero around it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from gmm import quantization
from gmm.kernels import scales
from gmm.kernels.grid import LANES, round_up
from gmm.kernels.plan import Plan

# Rows of a packed tile of 8-bit values.
_ROWS = 32
# Columns that are quantised together: those that the MXU takes at once.
_COLUMNS = 256
# Columns whose magnitudes are compared at a time: a load of bfloat16 brings
# those of two registers, of half of the rows. On tpu7x that gains nothing.
_COMPARED = 256
_COMPARED_ON = {"tpu7x": LANES}


class Region(NamedTuple):
  """One block of k within a tile.

  Attributes:
    start: its first column in the tile.
    end: the column after its last.
    columns: the whole registers that hold it.
    place: where it is in the scratch.
  """

  start: int
  end: int
  columns: pl.Slice
  place: pl.Slice

  @property
  def fills(self) -> bool:
    """Whether its registers hold nothing else."""
    end = self.columns.start + self.columns.size
    return (self.start, self.end) == (self.columns.start, end)


def regions(plan: Plan, k: int) -> list[Region]:
  """The blocks of a tile's first k columns."""
  block = plan.problem.lhs_block
  found, place = [], 0
  for start in range(0, k, block):
    end = min(start + block, k)
    first = start // LANES * LANES
    columns = pl.ds(first, min(round_up(end, LANES), k) - first)
    found.append(Region(start, end, columns, pl.ds(place, columns.size)))
    place += round_up(columns.size, LANES)
  return found


def scratch_shape(plan: Plan) -> tuple[int, int]:
  """Room for the rows of one product."""
  last = regions(plan, plan.tile_k)[-1].place
  rows = round_up(max(plan.products), _ROWS)
  return rows, last.start + round_up(last.size, LANES)


def quantize(tile: scales.Tile, k: int, rows: int, ref: Any) -> list[jax.Array]:
  """Quantises rows of lhs; returns the scales of each block, [rows, 1].

  Args:
    tile: one step's operands.
    k: columns of the tile.
    rows: of the product.
    ref: the scratch.
  """
  dtype = tile.plan.problem.lhs_quantization
  found = []
  for region in regions(tile.plan, k):
    most = _largest(tile, region)
    scale, inverse = quantization.scales(most, dtype)
    size = region.columns.size
    for start in range(0, size, _COLUMNS):
      count = min(_COLUMNS, size - start)
      x = _masked(tile, region, pl.ds(region.columns.start + start, count))
      place = pl.ds(region.place.start + start, count)
      ref[pl.ds(0, rows), place] = quantization.rounded(
        x.astype(np.float32) * inverse, dtype
      )
    found.append(scale)
  return found


def _masked(tile: scales.Tile, region: Region, columns: pl.Slice) -> jax.Array:
  """Some columns of a block's registers, zero outside the block."""
  x = tile.lhs(columns)
  if region.fills:
    return x
  x = x.astype(np.float32)
  lane = lax.broadcasted_iota(jnp.int32, x.shape, 1) + columns.start
  inside = jnp.logical_and(lane >= region.start, lane < region.end)
  return jnp.where(inside, x, jnp.zeros_like(x))


def _largest(tile: scales.Tile, region: Region) -> jax.Array:
  """The largest magnitude of each row, float32 [rows, 1]."""
  found: dict[int, jax.Array] = {}  # by width: all alike, but for the last
  size, first = region.columns.size, region.columns.start
  width = _COMPARED_ON.get(tile.plan.chip.name, _COMPARED)
  for start in range(0, size, width):
    count = min(width, size - start)
    part = jnp.abs(_masked(tile, region, pl.ds(first + start, count)))
    before = found.get(count)
    found[count] = part if before is None else jnp.maximum(before, part)
  most = [
    jnp.max(x.astype(np.float32), axis=1, keepdims=True) for x in found.values()
  ]
  return functools.reduce(jnp.maximum, most)


def product(
  tile: scales.Tile,
  k: int,
  n: pl.Slice,
  quantised: tuple[Any, list[jax.Array]],
) -> jax.Array:
  """The product of quantised rows over k columns, for a piece of columns.

  Args:
    tile: one step's operands.
    k: columns of the tile.
    n: the piece.
    quantised: the scratch, and the scales of each block.
  """
  ref, by_row = quantised
  rows = by_row[0].shape[0]
  blocked = scales.place(tile.plan.problem) == "k"
  total = None
  for i, region in enumerate(regions(tile.plan, k)):
    part = tile.dot(
      ref[pl.ds(0, rows), region.place], tile.rhs(region.columns, n)
    )
    part = part.astype(np.float32) * by_row[i]
    if blocked:
      part *= tile.row(i, n)
    total = part if total is None else total + part
  return total
