"""Transposing 8-bit operands in VMEM, for less than the compiler takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from gmm.kernels.grid import LANES
from gmm.kernels.plan import FEW_ROWS, Plan

# Rows of 8 bits that lie in one word of 32 bits.
_WORD = 4


def turns_weight(plan: Plan, lhs: jax.Array, rhs: jax.Array) -> bool:
  """Whether few rows of NT meet a weight that is transposed before."""
  few = plan.turns_weight and lhs.shape[0] <= FEW_ROWS + plan.block
  whole = not any(size % LANES for size in rhs.shape)
  return few and whole and rhs.dtype == np.int8


def transposed_bytes(x: jax.Array) -> jax.Array:
  """int8 transposed as 8 bits each; as integers they would be widened first."""
  x = lax.bitcast_convert_type(x, jnp.float8_e5m2).T
  return lax.bitcast_convert_type(x, np.int8)


def turns_words(plan: Plan, lhs: jax.Array, rhs: jax.Array) -> bool:
  """Whether TN, which contracts rows, is a product of `transposed_words`."""
  return (
    lhs.dtype == rhs.dtype == plan.compute_dtype == np.int8
    and lhs.shape[0] % (_WORD * LANES) == 0
  )


def transposed_words(
  lhs: jax.Array, rhs: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Operands whose product is that of lhs^T and rhs, rows in another order.

  A word holds four rows. Transposed as words, lhs takes half of the XLU's
  results that it takes as bytes; the first byte of each word is then every
  fourth row, and so it is in rhs without transposing. Sums of integers are the
  same in any order.

  Args:
    lhs: int8 [rows, k], rows a multiple of 512.
    rhs: int8 [rows, n].

  Returns:
    int8 [k, rows] and [rows, n].
  """
  columns = _bytes(pltpu.bitcast(lhs, np.int32).T)
  rows = _bytes(pltpu.bitcast(rhs, np.int32))
  return jnp.concatenate(columns, axis=1), jnp.concatenate(rows, axis=0)


def _bytes(words: jax.Array) -> list[jax.Array]:
  """Each of the four bytes of int32 words, lowest first."""
  parts = [words]
  for i in range(1, _WORD):
    parts.append(lax.shift_right_logical(words, jnp.full_like(words, 8 * i)))
  # Truncated, as a conversion of integers is.
  return [part.astype(np.int8) for part in parts]
