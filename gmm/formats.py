"""Number formats: what operands, sums and results may be.

Nothing here runs an operation or looks at a device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np


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
