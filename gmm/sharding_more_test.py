"""What the other tests of shards have for some operations, for the others.

On meshes with explicit axes, values and gradients beside the oracle: weights
gathered, columns in shards, tokens that travel, the products of tgmm, and the
kernels themselves.
"""

import os

# Before jax is imported.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from gmm import ops
from testing import recipes, sharding

K, N, M = 8, 16, 12  # M: rows of a block
XLA = ops.Config(backend="xla")
# For each device: the second has no tokens, the last expert none on any.
SIZES = np.array(
  [[5, 3, 2, 0], [0, 0, 0, 0], [0, 9, 3, 0], [1, 4, 4, 0]], np.int32
)
DEVICES, G = SIZES.shape


def mesh_of(**axes):
  assert jax.device_count() >= 8, "XLA_FLAGS came too late"
  kinds = (AxisType.Explicit,) * len(axes)
  return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)


def run(program, mesh, args, specs):
  """Value and gradients of `program`, of arguments placed on the mesh."""
  *args, cotangent = [
    jax.device_put(x, NamedSharding(mesh, spec))
    for x, spec in zip(args, specs, strict=True)
  ]
  with jax.set_mesh(mesh):
    return sharding.value_and_vjp(program, args, cotangent)


def operands(op, sizes):
  """x, weight, sizes and a cotangent."""
  shape = (G, N, K) if op == "gmm_nt" else (G, K, N)
  rows = len(sizes) * M
  x = sharding.poison_rows(sharding.integers(0, rows, K), sizes)
  weight = sharding.poison_groups(sharding.integers(1, *shape), sizes)
  n = N // 2 if op == "gmm_gated" else N
  return x, weight, sizes, sharding.integers(2, rows, n)


def recipe(name, op, config=XLA):
  """A program of docs/sharding.md with another product in it."""
  names = recipes.load()
  product = functools.partial(sharding.apply, op, config=config)
  names["ops"] = types.SimpleNamespace(gmm=product)
  return names[name](M) if name == "tokens_exchanged" else names[name]


@pytest.mark.parametrize("op", ["gmm_nt", "gmm_gated", "split_gmm"])
@pytest.mark.parametrize("name", ["fsdp", "tokens_exchanged"])
def test_recipes_with_other_products(op, name):
  axis, own, given = "data", P(None, "data"), SIZES
  if name == "tokens_exchanged":  # Two experts for each of two devices.
    axis, own, given = "expert", P("expert"), SIZES[2:]
  x, weight, sizes, dout = operands(op, given)
  got = run(
    recipe(name, op),
    mesh_of(**{axis: len(sizes)}),
    (x, weight, sizes, dout),
    (P(axis), own, P(axis), P(axis)),
  )
  want = sharding.expected(op, x, weight, sizes, dout=dout)
  sharding.assert_equal(got, want)


@pytest.mark.parametrize("op", ["gmm_gated", "split_gmm"])
def test_columns_of_gate_and_up_in_shards(op):
  x, weight, sizes, dout = operands(op, SIZES[:1])
  if op == "split_gmm":
    dout = dout.reshape(M, 2, -1)  # that of gate, that of up

  def on_device(x, gate_up, sizes):  # [m, k], [g, k, 2, n / devices], [g]
    if op == "gmm_gated":
      joined = gate_up.reshape(*gate_up.shape[:2], -1)
      return sharding.apply(op, x, joined, sizes, config=XLA)
    gate, up = gate_up[:, :, 0], gate_up[:, :, 1]
    return jnp.stack(ops.split_gmm(x, gate, up, sizes, config=XLA), axis=1)

  columns = P(None, None, None, "model")
  out = P(None, "model") if op == "gmm_gated" else P(None, None, "model")
  program = jax.shard_map(
    on_device, in_specs=(P(), columns, P()), out_specs=out
  )
  got = run(
    program,
    mesh_of(model=8),
    (x, weight.reshape(G, K, 2, N // 2), sizes[0], dout),
    (P(), columns, P(), out),
  )
  dout = dout.reshape(M, -1)
  out, dx, dweight = sharding.expected(op, x, weight, sizes, dout=dout)
  out = out.reshape(got[0].shape)
  sharding.assert_equal(got, [out, dx, dweight.reshape(G, K, 2, N // 2)])


# ---- tgmm


def tgmm(lhs, dout, sizes, config=XLA):
  return ops.tgmm(lhs, dout, sizes[0], num_groups=G, config=config)


def tgmm_of_sums(lhs, dout, sizes):
  return lax.psum(tgmm(lhs, dout, sizes), "x")


ROWS, COLUMNS = P("x"), P(None, "x")
TGMM = {
  "rows": (tgmm_of_sums, DEVICES, (ROWS, ROWS, ROWS, P())),
  "columns_of_lhs": (tgmm, 1, (COLUMNS, P(), P(), COLUMNS)),
  "columns_of_dout": (tgmm, 1, (P(), COLUMNS, P(), P(None, None, "x"))),
  "whole": (None, 1, (P(), P(), P(), P())),
}


@pytest.mark.parametrize("name", TGMM)
def test_tgmm(name):
  function, blocks, specs = TGMM[name]
  sizes = SIZES[:blocks]
  rows = blocks * M
  lhs = sharding.poison_rows(sharding.integers(0, rows, K), sizes)
  dout = sharding.poison_rows(sharding.integers(1, rows, N), sizes)
  cotangent = sharding.poison_groups(sharding.integers(2, G, K, N), sizes)
  program = tgmm
  if function is not None:
    program = jax.shard_map(function, in_specs=specs[:3], out_specs=specs[3])
  got = run(program, mesh_of(x=DEVICES), (lhs, dout, sizes, cotangent), specs)
  want = [
    sharding.weight_product(lhs, dout, sizes, G),
    sharding.product(dout, cotangent.swapaxes(1, 2), sizes),
    sharding.product(lhs, cotangent, sizes),
  ]
  sharding.assert_equal(got, want)


def test_tgmm_of_tokens_that_travel():
  # Rows for one expert after the other, each followed by its padding.
  capacity = 9
  counts = SIZES
  pairs = np.stack([counts, capacity - counts], 2).reshape(DEVICES, -1)
  padding = np.concatenate(
    [np.repeat(np.arange(2 * G) % 2 > 0, own) for own in pairs]
  )
  lhs, dout = (
    np.where(padding[:, None], np.nan, sharding.integers(i, len(padding), n))
    for i, n in ((0, K), (1, N))
  )
  lhs, dout = lhs.astype(np.float32), dout.astype(np.float32)
  cotangent = sharding.poison_groups(sharding.integers(2, G, K, N), counts)

  def on_device(lhs, dout, counts):
    def sent(x):
      x = x.reshape(DEVICES, -1, x.shape[1])
      return lax.all_to_all(x, "x", 0, 0).reshape(-1, x.shape[2])

    counts = lax.all_to_all(counts[0], "x", 0, 0)
    order = jnp.argsort((jnp.arange(capacity) >= counts[:, None]).ravel())
    lhs, dout = sent(lhs)[order], sent(dout)[order]
    sizes = jnp.sum(counts, keepdims=True)
    return ops.tgmm(lhs, dout, sizes, num_groups=1, config=XLA)

  got = run(
    jax.shard_map(on_device, in_specs=ROWS, out_specs=ROWS),
    mesh_of(x=DEVICES),
    (lhs, dout, counts, cotangent),
    (ROWS,) * 4,
  )
  both = np.zeros((2 * G, K, N))  # groups of padding among the others
  both[::2] = cotangent
  lhs, dout = (np.where(padding[:, None], 0, x) for x in (lhs, dout))
  want = [
    sharding.weight_product(lhs, dout, pairs, 2 * G)[::2],
    sharding.product(dout, both.swapaxes(1, 2), pairs),
    sharding.product(lhs, both, pairs),
  ]
  sharding.assert_equal(got, want)


def test_the_transposed_weight_whole():
  x, weight, sizes, dout = operands("gmm_nt", SIZES[:1])
  program = functools.partial(sharding.apply, "gmm_nt", config=XLA)
  got = run(
    program, mesh_of(x=8), (x, weight, sizes[0], dout), (P(), P(), P(), P())
  )
  want = sharding.expected("gmm_nt", x, weight, sizes, dout=dout)
  sharding.assert_equal(got, want)


# ---- the kernels themselves


def test_interpreted_experts():
  sizes = SIZES[3:, :3]  # The last expert has no size at all.
  x, weight, sizes, dout = operands("split_gmm", sizes)
  got = run(
    recipe("expert_parallel", "split_gmm", ops.Config(backend="interpret")),
    mesh_of(expert=2),
    (x, weight, sizes[0], dout),
    (P(), P("expert"), P(), P()),
  )
  want = sharding.expected("split_gmm", x, weight, sizes, dout=dout)
  sharding.assert_equal(got, want)


def test_the_gated_kernel_of_tokens_that_travel():
  """The checks of shard_map are done when a program is traced."""
  mesh, rows = mesh_of(expert=DEVICES), P("expert")
  x, weight, sizes, dout = (
    jax.device_put(a, NamedSharding(mesh, rows))
    for a in operands("gmm_gated", SIZES)
  )
  program = recipe("tokens_exchanged", "gmm_gated", ops.Config(chip="v6e"))

  def step(x, weight, dout):
    out, vjp = jax.vjp(lambda *x: program(*x, sizes), x, weight)
    return out, *vjp(dout)

  with jax.set_mesh(mesh):
    traced = jax.jit(step).trace(x, weight, dout)
  got = [(x.shape, x.sharding.spec[0]) for x in traced.out_info]
  assert got == [(a.shape, "expert") for a in (dout, x, weight)]
  text = traced.lower(lowering_platforms=("tpu",)).as_text()
  assert text.count("@tpu_custom_call") == 4
