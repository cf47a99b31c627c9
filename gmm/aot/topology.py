"""TPU devices that are not there: what libtpu compiles for on any machine."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import threading
from collections.abc import Iterator

import jax
from jax.experimental import topologies

from gmm.kernels import chip as chips

# Chip -> the smallest topologies with so many JAX devices: libtpu's name for
# each, and the accelerator type that such a machine would have.
_TOPOLOGIES: dict[str, dict[int, tuple[str, str]]] = {
  "v4": {4: ("v4:2x2x1", "v4-8"), 8: ("v4:2x2x2", "v4-16")},
  "v5e": {4: ("v5e:2x2", "v5litepod-4"), 8: ("v5e:2x4", "v5litepod-8")},
  "v5p": {4: ("v5p:2x2x1", "v5p-8"), 8: ("v5p:2x2x2", "v5p-16")},
  "v6e": {4: ("v6e:2x2", "v6e-4"), 8: ("v6e:2x4", "v6e-8")},
  "tpu7x": {8: ("tpu7x:2x2x1", "tpu7x-8")},
}

_LOADING = threading.Lock()


def devices(chip: str, count: int = 1) -> tuple[jax.Device, ...]:
  """Devices of a TPU generation, to compile for but not to run on.

  Args:
    chip: a key of `gmm.kernels.chip.CHIPS`.
    count: how many, at most 8.

  Raises:
    ValueError: an unknown chip, or a count that no topology here has.
    TypeError: `chip` is no string, or `count` no int.
    ImportError: libtpu, which holds the compiler, is not installed.
  """
  name = _checked(chip)
  rows = _TOPOLOGIES[name]
  if isinstance(count, bool) or not isinstance(count, int):
    raise TypeError(f"`devices` is {count!r}; want an int")
  fitting = [size for size in rows if size >= count]
  if count < 1 or not fitting:
    raise ValueError(f"`devices` is {count}; want 1 to {max(rows)} of {name}")
  return _devices(*rows[min(fitting)])[:count]


def check_compiler() -> None:
  """Raises ImportError where there is no TPU compiler."""
  if "TPU_LIBRARY_PATH" in os.environ:
    return
  if importlib.util.find_spec("libtpu") is None:
    raise ImportError(
      "compiling for a TPU needs its compiler, which the package libtpu holds "
      "for Linux: pip install libtpu"
    )


def compiler_version() -> str:
  """The version of the TPU compiler, or "unknown" where no package says it."""
  check_compiler()
  for package in ("libtpu", "libtpu-nightly"):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      return importlib.metadata.version(package)
  return "unknown"


def _checked(chip: str) -> str:
  if chip is None:
    raise TypeError(f"`chip` is None; want one of {', '.join(chips.CHIPS)}")
  return chips.resolve(chip).name


@functools.cache
def _devices(topology: str, accelerator: str) -> tuple[jax.Device, ...]:
  check_compiler()
  with _LOADING, _environment(quiet_environment(accelerator)):
    description = topologies.get_topology_desc(
      topology_name=topology, platform="tpu"
    )
  return tuple(description.devices)


def quiet_environment(accelerator: str) -> dict[str, str]:
  """What libtpu otherwise asks a metadata server or the machine for."""
  return {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": accelerator,
    # It locks the chips of the machine, of which it will use none.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
  }


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
  """Sets variables for libtpu, which reads them when it is loaded."""
  before = {name: os.environ.get(name) for name in values}
  os.environ.update(values)
  try:
    yield
  finally:
    for name, value in before.items():
      if value is None:
        os.environ.pop(name, None)
      else:
        os.environ[name] = value
