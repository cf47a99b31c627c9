"""tgmm of quantised operands with their scales, on each backend."""

import pytest

from gmm.kernels import chip as chips
from testing import tgmm_scales

PROGRAMS = tgmm_scales.PROGRAMS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  if "name" in metafunc.fixturenames:
    interpreted = metafunc.config.getoption("backend") == "interpret"
    names = [n for n, p in PROGRAMS.items() if p.interpreted >= interpreted]
    metafunc.parametrize("name", names)


def test_products(name, backend):
  if backend == "pallas" and not PROGRAMS[name].runs_on(chips.resolve()):
    with pytest.raises(NotImplementedError):
      tgmm_scales.check_all(name, backend)
    return
  tgmm_scales.check_all(name, backend)
