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

from gmm.kernels.grid import Axis, GroupTable, RowGrid, Totals, move


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
    """Starts this core's copies."""
    self.zero[...] = jnp.zeros(self.zero.shape, self.zero.dtype)
    self.each(totals, num_cores, "start")

  def wait(self, totals: Totals, num_cores: int) -> None:
    """Waits for them."""
    self.each(totals, num_cores, "wait")

  def each(self, totals: Totals, num_cores: int, act: str) -> None:
    """Starts or waits for each copy; the zeros are there already."""
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
        move(
          self.zero.at[pl.ds(0, rows)],
          self.out.at[pl.ds(first, rows)],
          self.sem,
          act,
        )

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

  def start(self, num_cores: int) -> jax.Array:
    """Starts this core's copies; returns for how many groups."""
    for ref in (self.zero, self.zero_tail):
      if ref is not None:
        ref[...] = jnp.zeros(ref.shape, ref.dtype)

    def gap(position: jax.Array, filled: jax.Array) -> jax.Array:
      """Fills the groups between entries position - 1 and position."""
      first = jnp.where(
        position == 0, 0, self.table.ids[jnp.maximum(position - 1, 0)] + 1
      )
      end = jnp.where(
        position == self.groups,
        self.out.shape[0],
        self.table.ids[jnp.minimum(position, self.out.shape[0] - 1)],
      )
      return lax.fori_loop(first, end, fill, filled)

    def fill(group: jax.Array, filled: jax.Array) -> jax.Array:
      mine = jnp.bool_(True)
      if num_cores > 1:
        mine = lax.rem(group, np.int32(num_cores)) == pl.program_id(0)

      @pl.when(mine)
      def _() -> None:
        self._fill(group, "start")

      return filled + mine.astype(jnp.int32)

    return lax.fori_loop(0, self.groups + 1, gap, np.int32(0))

  def wait(self, filled: jax.Array) -> None:
    """Waits for as many as `start` returned."""

    @pl.loop(0, filled)
    def _(_: jax.Array) -> None:
      self._fill(np.int32(0), "wait")

  def _fill(self, group: Any, act: str) -> None:
    axis = Axis(self.out.shape[1], self.zero.shape[0])

    def copy(source: Any, rows: pl.Slice) -> None:
      move(source, self.out.at[group, rows], self.sem, act)

    whole = axis.size // axis.tile

    @pl.loop(0, whole)
    def _(index: jax.Array) -> None:
      copy(self.zero, pl.ds(axis.start(index), axis.tile))

    if self.zero_tail is not None:
      copy(self.zero_tail, pl.ds(whole * axis.tile, axis.last))
