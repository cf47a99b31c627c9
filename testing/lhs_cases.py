"""Cases of an lhs that is quantised, with its scales or on the way.

They have a target of their own: each is a kernel of its own, and takes long to
compile where it is interpreted. Nothing here imports jax.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from testing import patterns
from testing.case import Case

_PATTERNS = ("ragged", "empty_runs", "short", "all_ones", "one_takes_all")
_POISON = ("nan", "inf", "huge")
_TILES = (32, 128, 128)
_T: dict[str, Any] = {"transpose_rhs": True}

# Each is one program: formats, where the scales of both enter, and what else
# there is.
PROGRAMS: Mapping[str, dict[str, Any]] = {
  # Several tiles of k, whose integer sums are scaled at the end.
  "given-i8-row": {"dtypes": "i8", "scale_blocks": 1, "lhs_scale": "row"}
  | {"k": 200, "n": 72, "tiling": _TILES},
  "given-e4m3-tensor-T": {"dtypes": "e4m3", "scale_blocks": 2, "k": 256}
  | {"n": 72, "lhs_scale": "tensor", "bias": True, "existing_out": True, **_T}
  | {"chip": "tpu7x"},
  # One scale for each row, however k is to be cut.
  "to-i8": {"dtypes": "bf16_i8", "lhs_quantization": "int8", "k": 256, "n": 136}
  | {"scale_blocks": 1, "bias": True, "tiling": _TILES},
  # Blocks that start and end within a register.
  "to-i8-blocks-T": {"dtypes": "f32_i8", "k": 264, "n": 72, "scale_blocks": 2}
  | {"lhs_quantization": "int8", "existing_out": True, **_T},
  # Several tiles of k, of several blocks each, but for the last.
  "to-e4m3-tiles": {"dtypes": "f32_e4m3", "k": 320, "n": 72}
  | {"lhs_quantization": "float8_e4m3fn", "scale_blocks": 5, "chip": "tpu7x"}
  | {"tiling": _TILES},
}
# Loops over many blocks.
LOOPS: Mapping[str, dict[str, Any]] = {
  # Two turns, and two blocks more: they start and end within registers.
  "many-i8-T": {"dtypes": "bf16_i8", "k": 864, "n": 136, "scale_blocks": 18}
  | {"lhs_quantization": "int8", "existing_out": True, **_T},
  # Tiles of two turns and of one.
  "many-e4m3-tiles": {"dtypes": "f32_e4m3", "k": 640, "n": 72, "bias": True}
  | {"lhs_quantization": "float8_e4m3fn", "scale_blocks": 40, "chip": "tpu7x"}
  | {"tiling": (32, 256, 128)},
}
# A turn takes all of its columns, or half of them at a time.
PARTS = Case(
  name="many-i8-parts",
  dtypes="bf16_i8",
  lhs_quantization="int8",
  scale_blocks=32,
  scale_dtype="bfloat16",
  m=44,
  k=512,
  n=512,
  group_sizes=(17, 0, 20, 7),
  tiling=(32, 512, 512),
)
# For XLA alone, and its gradients: kernels are made of the same pieces.
MORE_PROGRAMS: Mapping[str, dict[str, Any]] = {
  "given-i8_bf16-row": {"dtypes": "i8_bf16", "lhs_scale": "row"}
  | {"scale_dtype": "bfloat16", "k": 136, "n": 72},
  "given-i8_i4-row": {"dtypes": "i8_i4", "scale_blocks": 5, "packed": True}
  | {"lhs_scale": "row", "k": 200, "n": 72},
  "to-e5m2-T": {"dtypes": "bf16_e5m2", "k": 136, "n": 72, **_T}
  | {"lhs_quantization": "float8_e5m2"},
  # What the chip has no matrix unit for.
  "to-e4m3-on_v6e": {"dtypes": "bf16_e4m3", "scale_blocks": 1, "k": 136}
  | {"lhs_quantization": "float8_e4m3fn", "n": 72},
  "to-i8-on_tpu7x": {"dtypes": "bf16_i8", "scale_blocks": 1, "k": 136, "n": 72}
  | {"lhs_quantization": "int8", "chip": "tpu7x"},
}


def _cases(
  programs: Mapping[str, dict[str, Any]], names: tuple[str, ...]
) -> Iterator[Case]:
  for name, fields in programs.items():
    for i, pattern in enumerate(names):
      # Rows of zeros, and of numbers too small for a scale, among others.
      values = (
        ("plain", "faint") if "lhs_quantization" in fields else ("plain",)
      )
      for value in values:
        yield Case(
          name=f"{name}-{pattern}-{value}",
          m=44,
          num_groups=3,
          group_sizes=patterns.PATTERNS[pattern](44, 5),
          group_offset=(i + 1) % 4,
          poison=_POISON[i % 3],
          values=value,
          **fields,
        )


def _many_rows() -> Iterator[Case]:
  """Several registers of scales, in windows that start anywhere."""
  for sizes in ((260, 3, 0, 41), (70, 190, 0, 44), (0, 0, 304, 0)):
    yield Case(
      name=f"given-many_rows-{'_'.join(map(str, sizes))}",
      dtypes="i8",
      lhs_scale="row",
      scale_blocks=1,
      m=304,
      k=128,
      n=128,
      group_sizes=sizes,
      tiling=(128, 128, 128),
    )


# For kernels; XLA has fewer patterns of them.
KERNEL_CASES: tuple[Case, ...] = (
  *_cases(PROGRAMS, _PATTERNS),
  *_many_rows(),
  *_cases(LOOPS, _PATTERNS[:3:2]),
)
MORE_CASES: tuple[Case, ...] = tuple(_cases(MORE_PROGRAMS, _PATTERNS[:2]))
XLA_CASES: tuple[Case, ...] = (*_cases(PROGRAMS, _PATTERNS[:2]), *MORE_CASES)
CASES: tuple[Case, ...] = (*KERNEL_CASES, *MORE_CASES)
