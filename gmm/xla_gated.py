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


def run(
  problem: Problem,
  operands: tuple[jax.Array, ...],
  activation: activations.Activation | None,
) -> Any:
  """Computes a problem with `pair`, which may be empty.

  Args:
    problem: what to compute.
    operands: lhs, rhs, canonical sizes, canonical offset, and the second lhs
      and rhs as there are.
    activation: of "gated".

  Returns:
    [m, n] in `problem.out_dtype`; two of them in "split".
  """
  p = dataclasses.replace(problem, pair=None)
  lhs, rhs, sizes, offset, *second = operands
  if problem.pair == "split":
    return tuple(
      xla_backend.gmm(lhs, weight, sizes, offset, existing_out=None, problem=p)
      for weight in (rhs, *second)
    )
  wide = dataclasses.replace(p, out_dtype=p.acc_dtype)
  if problem.pair == "sum":
    x, weight = second
    first = xla_backend.gmm(
      lhs, rhs, sizes, offset, existing_out=None, problem=wide
    )
    more = dataclasses.replace(wide, has_existing=True)
    out = xla_backend.gmm(
      x, weight, sizes, offset, existing_out=first, problem=more
    )
    return out.astype(p.out_dtype)
  both = xla_backend.gmm(
    lhs,
    rhs,
    sizes,
    offset,
    existing_out=None,
    problem=dataclasses.replace(wide, n=2 * p.n),
  )
  out = activations.apply(activation, both[:, : p.n], both[:, p.n :])
  local = local_rows(p, sizes, offset)[:, None]
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
