"""Rows of lhs, quantised in VMEM as they are multiplied.

Each row has one scale for each block of k: the weight's own block, or
`quantization.LHS_BLOCK` columns. Tiles of k hold whole blocks, so that neither
scales nor values depend on the tiling. A product's rows are quantised once, for
all pieces of columns; the sum over a block is scaled by row before it is added
to the others.

Blocks need be no multiple of a register's 128 lanes. Each has a place of its
own in the scratch, which is zero around it.

Many blocks are worked off by a loop, some at a time (`Plan.turn`): quantised,
multiplied for all columns, and added to an accumulator in VMEM. The blocks'
order is the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from gmm import quantization
from gmm.kernels import launch, scales
from gmm.kernels.grid import LANES, cdiv, round_up
from gmm.kernels.plan import PIECE_N, Plan
from gmm.kernels.products import Rows

# Rows of a register of 32-bit values, and of a packed tile of 8-bit values.
_SUBLANES = 8
_ROWS = 32
# Columns that are quantised together: those that the MXU takes at once.
_COLUMNS = 256
# Columns whose magnitudes are compared at a time: a load of bfloat16 brings
# those of two registers, of half of the rows. On tpu7x that gains nothing.
_COMPARED = 256
_COMPARED_ON = {"tpu7x": LANES}


class Region(NamedTuple):
  """One block of k within a tile, or within what a turn of a loop takes of it.

  Attributes:
    start: its first column there.
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
  """Room for the rows of one product, or for what a turn takes of them."""
  last = regions(plan, plan.turn or plan.tile_k)[-1].place
  rows = round_up(max(plan.products), _ROWS)
  return rows, last.start + round_up(last.size, LANES)


def vector_bundles(plan: Plan, rows: int, k: int) -> int:
  """About the bundles of a product's vector work, where it has several blocks.

  Each sum is converted, scaled twice and added: four operations on a register,
  one bundle. To quantise one takes three, as compiled code shows.
  """
  problem = plan.problem
  if not problem.lhs_quantization or scales.place(problem) != "k":
    return 0
  found = regions(plan, k)
  quantised = sum(cdiv(region.columns.size, LANES) for region in found)
  sums = len(found) * cdiv(plan.tile_n, LANES)
  return cdiv(rows, _SUBLANES) * (sums + 3 * quantised)


def acc_rows(plan: Plan) -> int:
  """Rows of the accumulator, of which there are none without a need."""
  if plan.k.count > 1:
    return plan.buffer_rows
  return max(plan.products) if plan.turn else 0


def whole(tile: scales.Tile, k: int) -> scales.Some:
  """All of a tile's first k columns."""

  def rows(lanes: pl.Slice) -> Callable[[int], jax.Array]:
    return lambda i: tile.row(i, lanes)

  return scales.Some(first=0, start=0, size=k, rows=rows)


class Quantised(NamedTuple):
  """Rows of some blocks, in the scratch.

  Attributes:
    tile: one step's operands.
    some: the blocks.
    ref: the scratch.
    by_row: the rows' scales, of each block float32 [rows, 1].
  """

  tile: scales.Tile
  some: scales.Some
  ref: Any
  by_row: list[jax.Array]

  def product(self, n: pl.Slice) -> jax.Array:
    """Their product with a piece of columns."""
    return functools.reduce(jnp.add, self.products(n))

  def products(self, n: pl.Slice) -> Iterator[jax.Array]:
    """What it is the sum of: the scaled product of each block."""
    tile, some = self.tile, self.some
    row = some.rows(n) if scales.place(tile.plan.problem) == "k" else None
    for i, region in enumerate(regions(tile.plan, some.size)):
      columns = some.at(region.columns.start, region.columns.size)
      lhs = self.ref[:, region.place]
      part = tile.dot(lhs, tile.rhs(columns, n)).astype(np.float32)
      part *= self.by_row[i]
      yield part if row is None else part * row(i)


def together(plan: Plan, at: Rows) -> list[tuple[int, Rows]]:
  """The rows of a product that are quantised together, and where they are put.

  A chunk at a time, since the compiler quantises the next one while it
  multiplies: of a whole product it would multiply nothing before the last row.
  """
  start, rows = at
  whole = rows % plan.chunk == 0 and plan.parts == 1
  if not plan.problem.lhs_quantization or not whole:
    return [(0, at)]
  return [
    (i, (pl.multiple_of(start + i, plan.block), plan.chunk))
    for i in range(0, rows, plan.chunk)
  ]


def quantize(tile: scales.Tile, some: scales.Some, ref: Any) -> Quantised:
  """Quantises rows of lhs.

  Args:
    tile: one step's operands.
    some: which blocks.
    ref: the scratch of so many rows.
  """
  dtype = tile.plan.problem.lhs_quantization
  found = []
  for region in regions(tile.plan, some.size):
    most = _largest(tile, some, region)
    scale, inverse = quantization.scales(most, dtype)
    size = region.columns.size
    for start in range(0, size, _COLUMNS):
      count = min(_COLUMNS, size - start)
      columns = pl.ds(region.columns.start + start, count)
      x = _masked(tile, some, region, columns)
      place = pl.ds(region.place.start + start, count)
      ref[:, place] = quantization.rounded(
        x.astype(np.float32) * inverse, dtype
      )
    found.append(scale)
  return Quantised(tile, some, ref, found)


def _masked(
  tile: scales.Tile, some: scales.Some, region: Region, columns: pl.Slice
) -> jax.Array:
  """Some columns of a block's registers, zero outside the block."""
  x = tile.lhs(some.at(columns.start, columns.size))
  if region.fills:
    return x
  x = x.astype(np.float32)
  lane = lax.broadcasted_iota(jnp.int32, x.shape, 1) + columns.start
  inside = jnp.logical_and(lane >= region.start, lane < region.end)
  return jnp.where(inside, x, jnp.zeros_like(x))


def _largest(tile: scales.Tile, some: scales.Some, region: Region) -> jax.Array:
  """The largest magnitude of each row, float32 [rows, 1]."""
  found: dict[int, jax.Array] = {}  # by width: all alike, but for the last
  size, first = region.columns.size, region.columns.start
  width = _COMPARED_ON.get(tile.plan.chip.name, _COMPARED)
  for start in range(0, size, width):
    count = min(width, size - start)
    columns = pl.ds(first + start, count)
    part = jnp.abs(_masked(tile, some, region, columns))
    before = found.get(count)
    found[count] = part if before is None else jnp.maximum(before, part)
  most = [
    jnp.max(x.astype(np.float32), axis=1, keepdims=True) for x in found.values()
  ]
  return functools.reduce(jnp.maximum, most)


def add_blocks(tile: scales.Tile, acc: Any, ref: Any) -> None:
  """Adds the products of a tile's blocks, in a loop over some of them.

  Args:
    tile: one step's operands; the plan has a `turn`.
    acc: the accumulator's rows of this product; with the first tile of k they
      hold nothing yet.
    ref: the scratch.
  """
  plan = tile.plan
  turns = plan.tile_k // plan.turn
  if plan.k.last != plan.tile_k:
    is_last = tile.inner == plan.k.count - 1
    turns = jnp.where(is_last, plan.k.last // plan.turn, turns)

  @pl.loop(0, turns)
  def _(i: jax.Array) -> None:
    is_first = jnp.logical_and(tile.inner == 0, i == 0)
    _add(tile, scales.in_loop(tile, i), (acc, is_first), ref)

  if plan.tile_k % plan.turn:  # then there is no other tile
    rest = scales.after_loop(tile, turns, plan.tile_k)
    _add(tile, rest, (acc, False), ref)


def _add(
  tile: scales.Tile, some: scales.Some, total: tuple[Any, Any], ref: Any
) -> None:
  """Adds the products of some blocks, or starts with them.

  Args:
    tile: one step's operands.
    some: which blocks.
    total: the accumulator's rows of this product, and whether they hold
      nothing yet.
    ref: the scratch.
  """
  acc, is_first = total
  quantised = quantize(tile, some, ref.at[pl.ds(0, acc.shape[0])])

  def part(start: Any, size: int) -> None:
    for n in launch.pieces(size, PIECE_N, start):
      before = acc[:, n]
      # Nothing changes when it is added to, not even the sign of a zero.
      before = jnp.where(is_first, jnp.full_like(before, -0.0), before)
      acc[:, n] = functools.reduce(jnp.add, quantised.products(n), before)

  launch.each_part(tile.plan.tile_n, tile.plan.parts, part)
