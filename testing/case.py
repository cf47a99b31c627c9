"""One row of the case table, and the formats it can have.

Nothing here imports jax.
"""

import dataclasses
from collections.abc import Mapping

Tiling = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dtypes:
  """The formats of one product, by name.

  Attributes:
    lhs: of lhs.
    rhs: of rhs.
    out: preferred_element_type, None for the default.
    precision: "highest" or None.
  """

  lhs: str
  rhs: str
  out: str | None = None
  precision: str | None = None


# The formats that meet everything else pairwise.
MAIN_DTYPES: Mapping[str, Dtypes] = {
  "bf16": Dtypes(lhs="bfloat16", rhs="bfloat16"),
  "f32": Dtypes(lhs="float32", rhs="float32"),
  "f32_highest": Dtypes(lhs="float32", rhs="float32", precision="highest"),
  "bf16_to_f32": Dtypes(lhs="bfloat16", rhs="bfloat16", out="float32"),
  "bf16_f32": Dtypes(lhs="bfloat16", rhs="float32"),
  "f32_bf16": Dtypes(lhs="float32", rhs="bfloat16"),
  "i8": Dtypes(lhs="int8", rhs="int8"),
  "bf16_i8": Dtypes(lhs="bfloat16", rhs="int8"),
  "e4m3": Dtypes(lhs="float8_e4m3fn", rhs="float8_e4m3fn"),
  "e5m2": Dtypes(lhs="float8_e5m2", rhs="float8_e5m2"),
  "e4m3_e5m2": Dtypes(lhs="float8_e4m3fn", rhs="float8_e5m2"),
}

# Further formats, with one shape each.
MORE_DTYPES: Mapping[str, Dtypes] = {
  "f32_to_bf16": Dtypes(lhs="float32", rhs="float32", out="bfloat16"),
  "i8_to_f32": Dtypes(lhs="int8", rhs="int8", out="float32"),
  "i8_to_bf16": Dtypes(lhs="int8", rhs="int8", out="bfloat16"),
  "bf16_e4m3": Dtypes(lhs="bfloat16", rhs="float8_e4m3fn"),
  "f32_i8": Dtypes(lhs="float32", rhs="int8"),
  "e4m3_to_e4m3": Dtypes(
    lhs="float8_e4m3fn", rhs="float8_e4m3fn", out="float8_e4m3fn"
  ),
  "f16": Dtypes(lhs="float16", rhs="float16"),
  "bf16_to_f16": Dtypes(lhs="bfloat16", rhs="bfloat16", out="float16"),
  "bf16_i4": Dtypes(lhs="bfloat16", rhs="int4"),
  "i8_i4": Dtypes(lhs="int8", rhs="int4"),
  "f32_f4": Dtypes(lhs="float32", rhs="float4_e2m1fn"),
}

# Floats times a quantised weight: what meets every form of scales.
QUANTIZED_DTYPES: Mapping[str, Dtypes] = {
  "bf16_i8": MAIN_DTYPES["bf16_i8"],
  "bf16_i4": MORE_DTYPES["bf16_i4"],
  "bf16_e4m3": MORE_DTYPES["bf16_e4m3"],
  "bf16_e5m2": Dtypes(lhs="bfloat16", rhs="float8_e5m2"),
  "bf16_f4": Dtypes(lhs="bfloat16", rhs="float4_e2m1fn"),
  "f32_i8": MORE_DTYPES["f32_i8"],
  "f32_i4": Dtypes(lhs="float32", rhs="int4"),
  "e4m3_i4": Dtypes(lhs="float8_e4m3fn", rhs="int4", out="float32"),
}

# What only an lhs with scales has.
_LHS_DTYPES: Mapping[str, Dtypes] = {
  "i8_bf16": Dtypes(lhs="int8", rhs="bfloat16"),
  "f32_e4m3": Dtypes(lhs="float32", rhs="float8_e4m3fn"),
}

DTYPES: Mapping[str, Dtypes] = {
  **MAIN_DTYPES,
  **MORE_DTYPES,
  **QUANTIZED_DTYPES,
  **_LHS_DTYPES,
}

# Values of a quantised weight's scales, and of what is multiplied by it.
#   steep   a factor of 100 from block to block
#   zeros   every third scale is zero
#   tiny    near float32's smallest numbers
#   faint   lhs is, down to numbers that are flushed to zero
VALUES = ("plain", "steep", "zeros", "tiny", "faint")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """One call of gmm, and the gradients of it.

  Attributes:
    name: says what the case is; unique.
    m: rows of lhs.
    k: contraction of the forward product.
    n: width of the result.
    group_sizes: of all groups.
    num_groups: g, how many of them have a weight here; None for all.
    group_offset: the first of these, None where the argument is left out.
    offset_form: how the offset is given: a Python "int", a NumPy scalar
      "array", a "traced" scalar or a "traced_1" of shape [1].
    dtypes: a key of `DTYPES`.
    transpose_rhs: whether rhs is [g, n, k].
    existing_out: whether it is given.
    scale_blocks: k_blocks of rhs_scale, 0 where it is left out.
    scale_dtype: of rhs_scale and rhs_bias.
    packed: whether an int32 holds eight values of rhs (int4) along k.
    values: one of `VALUES`.
    bias: whether rhs_bias is given.
    lhs_scale: "row" or "tensor" where lhs_scale is given, else "".
    lhs_quantization: the format that lhs is quantised to, or None.
    tiling: (tile_m, tile_k, tile_n) in the weight's terms, or None.
    chip: what interpreted kernels are planned for; a TPU runs its own plan.
    poison: what fills everything that must not be read: "nan", "inf" or
      "huge".
  """

  name: str
  m: int
  k: int
  n: int
  group_sizes: tuple[int, ...]
  num_groups: int | None = None
  group_offset: int | None = None
  offset_form: str = "traced"
  dtypes: str = "f32"
  transpose_rhs: bool = False
  existing_out: bool = False
  scale_blocks: int = 0
  scale_dtype: str = "float32"
  packed: bool = False
  values: str = "plain"
  bias: bool = False
  lhs_scale: str = ""
  lhs_quantization: str | None = None
  tiling: Tiling | None = None
  chip: str = "v6e"
  poison: str = "nan"

  @property
  def g(self) -> int:
    """How many groups have a weight here."""
    return self.g_total if self.num_groups is None else self.num_groups

  @property
  def g_total(self) -> int:
    """How many groups there are."""
    return len(self.group_sizes)

  @property
  def formats(self) -> Dtypes:
    """What `dtypes` stands for."""
    return DTYPES[self.dtypes]

  @property
  def has_drhs(self) -> bool:
    """Whether the weight's gradient is a product: not of a quantised one."""
    return not self.scale_blocks and not self.formats.rhs.startswith("float4")

  @property
  def is_scaled(self) -> bool:
    """Whether sums are multiplied by scales."""
    return bool(self.scale_blocks or self.lhs_scale or self.lhs_quantization)

  @property
  def products(self) -> tuple[str, ...]:
    """The results of the products that are called one by one.

    What gradients of a quantised lhs are made of has cases of its own.
    """
    if self.lhs_scale or self.lhs_quantization:
      return ("out",)
    return ("out", "dlhs", "drhs") if self.has_drhs else ("out", "dlhs")

  @property
  def offset_is_static(self) -> bool:
    """Whether the offset is part of the program."""
    return self.group_offset is not None and self.offset_form in (
      "int",
      "array",
    )

  @property
  def program(self) -> "Case":
    """What a compilation depends on: equal for cases that can share one."""
    offset = self.group_offset
    if offset is not None and not self.offset_is_static:
      offset = 0
    return dataclasses.replace(
      self,
      name="",
      group_sizes=(0,) * self.g_total,
      num_groups=self.g,
      group_offset=offset,
      offset_form="" if offset is None else self.offset_form,
      poison="",
      values="",
    )

  @property
  def program_name(self) -> str:
    """A name that cases share exactly if they share a program."""
    p = self.program
    parts = (
      p.dtypes,
      f"{p.m}x{p.k}x{p.n}",
      "auto" if p.tiling is None else "t" + "x".join(map(str, p.tiling)),
      "T" if p.transpose_rhs else "N",
      f"g{p.g}of{p.g_total}",
      "none" if p.group_offset is None else f"{p.offset_form}{p.group_offset}",
      "add" if p.existing_out else "new",
      *([f"s{p.scale_blocks}"] if p.scale_blocks else []),
      *(["bias"] if p.bias else []),
      *([p.lhs_scale] if p.lhs_scale else []),
      *([f"to_{p.lhs_quantization}"] if p.lhs_quantization else []),
      *(["packed"] if p.packed else []),
      *([p.scale_dtype] if p.scale_blocks or p.bias or p.lhs_scale else []),
      p.chip,
    )
    return "-".join(parts)
