"""Rows of the bench: as a table, as JSON, against a gate, against a stored run.

Nothing here imports jax.
"""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tools import flags

VERSION = 1
# What the two of ours are called in rows.
OURS, EXPLICIT = "nt", "transpose"

# A median that its quartiles are further from than that says little.
LARGEST_SPREAD = 0.25

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
  return _cells(*(name for name, _ in _COLUMNS))


def line(row: Row) -> str:
  """A row of the table."""
  if row["refused"]:
    start = _cells(row["level"], row["program"])
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
  return _cells(*cells)


def _cells(*texts: str) -> str:
  # A text that is too wide still has a space before it.
  pairs = zip(texts, _COLUMNS, strict=False)
  return "".join(f" {text:>{width - 1}}" for text, (_, width) in pairs)


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
  by_key = {key(row): row for row in rows}
  for where, speedup in speedups(rows).items():
    spreads = [by_key[*where, name]["spread"] for name in (EXPLICIT, OURS)]
    least = speedup * (1 - spreads[0]) / (1 + spreads[1])
    if not speedup >= gate:
      found.append(
        f"{' '.join(where)}: the explicit transpose takes {speedup:.3f} times "
        f"as long as NT; the gate wants {gate}"
      )
    elif max(spreads) > LARGEST_SPREAD and not least >= gate:
      found.append(
        f"{' '.join(where)}: times are spread by {max(spreads):.0%} of their "
        f"median, too much to tell whether {speedup:.3f} is above {gate}; "
        "give more --turns"
      )
  return found


def load(path: str) -> dict[str, Any]:
  """A stored run.

  Raises:
    ValueError: it cannot be read, or is none.
  """
  where = flags.from_here(path)
  try:
    run = json.loads(where.read_text())
  except (OSError, ValueError) as error:
    said = getattr(error, "strerror", None) or error
    raise ValueError(
      f"`against` {str(where)!r} cannot be read: {said}"
    ) from None
  if not isinstance(run, dict) or "version" not in run:
    raise ValueError(f"`against` {str(where)!r} is no run of the bench")
  if run["version"] != VERSION:
    raise ValueError(
      f"`against` {str(where)!r} is of version {run['version']}; want {VERSION}"
    )
  rows = run.get("rows")
  if (
    not all(isinstance(run.get(name), str) for name in _SAME)
    or not isinstance(rows, list)
    or not all(map(_is_row, rows))
  ):
    raise ValueError(f"`against` {str(where)!r} is no whole run of the bench")
  return run


# What a stored run has to have in common with this one.
_SAME = ("chip", "backend", "dtype")


def _is_row(row: Any) -> bool:
  """Whether a stored row has what `comparison` reads."""
  words = ("shape", "level", "program")
  if not isinstance(row, dict) or "refused" not in row:
    return False
  if not all(isinstance(row.get(name), str) for name in words):
    return False
  seconds = row.get("seconds")
  return bool(row["refused"]) or (
    isinstance(seconds, float)
    and 0 < seconds < math.inf
    and isinstance(row.get("clock"), str)
  )


def check_comparable(
  stored: Mapping[str, Any],
  run: Mapping[str, Any],
  wanted: Iterable[tuple[str, str]],
) -> None:
  """Raises ValueError where a stored run is of something else.

  Args:
    stored: of `load`.
    run: this one, of which no row is needed.
    wanted: the shapes of this run, and at which levels.
  """
  for name in _SAME:
    if stored[name] != run[name]:
      raise ValueError(
        f"`against` is a run of {name} {stored[name]}; this one is of "
        f"{run[name]}"
      )
  had = {key(row)[:2] for row in stored["rows"]}
  missing = [" ".join(one) for one in wanted if one not in had]
  if missing:
    has = "; ".join(sorted(map(" ".join, had))) or "none"
    raise ValueError(
      f"`against` is a run of other shapes: it has no {'; '.join(missing)} "
      f"(but {has})"
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


def check_writable(path: str) -> None:
  """Makes the folder; leaves what is there as it is, and no new file.

  Raises:
    ValueError: nothing can be written there.
  """
  with _writing(path) as where:
    is_new = not where.exists()
    with where.open("a"):
      pass
    if is_new:
      where.unlink()


def write(path: str, run: Mapping[str, Any]) -> pathlib.Path:
  """Stores a run; returns where.

  Raises:
    ValueError: it cannot be written there.
  """
  with _writing(path) as where:
    where.write_text(json.dumps(run, indent=1, allow_nan=True))
  return where


@contextlib.contextmanager
def _writing(path: str) -> Iterator[pathlib.Path]:
  where = flags.from_here(path)
  try:
    where.parent.mkdir(parents=True, exist_ok=True)
    yield where
  except OSError as error:
    raise ValueError(
      f"`out` {str(where)!r} cannot be written to: {error.strerror}"
    ) from None
