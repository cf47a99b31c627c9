"""An lhs that is quantised, with its scales or on the way, forward and back."""

import numpy as np
import pytest

from testing import harness, inputs, lhs_cases, parametrize, tolerance


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  refused = tuple(c for c in lhs_cases.MORE_CASES if c.refused_by("interpret"))
  kernels = lhs_cases.KERNEL_CASES + refused
  parametrize.by_backend(
    metafunc,
    {"interpret": kernels, "pallas": kernels, "xla": lhs_cases.XLA_CASES},
  )


def test_products(case, backend):
  if harness.refuses(case, backend):
    with pytest.raises(NotImplementedError, match="`lhs_quantization`.*has"):
      harness.run_products(case, backend)
    return
  if backend == "xla":
    results = harness.run_vjp(case, backend)  # gradients, too
  else:
    results = harness.run_products(case, backend)
  harness.check(case, results)
  if case.lhs_quantization:
    check_how_near(case, results["out"])


def check_how_near(case, got):
  """What quantising moves is no more than half a step of the format."""
  want = tolerance.unquantised(case, inputs.make(case))
  error = np.abs(got.astype(np.float64) - want.value)
  assert np.all(error <= want.bound)
