"""Two products in one, in plain XLA (see `config.Problem.pair`).

Sums are in float32 until the one rounding, as in the kernels; what those never
write, XLA does: gate and up [m, 2n] in float32.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gmm import activations, xla_backend
from gmm.config import Problem
from gmm.pair_operands import PairOperands


def run(
  problem: Problem,
  operands: PairOperands,
  activation: activations.Activation | None,
) -> Any:
  """Computes a problem with `pair`, which may be empty.

  Args:
    problem: what to compute.
    operands: arrays.
    activation: of "gated".

  Returns:
    [m, n] in `problem.out_dtype`; two of them in "split".
  """
  p, x = dataclasses.replace(problem, pair=None), operands

  def one(i: int, like: Problem, existing: Any = None) -> jax.Array:
    return xla_backend.gmm(
      x.lhs[min(i, len(x.lhs) - 1)],
      x.rhs[i],
      x.sizes,
      x.offset,
      rhs_scale=x.scale[i] if x.scale else None,
      rhs_bias=x.bias[i] if x.bias else None,
      existing_out=existing,
      problem=dataclasses.replace(like, has_existing=existing is not None),
    )

  if problem.pair == "split":
    return one(0, p), one(1, p)
  wide = dataclasses.replace(p, out_dtype=p.acc_dtype)
  if problem.pair == "sum":
    return one(1, wide, one(0, wide)).astype(p.out_dtype)
  both = one(0, dataclasses.replace(wide, n=2 * p.n))
  out = activations.apply(activation, both[:, : p.n], both[:, p.n :])
  local = local_rows(p, x.sizes, x.offset)[:, None]
  return jnp.where(local, out, 0).astype(p.out_dtype)


def local_rows(
  problem: Problem, sizes: jax.Array, offset: jax.Array
) -> jax.Array:
  """Which rows belong to a local group: bool [m].

  Args:
    problem: the product.
    sizes: canonical group sizes, int32 [g_total].
    offset: canonical offset of the first local group, int32 [1].
  """
  ends = jnp.minimum(jnp.cumsum(sizes), problem.m)
  ends = jnp.concatenate([jnp.zeros_like(ends[:1]), ends])
  first = ends[jnp.minimum(offset[0], problem.g_total)]
  last = ends[jnp.minimum(offset[0] + problem.g, problem.g_total)]
  rows = lax.iota(jnp.int32, problem.m)
  return (rows >= first) & (rows < last)
