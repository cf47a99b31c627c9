"""Which backend a test session runs on, for pytest with and without Bazel.

A test takes the fixture `backend` and runs on "interpret", "xla" or "pallas",
as the option `--backend` says. A session for "pallas" finds out which TPU is
attached; it fails, and says why in one line, where none is, or another one than
GMM_EXPECT_CHIP names: it never passes by skipping. A test runs its case within
`unless_refused`: one that the chip cannot run has to raise, and is listed and
counted at the end.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import pytest

from testing import chip_at_hand, xla_options

BACKENDS = ("interpret", "xla", "pallas")

# XLA's thread pools take their size from here. With as few threads as a small
# machine has cores, shard_map over interpreted kernels waits for itself.
_THREADS = "8"
# The oracle multiplies small matrices, for which NumPy's threads only wait.
_NUMPY_THREADS = "1"

_CHIP = pytest.StashKey[str]()
# What reports say of a test, and the XML file with them: of those that run on
# the session's backend, and of those that this has to refuse.
_RAN_ON, _REFUSED = "backend", "refused"


def pytest_addoption(parser: pytest.Parser) -> None:
  """Adds `--backend` and `--fast-compile`."""
  group = parser.getgroup("gmm")
  group.addoption(
    "--fast-compile",
    action="store_true",
    help="compile every program for the CPU quickly, however slow it then is",
  )
  group.addoption(
    "--backend",
    choices=BACKENDS,
    default="interpret",
    help="what runs the products: interpret (the kernels, on any machine; "
    "the default), xla, or pallas (the kernels on an attached TPU)",
  )


def pytest_configure(config: pytest.Config) -> None:
  """Prepares the process for its backend, before anything imports jax."""
  os.environ.setdefault("NPROC", _THREADS)
  os.environ.setdefault("OPENBLAS_NUM_THREADS", _NUMPY_THREADS)
  if config.getoption("backend") != "pallas":
    os.environ["JAX_PLATFORMS"] = "cpu"
    if config.getoption("fast_compile"):
      own = os.environ.get("XLA_FLAGS", "")
      flags = [own, *xla_options.fast_flags(metadata.version("jaxlib"))]
      os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    return
  if config.getoption("numprocesses", None):
    raise pytest.UsageError(
      "--backend=pallas runs in one process, which holds the TPU; drop -n"
    )
  expected = chip_at_hand.expected()
  try:
    config.stash[_CHIP] = chip_at_hand.find(expected)
  except (chip_at_hand.NoTpuError, chip_at_hand.WrongTpuError) as error:
    who = f", {chip_at_hand.EXPECTED}={expected}" if expected else ""
    raise pytest.UsageError(f"--backend=pallas{who}: {error}") from None


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
  """The backend of this session: "interpret", "xla" or "pallas"."""
  return request.config.getoption("backend")


@pytest.fixture
def unless_refused(
  request: pytest.FixtureRequest, backend: str
) -> Callable[[Any], contextlib.AbstractContextManager[None]]:
  """A function of a case: a context around what runs and checks the case.

  Where the backend, or the attached chip, lacks a format of the case, the body
  has to raise a NotImplementedError that names it: anything else is a failure.
  """
  from testing import support

  chip = request.config.stash.get(_CHIP, None)

  @contextlib.contextmanager
  def context(case: Any) -> Iterator[None]:
    refused = support.refusal(case, backend, chip)
    with support.raising(refused):
      yield
    if refused is not None:
      # As record_property does, which pytest's default form of XML forbids.
      request.node.user_properties.append((_REFUSED, refused.what))

  return context


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Notes which tests run on the session's backend."""
  for item in items:
    if "backend" in getattr(item, "fixturenames", ()):
      where = item.config.getoption("backend")
      chip = item.config.stash.get(_CHIP, None)
      where += f" on {chip}" if chip else ""
      item.user_properties.append((_RAN_ON, where))


def pytest_collection_finish() -> None:
  """Makes interpreted kernels run faster, where a test may have any."""
  if "jax" in sys.modules:
    from testing import callbacks

    callbacks.install()


def pytest_terminal_summary(
  terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
  """Lists what was refused, and counts what ran and what did not."""
  run, refused = 0, []
  for outcome in ("passed", "failed"):
    for report in terminalreporter.stats.get(outcome, ()):
      said = dict(report.user_properties)
      if report.when != "call" or _RAN_ON not in said:
        continue
      if _REFUSED in said:
        refused.append(f"{report.nodeid}: no {said[_REFUSED]}")
      else:
        run += 1
  chip = config.stash.get(_CHIP, None)
  who = f"TPU {chip}" if chip else config.getoption("backend")
  if refused:
    terminalreporter.section(f"refused by {who}, as it has to be")
    for line in refused:
      terminalreporter.write_line(line)
  if refused or chip:
    terminalreporter.write_line(f"{who}: {run} run, {len(refused)} refused")
