"""The operations on several devices, and what lowering makes of them."""

import os

# Before jax is imported: the shard_map tests want eight devices.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("NPROC", "8")  # fewer threads can wait for each other

import functools
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gmm import ops
from testing import toy
from testing.toy import (
  V6E,
  XLA,
  G,
  K,
  M,
  N,
  assert_close,
  batched,
  dense,
  equations,
  loss_of,
)


@pytest.fixture(name="x")
def _operands():
  return toy.operands()


# ---- shards


def mesh_of(axis_type):
  assert jax.device_count() >= 8, "XLA_FLAGS came too late"
  return jax.make_mesh((8,), ("x",), axis_types=(axis_type,))


AXIS_TYPES = [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit]


def expert_parallel(mesh):
  """Each device has one group's weight and sees every row."""

  def transform(function):
    @functools.partial(
      jax.shard_map, mesh=mesh, in_specs=(P(), P("x"), P()), out_specs=P()
    )
    def sharded(lhs, rhs, sizes):
      offset = lax.axis_index("x") * rhs.shape[0]
      out = function(lhs, rhs, sizes, group_offset=offset)
      return lax.psum(out, "x")

    return sharded

  return transform


@pytest.mark.parametrize("axis_type", AXIS_TYPES)
def test_expert_parallel(axis_type, x):
  mesh = mesh_of(axis_type)
  specs = (P(), P("x"), P())
  placed = [
    jax.device_put(a, NamedSharding(mesh, spec))
    for a, spec in zip(x, specs, strict=True)
  ]
  sharded = expert_parallel(mesh)(ops.gmm)
  got = jax.jit(jax.value_and_grad(loss_of(sharded), (0, 1)))(*placed)
  assert_close(got, jax.value_and_grad(loss_of(dense), (0, 1))(*x))


def test_expert_parallel_with_an_interpreted_kernel(x):
  gmm = functools.partial(ops.gmm, config=ops.Config(backend="interpret"))
  sharded = expert_parallel(mesh_of(AXIS_TYPES[0]))(gmm)
  assert_close(jax.jit(sharded)(*x), dense(*x))


def test_rows_in_shards_sum_the_weights_gradient(x):
  lhs, rhs, _ = x
  sizes = jnp.array([1, 0, 2, 1, 0, 0, 0, 0])  # of each shard's five rows

  def shards(lhs, rhs, sizes):
    rows = lhs.reshape(8, 5, K)
    return jax.vmap(dense, (0, None, None))(rows, rhs, sizes).reshape(M, N)

  sharded = jax.shard_map(
    ops.gmm,
    mesh=mesh_of(AXIS_TYPES[0]),
    in_specs=(P("x"), P(), P()),
    out_specs=P("x"),
  )
  got = jax.jit(jax.grad(loss_of(sharded), (0, 1)))(lhs, rhs, sizes)
  assert_close(got, jax.grad(loss_of(shards), (0, 1))(lhs, rhs, sizes))


def test_vmap_of_shard_map(x):
  sharded = expert_parallel(mesh_of(AXIS_TYPES[0]))(ops.gmm)
  axes = (0, None, None)
  x = batched(x, axes)
  assert_close(jax.jit(jax.vmap(sharded, axes))(*x), jax.vmap(dense, axes)(*x))


# ---- what is lowered


def lowered_for_tpu(x, config):
  gmm = functools.partial(ops.gmm, config=config)
  traced = jax.jit(jax.grad(loss_of(gmm), (0, 1))).trace(*x)
  return traced.lower(lowering_platforms=("tpu",))


def transposes_of(jaxpr, size):
  """Transposes of at least `size` elements in a jaxpr, at any depth."""
  return [
    eqn
    for eqn in equations(jaxpr)
    if eqn.primitive.name == "transpose" and eqn.outvars[0].aval.size >= size
  ]


@pytest.mark.parametrize("backend", ["auto", "pallas", "xla"])
def test_no_weight_is_transposed(backend, x):
  lhs, rhs, sizes = x

  def transposes(rhs, **options):
    config = ops.Config(
      backend=backend,
      use_gmm_v2_transposed_rhs_dlhs=options.pop("flag", None),
      rhs_layout="gnk" if options.get("transpose_rhs") else "gkn",
    )
    gmm = functools.partial(ops.gmm, config=config, **options)
    jaxpr = jax.make_jaxpr(jax.grad(loss_of(gmm), (0, 1)))(lhs, rhs, sizes)
    return transposes_of(jaxpr.jaxpr, rhs.size)

  assert not transposes(rhs)
  assert not transposes(rhs, flag=True)
  assert len(transposes(rhs, flag=False)) == 1
  rhs = jnp.zeros((G, N, K))
  assert not transposes(rhs, transpose_rhs=True)
  assert not transposes(rhs, transpose_rhs=True, flag=False)


def test_lowering_for_tpu_from_a_cpu_host(x):
  text = lowered_for_tpu(x, V6E).as_text()
  assert text.count("stablehlo.custom_call @tpu_custom_call") == 3
  for name in ("gmm_v2-nn", "gmm_v2-nt", "tgmm_v2-tn"):
    assert name in text
  assert "stablehlo.while" not in text
  assert f"tensor<{G}x{N}x{K}xf32>" not in text  # of a transposed weight


def test_lowering_for_cpu_has_no_kernel(x):
  traced = jax.jit(ops.gmm).trace(*x)
  text = traced.lower(lowering_platforms=("cpu",)).as_text()
  assert "tpu_custom_call" not in text and "stablehlo.while" in text


def test_use_gmm_v2_false_has_no_kernel_on_tpu(x):
  text = lowered_for_tpu(x, ops.Config(use_gmm_v2=False)).as_text()
  assert "tpu_custom_call" not in text


def test_lowering_for_tpu_under_transformations(x):
  gmm = functools.partial(ops.gmm, config=V6E)
  for function, axes in (
    (jax.vmap(jax.grad(loss_of(gmm)), (0, None, None)), (0, None, None)),
    (jax.grad(jax.checkpoint(loss_of(gmm))), (None, None, None)),
    (
      jax.grad(loss_of(expert_parallel(mesh_of(AXIS_TYPES[0]))(gmm))),
      (None, None, None),
    ),
  ):
    traced = jax.jit(function).trace(*batched(x, axes))
    lowered = traced.lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()


def test_export_for_tpu(x):
  gmm = functools.partial(ops.gmm, config=V6E)
  exported = jax.export.export(jax.jit(gmm), platforms=["tpu"])(*x)
  assert "tpu_custom_call" in exported.mlir_module()


def test_an_assumed_chip_is_said_when_lowered_for_tpu_only(x):
  with pytest.warns(UserWarning, match="no `chip` is named.*v6e") as caught:
    lowered_for_tpu(x, ops.Config())
  assert len(caught) == 1
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    lowered_for_tpu(x, V6E)
    lowered_for_tpu(x, XLA)
    jax.jit(ops.gmm).lower(*x)


# ---- gate and up


def gated(lhs, rhs, sizes, *, config=XLA, **options):
  return ops.gmm_gated(lhs, rhs, sizes, config=config, **options)


def split(lhs, rhs, sizes, *, config=XLA, **options):
  halves = jnp.split(rhs, 2, axis=2)
  both = ops.split_gmm(lhs, *halves, sizes, config=config, **options)
  return jnp.concatenate(both, axis=1)


def dense_gated(lhs, rhs, sizes):
  gate, up = jnp.split(dense(lhs, rhs, sizes), 2, axis=1)
  return jax.nn.silu(gate) * up


@pytest.mark.parametrize(
  ("ours", "theirs"),
  [
    (gated, dense_gated),
    (functools.partial(gated, recompute=False), dense_gated),
    (split, dense),
  ],
  ids=["gated", "kept", "split"],
)
def test_expert_parallel_gate_and_up(ours, theirs, x):
  sharded = expert_parallel(mesh_of(AXIS_TYPES[0]))(ours)
  got = jax.jit(jax.value_and_grad(loss_of(sharded), (0, 1)))(*x)
  assert_close(got, jax.value_and_grad(loss_of(theirs), (0, 1))(*x))


def test_gate_and_up_lowered_for_tpu_from_a_cpu_host(x):
  for function, forward, dlhs in (
    (gated, "gmm_v2-nn-gated", "gmm_v2-nt-g_"),
    (split, "gmm_v2-nn-split", "gmm_v2-nt-sum"),
  ):
    function = functools.partial(function, config=V6E)
    traced = jax.jit(jax.grad(loss_of(function), (0, 1))).trace(*x)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "stablehlo.while" not in text
    for name in (forward, dlhs, "tgmm_v2-tn"):
      assert name in text
    text = traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "tpu_custom_call" not in text and "stablehlo.while" in text
