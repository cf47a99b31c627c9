"""The public operations: checked, differentiable, pure.

    from gmm import ops
    out = ops.gmm(lhs, rhs, group_sizes)                          # [m, n]
    drhs = ops.tgmm(lhs, dout, group_sizes, num_groups=g)         # [g, k, n]

Their gradients, in reverse mode, are in vjp.py: a custom VJP has no forward
mode, so `jax.jvp` and what is built on it raise TypeError.
"""

from __future__ import annotations

from typing import Any

import jax

from gmm import checks, names, quantized
from gmm.config import Config as Config
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
from gmm.vjp import Operands as Operands
from gmm.vjp import _bias_gradient as _bias_gradient
from gmm.vjp import (
  _gmm,
  _operands,
  _plan,
  _tgmm,
)
from gmm.vjp import _gmm_bwd as _gmm_bwd
from gmm.vjp import _has_gradient as _has_gradient
from gmm.vjp import _product as _product

_DEFAULT = Config()


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
  lhs_scale: jax.Array | None = None,
  lhs_quantization: str | None = None,
  precision: Any = None,
  config: Config | None = None,
) -> jax.Array:
  """Multiplies each group of rows of `lhs` by that group's matrix.

    out[i] = lhs[i] @ rhs[group(i) - group_offset]    rows of local groups
    out[i] = 0                                        every other row

  where `rhs` is scaled by `rhs_scale` and `lhs` by `lhs_scale`; `rhs_bias` is
  added to rows of local groups, and `existing_out` to all rows. Sums are in
  float32 (int32 for integers) and rounded once.

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
      32-bit floats, bfloat16 for float8, int32 for integers without scales and
      bfloat16 with some.
    existing_out: [m, n] in the result's dtype, added to the product.
    rhs_scale: [g, k_blocks, n] float32 or bfloat16, for a quantised `rhs`: the
      weight in use is `rhs` times the scale of its block of k. k_blocks divides
      k; k is as in `lhs` and n as in the result, however `rhs` lies.
      It has no gradient: one that is asked for is refused, and so is that of a
      float8 or 4-bit `rhs`.
    rhs_bias: [g, n] float, added to rows of local groups before the rounding.
    lhs_scale: [1, 1] or [m, 1] float32 or bfloat16, for an int8 or float8
      `lhs`: what is multiplied is `lhs` times the scale of all or of its row.
      It has no gradient, and nor has a float8 `lhs` that comes with it: one
      that is asked for is refused. For the gradient of `rhs` the cotangent
      takes the scale, and is rounded to its own dtype.
    lhs_quantization: "int8", "float8_e4m3fn" or "float8_e5m2": a bfloat16 or
      float32 `lhs` is quantised to it as it is multiplied, for a weight of the
      same format (or 4-bit integers, for "int8"). Each row has a scale for each
      of the weight's blocks along k, or for each 4096 columns: the largest
      magnitude over the format's largest number. Rows of zeros, and of numbers
      too small for such a scale, give zeros. Gradients are straight-through:
      dlhs and drhs are those of an `lhs` that is not quantised. A kernel for a
      chip whose matrix unit lacks the format is refused; the XLA backend
      multiplies what the quantised values stand for, in float32.
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
    lhs_scale=lhs_scale,
    lhs_quantization=lhs_quantization,
    precision=precision,
  )
  plan = _plan(problem, config, precision)
  x = Operands(
    lhs=quantized.lhs_without_gradient(problem, lhs),
    rhs=quantized.without_gradient(problem, rhs),
    rhs_scale=quantized.scale_without_gradient(rhs_scale),
    lhs_scale=quantized.scale_without_gradient(lhs_scale, "lhs_scale"),
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


def _checked_config(config: Config | None) -> Config:
  if config is None:
    return _DEFAULT
  if not isinstance(config, Config):
    raise TypeError(
      f"`config` is a {type(config).__name__}; want ops.Config, or None"
    )
  return config
