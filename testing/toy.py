"""A toy product for tests of transformations, and the same in dense form."""

import jax
import jax.numpy as jnp
import numpy as np

from gmm import ops

M, K, N, G = 40, 8, 12, 8
SIZES = (10, 0, 13, 7, 1, 2, 3, 0)  # four rows belong to no group
XLA = ops.Config(backend="xla")
V6E = ops.Config(chip="v6e")


def normal(seed, *shape):
  """A float32 array."""
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def operands():
  """lhs, rhs and group_sizes."""
  return normal(0, M, K), normal(1, G, K, N), jnp.array(SIZES, jnp.int32)


def dense(lhs, rhs, sizes, group_offset=0):
  """The same by one einsum over all groups, which jax can transform at will."""
  owned = owners(sizes, lhs.shape[0], rhs.shape[0], group_offset)
  return jnp.einsum("mg,mk,gkn->mn", owned, lhs, rhs)


def owners(sizes, m, g, group_offset):
  """[m, g]: 1 where the row belongs to the local group."""
  rows = jnp.arange(m)
  groups = jnp.searchsorted(jnp.cumsum(sizes), rows, side="right")
  groups = jnp.where(rows < jnp.sum(sizes), groups - group_offset, -1)
  return jax.nn.one_hot(groups, g)


def loss_of(function):
  """A scalar of a product, with a gradient everywhere."""
  return lambda lhs, rhs, sizes: jnp.sum(jnp.sin(function(lhs, rhs, sizes)))


def assert_close(got, want):
  """Compares trees of arrays."""
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
    got,
    want,
  )


def assert_same_grads(transform, x, function=ops.gmm):
  """`transform` of a loss, its value and both gradients."""
  got = jax.jit(jax.value_and_grad(transform(function), (0, 1)))(*x)
  assert_close(got, jax.value_and_grad(transform(dense), (0, 1))(*x))


def equations(jaxpr):
  """All equations of a jaxpr and of those in it, but not inside kernels."""
  for eqn in jaxpr.eqns:
    yield eqn
    if eqn.primitive.name == "pallas_call":
      continue
    for value in jax.tree.leaves(
      list(eqn.params.values()),
      is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr"),
    ):
      inner = getattr(value, "jaxpr", value)
      if hasattr(inner, "eqns"):
        yield from equations(inner)


def batched(x, axes):
  """Operands with a batch of two wherever the axis is 0."""
  lhs, rhs, sizes = x
  twins = (lhs, 2 * lhs), (rhs, -rhs), (sizes, sizes[::-1])
  return [
    jnp.stack(two) if axis == 0 else one
    for one, two, axis in zip(x, twins, axes, strict=True)
  ]
