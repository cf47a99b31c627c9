"""What each step of a kernel computes and moves, on the host.

The steps of one output tile, in the kernels' own order: visits, and for each of
them k tiles in gmm. Cycles come from the arms of a compiled schedule, or else
from what the MXU needs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from gmm.kernels.grid import LANES, Axis, cdiv, round_up
from gmm.kernels.plan import Plan, sublanes
from gmm.timing import rates as rates_lib
from gmm.timing.rates import ChipRates
from gmm.timing.visits import Visits, last_chunk

if TYPE_CHECKING:
  from gmm.aot.scheduling import Arm, Schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
  """Cycles of each piece of work, as (cycles, those the MXU needs).

  Attributes:
    plan: of the kernel.
    rate: of the chip.
    arms: of the schedule, or None.
    step: cycles of a step outside the arms.
    beyond: cycles that a chunk takes beyond the MXU's, without a schedule.
  """

  plan: Plan
  rate: ChipRates
  arms: tuple[Arm, ...] | None
  step: int
  beyond: int = 0

  @classmethod
  def of(
    cls,
    plan: Plan,
    rate: ChipRates,
    schedule: Schedule | None,
    beyond: tuple[int, int],
  ) -> Costs:
    """The costs of a schedule, or of MXU cycles and `beyond` for None."""
    if schedule is None:
      chunk, step = beyond
      return cls(plan=plan, rate=rate, arms=None, step=step, beyond=chunk)
    return cls(
      plan=plan, rate=rate, arms=schedule.arms, step=schedule.step_bundles
    )

  def product(self, depth: int, k: int, *, first: bool) -> np.ndarray:
    """A chunk's product.

    Args:
      depth: 2 for a full chunk, 1 for the last one of a visit.
      k: elements contracted.
      first: which of two arms that contract alike comes first in the program:
        in gmm the one of whole k tiles, in tgmm the one that ends a group.
    """
    if self.arms is None:
      return self._nominal(depth, k)
    problem = self.plan.problem
    pieces = cdiv(k, self.rate.mxu_size) * rates_lib.float32_passes(
      self.plan.compute_dtype, problem.precision
    )
    arms = [a for a in self.arms if a.depth == depth and a.vmatmuls]
    arms = [a for a in arms if a.k_pieces == pieces] or arms
    if not arms:
      raise ValueError(
        f"`schedule` has no arm with vmatmuls at depth {depth}; want the "
        f"schedule of a kernel with tile_m = {self.plan.tile_m}"
      )
    arm = arms[0] if first else arms[-1]
    return np.array([max(arm.bundles, arm.mxu_cycles), arm.mxu_cycles])

  def finish(self, depth: int) -> np.ndarray:
    """Work without products: on a visit's last step."""
    arms = self.arms or ()
    cycles = sum(a.bundles for a in arms if a.depth == depth and not a.vmatmuls)
    return np.array([cycles, 0])

  def _nominal(self, depth: int, k: int) -> np.ndarray:
    plan, size = self.plan, self.rate.mxu_size
    if plan.problem.kind == "gmm":
      rows = plan.chunk if depth == 2 else last_chunk(plan)
    else:
      rows = plan.tile_k
    mnemonic = rates_lib.mnemonic_format(plan.compute_dtype)
    per_row = cdiv(k, size) * cdiv(plan.tile_n, size)
    per_row *= rates_lib.float32_passes(
      plan.compute_dtype, plan.problem.precision
    )

    def cycles(rows: int) -> int:
      vmatmuls = cdiv(rows, rates_lib.VMATMUL_ROWS[mnemonic]) * per_row
      return rates_lib.mxu_cycles(plan.chip.name, mnemonic, vmatmuls)

    # Fewer rows than the MXU is high wait for its next weight tile.
    return np.array([cycles(max(rows, size)) + self.beyond, cycles(rows)])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tile:
  """The steps of one output tile; arrays [steps].

  Attributes:
    fetched: bytes of the step's operands, but for weights fetched ahead.
    weights: bytes of a weight that is fetched ahead: while the group before
      works, for the group's first step.
    work: cycles of the step.
    sent: bytes of the result that it completes, if any.
    mxu: cycles that the MXU needs for all steps.
  """

  fetched: np.ndarray
  weights: np.ndarray
  work: np.ndarray
  sent: np.ndarray
  mxu: int


class GmmTiles:
  """Output tiles of gmm: tiles of n; `count` of them."""

  def __init__(self, plan: Plan, visits: Visits, costs: Costs) -> None:
    """Adds up the cycles of each step, the same for all output tiles."""
    self.plan, self.visits = plan, visits
    self.count = plan.n.count
    k = _sizes(plan.k)
    full = visits.full_chunks[:, None, None]
    many = bool(np.any(visits.full_chunks))
    work = np.zeros((visits.count, len(k), 2), np.int64)
    for i, size in enumerate(k):
      first = i < len(k) - 1 or len(k) == 1
      work[:, i] = costs.product(1, size, first=first)
      if many:
        work[:, i] += full[:, 0] * costs.product(2, size, first=first)
    finish = costs.finish(1) + full[:, 0] * costs.finish(2)
    self.mxu = int(work[..., 1].sum())
    self.work = work[..., 0] + costs.step
    self.work[:, -1] += finish[:, 0]
    self.cache: dict[int, Tile] = {}

  def tile(self, outer: int) -> Tile:
    """Returns the steps of an output tile; equal ones are one object."""
    n = _sizes(self.plan.n)[outer]
    if n not in self.cache:
      self.cache[n] = self._tile(n)
    return self.cache[n]

  def _tile(self, n: int) -> Tile:
    problem, visits = self.plan.problem, self.visits
    k = _sizes(self.plan.k)
    lhs = np.array([line_bytes(size, problem.lhs_dtype) for size in k])
    weights = np.array(
      [
        matrix_bytes(
          *((n, size) if problem.transpose_rhs else (size, n)),
          problem.rhs_dtype,
        )
        for size in k
      ]
    )
    fetched = visits.rows[:, None] * lhs
    ahead = np.zeros(fetched.shape, np.int64)
    if len(k) == 1:
      fresh = np.ones(visits.count, bool)
      fresh[1:] = visits.group[1:] != visits.group[:-1]
      ahead = fresh[:, None] * weights
    else:
      fetched = fetched + weights
    sent = np.zeros(fetched.shape, np.int64)
    sent[:, -1] = self._sent_rows() * line_bytes(n, problem.out_dtype)
    return Tile(
      fetched=fetched.ravel(),
      weights=ahead.ravel(),
      work=self.work.ravel(),
      sent=sent.ravel(),
      mxu=self.mxu,
    )

  def _sent_rows(self) -> np.ndarray:
    """A last block that the group does not fill is carried on, not written."""
    visits = self.visits
    whole = visits.hi // self.plan.block * self.plan.block - visits.start
    rows = np.minimum(whole, visits.rows)
    if visits.count:
      rows[-1] = visits.rows[-1]
    return rows


class TgmmTiles:
  """Output tiles of tgmm: tiles of k and n, k fastest; `count` of them."""

  def __init__(self, plan: Plan, visits: Visits, costs: Costs) -> None:
    """Adds up the cycles of each step, the same for all output tiles."""
    self.plan, self.visits = plan, visits
    self.count = plan.k.count * plan.n.count
    full = visits.full_chunks[:, None]
    work = np.where(
      visits.is_last[:, None],
      costs.product(1, plan.chunk, first=True),
      costs.product(1, plan.chunk, first=False),
    ).reshape(-1, 2)
    if np.any(full):
      work = work + full * costs.product(2, plan.chunk, first=True)
    self.mxu = int(work[:, 1].sum())
    finish = costs.finish(1) + full * costs.finish(2)
    self.work = work[:, 0] + finish[:, 0] + costs.step
    self.cache: dict[tuple[int, int], Tile] = {}

  def tile(self, outer: int) -> Tile:
    """Returns the steps of an output tile; equal ones are one object."""
    n_tile, k_tile = divmod(outer, self.plan.k.count)
    sizes = _sizes(self.plan.k)[k_tile], _sizes(self.plan.n)[n_tile]
    if sizes not in self.cache:
      self.cache[sizes] = self._tile(*sizes)
    return self.cache[sizes]

  def _tile(self, k: int, n: int) -> Tile:
    problem, visits = self.plan.problem, self.visits
    row = line_bytes(k, problem.lhs_dtype) + line_bytes(n, problem.rhs_dtype)
    return Tile(
      fetched=visits.rows * row,
      weights=np.zeros(visits.count, np.int64),
      work=self.work,
      sent=visits.is_last * matrix_bytes(k, n, problem.out_dtype),
      mxu=self.mxu,
    )


TILES: dict[str, Any] = {"gmm": GmmTiles, "tgmm": TgmmTiles}


# ---- bytes


def _sizes(axis: Axis) -> list[int]:
  """Elements of each tile."""
  return [axis.tile] * (axis.count - 1) + [axis.last]


def line_bytes(columns: int, dtype: np.dtype) -> int:
  """Bytes of a row in HBM, in whole registers of lanes."""
  return round_up(columns, LANES) * dtype.itemsize


def matrix_bytes(rows: int, columns: int, dtype: np.dtype) -> int:
  """Bytes of a matrix in HBM, in whole registers."""
  return round_up(rows, sublanes(dtype)) * line_bytes(columns, dtype)
