"""The flax module beside the plain layer, and in flax's own training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from gmm import ops
from testing import compiling
from testing.examples import moe, moe_nnx

HIDDEN, INTERMEDIATE, EXPERTS = 8, 4, 4
SHAPE = (2, 5, HIDDEN)  # texts, positions


def _module(seed=0, **options):
  options = {"top_k": 2, "config": ops.Config(backend="xla")} | options
  return moe_nnx.MoE(
    HIDDEN, INTERMEDIATE, experts=EXPERTS, rngs=nnx.Rngs(seed), **options
  )


def _tokens(seed=0):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.normal(size=SHAPE), jnp.float32)


def test_its_weights_are_scaled_by_what_they_add_up():
  module = _module()
  assert set(nnx.state(module, nnx.Param)) == set(moe.Weights._fields)
  for name, adds in (("wi", HIDDEN), ("wo", INTERMEDIATE)):
    # Of 128 draws or more; an expert too many would halve it.
    size = np.std(getattr(module, name)[...])
    np.testing.assert_allclose(size, adds**-0.5, rtol=0.25)


def test_it_is_the_plain_layer():
  config = ops.Config(backend="xla")
  module = _module(activation="gelu_tanh", config=config)
  graph, state = nnx.split(module)

  @jax.jit
  def both(state, tokens):
    got = nnx.merge(graph, state)(tokens)
    weights = moe.Weights(*(state[n][...] for n in moe.Weights._fields))
    rows = tokens.reshape(-1, HIDDEN)
    options = {"top_k": 2, "activation": "gelu_tanh", "config": config}
    out, routing = moe.layer(rows, weights, **options)
    return got, (out.reshape(tokens.shape), moe.balance(routing))

  run = both.lower(state, _tokens()).compile(compiling.fast_options())
  got, want = run(state, _tokens())
  jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("backend", ["interpret", "xla"])
def test_its_config_reaches_the_products(backend):
  module = _module(config=ops.Config(backend=backend))
  text = str(jax.make_jaxpr(module)(_tokens()))
  assert ("pallas_call" in text) == (backend == "interpret")


def test_products_in_bfloat16_keep_the_tokens_dtype():
  out, balance = nnx.jit(_module(dtype=jnp.bfloat16))(_tokens())
  assert out.dtype == balance.dtype == jnp.float32
  exact, _ = nnx.jit(_module())(_tokens())
  assert (out != exact).any()
  np.testing.assert_allclose(out, exact, atol=0.05)


def test_it_trains():
  """Learns what another module computes."""
  teacher, module = _module(seed=1), _module()
  optimizer = nnx.Optimizer(module, optax.adam(0.03), wrt=nnx.Param)

  @nnx.jit
  def step(module, optimizer, tokens, target):
    def loss(module):
      out, balance = module(tokens)
      error = jnp.mean((out - target) ** 2)
      return error + 0.01 * balance, error

    gradients, error = nnx.grad(loss, has_aux=True)(module)
    optimizer.update(module, gradients)
    return error

  tokens = _tokens()
  target, _ = teacher(tokens)
  run = functools.partial(step, module, optimizer, tokens, target)
  errors = [float(run()) for _ in range(60)]
  assert errors[-1] < errors[0] / 10


@pytest.mark.parametrize("top_k", [0, EXPERTS + 1])
def test_no_such_top_k(top_k):
  with pytest.raises(ValueError, match=f"`top_k` is {top_k} and `experts`"):
    _module(top_k=top_k)
