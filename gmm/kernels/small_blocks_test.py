"""Which way small blocks of scales go, and how often each stretch runs."""

import pytest

from gmm.aot.model import plan_for, roofline
from gmm.aot.scheduling import Arm, Schedule
from gmm.kernels import launch, small_blocks
from gmm.timing import rates, steps

SHAPE = {"m": 64, "g": 4, "k": 2880, "n": 2880, "chip": "v6e"}
FIELDS = dict.fromkeys(Arm.__dataclass_fields__, 0)


# Whole tiles of 2880: 5 pieces of 512 and one of 320; 11 turns of 8 blocks of
# 32 and one of 2 blocks, for each of 6 pieces.
@pytest.mark.parametrize(
  ("mode", "axis", "block", "rhs_dtype", "scaled", "turns"),
  [
    ("nn", "k", 32, "int8", True, (5, 1)),
    ("nt", "k", 32, "int8", True, (5, 1)),
    ("nt", "n", 32, "int8", False, (11, 1) * 6),
    ("nn", "n", 32, "int8", False, (11, 1)),
    ("nt", "n", 32, "int32", True, (5, 1)),  # turned round
    ("nn", "k", 96, "float8_e5m2", True, (5, 1)),
    ("nn", "k", 2880, "int8", False, (1,)),
    ("nn", "k", 720, "int8", False, (1,)),
    ("nn", "k", 36, "int8", False, (2, 1) * 6),  # no whole registers of rows
  ],
)
def test_ways(mode, axis, block, rhs_dtype, scaled, turns):
  plan = plan_for(
    mode,
    **SHAPE,
    rhs_dtype=rhs_dtype,
    scale_block=block,
    scale_axis=axis,
    tiling=(64, 2880, 2880),
  )
  assert small_blocks.scales_weight(plan) == scaled
  assert small_blocks.arm_turns(plan) == turns


def test_a_tile_that_starts_within_a_register_of_scales():
  options = {"rhs_dtype": "int8", "scale_block": 96}
  plan = plan_for("nn", **SHAPE, **options, tiling=(64, 384, 2880))
  assert not small_blocks.scales_weight(plan)  # 4 of 30 blocks in a tile
  options["scale_block"] = 48
  plan = plan_for("nn", **SHAPE | {"k": 2304}, **options, tiling=(64, 384, 512))
  assert small_blocks.scales_weight(plan)  # 8 of 48


def test_what_a_schedule_of_loops_takes():
  options = {**SHAPE, "rhs_dtype": "int8", "scale_block": 32}
  options["tiling"] = (64, 2880, 2880)
  plan = plan_for("nn", **options)
  (rows,) = plan.products
  arms = [
    Arm(**FIELDS | {"rows": rows, "vmatmuls": 1, "bundles": bundles})
    for bundles in (10_000, 3)
  ]
  schedule = Schedule(
    kernel=launch.kernel_name(plan),
    chip="v6e",
    operands="bf16",
    bundles=20_000,
    arms=tuple(arms),
    step_bundles=0,
    vmem_bytes=0,
    spill_vmem_bytes=0,
  )
  costs = steps.Costs.of(plan, rates.rates("v6e"), schedule, rates.NO_CODE)
  assert costs.product(0, 2880)[0] == 5 * 10_000 + 3
  computing = 4 * 50_003 / rates.rates("v6e").clock_hz
  assert roofline("nn", **options, schedule=schedule).seconds > computing
  with pytest.raises(ValueError, match="no arm"):
    short = Schedule(**{**vars(schedule), "arms": schedule.arms[:1]})
    roofline("nn", **options, schedule=short)
