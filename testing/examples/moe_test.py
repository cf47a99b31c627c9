"""The plain layer against float64, with experts empty, full and in between."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import ops
from reference import moe as reference
from testing import compiling
from testing.examples import moe, rounding

T, H, F, E = 12, 8, 4, 4
# What is added to each expert's logits, and how many experts a token visits.
ROUTINGS = {
  "spread": ([0, 0, 0, 0], 2),
  "two experts": ([9, -9, 9, -9], 2),
  "one expert": ([-9, -9, 9, -9], 1),
  "one of two": ([0, -9, 0, -9], 1),
}

routings = pytest.mark.parametrize("routing", ROUTINGS)


@pytest.fixture(autouse=True)
def _float64():
  with jax.enable_x64(True):
    yield


def _operands(bias):
  """Tokens that are 1 in the first place, so that row 0 of router is a bias."""
  rng = np.random.default_rng(1)
  shapes = (T, H), (H, E), (E, H, 2 * F), (E, F, H)
  tokens, router, wi, wo = (rng.normal(size=s) for s in shapes)
  tokens[:, 0] = 1
  router[0] = bias
  return reference.Weights(tokens, router, wi, wo), rng.normal(size=(T, H))


def _program(top_k, dtype, config):
  """Results and gradients of the layer and of its balance."""

  def program(weights, dout):
    tokens, *rest = weights
    out, vjp, routing = jax.vjp(
      lambda tokens, rest: moe.layer(
        tokens, moe.Weights(*rest), top_k=top_k, dtype=dtype, config=config
      ),
      tokens,
      tuple(rest),
      has_aux=True,
    )
    dtokens, drest = vjp(dout)
    return (out, dtokens, *drest), routing

  return program


@functools.cache
def _compiled(backend, top_k, dtype):
  """One program for all routings: which tokens go where is only data."""
  program = _program(top_k, dtype, ops.Config(backend=backend))
  return jax.jit(program, compiler_options=compiling.fast_options())


@functools.cache
def _exact(top_k):
  """A function of a dtype, the weights and dout; see rounding.py."""

  def program(products, *operands):
    with mock.patch.object(moe, "ops", products):
      return _program(top_k, None, None)(*operands)[0]

  return rounding.bounded(program)


@pytest.mark.parametrize(
  ("routing", "backend", "dtype"),
  [
    ("spread", "xla", "float32"),
    ("two experts", "xla", "float32"),
    ("spread", "xla", "bfloat16"),
    ("two experts", "xla", "bfloat16"),
    # Of two experts a token and interpreted: language_model_test.py.
    ("one expert", "interpret", "float32"),
    ("one of two", "interpret", "float32"),
  ],
)
def test_values_and_gradients(routing, backend, dtype):
  bias, top_k = ROUTINGS[routing]
  weights, dout = operands = _operands(bias)
  exact, bounds = _exact(top_k)(dtype, *operands)
  results, choice = _compiled(backend, top_k, dtype)(*operands)
  gradients = reference.layer_vjp(weights, choice.experts, dout)
  wants = reference.layer(weights, choice.experts), *gradients
  names = "out", *reference.Weights._fields
  for name, got, want, same, bound in zip(
    names, results, wants, exact, bounds, strict=True
  ):
    assert got.dtype == jnp.float64
    # The reference that is its definition, and the one that knows the bounds.
    np.testing.assert_allclose(same, want, rtol=1e-9, atol=1e-9, err_msg=name)
    off = np.abs(got - want) - (bound + 1e-12)
    assert (off <= 0).all(), (name, off.max())


@routings
def test_experts_without_tokens_have_no_gradient(routing):
  bias, top_k = ROUTINGS[routing]
  operands = _operands(bias)
  backend = "xla" if top_k == 2 else "interpret"
  (*_, dwi, dwo), choice = _compiled(backend, top_k, "float32")(*operands)
  counts = np.bincount(np.ravel(choice.experts), minlength=E)
  assert (counts[1::2] == 0).all() or routing == "spread"
  assert (counts > 0).all() or routing != "spread"
  for e, count in enumerate(counts):
    assert dwi[e].any() == dwo[e].any() == (count > 0)


@functools.cache
def _routed(top_k):
  @jax.jit
  def routed(tokens, router):
    routing = moe.route(tokens, router, top_k)
    return routing, moe.by_expert(routing.experts, E)

  return routed


@functools.cache
def _balance(top_k):
  def balance(tokens, router):
    return moe.balance(moe.route(tokens, router, top_k))

  return jax.jit(jax.value_and_grad(balance, (0, 1)))


@routings
def test_the_routing(routing):
  bias, top_k = ROUTINGS[routing]
  (tokens, router, *_), _ = _operands(bias)
  got, rows = _routed(top_k)(tokens, router)
  logits = tokens @ router
  best = np.argsort(-logits, axis=1)[:, :top_k]
  np.testing.assert_array_equal(got.experts, best)
  np.testing.assert_allclose(np.sum(got.gates, axis=1), 1)
  powers = np.exp(logits)
  chosen = np.take_along_axis(powers, best, axis=1)
  np.testing.assert_allclose(got.gates, chosen / chosen.sum(1, keepdims=True))
  np.testing.assert_allclose(
    got.probabilities, powers / powers.sum(1, keepdims=True)
  )
  of_rows = np.repeat(np.arange(E), rows.group_sizes)
  place, token = (np.asarray(x) for x in (rows.place, rows.token))
  np.testing.assert_array_equal(of_rows[place], best)
  np.testing.assert_array_equal(token[place], np.arange(T)[:, None] + 0 * best)


@routings
def test_balance(routing):
  bias, top_k = ROUTINGS[routing]
  (tokens, router, *_), _ = _operands(bias)

  got, gradients = _balance(top_k)(tokens, router)
  experts = _routed(top_k)(tokens, router)[0].experts
  want = reference.balance(tokens, router, experts)
  for a, b in zip((got, *gradients), want, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
  if routing == "one expert":
    assert got == pytest.approx(E, rel=1e-4)


@pytest.mark.parametrize("top_k", [0, E + 1])
def test_no_such_top_k(top_k):
  (tokens, router, *_), _ = _operands([0] * E)
  with pytest.raises(ValueError, match=f"`top_k` is {top_k} and `router` has"):
    moe.route(tokens, router, top_k)


def test_a_router_for_other_tokens():
  (tokens, router, *_), _ = _operands([0] * E)
  with pytest.raises(ValueError, match=r"`tokens` is \[12, 7\] and `router`"):
    moe.route(tokens[:, 1:], router, 2)
