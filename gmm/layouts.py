"""Which axis of a weight the TPU's compiler keeps in the lanes.

A Pallas call takes its operands row-major. A weight [g, k, n] that lies in
memory with k in the lanes is copied before such a call, whereas its swapped
view [g, n, k] is row-major and free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gmm.formats import bits

RHS_LAYOUTS = ("auto", "gkn", "gnk")

_LANES = 128
_SUBLANES = 8


def lies_swapped(
  rhs_layout: str, shape: Sequence[int], dtype: np.dtype, *, k_axis: int
) -> bool:
  """Whether the last two axes of a weight lie in memory in the other order.

  Args:
    rhs_layout: "gkn" or "gnk": the order in memory, n or k in the lanes. "auto"
      is what `minor_axis` says of the shape.
    shape: [g, k, n] or [g, n, k], as the caller's array has it.
    dtype: of the weight.
    k_axis: which axis of `shape` is k: 1 or 2.
  """
  if rhs_layout == "auto":
    lanes = minor_axis(shape, dtype)
  else:
    n_axis = 3 - k_axis
    lanes = k_axis if rhs_layout == "gnk" else n_axis
  return lanes == 1


def minor_axis(shape: Sequence[int], dtype: np.dtype) -> int:
  """The axis of a weight that XLA puts in the lanes of an entry parameter.

  XLA for TPU takes the order of axes that pads least, and row-major of equals:
  lanes come in 128, sublanes in 8, or fewer for an axis that has fewer. Of a
  weight only the orders that keep the groups outermost are of use, so this
  compares those two. (Where neither k nor n is a multiple of 128 and g is, XLA
  may put the groups in the lanes. Such a weight is copied before any kernel;
  row-major entry layouts prevent that.)

  Args:
    shape: [g, rows, columns].
    dtype: of the weight.

  Returns:
    1 or 2.
  """
  _, rows, columns = shape
  swapped = _padded(columns, rows, dtype) < _padded(rows, columns, dtype)
  return 1 if swapped else 2


def _padded(sublanes: int, lanes: int, dtype: np.dtype) -> int:
  """Elements that a matrix takes in memory, padding included."""
  tile = _SUBLANES
  while tile // 2 >= max(sublanes, 32 // bits(dtype)):
    tile //= 2
  return _round_up(sublanes, tile) * _round_up(lanes, _LANES)


def _round_up(size: int, unit: int) -> int:
  return -(-size // unit) * unit
