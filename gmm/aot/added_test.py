"""A bias, and a result that is added to what there is: what they move."""

import jax.numpy as jnp
import numpy as np
import pytest

from gmm import aot
from gmm.aot.model import plan_for

SHAPE = {"m": 256, "g": 4, "k": 512, "n": 256}
LHS, OUT, WEIGHT = 256 * 512 * 2, 256 * 256 * 2, 512 * 256 * 2


@pytest.mark.parametrize(("mode", "columns"), [("nn", 256), ("nt", 512)])
def test_products_that_add(mode, columns):
  options = {"bias": True, "existing_out": True}
  _, specs = aot.product(mode, **SHAPE, **options)
  bias, existing = specs[3:]
  assert (bias.shape, bias.dtype) == ((4, columns), jnp.float32)
  assert (existing.shape, existing.dtype) == ((256, columns), jnp.bfloat16)
  wide = {"preferred_element_type": jnp.float32}
  _, specs = aot.product(mode, **SHAPE, **options, **wide)
  assert specs[4].dtype == jnp.float32
  problem = plan_for(mode, **SHAPE, **options).problem
  assert problem.has_bias
  assert problem.has_existing


def test_the_product_runs():
  shape = {"m": 16, "g": 2, "k": 128, "n": 256}
  fn, (lhs, rhs, sizes, bias, existing) = aot.product(
    "nn", **shape, bias=True, existing_out=True
  )
  out = fn(
    jnp.ones(lhs.shape, lhs.dtype),
    jnp.ones(rhs.shape, rhs.dtype),
    jnp.array([8, 5], sizes.dtype),
    jnp.full(bias.shape, 2, bias.dtype),
    jnp.full(existing.shape, 4, existing.dtype),
    interpret=True,
  )
  np.testing.assert_array_equal(out[:13], np.full((13, 256), 134.0))
  np.testing.assert_array_equal(out[13:], np.full((3, 256), 4.0))


def test_bytes_of_a_bias():
  got = aot.roofline("nn", **SHAPE, bias=True)
  assert got.bytes == got.dma_bytes == LHS + OUT + 4 * WEIGHT + 4 * 256 * 4
  some = aot.roofline("nn", **SHAPE, bias=True, group_sizes=[0, 128, 128, 0])
  assert some.bytes == LHS + OUT + 2 * WEIGHT + 2 * 256 * 4


def test_bytes_of_what_exists():
  got = aot.roofline("nn", **SHAPE, existing_out=True)
  assert got.bytes == got.dma_bytes == LHS + 2 * OUT + 4 * WEIGHT
  assert got.dma_seconds > aot.roofline("nn", **SHAPE).dma_seconds
  # Rows of no group stay as they are: neither read nor written.
  half = aot.roofline(
    "nn", **SHAPE, existing_out=True, group_sizes=[128, 0, 0, 0]
  )
  assert half.bytes == half.dma_bytes == LHS // 2 + OUT + WEIGHT


def test_padding_of_what_exists():
  # 300 columns in tiles are padded to 320: what exists before, and the result.
  shape = {"m": 256, "g": 1, "k": 256, "n": 300, "tiling": (256, 256, 128)}
  plain = aot.roofline("nn", **shape)
  got = aot.roofline("nn", **shape, existing_out=True)
  rows = 256 * 3 * 128 * 2  # in whole lanes
  assert got.dma_bytes - plain.dma_bytes == rows + 2 * 256 * 320 * 2


@pytest.mark.parametrize(
  ("mode", "options", "error", "said"),
  [
    ("tn", {"bias": True}, ValueError, "`bias` is True but mode 'tn' takes no"),
    ("tn_t", {"existing_out": True}, ValueError, "`existing_out` is True but"),
    ("nn", {"bias": 1}, TypeError, "`bias` is 1; want True or False"),
    ("nt", {"existing_out": None}, TypeError, "`existing_out` is None"),
    ("nn", {"bias": True, "dtype": "int8"}, TypeError, "rhs_bias"),
  ],
)
@pytest.mark.parametrize("call", [aot.product, aot.roofline])
def test_bad_input(call, mode, options, error, said):
  with pytest.raises(error, match=said):
    call(mode, **SHAPE, **options)
