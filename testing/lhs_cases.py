"""Cases of an lhs that is quantised, with its scales or on the way.

They have a target of their own: each is a kernel of its own, and takes long to
compile where it is interpreted. Nothing here imports jax.
"""

from collections.abc import Iterator
from typing import Any

from testing import patterns
from testing.case import Case

_PATTERNS = ("ragged", "empty_runs", "short", "all_ones", "one_takes_all")
_POISON = ("nan", "inf", "huge")
_SHARED: dict[str, Any] = {"m": 44, "num_groups": 3}

# Each is one program: a pair of formats, where the scales of both enter, and
# what else there is.
GIVEN: dict[str, dict[str, Any]] = {
  "i8-row": {
    "dtypes": "i8",
    "scale_blocks": 1,
    "lhs_scale": "row",
    "k": 200,
    "n": 264,
    "tiling": (16, 128, 128),
  },
  "i8-row-T": {
    "dtypes": "i8",
    "scale_blocks": 2,
    "lhs_scale": "row",
    "k": 256,
    "n": 136,
    "transpose_rhs": True,
    "existing_out": True,
    "bias": True,
  },
  "i8-tensor": {
    "dtypes": "i8_to_f32",
    "lhs_scale": "tensor",
    "k": 136,
    "n": 72,
    "chip": "v4",
  },
  "i8_bf16-row": {
    "dtypes": "i8_bf16",
    "lhs_scale": "row",
    "scale_dtype": "bfloat16",
    "k": 136,
    "n": 72,
  },
  "i8_i4-row": {
    "dtypes": "i8_i4",
    "scale_blocks": 5,
    "lhs_scale": "row",
    "k": 200,
    "n": 72,
    "packed": True,
  },
  "e4m3-row-T": {
    "dtypes": "e4m3",
    "scale_blocks": 1,
    "lhs_scale": "row",
    "k": 200,
    "n": 136,
    "transpose_rhs": True,
    "chip": "tpu7x",
  },
  "e5m2-tensor": {
    "dtypes": "e5m2",
    "scale_blocks": 4,
    "lhs_scale": "tensor",
    "k": 512,
    "n": 136,
    "tiling": (32, 256, 128),
  },
}


def given() -> Iterator[Case]:
  """An lhs that comes with scales."""
  for name, fields in GIVEN.items():
    for i, pattern in enumerate(_PATTERNS):
      yield Case(
        name=f"{name}-{pattern}",
        group_sizes=patterns.PATTERNS[pattern](44, 5),
        group_offset=(i + 1) % 4,
        poison=_POISON[i % 3],
        **_SHARED,
        **fields,
      )
  # Rows of several registers' worth of scales, in windows that start anywhere.
  for sizes in ((260, 3, 0, 41), (1, 129, 170, 4), (0, 0, 304, 0)):
    yield Case(
      name=f"i8-many_rows-{'_'.join(map(str, sizes))}",
      dtypes="i8",
      lhs_scale="row",
      scale_blocks=1,
      m=304,
      k=128,
      n=128,
      group_sizes=sizes,
      tiling=(128, 128, 128),
    )


CASES: tuple[Case, ...] = tuple(given())
