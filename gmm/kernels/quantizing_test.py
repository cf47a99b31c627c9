"""Blocks of rows that are quantised on the way: what the plan says of them."""

import jax
import jax.numpy as jnp
import pytest

from gmm import checks
from gmm.kernels import chip as chips
from gmm.kernels import tiling
from gmm.timing import rates, steps


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
