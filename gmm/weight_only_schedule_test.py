"""Products of quantised operands, by the TPU compiler's own schedule.

Decoding waits for the weight's bytes: a group of a few rows takes as long as
its weight. With each weight of 8 bits, a step's bundles, a cycle each, are to
take no longer than what brings the next weight, within 15%. In training, with 8
bits on both sides, the MXU is to be busy for 85% of a full product. Nothing has
run.
"""

import pytest

from gmm import aot
from gmm.aot.model import plan_for
from gmm.kernels import vmem
from gmm.timing import rates
from testing import aot_checks, workloads

BOUND = 0.85


@pytest.fixture(scope="module")
def compile_program():
  with aot.scheduler(timeout=600) as compile_one:
    yield compile_one


def shape_of(name):
  (w,) = (w for w in workloads.WORKLOADS if w.name == name)
  return {"m": w.m, "g": w.g, "k": w.k, "n": w.n}


@pytest.mark.parametrize(
  ("chip", "mode", "rhs_dtype", "axis"),
  [
    ("v5e", "nt", "int8", "n"),
    ("v6e", "nn", "float8_e4m3fn", "k"),
    ("v6e", "nt", "float8_e4m3fn", "n"),
    ("v6e", "nt", "int8", "k"),
    ("tpu7x", "nn", "int8", "k"),
    ("tpu7x", "nt", "float8_e4m3fn", "n"),
    ("tpu7x", "nt", "int8", "n"),
  ],
)
def test_the_weight_is_what_takes_time(
  chip, mode, rhs_dtype, axis, compile_program
):
  shape = shape_of("decode-qwen3-30b/wi")
  options = {
    **shape,
    "chip": chip,
    "rhs_dtype": rhs_dtype,
    "scale_axis": axis,
    "scale_block": shape[axis],  # one scale for each channel
  }
  fn, specs = aot.product(mode, **options)
  compiled = compile_program(fn, *specs, chip=chip)
  (schedule,) = compiled.schedules
  assert not aot.weight_copies(compiled.hlo, min_bytes=1 << 20, chip=chip)
  # The first arm is the one that a group of 8 rows takes.
  cycles = schedule.arms[0].cycles + schedule.step_bundles
  model = aot.roofline(mode, **options, schedule=schedule)
  steps = model.steps / rates.rates(chip).num_cores
  computing = steps * cycles / rates.rates(chip).clock_hz
  moving = model.dma_share * model.seconds
  found = f"computes for {computing * 1e6:.0f} us, moves {moving * 1e6:.0f} us"
  assert moving >= BOUND * computing, found
  if chip != "tpu7x":  # whose cores the model takes to stall for a third
    assert model.dma_share >= BOUND, found


@pytest.mark.parametrize(
  ("chip", "lhs"),
  [
    ("v6e", {"dtype": "int8", "lhs_scale": "row"}),
    ("tpu7x", {"lhs_quantization": "float8_e4m3fn"}),
  ],
)
def test_the_mxu_is_busy_with_8_bits_on_both_sides(chip, lhs, compile_program):
  shape = shape_of("qwen3-30b-a3b/wi")
  rhs_dtype = lhs.get("lhs_quantization", "int8")
  options = {"rhs_dtype": rhs_dtype, "scale_block": shape["k"], "chip": chip}
  fn, specs = aot.product("nn", **shape, **lhs, **options)
  (schedule,) = compile_program(fn, *specs, chip=chip).schedules
  assert schedule.arms[0].mxu_busy >= BOUND
  plan = plan_for("nn", **shape, **lhs, **options)
  assert vmem.estimate(plan) == pytest.approx(schedule.vmem_bytes, rel=0.1)


@pytest.mark.parametrize(("mode", "axis"), [("nn", "k"), ("nt", "n")])
def test_code_does_not_grow_with_blocks(mode, axis, compile_program):
  shape = {"m": 128, "g": 4, "k": 1536, "n": 1536, "chip": "v6e"}
  found = []
  for block in (128, 16):
    options = {"rhs_dtype": "int8", "scale_axis": axis, "scale_block": block}
    fn, specs = aot.product(mode, **shape, **options)
    compiled = compile_program(fn, *specs, chip="v6e")
    found.append(compiled.schedules[0].bundles)
  # Eight times the blocks.
  assert found[1] < 2 * found[0], found


def test_code_does_not_grow_with_blocks_of_quantised_rows(compile_program):
  shape = {"m": 128, "g": 4, "k": 1024, "n": 512, "chip": "v6e"}
  options = shape | {"rhs_dtype": "int8", "lhs_quantization": "int8"}
  found = []
  for block in (64, 16):
    fn, specs = aot.product("nn", **options, scale_block=block)
    (schedule,) = compile_program(fn, *specs, chip="v6e").schedules
    found.append(schedule.bundles)
    plan = plan_for("nn", **options, scale_block=block)
    assert schedule.vmem_bytes <= vmem.needed(plan)
    estimate = vmem.estimate(plan)
    slack = 0.1 * estimate + aot_checks.SLACK_BYTES
    assert abs(schedule.vmem_bytes - estimate) <= slack
  # Four times the blocks.
  assert found[1] < 1.2 * found[0], found
