"""The memory of a kernel of two products: scratch and copies.

Buffers are those of one product (gmm_memory.py), but for a second tile in some:

    lhs   sum:    [2, 2, rows, tile_k]
    rhs           [w, 2, tile_k, tile_n], or [w, 2, tile_n, tile_k] in NT
          wide:   [w, tile_k, 2n], or [w, 2n, tile_k] in NT
    out   split:  [4, rows, tile_n]: the second result in slots 2 and 3
    carry split:  [2, block, tile_n]
    acc           gated and split: up beside gate, on whole lanes if not wide
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.kernels import gmm_memory, pairs
from gmm.kernels.gmm_memory import LHS, OUT, Memory, Step, Weights
from gmm.kernels.grid import move
from gmm.kernels.plan import Plan


class Second(NamedTuple):
  """The second operand or result of a kind, in HBM, or None."""

  lhs: Any = None
  rhs: Any = None
  out: Any = None


def scratch(plan: Plan) -> gmm_memory.Buffers:
  """Returns the buffers' shapes, for `pallas_call`."""
  problem, sides = plan.problem, pairs.sides(plan.problem)
  rows, k, n = plan.buffer_rows, plan.tile_k, plan.tile_n
  one = gmm_memory.scratch(plan)
  weights = plan.rhs_buffers
  if pairs.is_wide(problem):
    shape = (2 * n, k) if problem.transpose_rhs else (k, 2 * n)
    rhs = pltpu.VMEM((weights, *shape), problem.rhs_dtype)
  else:
    shape = (n, k) if problem.transpose_rhs else (k, n)
    rhs = pltpu.VMEM((weights, 2, *shape), problem.rhs_dtype)
  two = pairs.half_width(plan) + n
  wide = {"rhs": rhs}
  if sides.lhs == 2:
    wide["lhs"] = pltpu.VMEM((2, 2, rows, k), problem.lhs_dtype)
  if sides.out == 2:
    wide["out"] = pltpu.VMEM((4, rows, n), problem.out_dtype)
    wide["carry"] = pltpu.VMEM((2, plan.block, n), problem.out_dtype)
  if sides.lhs == 1 and (plan.k.count > 1 or pairs.is_wide(problem)):
    wide["acc"] = pltpu.VMEM((rows, two), jnp.dtype(problem.acc_dtype))
  return one._replace(**wide)


@dataclasses.dataclass(frozen=True)
class PairMemory(Memory):
  """The copies of a kernel of two products.

  Two tiles that move together share a semaphore: it is waited for twice.

  Attributes:
    second: what there are two of. "gated" has both weights in one array.
  """

  second: Second

  def copy_lhs(self, step: Step, act: str) -> None:
    """The rows of the visit, one k tile of them, of each lhs."""
    if self.second.lhs is None:
      super().copy_lhs(step, act)
      return
    window = self.rows.window_of(step.now)

    def copy(source: pl.Slice, target: pl.Slice) -> None:
      for half, lhs in enumerate((self.lhs, self.second.lhs)):
        move(
          lhs.at[pl.ds(window.start, window.rows), source],
          self.buf.lhs.at[step.lhs_slot, half, pl.ds(0, window.rows), target],
          self.buf.sems.at[LHS, step.lhs_slot],
          act,
        )

    self.plan.k.with_tile(step.now.inner, copy, self.lanes[0])

  def copy_rhs(self, weights: Weights, act: str) -> None:
    """One tile of each of a group's weights, as they lie."""
    transposed = self.plan.problem.transpose_rhs
    wide = pairs.is_wide(self.plan.problem)

    def copy(k: tuple[pl.Slice, ...], n: tuple[pl.Slice, ...]) -> None:
      if wide:
        both = pl.ds(0, 2 * self.plan.problem.n)
        n = both, both
      for half in range(1 if wide else 2):
        source, start = self._weight(half, n[0])
        target = (weights.slot,) if wide else (weights.slot, half)
        major, minor = ((start, n[1]), k) if transposed else (k, (start, n[1]))
        move(
          source.at[weights.id, major[0], minor[0]],
          self.buf.rhs.at[(*target, major[1], minor[1])],
          self.buf.rhs_sem.at[weights.slot],
          act,
        )

    k_lanes = self.lanes[0] if transposed else None
    n_lanes = None if transposed else self.lanes[1]
    self.plan.k.with_tile(
      weights.inner,
      lambda *k: self.plan.n.with_tile(
        weights.outer, lambda *n: copy(k, n), n_lanes
      ),
      k_lanes,
    )

  def _weight(self, half: int, n: pl.Slice) -> tuple[Any, pl.Slice]:
    """The array that holds a half, and where columns `n` of it lie there."""
    if half == 0:
      return self.rhs, n
    if self.second.rhs is not None:
      return self.second.rhs, n
    # Both are multiples of what a copy along this axis has to start on.
    size = self.plan.problem.n
    start = n.start + size
    if not isinstance(start, int):
      start = pl.multiple_of(start, math.gcd(size, self.plan.tile_n))
    return self.rhs, pl.ds(start, n.size)

  def _copy_out(self, slot: Any, at: tuple[Any, Any, Any], act: str) -> None:
    if self.second.out is None:
      super()._copy_out(slot, at, act)
      return
    start, rows, outer = at
    rows = pl.multiple_of(rows, self.plan.block)

    def copy(target: pl.Slice, source: pl.Slice) -> None:
      for half, out in enumerate((self.out, self.second.out)):
        move(
          self.buf.out.at[slot + 2 * half, pl.ds(0, rows), source],
          out.at[pl.ds(start, rows), target],
          self.buf.sems.at[OUT, slot],
          act,
        )

    self.plan.n.with_tile(outer, copy, self.lanes[1])
