"""An lhs that is quantised, with its scales, forward and back."""

import pytest

from testing import harness, lhs_cases, parametrize

_KERNELS = lhs_cases.CASES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  if "case" in metafunc.fixturenames:
    parametrize.by_backend(
      metafunc,
      {"interpret": _KERNELS, "pallas": _KERNELS, "xla": lhs_cases.CASES},
    )


def test_products(case, backend, unless_refused):
  # Of XLA's the gradients, too.
  run = harness.run_vjp if backend == "xla" else harness.run_products
  with unless_refused(case):
    harness.check(case, run(case, backend))
