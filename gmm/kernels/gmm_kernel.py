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
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from gmm.kernels import (
  carriers,
  grid,
  launch,
  products,
  quantizing,
  row_scales,
  scales,
  small_blocks,
  zeros,
)
from gmm.kernels.gmm_memory import Ahead, Memory, Pending, Step, Weights
from gmm.kernels.grid import Totals, Window
from gmm.kernels.plan import PIECE_N
from gmm.kernels.products import Rows


class Body:
  """The kernel's body over its refs; holds no state of its own."""

  def __init__(self, memory: Memory) -> None:
    """Takes the refs, and the plan that they were made for."""
    self.memory = memory
    self.plan, self.rows, self.buf = memory.plan, memory.rows, memory.buf
    self.has_existing = memory.plan.problem.has_existing

  def run(self, sizes: Any, offset: Any) -> None:
    """Does the share of this core, from the first step to the last."""
    plan, buf, memory = self.plan, self.buf, self.memory
    cores = plan.chip.num_cores
    totals = self.rows.fill_group_table(sizes, offset, buf.table)
    fill = self.fill(memory.out)
    if not self.has_existing:  # else those rows are there already
      fill.start(totals, cores)
    first, last = grid.core_share(plan.n.count, cores)
    steps = (last - first) * totals.visits * plan.k.count

    @pl.when(steps > 0)
    def _() -> None:
      zero = np.int32(0)
      start = Step(
        index=zero,
        now=self.rows.first_visit(buf.table, first),
        visit=zero,
        rhs_slot=zero,
        fresh=jnp.bool_(True),
        ahead=Ahead(first, zero, zero),
        pending=Pending((zero, zero), (zero, zero)),
      )
      memory.fetch(start)
      if plan.k.count == 1:
        for _ in range(plan.rhs_buffers - 1):
          self.fetch_weights_ahead(last, start)
          start = start._replace(ahead=self.next_ahead(totals, start))
      step = functools.partial(self.step, totals, (steps, last))
      end = lax.fori_loop(0, steps, lambda _, carry: step(carry), start)
      for slot in range(2):
        memory.wait_sent(end.pending, slot)

    if not self.has_existing:
      fill.wait(totals, cores)

  def fill(self, out: Any) -> zeros.RowFill:
    """Zeros for the rows of a result that no group has."""
    return zeros.RowFill(self.rows, out, self.buf.zero, self.buf.zero_sem.at[0])

  # ---- steps

  def step(
    self, totals: Totals, ends: tuple[jax.Array, Any], step: Step
  ) -> Step:
    """One grid step: fetch for the next one, then compute this one.

    Args:
      totals: what the groups add up to.
      ends: the steps of this core, and the output tile after its last.
      step: the step.
    """
    steps, end_outer = ends
    after = self.following(totals, step)

    @pl.when(after.index < steps)
    def _() -> None:
      self.memory.fetch(after)

    if self.plan.k.count == 1:
      self.fetch_weights_ahead(end_outer, step)
    self.memory.wait_operands(step)
    if self.plan.problem.packs_lanes:
      pl.when(step.fresh)(
        lambda: carriers.turn(self.plan, self.buf, step.rhs_slot)
      )
    return after._replace(pending=self.compute(totals, step))

  def fetch_weights_ahead(self, end_outer: Any, step: Step) -> None:
    """Starts the copy of a later group's weight with this group's first step.

    Its buffer is free from then on, and a weight takes longer than one step.
    """
    outer, group, slot = step.ahead

    @pl.when(jnp.logical_and(step.fresh, outer < end_outer))
    def _() -> None:
      self.memory.copy_rhs(
        Weights(self.buf.table.ids[group], outer, 0, slot), "start"
      )

  def next_ahead(self, totals: Totals, step: Step) -> Ahead:
    """The weight after the one that a step with a fresh weight fetches."""
    ahead = step.ahead
    moves = step.fresh.astype(jnp.int32)
    group = ahead.group + moves
    wraps = group == totals.groups
    return Ahead(
      ahead.outer + wraps.astype(jnp.int32),
      jnp.where(wraps, 0, group),
      self.next_slot(ahead.slot, step.fresh),
    )

  def next_slot(self, slot: jax.Array, moves: jax.Array) -> jax.Array:
    """The buffer after `slot`, or the same where nothing moves."""
    after = slot + moves.astype(jnp.int32)
    return jnp.where(after == self.plan.rhs_buffers, 0, after)

  def following(self, totals: Totals, step: Step) -> Step:
    """The step after this one, but for what that leaves pending."""
    now = step.now
    after = self.rows.advance(
      self.buf.table, totals.groups, self.plan.k.count, now
    )
    fresh = jnp.logical_or(after.group != now.group, after.outer != now.outer)
    if self.plan.k.count > 1:
      fresh = jnp.bool_(True)
    new_visit = after.inner == 0
    return step._replace(
      index=step.index + 1,
      now=after,
      visit=step.visit + new_visit.astype(jnp.int32),
      rhs_slot=self.next_slot(step.rhs_slot, fresh),
      fresh=fresh,
      ahead=self.next_ahead(totals, step),
    )

  def compute(self, totals: Totals, step: Step) -> Pending:
    """Multiplies one k tile; ends the visit with the last one."""
    k_axis, inner = self.plan.k, step.now.inner
    window = self.rows.window_of(step.now)
    if k_axis.count == 1:
      self.begin_out(step)
      self.each_product(window, functools.partial(self.whole_k, step))
      return self.end_visit(totals, step, window)

    if self.plan.turn:  # tiles differ in turns alone
      self.each_product(window, functools.partial(self.add_blocks, step))
    else:
      k_axis.with_tile(
        inner,
        lambda _, k: self.each_product(
          window, functools.partial(self.part_of_k, step, k.size)
        ),
      )

    def end() -> Pending:
      self.begin_out(step)
      self.each_product(window, functools.partial(self.from_acc, step))
      return self.end_visit(totals, step, window)

    return lax.cond(inner == k_axis.count - 1, end, lambda: step.pending)

  def begin_out(self, step: Step) -> None:
    """Waits until the visit's out buffer is free, and what exists is there."""
    self.memory.wait_sent(step.pending, step.out_slot)
    if self.has_existing:
      self.memory.copy_existing(step, "wait")

  def each_product(self, window: Window, fn: Callable[[Rows], None]) -> None:
    """Calls fn for products that cover the window's rows."""
    chunks = products.whole_chunks(self.plan, window.rows)
    products.each_whole(self.plan, chunks, fn)
    products.end(self.plan, window.rows, chunks, fn)

  # ---- arithmetic

  def tile(self, step: Step, at: Rows) -> scales.Tile:
    """Some rows and the weight tile of a step."""
    buf, problem = self.buf, self.plan.problem
    contract = 1, int(problem.contracts_lanes)

    def rhs(k: pl.Slice, n: pl.Slice) -> jax.Array:
      if problem.packed_axis:
        words = carriers.words(self.plan, buf, step.rhs_slot)
        return carriers.values(self.plan, words, (k, n))
      major, minor = (n, k) if problem.transpose_rhs else (k, n)
      return buf.rhs[step.rhs_slot, major, minor]

    scale = buf.scale
    return scales.Tile(
      plan=self.plan,
      lhs=lambda k: buf.lhs[step.lhs_slot, pl.ds(*at), k],
      rhs=rhs,
      dot=lambda x, y: launch.dot(self.plan, x, y, contract),
      scale=None if scale is None else scale.at[step.rhs_slot],
      inner=step.now.inner,
      outer=step.now.outer,
    )

  def each_piece(
    self,
    step: Step,
    at: Rows,
    k: int,
    fn: Callable[[pl.Slice, jax.Array], None],
    *,
    first: int = 0,
  ) -> None:
    """Calls fn for pieces of columns of some rows' product over k columns.

    Where they are quantised, it is from row `first` of the scratch on.
    """
    tile, place = self.tile(step, at), scales.place(self.plan.problem)
    quantised = None
    if self.buf.quantised is not None:
      ref = self.buf.quantised.at[pl.ds(first, at[1])]
      quantised = quantizing.quantize(tile, quantizing.whole(tile, k), ref)
    if place == "n":
      scales.each_of_blocks((tile,), k, lambda n, values: fn(n, *values))
      return

    def one(n: pl.Slice) -> None:
      if quantised is not None:
        fn(n, quantised.product(n))
      elif place == "k":
        fn(n, scales.sum_over_blocks(tile, k, n))
      else:
        columns = pl.ds(0, k)
        fn(n, tile.dot(tile.lhs(columns), tile.rhs(columns, n)))

    def part(start: Any, size: int) -> None:
      if small_blocks.scales_weight(self.plan):
        small_blocks.each_piece(self.plan, (start, size), PIECE_N, one)
        return
      for n in launch.pieces(size, PIECE_N, start):
        one(n)

    launch.each_part(self.plan.tile_n, self.plan.parts, part)

  def whole_k(self, step: Step, at: Rows) -> None:
    """Some rows of the result, where k is one tile."""
    if self.plan.turn:
      self.add_blocks(step, at, 0)
      self.from_acc(step, at, 0)
      return
    for first, rows in quantizing.together(self.plan, at):
      store = self.storing(step, rows)
      self.each_piece(step, rows, self.plan.tile_k, store, first=first)

  def part_of_k(self, step: Step, k: int, at: Rows) -> None:
    """Adds the product of a k tile to some rows of the accumulator."""

    def add(n: pl.Slice, value: jax.Array) -> None:
      # The first k tile must not read what scratch memory holds.
      before = jnp.where(
        step.now.inner == 0, jnp.zeros_like(value), self.buf.acc[pl.ds(*at), n]
      )
      self.buf.acc[pl.ds(*at), n] = before + value

    self.each_piece(step, at, k, add)

  def add_blocks(self, step: Step, at: Rows, row: Any = None) -> None:
    """Adds products of many blocks to some rows of the accumulator."""
    tile, acc = self.tile(step, at), self.acc(at, row)
    quantizing.add_blocks(tile, acc, self.buf.quantised)

  def from_acc(self, step: Step, at: Rows, row: Any = None) -> None:
    """Some rows of the result, from the accumulator."""
    store, acc = self.storing(step, at), self.acc(at, row)
    for n in launch.pieces(self.plan.tile_n, PIECE_N):
      store(n, acc[:, n])

  def acc(self, at: Rows, row: Any) -> Any:
    """The accumulator of some rows; it starts at `row`, if given."""
    return self.buf.acc.at[pl.ds(at[0] if row is None else row, at[1]), :]

  def storing(
    self, step: Step, at: Rows
  ) -> Callable[[pl.Slice, jax.Array], None]:
    """`store` for some rows, with their scales at hand."""
    if self.buf.lhs_scale is None:
      return functools.partial(self.store, step, at)
    start = self.rows.window_of(step.now).start
    skipped = row_scales.first_row(self.plan, start) * np.int32(grid.LANES)
    by_row = row_scales.column(
      self.plan,
      self.buf.lhs_scale.at[step.lhs_slot],
      start - skipped + at[0],
      at[1],
    )
    return functools.partial(self.store, step, at, by_row=by_row)

  def store(
    self,
    step: Step,
    at: Rows,
    n: pl.Slice,
    value: jax.Array,
    *,
    by_row: jax.Array | None = None,
  ) -> None:
    """Rounds once, after scales, bias and what exists."""
    slot, out = step.out_slot, self.buf.out
    if scales.place(self.plan.problem) == "out":
      own = scales.row(self.buf.scale.at[step.rhs_slot], 0, n)
      value = value.astype(np.float32) * own
    if by_row is not None:
      value = value.astype(np.float32) * by_row
    if self.buf.bias is not None:
      value = value.astype(np.float32) + self.buf.bias[step.rhs_slot, :, n]
    if self.has_existing:
      wide = np.float32 if jnp.issubdtype(out.dtype, jnp.floating) else np.int32
      existing = self.buf.existing[slot, pl.ds(*at), n].astype(wide)
      value = value.astype(wide) + existing
    out[slot, pl.ds(*at), n] = value.astype(out.dtype)

  # ---- edges of groups

  def end_visit(self, totals: Totals, step: Step, window: Window) -> Pending:
    """Mends the first and last block, and sends the finished rows away.

    1. Rows of the first block before the group come from earlier visits.
    2. Rows of the last block after the group are zero, or what existed.
    3. A last block that the group does not fill is carried on, not written,
       except by the last visit: so every row is written once.
    """
    now = step.now
    is_first = jnp.logical_and(now.group == 0, now.tile == 0)
    self.mend_head(step.out_slot, window, is_first)
    self.mend_tail(step.out_slot, window)
    is_last = jnp.logical_and(
      now.group == totals.groups - 1, self.rows.is_last_tile(now)
    )
    whole = self.rows.floor(window.hi) - window.start
    rows = jnp.where(is_last, window.rows, jnp.minimum(whole, window.rows))
    return self.memory.send(step, window.start, rows)

  def mend_head(
    self, slot: jax.Array, window: Window, is_first: jax.Array
  ) -> None:
    """Fills the first block's rows before the group."""
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
    """Fills the last block's rows after the group, and carries it on."""
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
    if self.has_existing:
      return self.buf.existing[slot, pl.ds(row, self.plan.block), :]
    return jnp.zeros(carry.shape, carry.dtype)
