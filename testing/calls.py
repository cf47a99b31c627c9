"""Calls of the two products that are right but for what a test changes."""

import jax.numpy as jnp
import numpy as np

M, K, N, G = 6, 16, 24, 3
LHS = np.zeros((M, K), np.float32)
RHS = np.zeros((G, K, N), np.float32)
DOUT = np.zeros((M, N), np.float32)
SIZES = np.zeros((G,), np.int32)


def like(shape, dtype=np.float32):
  """An array of zeros."""
  return np.zeros(shape, jnp.dtype(dtype))


def call_gmm(function, **changes):
  """Calls a function of `ops.gmm`'s first three operands."""
  x = {"lhs": LHS, "rhs": RHS, "group_sizes": SIZES} | changes
  return function(x.pop("lhs"), x.pop("rhs"), x.pop("group_sizes"), **x)


def call_tgmm(function, **changes):
  """Calls a function of `ops.tgmm`'s operands."""
  x = {"lhs": LHS, "dout": DOUT, "group_sizes": SIZES, "num_groups": G}
  x |= changes
  return function(x.pop("lhs"), x.pop("dout"), x.pop("group_sizes"), **x)
