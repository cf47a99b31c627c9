"""The case table: every test of a product runs over rows of `CASES`.

To add an edge case, add a row to `testing/field_cases.py`. To add a dtype, add
a `Dtypes` to `MAIN_DTYPES` of `testing/case.py`; it then meets every group
pattern, shape, tiling and offset.

Most rows come from a covering design, so that every two choices meet in some
case without the product of all. Interpreting a kernel compiles slowly and runs
fast, so cases come in sets that share a program: `Case.program` is all that a
compilation depends on, and group sizes, offsets and poison are not in it.

Nothing here imports jax.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from testing import covering, field_cases, patterns, quantized_cases
from testing.case import MAIN_DTYPES, MORE_DTYPES, Case, Tiling

# ---- the covering design

SHAPES: Mapping[str, tuple[int, int, int]] = {
  "48x128x256": (48, 128, 256),  # aligned
  "45x200x72": (45, 200, 72),  # rows that are padded
  "58x264x136": (58, 264, 136),  # tails after several tiles
}

# In the weight's terms; clipped to the shape where that is smaller.
TILINGS: Mapping[str, Tiling | None] = {
  "auto": None,
  "t32": (32, 128, 128),  # several tiles along m, k and n
  "t16": (16, 256, 128),  # a short tail along k
}

# Programs: every pair of these meets.
PROGRAM_FACTORS: covering.Factors = {
  "dtypes": tuple(MAIN_DTYPES),
  "shape": tuple(SHAPES),
  "tiling": tuple(TILINGS),
  "layout": ("N", "T"),
  "offset": ("none", "traced", "traced_1"),
  "existing": ("new", "add"),
  # One core; one without integers; two cores with neither integers nor float8.
  "chip": ("v6e", "tpu7x", "v4"),
}

_POISONS = ("nan", "inf", "huge")
_CASES_PER_PROGRAM = 7
_ALL_GROUPS = 5  # g where there is no offset
_SHARD = (3, 8)  # g and g_total where there is one


def run_factors(program: Mapping[str, str]) -> covering.Factors:
  """What cases of one program differ by."""
  offset = program["offset"] != "none"
  return {
    "pattern": tuple(patterns.PATTERNS),
    "position": tuple(patterns.POSITIONS) if offset else ("none",),
    "poison": _POISONS,
  }


def designed_rows() -> list[covering.Row]:
  """The rows of the covering design, as levels of its factors."""
  return covering.extend(
    covering.pairwise(PROGRAM_FACTORS), run_factors, per_row=_CASES_PER_PROGRAM
  )


def _case_of(row: covering.Row) -> Case:
  m, k, n = SHAPES[row["shape"]]
  has_offset = row["offset"] != "none"
  g, g_total = _SHARD if has_offset else (_ALL_GROUPS, _ALL_GROUPS)
  place = row["position"]
  return Case(
    name="-".join(v for v in row.values() if v not in ("none", "new", "v6e")),
    m=m,
    k=k,
    n=n,
    group_sizes=patterns.PATTERNS[row["pattern"]](m, g_total),
    num_groups=g,
    group_offset=patterns.POSITIONS[place](g, g_total) if has_offset else None,
    offset_form=row["offset"] if has_offset else "traced",
    dtypes=row["dtypes"],
    transpose_rhs=row["layout"] == "T",
    existing_out=row["existing"] == "add",
    tiling=TILINGS[row["tiling"]],
    chip=row["chip"],
    poison=row["poison"],
  )


def _rows_of_more_dtypes() -> Iterable[Case]:
  """The other formats, in one awkward shape, a shard in the middle."""
  shared: dict[str, Any] = {
    "m": 45,
    "k": 136,
    "n": 72,
    "num_groups": 2,
    "group_offset": 1,
  }
  for i, name in enumerate(MORE_DTYPES):
    for pattern in ("ragged", "empty_runs", "short"):
      yield Case(
        name=f"{name}-{'NT'[i % 2]}-{pattern}",
        dtypes=name,
        transpose_rhs=bool(i % 2),
        existing_out=i % 3 == 0,
        group_sizes=patterns.PATTERNS[pattern](45, 4),
        **shared,
      )


def _all_cases() -> tuple[Case, ...]:
  return (
    *(_case_of(row) for row in designed_rows()),
    *_rows_of_more_dtypes(),
    *field_cases.rows(),
    *quantized_cases.rows(),
  )


CASES: tuple[Case, ...] = _all_cases()


# Formats whose gradients differ in kind, each with the layout it is run in.
_FEW_DTYPES = {
  "bf16": "N",
  "f32_highest": "T",
  "bf16_f32": "N",
  "bf16_i8": "T",
  "i8": "N",
  "e4m3": "T",
}


def _few_cases() -> tuple[Case, ...]:
  """A few cases of one program for each kind of gradient, and those about them.

  Programs with an offset come first.
  """
  chosen: list[Case] = []
  for dtypes, layout in _FEW_DTYPES.items():
    own = [
      c
      for c in CASES
      if c.dtypes == dtypes and c.transpose_rhs == (layout == "T")
    ]
    own.sort(key=lambda c: c.group_offset is None)
    chosen += [c for c in own if c.program == own[0].program][:4]
  about_gradients = ("C03-empty-", "C06-past_the_sum-f32", "C20-", "no")
  chosen += [c for c in CASES if c.name.startswith(about_gradients)]
  refused = ("f16-", "bf16_to_f16-", "f32_f4-")
  chosen += [c for c in CASES if c.name.startswith(refused)]
  quantised = ("C14-spans-T", "blocks_in_tiles-N-steep", "bias-bf16-N-add")
  chosen += [c for c in CASES if c.name.startswith(quantised)]
  return tuple(dict.fromkeys(chosen))


# For what need not meet every case: those have met the whole table elsewhere.
FEW_CASES: tuple[Case, ...] = _few_cases()
