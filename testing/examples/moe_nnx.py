"""The mixture-of-experts layer of `moe.py` as a flax module.

experts = MoE(64, 128, experts=8, top_k=2, rngs=nnx.Rngs(0))
out, balance = experts(tokens)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gmm import ops
from testing.examples import moe


class MoE(nnx.Module):
  """A feed-forward layer of experts.

  Attributes:
    router: [hidden, experts].
    wi: [experts, hidden, 2 * intermediate]: the columns of gate, then of up.
    wo: [experts, intermediate, hidden].
    top_k: experts that a token visits.
    activation: of `ops.gmm_gated`.
    dtype: what the experts' products take; None is the tokens' own.
    config: how they are computed.
  """

  def __init__(
    self,
    hidden: int,
    intermediate: int,
    *,
    experts: int,
    top_k: int,
    activation: Any = "silu",
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
    config: ops.Config | None = None,
    rngs: nnx.Rngs,
  ) -> None:
    """Makes the layer with random weights, as wide as flax's own layers.

    Raises:
      ValueError: a `top_k` that is not from 1 to `experts`.
    """
    if not 1 <= top_k <= experts:
      raise ValueError(
        f"`top_k` is {top_k} and `experts` is {experts}; want 1 <= top_k <= "
        "experts"
      )
    one = nnx.initializers.lecun_normal()
    # Each expert is a matrix of its own: the first axis widens none of them.
    each = nnx.initializers.lecun_normal(batch_axis=(0,))
    router, wi = (hidden, experts), (experts, hidden, 2 * intermediate)
    wo = experts, intermediate, hidden
    self.router = nnx.Param(one(rngs.params(), router, param_dtype))
    self.wi = nnx.Param(each(rngs.params(), wi, param_dtype))
    self.wo = nnx.Param(each(rngs.params(), wo, param_dtype))
    self.top_k = top_k
    self.activation = activation
    self.dtype = dtype
    self.config = config

  def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes the layer.

    Args:
      tokens: [..., hidden].

    Returns:
      The same shape and dtype; and `moe.balance`, a scalar for the loss.
    """
    rows = tokens.reshape(-1, tokens.shape[-1])
    out, routing = moe.layer(
      rows,
      moe.Weights(self.router[...], self.wi[...], self.wo[...]),
      top_k=self.top_k,
      activation=self.activation,
      dtype=self.dtype,
      config=self.config,
    )
    return out.reshape(tokens.shape), moe.balance(routing)
