"""What `precision` means: one `lax.Precision` for both operands."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

# What jax.config.jax_default_matmul_precision means for float32 operands, for
# those of its values that lax.Precision does not know.
_AMBIENT_ALGORITHMS = {
  "BF16_BF16_F32_X3": lax.Precision.HIGH,
  "BF16_BF16_F32_X6": lax.Precision.HIGHEST,
  "BF16_BF16_F32_X9": lax.Precision.HIGHEST,
  "TF32_TF32_F32": lax.Precision.HIGH,
  "TF32_TF32_F32_X3": lax.Precision.HIGHEST,
  "F32_F32_F32": lax.Precision.HIGHEST,
  "F64_F64_F64": lax.Precision.HIGHEST,
}


def canonical(precision: Any) -> lax.Precision | None:
  """Returns one `lax.Precision`, or None for None.

  Raises:
    ValueError: an unknown name, or a pair of different ones.
    TypeError: something else.
  """
  if isinstance(precision, (tuple, list)):
    if len(precision) != 2:
      raise ValueError(f"`precision` is {precision!r}; want one value or two")
    first, second = (canonical(p) for p in precision)
    if first != second:
      raise ValueError(
        f"`precision` is {precision!r}; want the same value for both operands"
      )
    return first
  if precision is None or isinstance(precision, lax.Precision):
    return precision
  if isinstance(precision, str):
    try:
      return lax.Precision(precision.lower())
    except ValueError:
      pass
    raise ValueError(
      f"`precision` is {precision!r}; want 'default', 'high' or 'highest'"
    )
  raise TypeError(
    f"`precision` is {precision!r}; want None, a lax.Precision or its name"
  )


def ambient() -> lax.Precision:
  """What jax.config.jax_default_matmul_precision asks of float32 operands."""
  name = jax.config.jax_default_matmul_precision
  if name is None:
    return lax.Precision.DEFAULT
  try:
    return lax.Precision(name)
  except ValueError:
    return _AMBIENT_ALGORITHMS.get(name, lax.Precision.DEFAULT)
