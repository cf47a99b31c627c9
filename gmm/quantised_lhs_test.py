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


def test_products(case, backend):
  if harness.refuses(case, backend):
    with pytest.raises(NotImplementedError):
      harness.run_products(case, backend)
    return
  if backend == "xla":
    # Their gradients, too.
    harness.check(case, harness.run_vjp(case, backend))
  else:
    harness.check(case, harness.run_products(case, backend))
