"""`ops.gmm` under jax.vjp: what reaches which product, and what comes back.

XLA and TPUs run the whole table. Interpreted kernels have met it in
`forward_test`; here they run what shows that operands, layouts and offsets
reach them.
"""

import pytest

from testing import cases, harness, parametrize


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  interpreted = metafunc.config.getoption("backend") == "interpret"
  if "case" in metafunc.fixturenames:
    table = cases.INTERPRETED_VJP_CASES if interpreted else cases.CASES
    metafunc.parametrize("case", parametrize.params(table))


def test_vjp(case, backend):
  if case.refused_by(backend):
    with pytest.raises(NotImplementedError):
      harness.run_vjp(case, backend)
    return
  harness.check(case, harness.run_vjp(case, backend))
