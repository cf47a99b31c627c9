"""Weights and cotangents that ops.gmm quantises, on each backend."""

import pytest

from testing import quantised_way

PROGRAMS = quantised_way.PROGRAMS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  if "name" in metafunc.fixturenames:
    interpreted = metafunc.config.getoption("backend") == "interpret"
    names = [n for n, p in PROGRAMS.items() if p.interpreted >= interpreted]
    metafunc.parametrize("name", names)


def test_products(name, backend, unless_refused):
  with unless_refused(PROGRAMS[name]):
    quantised_way.check_all(name, backend)
