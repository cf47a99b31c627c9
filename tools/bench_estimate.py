"""What the model of docs/model.md expects of the programs of the bench."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from gmm import aot
from gmm.timing import rates
from tools import bench_programs as programs
from tools import bench_shapes as shapes

SOURCES = ("auto", "schedule", "model")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """What one program has to do, and how long the model says that it takes.

  Attributes:
    flops: useful ones.
    bytes: each operand read and each result written, once; of the explicit
      transpose, nothing more.
    seconds: by the model; None where nobody estimates a peer.
    peak_flops: of the device, per second.
    peak_bytes: of the device's memory, per second.
    from_schedule: whether compiled schedules are behind the seconds.
  """

  flops: int
  bytes: int
  seconds: float | None
  peak_flops: float
  peak_bytes: float
  from_schedule: bool


class Estimator:
  """Estimates for one chip, with schedules where it is given a compiler."""

  def __init__(
    self,
    target: programs.Target,
    compile_program: Callable[..., Any] | None,
    say: Callable[[str], None],
  ) -> None:
    """Takes what `aot.scheduler` yields, or None to count MXU cycles only."""
    self._target, self._compile, self._say = target, compile_program, say
    self._schedules: dict[tuple[Any, ...], Any] = {}

  def of(self, shape: shapes.Shape, level: str, name: str) -> Estimate:
    """The estimate of a program.

    Args:
      shape: of its operands.
      level: of the program.
      name: of the program; those of peers have no seconds.
    """
    groups = shapes.groups(shape, level)
    w = shape.workload
    modes = ("nn", "nt", "tn") if level == "vjp" else ("nt",)
    parts = [self._product(w, mode, groups) for mode in modes]
    seconds = sum(part.seconds for part in parts)
    if name == programs.EXPLICIT:
      seconds -= parts[modes.index("nt")].seconds
      seconds += self._product(w, "nn", groups, swapped=True).seconds
      weight = w.g * w.k * w.n * _itemsize(self._target.dtype)
      seconds += rates.copy_seconds(self._target.chip, weight)
    return Estimate(
      flops=sum(part.flops for part in parts),
      bytes=sum(part.bytes for part in parts),
      seconds=seconds if name in (programs.OURS, programs.EXPLICIT) else None,
      peak_flops=parts[0].peak_flops,
      peak_bytes=parts[0].peak_bytes_per_second,
      from_schedule=all(part.from_schedule for part in parts),
    )

  def _product(
    self, w: Any, mode: str, groups: shapes.Groups, *, swapped: bool = False
  ) -> aot.Roofline:
    k, n = (w.n, w.k) if swapped else (w.k, w.n)
    what = {
      "m": w.m,
      "g": w.g,
      "k": k,
      "n": n,
      "dtype": self._target.dtype,
      "chip": self._target.chip,
    }
    key = (mode, *what.values())
    if key not in self._schedules:
      self._schedules[key] = self._schedule(mode, what)
    return aot.roofline(
      mode,
      **what,
      group_sizes=groups.local,
      schedule=self._schedules[key],
    )

  def _schedule(self, mode: str, what: dict[str, Any]) -> Any:
    if self._compile is None:
      return None
    fn, specs = aot.product(mode, **what)
    try:
      found = self._compile(fn, *specs, chip=what["chip"])
      return found.schedules[0]
    except (
      aot.CompileError,
      aot.FormatError,
      OSError,
      RuntimeError,
      IndexError,
    ) as error:
      said = " ".join(str(error).split())
      self._say(f"no schedule of {mode}, so MXU cycles only: {said}")
      return None


@contextlib.contextmanager
def estimator(
  source: str, target: programs.Target, say: Callable[[str], None]
) -> Iterator[Estimator]:
  """An `Estimator`.

  Args:
    source: one of `SOURCES`. "auto" is "schedule" for a TPU, "model" else.
    target: of the programs.
    say: takes lines about what went wrong.
  """
  if source == "auto":
    source = "model" if target.interpret else "schedule"
  if source == "model":
    yield Estimator(target, None, say)
    return
  with contextlib.ExitStack() as stack:
    try:
      compiler = stack.enter_context(aot.scheduler())
    except (ImportError, OSError, RuntimeError) as error:
      say(f"no schedules, so MXU cycles only: {error}")
      compiler = None
    yield Estimator(target, compiler, say)


def _itemsize(dtype: str) -> int:
  return aot.spec((), dtype).dtype.itemsize
