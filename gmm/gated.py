"""`gmm_gated`: gate and up in one weight, combined before they are rounded.

Its gradients take gate and up anew (or kept), the activation's own derivative,
and the products of `ops.gmm` on the weight, which are differentiable again.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmm import (
  activations,
  checks,
  dispatch,
  gated_checks,
  meshes,
  names,
  quantized,
  varying,
  xla_gated,
)
from gmm.config import Config, Problem


def gmm_gated(
  lhs: jax.Array,
  rhs_gate_up: jax.Array,
  group_sizes: jax.Array,
  *,
  group_offset: jax.Array | int | None = None,
  transpose_rhs: bool = False,
  activation: str | activations.Activation = "silu",
  preferred_element_type: Any = None,
  rhs_scale: jax.Array | None = None,
  rhs_bias: jax.Array | None = None,
  precision: Any = None,
  recompute: bool = True,
  config: Config | None = None,
) -> jax.Array:
  """Multiplies by gate and up weights, and combines the two products.

    gate, up = the halves of `ops.gmm(lhs, rhs_gate_up, ...)` in float32
    out[i] = act(gate[i]) * up[i]    rows of local groups
    out[i] = 0                       every other row

  with the weight's scale and bias in gate and up. On TPU one kernel, which
  writes [m, n] and never gate and up. The activation is computed in float32
  from the float32 sums, and rounded once.

  Differentiable in lhs, rhs_gate_up and rhs_bias, as `ops.gmm` is: dlhs reads
  the weight in place, quantised or not. The gradients' gate and up are rounded
  to the result's dtype (to bfloat16, where that is 8 bits wide), and so is what
  the activation's derivative makes of them.

  Args:
    lhs: [m, k], of a floating-point dtype of `ops.gmm`, or int8 times a
      floating-point weight.
    rhs_gate_up: [g, k, 2n], or [g, 2n, k] if `transpose_rhs`: the n columns of
      gate, then those of up. Read as it lies. It may be quantised, in every
      form that `ops.gmm` takes.
    group_sizes: integers [g_total], as in `ops.gmm`.
    group_offset: as in `ops.gmm`.
    transpose_rhs: whether `rhs_gate_up` is [g, 2n, k].
    activation: "silu": `gate * sigmoid(gate) * up`. "gelu", and "gelu_tanh" for
      its approximation: `gelu(gate) * up`. "swigluoai", as in gpt-oss: gate
      clipped at 7 and up within [-7, 7], `(up + 1) * gate * sigmoid(1.702 *
      gate)`. Or a function act(gate, up) of two float32 arrays of one shape,
      that returns the value of the product, element by element, with what
      Pallas has for a TPU (see activations.py). Define it once: it is compared
      by identity.
    preferred_element_type: the result's dtype, a floating-point one; the
      default is as in `ops.gmm`.
    rhs_scale: [g, k_blocks, 2n], for a quantised weight, as in `ops.gmm`.
    rhs_bias: [g, 2n], added to gate and up of rows of local groups before the
      activation.
    precision: as in `ops.gmm`.
    recompute: True computes gate and up again for the gradients; False keeps
      them, [m, 2n], from a forward pass that then writes them.
    config: how to compute; of its `Tiles`, fwd is for [k, n] here, and for
      [k, 2n] where gate and up are written; dlhs and drhs for [k, 2n].

  Returns:
    [m, n].

  Raises:
    ValueError: shapes disagree, an odd number of columns, an unknown
      activation or one whose result has another shape, a tiling that does not
      fit, or a precision that has no meaning.
    TypeError: a dtype that no backend takes.
    NotImplementedError: integers times integers, or what the chosen backend
      cannot serve.
  """
  ops = _ops()
  config = ops._checked_config(config)
  if not isinstance(recompute, (bool, np.bool_)):
    raise TypeError(f"`recompute` is {recompute!r}; want True or False")
  with gated_checks.named(gated_checks.GATED):
    rhs_gate_up, rhs_scale = quantized.unpacked(
      rhs_gate_up, rhs_scale, transpose_rhs
    )
  operands = lhs, rhs_gate_up, group_sizes
  options = {
    "group_offset": group_offset,
    "transpose_rhs": transpose_rhs,
    "rhs_scale": rhs_scale,
    "rhs_bias": rhs_bias,
    "precision": precision,
  }
  problem = gated_checks.gated_problem(
    *operands, preferred_element_type=preferred_element_type, **options
  )
  meshes.check_whole(
    problem,
    lhs=lhs,
    rhs_gate_up=rhs_gate_up,
    group_sizes=group_sizes,
    rhs_scale=rhs_scale,
    rhs_bias=rhs_bias,
  )
  whole = gated_checks.whole_problem(
    *operands, preferred_element_type=_kept_dtype(problem.out_dtype), **options
  )
  plan = _Gated(
    problem=problem,
    whole=ops._plan(whole, config, precision),
    activation=activations.resolve(activation),
    recompute=bool(recompute),
  )
  x = ops.Operands(
    lhs=lhs,
    rhs=quantized.without_gradient(whole, rhs_gate_up, "rhs_gate_up"),
    rhs_scale=quantized.scale_without_gradient(rhs_scale),
    rhs_bias=rhs_bias,
  )
  x = dataclasses.replace(
    jax.tree.map(jnp.asarray, x),
    sizes=checks.canonical_sizes(group_sizes, problem.m),
    offset=checks.canonical_offset(group_offset, problem.g_total),
  )
  out = _gated(plan, varying.tree_alike(x))
  return names.named(out, names.GMM_GATED_OUT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Gated:
  """What is static about one `gmm_gated`.

  Attributes:
    problem: the gated product.
    whole: an `ops.Plan`: gate and up as one product, for the gradients.
    activation: act(gate, up).
    recompute: whether gate and up are computed again for the gradients.
  """

  problem: Problem
  whole: Any
  activation: activations.Activation
  recompute: bool

  def activated(self, gate_up: jax.Array) -> jax.Array:
    """float32 [m, n] of gate and up [m, 2n]."""
    n = self.problem.n
    return activations.apply(self.activation, gate_up[:, :n], gate_up[:, n:])


def _kept_dtype(out: np.dtype) -> np.dtype:
  """Of gate and up between the passes."""
  return out if out.itemsize > 1 else jnp.dtype(jnp.bfloat16)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gated(plan: _Gated, x: Any) -> jax.Array:
  static = dispatch.product(plan.problem, plan.whole.config, flipped=False)
  static = dataclasses.replace(static, activation=plan.activation)
  return dispatch.run(static, x.arrays())


def _gated_fwd(plan: _Gated, x: Any) -> tuple[jax.Array, tuple[Any, Any]]:
  # Not dispatch.run: a second derivative differentiates this, too.
  if plan.recompute:
    return _gated(plan, x), (x, None)
  p = plan.problem
  problem = dataclasses.replace(plan.whole.problem, out_dtype=p.acc_dtype)
  whole = dataclasses.replace(plan.whole, problem=problem)
  gate_up = _ops()._gmm(whole, x)
  local = xla_gated.local_rows(p, x.sizes, x.offset)[:, None]
  out = jnp.where(local, plan.activated(gate_up), 0).astype(p.out_dtype)
  kept = gate_up.astype(plan.whole.problem.out_dtype)
  return out, (x, names.named(kept, names.GMM_GATED_GATE_UP))


def _gated_bwd(
  plan: _Gated, kept: tuple[Any, Any], dout: jax.Array
) -> tuple[Any]:
  ops = _ops()
  x, gate_up = kept
  if gate_up is None:
    gate_up = ops._gmm(plan.whole, x)
  _, vjp = jax.vjp(plan.activated, gate_up.astype(np.float32))
  (dgate_up,) = vjp(dout.astype(np.float32))
  return ops._gmm_bwd(plan.whole, x, dgate_up.astype(gate_up.dtype))


_gated.defvjp(_gated_fwd, _gated_bwd)


def _ops() -> Any:
  # Imported here because `gmm.ops` offers what this module defines.
  from gmm import ops

  return ops
