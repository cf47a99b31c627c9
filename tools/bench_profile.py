"""What a profile says of the time that programs take on a TPU.

A trace of jax's profiler has a plane for each device. The line "XLA Modules"
holds an event for each run of a program, named jit_f(fingerprint), and "XLA
Ops" one for each operation in it, whose names carry those of our kernels. A
trace without these, as of a CPU, has nothing to say.
"""

from __future__ import annotations

import bisect
import dataclasses
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import jax

_DEVICE = "/device:TPU:"
_MODULES, _OPERATIONS = "XLA Modules", "XLA Ops"
_KERNEL = re.compile(r"(?:t?gmm(?:_gated)?|split_gmm|sum_gmm)_v2[\w.+-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
  """The runs of a program on one device, in order.

  Attributes:
    seconds: of each run, all its operations and gaps.
    kernel_seconds: of our kernels within each run; 0 where it has none.
  """

  seconds: tuple[float, ...]
  kernel_seconds: tuple[float, ...]


def read_folder(folder: str) -> dict[str, Module]:
  """The programs in the trace that `jax.profiler.trace(folder)` wrote.

  Raises:
    ValueError: it wrote none, or one that cannot be read.
  """
  paths = sorted(pathlib.Path(folder).rglob("*.xplane.pb"))
  if not paths:
    raise ValueError("the profiler wrote no trace")
  try:
    profile = jax.profiler.ProfileData.from_file(str(paths[-1]))
    return read(profile)
  except (RuntimeError, OSError, AttributeError) as error:
    raise ValueError(f"the trace cannot be read: {error}") from None


def read(profile: Any) -> dict[str, Module]:
  """The programs that ran on the first TPU of a trace; {} where none did.

  Args:
    profile: a `jax.profiler.ProfileData`.
  """
  for plane in sorted(profile.planes, key=lambda plane: plane.name):
    if plane.name.startswith(_DEVICE):
      lines = {line.name: line for line in plane.lines}
      if _MODULES in lines:
        return _modules(lines[_MODULES], lines.get(_OPERATIONS))
  return {}


def _modules(line: Any, operations: Any) -> dict[str, Module]:
  runs = sorted(
    (event.start_ns, event.duration_ns, event.name.split("(")[0])
    for event in line.events
  )
  starts = [start for start, _, _ in runs]
  kernels = [0.0] * len(runs)
  for start, duration in _kernel_events(operations):
    run = bisect.bisect_right(starts, start) - 1
    if run >= 0 and start < starts[run] + runs[run][1]:
      kernels[run] += duration * 1e-9
  found = {}
  for (_, duration, name), kernel in zip(runs, kernels, strict=True):
    found.setdefault(name, []).append((duration * 1e-9, kernel))
  return {
    name: Module(
      seconds=tuple(s for s, _ in pairs),
      kernel_seconds=tuple(k for _, k in pairs),
    )
    for name, pairs in found.items()
  }


def _kernel_events(line: Any) -> Iterator[tuple[float, float]]:
  if line is None:
    return
  for event in line.events:
    # An event may be named by its whole instruction, operands included.
    if _KERNEL.search(event.name.split("=")[0]):
      yield event.start_ns, event.duration_ns
