"""Rows of the bench: as a table, as JSON, against a gate, against a stored run.

Nothing here imports jax.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

VERSION = 1
# What the two of ours are called in rows.
OURS, EXPLICIT = "nt", "transpose"

MEANINGLESS = "times are the interpreter's on a CPU and mean nothing"

_COLUMNS = (
  ("level", 8),
  ("program", 11),
  ("clock", 8),
  ("ms", 10),
  ("+-", 5),
  ("kernel ms", 10),
  ("TFLOP/s", 9),
  ("of peak", 8),
  ("GB/s", 8),
  ("of peak", 8),
  ("model ms", 10),
  ("ms/model", 9),
  ("error/bound", 12),
)

Row = Mapping[str, Any]


def key(row: Row) -> tuple[str, str, str]:
  """What a row is of."""
  return row["shape"], row["level"], row["program"]


def heading() -> str:
  """The table's first line."""
  return "".join(f"{name:>{width}}" for name, width in _COLUMNS)


def line(row: Row) -> str:
  """A row of the table."""
  if row["refused"]:
    cells = [row["level"], row["program"]]
    start = "".join(
      f"{c:>{width}}" for c, (_, width) in zip(cells, _COLUMNS, strict=False)
    )
    return f"{start}  {row['refused']}"
  cells = (
    row["level"],
    row["program"],
    row["clock"],
    _number(row["seconds"], 1e3, 4),
    f"{100 * row['spread']:.0f}%",
    _number(row["kernel_seconds"], 1e3, 4),
    _number(row["tflops"], 1, 1),
    _percent(row["flops_share"]),
    _number(row["gbps"], 1, 1),
    _percent(row["bytes_share"]),
    _number(row["model_seconds"], 1e3, 4),
    _number(row["over_model"], 1, 2),
    f"{row['error_share']:.2g}" + ("" if row["right"] else " WRONG"),
  )
  return "".join(
    f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
  )


def _number(value: float | None, factor: float, digits: int) -> str:
  return "-" if value is None else f"{value * factor:.{digits}f}"


def _percent(value: float | None) -> str:
  return "-" if value is None else f"{100 * value:.0f}%"


def speedups(rows: Iterable[Row]) -> dict[tuple[str, str], float]:
  """Time of the explicit transpose over that of NT, by (shape, level)."""
  seconds = {key(row): row["seconds"] for row in rows if not row["refused"]}
  return {
    (shape, level): seconds[shape, level, EXPLICIT] / ours
    for (shape, level, program), ours in seconds.items()
    if program == OURS and (shape, level, EXPLICIT) in seconds
  }


def failures(
  rows: Sequence[Row], gate: float | None, *, times_count: bool
) -> list[str]:
  """Why the run has not passed, a line for each reason.

  Args:
    rows: of this run.
    gate: the least speed-up over the explicit transpose; None for any.
    times_count: whether they are a TPU's.
  """
  found = []
  for row in rows:
    where = " ".join(key(row)[:2])
    if row["program"] not in (OURS, EXPLICIT):
      continue  # what others do does not fail us
    if row["refused"]:
      found.append(f"{where}: {row['program']} did not run: {row['refused']}")
    found += [
      f"{where}: {check}" for check in row["checks"] if check.endswith("WRONG")
    ]
  if gate is None or not times_count:
    return found
  for (shape, level), speedup in speedups(rows).items():
    if not speedup >= gate:
      found.append(
        f"{shape} {level}: the explicit transpose takes {speedup:.3f} times "
        f"as long as NT; the gate wants {gate}"
      )
  return found


def load(path: str) -> dict[str, Any]:
  """A stored run.

  Raises:
    ValueError: it cannot be read, or is none.
  """
  where = _from_here(path)
  try:
    run = json.loads(where.read_text())
  except (OSError, ValueError) as error:
    said = getattr(error, "strerror", None) or error
    raise ValueError(
      f"`against` {str(where)!r} cannot be read: {said}"
    ) from None
  wanted = ("version", "chip", "rows")
  if not isinstance(run, dict) or any(name not in run for name in wanted):
    raise ValueError(f"`against` {str(where)!r} is no run of the bench")
  if run["version"] != VERSION:
    raise ValueError(
      f"`against` {str(where)!r} is of version {run['version']}; want {VERSION}"
    )
  return run


def check_comparable(
  stored: Mapping[str, Any], *, chip: str, backend: str, wanted: Iterable[str]
) -> None:
  """Raises ValueError where a stored run is of something else.

  Args:
    stored: of `load`.
    chip: of this run.
    backend: of this run.
    wanted: the shapes of this run.
  """
  for name, value in (("chip", chip), ("backend", backend)):
    if stored[name] != value:
      raise ValueError(
        f"`against` is a run of {name} {stored[name]}; this one is of {value}"
      )
  had = {row["shape"] for row in stored["rows"]}
  missing = [shape for shape in wanted if shape not in had]
  if missing:
    raise ValueError(
      f"`against` is a run of other shapes: it has no {'; '.join(missing)} "
      f"(but {'; '.join(sorted(had)) or 'none'})"
    )


def comparison(rows: Sequence[Row], stored: Mapping[str, Any]) -> list[str]:
  """A line for each row that both runs have."""
  before = {key(row): row for row in stored["rows"] if not row["refused"]}
  lines = [f"{'stored ms':>12}{'now ms':>12}{'now/stored':>12}  what"]
  for row in rows:
    old = before.get(key(row))
    if row["refused"] or old is None:
      continue
    ratio = row["seconds"] / old["seconds"]
    clocks = "" if row["clock"] == old["clock"] else ", by other clocks"
    lines.append(
      f"{1e3 * old['seconds']:>12.4f}{1e3 * row['seconds']:>12.4f}"
      f"{ratio:>12.3f}  {' '.join(key(row))}{clocks}"
    )
  return lines


def write(path: str, run: Mapping[str, Any]) -> pathlib.Path:
  """Stores a run; returns where.

  Raises:
    ValueError: it cannot be written there.
  """
  where = _from_here(path)
  try:
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(json.dumps(run, indent=1, allow_nan=True))
  except OSError as error:
    raise ValueError(
      f"`out` {str(where)!r} cannot be written to: {error.strerror}"
    ) from None
  return where


def _from_here(path: str) -> pathlib.Path:
  """A path as the caller means it: `bazel run` changes the folder."""
  return pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), path)
