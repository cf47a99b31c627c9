"""Weights that arrive quantised: their forms, and what has no gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gmm import config as config_lib
from gmm.config import Problem


def unpacked(rhs: Any, rhs_scale: Any, transpose_rhs: bool) -> tuple[Any, Any]:
  """Takes a quantised array apart.

  Args:
    rhs: an array, or an object with a `qvalue` [g, k, n] (or [g, n, k]) and a
      `scale` of the same rank: 1 or g by k_blocks by 1 or n, in the order of
      the qvalue's axes. (qwix's QArray is one.)
    rhs_scale: must be None for such an object.
    transpose_rhs: whether the qvalue is [g, n, k].

  Returns:
    rhs and rhs_scale [g, k_blocks, n], as they came if `rhs` is an array.

  Raises:
    ValueError: two scales, or a scale that does not fit.
    NotImplementedError: a zero point.
  """
  if not hasattr(rhs, "qvalue") or not hasattr(rhs, "scale"):
    return rhs, rhs_scale
  if rhs_scale is not None:
    raise ValueError(
      "`rhs` has a `scale` of its own and `rhs_scale` is given; drop one"
    )
  if getattr(rhs, "zero_point", None) is not None:
    raise NotImplementedError(
      "`rhs` has a `zero_point`; want a symmetrically quantised weight"
    )
  value, scale = rhs.qvalue, rhs.scale
  if len(value.shape) != 3 or len(scale.shape) != 3:
    names = "[g, n, k]" if transpose_rhs else "[g, k, n]"
    raise ValueError(
      f"`rhs` has a qvalue of shape {list(value.shape)} and a scale of shape "
      f"{list(scale.shape)}; want {names} and as many axes in the scale"
    )
  if transpose_rhs:
    scale = scale.swapaxes(1, 2)
  g, n = value.shape[0], value.shape[1 if transpose_rhs else 2]
  if scale.shape[0] not in (1, g) or scale.shape[2] not in (1, n):
    raise ValueError(
      f"`rhs` has a qvalue of shape {list(value.shape)} and a scale of shape "
      f"{list(rhs.scale.shape)}; want scales of blocks along k only: 1 or "
      f"g = {g} of them for the groups, 1 or n = {n} for the columns"
    )
  return value, jnp.broadcast_to(scale, (g, scale.shape[1], n))


def unpack(carrier: jax.Array, axis: int) -> jax.Array:
  """Eight int4 along an axis of each int32, as int8."""
  axis %= carrier.ndim
  shape = list(carrier.shape)
  shape[axis] *= config_lib.PACKED
  ones = [1] * (carrier.ndim + 1)
  ones[axis + 1] = config_lib.PACKED
  left = 28 - 4 * jnp.arange(config_lib.PACKED, dtype=jnp.int32)
  # The shifts back spread the sign.
  values = jnp.expand_dims(carrier, axis + 1) << left.reshape(ones) >> 28
  return values.astype(jnp.int8).reshape(shape)


def has_gradient(problem: Problem) -> bool:
  """Whether the weight of a gmm is one that training may change."""
  kind = config_lib.DTYPES[problem.rhs_dtype].kind
  return kind == "float" or (kind == "float8" and not problem.scale_block)


def without_gradient(problem: Problem, rhs: Any, name: str = "rhs") -> Any:
  """`rhs`, which refuses its gradient if it has none (integers: zeros)."""
  is_integer = config_lib.DTYPES[problem.rhs_dtype].kind == "int"
  if is_integer or has_gradient(problem):
    return rhs
  return _quantized_without_gradient(rhs, name, problem.rhs_dtype)


def lhs_without_gradient(problem: Problem, lhs: Any) -> Any:
  """`lhs`, which refuses its gradient if it is a float with scales."""
  is_integer = config_lib.DTYPES[problem.lhs_dtype].kind == "int"
  if is_integer or not problem.lhs_scales:
    return lhs
  return _quantized_without_gradient(lhs, "lhs", problem.lhs_dtype)


def operand_without_gradient(x: Any, scale: Any, name: str) -> Any:
  """An operand of tgmm, which refuses its gradient if it is a scaled float."""
  if scale is None or config_lib.DTYPES[jnp.dtype(x.dtype)].kind == "int":
    return x
  return _quantized_without_gradient(x, name, x.dtype)


def _quantized_without_gradient(x: Any, name: str, dtype: Any) -> jax.Array:
  message = (
    f"the gradient of `{name}` is wanted, but `{name}` is {dtype} "
    "that has been quantised; differentiate with respect to the other "
    f"operands, or pass `jax.lax.stop_gradient({name})`"
  )
  return _refuse((TypeError, message), jnp.asarray(x))


def scale_without_gradient(scale: Any, name: str = "rhs_scale") -> Any:
  """A scale, or None; it refuses its gradient."""
  if scale is None:
    return None
  message = (
    f"the gradient of `{name}` is wanted, which is not supported; "
    "differentiate with respect to the other operands, or pass "
    f"`jax.lax.stop_gradient({name})`"
  )
  return _refuse((NotImplementedError, message), jnp.asarray(scale))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _refuse(why: tuple[type[Exception], str], x: jax.Array) -> jax.Array:
  """The identity; raises an error where it is differentiated."""
  del why
  return x


@functools.partial(_refuse.defjvp, symbolic_zeros=True)
def _(
  why: tuple[type[Exception], str],
  primals: tuple[jax.Array],
  tangents: tuple[Any],
) -> tuple[jax.Array, Any]:
  (x,), (tangent,) = primals, tangents
  if isinstance(tangent, jax.custom_derivatives.SymbolicZero):
    return x, tangent
  error, message = why
  raise error(message)
