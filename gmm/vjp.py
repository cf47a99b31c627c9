"""Custom VJPs of gmm and tgmm, whose products are again these operations.

    gmm NN   rhs [g, k, n]     dlhs is NT on rhs, drhs is tgmm
    gmm NT   rhs [g, n, k]     dlhs is NN on rhs, drhs is tgmm, transposed out
    tgmm     out [g, k, n]     dlhs is NT on its cotangent, ddout is NN

So gradients can be differentiated too.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmm import checks, dispatch, meshes, quantized, varying
from gmm import config as config_lib
from gmm import precision as precision_lib
from gmm.config import Config, Problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """What is static about one operation.

  Attributes:
    problem: what to compute.
    config: the caller's choices.
    precision: what the gradients ask for where their operands are float32.
    flipped: the call's k and n are the weight's n and k, as in dlhs.
  """

  problem: Problem
  config: Config
  precision: jax.lax.Precision
  flipped: bool = False


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=[
    "lhs",
    "rhs",
    "sizes",
    "offset",
    "rhs_scale",
    "lhs_scale",
    "rhs_bias",
    "existing_out",
  ],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Operands:
  """What is an array; `rhs` is dout in tgmm. Sizes and offset are canonical."""

  lhs: Any
  rhs: Any
  sizes: Any = None
  offset: Any = None
  rhs_scale: Any = None
  lhs_scale: Any = None
  rhs_bias: Any = None
  existing_out: Any = None

  def arrays(self) -> tuple[jax.Array, ...]:
    """Those that are there, in the order of the fields."""
    return tuple(jax.tree.leaves(self))


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
  bias, by_row = x.rhs_bias, x.lhs_scale
  x = dataclasses.replace(x, rhs_bias=None, lhs_scale=None)
  if _has_gradient(p.lhs_dtype) and by_row is None:
    dlhs = _gmm_dlhs(plan, x, dout)
  if quantized.has_gradient(p):
    drhs = _product(
      plan,
      dataclasses.replace(x, rhs=_scaled(dout, by_row)),
      num_groups=p.g,
      transpose_out=p.transpose_rhs,
      preferred_element_type=p.rhs_dtype,
    )
  if bias is not None:
    dbias = _bias_gradient(plan, x, dout).astype(bias.dtype)
  existing = dout if p.has_existing else None
  return (Operands(lhs=dlhs, rhs=drhs, rhs_bias=dbias, existing_out=existing),)


_gmm.defvjp(_gmm_fwd, _gmm_bwd)


def _scaled(dout: jax.Array, by_row: jax.Array | None) -> jax.Array:
  """The cotangent of the product of lhs as it is stored."""
  if by_row is None:
    return dout
  return (dout.astype(jnp.float32) * by_row).astype(dout.dtype)


def _gmm_dlhs(plan: Plan, x: Operands, dout: jax.Array) -> jax.Array:
  """NT on a [g, k, n] weight, NN on a [g, n, k] one."""
  transpose = not plan.problem.transpose_rhs
  rhs = x.rhs
  in_place = plan.config.dlhs_in_place or plan.problem.packed_axis
  if transpose and not in_place:
    # On TPU a copy of the whole weight, unless k lies in its lanes: the kernel
    # takes the swapped array row-major, whatever the layout of the weight.
    rhs = rhs.swapaxes(1, 2)
    transpose = False
    layout = "gkn" if plan.flipped else "gnk"
    config = dataclasses.replace(plan.config, rhs_layout=layout)
    plan = dataclasses.replace(plan, config=config)
  return _product(
    plan,
    dataclasses.replace(x, lhs=dout, rhs=rhs),
    flipped=not plan.flipped,
    transpose_rhs=transpose,
    preferred_element_type=plan.problem.lhs_dtype,
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
    dataclasses.replace(x, lhs=ones, rhs=dout),
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
  if _has_gradient(p.lhs_dtype):
    dlhs = _product(
      plan,
      dataclasses.replace(x, lhs=x.rhs, rhs=ct),
      flipped=not plan.flipped,
      transpose_rhs=not p.transpose_out,
      preferred_element_type=p.lhs_dtype,
    )
  if _has_gradient(p.rhs_dtype):
    ddout = _product(
      plan,
      dataclasses.replace(x, rhs=ct),
      transpose_rhs=p.transpose_out,
      preferred_element_type=p.rhs_dtype,
    )
  return (Operands(lhs=dlhs, rhs=ddout),)


_tgmm.defvjp(_tgmm_fwd, _tgmm_bwd)


# ---- pieces


def _plan(problem: Problem, config: Config, precision: Any) -> Plan:
  precision = precision_lib.canonical(precision)
  if precision is None:
    # Read here, so that the gradients use what the forward pass was given.
    precision = precision_lib.ambient()
  return Plan(problem=problem, config=config, precision=precision)


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
  else:
    options["rhs_scale"] = x.rhs_scale
    if plan.problem.kind == "gmm":  # dlhs: what was along k is now along n
      p = plan.problem
      options["backward"] = "n" not in (p.scale_axis, p.packed_axis)
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
  )
  return (_tgmm if is_tgmm else _gmm)(plan, x)
