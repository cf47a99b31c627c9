"""The public operations: checked, differentiable, pure.

    from gmm import ops
    out = ops.gmm(lhs, rhs, group_sizes)                          # [m, n]
    drhs = ops.tgmm(lhs, dout, group_sizes, num_groups=g)         # [g, k, n]

Each has a custom VJP whose products are again these operations, so that
gradients can be differentiated too (in reverse: a custom VJP has no forward
mode, so `jax.jvp` and what is built on it raise TypeError):

    gmm NN   rhs [g, k, n]     dlhs is NT on rhs, drhs is tgmm
    gmm NT   rhs [g, n, k]     dlhs is NN on rhs, drhs is tgmm, transposed out
    tgmm     out [g, k, n]     dlhs is NT on its cotangent, ddout is NN
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmm import checks, dispatch, names, quantized, varying
from gmm import config as config_lib
from gmm import precision as precision_lib
from gmm.config import Config as Config
from gmm.config import Problem
from gmm.config import Tiles as Tiles
from gmm.gated import gmm_gated as gmm_gated
from gmm.names import GMM_GATED_GATE_UP as GMM_GATED_GATE_UP
from gmm.names import GMM_GATED_OUT as GMM_GATED_OUT
from gmm.names import GMM_OUT as GMM_OUT
from gmm.names import SPLIT_GMM_OUT as SPLIT_GMM_OUT
from gmm.names import TGMM_OUT as TGMM_OUT
from gmm.ragged import ragged_dot as ragged_dot
from gmm.ragged import ragged_dot_general as ragged_dot_general
from gmm.split import split_gmm as split_gmm

_DEFAULT = Config()


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
  rhs_bias: Any = None
  existing_out: Any = None

  def arrays(self) -> tuple[jax.Array, ...]:
    """Those that are there, in the order of the fields."""
    return tuple(jax.tree.leaves(self))


def gmm(
  lhs: jax.Array,
  rhs: jax.Array,
  group_sizes: jax.Array,
  *,
  group_offset: jax.Array | int | None = None,
  transpose_rhs: bool = False,
  preferred_element_type: Any = None,
  existing_out: jax.Array | None = None,
  rhs_scale: jax.Array | None = None,
  rhs_bias: jax.Array | None = None,
  precision: Any = None,
  config: Config | None = None,
) -> jax.Array:
  """Multiplies each group of rows of `lhs` by that group's matrix.

    out[i] = lhs[i] @ rhs[group(i) - group_offset]    rows of local groups
    out[i] = 0                                        every other row

  where `rhs` is scaled by `rhs_scale`; `rhs_bias` is added to rows of local
  groups, and `existing_out` to all rows. Sums are in float32 (int32 for
  integers) and rounded once.

  Differentiable in lhs, rhs, rhs_bias and existing_out: dlhs has lhs's dtype
  and drhs rhs's, whatever the result's is; integer operands have no gradient.
  A quantised weight is read as it is in both directions.

  Args:
    lhs: [m, k]: bfloat16, float32, float16 (XLA backend only), float8_e4m3fn,
      float8_e5m2 or int8. Operands may differ: the narrower is widened.
    rhs: [g, k, n], or [g, n, k] if `transpose_rhs`; also int4, float4_e2m1fn,
      or int32 with k / 8 for k, each holding eight int4 along k, the first one
      in the low bits (with `transpose_rhs` for XLA only); or an object with a
      `qvalue` and a `scale`, such as qwix's QArray, each of the weight's rank:
      the scale's axes divide the weight's.
    group_sizes: integers [g_total], g_total >= g. Traced, so not checked:
      groups are clipped at row m and a negative size counts as 0.
    group_offset: int, or integer scalar or [1], may be traced: the number of
      the group that rhs[0] belongs to. None is 0; outside [0, g_total) no row
      is local.
    transpose_rhs: whether `rhs` is [g, n, k]; it is read as it lies.
    preferred_element_type: the result's dtype. By default lhs's for 16- and
      32-bit floats, int32 for integers, bfloat16 for float8.
    existing_out: [m, n] in the result's dtype, added to the product.
    rhs_scale: [g, k_blocks, n] float32 or bfloat16, for a quantised `rhs`: the
      weight in use is `rhs` times the scale of its block of k. k_blocks divides
      k; k is as in `lhs` and n as in the result, however `rhs` lies.
      It has no gradient: one that is asked for is refused, and so is that of a
      float8 or 4-bit `rhs`.
    rhs_bias: [g, n] float, added to rows of local groups before the rounding.
    precision: for float32 operands: a `jax.lax.Precision` or its name, used for
      the gradients too. None is jax's default.
    config: how to compute; `Config()` by default.

  Returns:
    [m, n].

  Raises:
    ValueError: shapes disagree, a tiling does not fit, or a precision that has
      no meaning.
    TypeError: a dtype that no backend takes.
    NotImplementedError: a valid request that the chosen backend cannot serve.
  """
  config = _checked_config(config)
  rhs, rhs_scale = quantized.unpacked(rhs, rhs_scale, transpose_rhs)
  problem = checks.gmm_problem(
    lhs,
    rhs,
    group_sizes,
    group_offset=group_offset,
    transpose_rhs=transpose_rhs,
    preferred_element_type=preferred_element_type,
    existing_out=existing_out,
    rhs_scale=rhs_scale,
    rhs_bias=rhs_bias,
    precision=precision,
  )
  plan = _plan(problem, config, precision)
  x = Operands(
    lhs=lhs,
    rhs=quantized.without_gradient(problem, rhs),
    rhs_scale=quantized.scale_without_gradient(rhs_scale),
    rhs_bias=rhs_bias,
    existing_out=existing_out,
  )
  out = _gmm(plan, _operands(problem, x, group_sizes, group_offset))
  return names.named(out, names.GMM_OUT)


def tgmm(
  lhs: jax.Array,
  dout: jax.Array,
  group_sizes: jax.Array,
  *,
  num_groups: int,
  group_offset: jax.Array | int | None = None,
  preferred_element_type: Any = None,
  precision: Any = None,
  config: Config | None = None,
) -> jax.Array:
  """Multiplies the rows of each group of `lhs` and `dout`, over those rows.

    out[i] = lhs[rows of group i + group_offset]^T @ dout[the same rows]

  and exactly zero for groups without rows. This is the gradient of a weight.
  Differentiable in lhs and dout.

  Args:
    lhs: [m, k]: dtypes as in `gmm`.
    dout: [m, n].
    group_sizes: integers [g_total], g_total >= num_groups; as in `gmm`.
    num_groups: local groups, a static int.
    group_offset: int, or integer scalar or [1], may be traced: the number of
      the group that out[0] belongs to.
    preferred_element_type: the result's dtype; the default is as in `gmm`.
    precision: as in `gmm`.
    config: how to compute; of its `Tiles`, drhs is for this product, dlhs and
      fwd for its gradients in lhs and dout.

  Returns:
    [num_groups, k, n].

  Raises:
    ValueError: shapes disagree, a tiling does not fit, or a precision that has
      no meaning.
    TypeError: a dtype that no backend takes.
    NotImplementedError: a valid request that the chosen backend cannot serve.
  """
  config = _checked_config(config)
  problem = checks.tgmm_problem(
    lhs,
    dout,
    group_sizes,
    num_groups=num_groups,
    group_offset=group_offset,
    preferred_element_type=preferred_element_type,
    precision=precision,
  )
  plan = _plan(problem, config, precision)
  x = Operands(lhs=lhs, rhs=dout)
  out = _tgmm(plan, _operands(problem, x, group_sizes, group_offset))
  return names.named(out, names.TGMM_OUT)


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
  bias, x = x.rhs_bias, dataclasses.replace(x, rhs_bias=None)
  if _has_gradient(p.lhs_dtype):
    dlhs = _gmm_dlhs(plan, x, dout)
  if quantized.has_gradient(p):
    drhs = _product(
      plan,
      dataclasses.replace(x, rhs=dout),
      num_groups=p.g,
      transpose_out=p.transpose_rhs,
      preferred_element_type=p.rhs_dtype,
    )
  if bias is not None:
    dbias = _bias_gradient(plan, x, dout).astype(bias.dtype)
  existing = dout if p.has_existing else None
  return (Operands(lhs=dlhs, rhs=drhs, rhs_bias=dbias, existing_out=existing),)


_gmm.defvjp(_gmm_fwd, _gmm_bwd)


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


def _checked_config(config: Config | None) -> Config:
  if config is None:
    return _DEFAULT
  if not isinstance(config, Config):
    raise TypeError(
      f"`config` is a {type(config).__name__}; want ops.Config, or None"
    )
  return config


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
