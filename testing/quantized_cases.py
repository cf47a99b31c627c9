"""Cases of quantised weights and of biases.

A covering design like that of `cases.py`, in which every pair of choices meets,
and rows that were chosen. Nothing here imports jax.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from testing import covering, patterns
from testing.case import QUANTIZED_DTYPES, VALUES, Case, Tiling

# (m, k, n), and k_blocks of few and many blocks.
SHAPES: Mapping[str, tuple[int, int, int]] = {
  "48x256x256": (48, 256, 256),  # blocks of whole registers, and of 32
  "45x200x72": (45, 200, 72),  # of 100 and 40
  "42x264x136": (42, 264, 136),  # of 132 and 88, after padding
}
BLOCKS: Mapping[str, Mapping[str, int]] = {
  "channel": dict.fromkeys(SHAPES, 1),
  "few": dict.fromkeys(SHAPES, 2),
  "more": {"48x256x256": 8, "45x200x72": 5, "42x264x136": 3},
}
TILINGS: Mapping[str, Tiling | None] = {"auto": None, "t32": (32, 128, 128)}

PROGRAM_FACTORS: covering.Factors = {
  "dtypes": tuple(QUANTIZED_DTYPES),
  "shape": tuple(SHAPES),
  "blocks": tuple(BLOCKS),
  "tiling": tuple(TILINGS),
  "layout": ("N", "T"),
  "offset": ("none", "traced"),
  "extras": ("plain", "bias", "bias_add"),
  "scale": ("float32", "bfloat16"),
  "chip": ("v6e", "tpu7x", "v4"),
}
_CASES_PER_PROGRAM = 5
_ALL_GROUPS = 4
_SHARD = (2, 5)


def run_factors(program: Mapping[str, str]) -> covering.Factors:
  """What cases of one program differ by."""
  offset = program["offset"] != "none"
  positions = ("first", "middle", "last", "beyond")
  return {
    "pattern": tuple(patterns.PATTERNS),
    "position": positions if offset else ("none",),
    "poison": ("nan", "inf", "huge"),
    "values": VALUES,
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
  left_out = ("none", "plain", "float32", "v6e")
  return Case(
    name="-".join(("q", *(v for v in row.values() if v not in left_out))),
    m=m,
    k=k,
    n=n,
    group_sizes=patterns.PATTERNS[row["pattern"]](m, g_total),
    num_groups=g,
    group_offset=patterns.POSITIONS[place](g, g_total) if has_offset else None,
    dtypes=row["dtypes"],
    transpose_rhs=row["layout"] == "T",
    existing_out=row["extras"] == "bias_add",
    bias=row["extras"] != "plain",
    scale_blocks=BLOCKS[row["blocks"]][row["shape"]],
    scale_dtype=row["scale"],
    values=row["values"],
    tiling=TILINGS[row["tiling"]],
    # The only chip that has 4-bit floats.
    chip="tpu7x" if row["dtypes"] == "bf16_f4" else row["chip"],
    poison=row["poison"],
  )


def _of_each_value(prefix: str, shared: Mapping[str, Any]) -> Iterator[Case]:
  sizes = {"ragged": patterns.ragged, "empty": patterns.empty_runs}
  for values in VALUES:
    for name, make in sizes.items():
      yield Case(
        name=f"{prefix}-{values}-{name}",
        values=values,
        group_sizes=make(shared["m"], 4),
        **shared,
      )


def _field_rows() -> Iterator[Case]:
  # C12: a scale that underflows to zero must give zeros, never 0 / 0.
  yield from _of_each_value(
    "C12-underflow",
    {"dtypes": "bf16_e4m3", "m": 24, "k": 128, "n": 72} | {"scale_blocks": 4},
  )
  # C14: one scale for a whole block of lhs that spans several of the weight.
  for layout in "NT":
    yield from _of_each_value(
      f"C14-spans-{layout}",
      {"dtypes": "bf16_i8", "m": 24, "k": 512, "n": 128, "scale_blocks": 4}
      | {"transpose_rhs": layout == "T", "tiling": (32, 512, 128)},
    )
  # Several tiles of k, each of several blocks; the last one is short.
  for layout, scale in (("N", "bfloat16"), ("T", "float32")):
    yield from _of_each_value(
      f"blocks_in_tiles-{layout}",
      {"dtypes": "bf16_i8", "m": 24, "k": 480, "n": 480, "scale_blocks": 5}
      | {"transpose_rhs": layout == "T", "tiling": (32, 128, 128)}
      | {"scale_dtype": scale},
    )
  # C42: 4-bit weights cannot be transposed in place, and need not be.
  yield from _of_each_value(
    "C42-in_place-i4",
    {"dtypes": "bf16_i4", "m": 24, "k": 300, "n": 136, "scale_blocks": 1}
    | {"transpose_rhs": True, "tiling": (32, 128, 128)},
  )


def _packed() -> Iterator[Case]:
  """Eight values of int4 in an int32."""
  shared: dict[str, Any] = {"dtypes": "bf16_i4", "m": 24, "packed": True}
  yield from _of_each_value(
    "packed-N", {**shared, "k": 200, "n": 72, "scale_blocks": 5}
  )
  tiled = {**shared, "k": 320, "n": 264, "tiling": (32, 128, 128)}
  for name, k_blocks, layout in (
    ("tiled-N", 0, "N"),
    ("blocks-T", 10, "T"),
  ):
    for pattern in ("ragged", "short", "empty_runs"):
      yield Case(
        name=f"packed-{name}-{pattern}",
        **tiled,
        scale_blocks=k_blocks,
        transpose_rhs=layout == "T",
        num_groups=3,
        group_offset=1,
        group_sizes=patterns.PATTERNS[pattern](24, 5),
      )


def _packed_in_tiles() -> Iterator[Case]:
  """Several tiles along the packed axis, of which the last one is short."""
  for pattern in ("ragged", "short"):
    yield Case(
      name=f"packed-long-T-{pattern}",
      dtypes="bf16_i4",
      packed=True,
      m=24,
      k=1288,
      n=72,
      scale_blocks=7,
      transpose_rhs=True,
      tiling=(32, 1024, 128),
      group_sizes=patterns.PATTERNS[pattern](24, 4),
    )


def _small_blocks() -> Iterator[Case]:
  """Blocks of 16: the weight is scaled, or a loop goes over groups of them."""
  for name, layout, k, n in (
    ("small_blocks", "T", 288, 72),
    ("small_in_tiles", "N", 512, 128),
    ("small_in_tiles", "T", 512, 128),
  ):
    yield Case(
      name=f"{name}-{layout}-ragged",
      dtypes="bf16_i8",
      m=24,
      k=k,
      n=n,
      scale_blocks=k // 16,
      values="steep",
      transpose_rhs=layout == "T",
      tiling=(32, 256, 128) if k == 512 else None,
      group_sizes=patterns.PATTERNS["ragged"](24, 4),
    )


def _pieces_of_small_blocks() -> Iterator[Case]:
  """Loops over pieces of columns of the result, and of dlhs."""
  for name, k, n in (("wide", 64, 1664), ("long", 1600, 64)):
    yield Case(
      name=f"small_blocks-{name}-ragged",
      dtypes="bf16_i8",
      m=24,
      k=k,
      n=n,
      scale_blocks=k // 16,
      values="steep",
      group_sizes=patterns.PATTERNS["ragged"](24, 4),
    )


def _biases() -> Iterator[Case]:
  """Without a scale: rows of no group get none, and every row one at most."""
  shared: dict[str, Any] = {"m": 44, "k": 40, "n": 136, "bias": True}
  for layout, dtypes in (("N", "bf16"), ("T", "f32"), ("N", "i8_to_f32")):
    for add in (False, True):
      for name in (
        "ragged",
        "empty_runs",
        "short",
        "one_takes_all",
        "all_ones",
      ):
        yield Case(
          name=f"bias-{dtypes}-{layout}-{'add' if add else 'new'}-{name}",
          dtypes=dtypes,
          transpose_rhs=layout == "T",
          existing_out=add,
          num_groups=3,
          group_offset=1,
          group_sizes=patterns.PATTERNS[name](44, 5),
          **shared,
        )
  for sizes in ((0, 1, 2), (5, 9, 3)):
    total = sum(sizes)
    yield Case(
      name=f"bias-no_k-{total}",
      **(shared | {"k": 0, "m": 20}),
      group_sizes=sizes,
    )


def rows() -> Iterator[Case]:
  """All of them."""
  yield from map(_case_of, designed_rows())
  yield from _field_rows()
  yield from _packed()
  yield from _packed_in_tiles()
  yield from _small_blocks()
  yield from _pieces_of_small_blocks()
  yield from _biases()
