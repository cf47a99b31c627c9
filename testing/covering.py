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


def product(factors: Factors) -> list[Row]:
  """Every combination of levels."""
  return [
    dict(zip(factors, levels, strict=True))
    for levels in itertools.product(*factors.values())
  ]


def pairwise(factors: Factors) -> list[Row]:
  """Few rows that together hold every pair of levels.

  Greedy: each row is the one of the full product with the most pairs not met
  yet, the first such row in product order. The product must be small enough to
  enumerate.
  """
  design = _Design()
  candidates = design.candidates(factors)
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
    candidates = design.candidates(factors_of(row), given=row)
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

  def candidates(
    self, factors: Factors, *, given: Row | None = None
  ) -> list[tuple[Row, int]]:
    """As `product`, each row with the pairs that meet in it."""
    given = given or {}
    among_given = self._met_by(itertools.combinations(given.items(), 2))
    # What a level meets in the row given is the same in every candidate.
    with_given = {
      item: self._met_by((item, other) for other in given.items())
      for factor, levels in factors.items()
      for item in itertools.product([factor], levels)
    }
    found = []
    for row in product(factors):
      pairs = among_given | self._met_by(itertools.combinations(row.items(), 2))
      for item in row.items():
        pairs |= with_given[item]
      found.append((given | row, pairs))
    return found

  def _met_by(self, pairs: Iterable[Pair]) -> int:
    bits, met = self._bits, 0
    for one, other in pairs:
      pair = (one, other) if one < other else (other, one)
      met |= bits.get(pair) or bits.setdefault(pair, 1 << len(bits))
    return met

  def take_best(self, candidates: list[tuple[Row, int]]) -> Row:
    """Takes the first of the candidates that meet most new pairs.

    Among equals, and where none meets a new one, those count that few rows
    have met: else late rows would all be the first of the product.
    """
    unmet, rare = ~self.met, ~self._met_again
    gains = [(pairs & unmet).bit_count() for _, pairs in candidates]
    most = max(gains)
    equals = [
      c for c, gain in zip(candidates, gains, strict=True) if gain == most
    ]
    best = max(equals, key=lambda candidate: (candidate[1] & rare).bit_count())
    if not best[1] & ~self._met_again:
      self._met_again = 0
    candidates.remove(best)
    self.met |= best[1]
    self._met_again |= best[1]
    return best[0]
