"""An lhs that is quantised, with its scales or on the way, forward and back."""

import jax.numpy as jnp
import numpy as np
import pytest

from gmm import ops
from gmm.kernels import tiling
from testing import (
  harness,
  inputs,
  lhs_cases,
  parametrize,
  support,
  tolerance,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  refused = (c for c in lhs_cases.MORE_CASES if support.refusal(c, "interpret"))
  kernels = (*lhs_cases.KERNEL_CASES, *refused)
  parametrize.by_backend(
    metafunc,
    {"interpret": kernels, "pallas": kernels, "xla": lhs_cases.XLA_CASES},
  )


def test_products(case, backend, unless_refused):
  # Of XLA's the gradients, too.
  run = harness.run_vjp if backend == "xla" else harness.run_products
  with unless_refused(case):
    results = run(case, backend)
    harness.check(case, results)
    if case.lhs_quantization:
      check_how_near(case, results["out"])


def check_how_near(case, got):
  """What quantising moves is no more than half a step of the format."""
  want = tolerance.unquantised(case, inputs.make(case))
  error = np.abs(got.astype(np.float64) - want.value)
  assert np.all(error <= want.bound)


def test_parts_of_a_turn(backend, monkeypatch):
  # Two, for so few rows.
  monkeypatch.setattr(tiling, "MOST_BUNDLES_OF_TURN", 300)
  case = lhs_cases.PARTS
  harness.check(case, harness.run_products(case, backend))


def test_integers_are_added_up_in_int32(backend):
  # In float32 each term would be rounded from 2**24 on.
  k = 2000
  lhs = np.full((8, k), 127, np.int8)
  lhs[:, ::7] = np.arange(8)[:, None] + 1
  out = ops.gmm(
    lhs,
    np.full((1, k, 8), 127, np.int8),
    np.array([8]),
    lhs_scale=np.ones((1, 1), np.float32),
    preferred_element_type=jnp.float32,
    config=ops.Config(backend=backend),
  )
  sums = 127 * lhs.astype(np.int64).sum(axis=1)
  assert np.max(sums) > 2**24
  want = np.broadcast_to(sums.astype(np.float32)[:, None], (8, 8))
  np.testing.assert_array_equal(out, want)
