"""The grouped product, NN and NT, as one kernel.

    out[r] = lhs[r] @ rhs[group of r]          rhs [g, k, n]
    out[r] = lhs[r] @ rhs[group of r]^T        rhs [g, n, k], `transpose_rhs`

One step multiplies the rows of a window (see grid.py) by one tile of the
group's weight. While it runs, the DMA engine brings the next step's operands
and takes the last visit's rows away. In NT both operands contract their lane
dimension: the MXU transposes the weight as it loads it, so that the weight is
read where it lies.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.kernels import grid, launch, zeros
from gmm.kernels.grid import GroupTable, Totals, Visit, Window
from gmm.kernels.tiling import Plan

# Columns of one product: its float32 result must not swamp the registers.
PIECE_N = 512


class Buffers(NamedTuple):
  """Scratch of one core; a leading 2 is a double buffer.

  Attributes:
    table: the local groups.
    lhs: VMEM [2, rows, tile_k].
    rhs: VMEM [2, tile_k, tile_n], or [2, tile_n, tile_k] in NT.
    out: VMEM [2, rows, tile_n].
    existing: VMEM [2, rows, tile_n], or None.
    acc: VMEM [rows, tile_n] in float32 or int32; None if k is one tile.
    carry: VMEM [block, tile_n]: the rows of a block shared by two visits that
      earlier visits have finished.
    zero: VMEM [zero_rows, n].
    sems: DMA semaphores [4, 2]: lhs, rhs, out, existing.
    zero_sem: DMA semaphore [1].
  """

  table: GroupTable
  lhs: Any
  rhs: Any
  out: Any
  existing: Any
  acc: Any
  carry: Any
  zero: Any
  sems: Any
  zero_sem: Any


LHS, RHS, OUT, EXISTING = range(4)


def scratch(plan: Plan) -> Buffers:
  problem = plan.problem
  rows, k, n = plan.buffer_rows, plan.tile_k, plan.tile_n
  out = problem.out_dtype
  return Buffers(
    table=GroupTable(*GroupTable.scratch(problem.g)),
    lhs=pltpu.VMEM((2, rows, k), problem.lhs_dtype),
    rhs=pltpu.VMEM(
      (2, n, k) if problem.transpose_rhs else (2, k, n), problem.rhs_dtype
    ),
    out=pltpu.VMEM((2, rows, n), out),
    existing=pltpu.VMEM((2, rows, n), out) if problem.has_existing else None,
    acc=pltpu.VMEM((rows, n), problem.acc_dtype) if plan.k.count > 1 else None,
    carry=pltpu.VMEM((plan.block, n), out),
    zero=pltpu.VMEM((plan.zero_rows, problem.n), out),
    sems=pltpu.SemaphoreType.DMA((4, 2)),
    zero_sem=pltpu.SemaphoreType.DMA((1,)),
  )


class Pending(NamedTuple):
  """The DMAs that out buffers 0 and 1 wait for; no rows, no DMA."""

  rows: tuple[jax.Array, jax.Array]
  outer: tuple[jax.Array, jax.Array]


class Step(NamedTuple):
  """What the step loop carries.

  Attributes:
    now: the step to compute; its operands are on their way.
    visit: index of its visit, counted over all output tiles.
    weights: index of its weight tile among those fetched.
    fresh: whether that weight tile has yet to arrive.
    pending: the results that are on their way out.
  """

  now: Visit
  visit: jax.Array
  weights: jax.Array
  fresh: jax.Array
  pending: Pending


def parity(i: jax.Array) -> jax.Array:
  return lax.rem(i, np.int32(2))


class Kernel:
  """The body, as methods over the refs; holds no state of its own."""

  def __init__(
    self, plan: Plan, lhs: Any, rhs: Any, out: Any, buffers: Buffers
  ) -> None:
    self.plan, self.lhs, self.rhs, self.out = plan, lhs, rhs, out
    self.buf = buffers
    problem = plan.problem
    self.rows = grid.RowGrid(
      problem.m, plan.block, plan.window, problem.g, problem.g_total
    )

  def run(self, sizes: Any, offset: Any) -> None:
    plan, buf = self.plan, self.buf
    totals = self.rows.fill_group_table(sizes, offset, buf.table)
    fill = zeros.RowFill(self.rows, self.out, buf.zero, buf.zero_sem.at[0])
    fills = not plan.problem.has_existing  # else those rows are there already
    if fills:
      fill.start(totals, plan.chip.num_cores)
    first, last = grid.core_share(plan.n.count, plan.chip.num_cores)
    steps = (last - first) * totals.visits * plan.k.count

    @pl.when(steps > 0)
    def _() -> None:
      zero = np.int32(0)
      start = Step(
        self.rows.first_visit(buf.table, first),
        visit=zero,
        weights=zero,
        fresh=jnp.bool_(True),
        pending=Pending((zero, zero), (zero, zero)),
      )
      self.fetch(start, zero)
      end = lax.fori_loop(
        0, steps, functools.partial(self.step, totals, steps), start
      )
      for slot in range(2):
        self.wait_out(end.pending, slot)

    if fills:
      fill.wait(totals, plan.chip.num_cores)

  # ---- data movement

  def lhs_copy(self, step: Step, index: jax.Array, act: str) -> None:
    window = self.rows.window_of(step.now)
    slot = parity(index)

    def copy(source: pl.Slice, target: pl.Slice) -> None:
      getattr(
        pltpu.make_async_copy(
          self.lhs.at[pl.ds(window.start, window.rows), source],
          self.buf.lhs.at[slot, pl.ds(0, window.rows), target],
          self.buf.sems.at[LHS, slot],
        ),
        act,
      )()

    self.plan.k.with_tile(step.now.inner, copy)

  def rhs_copy(self, step: Step, act: str) -> None:
    slot = parity(step.weights)
    transposed = self.plan.problem.transpose_rhs

    def copy(k: tuple[pl.Slice, pl.Slice], n: tuple[pl.Slice, pl.Slice]) -> None:
      (source, target) = zip(n, k) if transposed else zip(k, n)
      getattr(
        pltpu.make_async_copy(
          self.rhs.at[(step.now.id, *source)],
          self.buf.rhs.at[(slot, *target)],
          self.buf.sems.at[RHS, slot],
        ),
        act,
      )()

    self.plan.k.with_tile(
      step.now.inner,
      lambda *k: self.plan.n.with_tile(
        step.now.outer, lambda *n: copy(k, n)
      ),
    )

  def existing_copy(self, step: Step, act: str) -> None:
    """Reads the rows of the visit as they were: the output aliases them."""
    window = self.rows.window_of(step.now)
    slot = parity(step.visit)

    def copy(source: pl.Slice, target: pl.Slice) -> None:
      getattr(
        pltpu.make_async_copy(
          self.out.at[pl.ds(window.start, window.rows), source],
          self.buf.existing.at[slot, pl.ds(0, window.rows), target],
          self.buf.sems.at[EXISTING, slot],
        ),
        act,
      )()

    self.plan.n.with_tile(step.now.outer, copy)

  def out_copy(
    self, slot: Any, outer: jax.Array, start: Any, rows: jax.Array, act: str
  ) -> None:
    rows = pl.multiple_of(rows, self.plan.block)

    def copy(target: pl.Slice, source: pl.Slice) -> None:
      getattr(
        pltpu.make_async_copy(
          self.buf.out.at[slot, pl.ds(0, rows), source],
          self.out.at[pl.ds(start, rows), target],
          self.buf.sems.at[OUT, slot],
        ),
        act,
      )()

    self.plan.n.with_tile(outer, copy)

  def wait_out(self, pending: Pending, slot: int) -> None:
    """Waits until an out buffer may be written again."""
    rows = pending.rows[slot]

    @pl.when(rows > 0)
    def _() -> None:
      self.out_copy(slot, pending.outer[slot], 0, rows, "wait")

  def fetch(self, step: Step, index: jax.Array) -> None:
    """Starts the copies that a step needs."""
    self.lhs_copy(step, index, "start")

    @pl.when(step.fresh)
    def _() -> None:
      self.rhs_copy(step, "start")

    if self.plan.problem.has_existing:

      @pl.when(step.now.inner == self.plan.k.count - 1)
      def _() -> None:
        self.existing_copy(step, "start")

  # ---- steps

  def step(
    self, totals: Totals, steps: jax.Array, index: jax.Array, step: Step
  ) -> Step:
    """One grid step: fetch for the next one, then compute this one."""
    following = self.following(totals, step)

    @pl.when(index + 1 < steps)
    def _() -> None:
      self.fetch(following, index + 1)

    self.lhs_copy(step, index, "wait")

    @pl.when(step.fresh)
    def _() -> None:
      self.rhs_copy(step, "wait")

    pending = self.compute(step, index, totals)
    return following._replace(pending=pending)

  def following(self, totals: Totals, step: Step) -> Step:
    now = step.now
    after = self.rows.advance(
      self.buf.table, totals.groups, self.plan.k.count, now
    )
    fresh = jnp.logical_or(after.group != now.group, after.outer != now.outer)
    if self.plan.k.count > 1:
      fresh = jnp.bool_(True)
    new_visit = after.inner == 0
    return Step(
      after,
      step.visit + new_visit.astype(jnp.int32),
      step.weights + fresh.astype(jnp.int32),
      fresh,
      step.pending,
    )

  def compute(self, step: Step, index: jax.Array, totals: Totals) -> Pending:
    k_axis, inner = self.plan.k, step.now.inner
    window = self.rows.window_of(step.now)
    if k_axis.count == 1:
      self.begin_out(step)
      self.wait_existing(step)
      self.each_chunk(window, functools.partial(self.whole_k, step, index))
      return self.finish_visit(step, window, totals)

    @pl.when(inner == 0)
    def _() -> None:
      self.begin_out(step)

    k_axis.with_tile(
      inner,
      lambda _, k: self.each_chunk(
        window, functools.partial(self.part_of_k, step, index, k.size)
      ),
    )

    @pl.when(inner == k_axis.count - 1)
    def _() -> None:
      self.wait_existing(step)
      self.each_chunk(window, functools.partial(self.from_acc, step))

    return lax.cond(
      inner == k_axis.count - 1,
      lambda: self.finish_visit(step, window, totals),
      lambda: step.pending,
    )

  def begin_out(self, step: Step) -> None:
    for slot in range(2):

      @pl.when(parity(step.visit) == slot)
      def _(slot: int = slot) -> None:
        self.wait_out(step.pending, slot)

  def wait_existing(self, step: Step) -> None:
    if self.plan.problem.has_existing:
      self.existing_copy(step, "wait")

  def each_chunk(self, window: Window, fn: Any) -> None:
    """Calls fn(first row, rows) for chunks that cover the window.

    The last chunk is one block longer, so that a group of whole chunks that
    starts within a block needs no chunk more.
    """
    chunk, block = self.plan.chunk, self.plan.block
    full = lax.div(window.rows - (block + 1) + chunk, np.int32(chunk)) - 1
    full = jnp.maximum(full, 0)
    if self.plan.window > chunk + block:

      @pl.loop(0, full)
      def _(i: jax.Array) -> None:
        fn(pl.multiple_of(i * chunk, block), chunk)

    fn(pl.multiple_of(full * chunk, block), chunk + block)

  # ---- arithmetic

  def product(
    self, step: Step, index: jax.Array, at: tuple[Any, int], k: int, n: pl.Slice
  ) -> jax.Array:
    """lhs [rows, k] times one piece of columns of the weight tile."""
    lhs = self.buf.lhs[parity(index), pl.ds(*at), pl.ds(0, k)]
    slot = parity(step.weights)
    if self.plan.problem.transpose_rhs:
      return launch.dot(self.plan, lhs, self.buf.rhs[slot, n, pl.ds(0, k)], (1, 1))
    return launch.dot(self.plan, lhs, self.buf.rhs[slot, pl.ds(0, k), n], (1, 0))

  def pieces(self) -> list[pl.Slice]:
    tile_n = self.plan.tile_n
    return [
      pl.ds(start, min(PIECE_N, tile_n - start))
      for start in range(0, tile_n, PIECE_N)
    ]

  def whole_k(self, step: Step, index: jax.Array, row: Any, rows: int) -> None:
    for n in self.pieces():
      value = self.product(step, index, (row, rows), self.plan.tile_k, n)
      self.store(step, (row, rows), n, value)

  def part_of_k(
    self, step: Step, index: jax.Array, k: int, row: Any, rows: int
  ) -> None:
    for n in self.pieces():
      at = (pl.ds(row, rows), n)
      value = self.product(step, index, (row, rows), k, n)
      # The first k tile must not read what scratch memory holds.
      before = jnp.where(step.now.inner == 0, 0, self.buf.acc[at])
      self.buf.acc[at] = before.astype(value.dtype) + value

  def from_acc(self, step: Step, row: Any, rows: int) -> None:
    for n in self.pieces():
      self.store(step, (row, rows), n, self.buf.acc[pl.ds(row, rows), n])

  def store(
    self, step: Step, at: tuple[Any, int], n: pl.Slice, value: jax.Array
  ) -> None:
    """Rounds once, after what exists has been added."""
    slot, out = parity(step.visit), self.buf.out
    if self.plan.problem.has_existing:
      wide = np.float32 if jnp.issubdtype(out.dtype, jnp.floating) else np.int32
      existing = self.buf.existing[slot, pl.ds(*at), n].astype(wide)
      value = value.astype(wide) + existing
    out[slot, pl.ds(*at), n] = value.astype(out.dtype)

  # ---- edges of groups

  def finish_visit(
    self, step: Step, window: Window, totals: Totals
  ) -> Pending:
    """Mends the first and last block, and sends the finished rows away.

    1. Rows of the first block before the group come from earlier visits.
    2. Rows of the last block after the group are zero, or what existed.
    3. A last block that the group does not fill is carried on, not written,
       except by the last visit: so every row is written once.
    """
    slot, now = parity(step.visit), step.now
    self.mend_head(slot, window, jnp.logical_and(now.group == 0, now.tile == 0))
    self.mend_tail(slot, window)
    is_last = jnp.logical_and(
      now.group == totals.groups - 1, self.rows.is_last_tile(now)
    )
    whole = self.rows.floor(window.hi) - window.start
    rows = jnp.where(is_last, window.rows, jnp.minimum(whole, window.rows))

    @pl.when(rows > 0)
    def _() -> None:
      self.out_copy(slot, now.outer, window.start, rows, "start")

    old = step.pending
    put = lambda pair, new: tuple(
      jnp.where(slot == i, new, pair[i]) for i in range(2)
    )
    return Pending(put(old.rows, rows), put(old.outer, now.outer))

  def mend_head(
    self, slot: jax.Array, window: Window, is_first: jax.Array
  ) -> None:
    buf, block = self.buf, self.plan.block

    @pl.when(window.lo > window.start)
    def _() -> None:
      @pl.when(is_first)
      def _() -> None:
        buf.carry[...] = self.unowned(slot, 0)

      before = grid.block_rows(block, window.start) < window.lo
      at = (slot, pl.ds(0, block), slice(None))
      buf.out[at] = jnp.where(before, buf.carry[...], buf.out[at])

  def mend_tail(self, slot: jax.Array, window: Window) -> None:
    buf, block = self.buf, self.plan.block
    first = pl.multiple_of(window.rows - block, block)

    @pl.when(window.hi < window.start + window.rows)
    def _() -> None:
      inside = grid.block_rows(block, window.start + first) < window.hi
      at = (slot, pl.ds(first, block), slice(None))
      mended = jnp.where(inside, buf.out[at], self.unowned(slot, first))
      buf.out[at] = mended
      buf.carry[...] = mended

  def unowned(self, slot: jax.Array, row: Any) -> jax.Array:
    """A block from `row` on as it is where no group has rows."""
    carry = self.buf.carry
    if self.plan.problem.has_existing:
      return self.buf.existing[slot, pl.ds(row, self.plan.block), :]
    return jnp.zeros(carry.shape, carry.dtype)


def gmm(
  plan: Plan,
  operands: Sequence[jax.Array],
  existing_out: jax.Array | None,
  interpret: Any,
) -> jax.Array:
  """Runs the kernel.

  Args:
    plan: from `tiling.make_plan`.
    operands: sizes int32 [g_total] within [0, m], offset int32 [1] within
      [0, g_total], lhs [m, k], rhs [g, k, n] or [g, n, k], as before padding.
    existing_out: [m, n] or None.
    interpret: False, True or InterpretParams.

  Returns:
    [m, n].
  """
  sizes, offset, lhs, rhs = operands
  pad_m, pad_k, pad_n = plan.pads
  k_axis, n_axis = (2, 1) if plan.problem.transpose_rhs else (1, 2)
  arrays = [
    sizes,
    offset,
    launch.pad_axes(lhs, {0: pad_m, 1: pad_k}),
    launch.pad_axes(rhs, {k_axis: pad_k, n_axis: pad_n}),
  ]
  if existing_out is not None:
    arrays.append(launch.pad_axes(existing_out, {0: pad_m, 1: pad_n}))
  template = scratch(plan)
  flat, tree = jax.tree.flatten(template)

  def body(sizes_ref: Any, offset_ref: Any, lhs_ref: Any, rhs_ref: Any, *refs: Any):
    out, *scratch_refs = refs[1:] if existing_out is not None else refs
    buffers = jax.tree.unflatten(tree, scratch_refs)
    Kernel(plan, lhs_ref, rhs_ref, out, buffers).run(sizes_ref, offset_ref)

  out = launch.call(
    body,
    plan,
    arrays,
    out_shape=(plan.problem.m, plan.problem.n),
    scratch_shapes=flat,
    input_output_aliases={} if existing_out is None else {4: 0},
    interpret=interpret,
  )
  if pad_m or pad_n:
    out = out[: out.shape[0] - pad_m, : out.shape[1] - pad_n]
  return out
