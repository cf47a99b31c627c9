"""`existing_out` of `ops.gmm`: products of shards add up to the whole one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gmm import ops
from testing import compiling

M, K, N, G, SHARDS = 40, 24, 16, 6, 3
# Boundaries within blocks, an empty group, rows of no group at the end.
SIZES = np.array([3, 0, 9, 6, 13, 4], np.int32)


def operands(dtype, transpose_rhs):
  rng = np.random.default_rng(0)
  weight = (G, N, K) if transpose_rhs else (G, K, N)
  shapes = {"lhs": (M, K), "rhs": weight, "start": (M, N), "dout": (M, N)}
  x = {name: rng.standard_normal(s).astype(dtype) for name, s in shapes.items()}
  x["lhs"][SIZES.sum() :] = np.nan
  return x


def whole(x, transpose_rhs, config):
  return ops.gmm(
    x["lhs"],
    x["rhs"],
    SIZES,
    transpose_rhs=transpose_rhs,
    existing_out=x["start"],
    config=config,
  )


def chain(x, transpose_rhs, config):
  """One shard of the groups after the other, each adding to the result."""
  local = G // SHARDS
  shards = x["rhs"].reshape(SHARDS, local, *x["rhs"].shape[1:])

  def add(out, shard):
    weight, offset = shard
    out = ops.gmm(
      x["lhs"],
      weight,
      SIZES,
      group_offset=offset,
      transpose_rhs=transpose_rhs,
      existing_out=out,
      config=config,
    )
    return out, None

  offsets = np.arange(0, G, local, dtype=np.int32)
  return lax.scan(add, x["start"], (shards, offsets))[0]


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_add_up_to_the_whole(dtype, transpose_rhs, backend):
  # A row belongs to one shard: the others leave it as it is, to the bit.
  if backend == "interpret" and transpose_rhs != (dtype == "bfloat16"):
    return  # two of the four show it, and each compiles for long
  config = ops.Config(backend=backend, tiling=(32, 128, 128))
  x = operands(jnp.dtype(dtype), transpose_rhs)

  @functools.partial(jax.jit, compiler_options=compiling.fast_options())
  def both(x):
    results = []
    for function in (whole, chain):
      given = {name: x[name] for name in ("lhs", "rhs", "start")}
      out, vjp = jax.vjp(
        lambda given, function=function: function(given, transpose_rhs, config),
        given,
      )
      results.append((out, *vjp(x["dout"])))
    return results

  (out, grads), (chained, chained_grads) = both(x)
  np.testing.assert_array_equal(out[SIZES.sum() :], x["start"][SIZES.sum() :])
  np.testing.assert_array_equal(grads["start"], x["dout"])
  assert np.any(np.asarray(out) != x["start"])
  for got, want in zip(
    jax.tree.leaves((chained, chained_grads)),
    jax.tree.leaves((out, grads)),
    strict=True,
  ):
    assert got.dtype == want.dtype
    wide = (np.asarray(x, np.float64) for x in (got, want))
    np.testing.assert_array_equal(*wide)
