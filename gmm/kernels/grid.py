"""Which rows each step of a kernel works on: written once for gmm and tgmm.

Rows are visited group by group, in windows that start on a whole sublane block.
With 8-row blocks, 12-row tiles and groups of 5, 14 and 3 rows:

    rows    0       8       16      24
            |a a a a a b b b|b b b b b b b b|b b b c c c . .|
    visits  |--- a ---------|               |               |
            |--- b -------------------------|-- b ----------|
            |               |               |--- c ---------|

Blocks 0 and 2 belong to two visits each; the kernels carry their rows from one
visit to the next. A window holds a tile of rows and one block more, since a
group that starts within a block spans one more than it fills. Each local group
with rows is visited cdiv(its whole blocks but one, tile) times and the others
not at all, so that

    num_visits <= (m + block * groups with rows) / tile + groups with rows

A group that takes several visits is cut into windows of near-equal size (whole
chunks of the MXU, but the last): a full window and a short one after it would
leave the DMA engine idle first, and the MXU then.

Everything here runs on the scalar core, from the sizes as they are at run time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

if TYPE_CHECKING:
  from gmm.kernels.plan import Plan


LANES = 128


def cdiv(a: int, b: int) -> int:
  """Quotient of static ints, rounded up."""
  return -(-a // b)


def round_up(a: int, b: int) -> int:
  """The least multiple of b that is no less than a."""
  return cdiv(a, b) * b


def divided(index: Any, by: int) -> Any:
  """The quotient of an index, static or traced, that is no less than 0."""
  if isinstance(index, int):
    return index // by
  return lax.div(index, np.int32(by))


@dataclasses.dataclass(frozen=True)
class Axis:
  """One dimension cut into tiles; the last may be smaller, never padded.

  Attributes:
    size: elements of the dimension.
    tile: elements of a tile.
  """

  size: int
  tile: int

  @property
  def count(self) -> int:
    """Number of tiles."""
    return cdiv(self.size, self.tile)

  @property
  def last(self) -> int:
    """Elements of the last tile."""
    return self.size - (self.count - 1) * self.tile

  def start(self, index: jax.Array | int) -> Any:
    """Where tile `index` starts."""
    if self.count == 1:
      return 0
    return pl.multiple_of(index * self.tile, self.tile)

  def with_tile(
    self,
    index: jax.Array | int,
    fn: Callable[[pl.Slice, pl.Slice], None],
    lanes: jax.Array | None = None,
  ) -> None:
    """Calls fn(slice of the dimension, slice of the buffer) for one tile.

    Sizes of slices are static, so a last tile of another size is a branch.

    Args:
      index: of the tile.
      fn: what to call.
      lanes: for copies along lanes, which move whole registers: what they take
        of a last tile that ends within one (`launch.last_lanes`).
    """
    if self.last == self.tile:
      fn(pl.ds(self.start(index), self.tile), pl.ds(0, self.tile))
      return
    final = self.count - 1
    last = self.last
    if lanes is not None and last % LANES:
      last = pl.multiple_of(lanes, LANES)

    @pl.when(index != final)
    def _() -> None:
      fn(pl.ds(self.start(index), self.tile), pl.ds(0, self.tile))

    @pl.when(index == final)
    def _() -> None:
      fn(pl.ds(final * self.tile, last), pl.ds(0, last))


class GroupTable(NamedTuple):
  """Local groups that have rows, in SMEM; written by `fill_group_table`.

  Attributes:
    ids: [g] local index of the group.
    starts: [g] its first row.
    ends: [g] the row after its last.
    strides: [g] rows from one of its windows to the next.
  """

  ids: Any
  starts: Any
  ends: Any
  strides: Any

  @staticmethod
  def scratch(g: int) -> GroupTable:
    """Shapes for g local groups."""
    return GroupTable(*(pltpu.SMEM((g,), jnp.int32) for _ in range(4)))


class Totals(NamedTuple):
  """Attributes: groups and visits, and the rows [first, end) they cover."""

  groups: jax.Array
  visits: jax.Array
  first_row: jax.Array
  end_row: jax.Array


class Window(NamedTuple):
  """The rows of one visit.

  Attributes:
    start: first row, a multiple of the block.
    rows: number of rows, a multiple of the block.
    lo: first row that belongs to the group; may lie before `start`.
    hi: row after the last one of the group; may lie after the window.
  """

  start: jax.Array
  rows: jax.Array
  lo: jax.Array
  hi: jax.Array


class Visit(NamedTuple):
  """A step of a kernel: inner fastest, then tile, group, outer.

  Attributes:
    outer: index of the output tile (columns of gmm, tiles of tgmm).
    group: index into the GroupTable.
    tile: window within the group.
    inner: k tile within the visit (always 0 in tgmm).
    id: local index of the group.
    lo: first row of the group.
    hi: row after its last.
    stride: rows from one of its windows to the next.
  """

  outer: jax.Array
  group: jax.Array
  tile: jax.Array
  inner: jax.Array
  id: jax.Array
  lo: jax.Array
  hi: jax.Array
  stride: jax.Array


@dataclasses.dataclass(frozen=True)
class RowGrid:
  """How rows are cut into windows.

  Attributes:
    m: rows of the operand, a multiple of `block`.
    block: rows that move together: one packed sublane tile.
    chunk: rows that windows are cut in, a multiple of `block`.
    tile: most rows of a visit but for one block, a multiple of `chunk`.
    g: local groups.
    g_total: entries of group_sizes.
  """

  m: int
  block: int
  chunk: int
  tile: int
  g: int
  g_total: int

  @classmethod
  def of(cls, plan: Plan) -> RowGrid:
    """The rows of a plan's operands."""
    problem = plan.problem
    return cls(
      m=problem.m,
      block=plan.block,
      chunk=plan.unit,
      tile=plan.window - plan.block,
      g=problem.g,
      g_total=problem.g_total,
    )

  def floor(self, row: jax.Array) -> jax.Array:
    """The start of the block that holds `row`."""
    start = lax.bitwise_and(row, np.int32(-self.block))
    return pl.multiple_of(start, self.block)

  def ceil(self, row: jax.Array) -> jax.Array:
    """The first start of a block that is no less than `row`."""
    return self.floor(row + (self.block - 1))

  def windows(
    self, start: jax.Array, end: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns (windows of a group with rows [start, end), their stride)."""
    span = self.ceil(end) - self.floor(start) - self.block
    count = jnp.maximum(_cdiv(span, np.int32(self.tile)), 1)
    stride = _cdiv(_cdiv(span, count), np.int32(self.chunk)) * self.chunk
    # One window alone is as long as it likes.
    return count, jnp.where(count == 1, self.tile, stride)

  def fill_group_table(
    self, sizes_ref: Any, offset_ref: Any, table: GroupTable
  ) -> Totals:
    """Writes the local groups that have rows, in order.

    1. Rows before group i are the sum of the sizes before it, clipped at m.
    2. A group is local when offset <= i < offset + g.

    Args:
      sizes_ref: int32 [g_total], each in [0, m].
      offset_ref: int32 [1], in [0, g_total].
      table: where to write.

    Returns:
      What the groups add up to. With no rows, first_row == end_row == 0.
    """
    offset = offset_ref[0]
    end_group = jnp.minimum(offset + self.g, self.g_total)

    def before(i: jax.Array, row: jax.Array) -> jax.Array:
      return row + jnp.minimum(sizes_ref[i], self.m - row)

    def add(i: jax.Array, carry: tuple[jax.Array, ...]):
      row, groups, visits = carry
      end = row + jnp.minimum(sizes_ref[i], self.m - row)
      has_rows = end > row
      count, stride = self.windows(row, end)

      @pl.when(has_rows)
      def _() -> None:
        table.ids[groups] = i - offset
        table.starts[groups] = row
        table.ends[groups] = end
        table.strides[groups] = stride

      visits += jnp.where(has_rows, count, 0)
      return end, groups + has_rows.astype(jnp.int32), visits

    first = lax.fori_loop(0, offset, before, np.int32(0))
    end, groups, visits = lax.fori_loop(
      offset, end_group, add, (first, np.int32(0), np.int32(0))
    )
    some = groups > 0
    return Totals(
      groups, visits, jnp.where(some, first, 0), jnp.where(some, end, 0)
    )

  def window_of(self, visit: Visit) -> Window:
    """The rows that a visit works on."""
    start = self.floor(visit.lo) + visit.tile * visit.stride
    start = pl.multiple_of(start, self.block)
    left = self.ceil(visit.hi) - start
    rows = jnp.where(self.is_last_tile(visit), left, visit.stride)
    return Window(start, pl.multiple_of(rows, self.block), visit.lo, visit.hi)

  def is_last_tile(self, visit: Visit) -> jax.Array:
    """Whether the visit is its group's last: it takes up to a block more."""
    start = self.floor(visit.lo) + visit.tile * visit.stride
    return self.ceil(visit.hi) - start <= visit.stride + self.block

  def first_visit(self, table: GroupTable, outer: jax.Array) -> Visit:
    """The first step of output tile `outer`."""
    zero = np.int32(0)
    return Visit(outer, zero, zero, zero, *_entry(table, zero))

  def advance(
    self, table: GroupTable, groups: jax.Array, inner: int, visit: Visit
  ) -> Visit:
    """Returns the next step; after the last one, one that is never used."""
    end_inner = visit.inner == inner - 1
    end_tile = jnp.logical_and(end_inner, self.is_last_tile(visit))
    end_group = jnp.logical_and(end_tile, visit.group == groups - 1)

    def step(flag: jax.Array) -> jax.Array:
      return flag.astype(jnp.int32)

    group = jnp.where(end_group, 0, visit.group + step(end_tile))
    return Visit(
      visit.outer + step(end_group),
      group,
      jnp.where(end_tile, 0, visit.tile + step(end_inner)),
      jnp.where(end_inner, 0, visit.inner + 1),
      *lax.cond(
        end_tile,
        lambda: _entry(table, group),
        lambda: (visit.id, visit.lo, visit.hi, visit.stride),
      ),
    )


def _cdiv(a: jax.Array, b: jax.Array) -> jax.Array:
  """Quotient of traced ints, rounded up; `a` may be below zero."""
  return lax.div(a + b - 1, b)


def _entry(table: GroupTable, group: Any) -> tuple[jax.Array, ...]:
  return tuple(column[group] for column in table)


def core_share(count: int, num_cores: int) -> tuple[Any, Any]:
  """Returns the range [start, end) of `count` output tiles of this core."""
  if num_cores == 1:
    return np.int32(0), np.int32(count)
  core = pl.program_id(0)
  return (
    lax.div(core * count, np.int32(num_cores)),
    lax.div((core + 1) * count, np.int32(num_cores)),
  )


def block_rows(block: int, first_row: jax.Array) -> jax.Array:
  """Row numbers of a block, int32 [block, 1]."""
  return first_row + lax.broadcasted_iota(jnp.int32, (block, 1), 0)


def parity(i: jax.Array) -> jax.Array:
  """Which half of a double buffer turn `i` uses."""
  return lax.rem(i, np.int32(2))


def of_two(pair: tuple[jax.Array, ...], slot: jax.Array | int) -> jax.Array:
  """What belongs to a half of a double buffer."""
  return pair[slot] if isinstance(slot, int) else jnp.where(slot == 0, *pair)


def move(source: Any, target: Any, sem: Any, act: str) -> None:
  """Starts a copy, or waits for one: `act` is "start" or "wait"."""
  getattr(pltpu.make_async_copy(source, target, sem), act)()
