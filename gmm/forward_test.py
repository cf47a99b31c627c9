"""The products one by one, NN, NT, TN and TN transposed, over the whole table.

Interpreted, these are the very kernels that run on a TPU, with race detection.
XLA meets the whole table in `vjp_test`, and here what shows that its products
can be called by themselves.
"""

import pytest

from testing import cases, harness, parametrize
from testing.case import Case


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  parametrize.by_backend(
    metafunc,
    {
      "interpret": cases.CASES,
      "pallas": cases.CASES,
      "xla": cases.FEW_CASES,
    },
  )


def test_products(case, backend, unless_refused):
  with unless_refused(case):
    harness.check(case, harness.run_products(case, backend))


def test_two_cores_side_by_side(backend):
  # In the table cores take turns: side by side, each run takes many seconds.
  case = Case(
    name="two_cores",
    m=40,
    k=136,
    n=264,
    group_sizes=(5, 9, 0, 13, 11),
    num_groups=3,
    group_offset=1,
    dtypes="bf16",
    existing_out=True,
    tiling=(16, 128, 128),
    chip="v4",
  )
  harness.check(case, harness.run_products(case, backend, cores=2))
