"""Zeros for what no group owns: rows of gmm, whole results of tgmm.

The copies are started before the first step and waited for after the last one,
so that they run beside the products. Cores share them by turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.kernels.grid import Axis, GroupTable, RowGrid, Totals


def each_of_core(
  count: jax.Array | int, num_cores: int, fn: Callable[[jax.Array], None]
) -> None:
  """Calls fn(i) for every num_cores-th i below count, from this core's on."""
  core = pl.program_id(0) if num_cores > 1 else np.int32(0)
  turns = lax.div(count - core + (num_cores - 1), np.int32(num_cores))

  @pl.loop(0, jnp.maximum(turns, 0))
  def _(turn: jax.Array) -> None:
    fn(core + turn * num_cores)


@dataclasses.dataclass(frozen=True)
class RowFill:
  """Zeros in the rows of a [m, n] result that lie outside all local groups.

  Attributes:
    rows: how rows are cut.
    out: the result, in HBM.
    zero: VMEM [rows, n].
    sem: DMA semaphore.
  """

  rows: RowGrid
  out: Any
  zero: Any
  sem: Any

  def start(self, totals: Totals, num_cores: int) -> None:
    self.zero[...] = jnp.zeros(self.zero.shape, self.zero.dtype)
    self._each(totals, num_cores, "start")

  def wait(self, totals: Totals, num_cores: int) -> None:
    self._each(totals, num_cores, "wait")

  def _each(self, totals: Totals, num_cores: int, act: str) -> None:
    before = self.rows.floor(totals.first_row)
    after = self.rows.ceil(totals.end_row)
    self._region(np.int32(0), before, num_cores, act)
    self._region(after, np.int32(self.rows.m), num_cores, act)

  def _region(self, start: Any, end: Any, num_cores: int, act: str) -> None:
    """Whole buffers of rows, then what is left, in whole blocks."""
    most, block = self.zero.shape[0], self.rows.block
    whole = lax.div(end - start, np.int32(most))

    def copy(index: jax.Array) -> None:
      first = pl.multiple_of(start + index * most, block)
      rows = pl.multiple_of(jnp.minimum(end - first, most), block)

      @pl.when(rows > 0)
      def _() -> None:
        getattr(
          pltpu.make_async_copy(
            self.zero.at[pl.ds(0, rows)],
            self.out.at[pl.ds(first, rows)],
            self.sem,
          ),
          act,
        )()

    each_of_core(whole + 1, num_cores, copy)


@dataclasses.dataclass(frozen=True)
class GroupFill:
  """Zeros in the results [k, n] of the local groups that have no rows.

  Attributes:
    table: the groups that have some.
    groups: how many those are.
    out: the results [g, k, n], in HBM.
    zero: VMEM [rows, n].
    zero_tail: VMEM [k % rows, n], or None.
    sem: DMA semaphore.
  """

  table: GroupTable
  groups: jax.Array
  out: Any
  zero: Any
  zero_tail: Any
  sem: Any

  def start(self, num_cores: int) -> None:
    for ref in (self.zero, self.zero_tail):
      if ref is not None:
        ref[...] = jnp.zeros(ref.shape, ref.dtype)
    self._each(num_cores, "start")

  def wait(self, num_cores: int) -> None:
    self._each(num_cores, "wait")

  def _each(self, num_cores: int, act: str) -> None:
    """Merges the sorted list of groups with rows against all local groups."""
    axis = Axis(self.out.shape[1], self.zero.shape[0])

    def visit(group: jax.Array, position: jax.Array) -> jax.Array:
      known = jnp.minimum(position, jnp.maximum(self.groups - 1, 0))
      has_rows = jnp.logical_and(
        position < self.groups, self.table.ids[known] == group
      )
      empty = jnp.logical_not(has_rows)
      if num_cores > 1:
        turn = lax.rem(group, np.int32(num_cores)) == pl.program_id(0)
        empty = jnp.logical_and(empty, turn)

      @pl.when(empty)
      def _() -> None:
        self._fill(group, axis, act)

      return position + has_rows.astype(jnp.int32)

    lax.fori_loop(0, self.out.shape[0], visit, np.int32(0))

  def _fill(self, group: jax.Array, axis: Axis, act: str) -> None:
    def copy(source: Any, rows: pl.Slice) -> None:
      getattr(
        pltpu.make_async_copy(source, self.out.at[group, rows], self.sem), act
      )()

    whole = axis.size // axis.tile

    @pl.loop(0, whole)
    def _(index: jax.Array) -> None:
      copy(self.zero, pl.ds(axis.start(index), axis.tile))

    if self.zero_tail is not None:
      copy(self.zero_tail, pl.ds(whole * axis.tile, axis.last))
