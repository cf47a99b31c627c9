"""How values are quantised: one rule for XLA, the kernels and the oracle.

    scale = largest magnitude of a block / largest number of the format
    quantised = round(value / scale)

A block whose magnitudes are so small that its scale would be subnormal counts
as zeros: TPUs flush such numbers. Infinities and NaN leave their own block
without a finite value, and touch no other.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm import check_pieces

# What `lhs` and `dout` may be quantised to, and a weight.
OPERANDS = ("int8", "float8_e4m3fn", "float8_e5m2")
WEIGHTS = ("int8", "int4", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")

# Columns of lhs that share a scale, where the weight does not say: the same on
# every chip and for every tiling, so that a row's bits depend on neither.
LHS_BLOCK = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantization:
  """How to quantise an operand.

  Attributes:
    dtype: name of the format, such as "int8" or "float8_e4m3fn".
    block: of a weight, how many values along k share a scale; it divides k.
      None is all of k: one scale per column.
    per: of gradients, what shares a scale: all of dout ("tensor"), or each row
      in the product for dlhs and each column in that for drhs ("channel").

  Raises:
    ValueError: a block below 1, or an unknown `per`.
    TypeError: a dtype that is no name of a format, or a block that is no int.
  """

  dtype: str
  block: int | None = None
  per: str = "tensor"

  def __post_init__(self) -> None:
    """Checks what needs no operand to check it with."""
    object.__setattr__(self, "dtype", format_of("dtype", self.dtype, WEIGHTS))
    if self.block is not None:
      block = check_pieces.index_of("block", self.block)
      if block < 1:
        raise ValueError(f"`block` is {block}; want at least 1, or None")
      object.__setattr__(self, "block", block)
    if self.per not in ("tensor", "channel"):
      raise ValueError(f"`per` is {self.per!r}; want 'tensor' or 'channel'")

  @classmethod
  def of(
    cls, name: str, value: Any, formats: tuple[str, ...]
  ) -> Quantization | None:
    """An argument of that name, as a Quantization.

    Args:
      name: of the argument, for errors.
      value: None, a format or its name, or a Quantization.
      formats: that the argument may have.

    Raises:
      TypeError: something else.
    """
    if value is None:
      return None
    if not isinstance(value, cls):
      return cls(dtype=format_of(name, value, formats))
    format_of(name, value.dtype, formats)
    return value


def format_of(name: str, value: Any, formats: tuple[str, ...]) -> str:
  """The name of a format; raises TypeError unless it is one of `formats`."""
  try:
    found = jnp.dtype(value).name
  except TypeError:
    found = None
  if found not in formats:
    raise TypeError(
      f"`{name}` is {value!r}; want one of {check_pieces.names_of(formats)}"
    )
  return found


def largest(dtype: np.dtype) -> float:
  """The largest number of a format; of integers that of both signs."""
  if jnp.issubdtype(dtype, jnp.integer):
    return float(jnp.iinfo(dtype).max)
  return float(jnp.finfo(dtype).max)


def least_magnitude(dtype: np.dtype) -> float:
  """Blocks with no magnitude as large as this count as zeros."""
  return largest(dtype) * float(jnp.finfo(jnp.float32).tiny)


def scales(amax: jax.Array, dtype: np.dtype) -> tuple[jax.Array, jax.Array]:
  """The scale of each block, and what to multiply its values by.

  Args:
    amax: largest magnitudes, float32.
    dtype: the format.
  """
  top = np.float32(largest(dtype))
  # Not (amax >= least), which NaN is not either.
  faint = amax < np.float32(least_magnitude(dtype))
  scale = jnp.where(faint, np.float32(0), amax * (np.float32(1) / top))
  return scale, jnp.where(faint, np.float32(0), top / amax)


def rounded(x: jax.Array, dtype: np.dtype) -> jax.Array:
  """Float32 values within the format's range, rounded to it."""
  if dtype == jnp.dtype("float4_e2m1fn"):
    # Some conversions to it round twice, by way of another format.
    size = jnp.abs(x)
    step = jnp.where(size < 2, 0.5, jnp.where(size < 4, 1.0, 2.0))
    x = jnp.round(x / step) * step
  if not jnp.issubdtype(dtype, jnp.integer):
    return x.astype(dtype)
  # Next to this number floats are integers, in their lowest bits: one addition
  # rounds, to the nearest even, where a TPU has no instruction to.
  bits = lax.bitcast_convert_type(x + np.float32(1.5 * 2**23), jnp.int32)
  # Truncated, as a conversion of integers is.
  return bits.astype(jnp.int8).astype(dtype)


def quantize(
  x: jax.Array, dtype: np.dtype, axes: int | tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
  """Quantises an array whose values along `axes` share a scale.

  Args:
    x: float values.
    dtype: the format.
    axes: that share a scale; they stay, with size 1, in the scales.

  Returns:
    The quantised values, in `dtype`, and their scales, float32.
  """
  wide = x.astype(jnp.float32)
  amax = jnp.max(jnp.abs(wide), axis=axes, keepdims=True, initial=0.0)
  scale, inverse = scales(amax, dtype)
  return rounded(wide * inverse, dtype), scale


def quantize_weight(
  weight: jax.Array, how: Quantization, transposed: bool
) -> tuple[jax.Array, jax.Array]:
  """Quantises a weight by blocks along k.

  Args:
    weight: [g, k, n], or [g, n, k] if transposed.
    how: format and block, which divides k.
    transposed: the layout.

  Returns:
    The weight in its own layout, and scales [g, k_blocks, n].
  """
  axis = 2 if transposed else 1
  k = weight.shape[axis]
  blocks = k // how.block if how.block and k else 1
  shape = list(weight.shape)
  shape[axis : axis + 1] = [blocks, k // blocks]
  q, scale = quantize(weight.reshape(shape), jnp.dtype(how.dtype), axis + 1)
  scale = scale.squeeze(axis + 1)
  return q.reshape(weight.shape), scale.swapaxes(1, 2) if transposed else scale


def dequantized_rows(x: jax.Array, dtype: np.dtype, block: int) -> jax.Array:
  """What quantised rows stand for, float32 [rows, k].

  Args:
    x: float rows [rows, k].
    dtype: the format.
    block: columns that share a scale; the last ones may be fewer.
  """
  parts = []
  for start in range(0, x.shape[1], block):
    q, scale = quantize(x[:, start : start + block], dtype, 1)
    parts.append(q.astype(jnp.float32) * scale)
  return jnp.concatenate(parts, axis=1) if parts else x.astype(jnp.float32)
