"""Scales of many small blocks of a weight: code that does not grow with them.

A product for each block wastes an MXU that contracts 128 or 256 elements at a
time, and is as much code as there are blocks. Instead:

    blocks along a tile's rows     the weight takes its scales where it is
                                   widened, and is multiplied as a whole
    blocks along a tile's lanes    a loop over groups of blocks, of so many that
                                   their columns and scales are whole registers
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gmm.kernels import grid
from gmm.kernels.grid import LANES
from gmm.kernels.plan import PIECE_N, Plan, blocks_together, sublanes

# Rows of a register of 32-bit values.
_SUBLANES = 8
# Pieces of columns that are worth a loop.
_LEAST_TURNS = 3


def scales_weight(plan: Plan) -> bool:
  """Whether the weight is scaled, rather than products or lhs.

  That rounds it once more, to what is multiplied. Blocks along n round lhs
  otherwise, so that nothing is lost; along k nothing else is rounded, and only
  blocks that are smaller than a register's lanes are worth it.
  """
  problem = plan.problem
  block, axis = problem.scale_block, problem.scale_axis
  if not block or plan.compute_dtype not in (jnp.bfloat16, jnp.float32):
    return False
  rows_are = "n" if problem.contracts_lanes else "k"
  size = problem.k if axis == "k" else problem.n
  most = LANES if axis == "k" else plan.chip.mxu_size
  small = block < min(most, size) and block % _SUBLANES == 0
  if axis == "n" and not piece(plan):
    return False
  return axis == rows_are and small and _starts_on_rows(plan, piece(plan))


def _starts_on_rows(plan: Plan, piece: int) -> bool:
  """Whether the scales of tiles, and of pieces, start on a whole register."""
  problem = plan.problem
  axis = plan.k if problem.scale_axis == "k" else plan.n
  if axis.count == 1:
    return True
  unit = sublanes(problem.scale_dtype) * problem.scale_block
  whole = axis.tile % unit == 0 and axis.last == axis.tile
  return whole and (problem.scale_axis == "k" or piece % unit == 0)


def piece(plan: Plan) -> int:
  """Columns of a piece of whole blocks along n, or 0 if a block is too long."""
  unit = math.lcm(plan.problem.scale_block, LANES)
  return PIECE_N // unit * unit


def scaled_weight(tile: Any, k: pl.Slice, n: pl.Slice) -> jax.Array:
  """Some of a weight tile times its scales, as it is multiplied.

  Args:
    tile: a `scales.Tile`; the plan `scales_weight`.
    k: which of k; all of the tile's, if it is blocked along k.
    n: which of n; whole blocks of it, if it is blocked along n.
  """
  plan = tile.plan
  block = plan.problem.scale_block
  rows, lanes = (k, n) if plan.problem.scale_axis == "k" else (n, k)
  wide = tile.rhs(k, n).astype(np.float32)
  # In a loop over pieces that start at whole registers of scales.
  first = grid.divided(rows.start, block)
  scale = rows_of(tile, first, -(-rows.size // block), lanes)
  whole = rows.size // block
  parts = []
  if whole:
    shape = (whole, block, lanes.size)
    by_block = wide[: whole * block].reshape(shape) * scale[:whole, None, :]
    parts.append(by_block.reshape(whole * block, lanes.size))
  if whole * block < rows.size:
    parts.append(wide[whole * block :] * scale[whole:])
  wide = parts[0] if len(parts) == 1 else jnp.concatenate(parts)
  return wide.astype(plan.compute_dtype)


def rows_of(tile: Any, first: Any, count: int, lanes: pl.Slice) -> jax.Array:
  """The scales of some blocks of a tile, float32 [count, lanes]."""
  start = tile.first_block() + first
  if not isinstance(start, int):
    unit = sublanes(tile.plan.problem.scale_dtype)
    start = pl.multiple_of(start, unit)
  return tile.scale[pl.ds(start, count), lanes].astype(np.float32)


# ---- loops


def width(plan: Plan) -> int:
  """Elements of a turn of the loop, along the scales' axis."""
  return blocks_together(plan.problem) * plan.problem.scale_block


def turns(plan: Plan, size: int) -> int:
  """Turns of the loop over so many elements along the scales' axis, or 0."""
  count = size // width(plan)
  if plan.problem.lhs_quantization:
    return count if plan.turn else 0
  return count if count > 1 and _starts_on_rows(plan, width(plan)) else 0


def each_piece(
  plan: Plan,
  columns: tuple[Any, int],
  piece: int,
  fn: Callable[[pl.Slice], None],
) -> None:
  """Calls fn for pieces of columns: of many whole ones, in a loop.

  Args:
    plan: the static choices; it `scales_weight`.
    columns: where they start, and how many they are.
    piece: most columns of a piece.
    fn: takes a piece.
  """
  start, size = columns
  whole = _turns_of_pieces(plan, size, piece)
  if whole:

    @pl.loop(0, whole)
    def _(i: jax.Array) -> None:
      fn(pl.ds(pl.multiple_of(start + i * piece, LANES), piece))

  for at in range(whole * piece, size, piece):
    first = start + at
    if not isinstance(first, int):
      first = pl.multiple_of(first, LANES)
    fn(pl.ds(first, min(piece, size - at)))


def _turns_of_pieces(plan: Plan, size: int, piece: int) -> int:
  """Whole pieces that are worth a loop, or 0."""
  problem, whole = plan.problem, size // piece
  if whole < _LEAST_TURNS:
    return 0
  unit = sublanes(problem.scale_dtype) * problem.scale_block
  return whole if problem.scale_axis == "k" or piece % unit == 0 else 0


def arm_turns(plan: Plan, k: int | None = None) -> tuple[int, ...]:
  """How often each stretch of a product's code runs, in its order.

  A product without a loop of its own is one stretch. (All products of a plan,
  and of its k tiles, are made alike, but for the number of turns.)

  Args:
    plan: the static choices.
    k: columns of lhs that are multiplied; None for those of a whole tile.
  """
  problem = plan.problem
  if not problem.scale_block or problem.pair is not None:
    return (1,)
  if problem.lhs_quantization:
    if not plan.turn:
      return (1,)
    return _loop_and_rest(*divmod(plan.tile_k if k is None else k, plan.turn))
  along_k = problem.scale_axis == "k"
  columns = plan.tile_n // plan.parts
  if problem.scale_block >= (problem.k if along_k else problem.n):
    return (1,)
  if scales_weight(plan):
    size = PIECE_N if along_k else piece(plan)
    whole = _turns_of_pieces(plan, columns, size)
    return _loop_and_rest(whole, columns - whole * size)
  size = plan.tile_k if along_k else plan.tile_n
  count = turns(plan, size)
  loop = _loop_and_rest(count, size - count * width(plan))
  if count and along_k:
    return loop * -(-columns // PIECE_N)
  return loop


def _loop_and_rest(turns: int, rest: int) -> tuple[int, ...]:
  return (turns,) * (turns > 0) + (1,) * (rest > 0)
