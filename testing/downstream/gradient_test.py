"""Differentiates ops.gmm from a workspace that is not ours."""

import unittest

import jax
import jax.numpy as jnp
import numpy as np

from gmm import ops


class GradientTest(unittest.TestCase):
  def test_gradients_are_those_of_a_loop(self):
    keys = jax.random.split(jax.random.key(0), 3)
    lhs = jax.random.normal(keys[0], (6, 8))
    rhs = jax.random.normal(keys[1], (3, 8, 4))
    dout = jax.random.normal(keys[2], (6, 4))
    sizes = jnp.array([2, 0, 3])  # The last row belongs to no group.

    out, vjp = jax.vjp(lambda x, w: ops.gmm(x, w, sizes), lhs, rhs)
    dlhs, drhs = vjp(dout)

    x, w, d = (np.asarray(a, np.float64) for a in (lhs, rhs, dout))
    rows = {0: slice(0, 2), 1: slice(2, 2), 2: slice(2, 5)}
    expected = [np.zeros((6, 4)), np.zeros((6, 8)), np.zeros((3, 8, 4))]
    for group, part in rows.items():
      expected[0][part] = x[part] @ w[group]
      expected[1][part] = d[part] @ w[group].T
      expected[2][group] = x[part].T @ d[part]
    for got, want in zip((out, dlhs, drhs), expected, strict=True):
      np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
  unittest.main()
