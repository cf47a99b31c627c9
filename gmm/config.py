"""Static descriptions: what to compute, how, and in which number formats.

Everything here is frozen and hashable, so that it can be a static argument of
a traced function. Nothing here runs an operation or looks at a device.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm import layouts

BACKENDS = ("auto", "pallas", "interpret", "xla")

# (tile_m, tile_k, tile_n) in the terms of the weight: tile_k tiles the weight's
# k axis and tile_n its n axis, whichever product is computed.
Tiling = tuple[int, int, int]


# ---- number formats


@dataclasses.dataclass(frozen=True, kw_only=True)
class DtypeRow:
  """What one operand format can do.

  Attributes:
    name: the dtype's name, such as "bfloat16".
    kind: "float", "float8", "float4" or "int".
    default_out: name of the result dtype where the caller does not choose.
    bits: of one element in memory.
    refused_by_pallas: why the Pallas kernels cannot take it, or None.
  """

  name: str
  kind: str
  default_out: str
  bits: int
  refused_by_pallas: str | None = None


# One row per format: the only place to touch to add one.
_ROWS = (
  DtypeRow(name="bfloat16", kind="float", default_out="bfloat16", bits=16),
  DtypeRow(name="float32", kind="float", default_out="float32", bits=32),
  DtypeRow(
    name="float16",
    kind="float",
    default_out="float16",
    bits=16,
    refused_by_pallas=(
      "the TPU has no float16 arithmetic; use bfloat16, or backend='xla'"
    ),
  ),
  DtypeRow(name="float8_e4m3fn", kind="float8", default_out="bfloat16", bits=8),
  DtypeRow(name="float8_e5m2", kind="float8", default_out="bfloat16", bits=8),
  DtypeRow(name="int8", kind="int", default_out="int32", bits=8),
  # Formats of 4 bits are for weights alone: `rhs` of gmm.
  DtypeRow(name="float4_e2m1fn", kind="float4", default_out="bfloat16", bits=4),
  DtypeRow(name="int4", kind="int", default_out="int32", bits=4),
)
DTYPES: Mapping[np.dtype, DtypeRow] = {jnp.dtype(r.name): r for r in _ROWS}


def bits(dtype: np.dtype) -> int:
  """Bits of one element in memory: 4-bit formats are packed."""
  row = DTYPES.get(dtype)
  return 8 * dtype.itemsize if row is None else row.bits


_FLOAT_RESULTS = tuple(r.name for r in _ROWS if r.kind in ("float", "float8"))
# Weights that `rhs_scale` may be given for, and what it may be.
QUANTIZED = tuple(r.name for r in _ROWS if r.kind != "float")
SCALES = ("float32", "bfloat16")
# An int32 sum is rounded once to a float; a narrower integer would overflow.
_INT_RESULTS = ("int32", "float32", "bfloat16", "float16")


def acc_dtype(lhs: np.dtype, rhs: np.dtype) -> np.dtype:
  """int32 when both operands are integers, else float32."""
  kinds = {DTYPES[lhs].kind, DTYPES[rhs].kind}
  return jnp.dtype(jnp.int32 if kinds == {"int"} else jnp.float32)


def compute_dtype(lhs: np.dtype, rhs: np.dtype) -> np.dtype:
  """The format both operands are widened to before they are multiplied.

  It holds every value of both exactly. (A chip whose matrix unit lacks it
  widens further, to bfloat16: that is for the kernels to know.)
  """
  if lhs == rhs:
    return lhs
  wide = {d for d in (lhs, rhs) if DTYPES[d].kind == "float"}
  if len(wide) == 2:
    return jnp.dtype(jnp.float32)  # neither 16-bit float holds the other
  if len(wide) == 1:
    return wide.pop()
  if acc_dtype(lhs, rhs) == jnp.int32:
    return jnp.dtype(jnp.int8)
  return jnp.dtype(jnp.bfloat16)  # holds int8 and all narrower floats


def default_result_dtype(lhs: np.dtype, rhs: np.dtype) -> np.dtype:
  """The result's dtype where `preferred_element_type` is None."""
  if DTYPES[lhs].kind == "int" and acc_dtype(lhs, rhs) != jnp.int32:
    return compute_dtype(lhs, rhs)  # integers times floats are floats
  return jnp.dtype(DTYPES[lhs].default_out)


def result_dtypes(acc: np.dtype) -> tuple[str, ...]:
  """Names of the dtypes that a sum in `acc` may be rounded to."""
  return _INT_RESULTS if acc == jnp.int32 else _FLOAT_RESULTS


# Values of 4 bits that an int32 holds.
PACKED = 8


# ---- the problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """One product, fully described, in the terms of the call itself.

  kind "gmm":  lhs [m, k], rhs [g, k, n] or [g, n, k] -> [m, n]
  kind "tgmm": lhs [m, k], dout [m, n]                -> [g, k, n] or [g, n, k]

  Attributes:
    kind: "gmm" or "tgmm".
    m: rows of lhs.
    k: columns of lhs.
    n: columns of the result (gmm) or of dout (tgmm).
    g: local groups, those that have a weight here.
    g_total: length of group_sizes.
    lhs_dtype: dtype of lhs.
    rhs_dtype: dtype of rhs, or of dout.
    out_dtype: dtype of the result.
    acc_dtype: float32, or int32 for integer operands.
    compute_dtype: both operands are widened to this one.
    precision: hand this to every dot; the ambient default is already in it.
    transpose_rhs: gmm only, rhs is [g, n, k].
    transpose_out: tgmm only, the result is [g, n, k].
    has_existing: gmm only, existing_out is added to the product.
    scale_block: gmm only, how many elements along `scale_axis` share one scale
      of the weight; 0 for none.
    scale_axis: "k" or "n". The scale is [g, k blocks, n], or [g, n blocks, k]
      as in dlhs, where the call's k and n are the forward product's n and k.
    scale_dtype: dtype of the scale; None for none.
    has_bias: gmm only, a bias [g, n] is added to rows of local groups.
    packed_axis: gmm only, "k" or "n" for int4 weights of which an int32 holds
      eight along that axis, the first one in the low bits; "" for others.
    pair: gmm only, two products of weights that have one shape in one kernel:
      "gated": rhs [g, k, 2n] or [g, 2n, k] is gate and up; -> act(gate) * up
      "split": lhs times each of two weights; -> both results
      "sum": each of two lhs times its own weight; -> their sum
  """

  kind: str
  m: int
  k: int
  n: int
  g: int
  g_total: int
  lhs_dtype: np.dtype
  rhs_dtype: np.dtype
  out_dtype: np.dtype
  acc_dtype: np.dtype
  compute_dtype: np.dtype
  precision: lax.Precision | None = None
  transpose_rhs: bool = False
  transpose_out: bool = False
  has_existing: bool = False
  scale_block: int = 0
  scale_axis: str = "k"
  scale_dtype: np.dtype | None = None
  has_bias: bool = False
  packed_axis: str = ""
  pair: str | None = None

  @property
  def scale_shape(self) -> tuple[int, ...] | None:
    """Shape of the weight's scale."""
    if not self.scale_block:
      return None
    blocked, other = self.k, self.n
    if self.scale_axis == "n":
      blocked, other = other, blocked
    return (self.g, -(-blocked // self.scale_block), other)

  @property
  def out_shape(self) -> tuple[int, ...]:
    """Shape of the result."""
    if self.kind == "gmm":
      return (self.m, self.n)
    if self.transpose_out:
      return (self.g, self.n, self.k)
    return (self.g, self.k, self.n)

  @property
  def weight_shape(self) -> tuple[int, ...]:
    """Shape of the weight: what gmm reads, what tgmm returns."""
    if self.kind == "tgmm":
      return self.out_shape
    n = 2 * self.n if self.pair == "gated" else self.n
    if self.transpose_rhs:
      return (self.g, n, self.k)
    return (self.g, self.k, n)

  @property
  def weight_dtype(self) -> np.dtype:
    """Dtype of the weight."""
    return self.out_dtype if self.kind == "tgmm" else self.rhs_dtype

  @property
  def is_empty(self) -> bool:
    """True when there is nothing to add up: the product is zeros."""
    if 0 in (self.m, self.n, self.g):
      return True
    return self.k == 0 and not self.has_bias


# ---- the caller's choices


def checked_tiling(name: str, tiling: Any) -> Tiling | None:
  """Returns `tiling` as three positive ints, or None; raises naming `name`."""
  wanted = "(tile_m, tile_k, tile_n), three positive ints"
  if tiling is None:
    return None
  if not isinstance(tiling, (tuple, list)):
    raise TypeError(f"`{name}` is {tiling!r}; want None or {wanted}")
  if len(tiling) != 3:
    raise ValueError(
      f"`{name}` = {tiling!r} has {len(tiling)} entries; want {wanted}"
    )
  sizes = []
  for tile in tiling:
    try:
      if isinstance(tile, (bool, np.bool_)):
        raise TypeError
      sizes.append(operator.index(tile))
    except TypeError:
      raise TypeError(
        f"`{name}` = {tiling!r} holds {tile!r}; want {wanted}"
      ) from None
  if min(sizes) < 1:
    raise ValueError(f"`{name}` = {tiling!r}; want {wanted}")
  return (sizes[0], sizes[1], sizes[2])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
  """Tile sizes for each of the three products; None means "choose".

  Each is (tile_m, tile_k, tile_n) in the weight's terms: tile_k tiles the
  weight's k axis and tile_n its n axis, also in dlhs, which contracts n.

  Attributes:
    fwd: for the forward product.
    dlhs: for the gradient of lhs.
    drhs: for the gradient of rhs.
  """

  fwd: Tiling | None = None
  dlhs: Tiling | None = None
  drhs: Tiling | None = None

  def __post_init__(self) -> None:
    """Checks each tiling."""
    for field in dataclasses.fields(self):
      checked = checked_tiling(
        f"tiling.{field.name}", getattr(self, field.name)
      )
      object.__setattr__(self, field.name, checked)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """How to compute: flags choose an implementation, never another result.

  Attributes:
    backend: "auto" (the Pallas kernels where the program is lowered for TPU,
      XLA elsewhere), "pallas", "interpret" (the same kernels, interpreted on
      any machine) or "xla".
    chip: the TPU generation that tiles are chosen for, such as "v6e". None:
      the abstract mesh's, else the attached one, else v6e.
    use_gmm_v2: False means the XLA backend, on every platform.
    use_gmm_v2_transposed_rhs_dlhs: True computes dlhs from the weight in place;
      False from an explicit transposed copy of a [g, k, n] weight; None is as
      `use_gmm_v2`. (A [g, n, k] weight needs no transpose either way.)
    tiling: None, one (tile_m, tile_k, tile_n) for all products, or `Tiles`.
    rhs_layout: how the weight lies in a TPU's memory: "gkn" with n in the
      lanes, "gnk" with k. The kernels read and write it as it lies, so that
      nothing is copied: for "gnk" all three products are the mirror image.
      "auto" is what XLA does with an entry parameter (or a weight in a stack of
      them) of that shape: row-major unless the other order pads less. Name it
      where yours lies otherwise, as behind an all-gather of shards that have
      another shape. Of no effect on the XLA backend.

  Raises:
    ValueError: an unknown backend, chip or layout, or keys that contradict each
      other.
    TypeError: a value of the wrong type.
  """

  backend: str = "auto"
  chip: str | None = None
  use_gmm_v2: bool = True
  use_gmm_v2_transposed_rhs_dlhs: bool | None = None
  tiling: Tiling | Tiles | None = None
  rhs_layout: str = "auto"

  def __post_init__(self) -> None:
    """Checks each key, and that they do not contradict each other."""
    if self.backend not in BACKENDS:
      raise ValueError(f"`backend` is {self.backend!r}; want one of {BACKENDS}")
    _check_flag("use_gmm_v2", self.use_gmm_v2)
    if self.use_gmm_v2_transposed_rhs_dlhs is not None:
      _check_flag(
        "use_gmm_v2_transposed_rhs_dlhs", self.use_gmm_v2_transposed_rhs_dlhs
      )
    if self.use_gmm_v2_transposed_rhs_dlhs and not self.use_gmm_v2:
      raise ValueError(
        "use_gmm_v2_transposed_rhs_dlhs=True contradicts use_gmm_v2=False: "
        "only gmm_v2 reads the weight in place; drop one of the two"
      )
    if not self.use_gmm_v2 and self.backend in ("pallas", "interpret"):
      raise ValueError(
        f"backend={self.backend!r} contradicts use_gmm_v2=False, which means "
        "backend='xla'; drop one of the two"
      )
    if self.rhs_layout not in layouts.RHS_LAYOUTS:
      raise ValueError(
        f"`rhs_layout` is {self.rhs_layout!r}; want one of "
        f"{layouts.RHS_LAYOUTS}"
      )
    if not isinstance(self.tiling, Tiles):
      object.__setattr__(self, "tiling", checked_tiling("tiling", self.tiling))
    if self.chip is not None:
      # Imported here because the kernels import this module.
      from gmm.kernels import chip as chips

      chips.resolve(self.chip)

  @property
  def effective_backend(self) -> str:
    """The backend, with `use_gmm_v2` taken into account."""
    return self.backend if self.use_gmm_v2 else "xla"

  @property
  def dlhs_in_place(self) -> bool:
    """Whether dlhs reads a [g, k, n] weight without transposing it."""
    if self.use_gmm_v2_transposed_rhs_dlhs is None:
      return self.use_gmm_v2
    return self.use_gmm_v2_transposed_rhs_dlhs

  @property
  def tiles(self) -> Tiles:
    """The tiling of each product, in the weight's terms."""
    if isinstance(self.tiling, Tiles):
      return self.tiling
    return Tiles(fwd=self.tiling, dlhs=self.tiling, drhs=self.tiling)

  @classmethod
  def from_keys(cls, keys: Mapping[str, Any]) -> Config:
    """Reads a trainer's keys; keys that are not ours are ignored.

    Args:
      keys: may hold `use_gmm_v2`, `use_gmm_v2_transposed_rhs_dlhs`,
        `moe_gmm_v2_dlhs_transpose_rhs` (another name for the same) and
        `quantization`. Flags are bools, None (the default), or the strings
        "true", "false", "" and "none" in any case, as command lines give them.

    Returns:
      The Config. Use `dataclasses.replace` for what trainers have no key for.

    Raises:
      ValueError: keys contradict each other, or a string is no flag.
      TypeError: `keys` is no mapping, or a flag neither a bool nor a string.
      NotImplementedError: `quantization` asks for quantised weights.
    """
    if not isinstance(keys, Mapping):
      raise TypeError(
        f"`keys` is a {type(keys).__name__}; want a mapping of a trainer's "
        "keys, a dict for one"
      )
    _refuse_quantization(keys.get("quantization"))
    use = _flag_of_key(keys, "use_gmm_v2")
    names = (
      "use_gmm_v2_transposed_rhs_dlhs",
      "moe_gmm_v2_dlhs_transpose_rhs",
    )
    given = {n: f for n in names if (f := _flag_of_key(keys, n)) is not None}
    if len(set(given.values())) > 1:
      said = " and ".join(f"{n}={f}" for n, f in given.items())
      raise ValueError(
        f"{said} contradict each other: they are two names of "
        "one flag; drop one of the two"
      )
    in_place = next(iter(given.values()), None)
    if in_place and use is False:
      said = " and ".join(f"{n}=True" for n in given)
      raise ValueError(
        f"{said} contradicts use_gmm_v2=False: only gmm_v2 "
        "reads the weight in place; drop one of the two"
      )
    return cls(
      use_gmm_v2=True if use is None else use,
      use_gmm_v2_transposed_rhs_dlhs=in_place,
    )


def _check_flag(name: str, value: Any) -> None:
  if not isinstance(value, bool):
    raise TypeError(f"`{name}` is {value!r}; want True or False")


def _flag_of_key(keys: Mapping[str, Any], name: str) -> bool | None:
  value = keys.get(name)
  if isinstance(value, str):
    words = {"true": True, "false": False, "": None, "none": None}
    if value.lower() not in words:
      raise ValueError(f"`{name}` is {value!r}; want true or false")
    return words[value.lower()]
  if value is not None:
    _check_flag(name, value)
  return value


def _refuse_quantization(value: Any) -> None:
  if value is None or value is False:
    return
  if isinstance(value, str) and value.lower() in ("", "none", "false"):
    return
  raise NotImplementedError(
    f"`quantization` is {value!r}, but operands are not quantised on the way "
    "yet; leave the key out, or set it to None or '' (weights that are "
    "quantised already go with `rhs_scale`)"
  )
