"""Operands that are quantised on the way, with gradients as if they were not.

The straight-through rule: rounding counts as the identity. What is quantised
has the real operand beside it (`vjp.Operands`), which the gradient goes to.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gmm import config as config_lib
from gmm import quantization, weight_checks
from gmm.config import Problem
from gmm.quantization import Quantization


def weight_quantization(
  value: Any, rhs: Any, rhs_scale: Any, *, transposed: bool
) -> Quantization | None:
  """Checks `rhs_quantization` against a weight that has been checked.

  Args:
    value: None, a format or its name, or a Quantization.
    rhs: the weight.
    rhs_scale: must be None.
    transposed: whether the weight is [g, n, k].

  Raises:
    ValueError: a weight that is quantised already, a block that does not divide
      k, or an attribute that is not for weights.
    TypeError: another format.
  """
  how = Quantization.of("rhs_quantization", value, quantization.WEIGHTS)
  if how is None:
    return None
  if how.per != "tensor":
    raise ValueError(
      f"`rhs_quantization` has per={how.per!r}, which is for gradients: a "
      "weight has a scale for each column and block; leave it out"
    )
  if rhs_scale is not None:
    raise ValueError(
      f"`rhs_quantization` is {how.dtype} and `rhs_scale` is given: `rhs` is "
      "quantised on the way or beforehand; drop one"
    )
  row = config_lib.DTYPES.get(jnp.dtype(rhs.dtype))
  if weight_checks.is_packed(rhs) or row is None or row.kind != "float":
    raise ValueError(
      f"`rhs_quantization` is {how.dtype} but `rhs` is {rhs.dtype}, quantised "
      "already; pass a bfloat16, float16 or float32 `rhs`, or its `rhs_scale`"
    )
  k = rhs.shape[2 if transposed else 1]
  if how.block is not None and k % how.block:
    raise ValueError(
      f"`rhs_quantization` has blocks of {how.block} along k but k = {k}; want "
      "a divisor of k, or None"
    )
  return how


def gradient_quantization(value: Any) -> Quantization | None:
  """Checks `dout_quantization`.

  Raises:
    ValueError: a block, which is for weights.
    TypeError: another format.
  """
  how = Quantization.of("dout_quantization", value, quantization.OPERANDS)
  if how is not None and how.block is not None:
    raise ValueError(
      f"`dout_quantization` has block={how.block}, which is for weights: dout "
      "has scales per='tensor' or 'channel'; leave it out"
    )
  return how


def of_lhs(problem: Problem, dout: Quantization) -> Quantization | None:
  """How lhs is quantised for drhs: only if a matrix unit may gain by that.

  Args:
    problem: gmm, whose gradient it is.
    dout: how its cotangent is.
  """
  own = problem.lhs_quantization
  if own is None or (own.kind == "i") != (dout.dtype == "int8"):
    return None
  return Quantization(dtype=own.name, per=dout.per)


@functools.partial(jax.jit, static_argnums=(1, 2))
def quantized_weight(
  rhs: jax.Array, how: Quantization, transposed: bool
) -> tuple[jax.Array, jax.Array]:
  """The weight in its own layout and its scales; neither has a gradient."""
  return quantization.quantize_weight(lax.stop_gradient(rhs), how, transposed)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def quantized_rows(
  problem: Problem,
  how: Quantization,
  axis: int,
  operands: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
  """Quantises an operand of a gradient; the result has no gradient.

  Rows of no local group have no say in scales that others share, and come to
  nothing.

  Args:
    problem: gmm, whose gradient it is.
    how: the format, and whether all of it shares a scale.
    axis: else it is values along this axis that do.
    operands: the rows, [m, columns], canonical sizes and canonical offset.

  Returns:
    The rows in the format, and scales, float32: [1, 1], or [m, 1] for axis 1
    and [1, columns] for axis 0.
  """
  rows, sizes, offset = operands
  rows, dtype = lax.stop_gradient(rows), jnp.dtype(how.dtype)
  if how.per == "channel" and axis == 1:
    return quantization.quantize(rows, dtype, 1)
  # Of canonical sizes no sum is too large for int32.
  bounds = jnp.pad(jnp.minimum(jnp.cumsum(sizes), problem.m), (1, 0))
  last = jnp.minimum(offset[0] + problem.g, problem.g_total)
  row = lax.broadcasted_iota(jnp.int32, (problem.m, 1), 0)
  local = (row >= bounds[offset[0]]) & (row < bounds[last])
  axes = (0, 1) if how.per == "tensor" else 0
  wide = jnp.where(local, rows.astype(jnp.float32), 0)
  return quantization.quantize(wide, dtype, axes)
