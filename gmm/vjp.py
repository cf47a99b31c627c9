"""Custom VJPs of gmm and tgmm, whose products are again these operations.

    gmm NN   rhs [g, k, n]     dlhs is NT on rhs, drhs is tgmm
    gmm NT   rhs [g, n, k]     dlhs is NN on rhs, drhs is tgmm, transposed out
    tgmm     out [g, k, n]     dlhs is NT on its cotangent, ddout is NN

So gradients can be differentiated too. An operand that was quantised on the way
has its real one beside it, which takes its gradient (straight_through.py).
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
  meshes,
  quantized,
  straight_through,
  varying,
)
from gmm import config as config_lib
from gmm import precision as precision_lib
from gmm.config import Config, Problem
from gmm.quantization import Quantization


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """What is static about one operation.

  Attributes:
    problem: what to compute.
    config: the caller's choices.
    precision: what the gradients ask for where their operands are float32.
    flipped: the call's k and n are the weight's n and k, as in dlhs.
    dout_quantization: gmm only, what its cotangent is quantised to for both
      products of its gradients (not for those of these in turn).
  """

  problem: Problem
  config: Config
  precision: jax.lax.Precision
  flipped: bool = False
  dout_quantization: Quantization | None = None


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=[
    "lhs",
    "rhs",
    "sizes",
    "offset",
    "rhs_scale",
    "lhs_scale",
    "dout_scale",
    "rhs_bias",
    "existing_out",
    "lhs_real",
    "rhs_real",
  ],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Operands:
  """What is an array; `rhs` is dout in tgmm. Sizes and offset are canonical.

  `lhs_real` and `rhs_real` are what `lhs` and `rhs` were before they were
  quantised on the way, for the gradient alone: no product reads them.
  """

  lhs: Any
  rhs: Any
  sizes: Any = None
  offset: Any = None
  rhs_scale: Any = None
  lhs_scale: Any = None
  dout_scale: Any = None
  rhs_bias: Any = None
  existing_out: Any = None
  lhs_real: Any = None
  rhs_real: Any = None

  def arrays(self) -> tuple[jax.Array, ...]:
    """What a product reads, in the order of the fields."""
    read = dataclasses.replace(self, lhs_real=None, rhs_real=None)
    return tuple(jax.tree.leaves(read))

  def with_gradient(self, operand: str, gradient: bool) -> np.dtype | None:
    """The dtype of the gradient of "lhs" or "rhs", None for no gradient.

    Args:
      operand: which one.
      gradient: whether what is stored has one.
    """
    real = getattr(self, f"{operand}_real")
    if real is not None:
      return real.dtype
    return getattr(self, operand).dtype if gradient else None


# ---- gmm and its VJP


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gmm(plan: Plan, x: Operands) -> jax.Array:
  return _run(plan, x)


def _gmm_fwd(plan: Plan, x: Operands) -> tuple[jax.Array, Operands]:
  # Not _run: a second derivative differentiates this, too.
  # Of the bias its dtype is needed, and its shape costs next to nothing.
  return _gmm(plan, x), dataclasses.replace(x, existing_out=None)


def _gmm_bwd(plan: Plan, x: Operands, dout: jax.Array) -> tuple[Operands]:
  p = plan.problem
  if dout.dtype == jax.dtypes.float0:
    return (Operands(lhs=None, rhs=None),)
  dlhs = drhs = dbias = None
  of_lhs = x.with_gradient(
    "lhs", _has_gradient(p.lhs_dtype) and not p.lhs_scales
  )
  of_rhs = x.with_gradient("rhs", quantized.has_gradient(p))
  given, bias = x, x.rhs_bias
  x = dataclasses.replace(_with_real_lhs(x), rhs_bias=None)
  if of_lhs is not None:
    dlhs = _gmm_dlhs(plan, x, dout, of_lhs)
  if of_rhs is not None:
    drhs = _gmm_drhs(plan, x, dout, of_rhs)
  if bias is not None:
    dbias = _bias_gradient(plan, x, dout).astype(bias.dtype)
  existing = dout if p.has_existing else None
  more = {"rhs_bias": dbias, "existing_out": existing}
  return (_gradients(given, dlhs, drhs, **more),)


_gmm.defvjp(_gmm_fwd, _gmm_bwd)


def _with_real_lhs(x: Operands) -> Operands:
  """With lhs as it was before it was quantised on the way."""
  if x.lhs_real is None:
    return x
  return dataclasses.replace(x, lhs=x.lhs_real, lhs_scale=None, lhs_real=None)


def _gradients(x: Operands, dlhs: Any, drhs: Any, **more: Any) -> Operands:
  """The cotangents, each where its real operand is; None is zero."""
  return Operands(
    lhs=dlhs if x.lhs_real is None else None,
    rhs=drhs if x.rhs_real is None else None,
    lhs_real=None if x.lhs_real is None else dlhs,
    rhs_real=None if x.rhs_real is None else drhs,
    **more,
  )


def _scaled(ct: jax.Array, scale: jax.Array | None) -> jax.Array:
  """The cotangent of a product of operands as they are stored."""
  if scale is None:
    return ct
  return (ct.astype(jnp.float32) * scale).astype(ct.dtype)


def _gmm_dlhs(
  plan: Plan, x: Operands, dout: jax.Array, dtype: np.dtype
) -> jax.Array:
  """NT on a [g, k, n] weight, NN on a [g, n, k] one."""
  transpose = not plan.problem.transpose_rhs
  x = dataclasses.replace(x, lhs=dout, lhs_scale=None)
  if plan.dout_quantization is not None:
    quantised, scale = straight_through.quantized_rows(
      plan.problem, plan.dout_quantization, 1, (dout, x.sizes, x.offset)
    )
    x = dataclasses.replace(x, lhs=quantised, lhs_scale=scale, lhs_real=dout)
  in_place = plan.config.dlhs_in_place or plan.problem.packed_axis
  if transpose and not in_place:
    # On TPU a copy of the whole weight, unless k lies in its lanes: the kernel
    # takes the swapped array row-major, whatever the layout of the weight.
    x = dataclasses.replace(
      x,
      rhs=x.rhs.swapaxes(1, 2),
      rhs_real=None if x.rhs_real is None else x.rhs_real.swapaxes(1, 2),
    )
    transpose = False
    layout = "gkn" if plan.flipped else "gnk"
    config = dataclasses.replace(plan.config, rhs_layout=layout)
    plan = dataclasses.replace(plan, config=config)
  return _product(
    plan,
    x,
    flipped=not plan.flipped,
    transpose_rhs=transpose,
    preferred_element_type=dtype,
  )


def _gmm_drhs(
  plan: Plan, x: Operands, dout: jax.Array, dtype: np.dtype
) -> jax.Array:
  """TN, written in the weight's own layout."""
  p = plan.problem
  if p.lhs_scales > 1 and x.lhs_scale is not None:
    # Scales of rows are within the sums: dout takes them.
    dout = _scaled(dout, x.lhs_scale)
    x = dataclasses.replace(x, lhs_scale=None)
  x = dataclasses.replace(x, rhs=dout, rhs_real=None)
  if plan.dout_quantization is not None:
    quantised, scale = straight_through.quantized_rows(
      p, plan.dout_quantization, 0, (dout, x.sizes, x.offset)
    )
    x = dataclasses.replace(x, rhs=quantised, dout_scale=scale, rhs_real=dout)
    how = straight_through.of_lhs(p, plan.dout_quantization)
    if how is not None:
      quantised, scale = straight_through.quantized_rows(
        p, how, 0, (x.lhs, x.sizes, x.offset)
      )
      x = dataclasses.replace(x, lhs=quantised, lhs_scale=scale, lhs_real=x.lhs)
  return _product(
    plan,
    x,
    num_groups=p.g,
    transpose_out=p.transpose_rhs,
    preferred_element_type=dtype,
  )


def _bias_gradient(plan: Plan, x: Operands, dout: jax.Array) -> jax.Array:
  """The sum of dout over each group's rows: ones^T @ dout, float32 [g, n]."""
  ones = varying.vary_like(jnp.ones((plan.problem.m, 1), dout.dtype), dout)
  # One column of lhs: tiles for a weight's k, or for its layout, do not apply.
  config = dataclasses.replace(plan.config, tiling=None, rhs_layout="gkn")
  sums = _product(
    dataclasses.replace(
      plan,
      config=config,
      precision=jax.lax.Precision.HIGHEST,
      flipped=False,
    ),
    Operands(lhs=ones, rhs=dout, sizes=x.sizes, offset=x.offset),
    num_groups=plan.problem.g,
    preferred_element_type=jnp.float32,
  )
  return sums[:, 0]


# ---- tgmm and its VJP


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tgmm(plan: Plan, x: Operands) -> jax.Array:
  return _run(plan, x)


def _tgmm_fwd(plan: Plan, x: Operands) -> tuple[jax.Array, Operands]:
  return _tgmm(plan, x), x


def _tgmm_bwd(plan: Plan, x: Operands, ct: jax.Array) -> tuple[Operands]:
  p = plan.problem
  if ct.dtype == jax.dtypes.float0:
    return (Operands(lhs=None, rhs=None),)
  dlhs = ddout = None
  of_lhs, of_rhs = (
    x.with_gradient(name, _has_gradient(dtype) and not scales)
    for name, dtype, scales in (
      ("lhs", p.lhs_dtype, p.lhs_scales),
      ("rhs", p.rhs_dtype, p.dout_scales),
    )
  )
  given, x = x, _with_real_lhs(x)
  if x.rhs_real is not None:
    x = dataclasses.replace(x, rhs=x.rhs_real, dout_scale=None, rhs_real=None)
  # Scales were on the result, and are on its cotangent.
  by_k, by_n = (
    x if x is None else jnp.expand_dims(x, 1 + (p.transpose_out == is_dout))
    for x, is_dout in ((x.lhs_scale, False), (x.dout_scale, True))
  )
  x = dataclasses.replace(x, lhs_scale=None, dout_scale=None)
  if of_lhs is not None:
    dlhs = _product(
      plan,
      dataclasses.replace(x, lhs=x.rhs, rhs=_scaled(ct, by_n)),
      flipped=not plan.flipped,
      transpose_rhs=not p.transpose_out,
      preferred_element_type=of_lhs,
    )
  if of_rhs is not None:
    ddout = _product(
      plan,
      dataclasses.replace(x, rhs=_scaled(ct, by_k)),
      transpose_rhs=p.transpose_out,
      preferred_element_type=of_rhs,
    )
  return (_gradients(given, dlhs, ddout),)


_tgmm.defvjp(_tgmm_fwd, _tgmm_bwd)


# ---- pieces


def _plan(
  problem: Problem,
  config: Config,
  precision: Any,
  dout_quantization: Quantization | None = None,
) -> Plan:
  precision = precision_lib.canonical(precision)
  if precision is None:
    # Read here, so that the gradients use what the forward pass was given.
    precision = precision_lib.ambient()
  return Plan(
    problem=problem,
    config=config,
    precision=precision,
    dout_quantization=dout_quantization,
  )


def _operands(
  problem: Problem, x: Operands, sizes: Any, offset: Any
) -> Operands:
  """Arrays that vary alike: here, where autodiff sees the casts."""
  arrays = {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
  if problem.kind == "tgmm":
    arrays["dout"] = arrays.pop("rhs")
  arrays |= {"sizes": None, "group_sizes": sizes}
  meshes.check_whole(problem, **arrays)
  x = dataclasses.replace(
    jax.tree.map(jnp.asarray, x),
    sizes=checks.canonical_sizes(sizes, problem.m),
    offset=checks.canonical_offset(offset, problem.g_total),
  )
  leaves, tree = jax.tree.flatten(x)
  return tree.unflatten(varying.vary_alike(*leaves))


def _has_gradient(dtype: np.dtype) -> bool:
  return config_lib.DTYPES[dtype].kind != "int"


def _run(plan: Plan, x: Operands) -> jax.Array:
  static = dispatch.product(plan.problem, plan.config, flipped=plan.flipped)
  return dispatch.run(static, x.arrays())


def _product(
  plan: Plan, x: Operands, *, flipped: bool | None = None, **options: Any
) -> jax.Array:
  """One product of a gradient, differentiable itself; tgmm if num_groups."""
  is_tgmm = "num_groups" in options
  if is_tgmm:
    x = dataclasses.replace(x, rhs_scale=None)
    options["dout_scale"] = x.dout_scale
  else:
    options["rhs_scale"] = x.rhs_scale
    if plan.problem.kind == "gmm":  # dlhs: what was along k is now along n
      p = plan.problem
      options["backward"] = "n" not in (p.scale_axis, p.packed_axis)
  options["lhs_scale"] = x.lhs_scale
  describe = checks.tgmm_problem if is_tgmm else checks.gmm_problem
  dtypes = x.lhs.dtype, x.rhs.dtype
  if plan.problem.packed_axis and not is_tgmm:
    dtypes = x.lhs.dtype, plan.problem.rhs_dtype
  compute = config_lib.compute_dtype(*dtypes)
  precision = plan.precision if compute == jnp.float32 else None
  problem = describe(
    x.lhs, x.rhs, x.sizes, group_offset=x.offset, precision=precision, **options
  )
  plan = dataclasses.replace(
    plan,
    problem=problem,
    flipped=plan.flipped if flipped is None else flipped,
    dout_quantization=None,
  )
  return (_tgmm if is_tgmm else _gmm)(plan, x)
