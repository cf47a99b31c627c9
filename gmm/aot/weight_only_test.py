"""Weights of few bits: what their products are, and what moves for them."""

import jax.numpy as jnp
import numpy as np
import pytest

from gmm import aot, checks
from gmm.aot.model import plan_for
from gmm.kernels import launch
from gmm.timing import estimate, steps

SHAPE = {"m": 256, "g": 4, "k": 512, "n": 256}
ROWS = 256 * 512 * 2 + 256 * 256 * 2  # of lhs and of the result


@pytest.mark.parametrize(
  ("mode", "axis", "packed", "scale"),
  [
    ("nn", "k", (4, 64, 256), (4, 4, 256)),
    ("nt", "k", (4, 64, 256), (4, 4, 256)),
    ("nt", "n", (4, 512, 32), (4, 2, 512)),
    ("nn", "n", (4, 512, 32), (4, 2, 512)),
  ],
)
def test_products_of_scaled_weights(mode, axis, packed, scale):
  options = {**SHAPE, "scale_block": 128, "scale_axis": axis}
  _, specs = aot.product(mode, **options, rhs_dtype="int8")
  assert [s.shape for s in specs[1:]] == [(4, 512, 256), (4,), scale]
  assert specs[3].dtype == jnp.float32
  _, specs = aot.product(mode, **options, rhs_dtype="int32")
  assert (specs[1].shape, specs[1].dtype) == (packed, jnp.int32)
  problem = plan_for(mode, **options, rhs_dtype="int8").problem
  forward = (mode == "nn") == (axis == "k")
  assert problem.scale_axis == ("k" if forward else "n")
  assert problem.scale_shape == scale


def test_the_product_runs():
  fn, (lhs, rhs, sizes, scale) = aot.product(
    "nt", m=16, g=2, k=128, n=256, rhs_dtype="int8", scale_block=64
  )
  out = fn(
    jnp.ones(lhs.shape, lhs.dtype),
    jnp.ones(rhs.shape, rhs.dtype),
    jnp.array([8, 5], sizes.dtype),
    jnp.full(scale.shape, 0.5, scale.dtype),
    interpret=True,
  )
  np.testing.assert_array_equal(out[:13], np.full((13, 128), 128.0))


@pytest.mark.parametrize(
  ("mode", "more", "said"),
  [
    ("tn", {"scale_block": 128}, "`scale_block` is 128 but mode 'tn'"),
    ("nn", {"scale_block": 100}, "`scale_block` is 100 but k = 512"),
    ("nn", {"scale_block": 0}, "`scale_block` is 0; want"),
    ("nn", {"scale_axis": "m"}, "`scale_axis` is 'm'; want one of k, n"),
    ("nn", {"rhs_dtype": "int32", "k": 500}, "packs 8 values along k, but k"),
  ],
)
@pytest.mark.parametrize("call", [aot.product, aot.roofline])
def test_bad_input(call, mode, more, said):
  with pytest.raises(ValueError, match=said):
    call(mode, **{**SHAPE, "rhs_dtype": "int8", **more})


@pytest.mark.parametrize("call", [aot.product, aot.roofline])
def test_wrong_types(call):
  with pytest.raises(TypeError, match="`scale_block` is True"):
    call("nn", **SHAPE, rhs_dtype="int8", scale_block=True)
  with pytest.raises(TypeError, match="`rhs_dtype` is 'float99'"):
    call("nn", **SHAPE, rhs_dtype="float99")


# By hand: a weight of one group has 512 * 256 elements.
@pytest.mark.parametrize(
  ("rhs_dtype", "weight"),
  [
    ("int8", 512 * 256),
    ("float8_e4m3fn", 512 * 256),
    ("int4", 512 * 256 // 2),
    ("int32", 512 * 256 // 2),
  ],
)
@pytest.mark.parametrize("blocks", [0, 1, 8])
def test_bytes_that_are_read(rhs_dtype, weight, blocks):
  options = {"rhs_dtype": rhs_dtype, "scale_block": None}
  if blocks:
    options["scale_block"] = 512 // blocks
  scales = 4 * blocks * 256 * 4
  for mode in ("nn", "nt"):
    got = aot.roofline(mode, **SHAPE, **options)
    assert got.bytes == ROWS + 4 * weight + scales
    # Groups of 64 rows share no blocks of rows, and nothing here is padded.
    assert got.dma_bytes == got.bytes
    assert 0 < got.dma_share <= 1
    wide = aot.roofline(mode, **SHAPE)
    assert got.seconds < wide.seconds


def test_lanes_of_packed_columns_are_padded():
  # 256 / 8 = 32 words take 128 lanes.
  fn, specs = aot.product("nn", **SHAPE, rhs_dtype="int32", scale_axis="n")
  problem = checks.gmm_problem(*specs, backward=fn.keywords["backward"])
  assert steps.weight_bytes(problem, 512, 256) == 512 * 128 * 4


def test_rows_of_scales_are_padded():
  plan = plan_for("nn", **SHAPE, rhs_dtype="int8", scale_block=512 // 8)
  lanes = 256 * 4
  assert steps.beside_bytes(plan.problem, 512, 256) == 8 * lanes
  plan = plan_for("nn", **SHAPE, rhs_dtype="int8", scale_block=512 // 16)
  assert steps.beside_bytes(plan.problem, 512, 256) == 16 * lanes


def test_padding_of_four_bits():
  # k = 300 in tiles is padded to 320, and n to 64s.
  shape = {"m": 256, "g": 1, "k": 300, "n": 256, "tiling": (256, 128, 128)}
  plan = plan_for("nn", **shape, rhs_dtype="int4", scale_block=300)
  k = plan.problem.k
  assert k == 320
  lhs, scale = 256 * k * 2, 256 * 4
  want = 2 * (lhs + k * 256 // 2 + scale)
  assert estimate._pad_bytes(plan) == want


def test_cost_estimate_of_a_call():
  plan = plan_for("nn", **SHAPE, rhs_dtype="int4", scale_block=128)
  assert launch.bytes_accessed(plan.problem) == (
    ROWS + 4 * 512 * 256 // 2 + 4 * 4 * 256 * 4
  )
