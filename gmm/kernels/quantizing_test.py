"""Rows that are quantised on the way: their plan, and chunks of them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import checks, kernels
from gmm.aot.scheduling import Arm, Schedule
from gmm.kernels import chip as chips
from gmm.kernels import launch, quantizing, small_blocks, tiling
from gmm.timing import rates, steps
from testing import compiling, races


def plan_for(k, block, tiles, *, scale_dtype="float32", n=512):
  """A plan for rows that become int8, on v6e."""
  shape, spec = (4, k // block, n), jax.ShapeDtypeStruct
  problem = checks.gmm_problem(
    spec((512, k), jnp.bfloat16),
    spec((4, k, n), jnp.int8),
    spec((4,), jnp.int32),
    rhs_scale=spec(shape, scale_dtype),
    lhs_quantization="int8",
  )
  return tiling.make_plan(problem, chips.resolve("v6e"), tiles)


@pytest.mark.parametrize(
  ("k", "block", "products"),
  [
    (2048, 2048, 8),  # whole depths of the MXU
    (1920, 384, 10),
    (2048, 128, 16),
    (2048, 32, 64),
    (1920, 240, 14),  # 6 of 8 blocks meet three registers of lanes
  ],
)
def test_each_block_is_a_product_of_its_own(k, block, products):
  plan = plan_for(k, block, (256, k, 512))
  # 8 registers of 32 rows, 2 tiles of 256 columns.
  want = rates.mxu_cycles("v6e", "s8", 8 * 2 * products)
  assert steps.mxu_cycles(plan, 256, plan.tile_k) == want


# One scale of float32 in each of 8 rows; 16 of bfloat16.
@pytest.mark.parametrize(
  ("k", "block", "tile_k", "options", "turn"),
  [
    (2048, 32, 2048, {}, 256),
    (2048, 128, 2048, {}, 1024),
    (2048, 128, 2048, {"scale_dtype": "bfloat16"}, 0),  # all in one turn
    (4096, 128, 4096, {"scale_dtype": "bfloat16"}, 2048),
    (1152, 48, 1152, {}, 384),
    (1088, 32, 1088, {}, 256),  # 4 turns and 2 blocks
    (1024, 1024, 1024, {}, 0),
    (2560, 32, 1000, {}, 256),  # rounded up: tiles of 1024, 1024 and 512
    (2560, 32, 128, {}, 256),  # to 256
    (512, 32, 256, {}, 256),
    (256, 32, 256, {}, 0),
    (1088, 32, 512, {}, 0),  # the last tile is no whole turn
  ],
)
def test_turns(k, block, tile_k, options, turn):
  plan = plan_for(k, block, (256, tile_k, 512), **options)
  assert plan.turn == turn
  if turn:
    # A turn's blocks, each in one or two registers of its own.
    _, columns = quantizing.scratch_shape(plan)
    assert turn // block * 128 <= columns <= turn // block * 256
    whole, *rest = small_blocks.arm_turns(plan)
    assert whole == plan.tile_k // turn
    assert rest == [1] * (plan.tile_k % turn > 0)
    assert small_blocks.arm_turns(plan, plan.k.last)[0] == plan.k.last // turn


def test_a_turn_is_of_few_bundles(monkeypatch):
  tiles = (256, 2048, 1024)
  assert plan_for(2048, 128, tiles, n=1024).parts == 1
  monkeypatch.setattr(tiling, "MOST_BUNDLES_OF_TURN", 1500)
  assert plan_for(2048, 128, tiles, n=1024).parts == 2


def arm(depth, rows, bundles):
  fields = dict.fromkeys(Arm.__dataclass_fields__, 0)
  more = {"vmatmuls": rows, "mxu_cycles": rows}
  return Arm(
    **fields | more | {"depth": depth, "rows": rows, "bundles": bundles}
  )


def test_what_a_schedule_of_turns_takes():
  # 4 turns of two parts, and 2 blocks more; a result is stored by itself.
  plan = plan_for(1088, 32, (256, 1088, 512))
  assert plan.products == (144, 272)
  plan = dataclasses.replace(plan, parts=2)
  arms = [arm(2, 0, 500), arm(3, 272, 700), arm(1, 0, 150), arm(2, 272, 200)]
  short = [arm(2, 0, 250), arm(3, 144, 350), arm(2, 144, 100)]
  schedule = Schedule(
    kernel=launch.kernel_name(plan),
    chip="v6e",
    operands="s8",
    bundles=2000,
    arms=(*short, *arms, arm(1, 0, 136)),
    step_bundles=0,
    vmem_bytes=0,
    spill_vmem_bytes=0,
  )
  costs = steps.Costs.of(plan, rates.rates("v6e"), schedule, rates.NO_CODE)
  assert costs.product(0, 1088)[0] == 4 * (250 + 2 * 350) + 2 * 100
  bundles, cycles = costs.product(1, 1088)
  assert bundles == 4 * (500 + 2 * 700) + 150 + 2 * 200
  assert cycles == 4 * 2 * 272 + 2 * 272
  assert costs.finish() == 136 / 272


def test_rows_are_quantised_a_chunk_at_a_time():
  # Integers' sums are exact, so that a row's bits do not depend on its product.
  m, g, k, n = 1300, 3, 72, 40
  rng = np.random.default_rng(0)
  sizes = np.array([600, 0, 530], np.int32)
  lhs = rng.standard_normal((m, k)) * 10.0 ** rng.uniform(-6, 6, (m, 1))
  lhs[sizes.sum() :] = np.nan
  rhs = rng.integers(-127, 128, (g, k, n)).astype(np.int8)
  scale = rng.uniform(1, 2, (g, 1, n)).astype(np.float32)

  def call(tile_m):
    kernel = functools.partial(
      kernels.gmm_v2,
      lhs_quantization="int8",
      preferred_element_type=jnp.float32,
      tiling=(tile_m, k, n),
      chip="v6e",
      interpret=races.interpret_params(),
    )
    program = jax.jit(kernel, compiler_options=compiling.fast_options())
    with races.checked():
      out = program(lhs.astype(jnp.bfloat16), rhs, sizes, rhs_scale=scale)
      return np.asarray(out)

  plan = plan_for(2048, 2048, (512, 2048, 512))
  assert plan.whole[0] == 512
  assert [i for i, _ in quantizing.together(plan, (0, 512))] == [0, 256]
  want = call(128)
  assert np.all(np.isfinite(want))
  assert np.all(want[: sizes[0]].any(axis=1))
  np.testing.assert_array_equal(call(512), want)
