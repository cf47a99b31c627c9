"""A small causal language model: attention and mixture-of-experts blocks.

    parameters = init(seed, shape)
    logits, balance = apply(parameters, tokens, shape)

Plain functions over a tree of arrays. All is computed in the parameters' dtype,
but for the experts' products, which take `Shape.dtype`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gmm import ops
from testing.examples import moe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
  """What is fixed about a model.

  Attributes:
    vocabulary: how many tokens there are.
    length: the most positions of a text.
    hidden: width of a position.
    heads: of attention; a divisor of `hidden`.
    blocks: attention and experts, one after another.
    experts: of a block.
    top_k: experts that a position visits.
    intermediate: width inside an expert.
    dtype: of the experts' products.
    config: how these are computed.
  """

  vocabulary: int
  length: int = 64
  hidden: int = 64
  heads: int = 4
  blocks: int = 2
  experts: int = 8
  top_k: int = 2
  intermediate: int = 64
  dtype: Any = jnp.float32
  config: ops.Config = dataclasses.field(default_factory=ops.Config)


class Block(NamedTuple):
  """What a block learns.

  Attributes:
    attention_norm: [hidden], what scales the input of the attention.
    query_key_value: [hidden, 3, heads, hidden / heads].
    attention_out: [heads, hidden / heads, hidden].
    experts_norm: [hidden], what scales the input of the experts.
    experts: the layer.
  """

  attention_norm: jax.Array
  query_key_value: jax.Array
  attention_out: jax.Array
  experts_norm: jax.Array
  experts: moe.Weights


class Parameters(NamedTuple):
  """What a model learns.

  Attributes:
    embedding: [vocabulary, hidden], of tokens going in and coming out.
    positions: [length, hidden].
    blocks: in the order of the passes.
    norm: [hidden], what scales the last block's result.
  """

  embedding: jax.Array
  positions: jax.Array
  blocks: tuple[Block, ...]
  norm: jax.Array


def init(seed: int, shape: Shape, dtype: Any = jnp.float32) -> Parameters:
  """Random parameters, the same for the same seed."""
  rng = np.random.default_rng(seed)
  size = shape.hidden**-0.5

  def normal(*dims: int) -> jax.Array:
    return jnp.asarray(size * rng.normal(size=dims), dtype)

  hidden, heads = shape.hidden, shape.heads
  ones = jnp.ones(hidden, dtype)
  return Parameters(
    embedding=normal(shape.vocabulary, hidden),
    positions=normal(shape.length, hidden),
    blocks=tuple(
      Block(
        attention_norm=ones,
        query_key_value=normal(hidden, 3, heads, hidden // heads),
        attention_out=normal(heads, hidden // heads, hidden),
        experts_norm=ones,
        experts=moe.init(
          rng,
          hidden=hidden,
          intermediate=shape.intermediate,
          experts=shape.experts,
          dtype=dtype,
        ),
      )
      for _ in range(shape.blocks)
    ),
    norm=ones,
  )


def apply(
  parameters: Parameters, tokens: jax.Array, shape: Shape
) -> tuple[jax.Array, jax.Array]:
  """Predicts the token after each position from those up to it.

  Args:
    parameters: of the model.
    tokens: integers [texts, positions], at most `shape.length` positions.
    shape: of the model.

  Returns:
    Logits [texts, positions, vocabulary]; and the blocks' mean `moe.balance`.
  """
  x = parameters.embedding[tokens] + parameters.positions[: tokens.shape[1]]
  balance = 0.0
  for block in parameters.blocks:
    x = x + _attention(block, _normed(x, block.attention_norm))
    rows = _normed(x, block.experts_norm).reshape(-1, shape.hidden)
    out, routing = moe.layer(
      rows,
      block.experts,
      top_k=shape.top_k,
      dtype=shape.dtype,
      config=shape.config,
    )
    x = x + out.reshape(x.shape)
    balance += moe.balance(routing) / shape.blocks
  return _normed(x, parameters.norm) @ parameters.embedding.T, balance


def loss(
  parameters: Parameters,
  texts: jax.Array,
  shape: Shape,
  balance_weight: float = 0.01,
) -> tuple[jax.Array, jax.Array]:
  """What training makes small, and its cross entropy in nats a token.

  Args:
    parameters: of the model.
    texts: integers [texts, positions + 1]; each token but the first is
      predicted from those before it.
    shape: of the model.
    balance_weight: of the experts' balance in the loss.
  """
  logits, balance = apply(parameters, texts[:, :-1], shape)
  entropy = optax.softmax_cross_entropy_with_integer_labels(
    logits, texts[:, 1:]
  ).mean()
  return entropy + balance_weight * balance, entropy


def _normed(x: jax.Array, scale: jax.Array) -> jax.Array:
  square = jnp.mean(x * x, axis=-1, keepdims=True)
  return x * jax.lax.rsqrt(square + 1e-6) * scale


def _attention(block: Block, x: jax.Array) -> jax.Array:
  """Causal attention of [texts, positions, hidden]."""
  query, key, value = jnp.einsum("tph,hcnd->ctnpd", x, block.query_key_value)
  scores = jnp.einsum("tnpd,tnqd->tnpq", query, key) * query.shape[-1] ** -0.5
  seen = jnp.tri(x.shape[1], dtype=bool)
  shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
  return jnp.einsum("tnpq,tnqd,ndh->tph", shares, value, block.attention_out)
