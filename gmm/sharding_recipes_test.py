"""The programs of docs/sharding.md, against the oracle on eight devices."""

import os

# Before jax is imported.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from testing import recipes, sharding

G, K, N = 8, 8, 16
M = 24  # rows of a block
# For each device: its third has no tokens at all, experts 5 and 7 have none
# on any device, and most leave some rows to nobody.
SIZES = np.array(
  [
    [10, 0, 3, 4, 1, 0, 3, 0],
    [0, 24, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 0],
    [3, 3, 3, 3, 3, 0, 3, 0],
    [0, 0, 0, 0, 0, 0, 9, 0],
    [1, 1, 1, 1, 1, 0, 1, 0],
    [0, 0, 7, 0, 17, 0, 0, 0],
    [2, 0, 2, 0, 2, 0, 2, 0],
  ],
  np.int32,
)


def mesh_of(kind, **axes):
  assert jax.device_count() >= 8, "XLA_FLAGS came too late"
  return jax.make_mesh(
    tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes)
  )


def operands(blocks):
  """x, weight, sizes [blocks, g], and a cotangent."""
  sizes = SIZES[:blocks]
  x = sharding.poison_rows(sharding.integers(0, blocks * M, K), sizes)
  weight = sharding.poison_groups(sharding.integers(1, G, K, N), sizes)
  return x, weight, sizes, sharding.integers(2, blocks * M, N)


def run(recipe, mesh, args, specs):
  """Places (an explicit mesh wants it) all arguments, and runs the recipe."""
  *args, cotangent = [
    jax.device_put(x, NamedSharding(mesh, spec))
    for x, spec in zip(args, specs, strict=True)
  ]
  if isinstance(recipe, str):  # Loaded anew: each keeps its first mesh.
    recipe = recipes.load()[recipe]
  with jax.set_mesh(mesh):
    return sharding.value_and_vjp(recipe, args, cotangent)


KINDS = pytest.mark.parametrize(
  "kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"]
)


@KINDS
def test_expert_parallel(kind):
  x, weight, sizes, dout = operands(1)
  got = run(
    "expert_parallel",
    mesh_of(kind, expert=8),
    (x, weight, sizes[0], dout),
    (P(), P("expert"), P(), P()),
  )
  sharding.assert_equal(
    got, sharding.expected("gmm", x, weight, sizes, dout=dout)
  )


@KINDS
def test_fsdp(kind):
  x, weight, sizes, dout = operands(8)
  got = run(
    "fsdp",
    mesh_of(kind, data=8),
    (x, weight, sizes, dout),
    (P("data"), P(None, "data"), P("data"), P("data")),
  )
  sharding.assert_equal(
    got, sharding.expected("gmm", x, weight, sizes, dout=dout)
  )


@KINDS
@pytest.mark.parametrize("shape", [(4, 2), (2, 4)])
def test_experts_in_shards(kind, shape):
  expert, data = shape
  x, weight, sizes, dout = operands(data)
  got = run(
    "experts_in_shards",
    mesh_of(kind, expert=expert, data=data),
    (x, weight, sizes, dout),
    (P("data"), P("expert", "data"), P("data"), P(("data", "expert"))),
  )
  sharding.assert_equal(
    got, sharding.expected("gmm", x, weight, sizes, dout=dout)
  )


@KINDS
def test_tensor_parallel(kind):
  x, gate, sizes, dout = operands(1)
  up = sharding.poison_groups(sharding.integers(3, G, K, N), sizes)
  down = sharding.poison_groups(sharding.integers(4, G, N, K), sizes)
  dout = dout[:, :K]
  got = run(
    "tensor_parallel",
    mesh_of(kind, model=8),
    (x, gate, up, down, sizes[0], dout),
    (
      P(),
      P(None, None, "model"),
      P(None, None, "model"),
      P(None, "model"),
      P(),
      P(),
    ),
  )
  both = np.concatenate([gate, up], axis=2)
  gate_up = sharding.product(x, both, sizes)
  hidden, _ = sharding.reglu_vjp(gate_up, np.zeros((M, N)))
  dhidden, ddown = sharding.product_vjp(hidden, down, sizes, dout)
  _, dgate_up = sharding.reglu_vjp(gate_up, dhidden)
  dx, dboth = sharding.product_vjp(x, both, sizes, dgate_up)
  out = sharding.product(hidden, down, sizes)
  want = [out, dx, *np.split(dboth, 2, axis=2), ddown]
  sharding.assert_equal(got, want)


def exchanged(mesh, capacity, args):
  recipe = recipes.load()["tokens_exchanged"](capacity)
  return run(recipe, mesh, args, (P("expert"),) * 4)


@pytest.mark.parametrize(
  ("kind", "devices"), [(AxisType.Auto, 8), (AxisType.Explicit, 4)]
)
def test_tokens_exchanged(kind, devices):
  x, weight, sizes, dout = operands(devices)
  mesh = mesh_of(kind, expert=devices)
  got = exchanged(mesh, M, (x, weight, sizes, dout))
  sharding.assert_equal(
    got, sharding.expected("gmm", x, weight, sizes, dout=dout)
  )


def test_tokens_past_the_capacity_are_dropped():
  x, weight, sizes, dout = operands(8)
  capacity = 4
  mesh = mesh_of(AxisType.Auto, expert=8)
  got = exchanged(mesh, capacity, (x, weight, sizes, dout))
  # One expert for each device: the same as groups with rows left out.
  kept = np.concatenate(
    [
      np.arange(size) < capacity if i < G else np.zeros(size, bool)
      for own in sizes
      for i, size in enumerate([*own, M - own.sum()])
    ]
  )
  out, dx, dweight = sharding.expected(
    "gmm", x, weight, sizes, dout=np.where(kept[:, None], dout, 0)
  )
  out = np.where(kept[:, None], out, 0)
  sharding.assert_equal(got, [out, dx, dweight])
