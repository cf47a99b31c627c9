"""Rows of factor levels in which every pair of levels meets, without chance."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

Row = dict[str, str]
Factors = Mapping[str, Sequence[str]]
Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs_of(row: Mapping[str, str]) -> set[Pair]:
  """The pairs of (factor, level) that meet in `row`."""
  return set(itertools.combinations(sorted(row.items()), 2))


def all_pairs(factors: Factors) -> set[Pair]:
  """Every pair of levels of two factors."""
  found: set[Pair] = set()
  for a, b in itertools.combinations(sorted(factors), 2):
    found |= {
      ((a, x), (b, y)) for x, y in itertools.product(factors[a], factors[b])
    }
  return found


def product(factors: Factors, *, given: Row | None = None) -> list[Row]:
  """Every combination of levels, each added to the row `given`."""
  return [
    (given or {}) | dict(zip(factors, levels, strict=True))
    for levels in itertools.product(*factors.values())
  ]


def pairwise(factors: Factors) -> list[Row]:
  """Few rows that together hold every pair of levels.

  Greedy: each row is the one of the full product with the most pairs not met
  yet, the first such row in product order. The product must be small enough to
  enumerate.
  """
  design = _Design()
  candidates = design.candidates(product(factors))
  total = len(all_pairs(factors))
  rows = []
  while design.met.bit_count() < total:
    rows.append(design.take_best(candidates))
  return rows


def extend(
  rows: Iterable[Row], factors_of: Callable[[Row], Factors], *, per_row: int
) -> list[Row]:
  """Gives each row `per_row` extensions by levels of further factors.

  Every extension is chosen, as in `pairwise`, for the pairs it adds, with the
  levels of its row as much as among its own.

  Args:
    rows: what to extend.
    factors_of: the further factors of a row, with the levels it may have.
    per_row: extensions of each row, all different.

  Returns:
    The extended rows, in the order of `rows`.
  """
  design = _Design()
  extended = []
  for row in rows:
    candidates = design.candidates(product(factors_of(row), given=row))
    for _ in range(min(per_row, len(candidates))):
      extended.append(design.take_best(candidates))
  return extended


class _Design:
  """The pairs met so far, a bit each: counting them is then one instruction.

  Attributes:
    met: pairs that some row has met.
  """

  def __init__(self) -> None:
    self.met = 0
    self._met_again = 0
    self._bits: dict[Pair, int] = {}

  def candidates(self, rows: list[Row]) -> list[tuple[Row, int]]:
    bits = self._bits
    return [
      (row, sum(1 << bits.setdefault(p, len(bits)) for p in pairs_of(row)))
      for row in rows
    ]

  def take_best(self, candidates: list[tuple[Row, int]]) -> Row:
    """Takes the first of the candidates that meet most new pairs.

    Among equals, and where none meets a new one, those count that few rows
    have met: else late rows would all be the first of the product.
    """

    def gain(candidate: tuple[Row, int]) -> tuple[int, int]:
      pairs = candidate[1]
      new, rare = pairs & ~self.met, pairs & ~self._met_again
      return new.bit_count(), rare.bit_count()

    best = max(candidates, key=gain)
    if not best[1] & ~self._met_again:
      self._met_again = 0
    candidates.remove(best)
    self.met |= best[1]
    self._met_again |= best[1]
    return best[0]
