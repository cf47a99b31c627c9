"""The loss of a mixture-of-experts block, in jax and in NumPy.

The block is testing/examples/moe.py's layer with GEGLU; its loss is the mean
squared distance from a target.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from gmm import ops
from reference import moe as reference
from reference.moe import Weights as Weights
from testing.examples import moe

ACTIVATION = "gelu_tanh"


def loss(
  w: Weights, target: jax.Array, top_k: int, config: ops.Config
) -> jax.Array:
  """The block's loss, float32; differentiable in `w`.

  Args:
    w: the block's operands, tokens among them.
    target: float32 [t, hidden].
    top_k: experts of a token.
    config: how products are computed.
  """
  out, _ = moe.layer(
    w.tokens,
    moe.Weights(w.router, w.wi, w.wo),
    top_k=top_k,
    activation=ACTIVATION,
    config=config,
  )
  return jnp.mean((out.astype(jnp.float32) - target) ** 2)


def reference_gradients(
  w: Weights, experts: np.ndarray, target: np.ndarray
) -> tuple[float, Weights]:
  """The loss and its gradients in float64, for the experts [t, top_k] of `w`.

  These are given, since two that are nearly equal may change places.
  """
  away = reference.layer(w, experts, activation=ACTIVATION) - target
  return float(np.mean(away**2)), reference.layer_vjp(
    w, experts, 2 * away / away.size, activation=ACTIVATION
  )
