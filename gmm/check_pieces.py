"""What every check is made of: shapes, names of formats, kinds of values."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


def shape_of(name: str, x: Any, names: str) -> tuple[int, ...]:
  """Its shape; raises unless it is an array of as many axes as names."""
  if not hasattr(x, "shape") or not hasattr(x, "dtype"):
    raise TypeError(f"`{name}` is a {type(x).__name__}; want an array {names}")
  if len(x.shape) != names.count(",") + 1:
    raise ValueError(f"`{name}` has shape {list(x.shape)}; want {names}")
  return tuple(x.shape)


def names_of(names: Any) -> str:
  """Names of formats, as messages have them."""
  return ", ".join(names)


def is_numpy(dtype: Any) -> bool:
  """False for jax's extended dtypes, such as those of PRNG keys."""
  return isinstance(dtype, (np.dtype, type))


def check_bool(name: str, value: Any) -> None:
  """Raises TypeError unless a value is a bool."""
  if not isinstance(value, (bool, np.bool_)):
    raise TypeError(f"`{name}` is {value!r}; want True or False")


def index_of(name: str, value: Any) -> int:
  """A value as an int; raises TypeError if it is none."""
  try:
    if isinstance(value, (bool, np.bool_)):
      raise TypeError
    return operator.index(value)
  except TypeError:
    raise TypeError(f"`{name}` is {value!r}; want an int") from None
