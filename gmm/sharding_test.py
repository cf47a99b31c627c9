"""Every operation and its gradients under shard_map, on eight devices.

The checks of shard_map are on: varying axes have to come out right. Shards of
rows without tokens, and experts without any, hold NaN wherever nothing may be
read. `sharding_recipes_test` runs whole programs on the default backend.
"""

import os

# Before jax is imported.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import functools

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from gmm import ops
from testing import sharding

K, N = 8, 16
M = 16  # rows of a block
XLA = ops.Config(backend="xla")
# Of four blocks of rows: the second has no tokens, and six experts are all
# there are, so that the last of four devices has two without a size.
SIZES = np.array(
  [[6, 0, 3, 4, 1, 0], [0] * 6, [0, 0, 9, 0, 7, 0], [2, 1, 2, 1, 2, 0]],
  np.int32,
)
G = 8


def mesh_of(**axes):
  assert jax.device_count() >= 8, "XLA_FLAGS came too late"
  kinds = (AxisType.Auto,) * len(axes)
  return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def operands(op, mesh):
  """x, weight, sizes [blocks, groups] and a cotangent."""
  blocks = mesh.shape.get("data", 1)
  sizes = SIZES[:blocks]
  if "expert" not in mesh.shape:
    sizes = np.pad(sizes, [(0, 0), (0, G - sizes.shape[1])])
  shape = (G, N, K) if op == "gmm_nt" else (G, K, N)
  x = sharding.poison_rows(sharding.integers(0, blocks * M, K), sizes)
  weight = sharding.poison_groups(sharding.integers(1, *shape), sizes)
  n = N // 2 if op == "gmm_gated" else N
  return x, weight, sizes, sharding.integers(2, blocks * M, n)


def check(op, function, mesh, specs):
  """Runs `function` of x, weight, sizes; specs are theirs and the result's."""
  *in_specs, out_specs = specs
  x, weight, sizes, dout = operands(op, mesh)
  sharded = jax.shard_map(
    function, mesh=mesh, in_specs=tuple(in_specs), out_specs=out_specs
  )
  got = sharding.value_and_vjp(sharded, (x, weight, sizes), dout)
  sharding.assert_equal(got, sharding.expected(op, x, weight, sizes, dout=dout))


def first_group(weight):
  return lax.axis_index("expert") * weight.shape[0]


OPS = pytest.mark.parametrize("op", sharding.OPS)


@OPS
def test_experts_with_rows_gathered_and_scattered(op):
  def on_device(x, weight, sizes):
    x = lax.all_gather(x, "expert", tiled=True)
    out = sharding.apply(
      op, x, weight, sizes[0], group_offset=first_group(weight), config=XLA
    )
    return lax.psum_scatter(out, "expert", tiled=True)

  specs = (P("expert"), P("expert"), P(), P("expert"))
  check(op, on_device, mesh_of(expert=4), specs)


@OPS
def test_experts_and_weights_in_shards(op):
  axis = 2 if op == "gmm_nt" else 1

  def on_device(x, weight, sizes):
    weight = lax.all_gather(weight, "data", axis=axis, tiled=True)
    out = sharding.apply(
      op, x, weight, sizes[0], group_offset=first_group(weight), config=XLA
    )
    return lax.psum(out, "expert")

  along = ["expert", None, None]
  along[axis] = "data"
  specs = (P("data"), P(*along), P("data"), P("data"))
  check(op, on_device, mesh_of(expert=2, data=4), specs)


@pytest.mark.parametrize("op", ["gmm", "gmm_nt"])
def test_columns_in_shards(op):
  def on_device(x, weight, sizes):
    return sharding.apply(op, x, weight, sizes[0], config=XLA)

  along = P(None, "model") if op == "gmm_nt" else P(None, None, "model")
  specs = (P(), along, P(), P(None, "model"))
  check(op, on_device, mesh_of(model=8), specs)


@OPS
def test_parts_of_the_sums_in_shards(op):
  # The activation is of whole sums.
  whole = "gmm" if op == "gmm_gated" else op

  def on_device(x, weight, sizes):
    out = sharding.apply(whole, x, weight, sizes[0], config=XLA)
    out = lax.psum(out, "model")
    if op != "gmm_gated":
      return out
    return sharding.reglu(out[:, : N // 2], out[:, N // 2 :])

  along = P(None, None, "model") if op == "gmm_nt" else P(None, "model")
  specs = (P(None, "model"), along, P(), P())
  check(op, on_device, mesh_of(model=8), specs)


# ---- tgmm


def tgmm_operands(blocks):
  """lhs, dout, sizes [blocks, groups] and a cotangent."""
  sizes = SIZES[:blocks]
  lhs = sharding.poison_rows(sharding.integers(0, blocks * M, K), sizes)
  dout = sharding.poison_rows(sharding.integers(1, blocks * M, N), sizes)
  cotangent = sharding.poison_groups(sharding.integers(2, G, K, N), sizes)
  return lhs, dout, sizes, cotangent


def check_tgmm(function, mesh, specs):
  *in_specs, out_specs = specs
  lhs, dout, sizes, cotangent = tgmm_operands(mesh.shape.get("data", 1))
  sharded = jax.shard_map(
    function, mesh=mesh, in_specs=tuple(in_specs), out_specs=out_specs
  )
  got = sharding.value_and_vjp(sharded, (lhs, dout, sizes), cotangent)
  want = [
    sharding.weight_product(lhs, dout, sizes, G),
    sharding.product(dout, cotangent.swapaxes(1, 2), sizes),
    sharding.product(lhs, cotangent, sizes),
  ]
  sharding.assert_equal(got, want)


def test_tgmm_of_experts():
  def on_device(lhs, dout, sizes):
    return ops.tgmm(
      lhs,
      dout,
      sizes[0],
      num_groups=G // 8,
      group_offset=lax.axis_index("expert"),
      config=XLA,
    )

  check_tgmm(on_device, mesh_of(expert=8), (P(), P(), P(), P("expert")))


def test_tgmm_of_experts_and_rows():
  def on_device(lhs, dout, sizes):
    out = ops.tgmm(
      lhs,
      dout,
      sizes[0],
      num_groups=G // 2,
      group_offset=lax.axis_index("expert") * G // 2,
      config=XLA,
    )
    return lax.psum_scatter(out, "data", scatter_dimension=1, tiled=True)

  rows = P("data")
  specs = (rows, rows, rows, P("expert", "data"))
  check_tgmm(on_device, mesh_of(expert=2, data=4), specs)


def test_tgmm_of_rows_summed():
  def on_device(lhs, dout, sizes):
    out = ops.tgmm(lhs, dout, sizes[0], num_groups=G - 2, config=XLA)
    return lax.psum(out, "data")

  rows = P("data")
  mesh = mesh_of(data=4)
  lhs, dout, sizes, _ = tgmm_operands(4)
  sharded = jax.shard_map(
    on_device, mesh=mesh, in_specs=(rows, rows, rows), out_specs=P()
  )
  got = jax.jit(sharded)(lhs, dout, sizes)
  want = sharding.weight_product(lhs, dout, sizes, G - 2)
  sharding.assert_equal([np.asarray(got)], [want])


# ---- the kernels themselves


def test_interpreted_experts_and_weights_in_shards():
  config = ops.Config(backend="interpret")

  def on_device(x, weight, sizes):
    weight = lax.all_gather(weight, "data", axis=1, tiled=True)
    out = ops.gmm(
      x, weight, sizes[0], group_offset=first_group(weight), config=config
    )
    return lax.psum(out, "expert")

  specs = (P("data"), P("expert", "data"), P("data"), P("data"))
  check("gmm", on_device, mesh_of(expert=2, data=2), specs)


# ---- weights gathered for gradients that are only parts of sums


@pytest.mark.parametrize("op", ["gmm", "gmm_gated"])
def test_reduced_weights(op):
  gather = functools.partial(lax.all_gather, tiled=True, to="reduced")

  def on_device(x, weight, sizes):
    weight = gather(weight, "data", axis=1)
    return sharding.apply(op, x, weight, sizes[0], config=XLA)

  rows = P("data")
  specs = (rows, P(None, "data"), rows, rows)
  check(op, on_device, mesh_of(data=4), specs)
