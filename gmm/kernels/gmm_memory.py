"""The forward kernel's memory: its scratch, and the copies to and from HBM.

Each copy is described once, and started or waited for by the same description
(`act`), so that a wait cannot expect other bytes than its start moved.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.kernels import carriers, quantizing, row_scales, scales
from gmm.kernels.grid import (
  LANES,
  GroupTable,
  RowGrid,
  Visit,
  move,
  of_two,
  parity,
)
from gmm.kernels.plan import Plan

LHS, OUT, EXISTING = range(3)


class Buffers(NamedTuple):
  """Scratch of one core; a leading 2 is a double buffer, and w several.

  Attributes:
    table: the local groups.
    lhs: VMEM [2, rows, tile_k].
    rhs: VMEM [w, tile_k, tile_n], or [w, tile_n, tile_k] in NT.
    scale: VMEM [w, blocks, lanes], or None.
    bias: VMEM [w, 1, tile_n] float32, or None.
    out: VMEM [2, rows, tile_n].
    existing: VMEM [2, rows, tile_n], or None.
    acc: VMEM [rows, tile_n] in float32 or int32; None if k is one tile, but
      where its blocks are added up in a loop.
    carry: VMEM [block, tile_n]: the rows of a block shared by two visits that
      earlier visits have finished.
    zero: VMEM [zero_rows, n].
    sems: DMA semaphores [3, 2]: lhs, out, existing.
    rhs_sem: DMA semaphores [w].
    zero_sem: DMA semaphore [1].
    lhs_scale: VMEM [2, rows, 128], a part of `row_scales.table`, or None.
    quantised: VMEM, rows of lhs as `quantizing` makes them, or None.
    turned: VMEM: the words of a weight tile, transposed; None for others.
  """

  table: GroupTable
  lhs: Any
  rhs: Any
  scale: Any
  bias: Any
  out: Any
  existing: Any
  acc: Any
  carry: Any
  zero: Any
  sems: Any
  rhs_sem: Any
  zero_sem: Any
  lhs_scale: Any = None
  quantised: Any = None
  turned: Any = None


def scratch(plan: Plan) -> Buffers:
  """Returns the buffers' shapes, for `pallas_call`."""
  problem = plan.problem
  rows, k, n = plan.buffer_rows, plan.tile_k, plan.tile_n
  out, weights = problem.out_dtype, plan.rhs_buffers
  acc_rows = quantizing.acc_rows(plan)
  return Buffers(
    table=GroupTable.scratch(problem.g),
    lhs=pltpu.VMEM((2, rows, k), problem.lhs_dtype),
    rhs=_weights(plan),
    scale=pltpu.VMEM(
      (weights, *scales.shape_in_tile(plan)), problem.scale_dtype
    )
    if problem.scale_block
    else None,
    bias=pltpu.VMEM((weights, 1, n), jnp.float32) if problem.has_bias else None,
    out=pltpu.VMEM((2, rows, n), out),
    existing=pltpu.VMEM((2, rows, n), out) if problem.has_existing else None,
    acc=pltpu.VMEM((acc_rows, n), problem.acc_dtype) if acc_rows else None,
    carry=pltpu.VMEM((plan.block, n), out),
    zero=pltpu.VMEM((plan.zero_rows, problem.n), out),
    sems=pltpu.SemaphoreType.DMA((3, 2)),
    rhs_sem=pltpu.SemaphoreType.DMA((weights,)),
    zero_sem=pltpu.SemaphoreType.DMA((1,)),
    lhs_scale=pltpu.VMEM((2, row_scales.rows_in_vmem(plan), LANES), jnp.float32)
    if problem.lhs_scales
    else None,
    quantised=pltpu.VMEM(
      quantizing.scratch_shape(plan), problem.lhs_quantization
    )
    if problem.lhs_quantization
    else None,
    turned=carriers.turned(plan),
  )


def _weights(plan: Plan) -> Any:
  """Tiles of weights, as they lie."""
  problem = plan.problem
  dtype = jnp.int32 if problem.packed_axis else problem.rhs_dtype
  return pltpu.VMEM((plan.rhs_buffers, *carriers.tile_shape(plan)), dtype)


class Pending(NamedTuple):
  """The copies that out buffers 0 and 1 wait for; no rows, no copy."""

  rows: tuple[jax.Array, jax.Array]
  outer: tuple[jax.Array, jax.Array]


class Ahead(NamedTuple):
  """The weight that is fetched next: of entry `group` of the table."""

  outer: jax.Array
  group: jax.Array
  slot: jax.Array


class Step(NamedTuple):
  """What the step loop carries.

  Attributes:
    index: number of the step.
    now: where it works; its operands are on their way.
    visit: index of its visit, counted over all output tiles.
    rhs_slot: the part of the rhs buffer that it reads.
    fresh: whether that has yet to arrive.
    ahead: the weight that its first step fetches, where k is one tile.
    pending: the results that are on their way out.
  """

  index: jax.Array
  now: Visit
  visit: jax.Array
  rhs_slot: jax.Array
  fresh: jax.Array
  ahead: Ahead
  pending: Pending

  @property
  def lhs_slot(self) -> jax.Array:
    """The half of the lhs buffer that it reads."""
    return parity(self.index)

  @property
  def out_slot(self) -> jax.Array:
    """The half of the out buffer that its visit fills."""
    return parity(self.visit)


class Weights(NamedTuple):
  """One tile of a weight: of local group `id`, and where it goes."""

  id: Any
  outer: Any
  inner: Any
  slot: Any


@dataclasses.dataclass(frozen=True)
class Memory:
  """The copies of the forward kernel.

  Attributes:
    plan: the static choices.
    rows: how rows are cut.
    lhs: [m, k] in HBM.
    rhs: [g, k, n] or [g, n, k] in HBM.
    scale: [g, blocks, n] or, blocked along n, [g, blocks, k] in HBM, or None.
    bias: [g, 1, n] in HBM, or None.
    out: [m, n] in HBM; holds existing_out, if there is one.
    buf: the scratch.
    lanes: SMEM [2], from `launch.last_lanes`.
    lhs_scale: `row_scales.table` in HBM, or None.
  """

  plan: Plan
  rows: RowGrid
  lhs: Any
  rhs: Any
  scale: Any
  bias: Any
  out: Any
  buf: Buffers
  lanes: Any
  lhs_scale: Any = dataclasses.field(default=None, kw_only=True)

  def fetch(self, step: Step) -> None:
    """Starts the copies that a step needs; weights only where k is tiled."""
    self.copy_lhs(step, "start")
    if self.plan.k.count > 1:
      self.copy_rhs(self.weights_of(step), "start")

    if self.plan.problem.has_existing:

      @pl.when(step.now.inner == self.plan.k.count - 1)
      def _() -> None:
        self.copy_existing(step, "start")

  def wait_operands(self, step: Step) -> None:
    """Waits for what `fetch` started, but not for what exists."""
    self.copy_lhs(step, "wait")

    @pl.when(step.fresh)
    def _() -> None:
      self.copy_rhs(self.weights_of(step), "wait")

  def weights_of(self, step: Step) -> Weights:
    """The weight tile that a step multiplies by."""
    now = step.now
    return Weights(now.id, now.outer, now.inner, step.rhs_slot)

  def copy_lhs(self, step: Step, act: str) -> None:
    """The rows of the visit, one k tile of them."""
    window = self.rows.window_of(step.now)

    def copy(source: pl.Slice, target: pl.Slice) -> None:
      move(
        self.lhs.at[pl.ds(window.start, window.rows), source],
        self.buf.lhs.at[step.lhs_slot, pl.ds(0, window.rows), target],
        self.buf.sems.at[LHS, step.lhs_slot],
        act,
      )

    self.plan.k.with_tile(step.now.inner, copy, self.lanes[0])
    if self.lhs_scale is not None:
      first = row_scales.first_row(self.plan, window.start)
      rows = row_scales.rows_in_vmem(self.plan)
      move(
        self.lhs_scale.at[pl.ds(first, rows)],
        self.buf.lhs_scale.at[step.lhs_slot],
        self.buf.sems.at[LHS, step.lhs_slot],
        act,
      )

  def copy_rhs(self, weights: Weights, act: str) -> None:
    """One tile of a group's weight, as it lies, and what belongs to it."""
    transposed = self.plan.problem.transpose_rhs

    def copy(k: tuple[pl.Slice, ...], n: tuple[pl.Slice, ...]) -> None:
      major, minor = (n, k) if transposed else (k, n)
      move(
        self.rhs.at[weights.id, major[0], minor[0]],
        self.buf.rhs.at[weights.slot, major[1], minor[1]],
        self.buf.rhs_sem.at[weights.slot],
        act,
      )

    # Only the minor axis lies along lanes.
    packs_lanes = self.plan.problem.packs_lanes
    k_lanes = self.lanes[2 if packs_lanes else 0] if transposed else None
    n_lanes = None if transposed else self.lanes[2 if packs_lanes else 1]
    k_axis, n_axis = carriers.axes(self.plan)
    k_axis.with_tile(
      weights.inner,
      lambda *k: n_axis.with_tile(
        weights.outer, lambda *n: copy(k, n), n_lanes
      ),
      k_lanes,
    )
    if self.scale is not None:
      self._copy_scale(weights, act)
    if self.bias is not None:
      self.plan.n.with_tile(
        weights.outer,
        lambda *n: self._copy_lanes(
          self.bias, self.buf.bias, weights, (n, act)
        ),
        self.lanes[1],
      )

  def _copy_scale(self, weights: Weights, act: str) -> None:
    """Every block of the tile's lanes: they are few, and lie together."""
    along_n = self.plan.problem.scale_axis == "k"
    axis, index, lanes = (
      (self.plan.n, weights.outer, self.lanes[1])
      if along_n
      else (self.plan.k, weights.inner, self.lanes[0])
    )
    axis.with_tile(
      index,
      lambda *at: self._copy_lanes(
        self.scale, self.buf.scale, weights, (at, act)
      ),
      lanes,
    )

  def _copy_lanes(
    self,
    source: Any,
    target: Any,
    weights: Weights,
    what: tuple[tuple[pl.Slice, ...], str],
  ) -> None:
    (old, new), act = what
    move(
      source.at[weights.id, :, old],
      target.at[weights.slot, :, new],
      self.buf.rhs_sem.at[weights.slot],
      act,
    )

  def copy_existing(self, step: Step, act: str) -> None:
    """The rows of the visit as they were: the output aliases them."""
    window = self.rows.window_of(step.now)

    def copy(source: pl.Slice, target: pl.Slice) -> None:
      move(
        self.out.at[pl.ds(window.start, window.rows), source],
        self.buf.existing.at[step.out_slot, pl.ds(0, window.rows), target],
        self.buf.sems.at[EXISTING, step.out_slot],
        act,
      )

    self.plan.n.with_tile(step.now.outer, copy, self.lanes[1])

  def send(self, step: Step, start: jax.Array, rows: jax.Array) -> Pending:
    """Starts the copy of the visit's first `rows` rows to row `start` on."""
    slot, outer = step.out_slot, step.now.outer

    @pl.when(rows > 0)
    def _() -> None:
      self._copy_out(slot, (start, rows, outer), "start")

    def put(pair: tuple[jax.Array, ...], new: jax.Array) -> tuple:
      return tuple(jnp.where(slot == i, new, pair[i]) for i in range(2))

    old = step.pending
    return Pending(put(old.rows, rows), put(old.outer, outer))

  def wait_sent(self, pending: Pending, slot: jax.Array | int) -> None:
    """Waits until an out buffer may be written again."""
    rows = of_two(pending.rows, slot)

    @pl.when(rows > 0)
    def _() -> None:
      outer = of_two(pending.outer, slot)
      self._copy_out(slot, (0, rows, outer), "wait")

  def _copy_out(self, slot: Any, at: tuple[Any, Any, Any], act: str) -> None:
    start, rows, outer = at
    rows = pl.multiple_of(rows, self.plan.block)

    def copy(target: pl.Slice, source: pl.Slice) -> None:
      move(
        self.buf.out.at[slot, pl.ds(0, rows), source],
        self.out.at[pl.ds(start, rows), target],
        self.buf.sems.at[OUT, slot],
        act,
      )

    self.plan.n.with_tile(outer, copy, self.lanes[1])
