"""The language model: its gradients on two backends, what it sees, its text."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import ops
from testing import compiling
from testing.examples import corpus, language_model, moe, rounding

SHAPE = language_model.Shape(
  vocabulary=6,
  length=8,
  hidden=8,
  heads=2,
  blocks=1,
  experts=4,
  top_k=2,
  intermediate=4,
)


def _texts(length):
  rng = np.random.default_rng(0)
  return rng.integers(0, SHAPE.vocabulary, (2, length), np.int32)


def _gradients(shape, parameters):
  """The training loss, its entropy and the gradients, for all parameters."""
  return jax.value_and_grad(language_model.loss, has_aux=True)(
    parameters, _texts(SHAPE.length + 1), shape
  )


def test_first_step_is_the_same_on_both_backends():
  """Each within its bound of the model that is float64 throughout."""
  with jax.enable_x64(True):
    parameters = language_model.init(1, SHAPE, jnp.float64)
    wide = dataclasses.replace(SHAPE, dtype=jnp.float64)

    def program(products, parameters):
      with mock.patch.object(moe, "ops", products):
        return _gradients(wide, parameters)

    exact, bounds = rounding.bounded(program)("float32", parameters)
    found = {}
    for backend in ("xla", "interpret"):
      config = ops.Config(backend=backend)
      shape = dataclasses.replace(SHAPE, config=config)
      step = jax.jit(
        functools.partial(_gradients, shape),
        compiler_options=compiling.fast_options(),
      )
      found[backend] = jax.tree.leaves(step(parameters))
    assert len(exact) == 2 + 3 + 7
    for want, bound, *both in zip(exact, bounds, *found.values(), strict=True):
      assert jnp.abs(want).max() > 1e-3  # nothing is compared with nothing
      for got in both:
        assert (jnp.abs(got - want) <= bound + 1e-12).all()
      assert (jnp.abs(both[0] - both[1]) <= 2 * bound + 1e-12).all()


def test_a_position_sees_itself_and_those_before_it():
  shape = dataclasses.replace(SHAPE, config=ops.Config(backend="xla"))
  parameters = language_model.init(0, shape)

  @functools.partial(jax.jit, compiler_options=compiling.fast_options())
  def apply(tokens):
    return language_model.apply(parameters, tokens, shape)[0]

  tokens = _texts(shape.length)
  # Not changed in place: a program that still runs may read the array.
  other = tokens.copy()
  other[0, 5] = (other[0, 5] + 1) % shape.vocabulary
  moved = np.abs(apply(other) - apply(tokens)).max(axis=-1) > 1e-6
  np.testing.assert_array_equal(moved[0], np.arange(shape.length) >= 5)
  assert not moved[1].any()


def test_the_corpus_is_the_same_for_a_seed():
  text = corpus.text(3, 200)
  assert text == corpus.text(3, 200)
  assert text != corpus.text(4, 200)
  assert text.startswith(corpus.text(3, 10))
  assert set(text) <= set(corpus.alphabet())
  assert len(set(text.splitlines())) > 190


def test_sentences_agree_in_number():
  singular = {pair[0].split()[0] for pair in corpus.VERBS}
  plural = {pair[1].split()[0] for pair in corpus.VERBS}
  for line in corpus.text(0, 300).splitlines():
    number, _, actor, verb, *_ = line.split()
    assert line.endswith(".")
    one = number == "one"
    assert verb in (singular if one else plural), line
    assert actor in {pair[not one] for pair in corpus.NOUNS}, line


def test_the_floor_is_below_what_frequencies_give():
  text = corpus.text(0, 4000)
  # What 4000 sentences of about 52 characters may be off the mean: 0.1%.
  chance = np.log(6 * 8 * 10 * 6 * 6 * 10 * 6)
  assert corpus.floor() == pytest.approx(chance * 4000 / len(text), rel=5e-3)
  assert corpus.unigram("ab" * 5) == pytest.approx(np.log(2))
  assert corpus.unigram("aaaa") == 0
  assert corpus.floor() < corpus.unigram(text) / 10
  assert corpus.unigram(text) < np.log(len(corpus.alphabet()))
