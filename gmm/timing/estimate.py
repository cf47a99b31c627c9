"""Plays a kernel's steps against one DMA queue: the estimate of docs/model.md.

A core works through its output tiles; for each, through the visits; for each,
through the k tiles. The copies of a step are queued when the step before it
starts, a result when its visit ends; a step waits for its own copies. (It also
needs the buffer of the result of two visits ago. That was queued before the
step's own copies were, so one queue has moved it by then.)
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from gmm.config import bits
from gmm.kernels import pairs, tgmm_scales
from gmm.kernels.plan import Plan
from gmm.timing import rates as rates_lib
from gmm.timing.rates import NO_CODE, ChipRates, CodeLike
from gmm.timing.steps import TILES, Costs, Tile, line_bytes, matrix_bytes
from gmm.timing.visits import Visits

if TYPE_CHECKING:
  from gmm.aot.scheduling import Schedule

# What of a core's state decides how its next output tile goes.
_SAME_SECONDS = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """Where the time of one call goes; means over the cores of the device.

  Attributes:
    seconds: of the call; the other three add up to it.
    mxu_seconds: what the MXUs need at their nominal rate.
    dma_seconds: what a core waits for memory, and copies outside the kernel.
    idle_seconds: the rest: bundles beyond the MXU's need, the shortfall of
      `compute_share`, a core that has fewer output tiles, the call itself.
    dma_bytes: what is moved to and from HBM, padding of lanes and rows
      included.
  """

  seconds: float
  mxu_seconds: float
  dma_seconds: float
  idle_seconds: float
  dma_bytes: int


def estimate(
  plan: Plan,
  visits: Visits,
  schedule: Schedule | None = None,
  *,
  like: CodeLike = NO_CODE,
) -> Estimate:
  """Returns the time of one call.

  Args:
    plan: from `tiling.make_plan`.
    visits: from `visits.visits`.
    schedule: of the same kernel; None means code as in `like`.
    like: what the kernel's code is like, where there is no schedule.

  Raises:
    ValueError: the schedule lacks an arm that the plan needs.
  """
  rate = rates_lib.rates(plan.chip.name)
  costs = Costs.of(plan, rate, schedule, like)
  kernel = TILES[plan.problem.kind](plan, visits, costs)
  cores = []
  for core in range(rate.num_cores):
    first = core * kernel.count // rate.num_cores
    end = (core + 1) * kernel.count // rate.num_cores
    tiles = [kernel.tile(outer) for outer in range(first, end)]
    cores.append(_Core.play(tiles, rate, plan.rhs_buffers - 1))
  fill, pad = _fill_bytes(plan, visits), _pad_bytes(plan)
  bandwidth = rate.hbm_bytes_per_second * rates_lib.DMA_SHARE
  fill_seconds = fill / rate.num_cores / bandwidth
  ends = [c.now + max(fill_seconds - (c.now - c.busy), 0.0) for c in cores]
  copies = pad / (rate.device_bytes_per_second * rates_lib.COPY_SHARE)
  seconds = max(ends) + copies + rates_lib.CALL_SECONDS
  mxu = float(np.mean([c.mxu for c in cores]))
  waits = [c.waited + end - c.now for c, end in zip(cores, ends, strict=True)]
  dma = float(np.mean(waits)) + copies
  return Estimate(
    seconds=seconds,
    mxu_seconds=mxu,
    dma_seconds=dma,
    idle_seconds=seconds - mxu - dma,
    dma_bytes=sum(c.moved for c in cores) + fill + pad,
  )


# ---- the core and its queue


@dataclasses.dataclass
class _Core:
  """One core and its DMA queue; times in seconds from the first step on.

  Attributes:
    now: when the core is done with what it was given.
    free: when its queue is.
    ready: when the operands of the next step are there.
    further: how many groups ahead weights are fetched.
    weights: when those are there that no step has used.
    waited: how long the core waited for the queue.
    busy: how long the queue worked.
    mxu: how long the MXU had to work.
    moved: bytes.
  """

  now: float = 0.0
  free: float = 0.0
  ready: float = 0.0
  further: int = 1
  weights: collections.deque[float] = dataclasses.field(
    default_factory=collections.deque
  )
  waited: float = 0.0
  busy: float = 0.0
  mxu: float = 0.0
  moved: int = 0

  @classmethod
  def play(cls, tiles: list[Tile], rate: ChipRates, further: int) -> _Core:
    """Works through output tiles; leaves `now` where all has arrived.

    Args:
      tiles: of the core.
      rate: of the chip.
      further: how many groups ahead weights are fetched.
    """
    core = cls(further=further)
    if not tiles or not len(tiles[0].work):
      return core
    bandwidth = rate.hbm_bytes_per_second * rates_lib.DMA_SHARE
    first = float(tiles[0].fetched[0])
    core.free = core.ready = first / bandwidth
    for weight in tiles[0].weights[tiles[0].weights > 0][:further]:
      core.free += float(weight) / bandwidth
      core.weights.append(core.free)
    after = [*tiles[1:], None]
    pairs = zip(tiles, after, strict=True)
    for (tile, then), same in itertools.groupby(pairs, lambda pair: pair):
      core._repeat((tile, then), len(list(same)), rate)
    core._wait(core.free)
    for tile in tiles:
      moved = int((tile.fetched + tile.weights + tile.sent).sum())
      core.moved += moved
      core.busy += moved / bandwidth
      core.mxu += tile.mxu / rate.clock_hz
    return core

  def _repeat(
    self, tiles: tuple[Tile, Tile | None], count: int, rate: ChipRates
  ) -> None:
    """Plays equal tiles until one leaves the core as it found it."""
    while count:
      before = dataclasses.replace(self, weights=self.weights.copy())
      self._one(*tiles, rate)
      count -= 1
      if _alike(self._state(), before._state()):
        ahead = count * (self.now - before.now)
        self.waited += count * (self.waited - before.waited)
        self.now += ahead
        self.free += ahead
        self.ready += ahead
        self.weights = collections.deque(t + ahead for t in self.weights)
        return

  def _state(self) -> list[float]:
    """All that the next tile depends on: what is still to come, in seconds."""
    times = (self.free, self.ready, *self.weights)
    return [max(t - self.now, 0.0) for t in times]

  def _one(self, tile: Tile, then: Tile | None, rate: ChipRates) -> None:
    bandwidth = rate.hbm_bytes_per_second * rates_lib.DMA_SHARE
    speed = rate.clock_hz * rate.compute_share
    fetched = (tile.fetched / bandwidth).tolist()[1:]
    fetched.append(float(then.fetched[0]) / bandwidth if then else None)
    work = (tile.work / speed).tolist()
    sent = (tile.sent / bandwidth).tolist()
    ahead = (_ahead(tile, then, self.further) / bandwidth).tolist()
    fresh = (tile.weights > 0).tolist()
    steps = zip(fetched, ahead, fresh, work, sent, strict=True)
    for fetch, weights, is_fresh, compute, send in steps:
      ready = self.ready
      if is_fresh and self.weights:
        ready = max(ready, self.weights.popleft())
      if fetch is not None:
        self.free = self.ready = max(self.free, self.now) + fetch
      if weights:
        self.free = max(self.free, self.now) + weights
        self.weights.append(self.free)
      self._wait(ready)
      self.now += compute
      if send:
        self.free = max(self.free, self.now) + send

  def _wait(self, until: float) -> None:
    if until > self.now:
      self.waited += until - self.now
      self.now = until


def _alike(one: list[float], other: list[float]) -> bool:
  return len(one) == len(other) and all(
    abs(a - b) < _SAME_SECONDS for a, b in zip(one, other, strict=True)
  )


def _ahead(tile: Tile, then: Tile | None, further: int) -> np.ndarray:
  """Bytes of the weight that each step starts to fetch: a later group's."""
  fresh = np.flatnonzero(tile.weights)
  ahead = np.zeros(tile.weights.shape, np.float64)
  to_come = [tile.weights[fresh]]
  if then:
    to_come.append(then.weights[then.weights > 0])
  fetched = np.concatenate(to_come)[further : further + len(fresh)]
  ahead[fresh[: len(fetched)]] = fetched
  return ahead


# ---- bytes outside the steps


def _fill_bytes(plan: Plan, visits: Visits) -> int:
  """Zeros: of the rows outside all groups, or of the groups without rows.

  And the few scales of tgmm, all of which each core reads as it starts.
  """
  problem = plan.problem
  if problem.kind == "tgmm":
    empty = problem.g - len(np.unique(visits.group))
    zeros = empty * matrix_bytes(problem.k, problem.n, problem.out_dtype)
    return zeros + tgmm_scales.hbm_bytes(plan) * plan.chip.num_cores
  if problem.has_existing:
    return 0  # those rows are there already
  rows = problem.m
  if visits.count:
    rows -= int(visits.start[-1] + visits.rows[-1] - visits.start[0])
  outs = pairs.sides(problem).out
  return outs * rows * line_bytes(problem.n, problem.out_dtype)


def _pad_bytes(plan: Plan) -> int:
  """Bytes read and written by padding operands, and cutting the result."""
  problem, (pad_m, pad_k, pad_n) = plan.problem, plan.pads
  m, k, n = problem.m, problem.k, problem.n
  sides = pairs.sides(problem)
  weight = 2 * problem.g * k * n * sides.rhs
  lhs = 2 * m * k * problem.lhs_dtype.itemsize if pad_m or pad_k else 0
  lhs *= sides.lhs
  if problem.kind == "tgmm":
    rhs = 2 * m * n if pad_m or pad_n else 0
    out = weight if pad_k or pad_n else 0
  else:
    rhs = weight if pad_k or pad_n else 0
    arrays = sides.out + problem.has_existing
    out = 2 * m * n * arrays if pad_m or pad_n else 0
  if rhs and problem.scale_block:
    arrays = 1 if problem.pair == "gated" else sides.rhs  # which has one of 2n
    scale = math.prod(problem.scale_shape) * problem.scale_dtype.itemsize
    lhs += 2 * arrays * scale
  return (
    lhs + rhs * bits(problem.rhs_dtype) // 8 + out * problem.out_dtype.itemsize
  )
