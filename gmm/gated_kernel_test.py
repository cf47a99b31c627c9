"""The kernels of gate and up over their case table, with race detection.

Gated, split and sum, called one by one; on a TPU without the interpreter.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import gated_checks
from gmm.kernels import chip as chips
from gmm.kernels import gated_kernel, tiling
from gmm.pair_operands import PairOperands
from reference import oracle
from testing import gated_cases, gated_harness, parametrize, races

FUSED = [case for case in gated_cases.CASES if case.fused]


def test_the_table():
  names = [case.name for case in gated_cases.CASES]
  assert len(names) >= 120
  assert len(set(names)) == len(names)
  assert len({case.program for case in gated_cases.CASES}) <= 24


@pytest.mark.parametrize("case", parametrize.params(FUSED))
def test_kernels(case, backend, unless_refused):
  with unless_refused(case):
    gated_harness.check(case, gated_harness.run_kernels(case, backend))


@pytest.mark.parametrize("pair", ["gated", "split", "sum"])
def test_columns_in_parts(pair, backend):
  # As products are that take the MXU for long: no small case has such.
  m, k, n = 24, 256, 512
  rng = np.random.default_rng(0)
  sizes = np.array([9, 0, 13], np.int32)
  # Small integers: sums and their products are exact.
  lhs = rng.integers(-4, 5, (2, m, k)).astype(np.float32)
  rhs = rng.integers(-4, 5, (2, 3, k, n)).astype(np.float32)
  if pair == "gated":
    problem = gated_checks.gated_problem(
      lhs[0], np.concatenate(rhs, axis=2), sizes
    )
    arrays = lhs[0], np.concatenate(rhs, axis=2)
  elif pair == "split":
    problem = gated_checks.split_problem(lhs[0], tuple(rhs), sizes)
    arrays = lhs[0], *rhs
  else:
    problem = gated_checks.sum_problem(tuple(lhs), tuple(rhs), sizes)
    arrays = *lhs, *rhs
  tile_k = k if pair == "gated" else 128
  plan = tiling.make_plan(problem, chips.resolve("v6e"), (24, tile_k, n))
  plan = dataclasses.replace(plan, parts=2)

  def run(*arrays):
    counts = {"gated": 1, "split": 1, "sum": 2}
    operands = PairOperands(
      lhs=arrays[: counts[pair]],
      rhs=arrays[counts[pair] :],
      sizes=jnp.asarray(sizes),
      offset=jnp.zeros((1,), jnp.int32),
    )
    interpret = races.interpret_params() if backend == "interpret" else False
    return gated_kernel.pair(plan, operands, _product, interpret)

  with races.checked():
    got = jax.block_until_ready(jax.jit(run)(*map(jnp.asarray, arrays)))
  gate, up = (oracle.gmm(lhs[0], weight, sizes) for weight in rhs)
  want = {
    "gated": gate * up,
    "split": (gate, up),
    "sum": gate + oracle.gmm(lhs[1], rhs[1], sizes),
  }[pair]
  jax.tree.map(np.testing.assert_array_equal, got, want)


def _product(gate, up):
  return gate * up
