"""jax's transformations of gate and up, against dense products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import ops
from testing import compiling, toy
from testing.toy import SIZES, XLA, G, K, M, N, assert_close, dense, normal


@pytest.fixture(name="x")
def _operands():
  sizes = jnp.array(SIZES, jnp.int32)
  return normal(0, M, K), 0.5 * normal(1, G, K, 2 * N), sizes


def gated(lhs, weight, sizes, **options):
  return ops.gmm_gated(lhs, weight, sizes, config=XLA, **options)


def dense_gated(lhs, weight, sizes, **options):
  gate, up = jnp.split(dense(lhs, weight, sizes, **options), 2, axis=1)
  return jax.nn.silu(gate) * up


def split(lhs, weight, sizes, **options):
  halves = jnp.split(weight, [N + 2], axis=2)
  gate, up = ops.split_gmm(lhs, *halves, sizes, config=XLA, **options)
  return jnp.concatenate([gate, up], axis=1)


def fused_split(lhs, weight, sizes, **options):
  halves = jnp.split(weight, 2, axis=2)
  gate, up = ops.split_gmm(lhs, *halves, sizes, config=XLA, **options)
  return jnp.concatenate([gate, up], axis=1)


FUNCTIONS = {
  "gated": (gated, dense_gated),
  "kept": (functools.partial(gated, recompute=False), dense_gated),
  "split": (split, dense),
  "fused_split": (fused_split, dense),
}
functions = pytest.mark.parametrize("pair", FUNCTIONS.values(), ids=FUNCTIONS)


def loss_of(function):
  return lambda *x: jnp.sum(jnp.sin(function(*x)))


def assert_same(transform, pair, x):
  ours, theirs = (transform(f) for f in pair)
  jit = functools.partial(jax.jit, compiler_options=compiling.fast_options())
  assert_close(jit(ours)(*x), jit(theirs)(*x))


@functions
def test_gradients(pair, x):
  assert_same(lambda f: jax.value_and_grad(loss_of(f), (0, 1)), pair, x)


@functions
def test_second_derivatives(pair, x):
  def of_gradients(function):
    gradients = jax.grad(loss_of(function), (0, 1))
    return lambda *x: sum(jnp.sum(d**2) for d in gradients(*x))

  assert_same(lambda f: jax.grad(of_gradients(f), (0, 1)), pair, x)


@functions
def test_checkpoint(pair, x):
  def transform(function):
    return jax.grad(jax.checkpoint(loss_of(function)), (0, 1))

  assert_same(transform, pair, x)


@functions
@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (0, 0, 0)])
def test_grad_of_vmap(pair, axes, x):
  # One grid for each example: nothing of one reaches another.
  def transform(function):
    def loss(*x):
      return jnp.sum(jnp.sin(jax.vmap(function, axes)(*x)))

    return jax.value_and_grad(loss, (0, 1))

  assert_same(transform, pair, toy.batched(x, axes))


@functions
def test_a_traced_offset(pair, x):
  lhs, weight, sizes = x

  def transform(function):
    def call(lhs, weight, offset):
      return function(lhs, weight[:3], sizes, group_offset=offset)

    return call

  assert_same(transform, pair, (lhs, weight, jnp.int32(2)))


def test_the_activation_is_called_on_float32(x):
  lhs, weight, sizes = x
  seen = []

  def product(gate, up):
    seen.append((gate.dtype, up.dtype))
    return gate * up

  out = gated(
    lhs.astype(jnp.bfloat16),
    weight.astype(jnp.bfloat16),
    sizes,
    activation=product,
  )
  assert out.dtype == jnp.bfloat16
  assert set(seen) == {(jnp.dtype(jnp.float32),) * 2}


def test_calls_with_one_function_share_a_program(x):
  traces = []

  def product(gate, up):
    traces.append(1)
    return gate * up

  gated(*x, activation=product)
  count = len(traces)
  gated(*x, activation=product)
  assert len(traces) == count


@pytest.mark.parametrize("recompute", [True, False])
def test_what_is_kept_for_the_gradients(recompute, x):
  lhs, weight, sizes = x
  _, vjp = jax.vjp(
    lambda lhs, weight: gated(lhs, weight, sizes, recompute=recompute),
    lhs,
    weight,
  )
  shapes = [np.shape(leaf) for leaf in jax.tree.leaves(vjp)]
  assert ((M, 2 * N) in shapes) != recompute


def test_xla_does_not_keep_gate_and_up():
  m, k, n = 512, 64, 128
  sizes = jnp.array([200, 0, 250, 62], jnp.int32)
  program = jax.jit(functools.partial(ops.gmm_gated, config=XLA))
  operands = normal(0, m, k), normal(1, 4, k, 2 * n), sizes
  memory = program.lower(*operands).compile().memory_analysis()
  assert memory.temp_size_in_bytes < m * n * 4


def test_gradients_without_any_groups():
  weight, none = jnp.zeros((0, K, 2 * N)), jnp.array([], jnp.int32)

  def loss(x):
    kept = gated(x, weight, none, recompute=False)
    quantised = ops.gmm(x, weight, none, dout_quantization="int8", config=XLA)
    return jnp.sum(kept) + jnp.sum(quantised)

  np.testing.assert_array_equal(jax.grad(loss)(normal(0, M, K)), 0)
