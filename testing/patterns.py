"""Ways to deal m rows to groups, and places for a shard among the groups."""

from collections.abc import Callable, Mapping

# Shares of the ragged patterns; no two neighbours alike, no share zero.
_SHARES = (3, 1, 5, 2, 7, 1, 4, 6)

_INT32_MAX = 2**31 - 1


def _from_bounds(bounds: list[int]) -> tuple[int, ...]:
  return tuple(
    end - start for start, end in zip(bounds[:-1], bounds[1:], strict=True)
  )


def equal(m: int, g: int) -> tuple[int, ...]:
  """As equal as m and g allow."""
  return _from_bounds([m * i // g for i in range(g + 1)])


def ragged(m: int, g: int) -> tuple[int, ...]:
  """Every row dealt, no two neighbours alike."""
  shares = [_SHARES[i % len(_SHARES)] for i in range(g)]
  sums = [sum(shares[:i]) for i in range(g + 1)]
  return _from_bounds([m * s // sums[-1] for s in sums])


def all_ones(m: int, g: int) -> tuple[int, ...]:
  """One row each, while there are rows."""
  return tuple(int(i < m) for i in range(g))


def empty_first(m: int, g: int) -> tuple[int, ...]:
  """Half of the groups empty, before the others."""
  empty = g // 2
  return (0,) * empty + ragged(m, g - empty)


def empty_last(m: int, g: int) -> tuple[int, ...]:
  """Half of the groups empty, after the others."""
  return empty_first(m, g)[::-1]


def empty_runs(m: int, g: int) -> tuple[int, ...]:
  """Two empty groups after each group that has rows."""
  full = list(ragged(m, len(range(0, g, 3))))
  return tuple(0 if i % 3 else full[i // 3] for i in range(g))


def one_takes_all(m: int, g: int) -> tuple[int, ...]:
  """Every row to one group in the middle."""
  return tuple(m if i == g // 2 else 0 for i in range(g))


def one_row(m: int, g: int) -> tuple[int, ...]:
  """A single row in all, to a group in the middle."""
  return tuple(int(i == g // 2 and m > 0) for i in range(g))


def short(m: int, g: int) -> tuple[int, ...]:
  """A sum below m: the last rows belong to no group."""
  return ragged(m * 5 // 8, g)


def off_block(m: int, g: int) -> tuple[int, ...]:
  """No boundary on a multiple of 8."""
  bounds = [m * i // g for i in range(g + 1)]
  inner = [b + 3 if b % 8 == 0 else b for b in bounds[1:-1]]
  return _from_bounds([0, *(min(b, m) for b in inner), m])


def on_block(m: int, g: int) -> tuple[int, ...]:
  """Each boundary on a multiple of 8."""
  return _from_bounds([m * i // g // 8 * 8 for i in range(g + 1)])


def all_empty(m: int, g: int) -> tuple[int, ...]:
  """No row at all."""
  del m
  return (0,) * g


def too_many(m: int, g: int) -> tuple[int, ...]:
  """A sum above m, reached within a group in the middle."""
  return tuple(size + m // g + 1 for size in ragged(m, g))


def sum_wraps(m: int, g: int) -> tuple[int, ...]:
  """Sizes whose int32 sum is small or negative again."""
  first = max(1, m // 3)
  return (first, *(_INT32_MAX - i for i in range(g - 1)))[:g]


def negative(m: int, g: int) -> tuple[int, ...]:
  """Every other size below zero, and those would cancel the rest."""
  return tuple(-m if i % 2 else size for i, size in enumerate(ragged(m, g)))


Pattern = Callable[[int, int], tuple[int, ...]]

PATTERNS: Mapping[str, Pattern] = {
  f.__name__: f
  for f in (
    equal,
    ragged,
    all_ones,
    empty_first,
    empty_last,
    empty_runs,
    one_takes_all,
    one_row,
    short,
    off_block,
    on_block,
    all_empty,
    too_many,
    sum_wraps,
    negative,
  )
}

# Where the shard's first group lies, of g local ones among g_total.
POSITIONS: Mapping[str, Callable[[int, int], int]] = {
  "first": lambda g, g_total: 0,
  "middle": lambda g, g_total: (g_total - g + 1) // 2,
  "last": lambda g, g_total: g_total - g,
  "hanging": lambda g, g_total: g_total - 1,  # only one weight has a group
  "beyond": lambda g, g_total: g_total,
  "before": lambda g, g_total: -1,
}
