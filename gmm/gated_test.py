"""`gmm_gated` and `split_gmm` under autodiff, over their case table.

XLA and TPUs meet the whole table, interpreted kernels what shows that operands
reach them: they do so in `gated_kernel_test`.
"""

import pytest

from testing import gated_cases, gated_harness, parametrize


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  every, few = gated_cases.CASES, gated_cases.FEW_CASES
  tables = {"interpret": few, "pallas": every, "xla": every}
  parametrize.by_backend(metafunc, tables)


def test_vjp(case, backend, unless_refused):
  with unless_refused(case):
    gated_harness.check(case, gated_harness.run_vjp(case, backend))


GATED = [case for case in gated_cases.FEW_CASES if case.op == "gated"]


@pytest.mark.parametrize("one", parametrize.params(GATED))
def test_kept_gate_and_up(one, backend):
  kept = gated_harness.run_vjp(one, backend, recompute=False)
  gated_harness.check(one, kept, recompute=False)
  again = gated_harness.run_vjp(one, backend)
  for name in ("dlhs", "drhs"):
    assert kept[name].tobytes() == again[name].tobytes()


@pytest.mark.parametrize("one", parametrize.params(gated_cases.FEW_CASES))
def test_explicit_transposes(one):
  flags = {"use_gmm_v2_transposed_rhs_dlhs": False}
  gated_harness.check(one, gated_harness.run_vjp(one, "xla", **flags), **flags)


# One of each operation, so that every kernel reads swapped weights.
LIE_SWAPPED = [
  case
  for case in gated_cases.FEW_CASES
  if case.name.startswith(("aligned-", "split_k_tiles-"))
]


@pytest.mark.parametrize("one", parametrize.params(LIE_SWAPPED))
def test_a_weight_that_lies_the_other_way(one, backend):
  flags = {"rhs_layout": "gkn" if one.case.transpose_rhs else "gnk"}
  results = gated_harness.run_vjp(one, backend, **flags)
  gated_harness.check(one, results, **flags)
