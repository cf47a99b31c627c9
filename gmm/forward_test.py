"""The products one by one, NN, NT, TN and TN transposed, over the whole table.

Interpreted, these are the very kernels that run on a TPU, with race detection.
XLA meets the whole table in `vjp_test`, and here what shows that its products
can be called by themselves.
"""

import pytest

from testing import cases, harness, parametrize


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  parametrize.by_backend(
    metafunc,
    {
      "interpret": cases.CASES,
      "pallas": cases.CASES,
      "xla": cases.FEW_CASES,
    },
  )


def test_products(case, backend):
  if case.refused_by(backend):
    with pytest.raises(NotImplementedError):
      harness.run_products(case, backend)
    return
  harness.check(case, harness.run_products(case, backend))
