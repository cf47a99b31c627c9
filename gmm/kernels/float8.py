"""Weights of float8 beside bfloat16: multiplied without being widened.

MXUs that multiply no two operands of such a format still take a weight of it
beside bfloat16, and half the bytes are pushed into them. What they know need
not be jax's usual float8_e4m3fn: float8_e4m3b11fnuz has the same bits for a
sixteenth of each value, but for two:

    bits    float8_e4m3fn    float8_e4m3b11fnuz
    80      -0               NaN
    7f, ff  NaN              30, -30
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm.kernels.chip import ChipSpec
from gmm.kernels.plan import Plan

_E4M3FN, _E4M3B11 = "float8_e4m3fn", "float8_e4m3b11fnuz"
# Values of the one are so many times those of the other with the same bits.
_RATIO = np.float32(16)


def stays_narrow(plan: Plan, rhs: np.dtype, compute: np.dtype) -> bool:
  """Whether the MXU takes a weight of float8 as it is, or nearly so."""
  if plan.problem.kind != "gmm" or compute != jnp.bfloat16:
    return False
  return _as_taken(plan.chip, rhs) is not None


def _as_taken(chip: ChipSpec, rhs: np.dtype) -> str | None:
  if rhs.name in chip.beside_bfloat16:
    return rhs.name
  if rhs == _E4M3FN and _E4M3B11 in chip.beside_bfloat16:
    return _E4M3B11
  return None


def narrow(plan: Plan, rhs: jax.Array) -> tuple[jax.Array, np.float32 | None]:
  """A weight as the MXU takes it, and what its products are multiplied by.

  Args:
    plan: the static choices; the weight `stays_narrow`.
    rhs: of float8.

  Returns:
    The weight, and a power of two or None.
  """
  if _as_taken(plan.chip, rhs.dtype) == rhs.dtype.name:
    return rhs, None
  bits = lax.bitcast_convert_type(rhs, np.int8)
  bits = jnp.where(bits == np.int8(-128), np.int8(0), bits)
  is_nan = (bits & np.int8(127)) == np.int8(127)
  bits = jnp.where(is_nan, np.int8(-128), bits)
  return lax.bitcast_convert_type(bits, jnp.dtype(_E4M3B11)), _RATIO
