"""Every combination of what `aot_test` covers pairwise: takes over an hour."""

import pytest

from gmm import aot
from testing import aot_cases, aot_checks


@pytest.fixture(scope="module")
def compile_program():
  with aot.scheduler(timeout=600) as compile_program:
    yield compile_program


@pytest.mark.parametrize("case", aot_cases.full(), ids=lambda case: case.name)
def test_kernel(case, compile_program):
  aot_checks.check(case, aot_checks.compiled(case, compile_program))
