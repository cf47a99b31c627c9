"""Times programs in turn: by the device's profile, else by the wall clock."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tools import bench_profile

CLOCKS = ("auto", "profile", "wall")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contestant:
  """A compiled program.

  Attributes:
    name: of the program.
    module: what a profile calls it.
    run: takes a set of operands.
  """

  name: str
  module: str
  run: Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
  """The times of one program.

  Attributes:
    clock: "profile", of the device, or "wall".
    seconds: of each turn.
    kernel_seconds: of our kernels within each, where the profile has them.
  """

  clock: str
  seconds: tuple[float, ...]
  kernel_seconds: tuple[float, ...] = ()

  @property
  def median(self) -> float:
    """Seconds of the median turn."""
    return float(np.median(self.seconds))

  @property
  def spread(self) -> float:
    """Half the distance of the quartiles, as a share of the median."""
    low, high = np.percentile(self.seconds, (25, 75))
    return float((high - low) / 2 / self.median)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
  """How to time.

  Attributes:
    clock: one of `CLOCKS`.
    turns: how many count; two more warm up.
    calls: that one turn of the wall clock waits for together, so that what a
      call costs the host hides behind the device.
  """

  clock: str
  turns: int
  calls: int


def times(
  contestants: Sequence[Contestant],
  sets: Sequence[tuple[Any, ...]],
  method: Method,
) -> tuple[dict[str, Timing], str | None]:
  """Times programs on the same operands, in turn.

  A turn runs each of them once, another one first each time, and on another of
  the sets than the run before it.

  Returns:
    Timings by name, and why the clock is not the profile, where it is not.

  Raises:
    ValueError: the profile is wanted and has not all programs.
  """
  _turns(contestants, sets, 2, 1)
  reason = "the wall clock was asked for"
  if method.clock != "wall":
    found, reason = _profiled(contestants, sets, method.turns)
    if found is not None:
      return found, None
    if method.clock == "profile":
      raise ValueError(f"`clock` is profile, but {reason}")
  walls = _turns(contestants, sets, method.turns, method.calls)
  found = {
    name: Timing(clock="wall", seconds=tuple(seconds))
    for name, seconds in walls.items()
  }
  return found, reason


def _turns(
  contestants: Sequence[Contestant],
  sets: Sequence[tuple[Any, ...]],
  turns: int,
  calls: int,
) -> dict[str, list[float]]:
  walls: dict[str, list[float]] = {c.name: [] for c in contestants}
  used = 0
  for turn in range(turns):
    first = turn % len(contestants)
    for one in (*contestants[first:], *contestants[:first]):
      start = time.perf_counter()
      for _ in range(calls):
        used += 1
        result = one.run(*sets[used % len(sets)])
      # A device runs programs in order: the last one is the last to end.
      jax.block_until_ready(result)
      walls[one.name].append((time.perf_counter() - start) / calls)
      del result
  return walls


def _profiled(
  contestants: Sequence[Contestant],
  sets: Sequence[tuple[Any, ...]],
  turns: int,
) -> tuple[dict[str, Timing] | None, str]:
  with tempfile.TemporaryDirectory(prefix="gmm-bench-") as folder:
    try:
      with jax.profiler.trace(folder):
        _turns(contestants, sets, turns, 1)
      modules = bench_profile.read_folder(folder)
    except (RuntimeError, ValueError, OSError) as error:
      return None, f"no profile: {' '.join(str(error).split())}"
  return of_profile(contestants, modules, turns)


def of_profile(
  contestants: Sequence[Contestant],
  modules: dict[str, bench_profile.Module],
  turns: int,
) -> tuple[dict[str, Timing] | None, str]:
  """Timings from a profile's programs, or None and what the profile lacks."""
  if not modules:
    return None, "the profile has no TPU's programs"
  found = {}
  for one in contestants:
    module = modules.get(one.module)
    if module is None or len(module.seconds) != turns:
      count = 0 if module is None else len(module.seconds)
      return None, f"the profile has {count} of {turns} runs of {one.module}"
    if not min(module.seconds) > 0:
      return None, f"the profile has runs of {one.module} that took no time"
    kernel = module.kernel_seconds if all(module.kernel_seconds) else ()
    found[one.name] = Timing(
      clock="profile", seconds=module.seconds, kernel_seconds=kernel
    )
  return found, ""
