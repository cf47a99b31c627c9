"""vmap of what transforms_test leaves out: pairs of axes, nests, extras."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import ops
from testing import compiling, toy
from testing.toy import (
  XLA,
  G,
  K,
  M,
  N,
  assert_close,
  batched,
  dense,
  loss_of,
  normal,
  owners,
)

jit = functools.partial(jax.jit, compiler_options=compiling.fast_options())


def gmm(lhs, rhs, sizes, **options):
  return ops.gmm(lhs, rhs, sizes, config=XLA, **options)


def same(transform, x, ours=gmm, theirs=dense):
  assert_close(
    *jit(lambda *x: (transform(ours)(*x), transform(theirs)(*x)))(*x)
  )


def test_rows_and_sizes_of_a_batch():
  axes = (0, None, 0)

  def both(function):
    def transformed(*x):
      def summed(*x):
        return jnp.sum(jax.vmap(loss_of(function), axes)(*x))

      of_grad = jax.vmap(jax.grad(loss_of(function), (0, 1)), axes)
      return jax.value_and_grad(summed, (0, 1))(*x), of_grad(*x)

    return transformed

  same(both, batched(toy.operands(), axes))


def test_nested_vmap_of_the_gradient():
  lhs, rhs, sizes = batched(toy.operands(), (0, 0, 0))

  # Every lhs with every weight, and the sizes of the weight's.
  def nested(function):
    grad = jax.value_and_grad(loss_of(function), (0, 1))
    return jax.vmap(jax.vmap(grad, (None, 0, 0)), (0, None, None))

  same(nested, (lhs, rhs, sizes))


def test_axes_in_other_places():
  lhs, rhs, sizes = batched(toy.operands(), (0, 0, 0))
  x = jnp.moveaxis(lhs, 0, 1), jnp.moveaxis(rhs, 0, 3), sizes.T

  def moved(function):
    return jax.vmap(function, (1, 3, -1), out_axes=-1)

  same(moved, x)


def test_tgmm():
  _, _, sizes = toy.operands()
  lhs, dout = normal(0, 2, M, K), normal(1, 2, M, N)
  sizes = jnp.stack([sizes, sizes[::-1]])
  offsets = jnp.array([0, 3], jnp.int32)

  def tgmm(lhs, dout, sizes, offset):
    return ops.tgmm(
      lhs, dout, sizes, num_groups=3, group_offset=offset, config=XLA
    )

  def einsum(lhs, dout, sizes, offset):
    owned = owners(sizes, M, G, 0)[:, offset + jnp.arange(3)]
    return jnp.einsum("mg,mk,mn->gkn", owned, lhs, dout)

  def grads(function):
    def loss(*x):
      return jnp.sum(jnp.sin(function(*x)))

    return jax.vmap(jax.value_and_grad(loss, (0, 1)))

  same(grads, (lhs, dout, sizes, offsets), tgmm, einsum)


@pytest.mark.parametrize("name", ["gated", "split"])
def test_gate_and_up_nested(name):
  lhs, _, sizes = batched(toy.operands(), (0, 0, 0))
  weight = normal(1, 2, G, K, 2 * N)

  def ours(lhs, weight, sizes):
    if name == "gated":
      return ops.gmm_gated(lhs, weight, sizes, config=XLA)
    halves = jnp.split(weight, 2, axis=2)
    return jnp.concatenate(ops.split_gmm(lhs, *halves, sizes, config=XLA), 1)

  def plain(lhs, weight, sizes):
    both = dense(lhs, weight, sizes)
    gate, up = jnp.split(both, 2, axis=1)
    return jax.nn.silu(gate) * up if name == "gated" else both

  def nested(function):
    grad = jax.grad(loss_of(function), (0, 1))
    return jax.vmap(jax.vmap(grad, (None, 0, None)), (0, None, 0))

  same(nested, (lhs, weight, sizes), ours, plain)


def test_scales_and_biases():
  lhs, _, sizes = toy.operands()
  rng = np.random.default_rng(1)
  weight = jnp.asarray(rng.integers(-8, 9, (2, G, K, N)), jnp.int8)
  scale, bias = 0.1 + normal(2, 2, G, 2, N) ** 2, normal(3, 2, G, N)

  def quantised(weight, scale, bias):
    return gmm(lhs, weight, sizes, rhs_scale=scale, rhs_bias=bias)

  def plain(weight, scale, bias):
    wide = weight * jnp.repeat(scale, K // 2, axis=1)
    owned = owners(sizes, M, G, 0)
    return dense(lhs, wide, sizes) + owned @ bias

  same(jax.vmap, (weight, scale, bias), quantised, plain)


def test_examples_do_not_touch_each_other():
  lhs, rhs, sizes = batched(toy.operands(), (0, 0, 0))
  grad = jax.vmap(jax.grad(loss_of(gmm), (0, 1)))
  clean, poisoned = jit(
    lambda lhs: (
      grad(lhs, rhs, sizes),
      grad(lhs.at[0].set(jnp.nan), rhs, sizes),
    )
  )(lhs)
  for a, b in zip(clean, poisoned, strict=True):
    np.testing.assert_array_equal(a[1], b[1])
    assert np.any(np.isnan(b[0]))
