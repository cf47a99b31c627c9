"""Operands on explicit meshes outside shard_map, and mistakes with meshes."""

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

M, K, N, G = 24, 8, 16, 8
SIZES = np.array([[10, 0, 3, 4, 1, 0, 3, 0]], np.int32)
V6E = ops.Config(chip="v6e")


def mesh_of(kind=AxisType.Explicit):
  assert jax.device_count() >= 8, "XLA_FLAGS came too late"
  return jax.make_mesh((8,), ("x",), axis_types=(kind,))


def put(x, *axes):
  return jax.device_put(x, NamedSharding(mesh_of(), P(*axes)))


def operands():
  x = sharding.poison_rows(sharding.integers(0, M, K), SIZES)
  weight = sharding.poison_groups(sharding.integers(1, G, K, N), SIZES)
  return x, weight, SIZES[0]


@pytest.mark.parametrize("op", ["gmm", "gmm_gated", "split_gmm"])
@pytest.mark.parametrize("all_placed", [True, False])
def test_whole_operands(op, all_placed):
  x, weight, sizes = operands()
  dout = sharding.integers(2, M, N // 2 if op == "gmm_gated" else N)
  rest = [put(a) if all_placed else a for a in (weight, sizes)]
  function = functools.partial(sharding.apply, op, config=V6E)
  got = sharding.value_and_vjp(function, (put(x), *rest), put(dout))
  want = sharding.expected(op, x, weight, SIZES, dout=dout)
  sharding.assert_equal(got, want)


def test_whole_operands_lower_for_tpu():
  x, weight, sizes = map(put, operands())
  gmm = functools.partial(ops.gmm, config=V6E)
  traced = jax.jit(gmm).trace(x, weight, sizes)
  text = traced.lower(lowering_platforms=("tpu",)).as_text()
  assert "tpu_custom_call" in text


CALLS = {
  "gmm": lambda x, w, sizes: ops.gmm(x, w, sizes),
  "gmm_gated": lambda x, w, sizes: ops.gmm_gated(x, w, sizes),
  "split_gmm": lambda x, w, sizes: ops.split_gmm(x, w, w, sizes),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
  ("placed", "said"),
  [
    ((("x",), ()), r"`lhs` is sharded as P\('x', None\).*rows and groups"),
    (((), ("x",)), r"`rhs\w*` is sharded as P\('x', None, None\)"),
    (((), (None, None, "x")), r"`rhs\w*` is sharded .*jax.shard_map"),
    (((None, "x"), (None, "x")), r"`lhs` .*splits k.*psum\(..., 'x'\)"),
    (((), (None, "x")), r"`rhs\w*` .*splits k.*psum\(..., 'x'\)"),
  ],
)
def test_sharded_operands_are_refused(call, placed, said):
  x, weight, sizes = operands()
  args = put(x, *placed[0]), put(weight, *placed[1]), sizes
  with pytest.raises(NotImplementedError, match=said):
    jax.eval_shape(CALLS[call], *args)


def test_a_sharded_bias_is_refused():
  x, weight, sizes = operands()
  bias = put(jnp.zeros((G, N), jnp.float32), None, "x")
  with pytest.raises(NotImplementedError, match="`rhs_bias` is sharded"):
    ops.gmm_gated(put(x), put(weight), sizes, rhs_bias=bias)
  with pytest.raises(NotImplementedError, match="`rhs_up_bias` is sharded"):
    ops.split_gmm(
      *map(put, (x, weight, weight)),
      sizes,
      rhs_gate_bias=put(np.zeros((G, N), np.float32)),
      rhs_up_bias=bias,
    )


def test_tgmm_of_sharded_rows_is_refused():
  x, _, sizes = operands()
  said = r"`dout` .*splits m.*psum\(..., 'x'\)"
  with pytest.raises(NotImplementedError, match=said):
    ops.tgmm(put(x), put(x, "x"), sizes, num_groups=G)


def test_parts_of_a_sum_are_refused():
  x, weight, sizes = operands()

  def product(x, mix, weight):
    parts = jnp.dot(x, mix, out_sharding=P(None, None, unreduced={"x"}))
    return ops.gmm(parts, weight, sizes)

  args = put(x, None, "x"), put(np.eye(K, dtype=np.float32), "x"), put(weight)
  said = "`lhs` is .* a part of the sum.*let jax.reshard add"
  with jax.set_mesh(mesh_of()), pytest.raises(NotImplementedError, match=said):
    jax.eval_shape(product, *args)


def test_a_sharded_batch_is_refused():
  x, weight, sizes = operands()
  batch = put(jnp.stack([x] * 8), "x")
  mapped = jax.vmap(ops.gmm, (0, None, None))
  with pytest.raises(NotImplementedError, match="vmap over a batch.*'x'"):
    jax.eval_shape(mapped, batch, put(weight), put(sizes))


RAGGED = {
  "nn": (([1], [1]), [0], [0], (M, K), (G, K, N)),
  "tn": (([0], [0]), [0], [], (M, K), (M, N)),
  "batch": (([2], [1]), [0], [], (M, 2, K), (M, K, N)),
}


@pytest.mark.parametrize("form", RAGGED)
def test_the_result_of_a_ragged_dot_in_shards(form):
  contract, ragged, group, *shapes = RAGGED[form]
  batch = ([0], [0]) if form == "batch" else ([], [])
  numbers = lax.RaggedDotDimensionNumbers((contract, batch), ragged, group)
  x = [sharding.integers(i, *shape) for i, shape in enumerate(shapes)]

  def dot(lhs, rhs, out_sharding=None):
    return ops.ragged_dot_general(
      lhs, rhs, SIZES[0], numbers, out_sharding=out_sharding
    )

  dout = sharding.integers(2, *jax.eval_shape(dot, *x).shape)
  want = sharding.value_and_vjp(dot, x, dout)
  with jax.set_mesh(mesh_of()):
    got = sharding.value_and_vjp(
      functools.partial(dot, out_sharding=P("x")),
      [put(a) for a in x],
      put(dout, "x"),
    )
  sharding.assert_equal(got, [a.astype(np.float64) for a in want])


def test_where_a_ragged_dot_puts_its_result():
  args = [put(a) for a in operands()]
  with jax.set_mesh(mesh_of()):
    for function in (ops.ragged_dot, lax.ragged_dot):
      out = jax.eval_shape(
        functools.partial(function, out_sharding=P(None, "x")), *args
      )
      assert (out.shape, out.sharding.spec) == ((M, N), P(None, "x"))
    with pytest.raises(ValueError, match="y.* not found in mesh"):
      ops.ragged_dot(*args, out_sharding=P("y"))
    with pytest.raises(NotImplementedError, match="`lhs` is sharded .*psum"):
      sharded = put(np.zeros((M, K), np.float32), None, "x")
      ops.ragged_dot(sharded, *args[1:], out_sharding=P("x"))


def test_auto_axes_as_the_message_says():
  x, weight, sizes = operands()
  whole = NamedSharding(mesh_of(), P())
  gmm = functools.partial(ops.gmm, config=ops.Config(backend="xla"))
  sharded = jax.sharding.auto_axes(gmm, out_sharding=whole)
  got = jax.jit(sharded)(put(x, None, "x"), put(weight, None, "x"), put(sizes))
  want = sharding.product(x, weight, SIZES)
  sharding.assert_equal([np.asarray(got)], [want])


# ---- what jax says


def sharded(function, *in_specs):
  return jax.shard_map(
    function,
    mesh=mesh_of(AxisType.Auto),
    in_specs=in_specs,
    out_specs=P(),
  )


def test_k_split_without_a_reduction():
  gmm = sharded(ops.gmm, P(None, "x"), P(None, "x"), P())
  with pytest.raises(ValueError, match="out_specs which require replication"):
    jax.eval_shape(gmm, *operands())


def test_k_split_in_one_operand():
  gmm = sharded(ops.gmm, P(None, "x"), P(), P())
  with pytest.raises(ValueError, match="`rhs` is .* k = 1; want k = 1"):
    jax.eval_shape(gmm, *operands())


def test_an_axis_that_the_mesh_has_not():
  gmm = sharded(ops.gmm, P(), P("expert"), P())
  with pytest.raises(ValueError, match=r"in_specs\[1\] refers to 'expert'"):
    jax.eval_shape(gmm, *operands())
  with pytest.raises(ValueError, match="expert.* is not found in mesh"):
    put(np.zeros(8), "expert")

  def experts(x, weight, sizes):
    first = lax.axis_index("expert")
    return ops.gmm(x, weight, sizes, group_offset=first)

  gmm = sharded(experts, P(), P("x"), P())
  with pytest.raises(NameError, match="unbound axis name: expert"):
    jax.eval_shape(gmm, *operands())


@pytest.mark.parametrize("within", [False, True])
def test_auto_axes_on_tpu_need_shard_map(within):
  kinds = (AxisType.Auto, AxisType.Auto)
  mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=kinds)
  args = [jax.device_put(a, NamedSharding(mesh, P())) for a in operands()]
  gmm = functools.partial(ops.gmm, config=V6E)
  if within:  # One that leaves an axis out is not enough.
    gmm = jax.shard_map(
      gmm, mesh=mesh, in_specs=P(), out_specs=P(), axis_names={"x"}
    )
  traced = jax.jit(gmm).trace(*args)
  with pytest.raises(NotImplementedError, match="wrap the call in a shard_map"):
    traced.lower(lowering_platforms=("tpu",))
