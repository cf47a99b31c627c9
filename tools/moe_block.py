"""A mixture-of-experts feed-forward block, in jax and in NumPy.

Tokens are routed to their top experts and sorted by expert; then wi, gelu, wo
as grouped products; then each token's results are combined by their gates. The
loss is the mean squared distance from a target.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gmm import ops
from reference import oracle


class Weights(NamedTuple):
  """What the loss is differentiated by.

  Attributes:
    tokens: [t, hidden].
    gates: [t, top_k] of the chosen experts; each row adds up to 1.
    wi: [experts, hidden, intermediate].
    wo: [experts, intermediate, hidden].
  """

  tokens: jax.Array
  gates: jax.Array
  wi: jax.Array
  wo: jax.Array


class Rows(NamedTuple):
  """Where rows come from, sorted by expert.

  Attributes:
    slot: [t * top_k] index into the flattened (token, choice) pairs.
    token: [t * top_k] token of each row.
    group_sizes: [experts] rows of each expert.
  """

  slot: jax.Array
  token: jax.Array
  group_sizes: jax.Array


def route(
  tokens: jax.Array, router: jax.Array, top_k: int
) -> tuple[jax.Array, Rows]:
  """Returns the gates [t, top_k] and the rows of `tokens` for each expert."""
  logits = tokens.astype(jnp.float32) @ router.astype(jnp.float32)
  best, experts = jax.lax.top_k(logits, top_k)
  slot = jnp.argsort(experts.reshape(-1), stable=True)
  sizes = jnp.bincount(experts.reshape(-1), length=router.shape[1])
  rows = Rows(slot, slot // top_k, sizes.astype(jnp.int32))
  return jax.nn.softmax(best, axis=-1), rows


def loss(
  w: Weights, rows: Rows, target: jax.Array, config: ops.Config
) -> jax.Array:
  """The block's loss; differentiable in `w`."""
  lhs = w.tokens[rows.token]
  inner = ops.gmm(lhs, w.wi, rows.group_sizes, config=config)
  outer = ops.gmm(jax.nn.gelu(inner), w.wo, rows.group_sizes, config=config)
  gated = outer.astype(jnp.float32) * w.gates.reshape(-1)[rows.slot][:, None]
  combined = jnp.zeros(target.shape, jnp.float32).at[rows.token].add(gated)
  return jnp.mean((combined - target) ** 2)


def reference_gradients(
  w: Weights, rows: Rows, target: np.ndarray
) -> tuple[float, Weights]:
  """The loss and its gradients in float64, by the oracle and the chain rule."""
  tokens, gates, wi, wo = (np.asarray(x, np.float64) for x in w)
  slot, token, sizes = (np.asarray(x) for x in rows)
  lhs = tokens[token]
  inner = oracle.gmm(lhs, wi, sizes)
  hidden, slope = _gelu(inner)
  outer = oracle.gmm(hidden, wo, sizes)
  gate = gates.reshape(-1)[slot][:, None]
  combined = np.zeros(target.shape)
  np.add.at(combined, token, outer * gate)
  away = combined - target

  dcombined = 2 * away / away.size
  douter = dcombined[token] * gate
  dgates = np.zeros(gates.size)
  dgates[slot] = np.sum(dcombined[token] * outer, axis=1)
  second = oracle.gmm_vjp(hidden, wo, sizes, douter)
  first = oracle.gmm_vjp(lhs, wi, sizes, second.dlhs * slope)
  dtokens = np.zeros(tokens.shape)
  np.add.at(dtokens, token, first.dlhs)
  return float(np.mean(away**2)), Weights(
    dtokens, dgates.reshape(gates.shape), first.drhs, second.drhs
  )


def _gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """jax.nn.gelu's tanh form, and its derivative."""
  c, d = np.sqrt(2 / np.pi), 0.044715
  tanh = np.tanh(c * (x + d * x**3))
  slope = (1 + tanh) / 2 + x / 2 * (1 - tanh**2) * c * (1 + 3 * d * x**2)
  return x * (1 + tanh) / 2, slope
