"""Flags that several tools have, and what becomes of them.

Nothing here imports jax.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from typing import NoReturn

from testing.workloads import Workload

_SHAPE = {
  "m": "rows",
  "k": "the weight's rows",
  "n": "the weight's columns",
  "g": "groups",
}
_LARGEST = 2**31 - 1  # rows are counted in int32


class Parser(argparse.ArgumentParser):
  """Says in one line what is wrong with the flags; the rest is --help's."""

  def __init__(self, prog: str, description: str | None) -> None:
    """Takes the description as it stands."""
    super().__init__(
      prog=prog,
      description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )

  def error(self, message: str) -> NoReturn:
    """Ends the program."""
    self.exit(2, f"error: {message}; --help lists the flags\n")


def positive(text: str) -> int:
  """A flag's type: an integer of 1 or more."""
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
  return int(text)


def add_shape(parser: argparse.ArgumentParser) -> None:
  """Adds --m, --k, --n and --g."""
  for name, what in _SHAPE.items():
    parser.add_argument(
      f"--{name}", type=int, help=f"{what}, for a shape of your own"
    )


def own_shape(arguments: argparse.Namespace) -> Workload | None:
  """The shape that --m, --k, --n and --g ask for; None where none is given.

  Raises:
    ValueError: some are missing, a model is given too, or a size is none.
  """
  sizes = {name: getattr(arguments, name) for name in _SHAPE}
  missing = [f"--{name}" for name, size in sizes.items() if size is None]
  if len(missing) == len(sizes):
    return None
  if missing or arguments.model:
    what = f"give {', '.join(missing)} too" if missing else "drop --model"
    wanted = " ".join(f"--{name}" for name in sizes)
    raise ValueError(f"a shape of your own takes {wanted}: {what}")
  for name, size in sizes.items():
    if not 1 <= size <= _LARGEST:
      raise ValueError(f"`{name}` is {size}; want 1 or more, and below 2**31")
  return Workload(name="own", **sizes)


def from_here(path: str) -> pathlib.Path:
  """A path as the caller means it: `bazel run` changes the folder."""
  return pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), path)
