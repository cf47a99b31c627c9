"""Quantised operands: what their products are, move and take."""

import jax.numpy as jnp
import numpy as np
import pytest

from gmm import aot
from gmm.aot.model import plan_for
from gmm.timing import rates, steps
from testing import workloads

SHAPE = {"m": 256, "g": 4, "k": 512, "n": 256}
CLOCK = rates.rates("v6e").clock_hz
W8A8 = {"rhs_dtype": "int8", "scale_block": 512, "lhs_quantization": "int8"}
GIVEN = {"dtype": "int8", "rhs_dtype": "int8", "scale_block": 512}
# Bundles of a product of so many rows in compiled schedules, of whole models'
# weights with one scale for each channel.
SCHEDULES = {
  ("v5e", "int8"): {
    ("qwen3-30b-a3b/wi", 128): 1951,
    ("qwen3-30b-a3b/wi", 144): 2337,
  },
  ("v6e", "int8"): {
    ("gemma4-26b/wi", 1024): 7490,
    ("gemma4-26b/wo", 512): 3099,
    ("qwen3-30b-a3b/wi", 1024): 5287,
    ("pr1220", 512): 7778,
    ("gemma4-26b/wi", 256): 1996,
    ("qwen3-30b-a3b/wi", 144): 951,
  },
  ("tpu7x", "float8_e4m3fn"): {
    ("gemma4-26b/wi", 768): 3720,
    ("gemma4-26b/wo", 768): 3409,
    ("qwen3-30b-a3b/wi", 1024): 3786,
    ("pr1220", 256): 2814,
    ("gemma4-26b/wi", 144): 944,
  },
}


def quantised(name, chip="v6e", dtype="int8"):
  (w,) = (w for w in workloads.WORKLOADS if w.name == name)
  return {
    "m": w.m,
    "g": w.g,
    "k": w.k,
    "n": w.n,
    "chip": chip,
    "rhs_dtype": dtype,
    "scale_block": w.k,
    "lhs_quantization": dtype,
    "tiling": (512, w.k, w.n),
  }


@pytest.mark.parametrize(
  ("mode", "options", "names", "shapes"),
  [
    ("nn", {"lhs_scale": "tensor"}, ("lhs_scale",), [(1, 1)]),
    ("nt", {"lhs_scale": "row"}, ("lhs_scale",), [(256, 1)]),
    ("tn", {"lhs_scale": "channel"}, ("lhs_scale",), [(1, 512)]),
    (
      "tn_t",
      {"lhs_scale": "tensor", "dout_scale": "channel"},
      ("lhs_scale", "dout_scale"),
      [(1, 1), (1, 256)],
    ),
  ],
)
def test_scales_of_operands(mode, options, names, shapes):
  fn, specs = aot.product(mode, **SHAPE, dtype="int8", **options)
  assert fn.args[1][3:] == names
  assert [s.shape for s in specs[3:]] == shapes
  assert {s.dtype for s in specs[3:]} == {jnp.dtype(jnp.float32)}
  problem = plan_for(mode, **SHAPE, dtype="int8", **options).problem
  scales = problem.lhs_scales, problem.dout_scales
  wanted = [max(shape) for shape in shapes] + [0]
  # A transposed result comes of the exchanged product.
  assert scales == tuple(wanted[:2][:: -1 if mode == "tn_t" else 1])


def test_products_run():
  shape = {"m": 16, "g": 2, "k": 128, "n": 256}
  fn, (lhs, rhs, sizes, scale) = aot.product(
    "nn", **shape, **W8A8 | {"scale_block": 128}
  )
  out = fn(
    jnp.full(lhs.shape, 2, lhs.dtype),
    jnp.ones(rhs.shape, rhs.dtype),
    jnp.array([8, 8], sizes.dtype),
    jnp.full(scale.shape, 0.5, scale.dtype),
    interpret=True,
  )
  np.testing.assert_array_equal(out, np.full((16, 256), 128.0))
  fn, (lhs, dout, sizes, *scales) = aot.product(
    "tn", **shape, dtype="int8", lhs_scale="tensor", dout_scale="channel"
  )
  out = fn(
    jnp.ones(lhs.shape, lhs.dtype),
    jnp.ones(dout.shape, dout.dtype),
    jnp.array([8, 8], sizes.dtype),
    *(jnp.full(scale.shape, 0.5, scale.dtype) for scale in scales),
    interpret=True,
  )
  np.testing.assert_array_equal(out, np.full((2, 128, 256), 2.0))


# By hand: an int8 weight with a scale for each column, and rows as they lie.
@pytest.mark.parametrize(
  ("options", "lhs", "scales", "moved"),
  [
    (W8A8, 2, 0, 0),  # quantised on the way: read as bfloat16
    (GIVEN, 1, 0, 0),
    (GIVEN | {"lhs_scale": "tensor"}, 1, 4, 4 * 8 * 512),
    # A step reads 16 rows of 128 scales, for the few that it needs.
    (GIVEN | {"lhs_scale": "row"}, 1, 256 * 4, 4 * 16 * 512),
  ],
)
def test_bytes_of_quantised_rows(options, lhs, scales, moved):
  got = aot.roofline("nn", **SHAPE, **options, out_dtype="bfloat16")
  rest = 256 * 512 * lhs + 256 * 256 * 2 + 4 * 512 * 256 + 4 * 256 * 4
  assert got.bytes == rest + scales
  assert got.dma_bytes == rest + moved


def test_bytes_of_scales_in_tgmm():
  options = {"dtype": "int8", "lhs_scale": "channel", "dout_scale": "tensor"}
  got = aot.roofline("tn", **SHAPE, **options)
  rest = 256 * (512 + 256) + 4 * 512 * 256 * 2
  assert got.bytes == rest + 4 * (512 + 1)
  # Those of lhs in whole registers, that of dout once for each column.
  assert got.dma_bytes == rest + 4 * (8 * 128 + 256)


def test_the_mxu_multiplies_what_lhs_is_quantised_to():
  shape = SHAPE | {"m": 1024, "tiling": (256, 512, 256)}
  wide = aot.roofline("nn", **shape)
  got = aot.roofline("nn", **shape, **W8A8)
  given = aot.roofline("nn", **shape, **GIVEN)
  assert got.peak_flops == given.peak_flops == 2 * wide.peak_flops
  # The quantising takes time, and the MXU none of it.
  assert got.idle_seconds > given.idle_seconds


@pytest.mark.parametrize(("block", "pieces"), [(512, 2), (256, 2), (128, 4)])
def test_each_block_of_k_is_a_product(block, pieces):
  options = W8A8 | {"scale_block": block}
  got = aot.roofline("nn", m=288, g=1, k=512, n=256, **options)
  # Windows of 256 rows and a block: vmatmuls of 32 rows, every 8 cycles, on
  # two MXUs.
  assert got.rows_run == 288
  assert got.mxu_seconds == pytest.approx(9 * 4 * pieces / CLOCK)


def test_blocks_that_registers_do_not_hold():
  # Columns 0 to 192, 192 to 384 and so on: registers 0-1, 1-2, 3-4, 4-5.
  options = W8A8 | {"scale_block": 192}
  plan = plan_for("nn", m=256, g=1, k=768, n=256, **options)
  assert steps.mxu_cycles(plan, 32, 768) == 4 * 4


@pytest.mark.parametrize("chip_and_dtype", SCHEDULES)
def test_bundles_without_a_schedule(chip_and_dtype):
  chip, dtype = chip_and_dtype
  for (name, rows), bundles in SCHEDULES[chip_and_dtype].items():
    plan = plan_for("nn", **quantised(name, chip, dtype))
    like = rates.no_code_like(chip)
    costs = steps.Costs.of(plan, rates.rates(chip), None, like)
    found, _ = costs.nominal(rows, plan.problem.k)
    assert found == pytest.approx(bundles, rel=0.1), (name, rows)


@pytest.mark.parametrize(
  ("mode", "options", "error", "said"),
  [
    ("nn", {"lhs_scale": "channel"}, ValueError, "`lhs_scale` is 'channel' in"),
    ("tn", {"lhs_scale": "row"}, ValueError, "None or one of tensor, channel"),
    (
      "nt",
      {"dout_scale": "tensor"},
      ValueError,
      "`dout_scale` is 'tensor' but",
    ),
    ("tn", {"dout_scale": 1}, ValueError, "`dout_scale` is 1 in mode 'tn'"),
    ("tn", W8A8 | {"scale_block": None}, ValueError, "`lhs_quantization` is"),
    ("nn", {"lhs_scale": "row"}, TypeError, "`lhs` is bfloat16, which is not"),
    ("nn", {"lhs_quantization": "int8"}, ValueError, "`rhs` is bfloat16, and"),
    ("nn", W8A8 | {"lhs_quantization": "int4"}, TypeError, "int4"),
    ("nn", W8A8 | {"dtype": "int8"}, ValueError, "quantised already"),
    ("nt", W8A8 | {"scale_block": 128}, NotImplementedError, "backward"),
  ],
)
@pytest.mark.parametrize("call", [aot.product, aot.roofline])
def test_bad_operands(call, mode, options, error, said):
  with pytest.raises(error, match=said):
    call(mode, **SHAPE, **options)


def test_what_is_no_operand():
  with pytest.raises(TypeError, match="lhs_quantisation"):
    aot.roofline("nn", **SHAPE, lhs_quantisation="int8")


def test_a_chip_that_lacks_the_format():
  with pytest.raises(NotImplementedError, match="of tpu7x does not multiply"):
    aot.roofline("nn", **SHAPE, **W8A8, chip="tpu7x")
