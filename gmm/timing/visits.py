"""Which rows each step works on, on the host: `kernels.grid` in NumPy.

The kernels find this out on the TPU's scalar core. Here it is known beforehand,
to estimate times and to draw pictures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from gmm.kernels.plan import Plan

_SEED = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visits:
  """The visits of one output tile, in the kernel's order; int64 [visits] each.

  Attributes:
    group: local index of the group.
    start: first row, a multiple of the plan's block.
    rows: rows that are moved, a multiple of the block.
    lo: first row of the group; may lie before `start`.
    hi: row after the group's last; may lie after the window.
    products: [visits, len(plan.products)]: how often each product runs.
    rows_run: rows that the MXU runs.
    is_last: bool; whether it is its group's last visit.
  """

  group: np.ndarray
  start: np.ndarray
  rows: np.ndarray
  lo: np.ndarray
  hi: np.ndarray
  products: np.ndarray
  rows_run: np.ndarray
  is_last: np.ndarray

  @property
  def count(self) -> int:
    """How many visits there are."""
    return len(self.group)

  @property
  def own_rows(self) -> np.ndarray:
    """Rows of each visit that belong to its group: the useful ones."""
    end = np.minimum(self.start + self.rows, self.hi)
    return end - np.maximum(self.start, self.lo)


def visits(
  plan: Plan, group_sizes: np.ndarray, group_offset: int = 0
) -> Visits:
  """Returns the visits of each output tile.

  Sizes that misbehave are taken as the kernels take them: a negative one is 0,
  groups are clipped at row m, an offset outside [0, g_total) finds no rows.

  Args:
    plan: from `tiling.make_plan`.
    group_sizes: integers [g_total], g_total >= g.
    group_offset: which of them the first local group is.
  """
  ids, lo, hi = _local_groups(plan, group_sizes, group_offset)
  block = plan.block
  first = lo // block * block
  end = -(-hi // block) * block
  counts, strides = _windows(plan, end - first)
  entry = np.repeat(np.arange(len(ids)), counts)
  tile = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
  start = first[entry] + tile * strides[entry]
  is_last = tile == counts[entry] - 1
  rows = np.where(is_last, end[entry] - start, strides[entry])
  products = _products(plan, rows, (tile == 0, is_last))
  return Visits(
    group=ids[entry],
    start=start,
    rows=rows,
    lo=lo[entry],
    hi=hi[entry],
    products=products,
    rows_run=products @ np.array(plan.products),
    is_last=is_last,
  )


def _windows(plan: Plan, span: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Windows of groups that span so many rows, and their strides."""
  tile, span = plan.window - plan.block, span - plan.block
  counts = np.maximum(-(-span // tile), 1)
  return counts, -(-span // (counts * plan.unit)) * plan.unit


def _products(
  plan: Plan, rows: np.ndarray, places: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
  """Returns how often each of plan.products runs in each visit.

  Args:
    plan: of the kernel.
    rows: of each visit.
    places: whether a visit is its group's first, and its last.
  """
  is_first, is_last = places
  chunk, counts = plan.chunk, []
  if plan.problem.kind == "tgmm":
    chunks = (rows - is_last) // plan.unit * plan.run
    left = np.where(is_last, rows - chunks * chunk, 0)
  elif plan.whole:
    before = np.maximum(-(-(rows - plan.ends[-1]) // chunk), 0)
    chunks = np.where(rows % chunk == 0, rows // chunk, before)
    left = rows - chunks * chunk
  else:
    chunks, left = np.zeros_like(rows), rows
  for whole in plan.whole:
    counts.append(chunks * chunk // whole)
    chunks = chunks - counts[-1] * (whole // chunk)
  for most in plan.alone:
    counts.append(is_first & is_last & (rows <= most))
    left = np.where(counts[-1], 0, left)
  least = 0
  for most in plan.ends:
    counts.append((left > least) & (left <= most))
    least = most
  return np.stack(counts, 1).astype(np.int64)


def _local_groups(
  plan: Plan, group_sizes: np.ndarray, group_offset: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns (local index, first row, row after the last) where there are rows.

  Rows that padding added to m are no group's.
  """
  problem = plan.problem
  m = problem.m - plan.pads[0]
  sizes = np.clip(np.asarray(group_sizes), 0, m).astype(np.int64)
  ends = np.minimum(np.cumsum(sizes), m)
  starts = np.concatenate([[0], ends[:-1]])
  g_total = len(sizes)
  offset = group_offset if 0 <= group_offset < g_total else g_total
  ids = np.arange(offset, min(offset + problem.g, g_total))
  ids = ids[ends[ids] > starts[ids]]
  return ids - offset, starts[ids], ends[ids]


# ---- group sizes by name


def _from_shares(shares: np.ndarray, m: int) -> np.ndarray:
  """Sizes in proportion to `shares` that add up to m."""
  bounds = np.rint(np.cumsum(shares) / np.sum(shares) * m).astype(np.int64)
  return np.diff(bounds, prepend=0)


def _equal(m: int, g: int) -> np.ndarray:
  return np.diff(np.arange(g + 1, dtype=np.int64) * m // g)


def _mean_pm1(m: int, g: int) -> np.ndarray:
  """A row less and a row more by turns: no group starts where a tile does."""
  sizes = _equal(m, g)
  pairs = np.minimum(sizes[: g // 2 * 2 : 2], 1)
  sizes[: g // 2 * 2 : 2] -= pairs
  sizes[1::2] += pairs
  return sizes


def _skew(m: int, g: int) -> np.ndarray:
  return _from_shares(np.random.default_rng(_SEED).uniform(0.5, 1.5, g), m)


def _zipf(m: int, g: int) -> np.ndarray:
  shares = 1.0 / np.arange(1, g + 1)
  return _from_shares(np.random.default_rng(_SEED).permutation(shares), m)


PATTERNS: dict[str, Callable[[int, int], np.ndarray]] = {
  "equal": _equal,
  "mean+-1": _mean_pm1,
  "skew": _skew,
  "zipf": _zipf,
}


def size_patterns(name: str, m: int, g: int) -> np.ndarray:
  """Returns group sizes by the name of their distribution.

  Args:
    name: "equal"; "mean+-1", a row less and a row more by turns; "skew", the
      mean times U(0.5, 1.5); "zipf", 1/rank in random order. Random ones are
      the same at each call.
    m: rows, what the sizes add up to.
    g: groups.

  Returns:
    int64 [g].

  Raises:
    ValueError: an unknown name, m < 0 or g < 1.
  """
  if name not in PATTERNS:
    raise ValueError(
      f"`group_sizes` is {name!r}; known patterns: {', '.join(PATTERNS)}"
    )
  if m < 0 or g < 1:
    raise ValueError(f"`m` is {m} and `g` is {g}; want m >= 0 and g >= 1")
  return PATTERNS[name](m, g)


def checked_sizes(group_sizes: Any, m: int, g: int) -> np.ndarray:
  """Returns host group sizes from None, a pattern's name, or integers.

  Args:
    group_sizes: None means equal groups.
    m: rows.
    g: local groups.

  Returns:
    Integers [g_total], g_total >= g.

  Raises:
    ValueError: none of these.
  """
  if group_sizes is None:
    return size_patterns("equal", m, g)
  if isinstance(group_sizes, str):
    return size_patterns(group_sizes, m, g)
  wanted = f"want None, one of {', '.join(PATTERNS)}, or host integers [{g}]"
  try:
    sizes = np.asarray(group_sizes)
  except Exception as error:  # tracers raise errors of jax's own
    kind = type(group_sizes).__name__
    raise ValueError(
      f"`group_sizes` is a {kind} without values; {wanted}"
    ) from error
  if sizes.dtype.kind not in "iu":
    raise ValueError(f"`group_sizes` is {sizes.dtype}; {wanted}")
  if sizes.ndim != 1 or len(sizes) < g:
    raise ValueError(
      f"`group_sizes` has shape {list(sizes.shape)}; {wanted}, or longer"
    )
  return sizes
