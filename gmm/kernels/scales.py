"""Scales of a quantised weight: where they enter a product of the kernel.

The weight is multiplied as it is stored, and never dequantised as a whole:

    one scale per column    the float32 product is scaled, before it is rounded
    blocks along k          each block's product is scaled, and then added up
    blocks along n (dlhs)   lhs is scaled, once for each block of columns

The first two add no rounding but float32's. In the third, scales belong to the
contracted axis, so that one operand has to be rounded with them: lhs, which has
fewer elements than the weight wherever a group has few rows.

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
from gmm.kernels.grid import LANES, cdiv, round_up
from gmm.kernels.plan import PIECE_N, Plan

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
    block = problem.lhs_block
    return LANES if block >= size else math.lcm(LANES, block)
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

  def row(self, block: int, lanes: pl.Slice) -> jax.Array:
    """The scales of a block of this tile, float32 [1, lanes]."""
    plan = self.plan
    if plan.problem.scale_axis == "k":
      axis, index = plan.k, self.inner
    else:
      axis, index = plan.n, self.outer
    if axis.count > 1:
      block += index * (axis.tile // plan.problem.scale_block)
    return row(self.scale, block, lanes)


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


def pieces(plan: Plan) -> list[pl.Slice]:
  """Cuts a tile's columns into pieces, none across blocks of whole registers.

  Args:
    plan: the static choices; scales enter at "n".
  """
  block, size = plan.problem.scale_block, plan.tile_n
  if block >= size:
    most = PIECE_N
  elif block % LANES:
    most = LANES
  else:
    most = math.gcd(block, PIECE_N)
  return [pl.ds(i, min(most, size - i)) for i in range(0, size, most)]


def sum_over_blocks(tile: Tile, k: int, n: pl.Slice) -> jax.Array:
  """The product over the tile's first k columns, scaled block by block."""
  block = tile.plan.problem.scale_block
  total = None
  for i in range(cdiv(k, block)):
    start, end = i * block, min((i + 1) * block, k)
    first = start // LANES * LANES
    columns = pl.ds(first, min(round_up(end, LANES), k) - first)
    lhs = tile.lhs(columns)
    if (start, end) != (first, first + columns.size):
      lane = lax.broadcasted_iota(jnp.int32, lhs.shape, 1) + first
      inside = jnp.logical_and(lane >= start, lane < end)
      lhs = jnp.where(inside, lhs, jnp.zeros_like(lhs))
    part = tile.dot(lhs, tile.rhs(columns, n)).astype(np.float32)
    part *= tile.row(i, n)
    total = part if total is None else total + part
  return total


def scale_lhs(tile: Tile, k: int) -> Callable[[int], jax.Array]:
  """Returns a function from a block to lhs with its scales, each made once."""
  done: dict[int, jax.Array] = {}

  def scaled(block: int) -> jax.Array:
    if block not in done:
      columns = pl.ds(0, k)
      wide = tile.lhs(columns).astype(np.float32) * tile.row(block, columns)
      done[block] = wide.astype(tile.plan.compute_dtype)
    return done[block]

  return scaled


def product_of_blocks(
  tile: Tile, scaled: Callable[[int], jax.Array], k: int, n: pl.Slice
) -> jax.Array:
  """The product of a piece of columns, each with lhs as its block scales it."""
  block = tile.plan.problem.scale_block
  rhs = tile.rhs(pl.ds(0, k), n)
  value = None
  for i in range(n.start // block, cdiv(n.start + n.size, block)):
    part = tile.dot(scaled(i), rhs)
    if value is None:
      value = part
      continue
    lane = lax.broadcasted_iota(jnp.int32, part.shape, 1) + n.start
    value = jnp.where(lane < i * block, value, part)
  return value
