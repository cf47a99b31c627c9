"""A mixture-of-experts layer in plain functions.

    out, routing = moe.layer(tokens, weights, top_k=2)

Each token visits the `top_k` experts that its router's logits are largest for.
Its copies are sorted by expert, so that every expert's rows lie together; two
grouped products compute all experts at once, however many rows each has; then
the results go back to their tokens, weighted by the softmax of the chosen
logits. No expert has a capacity and no token is dropped: experts may be empty,
and one may have all the tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm import ops


class Weights(NamedTuple):
  """What the layer learns.

  Attributes:
    router: [hidden, experts].
    wi: [experts, hidden, 2 * intermediate]: the columns of gate, then of up.
    wo: [experts, intermediate, hidden].
  """

  router: jax.Array
  wi: jax.Array
  wo: jax.Array


class Routing(NamedTuple):
  """Where tokens go, in float32 at least.

  Attributes:
    probabilities: [t, experts], the softmax of all logits.
    gates: [t, top_k], the softmax of the chosen ones.
    experts: int32 [t, top_k], the best first.
  """

  probabilities: jax.Array
  gates: jax.Array
  experts: jax.Array


class Rows(NamedTuple):
  """Copies of tokens, sorted by expert; of equal experts the first token first.

  Attributes:
    token: [t * top_k], the token of each row.
    place: [t, top_k], the row of each token's choice.
    group_sizes: int32 [experts], the rows of each expert.
  """

  token: jax.Array
  place: jax.Array
  group_sizes: jax.Array


def init(
  rng: np.random.Generator,
  *,
  hidden: int,
  intermediate: int,
  experts: int,
  dtype: Any = jnp.float32,
) -> Weights:
  """Random weights that keep the size of what they multiply, about."""

  def normal(*shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape) * shape[-2] ** -0.5, dtype)

  return Weights(
    router=normal(hidden, experts),
    wi=normal(experts, hidden, 2 * intermediate),
    wo=normal(experts, intermediate, hidden),
  )


def layer(
  tokens: jax.Array,
  weights: Weights,
  *,
  top_k: int,
  activation: Any = "silu",
  dtype: Any = None,
  config: ops.Config | None = None,
) -> tuple[jax.Array, Routing]:
  """Computes the layer; differentiable in tokens and weights.

  Args:
    tokens: [t, hidden].
    weights: the layer's.
    top_k: experts of a token, from 1 to all of them.
    activation: of `ops.gmm_gated`.
    dtype: what the experts' products take; by default the tokens' own.
    config: how they are computed.

  Returns:
    [t, hidden] in the tokens' dtype; and the routing, for `balance`.

  Raises:
    ValueError: shapes disagree, or a `top_k` that is out of range.
  """
  routing = route(tokens, weights.router, top_k)
  rows = by_expert(routing.experts, weights.router.shape[1])
  lhs, wi, wo = tokens[rows.token], weights.wi, weights.wo
  if dtype is not None:
    lhs, wi, wo = (x.astype(dtype) for x in (lhs, wi, wo))
  inner = ops.gmm_gated(
    lhs, wi, rows.group_sizes, activation=activation, config=config
  )
  outer = ops.gmm(inner, wo, rows.group_sizes, config=config)
  return combine(outer, rows, routing.gates).astype(tokens.dtype), routing


def route(tokens: jax.Array, router: jax.Array, top_k: int) -> Routing:
  """Chooses the experts of each token.

  Args:
    tokens: [t, hidden].
    router: [hidden, experts].
    top_k: experts of a token.

  Raises:
    ValueError: shapes disagree, or a `top_k` that is out of range.
  """
  if tokens.ndim != 2 or tokens.shape[1:] != router.shape[:1]:
    raise ValueError(
      f"`tokens` is {list(tokens.shape)} and `router` {list(router.shape)}; "
      "want [t, hidden] and [hidden, experts]"
    )
  if not 1 <= top_k <= router.shape[1]:
    raise ValueError(
      f"`top_k` is {top_k} and `router` has {router.shape[1]} experts; want "
      "1 <= top_k <= experts"
    )
  wide = jnp.promote_types(tokens.dtype, jnp.float32)
  # A rounded logit changes who computes a token, so no bfloat16 on a TPU.
  logits = jnp.dot(
    tokens.astype(wide), router.astype(wide), precision=lax.Precision.HIGHEST
  )
  best, experts = lax.top_k(logits, top_k)
  return Routing(jax.nn.softmax(logits), jax.nn.softmax(best), experts)


def by_expert(experts: jax.Array, num_experts: int) -> Rows:
  """Sorts the choices [t, top_k] of tokens by expert."""
  top_k = experts.shape[1]
  order = jnp.argsort(experts.reshape(-1), stable=True)
  return Rows(
    token=order // top_k,
    place=jnp.argsort(order).reshape(experts.shape),
    group_sizes=jnp.bincount(experts.reshape(-1), length=num_experts),
  )


def combine(outer: jax.Array, rows: Rows, gates: jax.Array) -> jax.Array:
  """Adds up each token's rows [t * top_k, hidden], weighted by its gates."""
  chosen = outer[rows.place].astype(gates.dtype)
  return jnp.sum(chosen * gates[:, :, None], axis=1)


def balance(routing: Routing) -> jax.Array:
  """A loss that spreads tokens: 1 where each expert gets the same number.

    experts * sum over e of (share of choices that are e) * (mean probability)

  Shares count, so they have no gradient; the probabilities have.
  """
  num_experts = routing.probabilities.shape[1]
  counts = jnp.bincount(routing.experts.reshape(-1), length=num_experts)
  shares = counts / routing.experts.size
  return num_experts * jnp.sum(shares * routing.probabilities.mean(axis=0))
