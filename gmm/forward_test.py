"""The products one by one, NN, NT, TN and TN transposed, over the whole table.

Under interpret these are the very kernels that run on a TPU, with race
detection.
"""

import pytest

from testing import cases, harness, parametrize


@parametrize.over(cases.CASES)
def test_products(case, backend):
  if case.refused_by(backend):
    with pytest.raises(NotImplementedError):
      harness.run_products(case, backend)
    return
  harness.check(case, harness.run_products(case, backend))
