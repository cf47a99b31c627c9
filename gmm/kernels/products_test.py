"""Products of several chunks, and in parts: small tilings never have them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from gmm import checks
from gmm.kernels import chip, gmm_call, tgmm_kernel, tiling
from reference import oracle

M, K, N = 96, 256, 256
# Rows of a chunk are 16: whole and uneven groups, and rows of none.
SIZES = np.array([[64, 7, 0, 17], [0, 5, 80, 11], [16, 16, 16, 32]], np.int32)


def _operands():
  random = np.random.default_rng(0)
  shapes = {"lhs": (M, K), "rhs": (4, K, N), "dout": (M, N)}
  return {
    name: jnp.asarray(random.integers(-4, 5, shape), jnp.bfloat16)
    for name, shape in shapes.items()
  }


def _check(plan, run, want):
  """Runs a plan, with NaN in scratch and in rows of no group."""
  program = jax.jit(run)
  for sizes in SIZES:
    got = program(jnp.asarray(sizes), jnp.zeros(1, jnp.int32))
    # Sums of small integers: exact, but for one rounding.
    want_now = np.asarray(jnp.asarray(want(sizes), plan.problem.out_dtype))
    np.testing.assert_array_equal(np.asarray(got), want_now)


@pytest.mark.parametrize(
  ("run", "parts", "tile_k"), [(2, 2, 256), (3, 1, 128), (1, 2, 128)]
)
@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_gmm(transpose_rhs, run, parts, tile_k):
  x = _operands()
  rhs = x["rhs"].swapaxes(1, 2) if transpose_rhs else x["rhs"]
  sizes = jax.ShapeDtypeStruct((4,), jnp.int32)
  problem = checks.gmm_problem(
    x["lhs"], rhs, sizes, transpose_rhs=transpose_rhs
  )
  plan = tiling.make_plan(problem, chip.resolve("v5e"), (64, tile_k, 256))
  plan = dataclasses.replace(plan, chunk=16, run=run, parts=parts)
  assert plan.products == ((16 * run, 16, 32) if run > 1 else (16, 32))
  _check(
    plan,
    lambda sizes, offset: gmm_call.gmm(
      plan,
      [sizes, offset, x["lhs"], rhs],
      gmm_call.Extras(),
      pltpu.InterpretParams(detect_races=True),
    ),
    lambda sizes: oracle.gmm(x["lhs"], rhs, sizes, transpose_rhs=transpose_rhs),
  )


@pytest.mark.parametrize(
  ("name", "run", "parts"),
  [("v5e", 2, 2), ("tpu7x", 3, 1), ("tpu7x", 1, 2)],
)
def test_tgmm(name, run, parts):
  x = _operands()
  sizes = jax.ShapeDtypeStruct((4,), jnp.int32)
  problem = checks.tgmm_problem(x["lhs"], x["dout"], sizes, num_groups=4)
  plan = tiling.make_plan(problem, chip.resolve(name), (48, 256, 256))
  plan = dataclasses.replace(plan, chunk=16, run=run, parts=parts)
  assert plan.alone == ((16,) if name == "tpu7x" and parts == 1 else ())
  _check(
    plan,
    lambda sizes, offset: tgmm_kernel.tgmm(
      plan,
      [sizes, offset, x["lhs"], x["dout"]],
      pltpu.InterpretParams(detect_races=True),
    ),
    lambda sizes: oracle.tgmm(x["lhs"], x["dout"], sizes, num_groups=4),
  )
