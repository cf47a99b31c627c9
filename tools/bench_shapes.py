"""What the bench runs: shapes, group sizes and the levels of a call."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from gmm.timing import visits
from testing import workloads
from testing.workloads import Workload
from tools import flags
from tools.report import collect

# How a product is called: the kernel itself, the kernel of a shard that holds
# half of the groups, and a step through ops.gmm's VJP.
LEVELS = ("kernel", "offset", "vjp")

DEFAULT_MODEL = "gemma4-26b"
DEFAULT_SIZES = "skew"

# What the interpreter runs instead of a model's own shape.
_TOY_ROWS, _TOY_GROUPS, _TOY_DIVISOR = 48, 3, 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
  """One weight [g, k, n], the rows that meet it and how they are grouped.

  Attributes:
    workload: its name and sizes.
    pattern: what the group sizes are called.
    sizes: of the g groups.
  """

  workload: Workload
  pattern: str
  sizes: tuple[int, ...]

  @property
  def key(self) -> str:
    """Equal in two runs exactly where their rows can be compared."""
    w = self.workload
    return f"{w.name} m={w.m} g={w.g} k={w.k} n={w.n} {self.pattern}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
  """The groups of a call, as it is given them.

  Attributes:
    sizes: int32 [g_total].
    offset: the group of the first weight; None where it is left out.
    local: int32 [g], rows of the groups that have a weight.
    first_row: of the first of these.
  """

  sizes: np.ndarray
  offset: int | None
  local: np.ndarray
  first_row: int

  @property
  def rows(self) -> int:
    """How many rows have a weight."""
    return int(self.local.sum())


def groups(shape: Shape, level: str) -> Groups:
  """The groups of a level: at "offset" half of them have a weight here.

  There each group of the shape is two, so that the sizes keep their pattern;
  the local ones lie in the middle.
  """
  sizes = np.array(shape.sizes, np.int32)
  if level != "offset":
    return Groups(sizes=sizes, offset=None, local=sizes, first_row=0)
  halves = np.stack([sizes - sizes // 2, sizes // 2], axis=1).ravel()
  offset = len(sizes) // 2
  local = halves[offset : offset + len(sizes)]
  first = int(halves[:offset].sum())
  return Groups(sizes=halves, offset=offset, local=local, first_row=first)


def chosen(
  *,
  model: str | None,
  own: Workload | None,
  patterns: Sequence[str],
  toy: bool,
) -> tuple[Shape, ...]:
  """The shapes that the flags ask for.

  Args:
    model: of the workload table, "all", or None for the default.
    own: a shape of the caller's, instead of a model's.
    patterns: names of group sizes, or paths of .npy files.
    toy: shrinks the models' shapes to what an interpreter can run.

  Raises:
    ValueError: unknown names, or a shape that is none.
  """
  if own is not None:
    found = (own,)
  else:
    model = model or DEFAULT_MODEL
    every = workloads.WORKLOADS
    found = every if model == "all" else workloads.of_model(model)
    if toy:
      found = tuple(map(_shrunk, found))
  return tuple(_shape(w, pattern) for w in found for pattern in patterns)


def check_rows(wanted: Sequence[Shape], levels: Sequence[str]) -> None:
  """Raises ValueError where a level of a shape has no row with a weight."""
  for shape in wanted:
    for level in levels:
      if not groups(shape, level).rows:
        raise ValueError(
          f"`group_sizes` {shape.pattern!r} have no rows at level {level!r} of "
          f"{shape.key}: all of them are outside the local half of the groups; "
          "leave that level out of --level, or take others"
        )


def _shrunk(w: Workload) -> Workload:
  return Workload(
    name=w.name,
    m=min(w.m, _TOY_ROWS),
    g=min(w.g, _TOY_GROUPS),
    k=max(w.k // _TOY_DIVISOR, 8),
    n=max(w.n // _TOY_DIVISOR, 8),
  )


def _shape(w: Workload, pattern: str) -> Shape:
  if pattern in visits.PATTERNS:
    sizes = visits.size_patterns(pattern, w.m, w.g)
  elif pattern.endswith(".npy"):
    path = str(flags.from_here(pattern))
    sizes = collect.checked_group_sizes(path, w.m, w.g)
  else:
    raise ValueError(
      f"`group_sizes` is {pattern!r}; want one of "
      f"{', '.join(visits.PATTERNS)}, or a file.npy of integers"
    )
  total = sum(sizes.tolist())  # integers of NumPy's wrap around
  if len(sizes) != w.g or sizes.min() < 0 or not 0 < total <= w.m:
    raise ValueError(
      f"`group_sizes` {pattern!r} has {len(sizes)} sizes from {sizes.min()} "
      f"that add up to {total}; want {w.g} from 0 that add up to 1 to "
      f"{w.m}"
    )
  if pattern not in visits.PATTERNS:
    # The file may hold others when a stored run is compared with.
    pattern = f"{pattern}#{zlib.crc32(sizes.astype(np.int64)):08x}"
  return Shape(workload=w, pattern=pattern, sizes=tuple(map(int, sizes)))
