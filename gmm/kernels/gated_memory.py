"""The memory of a kernel of two products: scratch and copies.

Buffers are those of one product (gmm_memory.py), but for a second tile in some:

    lhs   sum:    [2, 2, rows, tile_k]
    rhs           [w, 2, tile_k, tile_n], or [w, 2, tile_n, tile_k] in NT
          wide:   [w, tile_k, 2n], or [w, 2n, tile_k] in NT
    scale         [w, 2, blocks, lanes]
          wide:   [w, blocks, 2n]
    bias          [w, 2, 1, tile_n]
          wide:   [w, 1, 2n]
    out   split:  [4, rows, tile_n]: the second result in slots 2 and 3
    carry split:  [2, block, tile_n]
    acc           gated and split: up beside gate, on whole lanes if not wide
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.config import PACKED
from gmm.kernels import gmm_memory, launch, pairs, scales
from gmm.kernels.gmm_memory import LHS, OUT, Memory, Step, Weights
from gmm.kernels.grid import Axis, move
from gmm.kernels.plan import Plan
from gmm.pair_operands import PairOperands


class Second(NamedTuple):
  """The second operand or result of a kind, in HBM, or None."""

  lhs: Any = None
  rhs: Any = None
  out: Any = None
  scale: Any = None
  bias: Any = None


def padded(plan: Plan, x: PairOperands) -> PairOperands:
  """The operands as the kernel takes them."""
  problem = plan.problem
  pad_m, pad_k, pad_n = plan.pads
  pads = [0, pad_n, pad_k] if problem.transpose_rhs else [0, pad_k, pad_n]
  if problem.packed_axis:
    pads[1] //= PACKED

  def scale(one: jax.Array) -> jax.Array:
    wanted = zip(problem.scale_shape, one.shape, strict=True)
    return launch.pad_axes(one, {i: a - b for i, (a, b) in enumerate(wanted)})

  def bias(one: jax.Array) -> jax.Array:
    return launch.pad_axes(one.astype(np.float32)[:, None, :], {2: pad_n})

  weights = dict(enumerate(pads))
  return x._replace(
    lhs=tuple(launch.pad_axes(one, {0: pad_m, 1: pad_k}) for one in x.lhs),
    rhs=tuple(launch.pad_axes(one, weights) for one in x.rhs),
    scale=tuple(map(scale, x.scale)),
    bias=tuple(map(bias, x.bias)),
  )


def scratch(plan: Plan) -> gmm_memory.Buffers:
  """Returns the buffers' shapes, for `pallas_call`."""
  problem, sides = plan.problem, pairs.sides(plan.problem)
  rows, k, n = plan.buffer_rows, plan.tile_k, plan.tile_n
  one = gmm_memory.scratch(plan)
  columns = 2 * n if pairs.is_wide(problem) else n
  wide = {"rhs": _weights(plan, k, columns)}
  if problem.scale_block:
    blocks, lanes = scales.shape_in_tile(plan)
    lanes = 2 * lanes if pairs.is_wide(problem) else lanes
    wide["scale"] = _of_both(plan, (blocks, lanes), problem.scale_dtype)
  if problem.has_bias:
    wide["bias"] = _of_both(plan, (1, columns), jnp.dtype(jnp.float32))
  two = pairs.half_width(plan) + n
  if sides.lhs == 2:
    wide["lhs"] = pltpu.VMEM((2, 2, rows, k), problem.lhs_dtype)
  if sides.out == 2:
    wide["out"] = pltpu.VMEM((4, rows, n), problem.out_dtype)
    wide["carry"] = pltpu.VMEM((2, plan.block, n), problem.out_dtype)
  if sides.lhs == 1 and (plan.k.count > 1 or pairs.is_wide(problem)):
    wide["acc"] = pltpu.VMEM((rows, two), jnp.dtype(problem.acc_dtype))
  return one._replace(**wide)


def _weights(plan: Plan, k: int, n: int) -> Any:
  problem = plan.problem
  rows, columns = (n, k) if problem.transpose_rhs else (k, n)
  if problem.packed_axis:
    return _of_both(plan, (rows // PACKED, columns), jnp.dtype(jnp.int32))
  return _of_both(plan, (rows, columns), problem.rhs_dtype)


def _of_both(plan: Plan, shape: tuple[int, int], dtype: Any) -> Any:
  halves = () if pairs.is_wide(plan.problem) else (2,)
  return pltpu.VMEM((plan.rhs_buffers, *halves, *shape), dtype)


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
    """A tile of each of a group's weights, as they lie, and what they need."""
    problem = self.plan.problem
    transposed = problem.transpose_rhs
    k_axis, n_axis = self.plan.k, self.plan.n
    # A packed weight is so along its rows.
    if problem.packed_axis == "k":
      k_axis = Axis(k_axis.size // PACKED, k_axis.tile // PACKED)
    elif problem.packed_axis == "n":
      n_axis = Axis(n_axis.size // PACKED, n_axis.tile // PACKED)

    def copy(k: tuple[pl.Slice, ...], n: tuple[pl.Slice, ...]) -> None:
      for half, source, (n0, n1) in self._halves("rhs", n):
        major, minor = ((n0, n1), k) if transposed else (k, (n0, n1))
        move(
          source.at[weights.id, major[0], minor[0]],
          self.buf.rhs.at[(weights.slot, *half, major[1], minor[1])],
          self.buf.rhs_sem.at[weights.slot],
          act,
        )

    k_lanes = self.lanes[0] if transposed else None
    n_lanes = None if transposed else self.lanes[1]
    k_axis.with_tile(
      weights.inner,
      lambda *k: n_axis.with_tile(
        weights.outer, lambda *n: copy(k, n), n_lanes
      ),
      k_lanes,
    )
    if self.scale is not None and problem.scale_axis == "n":
      self._copy_rows("scale", (self.plan.k, weights.inner, 0), weights, act)
    elif self.scale is not None:
      self._copy_rows("scale", (self.plan.n, weights.outer, 1), weights, act)
    if self.bias is not None:
      self._copy_rows("bias", (self.plan.n, weights.outer, 1), weights, act)

  def _copy_rows(
    self, name: str, along: tuple[Axis, Any, int], weights: Weights, act: str
  ) -> None:
    """All rows of the scales or biases, in a tile's lanes: axis, index, 0 or 1.

    The last is where `lanes` says how many the last tile has.
    """
    axis, index, which = along

    def copy(*lanes: pl.Slice) -> None:
      for half, source, (old, new) in self._halves(name, lanes):
        move(
          source.at[weights.id, :, old],
          getattr(self.buf, name).at[(weights.slot, *half, slice(None), new)],
          self.buf.rhs_sem.at[weights.slot],
          act,
        )

    axis.with_tile(index, copy, self.lanes[which])

  def _halves(
    self, name: str, at: tuple[pl.Slice, ...]
  ) -> Iterator[tuple[tuple[int, ...], Any, tuple[pl.Slice, pl.Slice]]]:
    """Yields (half, array, (slice of it, of the buffer)) of gate and of up.

    Args:
      name: "rhs", "scale" or "bias".
      at: where gate lies, and where it goes.
    """
    first, second = getattr(self, name), getattr(self.second, name)
    size = self.plan.problem.n
    if pairs.is_wide(self.plan.problem):
      both = pl.ds(0, 2 * size)
      yield (), first, (both, both)
      return
    yield (0,), first, at
    if second is not None:
      yield (1,), second, at
      return
    # Both are multiples of what a copy along this axis has to start on.
    old, new = at
    start = old.start + size
    if not isinstance(start, int):
      start = pl.multiple_of(start, math.gcd(size, self.plan.tile_n))
    yield (1,), first, (pl.ds(start, old.size), new)

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
