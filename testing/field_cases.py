"""Cases that were chosen, not designed: faults of other kernels, and ends.

The ids in the names group rows of one kind of fault. A new edge case is a row
here; `_rows` gives rows that differ in one thing.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from testing import patterns
from testing.case import Case


def _rows(
  prefix: str, shared: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]
) -> Iterator[Case]:
  for suffix, own in rows.items():
    name = f"{prefix}-{suffix}" if suffix else prefix
    yield Case(name=name, **{**shared, **own})


def _sizes(**named: tuple[int, ...]) -> dict[str, dict[str, Any]]:
  return {name: {"group_sizes": sizes} for name, sizes in named.items()}


def _tails_of_k() -> Iterator[Case]:
  """Products that are wrong as soon as k is no multiple of its tile."""
  ones = {"m": 12, "group_sizes": (1,) * 12}
  yield from _rows(
    "C01-k_tail",
    {},
    {
      "320": {**ones, "k": 320, "n": 192, "tiling": (32, 128, 128)},
      "96": {**ones, "k": 96, "n": 96, "tiling": (32, 64, 64)},
      "320-bf16-T": {
        "dtypes": "bf16",
        "m": 40,
        "k": 320,
        "n": 192,
        "transpose_rhs": True,
        "tiling": (32, 256, 128),
        "group_sizes": (7, 0, 21, 12),
      },
    },
  )


def _empty_groups() -> Iterator[Case]:
  """The drhs of an empty group is exactly zero, not what was left in memory."""
  shared = {"dtypes": "bf16", "m": 16, "k": 64, "n": 32}
  sizes = _sizes(
    between=(8, 0, 8, 0), first=(0, 0, 8, 8), all=(0, 0, 0, 0), one=(0, 0, 1, 0)
  )
  yield from _rows("C03-empty", shared, sizes)
  yield from _rows("C03-empty-T", {**shared, "transpose_rhs": True}, sizes)
  yield Case(
    name="C03-empty-twelve_last",
    dtypes="f32",
    m=32,
    k=64,
    n=43,
    group_sizes=(5, 6, 4, 7, 2, 8) + (0,) * 12,
  )


def _rows_past_the_last_group() -> Iterator[Case]:
  """Rows that belong to nobody hold anything, and give zero."""
  for (dtypes, layout), poison in itertools.product(
    (("f32", "N"), ("bf16", "T")), ("nan", "inf", "huge")
  ):
    yield Case(
      name=f"C06-past_the_sum-{dtypes}-{layout}-{poison}",
      dtypes=dtypes,
      transpose_rhs=layout == "T",
      poison=poison,
      m=48,
      k=72,
      n=136,
      group_sizes=(7, 0, 12),
    )


def _few_rows() -> Iterator[Case]:
  """Fewer rows than a tile, with groups that end inside a block of 8."""
  shared = {"dtypes": "bf16", "m": 24, "k": 128, "n": 128}
  sizes = _sizes(
    inside=(5, 1, 7, 11), ones=(1, 1, 1, 21), almost_all=(23, 0, 0, 1)
  )
  yield from _rows("C09-few_rows", shared, sizes)
  yield from _rows("C09-few_rows-T", {**shared, "transpose_rhs": True}, sizes)


def _tile_m_that_does_not_divide() -> Iterator[Case]:
  shared = {"dtypes": "bf16", "m": 256, "k": 128, "n": 128}
  yield from _rows(
    "C11-tile_m-256by96",
    {**shared, "tiling": (96, 128, 128)},
    _sizes(
      ragged=patterns.ragged(256, 6),
      off_block=patterns.off_block(256, 6),
      short=patterns.short(256, 6),
      one_takes_all=patterns.one_takes_all(256, 6),
    ),
  )
  yield from _rows(
    "C11-tile_m-200by128",
    {**shared, "m": 200, "tiling": (128, 128, 128)},
    _sizes(
      ragged=patterns.ragged(200, 4),
      off_block=patterns.off_block(200, 4),
      empty_runs=patterns.empty_runs(200, 4),
    ),
  )


def _offsets() -> Iterator[Case]:
  """The offset counts in the gradients as in the forward product."""
  shared = {
    "m": 48,
    "k": 64,
    "n": 96,
    "group_sizes": (7, 0, 9, 3, 5, 0, 12, 4),
    "num_groups": 2,
  }
  for layout, offset in itertools.product("NT", (0, 3, 6)):
    yield Case(
      name=f"C20-offset-{layout}-{offset}",
      transpose_rhs=layout == "T",
      group_offset=offset,
      **shared,
    )
  yield Case(name="C20-offset-N-none", **shared)
  # The same, given in other ways.
  for form, offset in (("int", 3), ("array", 6)):
    yield Case(
      name=f"C20-offset-{form}-{offset}",
      group_offset=offset,
      offset_form=form,
      **shared,
    )


def _existing() -> Iterator[Case]:
  """What exists is kept on every row, and added to rows of local groups."""
  shared = {
    "m": 44,
    "k": 136,
    "n": 72,
    "num_groups": 2,
    "group_offset": 1,
    "existing_out": True,
    "tiling": (16, 128, 128),
  }
  sizes = _sizes(
    ragged=(5, 19, 9, 11),
    short=(5, 1, 2, 3),
    empty=(9, 0, 0, 5),
    all=(0, 44, 0, 0),
  )
  yield from _rows("existing", shared, sizes)
  # A sum of floats and integers is not an integer.
  yield from _rows(
    "existing-i8_to_f32",
    {**shared, "dtypes": "i8_to_f32"},
    {"ragged": sizes["ragged"]},
  )


def _windows() -> Iterator[Case]:
  """Groups that need a window more than their rows do, or cut one short."""
  shared = {"m": 48, "k": 40, "n": 24, "tiling": (16, 128, 128)}
  yield from _rows(
    "straddle",
    shared,
    _sizes(
      one_more=(7, 24, 9, 8), two_chunks=(3, 30, 15, 0), none=(16, 32, 0, 0)
    ),
  )


def _long_windows() -> Iterator[Case]:
  """Windows of several MXU products: whole chunks, runs of them, and ends."""
  sizes = _sizes(
    whole=(1280, 256, 128, 36),
    off_block=(5, 1290, 264, 141),
    short_ends=(392, 144, 1134, 30),
    one_takes_all=(0, 0, 1700, 0),
  )
  for layout, more in (
    ("N", {"k": 40, "n": 72, "dtypes": "bf16"}),
    ("T", {"k": 72, "n": 136, "dtypes": "f32", "existing_out": True}),
    ("N", {"k": 264, "n": 24, "dtypes": "bf16", "existing_out": True}),
  ):
    shared = {"m": 1700, "tiling": (1280, 128, 128), **more}
    shared["transpose_rhs"] = layout == "T"
    yield from _rows(f"long-{layout}-{more['k']}x{more['n']}", shared, sizes)


def _counts() -> Iterator[Case]:
  """Sizes that do not add up to anything sensible."""
  yield from _rows(
    "counts",
    {"m": 40, "k": 24, "n": 136},
    _sizes(
      too_many=patterns.too_many(40, 4),
      sum_wraps=patterns.sum_wraps(40, 4),
      negative=patterns.negative(40, 4),
    ),
  )


def _lanes() -> Iterator[Case]:
  """Neither k nor n need be a multiple of anything."""
  sizes = _sizes(ragged=patterns.ragged(40, 3), short=patterns.short(40, 3))
  for dtypes, (k, n) in itertools.product(
    ("bf16", "f32"), ((200, 72), (72, 200), (130, 260), (129, 1))
  ):
    shared = {"dtypes": dtypes, "m": 40, "k": k, "n": n}
    yield from _rows(f"C33-lanes-{dtypes}-{k}x{n}", shared, sizes)


def _weights_in_place() -> Iterator[Case]:
  """Weights that are read transposed."""
  shared = {"dtypes": "bf16", "m": 48, "transpose_rhs": True}
  sizes = _sizes(ragged=(11, 0, 25, 12), empty_last=(20, 3, 0, 0))
  for k, n, tiling in (
    (128, 256, None),
    (200, 72, None),
    (300, 128, (32, 128, 128)),
  ):
    own = {**shared, "k": k, "n": n, "tiling": tiling}
    yield from _rows(f"C42-in_place-{k}x{n}", own, sizes)


def _ends() -> Iterator[Case]:
  """Dimensions of 1, and of none."""
  for m in (1, 10):
    sizes = _sizes(one_row=patterns.one_row(m, 4), ones=patterns.all_ones(m, 4))
    shared = {"dtypes": "bf16", "m": m, "k": 136, "n": 72}
    yield from _rows(f"decode-m{m}", shared, sizes)
  # One group holds every row: a plain matmul, and one group too few.
  shared = {"m": 24, "k": 40, "n": 24}
  yield from _rows("one_group", shared, _sizes(all=(24,), none=(0,), some=(9,)))
  yield Case(name="k1", m=20, k=1, n=24, group_sizes=(7, 13))
  yield Case(name="m1_k1_n1", m=1, k=1, n=1, group_sizes=(0, 1))
  yield Case(name="no_rows", m=0, k=16, n=24, group_sizes=(0, 0))
  yield Case(name="no_rows-too_many", m=0, k=16, n=24, group_sizes=(3, 2))
  for existing in (False, True):
    suffix = "-add" if existing else ""
    shared = {"m": 20, "k": 16, "n": 24, "existing_out": existing}
    yield from _rows(
      "no",
      {**shared, "group_sizes": (7, 13)},
      {
        f"k{suffix}": {"k": 0},
        f"n{suffix}": {"n": 0},
        f"local_groups{suffix}": {"num_groups": 0, "group_offset": 1},
        f"groups{suffix}": {"group_sizes": ()},
      },
    )


def rows() -> Iterator[Case]:
  """All of them."""
  for make in (
    _tails_of_k,
    _empty_groups,
    _rows_past_the_last_group,
    _few_rows,
    _tile_m_that_does_not_divide,
    _offsets,
    _existing,
    _windows,
    _long_windows,
    _counts,
    _lanes,
    _weights_in_place,
    _ends,
  ):
    yield from make()
