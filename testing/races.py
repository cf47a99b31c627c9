"""Turns races that the Pallas interpreter finds into failures.

jax 0.12 raises by itself. Before that a race is printed, and noted in an object
that the interpreter replaces at every kernel, so a program of several kernels
would report the races of its last one only: here all of them are kept.
"""

import contextlib
import inspect
from collections.abc import Iterator

from jax.experimental.pallas import tpu as pltpu

_RAISES = "on_race" in inspect.signature(pltpu.InterpretParams).parameters


class RaceError(AssertionError):
  """Two accesses of one buffer with no order between them."""


def interpret_params(num_cores: int = 1) -> pltpu.InterpretParams:
  """Parameters that look for races and show reads of unwritten memory.

  Args:
    num_cores: that run a parallel grid side by side.
  """
  options = {"on_race": "raise"} if _RAISES else {}
  return pltpu.InterpretParams(
    detect_races=True,
    out_of_bounds_reads="raise",
    uninitialized_memory="nan",
    num_cores_or_threads=num_cores,
    **options,
  )


@contextlib.contextmanager
def checked() -> Iterator[None]:
  """Runs interpreted kernels; raises if any of them had a race.

  Results must be ready when the block ends (`jax.block_until_ready`).

  Raises:
    RaceError: there was one. Details are on standard output.
  """
  try:
    with contextlib.nullcontext([]) if _RAISES else _kept_states() as states:
      yield
  except BaseException:
    # A kernel that failed leaves its memory to the next one.
    pltpu.reset_tpu_interpret_mode_state()
    raise
  if any(state.races_found for state in states):
    raise RaceError("the interpreter found a race; it is printed above")


@contextlib.contextmanager
def _kept_states() -> Iterator[list]:
  from jax._src.pallas.mosaic.interpret import interpret_pallas_call as module

  make, states = module.RaceDetectionState, []

  def make_and_keep(*args, **kwargs):
    states.append(make(*args, **kwargs))
    return states[-1]

  module.RaceDetectionState = make_and_keep
  try:
    yield states
  finally:
    module.RaceDetectionState = make
