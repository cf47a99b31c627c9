"""How values are quantised, in NumPy, from the definition.

    scale = largest magnitude of a block / largest number of the format
    quantised = value / scale, rounded to the nearest, of two the even one

in float32, in which the scales are kept: quotients that are a rounding apart
may fall on two sides of a tie. `near_ties` says which values those are.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
  """A narrow format.

  Attributes:
    largest: its largest number; of integers that of both signs.
    digits: of a number's significand after the first one; None for integers.
    least_exponent: of its normal numbers, by powers of two.
  """

  largest: float
  digits: int | None = None
  least_exponent: int = 0


FORMATS: Mapping[str, Format] = {
  "int8": Format(largest=127),
  "int4": Format(largest=7),
  "float8_e4m3fn": Format(largest=448, digits=3, least_exponent=-6),
  "float8_e5m2": Format(largest=57344, digits=2, least_exponent=-14),
  "float4_e2m1fn": Format(largest=6, digits=1),
}
_TINY = np.float32(2.0**-126)


def quantize(
  x: ArrayLike, dtype: str, *, axis: int, block: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Quantises blocks of `block` values along an axis, the last one shorter.

  Blocks whose scale would be below float32's normal numbers are zeros.

  Args:
    x: values.
    dtype: a key of `FORMATS`.
    axis: along which values share a scale.
    block: how many; None for all.

  Returns:
    The quantised values and their scales, both in float64 and x's shape: their
    product is what stands for x.
  """
  quotients, scale = _quotients(x, dtype, axis, block)
  return _rounded(quotients, FORMATS[dtype]), scale.astype(np.float64)


def near_ties(
  x: ArrayLike, dtype: str, *, axis: int, block: int | None = None
) -> np.ndarray:
  """The step of the format where the next number is as good, else zero.

  Args:
    x: As in `quantize`.
    dtype: As in `quantize`.
    axis: As in `quantize`.
    block: As in `quantize`.

  Returns:
    float64 in x's shape, times the scale of each block.
  """
  quotients, scale = _quotients(x, dtype, axis, block)
  few = 8 * np.finfo(np.float32).eps * np.abs(quotients).astype(np.float64)
  low, high = (
    _rounded(np.abs(quotients).astype(np.float64) + d, FORMATS[dtype])
    for d in (-few, few)
  )
  return (high - low) * scale


def half_steps(
  x: ArrayLike, dtype: str, *, axis: int, block: int | None = None
) -> np.ndarray:
  """The most that quantising moves each value, for `x` as in `quantize`.

  Half of the format's step at the value, times the scale; what float32 rounds
  on the way is a part in a million of the value.
  """
  to = FORMATS[dtype]
  quotients, scale = _quotients(x, dtype, axis, block)
  step = np.ones_like(quotients, np.float64)
  if to.digits is not None:
    exponent = np.frexp(quotients)[1] - 1
    step = 2.0 ** (np.maximum(exponent, to.least_exponent) - to.digits)
  value = np.abs(np.asarray(x).astype(np.float64))
  half = step * scale / 2
  # Blocks that count as zeros lose all that they hold.
  return np.where(scale == 0, value, half + 1e-6 * value)


def _quotients(
  x: ArrayLike, dtype: str, axis: int, block: int | None
) -> tuple[np.ndarray, np.ndarray]:
  x = np.moveaxis(np.asarray(x).astype(np.float32), axis, -1)
  top = np.float32(FORMATS[dtype].largest)
  quotients, scales = np.zeros_like(x), np.zeros_like(x)
  size = block or max(x.shape[-1], 1)
  with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
    for start in range(0, x.shape[-1], size):
      at = (..., slice(start, start + size))
      most = np.max(np.abs(x[at]), axis=-1, keepdims=True)
      faint = most < top * _TINY
      scales[at] = np.where(faint, 0, most * (np.float32(1) / top))
      quotients[at] = x[at] * np.where(faint, 0, top / most)
  return np.moveaxis(quotients, -1, axis), np.moveaxis(scales, -1, axis)


def _rounded(x: np.ndarray, to: Format) -> np.ndarray:
  """Finite numbers of the format next to x, whose range is that of the format.

  A float's step is 2**(exponent - digits), or that of the least exponent.
  """
  x = x.astype(np.float64)
  if to.digits is None:
    return np.rint(x)
  exponent = np.frexp(x)[1] - 1
  step = 2.0 ** (np.maximum(exponent, to.least_exponent) - to.digits)
  return np.rint(x / step) * step
