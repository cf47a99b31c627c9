"""Rows that a product does not write, as megablox treats them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from gmm import checks, meshes, varying, xla_gated


def local_rows(
  lhs: Any, rhs: Any, group_sizes: Any, **options: Any
) -> jax.Array:
  """Which rows belong to a group of `rhs`: bool [m, 1].

  Args:
    lhs: [m, k].
    rhs: [g, k, n], or [g, n, k].
    group_sizes: integers [g_total].
    **options: as in `ops.gmm`, to check `existing_out` before it is used.

  Raises:
    ValueError, TypeError, NotImplementedError: as `ops.gmm`.
  """
  problem = checks.gmm_problem(lhs, rhs, group_sizes, **options)
  meshes.check_whole(problem, lhs=lhs, rhs=rhs, group_sizes=group_sizes)
  sizes = checks.canonical_sizes(group_sizes, problem.m)
  offset = checks.canonical_offset(options.get("group_offset"), problem.g_total)
  return xla_gated.local_rows(problem, sizes, offset)[:, None]


def masked(x: jax.Array, keep: jax.Array) -> jax.Array:
  """Zeros but where `keep`; the cotangent of x is that of the result, whole.

  That is no derivative. It is what megablox and MaxText hand on for rows that
  they have overwritten.
  """
  return _masked(*varying.vary_alike(jnp.asarray(x), keep))


@jax.custom_vjp
def _masked(x: jax.Array, keep: jax.Array) -> jax.Array:
  return jnp.where(keep, x, jnp.zeros_like(x))


def _masked_fwd(x: jax.Array, keep: jax.Array) -> tuple[jax.Array, None]:
  return _masked(x, keep), None


def _masked_bwd(_: None, dout: jax.Array) -> tuple[jax.Array, None]:
  return dout, None


_masked.defvjp(_masked_fwd, _masked_bwd)
