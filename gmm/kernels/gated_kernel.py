"""Two grouped products in one kernel: gated, split and sum (see pairs.py).

The steps, windows and edges of groups are those of gmm_kernel.py; a step
multiplies by a tile of both weights. `act(gate, up)` is computed from the
float32 sums, before their one rounding. Rows outside the group are computed
too, from whatever they hold, and then replaced as they are in one product: what
an activation makes of zeros is of no matter there.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm import activations
from gmm.activations import Activation
from gmm.config import PACKED
from gmm.kernels import gmm_kernel, grid, launch, pairs, scales, zeros
from gmm.kernels.gated_memory import PairMemory, Second, padded, scratch
from gmm.kernels.gmm_memory import Step
from gmm.kernels.grid import LANES, Totals, Window
from gmm.kernels.plan import PIECE_N, Plan
from gmm.kernels.products import Rows
from gmm.pair_operands import PairOperands


def pair(
  plan: Plan,
  operands: PairOperands,
  activation: Activation | None,
  interpret: Any,
) -> Any:
  """Runs the kernel.

  Args:
    plan: from `tiling.make_plan`, of a problem with `pair`.
    operands: arrays as before padding; sizes within [0, m], offset within
      [0, g_total].
    activation: of "gated": act(gate, up), float32 to float32.
    interpret: False, True or InterpretParams.

  Returns:
    [m, n], or two of them in "split".
  """
  problem, sides = plan.problem, pairs.sides(plan.problem)
  operands = padded(plan, operands)
  kinds = operands.lhs, operands.rhs, operands.scale, operands.bias
  arrays = [x for kind in kinds for x in kind]
  flat, tree = jax.tree.flatten(scratch(plan))

  def body(*refs: Any) -> None:
    sizes_ref, offset_ref, lanes, *rest = refs
    rest = iter(rest)
    counts = (*map(len, kinds), sides.out)
    # Of each kind the first, and the second or None.
    found = [
      [*itertools.islice(rest, count), None, None][:2] for count in counts
    ]
    names = ("lhs", "rhs", "scale", "bias", "out")
    first, second = (
      dict(zip(names, refs, strict=True)) for refs in zip(*found, strict=True)
    )
    memory = PairMemory(
      plan=plan,
      rows=grid.RowGrid.of(plan),
      buf=jax.tree.unflatten(tree, rest),
      lanes=lanes,
      second=Second(**second),
      **first,
    )
    kernel = _BODIES[problem.pair]
    if pairs.is_wide(problem):
      kernel = _WideGated
    kernel(memory, activation).run(sizes_ref, offset_ref)

  out = launch.call(
    body,
    plan,
    [operands.sizes, operands.offset, *arrays],
    out_shape=(problem.m, problem.n),
    scratch_shapes=flat,
    input_output_aliases={},
    interpret=interpret,
    outs=sides.out,
  )
  pad_m, _, pad_n = plan.pads
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

  def half(self, step: Step, at: Rows, half: int) -> scales.Tile:
    """Some rows and the tile of gate or up of a step: as of one product."""
    lhs = (step.lhs_slot,)
    if pairs.sides(self.plan.problem).lhs == 2:
      lhs = step.lhs_slot, half
    return self.tile_at((*lhs, pl.ds(*at)), (step.rhs_slot, half), step)

  def tile_at(
    self, lhs: tuple[Any, ...], rhs: tuple[Any, ...], step: Step
  ) -> scales.Tile:
    """What lies at `lhs` and `rhs` in their buffers."""
    buf, transposed = self.buf, self.plan.problem.transpose_rhs

    def weight(k: pl.Slice, n: pl.Slice) -> jax.Array:
      major, minor = (n, k) if transposed else (k, n)
      if not self.plan.problem.packed_axis:
        return buf.rhs[(*rhs, major, minor)]
      rows = pl.ds(major.start // PACKED, major.size // PACKED)
      return pltpu.bitcast(buf.rhs[(*rhs, rows, minor)], jnp.int4)

    return scales.Tile(
      plan=self.plan,
      lhs=lambda k: buf.lhs[(*lhs, k)],
      rhs=weight,
      dot=lambda x, y: launch.dot(self.plan, x, y, (1, int(transposed))),
      scale=None if buf.scale is None else buf.scale.at[rhs],
      inner=step.now.inner,
      outer=step.now.outer,
    )

  def tiles(self, step: Step, at: Rows) -> tuple[scales.Tile, ...]:
    """What each sum of a step is made of."""
    return self.half(step, at, 0), self.half(step, at, 1)

  def each_sums(
    self,
    step: Step,
    at: Rows,
    k: int,
    fn: Callable[[pl.Slice, tuple[jax.Array, ...]], None],
  ) -> None:
    """Calls fn for pieces of columns, with products over the first k of lhs."""
    tiles = self.tiles(step, at)
    blocked = scales.place(self.plan.problem) == "k"

    def one(n: pl.Slice) -> None:
      if blocked:
        fn(n, tuple(scales.sum_over_blocks(tile, k, n) for tile in tiles))
        return
      columns = pl.ds(0, k)
      fn(
        n,
        tuple(
          tile.dot(tile.lhs(columns), tile.rhs(columns, n)) for tile in tiles
        ),
      )

    def part(start: Any, size: int) -> None:
      for n in launch.pieces(size, self.piece, start):
        one(n)

    launch.each_part(self.width, self.plan.parts, part)

  def whole_k(self, step: Step, at: Rows) -> None:
    def one(n: pl.Slice, sums: tuple[jax.Array, ...]) -> None:
      self.finish(step, at, n, self.complete(step, n, sums))

    self.each_sums(step, at, self.plan.tile_k, one)

  def part_of_k(self, step: Step, k: int, at: Rows) -> None:
    def add(n: pl.Slice, sums: tuple[jax.Array, ...]) -> None:
      for i, value in enumerate(sums):
        columns = pl.ds(*at), self.columns(i, n)
        # The first k tile must not read what scratch memory holds.
        before = jnp.where(
          step.now.inner == 0, jnp.zeros_like(value), self.buf.acc[columns]
        )
        self.buf.acc[columns] = before + value

    self.each_sums(step, at, k, add)

  def from_acc(self, step: Step, at: Rows) -> None:
    for n in launch.pieces(self.plan.tile_n, self.piece):
      columns = [self.columns(i, n) for i in range(self.count)]
      sums = tuple(self.buf.acc[pl.ds(*at), c] for c in columns)
      self.finish(step, at, n, self.complete(step, n, sums))

  def complete(
    self, step: Step, n: pl.Slice, sums: tuple[jax.Array, ...]
  ) -> tuple[jax.Array, ...]:
    """The sums with a scale for each column, and their bias."""
    found = []
    for i, value in enumerate(sums):
      half, lanes = self.rows_at(i, n)
      slot = (step.rhs_slot, *half)
      if scales.place(self.plan.problem) == "out":
        value = value * scales.row(self.buf.scale.at[slot], 0, lanes)
      if self.buf.bias is not None:
        bias = self.buf.bias[(*slot, slice(None), lanes)]
        value = value.astype(np.float32) + bias
      found.append(value)
    return tuple(found)

  def rows_at(self, i: int, n: pl.Slice) -> tuple[tuple[int, ...], pl.Slice]:
    """Where the scales and biases of gate or up are in their buffers."""
    return (i,), n

  def finish(
    self, step: Step, at: Rows, n: pl.Slice, sums: tuple[jax.Array, ...]
  ) -> None:
    """Rounds what is made of some columns' sums."""
    raise NotImplementedError

  def put(self, step: Step, at: Rows, n: pl.Slice, value: jax.Array) -> None:
    """Rounds once."""
    out = self.buf.out
    out[step.out_slot, pl.ds(*at), n] = value.astype(out.dtype)

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

  def each_sums(
    self,
    step: Step,
    at: Rows,
    k: int,
    fn: Callable[[pl.Slice, tuple[jax.Array, ...]], None],
  ) -> None:
    def both(n: pl.Slice, sums: tuple[jax.Array, ...]) -> None:
      first, second = sums
      fn(n, (first + second,))

    if scales.place(self.plan.problem) != "n":
      super().each_sums(step, at, k, both)
      return
    scales.each_of_blocks(self.tiles(step, at), k, both)

  def complete(
    self, step: Step, n: pl.Slice, sums: tuple[jax.Array, ...]
  ) -> tuple[jax.Array, ...]:
    return sums  # lhs has been scaled, and there is no bias

  def finish(
    self, step: Step, at: Rows, n: pl.Slice, sums: tuple[jax.Array, ...]
  ) -> None:
    self.put(step, at, n, *sums)


class _Gated(_Pair):
  """Gate and up, of which the activation leaves one."""

  def finish(
    self, step: Step, at: Rows, n: pl.Slice, sums: tuple[jax.Array, ...]
  ) -> None:
    value = activations.apply(self.activation, *sums)
    self.put(step, at, n, value)


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

  def tiles(self, step: Step, at: Rows) -> tuple[scales.Tile, ...]:
    lhs = step.lhs_slot, pl.ds(*at)
    return (self.tile_at(lhs, (step.rhs_slot,), step),)

  def whole_k(self, step: Step, at: Rows) -> None:
    def keep(n: pl.Slice, sums: tuple[jax.Array, ...]) -> None:
      self.buf.acc[pl.ds(*at), n] = sums[0]

    self.each_sums(step, at, self.plan.tile_k, keep)
    self.from_acc(step, at)

  def rows_at(self, i: int, n: pl.Slice) -> tuple[tuple[int, ...], pl.Slice]:
    return (), pl.ds(i * self.plan.problem.n + n.start, n.size)

  def from_acc(self, step: Step, at: Rows) -> None:
    size = self.plan.problem.n
    for n in launch.pieces(size, self.piece // 2):
      gate = self.buf.acc[pl.ds(*at), n]
      up = self.buf.acc[pl.ds(*at), pl.ds(size + n.start, n.size)]
      self.finish(step, at, n, self.complete(step, n, (gate, up)))


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
