"""`split_gmm`: gate and up as two weights, with one read of lhs.

The gradients' products are differentiable operations again:

    split   dlhs is a sum of two products in one kernel, drhs two tgmm
    sum     the gradient of its two lhs is a split, drhs two tgmm
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmm import (
  checks,
  dispatch,
  gated_checks,
  meshes,
  names,
  quantized,
  varying,
)
from gmm import config as config_lib
from gmm.config import Config, Problem
from gmm.pair_operands import PairOperands


def split_gmm(
  lhs: jax.Array,
  rhs_gate: jax.Array,
  rhs_up: jax.Array,
  group_sizes: jax.Array,
  *,
  group_offset: jax.Array | int | None = None,
  transpose_rhs: bool = False,
  preferred_element_type: Any = None,
  rhs_gate_scale: jax.Array | None = None,
  rhs_up_scale: jax.Array | None = None,
  rhs_gate_bias: jax.Array | None = None,
  rhs_up_bias: jax.Array | None = None,
  precision: Any = None,
  config: Config | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Multiplies by two weights: `ops.gmm` of each, with one read of lhs.

  Where both have n columns, one kernel computes both products, and one the
  gradient `dgate @ gate^T + dup @ up^T` of lhs, which is rounded once. Where
  they have not, each of them is two kernels: the second adds to what the first
  wrote, so that dlhs is rounded once more, to lhs's dtype.

  Differentiable in lhs, rhs_gate, rhs_up and their biases, as `ops.gmm` is.

  Args:
    lhs: [m, k]: dtypes as in `ops.gmm`.
    rhs_gate: [g, k, n], or [g, n, k] if `transpose_rhs`. Read as it lies. It
      may be quantised, in every form that `ops.gmm` takes.
    rhs_up: [g, k, n2], or [g, n2, k]; of the same dtype.
    group_sizes: integers [g_total], as in `ops.gmm`.
    group_offset: as in `ops.gmm`.
    transpose_rhs: whether the weights are [g, n, k].
    preferred_element_type: the results' dtype; the default is as in `ops.gmm`.
    rhs_gate_scale: [g, k_blocks, n], for quantised weights, as in `ops.gmm`.
    rhs_up_scale: [g, k_blocks, n2], with as many blocks.
    rhs_gate_bias: [g, n], added to rows of local groups.
    rhs_up_bias: [g, n2]; both or none.
    precision: as in `ops.gmm`.
    config: how to compute; its tiles are those of each product.

  Returns:
    gate [m, n] and up [m, n2].

  Raises:
    ValueError: shapes disagree, one weight has a scale or a bias and the other
      has none, a tiling that does not fit, or a precision that has no meaning.
    TypeError: a dtype that no backend takes, or weights of two dtypes.
    NotImplementedError: a valid request that the chosen backend cannot serve.
  """
  ops = _ops()
  config = ops._checked_config(config)
  rhs, scale = _unpacked(
    (rhs_gate, rhs_up), (rhs_gate_scale, rhs_up_scale), transpose_rhs
  )
  bias = rhs_gate_bias, rhs_up_bias
  problems = gated_checks.split_problems(
    lhs,
    rhs,
    group_sizes,
    group_offset=group_offset,
    transpose_rhs=transpose_rhs,
    preferred_element_type=preferred_element_type,
    rhs_scale=scale,
    rhs_bias=bias,
    precision=precision,
  )
  gate, up = problems
  meshes.check_whole(
    gate,
    lhs=lhs,
    rhs_gate=rhs[0],
    rhs_up=rhs[1],
    group_sizes=group_sizes,
    rhs_gate_scale=scale[0],
    rhs_up_scale=scale[1],
    rhs_gate_bias=rhs_gate_bias,
    rhs_up_bias=rhs_up_bias,
  )
  plan = _Pair(one=ops._plan(gate, config, precision), columns=(gate.n, up.n))
  x = _Arrays(
    lhs=(lhs,),
    rhs=tuple(
      quantized.without_gradient(problem, weight, f"rhs_{name}")
      for name, problem, weight in zip(_NAMES, problems, rhs, strict=True)
    ),
    scale=tuple(
      quantized.scale_without_gradient(one, f"rhs_{name}_scale")
      for name, one in zip(_NAMES, scale, strict=True)
      if one is not None
    ),
    bias=tuple(one for one in bias if one is not None),
  )
  x = dataclasses.replace(
    jax.tree.map(jnp.asarray, x),
    sizes=checks.canonical_sizes(group_sizes, gate.m),
    offset=checks.canonical_offset(group_offset, gate.g_total),
  )
  out = _split(plan, varying.tree_alike(x))
  return names.named(out, names.SPLIT_GMM_OUT)


_NAMES = ("gate", "up")


def _unpacked(
  rhs: tuple[Any, Any], scale: tuple[Any, Any], transpose_rhs: bool
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
  """Takes quantised arrays apart: the weights, and their scales or None."""
  found = []
  for called, *own in zip(gated_checks.SPLIT, rhs, scale, strict=True):
    with gated_checks.named(called):
      found.append(quantized.unpacked(*own, transpose_rhs))
  return tuple(zip(*found, strict=True))


# ---- split_gmm, the sum of two products, and their VJPs


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pair:
  """What is static about a split or a sum.

  Attributes:
    one: an `ops.Plan`: the first of the two products.
    columns: n of both weights.
  """

  one: Any
  columns: tuple[int, int]

  @property
  def fused(self) -> bool:
    """Whether one kernel does both."""
    return self.columns[0] == self.columns[1]


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["lhs", "rhs", "sizes", "offset", "scale", "bias"],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Arrays:
  """What is an array: as in `PairOperands`."""

  lhs: tuple[Any, ...]
  rhs: tuple[Any, Any]
  sizes: Any = None
  offset: Any = None
  scale: tuple[Any, ...] = ()
  bias: tuple[Any, ...] = ()


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _split(plan: _Pair, x: _Arrays) -> tuple[jax.Array, jax.Array]:
  if not plan.fused:
    problems = [
      dataclasses.replace(plan.one.problem, n=n) for n in plan.columns
    ]
    return tuple(
      _ops()._gmm(
        dataclasses.replace(plan.one, problem=problem), _half(x, 0, i)
      )
      for i, problem in enumerate(problems)
    )
  return _run(plan, "split", x)


def _split_fwd(
  plan: _Pair, x: _Arrays
) -> tuple[tuple[jax.Array, jax.Array], _Arrays]:
  return _split(plan, x), x


def _split_bwd(
  plan: _Pair, x: _Arrays, douts: tuple[jax.Array, jax.Array]
) -> tuple[_Arrays]:
  ops, p = _ops(), plan.one.problem
  dscale = (None,) * len(x.scale)
  if douts[0].dtype == jax.dtypes.float0:
    none = _Arrays(lhs=(None,), rhs=(None, None), scale=dscale)
    return (dataclasses.replace(none, bias=(None,) * len(x.bias)),)
  bias, x = x.bias, dataclasses.replace(x, bias=())
  dlhs = None
  if ops._has_gradient(p.lhs_dtype):
    dlhs = _other_lhs(plan, x, douts, p.lhs_dtype)
  drhs = (None, None)
  if quantized.has_gradient(p):
    drhs = tuple(_weight_gradient(plan, x, (0, d), p) for d in douts)
  dbias = tuple(
    ops._bias_gradient(plan.one, _single(x, 0, None), d).astype(b.dtype)
    for b, d in zip(bias, douts, strict=False)
  )
  return (_Arrays(lhs=(dlhs,), rhs=drhs, scale=dscale, bias=dbias),)


_split.defvjp(_split_fwd, _split_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum(plan: _Pair, x: _Arrays) -> jax.Array:
  return _run(plan, "sum", x)


def _sum_fwd(plan: _Pair, x: _Arrays) -> tuple[jax.Array, _Arrays]:
  return _sum(plan, x), x


def _sum_bwd(plan: _Pair, x: _Arrays, dout: jax.Array) -> tuple[_Arrays]:
  p = plan.one.problem
  has_gradient = _ops()._has_gradient
  dlhs = drhs = (None, None)
  if has_gradient(p.lhs_dtype):
    split, swapped = _transposed(plan, x, (dout,), p.lhs_dtype)
    dlhs = _split(split, swapped)
  if quantized.has_gradient(p):
    drhs = tuple(_weight_gradient(plan, x, (i, dout), p) for i in range(2))
  return (_Arrays(lhs=dlhs, rhs=drhs, scale=(None,) * len(x.scale)),)


_sum.defvjp(_sum_fwd, _sum_bwd)


def _run(plan: _Pair, pair: str, x: _Arrays) -> Any:
  problem = dataclasses.replace(plan.one.problem, pair=pair)
  static = dispatch.product(problem, plan.one.config, flipped=plan.one.flipped)
  operands = PairOperands(
    lhs=x.lhs,
    rhs=x.rhs,
    sizes=x.sizes,
    offset=x.offset,
    scale=x.scale,
    bias=x.bias,
  )
  return dispatch.run(static, operands.flat())


def _single(x: _Arrays, i: int, rhs: Any, **more: Any) -> Any:
  return _ops().Operands(
    lhs=x.lhs[i], rhs=rhs, sizes=x.sizes, offset=x.offset, **more
  )


def _half(x: _Arrays, i: int, half: int, **more: Any) -> Any:
  """The operands of one product by gate or up, of all that there are."""
  for name in ("scale", "bias"):
    if getattr(x, name):
      more[f"rhs_{name}"] = getattr(x, name)[half]
  return _single(x, i, x.rhs[half], **more)


def _other_lhs(
  plan: _Pair, x: _Arrays, douts: tuple[Any, Any], dtype: np.dtype
) -> jax.Array:
  """The gradient of the one lhs: a sum of two products."""
  total, x = _transposed(plan, x, douts, dtype)
  if plan.fused:
    return _sum(total, x)
  out = None
  for i in range(2):
    problem = dataclasses.replace(
      total.one.problem, k=plan.columns[i], has_existing=i > 0
    )
    out = _ops()._gmm(
      dataclasses.replace(total.one, problem=problem),
      _half(x, i, i, existing_out=out),
    )
  return out


def _transposed(
  plan: _Pair, x: _Arrays, lhs: tuple[Any, ...], dtype: np.dtype
) -> tuple[_Pair, _Arrays]:
  """The products of other lhs with the transposed weights, in place.

  Or with copies, if the config says so, as in `ops.gmm`.
  """
  one, rhs, p = plan.one, x.rhs, plan.one.problem
  transpose = not p.transpose_rhs
  if transpose and not (one.config.dlhs_in_place or p.packed_axis):
    rhs = tuple(weight.swapaxes(1, 2) for weight in rhs)
    transpose = False
    layout = "gkn" if one.flipped else "gnk"
    config = dataclasses.replace(one.config, rhs_layout=layout)
    one = dataclasses.replace(one, config=config)
  x = dataclasses.replace(x, lhs=lhs, rhs=rhs)
  compute = config_lib.compute_dtype(lhs[0].dtype, p.rhs_dtype)
  problem = checks.gmm_problem(
    lhs[0],
    rhs[0],
    x.sizes,
    group_offset=x.offset,
    transpose_rhs=transpose,
    preferred_element_type=dtype,
    rhs_scale=x.scale[0] if x.scale else None,
    backward="n" not in (p.scale_axis, p.packed_axis),
    precision=one.precision if compute == jnp.float32 else None,
  )
  one = dataclasses.replace(one, problem=problem, flipped=not one.flipped)
  columns = (problem.n, problem.n)
  return dataclasses.replace(plan, one=one, columns=columns), x


def _weight_gradient(
  plan: _Pair, x: _Arrays, at: tuple[int, jax.Array], p: Problem
) -> jax.Array:
  """The gradient of a weight: (which lhs, cotangent of the result)."""
  i, dout = at
  return _ops()._product(
    plan.one,
    _single(x, i if len(x.lhs) > 1 else 0, dout),
    num_groups=p.g,
    transpose_out=p.transpose_rhs,
    preferred_element_type=p.rhs_dtype,
  )


def _ops() -> Any:
  # Imported here because `gmm.ops` offers what this module defines.
  from gmm import ops

  return ops
