"""What to say to a call whose arguments stand in another function's order.

`lax.ragged_dot`, megablox and their kin share their first three parameters and
differ from there on. Python binds a tiling to `preferred_element_type` without
a word; what follows would name the wrong cause.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from gmm import check_pieces


def check_operands(
  order: str, rhs: Any, group_sizes: Any, lhs: Any = None
) -> None:
  """Refuses group sizes or rows in the weight's place, and what is in theirs.

  Args:
    order: the function with its parameters in order, for the message.
    rhs: the weight, or the second of two operands [m, n].
    group_sizes: integers.
    lhs: where `rhs` is a weight: rows [m, k].

  Raises:
    TypeError: one looks like the other.
  """
  if _rank(rhs) == 1 and _is_integer(rhs):
    raise TypeError(
      f"`rhs` is {rhs.dtype} {list(rhs.shape)}, which looks like group_sizes; "
      f"{_order(order)}"
    )
  if _rank(lhs) == 3 and _rank(rhs) == 2:
    raise TypeError(
      f"`lhs` is {lhs.dtype} {list(lhs.shape)}, which looks like the weight; "
      f"{_order(order)}"
    )
  if (_rank(group_sizes) or 0) > 1 and not _is_integer(group_sizes):
    raise TypeError(
      f"`group_sizes` is {group_sizes.dtype} {list(group_sizes.shape)}, which "
      f"looks like a matrix; {_order(order)}"
    )


def check_dtype(order: str, name: str, value: Any) -> None:
  """Refuses what is no dtype where one is wanted, or None.

  Raises:
    TypeError: it is a tiling, an array or something else.
  """
  if isinstance(value, (tuple, list)) or _is_function(value):
    raise TypeError(
      f"`{name}` is {value!r}, which looks like a tiling; {_order(order)}"
    )
  if _rank(value) is not None:
    raise TypeError(
      f"`{name}` is an array {list(value.shape)}; want a dtype; {_order(order)}"
    )
  if value is None:
    return
  try:
    jnp.dtype(value)
  except (TypeError, ValueError):
    raise TypeError(
      f"`{name}` is {value!r}; want a dtype; {_order(order)}"
    ) from None


def check_no_dtype(order: str, name: str, value: Any) -> None:
  """Refuses a dtype where something else is wanted.

  A name is let through: "float32" is one of a dtype and of a precision.

  Raises:
    TypeError: it is one.
  """
  if value is None or isinstance(value, (bool, str, tuple, list)):
    return
  if _rank(value) is not None:  # an array is not one, though jax converts it
    return
  try:
    dtype = jnp.dtype(value)
  except (TypeError, ValueError):
    return
  raise TypeError(
    f"`{name}` is {dtype.name}, which looks like a dtype; {_order(order)}"
  )


def _order(order: str) -> str:
  return f"the order is {order}; pass what is optional by name"


def _rank(x: Any) -> int | None:
  """Of an array; None for what is none (NumPy's scalar types have shapes)."""
  if isinstance(x, type) or not hasattr(x, "shape") or not hasattr(x, "dtype"):
    return None
  return None if isinstance(x, np.dtype) else len(x.shape)


def _is_integer(x: Any) -> bool:
  return check_pieces.is_numpy(x.dtype) and np.dtype(x.dtype).kind in "iu"


def _is_function(value: Any) -> bool:
  """A function, but no scalar type of NumPy or jax, which can be called too."""
  if not callable(value):
    return False
  try:
    jnp.dtype(value)
  except TypeError:
    return True
  return False
