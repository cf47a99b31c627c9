"""The weight of a product, as `aot.product` and `aot.roofline` describe it."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmm.formats import PACKED

AXES = ("k", "n")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weight:
  """A weight [g, k, n] beside an operand of another format, maybe scaled.

  Attributes:
    dtype: of the weight; int32 for eight int4 each, along `axis`.
    scale_block: elements along `axis` that share a scale; None for no scales.
    axis: "k" or "n", of the weight: what the product contracts that it was
      quantised for.
  """

  dtype: np.dtype
  scale_block: int | None
  axis: str

  @classmethod
  def of(cls, dtype: Any, scale_block: Any, scale_axis: Any) -> Weight:
    """Checks what a caller says of a weight.

    Raises:
      TypeError: `dtype` is none, or `scale_block` is no integer.
      ValueError: an unknown axis, or a block below 1.
    """
    if scale_axis not in AXES:
      raise ValueError(
        f"`scale_axis` is {scale_axis!r}; want one of {', '.join(AXES)}"
      )
    dtype = checked_dtype("rhs_dtype", dtype)
    if scale_block is not None:
      scale_block = _block(scale_block)
    return cls(dtype=dtype, scale_block=scale_block, axis=scale_axis)

  def is_backward(self, mode: str) -> bool:
    """Whether "nn" or "nt" is the gradient, as of `gmm_v2`'s `backward`."""
    return self.axis != ("k" if mode == "nn" else "n")

  def rhs(self, g: int, k: int, n: int) -> jax.ShapeDtypeStruct:
    """The weight.

    Raises:
      ValueError: eight values of int4 do not divide it.
    """
    sizes = {"k": k, "n": n}
    if self.dtype == jnp.int32:
      if sizes[self.axis] % PACKED:
        raise ValueError(
          f"`rhs_dtype` is int32, which packs {PACKED} values along "
          f"{self.axis}, but {self.axis} = {sizes[self.axis]}"
        )
      sizes[self.axis] //= PACKED
    return jax.ShapeDtypeStruct((g, sizes["k"], sizes["n"]), self.dtype)

  def scale(self, g: int, k: int, n: int) -> jax.ShapeDtypeStruct | None:
    """Its scales, [g, blocks, the other axis] float32, or None.

    Raises:
      ValueError: `scale_block` does not divide the axis.
    """
    if self.scale_block is None:
      return None
    size, other = (k, n) if self.axis == "k" else (n, k)
    if size % self.scale_block:
      raise ValueError(
        f"`scale_block` is {self.scale_block} but {self.axis} = {size}; want "
        f"a divisor of {self.axis}"
      )
    shape = (g, size // self.scale_block, other)
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def checked_dtype(name: str, dtype: Any) -> np.dtype:
  """Returns `dtype` as one.

  Raises:
    TypeError: it is none; names `name`.
  """
  try:
    return jnp.dtype(dtype)
  except TypeError:
    raise TypeError(f"`{name}` is {dtype!r}, which is no dtype") from None


def _block(value: Any) -> int:
  try:
    if isinstance(value, (bool, np.bool_)):
      raise TypeError
    block = operator.index(value)
  except TypeError:
    raise TypeError(
      f"`scale_block` is {value!r}; want None or a positive int"
    ) from None
  if block < 1:
    raise ValueError(f"`scale_block` is {value}; want None or a positive int")
  return block
