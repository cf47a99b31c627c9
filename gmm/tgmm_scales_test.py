"""tgmm of quantised operands with their scales, on each backend."""

import pytest

from testing import tgmm_scales

PROGRAMS = tgmm_scales.PROGRAMS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  if "name" in metafunc.fixturenames:
    interpreted = metafunc.config.getoption("backend") == "interpret"
    names = [n for n, p in PROGRAMS.items() if p.interpreted >= interpreted]
    metafunc.parametrize("name", names)


def test_products(name, backend, unless_refused):
  with unless_refused(PROGRAMS[name]):
    tgmm_scales.check_all(name, backend)
