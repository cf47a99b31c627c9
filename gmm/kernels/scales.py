"""Scales of a quantised weight: where they enter a product of the kernel.

The weight is multiplied as it is stored, and never dequantised as a whole:

    one scale per column    the float32 product is scaled, before it is rounded
    blocks along k          each block's product is scaled, and then added up
    blocks along n (dlhs)   lhs is scaled, once for each block of columns

The first two add no rounding but float32's. In the third, scales belong to the
contracted axis, so that one operand has to be rounded with them: lhs, which has
fewer elements than the weight wherever a group has few rows. (Small blocks go
other ways: small_blocks.py.)

A block need be no multiple of a register's 128 lanes. Operands are then read in
whole registers, of which lhs is zero outside the block (along k), or the result
is chosen lane by lane (along n).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from gmm.config import Problem
from gmm.kernels import small_blocks
from gmm.kernels.grid import LANES, cdiv, round_up
from gmm.kernels.plan import PIECE_N, Plan, blocks_together

# Rows that are loaded together: one packed tile of every format of scales.
_ROWS = 16


def place(problem: Problem) -> str | None:
  """Where scales enter: "out", "k", "n", or None for no scales."""
  if not problem.scale_block:
    return None
  if problem.scale_axis == "k" and problem.scale_block >= problem.k:
    return "out"
  return problem.scale_axis


def padded(problem: Problem, k: int, n: int) -> Problem:
  """The problem with k and n padded; one scale for all of k or n stays one."""
  block = problem.scale_block
  old, new = (problem.k, k) if problem.scale_axis == "k" else (problem.n, n)
  if block == old:
    block = new
  return dataclasses.replace(problem, k=k, n=n, scale_block=block)


def unit(problem: Problem, axis: str) -> int:
  """What tiles of axis "k" or "n" are multiples of: lanes and whole blocks."""
  size = problem.k if axis == "k" else problem.n
  if axis == "k" and problem.lhs_quantization:
    # Nor is one block cut: its scale is that of the whole row.
    block = min(problem.lhs_block, round_up(size, LANES))
    if problem.scale_block == block:
      # Of many blocks, those of a turn of the loop stay together.
      together = block * blocks_together(problem)
      block = together if size >= 2 * together else block
    return math.lcm(LANES, block)
  blocked = problem.scale_block and problem.scale_axis == axis
  if not blocked or problem.scale_block >= size:
    return LANES
  return math.lcm(LANES, problem.scale_block)


def shape_in_tile(plan: Plan) -> tuple[int, int]:
  """Scales that a weight tile comes with: every block, the tile's lanes."""
  lanes = plan.tile_n if plan.problem.scale_axis == "k" else plan.tile_k
  return plan.problem.scale_shape[1], lanes


class Tile(NamedTuple):
  """One step's operands, for some rows.

  Attributes:
    plan: the static choices.
    lhs: reads some columns of the rows.
    rhs: reads some of k and some of n of the weight tile.
    dot: multiplies the two.
    scale: the ref [blocks, lanes].
    inner: the k tile.
    outer: the n tile.
  """

  plan: Plan
  lhs: Callable[[pl.Slice], jax.Array]
  rhs: Callable[[pl.Slice, pl.Slice], jax.Array]
  dot: Callable[[jax.Array, jax.Array], jax.Array]
  scale: Any
  inner: Any
  outer: Any

  def first_block(self) -> Any:
    """Which of the scales' blocks this tile starts with."""
    plan = self.plan
    if plan.problem.scale_axis == "k":
      axis, index = plan.k, self.inner
    else:
      axis, index = plan.n, self.outer
    if axis.count == 1:
      return 0
    return index * (axis.tile // plan.problem.scale_block)

  def row(self, block: int, lanes: pl.Slice) -> jax.Array:
    """The scales of a block of this tile, float32 [1, lanes]."""
    return row(self.scale, self.first_block() + block, lanes)


def row(ref: Any, index: Any, lanes: pl.Slice) -> jax.Array:
  """A row of scales [rows, lanes] in any format, as float32 [1, lanes]."""
  count = ref.shape[0]
  if isinstance(index, int):
    first = index // _ROWS * _ROWS
    rows = ref[pl.ds(first, min(_ROWS, count - first)), lanes]
    return lax.slice_in_dim(
      rows.astype(np.float32), index - first, index - first + 1
    )
  rows = ref[:, lanes].astype(np.float32)
  mine = lax.broadcasted_iota(jnp.int32, rows.shape, 0) == index
  return jnp.sum(jnp.where(mine, rows, 0.0), axis=0, keepdims=True)


class Some(NamedTuple):
  """Some blocks of a tile: those of a turn of a loop, or what it leaves.

  Attributes:
    first: the first of them; traced in a loop.
    start: where it starts.
    size: elements of all of them.
    rows: reads lanes of their scales: a function from i to those of the i-th,
      float32 [1, lanes].
  """

  first: Any
  start: Any
  size: int
  rows: Callable[[pl.Slice], Callable[[int], jax.Array]]

  def at(self, start: int, size: int) -> pl.Slice:
    """A slice within them, as one of the tile."""
    if isinstance(self.start, int):
      return pl.ds(self.start + start, size)
    return pl.ds(pl.multiple_of(self.start + start, LANES), size)


def in_loop(tile: Tile, turn: Any) -> Some:
  """The blocks of a turn of the loop."""
  count = blocks_together(tile.plan.problem)
  width = count * tile.plan.problem.scale_block

  def rows(lanes: pl.Slice) -> Callable[[int], jax.Array]:
    found = small_blocks.rows_of(tile, turn * count, count, lanes)
    return lambda i: lax.slice_in_dim(found, i, i + 1)

  return Some(first=turn * count, start=turn * width, size=width, rows=rows)


def after_loop(tile: Tile, turns: int, size: int) -> Some:
  """What so many turns leave of `size` elements, which may be nothing."""
  first = turns * blocks_together(tile.plan.problem)
  start = first * tile.plan.problem.scale_block
  return Some(
    first=first,
    start=start,
    size=size - start,
    rows=lambda lanes: lambda i: tile.row(first + i, lanes),
  )


def sum_over_blocks(tile: Tile, k: int, n: pl.Slice) -> jax.Array:
  """The product over the tile's first k columns, scaled block by block."""
  plan, columns = tile.plan, pl.ds(0, k)
  if small_blocks.scales_weight(plan):
    weight = small_blocks.scaled_weight(tile, columns, n)
    return tile.dot(tile.lhs(columns), weight)
  turns = small_blocks.turns(plan, k)
  rest = after_loop(tile, turns, k)
  if not turns:
    return _sum_of(tile, rest, n)

  def add(i: jax.Array, total: jax.Array) -> jax.Array:
    return total + _sum_of(tile, in_loop(tile, i), n)

  rows = jax.eval_shape(lambda: tile.lhs(columns)).shape[0]
  total = jnp.zeros((rows, n.size), np.float32)
  total = lax.fori_loop(0, turns, add, total)
  return total + _sum_of(tile, rest, n) if rest.size else total


def _sum_of(tile: Tile, some: Some, n: pl.Slice) -> jax.Array:
  """The sum of the scaled products of some blocks."""
  block, row = tile.plan.problem.scale_block, some.rows(n)
  total = None
  for i in range(cdiv(some.size, block)):
    start, end = i * block, min((i + 1) * block, some.size)
    first = start // LANES * LANES
    size = min(round_up(end, LANES), some.size) - first
    columns = some.at(first, size)
    lhs = tile.lhs(columns)
    if (start, end) != (first, first + size):
      lane = lax.broadcasted_iota(jnp.int32, lhs.shape, 1) + first
      inside = jnp.logical_and(lane >= start, lane < end)
      lhs = jnp.where(inside, lhs, jnp.zeros_like(lhs))
    part = tile.dot(lhs, tile.rhs(columns, n)).astype(np.float32)
    part *= row(i)
    total = part if total is None else total + part
  return total


# ---- blocks along n


def each_of_blocks(
  tiles: tuple[Tile, ...],
  k: int,
  fn: Callable[[pl.Slice, tuple[jax.Array, ...]], None],
) -> None:
  """Calls fn for pieces of columns, with the products of each tile.

  Args:
    tiles: of one plan, in which scales enter at "n".
    k: columns of lhs.
    fn: takes a piece, and a product of each tile.
  """
  plan, columns = tiles[0].plan, pl.ds(0, k)
  size = plan.tile_n
  if small_blocks.scales_weight(plan):

    def one(n: pl.Slice) -> None:
      weights = [small_blocks.scaled_weight(tile, columns, n) for tile in tiles]
      fn(
        n,
        tuple(
          tile.dot(tile.lhs(columns), weight)
          for tile, weight in zip(tiles, weights, strict=True)
        ),
      )

    small_blocks.each_piece(plan, (0, size), small_blocks.piece(plan), one)
    return

  def each(some: tuple[Some, ...]) -> None:
    scaled = [
      _scale_lhs(tile, one, k) for tile, one in zip(tiles, some, strict=True)
    ]
    for n in _pieces(plan, some[0].size):
      products = (
        _product_of(tile, (one, lhs), k, n)
        for tile, one, lhs in zip(tiles, some, scaled, strict=True)
      )
      fn(some[0].at(n.start, n.size), tuple(products))

  turns = small_blocks.turns(plan, size)
  if turns:

    @pl.loop(0, turns)
    def _(i: jax.Array) -> None:
      each(tuple(in_loop(tile, i) for tile in tiles))

  rest = tuple(after_loop(tile, turns, size) for tile in tiles)
  if rest[0].size:
    each(rest)


def _pieces(plan: Plan, size: int) -> list[pl.Slice]:
  """Cuts columns into pieces, none across blocks of whole registers."""
  block = plan.problem.scale_block
  if block >= plan.tile_n:
    return _cut(size, PIECE_N)
  return _cut(size, LANES if block % LANES else math.gcd(block, PIECE_N))


def _cut(size: int, most: int) -> list[pl.Slice]:
  return [pl.ds(i, min(most, size - i)) for i in range(0, size, most)]


def _scale_lhs(tile: Tile, some: Some, k: int) -> Callable[[int], jax.Array]:
  """Returns a function from a block to lhs with its scales, each made once."""
  done: dict[int, jax.Array] = {}
  row = some.rows(pl.ds(0, k))

  def scaled(block: int) -> jax.Array:
    if block not in done:
      wide = tile.lhs(pl.ds(0, k)).astype(np.float32) * row(block)
      done[block] = wide.astype(tile.plan.compute_dtype)
    return done[block]

  return scaled


def _product_of(
  tile: Tile,
  blocks: tuple[Some, Callable[[int], jax.Array]],
  k: int,
  n: pl.Slice,
) -> jax.Array:
  """The product of a piece of columns, each with lhs as its block scales it."""
  (some, scaled), block = blocks, tile.plan.problem.scale_block
  rhs = tile.rhs(pl.ds(0, k), some.at(n.start, n.size))
  value = None
  for i in range(n.start // block, cdiv(n.start + n.size, block)):
    part = tile.dot(scaled(i), rhs)
    if value is None:
      value = part
      continue
    lane = lax.broadcasted_iota(jnp.int32, part.shape, 1) + n.start
    value = jnp.where(lane < i * block, value, part)
  return value
