"""Which TPU is attached, and whether it is the one that was meant."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

# What a caller expects: it only fails a run, and never changes a result.
EXPECTED = "GMM_EXPECT_CHIP"

_STDERR = 2


class NoTpuError(RuntimeError):
  """No TPU is attached; the message says so on one line."""


class WrongTpuError(RuntimeError):
  """Another TPU is attached than was meant, or one that nobody knows."""


def expected(environ: Mapping[str, str] = os.environ) -> str | None:
  """The chip that the environment says is attached; None if it says nothing."""
  return environ.get(EXPECTED) or None


def find(expected: str | None = None) -> str:
  """The name of the attached TPU's generation, a key of `chip.CHIPS`.

  Args:
    expected: what it has to be; None for any.

  Raises:
    NoTpuError: there is none.
    WrongTpuError: it is of an unknown kind, or not the expected one.
  """
  from gmm.kernels import chip as chips

  if expected is not None and expected not in chips.CHIPS:
    raise WrongTpuError(
      f"the chip expected is {expected!r}; known chips: "
      f"{', '.join(chips.CHIPS)}"
    )
  kind = _attached().device_kind
  names = [s.name for s in chips.CHIPS.values() if kind in s.device_kinds]
  if not names:
    raise WrongTpuError(
      f"the attached TPU is a {kind!r}, which has no row in the chip table "
      f"({', '.join(chips.CHIPS)})"
    )
  if expected not in (None, names[0]):
    raise WrongTpuError(
      f"the attached TPU is a {kind!r}, which is {names[0]}; {expected} was "
      "expected"
    )
  return names[0]


def _attached() -> Any:
  """The first TPU.

  Raises:
    NoTpuError: there is none.
  """
  import jax

  try:
    with _quiet_if_it_fails():
      return jax.devices("tpu")[0]
  except RuntimeError as error:
    said = " ".join(str(error).split())
    raise NoTpuError(
      f"this needs an attached TPU, and jax finds none: {said}"
    ) from None


@contextlib.contextmanager
def _quiet_if_it_fails() -> Iterator[None]:
  """Holds back what libraries write to stderr; drops it after an exception.

  libtpu says in a page of its own what the exception says in a line.
  """
  with tempfile.TemporaryFile() as held, contextlib.ExitStack() as stack:
    try:
      kept = os.dup(_STDERR)
    except OSError:  # there is no stderr
      yield
      return
    stack.callback(os.close, kept)
    os.dup2(held.fileno(), _STDERR)
    try:
      yield
      held.seek(0)
      os.write(kept, held.read())
    finally:
      os.dup2(kept, _STDERR)
