"""The gradient of the weights, TN: one product per group over its rows.

    out[i] = lhs[rows of group i]^T @ dout[rows of group i]       [g, k, n]

The transposed result [g, n, k] is the same kernel with its operands exchanged.
One core works through its output tiles; for each it goes through the same
windows of rows as gmm does (grid.py), adds up a group's windows in float32 and
sends a tile away when its group ends. Groups without rows are filled with zeros
by copies that run beside all this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.kernels import grid, launch, products, tgmm_scales, zeros
from gmm.kernels.grid import (
  GroupTable,
  Totals,
  Visit,
  Window,
  move,
  parity,
)
from gmm.kernels.plan import PIECE_N, Plan
from gmm.kernels.products import Rows

LHS, DOUT, OUT = range(3)


def tgmm(
  plan: Plan,
  operands: Sequence[jax.Array],
  interpret: Any,
  scales: tgmm_scales.Scales = (None, None),
) -> jax.Array:
  """Runs the kernel.

  Args:
    plan: from `tiling.make_plan`.
    operands: sizes int32 [g_total] within [0, m], offset int32 [1] within
      [0, g_total], lhs [m, k], dout [m, n], as before padding.
    interpret: False, True or InterpretParams.
    scales: of lhs, [1, 1] or [1, k], and of dout, [1, 1] or [1, n].

  Returns:
    [g, k, n].
  """
  sizes, offset, lhs, dout = operands
  pad_m, pad_k, pad_n = plan.pads
  arrays = [
    sizes,
    offset,
    launch.pad_axes(lhs, {0: pad_m, 1: pad_k}),
    launch.pad_axes(dout, {0: pad_m, 1: pad_n}),
    *tgmm_scales.arrays(plan, scales),
  ]
  flat, tree = jax.tree.flatten(_scratch(plan))
  out_at = len(arrays) - 1  # refs begin with the last lanes, after two scalars

  def body(sizes_ref: Any, offset_ref: Any, *refs: Any) -> None:
    lanes, lhs_ref, dout_ref, *scale_refs = refs[:out_at]
    buf: Buffers = jax.tree.unflatten(tree, refs[out_at + 1 :])
    tgmm_scales.fetch(scale_refs, buf.scales)
    _Body(plan, (lanes, lhs_ref, dout_ref, refs[out_at]), buf).run(
      sizes_ref, offset_ref
    )

  problem = plan.problem
  out = launch.call(
    body,
    plan,
    arrays,
    out_shape=(problem.g, problem.k, problem.n),
    scratch_shapes=flat,
    input_output_aliases={},
    interpret=interpret,
  )
  if pad_k or pad_n:
    out = out[:, : problem.k - pad_k, : problem.n - pad_n]
  return out


class Buffers(NamedTuple):
  """Scratch of one core; a leading 2 is a double buffer.

  Attributes:
    table: the local groups.
    lhs: VMEM [2, rows, tile_k].
    dout: VMEM [2, rows, tile_n].
    out: VMEM [2, tile_k, tile_n].
    acc: VMEM [tile_k, tile_n] in float32 or int32.
    zero: VMEM [zero_rows, n].
    zero_tail: VMEM [k % zero_rows, n], or None.
    sems: DMA semaphores [3, 2]: lhs, dout, out.
    zero_sem: DMA semaphore [1].
    scales: those of the operands.
  """

  table: GroupTable
  lhs: Any
  dout: Any
  out: Any
  acc: Any
  zero: Any
  zero_tail: Any
  sems: Any
  zero_sem: Any
  scales: tgmm_scales.Buffers


def _scratch(plan: Plan) -> Buffers:
  problem = plan.problem
  rows, k, n = plan.buffer_rows, plan.tile_k, plan.tile_n
  tail = problem.k % plan.zero_rows
  out = problem.out_dtype
  return Buffers(
    table=GroupTable.scratch(problem.g),
    lhs=pltpu.VMEM((2, rows, k), problem.lhs_dtype),
    dout=pltpu.VMEM((2, rows, n), problem.rhs_dtype),
    out=pltpu.VMEM((2, k, n), out),
    acc=pltpu.VMEM((k, n), problem.acc_dtype),
    zero=pltpu.VMEM((plan.zero_rows, problem.n), out),
    zero_tail=pltpu.VMEM((tail, problem.n), out) if tail else None,
    sems=pltpu.SemaphoreType.DMA((3, 2)),
    zero_sem=pltpu.SemaphoreType.DMA((1,)),
    scales=tgmm_scales.scratch(plan),
  )


class Step(NamedTuple):
  """What the step loop carries.

  Attributes:
    now: the step to compute; its operands are on their way.
    done: results finished so far.
    pending: the output tile that out buffers 0 and 1 are being copied to; -1 is
      none.
  """

  now: Visit
  done: jax.Array
  pending: tuple[jax.Array, jax.Array]


class _Body:
  """The kernel's body over its refs; holds no state of its own."""

  def __init__(self, plan: Plan, refs: Sequence[Any], buf: Buffers) -> None:
    self.plan, self.buf = plan, buf
    self.lanes, self.lhs, self.dout, self.out = refs
    self.rows = grid.RowGrid.of(plan)

  def run(self, sizes: Any, offset: Any) -> None:
    plan, buf = self.plan, self.buf
    cores = plan.chip.num_cores
    totals = self.rows.fill_group_table(sizes, offset, buf.table)
    fill = zeros.GroupFill(
      buf.table,
      totals.groups,
      self.out,
      buf.zero,
      buf.zero_tail,
      buf.zero_sem.at[0],
    )
    filled = fill.start(cores)
    first, last = grid.core_share(plan.k.count * plan.n.count, cores)
    steps = (last - first) * totals.visits

    @pl.when(steps > 0)
    def _() -> None:
      zero, none = np.int32(0), np.int32(-1)
      start = Step(self.rows.first_visit(buf.table, first), zero, (none, none))
      self.copies(start.now, zero, "start")
      end = lax.fori_loop(
        0, steps, functools.partial(self.step, totals, steps), start
      )
      for slot in range(2):
        self.wait_out(end.pending, slot)

    fill.wait(filled)

  def tile(self, outer: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the (k, n) tile of an output tile; k is the faster one."""
    count = np.int32(self.plan.k.count)
    return lax.rem(outer, count), lax.div(outer, count)

  # ---- data movement

  def copies(self, now: Visit, index: jax.Array, act: str) -> None:
    """Starts, or waits for, the rows of both operands."""
    window = self.rows.window_of(now)
    slot = parity(index)
    k_tile, n_tile = self.tile(now.outer)

    def rows_of(source: Any, target: Any, sem: int) -> Callable[..., None]:
      def copy(columns: pl.Slice, at: pl.Slice) -> None:
        move(
          source.at[pl.ds(window.start, window.rows), columns],
          target.at[slot, pl.ds(0, window.rows), at],
          self.buf.sems.at[sem, slot],
          act,
        )

      return copy

    copy_lhs = rows_of(self.lhs, self.buf.lhs, LHS)
    copy_dout = rows_of(self.dout, self.buf.dout, DOUT)
    self.plan.k.with_tile(k_tile, copy_lhs, self.lanes[0])
    self.plan.n.with_tile(n_tile, copy_dout, self.lanes[1])

  def out_copy(self, slot: Any, outer: Any, group: Any, act: str) -> None:
    k_tile, n_tile = self.tile(outer)

    def copy(k: tuple[pl.Slice, ...], n: tuple[pl.Slice, ...]) -> None:
      move(
        self.buf.out.at[slot, k[1], n[1]],
        self.out.at[group, k[0], n[0]],
        self.buf.sems.at[OUT, slot],
        act,
      )

    self.plan.k.with_tile(
      k_tile,
      lambda *k: self.plan.n.with_tile(
        n_tile, lambda *n: copy(k, n), self.lanes[1]
      ),
    )

  def wait_out(
    self, pending: tuple[jax.Array, ...], slot: jax.Array | int
  ) -> None:
    """Waits until an out buffer may be written again."""
    outer = grid.of_two(pending, slot)

    @pl.when(outer >= 0)
    def _() -> None:
      self.out_copy(slot, outer, 0, "wait")

  # ---- steps

  def step(
    self, totals: Totals, steps: jax.Array, index: jax.Array, step: Step
  ) -> Step:
    now = step.now
    after = self.rows.advance(self.buf.table, totals.groups, 1, now)

    @pl.when(index + 1 < steps)
    def _() -> None:
      self.copies(after, index + 1, "start")

    @pl.when(lax.rem(index, totals.visits) == 0)
    def _() -> None:
      k_tile, _ = self.tile(now.outer)
      tgmm_scales.spread(self.buf.scales, self.plan.k.start(k_tile))

    self.copies(now, index, "wait")
    ends = self.rows.is_last_tile(now)
    out_slot = parity(step.done)
    last = self.compute(now, parity(index), ends)

    @pl.when(ends)
    def _() -> None:
      self.wait_out(step.pending, out_slot)
      last(out_slot)
      self.out_copy(out_slot, now.outer, now.id, "start")

    sent = [jnp.logical_and(ends, out_slot == i) for i in range(2)]
    pending = tuple(
      jnp.where(sent[i], now.outer, step.pending[i]) for i in range(2)
    )
    return Step(after, step.done + ends.astype(jnp.int32), pending)

  def compute(
    self, now: Visit, slot: jax.Array, ends: jax.Array
  ) -> Callable[[jax.Array], None]:
    """Adds the window's rows to acc, but for the group's last ones.

    1. Rows before the group lie in the first block: zeroed where they are.
    2. Rows after it, and those that the buffer held before, can only lie in
       the product that ends its last window: masked there (other windows are
       whole units). Both operands are, since 0 * NaN is NaN.

    Returns:
      What adds those, too, and completes an out buffer: to call where the
      window ends its group.
    """
    window = self.rows.window_of(now)

    @pl.when(window.lo > window.start)
    def _() -> None:
      self.clear_head(window, slot)

    before = window.rows - ends.astype(jnp.int32)  # the last one has a row
    chunks = lax.div(before, np.int32(self.plan.unit)) * self.plan.run
    add = functools.partial(self.add, (slot, now.tile == 0), window)
    products.each_whole(self.plan, chunks, add)

    def last(out_slot: jax.Array) -> None:
      end = functools.partial(products.end, self.plan, window.rows, chunks)
      n_tile = self.tile(now.outer)[1]
      add_to = functools.partial(add, target=(out_slot, n_tile))
      if not self.plan.alone:
        end(add_to)
        return
      (most,) = self.plan.alone
      is_alone = jnp.logical_and(now.tile == 0, window.rows <= most)
      alone = functools.partial(add_to, (0, most), adds=False)
      lax.cond(is_alone, alone, functools.partial(end, add_to))

    return last

  def clear_head(self, window: Window, slot: jax.Array) -> None:
    rows = grid.block_rows(self.plan.block, window.start)
    for ref in (self.buf.lhs, self.buf.dout):
      head = ref[slot, pl.ds(0, self.plan.block), :]
      ref[slot, pl.ds(0, self.plan.block), :] = jnp.where(
        rows < window.lo, jnp.zeros_like(head), head
      )

  def add(
    self,
    operands: tuple[jax.Array, jax.Array],
    window: Window,
    at: Rows,
    *,
    target: tuple[jax.Array, jax.Array] | None = None,
    adds: bool = True,
  ) -> None:
    """Adds a product to acc, or to acc and on to an out buffer.

    Args:
      operands: their buffer; whether it holds the group's first row.
      window: the visit's rows.
      at: the product's rows.
      target: for the group's last rows: an out buffer, and the n tile that it
        is for. None for acc.
      adds: False where these are all of the group's rows.
    """
    (slot, begins), (row, count) = operands, at
    chunk = self.plan.chunk
    rows = grid.block_rows(chunk, window.start + row + (count - chunk))

    def keep(x: jax.Array) -> jax.Array:
      if target is None:
        return x
      # All but the last chunk lie within the group.
      last = x if count == chunk else x[count - chunk :]
      last = jnp.where(rows < window.hi, last, jnp.zeros_like(last))
      if count == chunk:
        return last
      return jnp.concatenate([x[: count - chunk], last])

    begin = jnp.logical_and(begins, row == 0)

    def part(start: Any, size: int) -> None:
      k = pl.ds(start, size)
      lhs = keep(self.buf.lhs[slot, pl.ds(row, count), k])
      for n in launch.pieces(self.plan.tile_n, PIECE_N):
        dout = keep(self.buf.dout[slot, pl.ds(row, count), n])
        value = launch.dot(self.plan, lhs, dout, (0, 0))
        if adds:
          # The first chunk must not read what scratch memory holds.
          before = jnp.where(begin, jnp.zeros_like(value), self.buf.acc[k, n])
          value = before + value
        if target is None:
          self.buf.acc[k, n] = value
        else:
          out_slot, n_tile = target
          columns = pl.ds(self.plan.n.start(n_tile) + n.start, n.size)
          total = tgmm_scales.scaled(value, self.buf.scales, k, columns)
          self.buf.out[out_slot, k, n] = total.astype(self.buf.out.dtype)

    launch.each_part(self.plan.tile_k, self.plan.parts, part)
