"""What each step of a kernel computes and moves, on the host.

The steps of one output tile, in the kernels' own order: visits, and for each of
them k tiles in gmm. Cycles come from the arms of a compiled schedule, or else
from what the MXU needs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from gmm.config import PACKED, Problem, bits
from gmm.kernels import pairs, quantizing, row_scales, small_blocks
from gmm.kernels.grid import LANES, Axis, cdiv, round_up
from gmm.kernels.plan import Plan, sublanes
from gmm.timing import rates as rates_lib
from gmm.timing.rates import ChipRates, CodeLike
from gmm.timing.visits import Visits

if TYPE_CHECKING:
  from gmm.aot.scheduling import Arm, Schedule

# Rows that pass an MXU while it takes its next weight tile, in sixteenths of
# its height: arms of 128 rows take about 88 cycles a tile on v6e, not 64.
_LEAST_ROWS = 11
_FLOAT32 = 4  # bytes of a scale, or of a bias, as kernels read it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
  """Cycles of each piece of work, as (bundles, cycles the MXU needs).

  Attributes:
    plan: of the kernel.
    rate: of the chip.
    arms: of the schedule, or None.
    step: bundles of a step outside the arms.
    like: what the code is like, without a schedule.
  """

  plan: Plan
  rate: ChipRates
  arms: tuple[Arm, ...] | None
  step: int
  like: CodeLike

  @classmethod
  def of(
    cls,
    plan: Plan,
    rate: ChipRates,
    schedule: Schedule | None,
    like: CodeLike,
  ) -> Costs:
    """The costs of a schedule, or of code as in `like` for None."""
    arms, step = None, like.step
    if schedule is not None:
      arms, step = schedule.arms, schedule.step_bundles
    return cls(plan=plan, rate=rate, arms=arms, step=step, like=like)

  def product(self, index: int, k: int, *, variant: int = 0) -> np.ndarray:
    """An MXU product.

    Args:
      index: of it in plan.products.
      k: columns of lhs.
      variant: 1 for a last k tile of another size, which has code of its own.

    Raises:
      ValueError: the schedule has no such arm.
    """
    if self.arms is None:
      return self.nominal(self.plan.products[index], k)
    turns = small_blocks.arm_turns(self.plan, k)
    count = len(self.plan.products) * len(turns)
    arms = [(a, quantises) for a, quantises in self._working() if a.vmatmuls]
    arms = arms[variant * count :] or arms
    rows = self.plan.products[index]
    arms = arms[index * len(turns) : (index + 1) * len(turns)]
    if len(arms) < len(turns) or any(arm.rows != rows for arm, _ in arms):
      raise ValueError(
        f"`schedule` has no arm for {rows} rows; want the schedule of a kernel "
        f"with tile_m = {self.plan.tile_m}"
      )
    cycles = np.array([[arm.bundles, arm.mxu_cycles] for arm, _ in arms])
    cycles *= self.plan.parts
    cycles[:, 0] += [quantises for _, quantises in arms]
    return np.array(turns) @ cycles

  def step_cycles(self, products: np.ndarray) -> np.ndarray:
    """Cycles of steps: their bundles, or what the MXUs need.

    Args:
      products: of each step, summed up: [..., 2].
    """
    return np.maximum(products[..., 0] + self.step, products[..., 1])

  def finish(self) -> float:
    """Cycles for each row of a visit's last step that multiply nothing."""
    idle = [a.bundles for a, _ in self._working() if not a.vmatmuls]
    return max(idle, default=0) / max(self.plan.products)

  def _working(self) -> list[tuple[Arm, int]]:
    """Arms, with the bundles of those that quantise rows for the parts of one.

    Where a turn's columns are in parts, their loop is within the turn's.
    """
    found: list[tuple[Arm, int]] = []
    for arm in self.arms or ():
      before = found[-1][0] if found else arm
      if arm.vmatmuls and self._quantises(before, arm.depth - 1):
        found[-1] = arm, before.bundles
      else:
        found.append((arm, 0))
    return found

  def _quantises(self, arm: Arm, depth: int) -> bool:
    in_parts = self.plan.turn and self.plan.parts > 1
    return bool(in_parts and not arm.vmatmuls and arm.depth == depth)

  def nominal(self, rows: int, k: int) -> np.ndarray:
    """A product by what is known without a schedule."""
    plan, least = self.plan, rows
    wanted = mxu_cycles(plan, rows, k)
    like = self.like.quantising
    if plan.problem.lhs_quantization and like is not None:
      sums = plan.tile_n * len(_depths(plan, k))
      return np.array([like.bundles((rows, k, sums), wanted), wanted])
    if plan.problem.kind == "gmm":
      # Few rows have passed the MXU before its next weight tile is there.
      least = max(rows, self.rate.mxu_size * _LEAST_ROWS // 16)
    beyond = self.like.product * plan.parts
    bundles = mxu_cycles(plan, least, k) * self.like.share + beyond
    return np.array([bundles, wanted])


def mxu_cycles(plan: Plan, rows: int, k: int) -> int:
  """The least cycles of an MXU product with so many rows and columns of lhs."""
  size = rates_lib.rates(plan.chip.name).mxu_size
  if plan.problem.kind == "tgmm":
    rows, k = plan.tile_k, rows  # the rows are contracted
  mnemonic = rates_lib.mnemonic_format(plan.compute_dtype)
  vmatmuls = cdiv(rows, rates_lib.VMATMUL_ROWS[mnemonic])
  vmatmuls *= sum(cdiv(depth, size) for depth in _depths(plan, k))
  if pairs.is_wide(plan.problem):
    vmatmuls *= cdiv(2 * plan.tile_n, size)
  else:
    vmatmuls *= pairs.sides(plan.problem).rhs * cdiv(plan.tile_n, size)
  vmatmuls *= rates_lib.float32_passes(
    plan.compute_dtype, plan.problem.precision
  )
  return rates_lib.mxu_cycles(plan.chip.name, mnemonic, vmatmuls)


def _depths(plan: Plan, k: int) -> list[int]:
  """What is contracted at a time: each block of a quantised lhs by itself."""
  if not plan.problem.lhs_quantization:
    return [k]
  return [region.columns.size for region in quantizing.regions(plan, k)]


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
    work = np.zeros((visits.count, plan.k.count, 2))
    for i, size in enumerate(_sizes(plan.k)):
      variant = int(i > 0 and size != plan.tile_k)
      for j in np.flatnonzero(visits.products.any(0)):
        cycles = costs.product(j, size, variant=variant)
        work[:, i] += visits.products[:, j, None] * cycles
    self.mxu = int(work[..., 1].sum())
    work[:, -1, 0] += visits.rows_run * costs.finish()
    self.work = costs.step_cycles(work)
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
    sides = pairs.sides(problem)
    lhs = np.array([line_bytes(size, problem.lhs_dtype) for size in k])
    lhs *= sides.lhs
    tiles, columns = (1, 2 * n) if pairs.is_wide(problem) else (sides.rhs, n)
    weights = np.array([weight_bytes(problem, size, columns) for size in k])
    weights *= tiles
    fetched = visits.rows[:, None] * lhs
    if problem.lhs_scales:
      fetched += row_scales.rows_in_vmem(self.plan) * LANES * _FLOAT32
    ahead = np.zeros(fetched.shape, np.int64)
    if len(k) == 1:
      fresh = np.ones(visits.count, bool)
      fresh[1:] = visits.group[1:] != visits.group[:-1]
      ahead = fresh[:, None] * weights
    else:
      fetched = fetched + weights
    out_line = sides.out * line_bytes(n, problem.out_dtype)
    if problem.has_existing:
      fetched[:, -1] += visits.rows * out_line
    sent = np.zeros(fetched.shape, np.int64)
    sent[:, -1] = self._sent_rows() * out_line
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
    work = np.zeros((visits.count, 2))
    for j in np.flatnonzero(visits.products.any(0)):
      cycles = costs.product(j, plan.tile_k)
      work += visits.products[:, j, None] * cycles
    self.mxu = int(work[:, 1].sum())
    self.work = costs.step_cycles(work)
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
  return round_up(columns, LANES) * bits(dtype) // 8


def matrix_bytes(rows: int, columns: int, dtype: np.dtype) -> int:
  """Bytes of a matrix in HBM, in whole registers."""
  return round_up(rows, sublanes(dtype)) * line_bytes(columns, dtype)


def weight_bytes(problem: Problem, k: int, n: int) -> int:
  """Bytes of a tile of gmm's weight in HBM, with its scales and its bias."""
  rows, columns = (n, k) if problem.transpose_rhs else (k, n)
  dtype = problem.rhs_dtype
  if problem.packed_axis:
    dtype = np.dtype(np.int32)
    if problem.packs_rows:
      rows //= PACKED
    else:
      columns //= PACKED
  return matrix_bytes(rows, columns, dtype) + beside_bytes(problem, k, n)


def beside_bytes(problem: Problem, k: int, n: int) -> int:
  """Bytes of the scales and the bias that a tile of gmm's weight comes with."""
  total = 0
  if problem.scale_block:
    # All blocks of the tile's lanes. Few rows are not padded to eight.
    blocks = problem.scale_shape[1]
    rows = min(1 << (blocks - 1).bit_length(), sublanes(problem.scale_dtype))
    lanes = n if problem.scale_axis == "k" else k
    total += round_up(blocks, rows) * line_bytes(lanes, problem.scale_dtype)
  if problem.has_bias:
    total += line_bytes(n, np.dtype(np.float32))
  return total
