"""Two grouped products in one kernel: gated, split and sum (see pairs.py).

The steps, windows and edges of groups are those of gmm_kernel.py; a step
multiplies by a tile of both weights. `act(gate, up)` is computed from the
float32 sums, before their one rounding. Rows outside the group are computed
too, from whatever they hold, and then replaced as they are in one product: what
an activation makes of zeros is of no matter there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from gmm import activations
from gmm.activations import Activation
from gmm.kernels import gmm_kernel, grid, launch, pairs, zeros
from gmm.kernels.gated_memory import PairMemory, Second, scratch
from gmm.kernels.gmm_memory import Step
from gmm.kernels.grid import LANES, Totals, Window
from gmm.kernels.plan import PIECE_N, Plan
from gmm.kernels.products import Rows


def pair(
  plan: Plan,
  operands: Sequence[jax.Array],
  activation: Activation | None,
  interpret: Any,
) -> Any:
  """Runs the kernel.

  Args:
    plan: from `tiling.make_plan`, of a problem with `pair`.
    operands: sizes int32 [g_total] within [0, m], offset int32 [1] within
      [0, g_total], lhs (two of them in "sum") and rhs (one in "gated"), as
      before padding.
    activation: of "gated": act(gate, up), float32 to float32.
    interpret: False, True or InterpretParams.

  Returns:
    [m, n], or two of them in "split".
  """
  problem, sides = plan.problem, pairs.sides(plan.problem)
  pad_m, pad_k, pad_n = plan.pads
  k_axis, n_axis = (2, 1) if problem.transpose_rhs else (1, 2)
  sizes, offset, *arrays = operands
  arrays = [
    launch.pad_axes(
      x, {0: pad_m, 1: pad_k} if x.ndim == 2 else {k_axis: pad_k, n_axis: pad_n}
    )
    for x in arrays
  ]
  flat, tree = jax.tree.flatten(scratch(plan))

  def body(*refs: Any) -> None:
    sizes_ref, offset_ref, lanes, *rest = refs
    inputs, rest = rest[: len(arrays)], rest[len(arrays) :]
    outs, scratch_refs = rest[: sides.out], rest[sides.out :]
    lhs, rhs = inputs[: sides.lhs], inputs[sides.lhs :]
    memory = PairMemory(
      plan=plan,
      rows=grid.RowGrid.of(plan),
      lhs=lhs[0],
      rhs=rhs[0],
      scale=None,
      bias=None,
      out=outs[0],
      buf=jax.tree.unflatten(tree, scratch_refs),
      lanes=lanes,
      second=Second(*(x[1] if len(x) > 1 else None for x in (lhs, rhs, outs))),
    )
    kernel = _BODIES[problem.pair]
    if pairs.is_wide(problem):
      kernel = _WideGated
    kernel(memory, activation).run(sizes_ref, offset_ref)

  out = launch.call(
    body,
    plan,
    [sizes, offset, *arrays],
    out_shape=(problem.m, problem.n),
    scratch_shapes=flat,
    input_output_aliases={},
    interpret=interpret,
    outs=sides.out,
  )
  if pad_m or pad_n:
    end = problem.m - pad_m, problem.n - pad_n
    out = jax.tree.map(lambda x: x[: end[0], : end[1]], out)
  return tuple(out) if sides.out > 1 else out


class _Pair(gmm_kernel.Body):
  """A body with two products in a step: its arithmetic is its own.

  Attributes:
    activation: of "gated".
    count: sums that a piece of columns ends with.
    piece: most columns of a piece; what it keeps is as in one product.
  """

  count = 2
  piece = PIECE_N // 2

  def __init__(self, memory: PairMemory, activation: Activation | None) -> None:
    super().__init__(memory)
    self.activation = activation

  @property
  def width(self) -> int:
    """Columns of a step's products."""
    return self.plan.tile_n

  def sums(
    self, step: Step, at: Rows, k: int, n: pl.Slice
  ) -> Iterator[jax.Array]:
    """Some rows' first k columns times a piece of each weight tile."""
    for i in range(2):
      yield self.half(step, at, (k, n), i)

  def half(
    self, step: Step, at: Rows, piece: tuple[int, pl.Slice], half: int
  ) -> jax.Array:
    """One of the two products: `piece` is (columns of lhs, of the result)."""
    lhs = (step.lhs_slot,)
    if pairs.sides(self.plan.problem).lhs == 2:
      lhs = step.lhs_slot, half
    return self.dot((*lhs, pl.ds(*at)), (step.rhs_slot, half), piece)

  def dot(
    self,
    lhs: tuple[Any, ...],
    rhs: tuple[Any, ...],
    piece: tuple[int, pl.Slice],
  ) -> jax.Array:
    """Multiplies what lies at `lhs` and `rhs` in their buffers."""
    k, n = piece
    x = self.buf.lhs[(*lhs, pl.ds(0, k))]
    if self.plan.problem.transpose_rhs:
      y = self.buf.rhs[(*rhs, n, pl.ds(0, k))]
      return launch.dot(self.plan, x, y, (1, 1))
    y = self.buf.rhs[(*rhs, pl.ds(0, k), n)]
    return launch.dot(self.plan, x, y, (1, 0))

  def whole_k(self, step: Step, at: Rows) -> None:
    def one(n: pl.Slice) -> None:
      sums = tuple(self.sums(step, at, self.plan.tile_k, n))
      self.finish(step, at, n, sums)

    self.each_columns(one)

  def part_of_k(self, step: Step, k: int, at: Rows) -> None:
    def add(n: pl.Slice) -> None:
      for i, value in enumerate(self.sums(step, at, k, n)):
        columns = pl.ds(*at), self.columns(i, n)
        # The first k tile must not read what scratch memory holds.
        before = jnp.where(
          step.now.inner == 0, jnp.zeros_like(value), self.buf.acc[columns]
        )
        self.buf.acc[columns] = before + value

    self.each_columns(add)

  def from_acc(self, step: Step, at: Rows) -> None:
    for n in launch.pieces(self.plan.tile_n, self.piece):
      columns = [self.columns(i, n) for i in range(self.count)]
      sums = tuple(self.buf.acc[pl.ds(*at), c] for c in columns)
      self.finish(step, at, n, sums)

  def finish(
    self, step: Step, at: Rows, n: pl.Slice, sums: tuple[jax.Array, ...]
  ) -> None:
    """Rounds what is made of some columns' sums."""
    raise NotImplementedError

  def each_columns(self, fn: Callable[[pl.Slice], None]) -> None:
    """Calls fn for pieces of a step's columns."""

    def part(start: Any, size: int) -> None:
      for n in launch.pieces(size, self.piece, start):
        fn(n)

    launch.each_part(self.width, self.plan.parts, part)

  def columns(self, i: int, n: pl.Slice) -> pl.Slice:
    """Where sum `i` of columns `n` lies in the accumulator."""
    start = i * pairs.half_width(self.plan) + n.start
    if not isinstance(start, int):
      start = pl.multiple_of(start, LANES)
    return pl.ds(start, n.size)


class _Sum(_Pair):
  """Two lhs, each with its own weight; their products are added up."""

  count = 1
  piece = PIECE_N

  def sums(
    self, step: Step, at: Rows, k: int, n: pl.Slice
  ) -> Iterator[jax.Array]:
    first, second = super().sums(step, at, k, n)
    yield first + second

  def finish(
    self, step: Step, at: Rows, n: pl.Slice, sums: tuple[jax.Array, ...]
  ) -> None:
    self.store(step, at, n, *sums)


class _Gated(_Pair):
  """Gate and up, of which the activation leaves one."""

  def finish(
    self, step: Step, at: Rows, n: pl.Slice, sums: tuple[jax.Array, ...]
  ) -> None:
    value = activations.apply(self.activation, *sums)
    self.store(step, at, n, value)


class _WideGated(_Gated):
  """Gate and up as one tile of 2n columns, cut in two in the accumulator.

  A half that starts within a register is moved to a whole one there: rows of
  sums, where it would be columns of the weight for every product.
  """

  count = 1
  piece = PIECE_N

  @property
  def width(self) -> int:
    return 2 * self.plan.problem.n

  def sums(
    self, step: Step, at: Rows, k: int, n: pl.Slice
  ) -> Iterator[jax.Array]:
    lhs = step.lhs_slot, pl.ds(*at)
    yield self.dot(lhs, (step.rhs_slot,), (k, n))

  def whole_k(self, step: Step, at: Rows) -> None:
    def keep(n: pl.Slice) -> None:
      (value,) = self.sums(step, at, self.plan.tile_k, n)
      self.buf.acc[pl.ds(*at), n] = value

    self.each_columns(keep)
    self.from_acc(step, at)

  def from_acc(self, step: Step, at: Rows) -> None:
    size = self.plan.problem.n
    for n in launch.pieces(size, self.piece // 2):
      gate = self.buf.acc[pl.ds(*at), n]
      up = self.buf.acc[pl.ds(*at), pl.ds(size + n.start, n.size)]
      self.finish(step, at, n, (gate, up))


class _Split(_Pair):
  """Gate and up, both of them results."""

  def fill(self, out: Any) -> _Fills:
    second = self.memory.second.out
    return _Fills(super().fill(out), super().fill(second))

  def finish(
    self, step: Step, at: Rows, n: pl.Slice, sums: tuple[jax.Array, ...]
  ) -> None:
    out = self.buf.out
    for i, value in enumerate(sums):
      out[step.out_slot + 2 * i, pl.ds(*at), n] = value.astype(out.dtype)

  def mend_head(
    self, slot: jax.Array, window: Window, is_first: jax.Array
  ) -> None:
    for i in range(2):
      self.of_one(i).mend_head(slot + 2 * i, window, is_first)

  def mend_tail(self, slot: jax.Array, window: Window) -> None:
    for i in range(2):
      self.of_one(i).mend_tail(slot + 2 * i, window)

  def of_one(self, i: int) -> gmm_kernel.Body:
    """What mends the edges of one of the results, with a carry of its own."""
    buf = self.buf._replace(carry=self.buf.carry.at[i])
    return gmm_kernel.Body(dataclasses.replace(self.memory, buf=buf))


class _Fills(NamedTuple):
  """Zeros in both results, copied from the same buffer."""

  first: zeros.RowFill
  second: zeros.RowFill

  def start(self, totals: Totals, num_cores: int) -> None:
    self.first.start(totals, num_cores)
    self.second.each(totals, num_cores, "start")

  def wait(self, totals: Totals, num_cores: int) -> None:
    for fill in self:
      fill.wait(totals, num_cores)


_BODIES: dict[str, type[_Pair]] = {
  "gated": _Gated,
  "split": _Split,
  "sum": _Sum,
}
