"""Two products in one kernel: what they are, move and take."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from gmm import aot
from gmm.aot.model import plan_for
from gmm.aot.scheduling import Arm, Schedule
from gmm.kernels import launch, pairs
from gmm.timing import rates

SHAPE = {"m": 256, "g": 4, "k": 512, "n": 256}
LHS, OUT, WEIGHT = 256 * 512 * 2, 256 * 256 * 2, 512 * 256 * 2
SCALED = {"rhs_dtype": "int8", "scale_block": 128}
CLOCK = rates.rates("v6e").clock_hz


@pytest.mark.parametrize(
  ("fused", "weights", "scales", "biases"),
  [
    ("gated", [(4, 512, 512)], [(4, 4, 512)], [(4, 512)]),
    ("split", 2 * [(4, 512, 256)], 2 * [(4, 4, 256)], 2 * [(4, 256)]),
  ],
)
def test_operands(fused, weights, scales, biases):
  options = {"fused": fused, "bias": True, **SCALED}
  _, specs = aot.product("nn", **SHAPE, **options)
  wanted = [(256, 512), *weights, (4,), *scales, *biases]
  assert [s.shape for s in specs] == wanted
  problem = plan_for("nn", **SHAPE, **options).problem
  assert (problem.pair, problem.n, problem.has_bias) == (fused, 256, True)


@pytest.mark.parametrize(
  ("fused", "wanted"), [("gated", 128.0**2), ("split", 128.0)]
)
def test_the_product_runs(fused, wanted):
  shape = {"m": 16, "g": 2, "k": 128, "n": 256}
  fn, specs = aot.product("nn", **shape, fused=fused)
  arrays = [
    jnp.ones(s.shape, s.dtype) if len(s.shape) > 1 else jnp.array([8, 8])
    for s in specs
  ]
  outs = fn(*arrays, interpret=True)
  for out in (outs,) if fused == "gated" else outs:
    np.testing.assert_array_equal(out, np.full((16, 256), wanted))


def test_bytes_and_flops():
  plain = aot.roofline("nn", **SHAPE)
  gated = aot.roofline("nn", **SHAPE, fused="gated")
  split = aot.roofline("nn", **SHAPE, fused="split")
  assert gated.flops == split.flops == 2 * plain.flops
  assert gated.bytes == gated.dma_bytes == LHS + OUT + 8 * WEIGHT
  assert split.bytes == split.dma_bytes == LHS + 2 * OUT + 8 * WEIGHT
  scales, biases = 2 * 4 * 4 * 256 * 4, 2 * 4 * 256 * 4
  wanted = LHS + 4 * WEIGHT + scales + biases
  for fused, outs in (("gated", 1), ("split", 2)):
    got = aot.roofline("nn", **SHAPE, fused=fused, bias=True, **SCALED)
    assert got.bytes == got.dma_bytes == wanted + outs * OUT


def test_rows_of_no_group():
  sizes = [128, 0, 0, 0]
  for fused, outs in (("gated", 1), ("split", 2)):
    got = aot.roofline("nn", **SHAPE, fused=fused, group_sizes=sizes)
    assert got.bytes == got.dma_bytes == LHS // 2 + 2 * WEIGHT + outs * OUT


def test_halves_that_do_not_start_on_a_register():
  shape = SHAPE | {"m": 288, "g": 1, "n": 192}
  plan = plan_for("nn", **shape, fused="gated")
  assert pairs.is_wide(plan.problem)
  gated = aot.roofline("nn", **shape, fused="gated")
  split = aot.roofline("nn", **shape, fused="split")
  lhs, out, weight = 288 * 512 * 2, 288 * 256 * 2, 512 * 128 * 2
  # All 384 columns are three registers; twice 192 are four.
  assert gated.dma_bytes == lhs + out + 3 * weight
  assert split.dma_bytes == lhs + 2 * out + 4 * weight


# Pieces of 256 columns: of each half, or of both where they are one tile.
@pytest.mark.parametrize(("n", "pieces"), [(256, 2), (192, 2), (640, 6)])
def test_the_mxu_multiplies_twice(n, pieces):
  shape = {"m": 256, "g": 1, "k": 512, "n": n, "tiling": (256, 512, n)}
  got = aot.roofline("nn", **shape, fused="gated")
  # 16 rows every 8 cycles, on two MXUs, a block more than 256; k in two pieces.
  assert got.mxu_seconds == pytest.approx(17 * 4 * 2 * pieces / CLOCK)


def _schedule(plan, bundles):
  rest = dict.fromkeys((f.name for f in dataclasses.fields(Arm)), 0)
  arms = [
    Arm(**rest | {"rows": rows, "bundles": bundles, "vmatmuls": 1, "depth": 1})
    for rows in plan.products
  ]
  return Schedule(
    kernel=launch.kernel_name(plan),
    chip="v6e",
    operands="bf16",
    bundles=10_000,
    arms=tuple(arms),
    step_bundles=0,
    vmem_bytes=0,
    spill_vmem_bytes=0,
  )


@pytest.mark.parametrize("fused", ["gated", "split"])
def test_with_a_schedule(fused):
  shape = SHAPE | {"m": 256, "g": 1, "tiling": (256, 512, 256)}
  schedule = _schedule(plan_for("nn", **shape, fused=fused), 10**6)
  got = aot.roofline("nn", **shape, fused=fused, schedule=schedule)
  assert got.from_schedule
  computing = got.seconds - got.dma_seconds - rates.CALL_SECONDS
  assert computing == pytest.approx(10**6 / CLOCK)
  with pytest.raises(ValueError, match=f"is of the kernel gmm_v2-nn-{fused}"):
    aot.roofline("nn", **shape, schedule=schedule)


@pytest.mark.parametrize(
  ("mode", "options", "error", "said"),
  [
    ("nn", {"fused": "sum"}, ValueError, "None or one of gated, split"),
    ("nt", {"fused": "gated"}, ValueError, "`fused` is 'gated' in mode 'nt'"),
    ("tn", {"fused": "split"}, ValueError, "`fused` is 'split' in mode 'tn'"),
    ("nn", {"existing_out": True}, ValueError, "`existing_out` is True but"),
    (
      "nn",
      {"lhs_scale": "row"},
      ValueError,
      "`lhs_scale` is 'row' but `fused`",
    ),
    (
      "nn",
      {"lhs_quantization": "int8"},
      ValueError,
      "`lhs_quantization` is 'int8' but `fused` is 'gated'",
    ),
    ("nn", {"dout_scale": "tensor"}, ValueError, "`dout_scale` is 'tensor'"),
    ("nn", {"scale_axis": "n"}, ValueError, "`scale_axis` is 'n' but `fused`"),
    ("nn", SCALED | {"dtype": "int8"}, NotImplementedError, "`lhs` is int8"),
  ],
)
@pytest.mark.parametrize("call", [aot.product, aot.roofline])
def test_bad_input(call, mode, options, error, said):
  with pytest.raises(error, match=said):
    call(mode, **SHAPE, **{"fused": "gated", **options})
