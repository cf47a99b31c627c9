"""Programs around shards: loops, rematerialised layers, other kinds of axes.

Values and gradients beside the oracle, on eight devices.
"""

import os

# Before jax is imported.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from gmm import ops
from testing import sharding

M, K, N, G = 12, 8, 16, 4
SIZES = np.array([[5, 0, 4, 1]], np.int32)
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def mesh_of(*kinds):
  assert jax.device_count() >= 8, "XLA_FLAGS came too late"
  return jax.make_mesh((2, 4), ("x", "y"), axis_types=kinds)


# ---- one axis of experts, and another that is something else


def experts(x, weight, sizes):
  first = lax.axis_index("x") * weight.shape[0]
  return lax.psum(ops.gmm(x, weight, sizes, group_offset=first), "x")


def experts_of_halves(x, weight, sizes):
  """The rows as a batch of two, which is mapped over."""
  ends = jnp.cumsum(sizes)
  half = x.shape[0] // 2
  lower = jnp.diff(jnp.minimum(ends, half), prepend=0)
  first = lax.axis_index("x") * weight.shape[0]
  out = jax.vmap(lambda x, s: ops.gmm(x, weight, s, group_offset=first))(
    x.reshape(2, half, -1), jnp.stack([lower, sizes - lower])
  )
  return lax.psum(out.reshape(x.shape[0], -1), "x")


PROGRAMS = {
  "auto": (experts, (AUTO, AUTO), {"x"}),
  "auto_within_explicit": (experts, (EXPLICIT, AUTO), {"x"}),
  "explicit": (experts, (EXPLICIT, EXPLICIT), {"x"}),
  "manual": (experts, (AUTO, AUTO), {"x", "y"}),
  "mapped": (experts_of_halves, (AUTO, AUTO), {"x", "y"}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_axis(name):
  function, kinds, manual = PROGRAMS[name]
  x = sharding.poison_rows(sharding.integers(0, M, K), SIZES)
  weight = sharding.poison_groups(sharding.integers(1, G, K, N), SIZES)
  dout = sharding.integers(2, M, N)
  mesh = mesh_of(*kinds)
  place = functools.partial(NamedSharding, mesh)
  # Arrays may be sharded over an axis of type Auto: XLA gathers them.
  second = "y" if kinds[1] == AUTO else None
  args = [
    jax.device_put(x, place(P(second))),
    jax.device_put(weight, place(P("x", None, second))),
    jax.device_put(SIZES[0], place(P())),
  ]
  with jax.set_mesh(mesh):
    program = jax.shard_map(
      function,
      in_specs=(P(), P("x"), P()),
      out_specs=P(),
      axis_names=manual,
    )
    got = sharding.value_and_vjp(
      program, args, jax.device_put(dout, place(P()))
    )
  want = sharding.expected("gmm", x, weight, SIZES, dout=dout)
  sharding.assert_equal(got, want)


# ---- layers in a loop


def test_scanned_layers_of_gathered_weights():
  """Each layer has its sizes; products are saved by name, weights are not."""
  layers, blocks = 3, 2
  sizes = np.stack([np.roll(SIZES[0], i) for i in range(layers * blocks)])
  sizes = sizes.reshape(layers, blocks, G)
  x = sharding.integers(0, blocks * M, K)
  weights = sharding.integers(1, layers, G, K, K)
  dout = sharding.integers(2, blocks * M, K)

  def network(x, weights, sizes):
    def layer(x, own):
      weight, sizes = own
      weight = lax.all_gather(weight, "x", axis=1, tiled=True)
      return x + jax.nn.relu(ops.gmm(x, weight, sizes[0])), None

    saved = jax.checkpoint_policies.save_only_these_names(ops.GMM_OUT)
    layer = jax.checkpoint(layer, policy=saved)
    return lax.scan(layer, x, (weights, sizes))[0]

  rows = P("x")
  program = jax.shard_map(
    network,
    mesh=mesh_of(AUTO, AUTO),
    in_specs=(rows, P(None, None, "x"), P(None, "x")),
    out_specs=rows,
  )
  got = sharding.value_and_vjp(program, (x, weights, sizes), dout)

  inputs, products = [x], []
  for weight, own in zip(weights, sizes, strict=True):
    products.append(sharding.product(inputs[-1], weight, own))
    inputs.append(inputs[-1] + np.maximum(products[-1], 0))
  dx, dweights = dout, []
  for i in reversed(range(layers)):
    dproduct = np.where(products[i] > 0, dx, 0)
    through, dweight = sharding.product_vjp(
      inputs[i], weights[i], sizes[i], dproduct
    )
    dx = dx + through
    dweights.insert(0, dweight)
  # No sum is larger than what float32 has every whole number up to.
  assert max(np.abs(a).max() for a in (*inputs, *dweights)) < 2**24
  sharding.assert_equal(got, [inputs[-1], dx, np.stack(dweights)])
