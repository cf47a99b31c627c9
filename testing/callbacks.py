"""Hands interpreted kernels NumPy arrays for their loads and stores.

jax puts what a callback takes on a device first, and the interpreter, whose
every load and store is a callback, fetches it from there at once: a third of
the time in which an interpreted kernel runs. Other callbacks stay as they are.
"""

import functools
from typing import Any

import numpy as np

_INTERPRETER = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"


def install() -> bool:
  """Does so for this process; False where this jax has no place for it."""
  from jax._src import callback as module

  original = getattr(module, "io_callback_impl", None)
  if original is None:
    return False
  if not hasattr(original, "by_device"):
    module.io_callback_impl = _with_numpy(original)
  return True


def _with_numpy(original: Any) -> Any:
  @functools.wraps(original)
  def impl(*args: Any, callback: Any, **options: Any) -> Any:
    if _is_of_interpreter(callback):
      # Copies, since the arrays are XLA's own memory.
      callback = functools.partial(callback, *map(np.array, args))
      args = ()
    return original(*args, callback=callback, **options)

  impl.by_device = original
  return impl


def _is_of_interpreter(callback: Any) -> bool:
  function = getattr(callback, "callback_func", None)
  while isinstance(function, functools.partial):
    function = function.func
  return getattr(function, "__module__", "") == _INTERPRETER
