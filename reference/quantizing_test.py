"""One rule of quantisation in NumPy and in jax, as near as it says."""

import jax.numpy as jnp
import numpy as np
import pytest

from gmm import quantization
from reference import quantizing

FORMATS = tuple(quantizing.FORMATS)


def values(rows=24, columns=96, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(
    -3, 3, (rows, 1)
  )
  return x.astype(np.float32)


@pytest.mark.parametrize("dtype", FORMATS)
def test_largest_number_is_the_format_s(dtype):
  assert quantizing.FORMATS[dtype].largest == quantization.largest(
    jnp.dtype(dtype)
  )


@pytest.mark.parametrize("dtype", FORMATS)
def test_rounding_is_that_of_the_format(dtype):
  top = quantizing.FORMATS[dtype].largest
  x = np.linspace(-top, top, 4001, dtype=np.float32)
  x = np.concatenate([x, x * 2.0**-12, x * 2.0**-18])
  got, scale = quantizing.quantize(np.append(x, top), dtype, axis=0)
  want = x.astype(jnp.dtype(dtype)) if "float" in dtype else np.rint(x)
  np.testing.assert_array_equal(got[:-1], want.astype(np.float64))
  assert scale[0] == np.float32(top) * (np.float32(1) / np.float32(top))


@pytest.mark.parametrize("bits16", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
def test_jax_has_the_same_rule(dtype, bits16):
  x = values()
  x[3], x[7] = 0, 1e-40
  if bits16:
    x = x.astype(jnp.bfloat16)
  want, want_scale = quantizing.quantize(x, dtype, axis=1)
  got, scale = quantization.quantize(jnp.asarray(x), jnp.dtype(dtype), 1)
  assert got.dtype == jnp.dtype(dtype)
  got = np.asarray(got.astype(jnp.float32))
  np.testing.assert_array_equal(np.asarray(scale), want_scale[:, :1])
  ties = quantizing.near_ties(x, dtype, axis=1)
  assert np.all(np.abs(got - want) * want_scale <= ties)
  assert np.mean(ties > 0) < 0.1
  assert not np.any(got[[3, 7]])


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_value_is_further_than_half_a_step(dtype):
  x = values(seed=1)
  got, scale = quantizing.quantize(x, dtype, axis=1, block=40)
  error = np.abs(got * scale - x)
  bound = quantizing.half_steps(x, dtype, axis=1, block=40)
  assert np.all(error <= bound)
  assert np.max(error / bound) > 0.8


def test_blocks_have_scales_of_their_own():
  x = values(seed=2)
  got, scale = quantizing.quantize(x, "int8", axis=1, block=40)
  for start in (0, 40, 80):
    at = (slice(None), slice(start, start + 40))
    own = quantizing.quantize(x[at], "int8", axis=1)
    np.testing.assert_array_equal(got[at], own[0])
    np.testing.assert_array_equal(scale[at], own[1])


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_block(dtype, bad):
  x = values()
  x[5, 3] = bad
  got, scale = quantization.quantize(jnp.asarray(x), jnp.dtype(dtype), 1)
  product = np.asarray(got.astype(jnp.float32) * scale)
  assert not np.any(np.isfinite(product[5]))
  others = np.delete(product, 5, 0)
  assert np.all(np.isfinite(others))
