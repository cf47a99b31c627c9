"""Trains the language model on the corpus, and lets it write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from testing.examples import corpus, language_model
from testing.examples.language_model import Parameters, Shape

_SENTENCES = 4000
_HELD_OUT = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
  """A corpus as numbers.

  Attributes:
    alphabet: the character of each token.
    train: integers [characters].
    held_out: integers [characters] of sentences that training does not see.
  """

  alphabet: str
  train: np.ndarray
  held_out: np.ndarray

  @classmethod
  def make(cls, seed: int) -> Texts:
    """Sentences of that seed, and as many others to hold out."""
    alphabet = corpus.alphabet()
    numbers = {character: i for i, character in enumerate(alphabet)}
    whole = corpus.text(seed, _SENTENCES + _HELD_OUT).splitlines(keepends=True)
    parts = whole[:_SENTENCES], whole[_SENTENCES:]
    return cls(
      alphabet=alphabet,
      **{
        name: np.array([numbers[c] for c in "".join(part)], np.int32)
        for name, part in zip(("train", "held_out"), parts, strict=True)
      },
    )

  def words(self, tokens: Any) -> str:
    """The characters of tokens."""
    return "".join(self.alphabet[token] for token in tokens)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
  """What a step of training leaves.

  Attributes:
    number: of the step, from 1 on.
    loss: the cross entropy of its texts before it, in nats a character.
    parameters: after it.
  """

  number: int
  loss: float
  parameters: Parameters


def batches(
  tokens: np.ndarray, count: int, length: int, seed: int
) -> Iterator[np.ndarray]:
  """Endless batches [count, length + 1], cut out of a text at random."""
  rng = np.random.default_rng(seed)
  while True:
    starts = rng.integers(0, len(tokens) - length, count)
    yield tokens[starts[:, None] + np.arange(length + 1)]


def train(
  texts: Texts, shape: Shape, *, steps: int, batch: int, seed: int
) -> Iterator[Step]:
  """Trains with AdamW: a warm-up, then a cosine down to a tenth.

  Args:
    texts: what to learn.
    shape: of the model.
    steps: how many.
    batch: texts of a step, each of `shape.length` characters.
    seed: of parameters and batches.

  Yields:
    Each step.
  """
  optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(
      optax.warmup_cosine_decay_schedule(
        0.0, 1e-2, min(20, steps), steps + 1, 1e-3
      )
    ),
  )

  @jax.jit
  def update(
    parameters: Parameters, state: Any, batch: jax.Array
  ) -> tuple[Parameters, Any, jax.Array]:
    gradients, entropy = jax.grad(language_model.loss, has_aux=True)(
      parameters, batch, shape
    )
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, entropy

  parameters = language_model.init(seed, shape)
  state = optimizer.init(parameters)
  source = batches(texts.train, batch, shape.length, seed)
  for number in range(1, steps + 1):
    parameters, state, entropy = update(parameters, state, next(source))
    yield Step(number=number, loss=float(entropy), parameters=parameters)


def evaluator(texts: Texts, shape: Shape) -> Any:
  """A function of parameters: the mean loss of held-out texts."""
  fixed = next(batches(texts.held_out, 64, shape.length, 0))

  @jax.jit
  def evaluate(parameters: Parameters) -> jax.Array:
    return language_model.loss(parameters, fixed, shape)[1]

  return lambda parameters: float(evaluate(parameters))


def sample(
  parameters: Parameters, texts: Texts, shape: Shape, *, characters: int
) -> str:
  """Text that a model writes after a line's end, drawn by its chances."""

  @jax.jit
  def draw(parameters: Parameters, window: jax.Array, i: Any) -> jax.Array:
    logits, _ = language_model.apply(parameters, window[None], shape)
    at = jnp.minimum(i, shape.length - 1)
    return jax.random.categorical(jax.random.key(i), logits[0, at])

  window = np.full(shape.length, texts.alphabet.index("\n"), np.int32)
  written = []
  for i in range(characters):
    # Positions after the last one written are not seen, whatever is there.
    token = int(draw(parameters, jnp.asarray(window), i))
    written.append(token)
    if i + 1 < shape.length:
      window[i + 1] = token
    else:
      window = np.append(window[1:], np.int32(token))
  return texts.words(written)
