"""Which backend a test session runs on, for pytest with and without Bazel.

A test takes the fixture `backend` and runs on "interpret", "xla" or "pallas",
as the option `--backend` says. A session for "pallas" fails where no TPU is
attached: it never passes by skipping.
"""

import os

import pytest

BACKENDS = ("interpret", "xla", "pallas")

# XLA's thread pools take their size from here. With as few threads as a small
# machine has cores, shard_map over interpreted kernels waits for itself.
_THREADS = "8"


def pytest_addoption(parser: pytest.Parser) -> None:
  """Adds `--backend`."""
  parser.getgroup("gmm").addoption(
    "--backend",
    choices=BACKENDS,
    default="interpret",
    help="what runs the products: interpret (the kernels, on any machine; "
    "the default), xla, or pallas (the kernels on an attached TPU)",
  )


def pytest_configure(config: pytest.Config) -> None:
  """Prepares the process for its backend, before anything imports jax."""
  os.environ.setdefault("NPROC", _THREADS)
  if config.getoption("backend") != "pallas":
    os.environ["JAX_PLATFORMS"] = "cpu"
    return
  if config.getoption("numprocesses", None):
    raise pytest.UsageError(
      "--backend=pallas runs in one process, which holds the TPU; drop -n"
    )
  reason = _why_no_tpu()
  if reason is not None:
    raise pytest.UsageError(
      f"--backend=pallas needs an attached TPU, and jax finds none: {reason}"
    )


def _why_no_tpu() -> str | None:
  """What jax says about the missing TPU, on one line; None if it has one."""
  import jax

  try:
    jax.devices("tpu")
  except RuntimeError as error:
    return " ".join(str(error).split())
  return None


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
  """The backend of this session: "interpret", "xla" or "pallas"."""
  return request.config.getoption("backend")
