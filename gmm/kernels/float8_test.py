"""Weights of float8 beside bfloat16: every bit pattern, on each chip."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gmm import aot, checks, kernels
from gmm.kernels import chip as chips
from gmm.kernels import float8, tiling

K = 128


def weights(dtype):
  """A weight [1, K, 256] whose columns hold one bit pattern each."""
  bits = np.tile(np.arange(256, dtype=np.uint8), (1, K, 1))
  return lax.bitcast_convert_type(jnp.asarray(bits), jnp.dtype(dtype))


@pytest.mark.parametrize(
  ("chip", "dtype", "transpose_rhs"),
  [
    ("v5e", "float8_e4m3fn", False),  # widened
    ("v6e", "float8_e4m3fn", False),
    ("v6e", "float8_e4m3fn", True),
    ("v6e", "float8_e5m2", True),
    ("tpu7x", "float8_e4m3fn", True),
  ],
)
def test_every_value(chip, dtype, transpose_rhs):
  rhs = weights(dtype)
  # Sums of one value with small integers are exact in float32.
  lhs = 1 + np.arange(8 * K).reshape(8, K) % 7
  got = kernels.gmm_v2(
    lhs.astype(jnp.bfloat16),
    rhs.swapaxes(1, 2) if transpose_rhs else rhs,
    jnp.array([8]),
    transpose_rhs=transpose_rhs,
    preferred_element_type=jnp.float32,
    chip=chip,
    interpret=True,
  )
  values = np.asarray(rhs[0, 0].astype(jnp.float32), np.float64)
  want = lhs.sum(1)[:, None] * values
  np.testing.assert_array_equal(got, want)
  assert np.isnan(got).any()


@pytest.mark.parametrize(
  ("chip", "dtype", "kept"),
  [
    ("v4", "float8_e5m2", False),
    ("v6e", "float8_e4m3fn", True),
    ("tpu7x", "float8_e4m3fn", True),
    ("v6e", "int8", False),
  ],
)
def test_where_it_is_not_widened(chip, dtype, kept):
  _, specs = aot.product("nn", m=16, g=1, k=K, n=256, rhs_dtype=dtype)
  problem = checks.gmm_problem(*specs)
  plan = tiling.make_plan(problem, chips.resolve(chip))
  bfloat16, dtype = jnp.dtype(jnp.bfloat16), jnp.dtype(dtype)
  assert float8.stays_narrow(plan, dtype, bfloat16) == kept
  assert not float8.stays_narrow(plan, dtype, jnp.dtype(jnp.float32))
