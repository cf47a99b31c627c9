"""What ops.gmm quantises on the way: transformed by jax, and refused."""

import functools
import os

# Before jax is imported.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from gmm import ops, quantization
from testing import compiling, toy
from testing.toy import SIZES, XLA, G, K, M, N, assert_close, normal

HOW = ops.Quantization
BLOCKS = HOW(dtype="float8_e4m3fn", block=K // 2)
jit = functools.partial(jax.jit, compiler_options=compiling.fast_options())


@pytest.fixture(name="x")
def _operands():
  sizes = jnp.array(SIZES, jnp.int32)
  return normal(0, M, K), normal(1, G, K, N), sizes


def rounded(w):
  """The weight in use; its gradient goes straight through."""
  q, scale = quantization.quantize_weight(w, BLOCKS, False)
  wide = q.astype(w.dtype) * jnp.repeat(scale, BLOCKS.block, axis=1)
  return w + jax.lax.stop_gradient(wide - w)


@jax.custom_vjp
def rounded_cotangent(out):
  """The identity, with a cotangent that has one scale for rows of groups."""
  return out


def _rounded_bwd(_, dout):
  q, scale = quantization.quantize(
    dout[: sum(SIZES)], jnp.dtype("float8_e5m2"), (0, 1)
  )
  wide = q.astype(dout.dtype) * scale
  return (jnp.pad(wide, [(0, M - wide.shape[0]), (0, 0)]),)


rounded_cotangent.defvjp(lambda out: (out, None), _rounded_bwd)


def weight(lhs, rhs, sizes):
  return ops.gmm(lhs, rhs, sizes, rhs_quantization=BLOCKS, config=XLA)


def of_rounded_weight(lhs, rhs, sizes):
  return ops.gmm(lhs, rounded(rhs), sizes, config=XLA)


def both(lhs, rhs, sizes):
  return ops.gmm(
    lhs,
    rhs,
    sizes,
    rhs_quantization=BLOCKS,
    dout_quantization="float8_e5m2",
    config=XLA,
  )


def of_both_rounded(lhs, rhs, sizes):
  return rounded_cotangent(ops.gmm(lhs, rounded(rhs), sizes, config=XLA))


BOTH = (both, of_both_rounded)


def loss_of(function):
  return lambda *x: jnp.sum(jnp.sin(function(*x)))


def assert_same(transform, pair, x):
  ours, theirs = (transform(f) for f in pair)
  assert_close(jit(ours)(*x), jit(theirs)(*x))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint])
def test_gradients(wrap, x):
  assert_same(lambda f: jax.value_and_grad(wrap(loss_of(f)), (0, 1)), BOTH, x)


def test_grad_of_vmap(x):
  # Each example has scales of its own.
  axes = (0, 0, 0)

  def transform(function):
    def loss(*x):
      return jnp.sum(jnp.sin(jax.vmap(function, axes)(*x)))

    return jax.grad(loss, (0, 1))

  assert_same(transform, BOTH, toy.batched(x, axes))


def second(function):
  gradients = jax.grad(loss_of(function), (0, 1))
  return jax.grad(lambda *x: sum(jnp.sum(d**2) for d in gradients(*x)), (0, 1))


def test_second_derivatives(x):
  """Straight through the weight's rounding, too."""
  assert_same(second, (weight, of_rounded_weight), x)
  # Those of a cotangent that was quantised are as if it had not been.
  got = jit(jax.grad(lambda dout: _dlhs(dout, x, "int8")))(jnp.ones((M, N)))
  want = jit(jax.grad(lambda dout: _dlhs(dout, x, None)))(jnp.ones((M, N)))
  assert_close(got, want)


def _dlhs(dout, x, how):
  """A linear function of both gradients, which are linear in dout."""
  lhs, rhs, sizes = x
  _, vjp = jax.vjp(
    lambda lhs, rhs: ops.gmm(
      lhs, rhs, sizes, dout_quantization=how, config=XLA
    ),
    lhs,
    rhs,
  )
  return sum(jnp.sum(d * jnp.cos(d.shape[0])) for d in vjp(dout))


def test_shards_have_scales_of_their_own():
  mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
  sizes = np.array([[3, 0, 4], [5, 2, 0]], np.int32)
  lhs, rhs, dout = normal(0, 16, K), normal(1, 3, K, N), normal(2, 16, N)
  dout = dout.at[8:].multiply(1000).at[15].set(jnp.nan)

  def vjp(lhs, rhs, sizes, dout):
    def call(lhs, rhs):
      return ops.gmm(
        lhs,
        rhs,
        sizes[0],
        rhs_quantization=BLOCKS,
        dout_quantization="float8_e5m2",
        config=XLA,
      )

    out, pull = jax.vjp(call, lhs, rhs)
    return out, *pull(dout)

  rows = P("data")
  sharded = jax.shard_map(
    vjp,
    mesh=mesh,
    in_specs=(rows, P(), rows, rows),
    out_specs=(rows, rows, P()),
  )
  got = jit(sharded)(lhs, rhs, sizes, dout)
  parts = [
    jit(vjp)(lhs[i : i + 8], rhs, sizes[i // 8, None], dout[i : i + 8])
    for i in (0, 8)
  ]
  for g, (a, b), join in zip(
    got, zip(*parts, strict=True), ("rows", "rows", "sum"), strict=True
  ):
    want = a + b if join == "sum" else jnp.concatenate([a, b])
    np.testing.assert_allclose(g, want, rtol=1e-5, atol=1e-5)
    assert np.any(g)


@pytest.mark.parametrize("transposed", [False, True])
def test_sums_of_nothing_are_biases(transposed):
  sizes, bias = np.array([3, 0, 4]), normal(0, 3, 6)
  rhs = np.zeros((3, 6, 0) if transposed else (3, 0, 6), np.float32)

  def call(lhs, rhs, bias):
    return ops.gmm(
      lhs,
      rhs,
      sizes,
      rhs_bias=bias,
      transpose_rhs=transposed,
      lhs_quantization="int8",
      rhs_quantization="int8",
      dout_quantization="int8",
      config=XLA,
    )

  @jit
  def run(*x):
    out, vjp = jax.vjp(call, *x)
    return out, vjp(jnp.ones_like(out))

  lhs = np.zeros((8, 0), np.float32)
  out, (dlhs, drhs, dbias) = run(lhs, rhs, bias)
  want = np.repeat(np.vstack([bias, np.zeros((1, 6))]), [*sizes, 1], axis=0)
  np.testing.assert_array_equal(out, want)
  assert (dlhs.shape, drhs.shape) == (lhs.shape, rhs.shape)
  np.testing.assert_array_equal(dbias, np.outer(sizes, np.ones(6)))


# ---- what is refused

LHS = np.zeros((4, 8), np.float32)
RHS = np.zeros((1, 8, 6), np.float32)
SCALE = np.ones((1, 1, 6), np.float32)
INT8 = np.zeros((1, 8, 6), np.int8)


@pytest.mark.parametrize(
  ("rhs", "options", "error", "said"),
  [
    (RHS, {"rhs_quantization": "bfloat16"}, TypeError, "`rhs_quantization`"),
    (RHS, {"rhs_quantization": 8}, TypeError, "`rhs_quantization` is 8; want"),
    (
      RHS,
      {"dout_quantization": "int4"},
      TypeError,
      "`dout_quantization`.*int8",
    ),
    (
      RHS,
      {"dout_quantization": HOW(dtype="int8", block=2)},
      ValueError,
      "`dout_quantization` has block=2",
    ),
    (
      RHS,
      {"rhs_quantization": HOW(dtype="int8", per="channel")},
      ValueError,
      "`rhs_quantization` has per='channel'",
    ),
    (
      RHS,
      {"rhs_quantization": HOW(dtype="int8", block=3)},
      ValueError,
      "`rhs_quantization` has blocks of 3 along k but k = 8",
    ),
    (
      INT8,
      {"rhs_quantization": "int8"},
      ValueError,
      "`rhs` is int8, quantised",
    ),
    (
      INT8,
      {"rhs_quantization": "int8", "rhs_scale": SCALE},
      ValueError,
      "`rhs_scale` is given",
    ),
  ],
)
def test_what_cannot_be_quantised(rhs, options, error, said):
  with pytest.raises(error, match=said):
    ops.gmm(LHS, rhs, np.array([4]), config=XLA, **options)


def test_formats_that_a_chip_lacks():
  config = ops.Config(backend="interpret", chip="v6e")
  call = functools.partial(ops.gmm, LHS, RHS, np.array([4]))
  with pytest.raises(NotImplementedError, match="`rhs` is float4_e2m1fn.*v6e"):
    call(rhs_quantization="float4_e2m1fn", config=config)


@pytest.mark.parametrize("name", ["rhs_quantization", "dout_quantization"])
def test_gate_and_up_are_not_quantised_on_the_way(name):
  sizes = np.array([4])
  with pytest.raises(TypeError, match=name):
    ops.gmm_gated(LHS, RHS, sizes, **{name: "int8"})
  with pytest.raises(TypeError, match=name):
    ops.split_gmm(LHS, RHS, RHS, sizes, **{name: "int8"})


def test_a_weight_that_came_quantised_has_no_gradient():
  fp8 = RHS.astype(jnp.float8_e4m3fn)

  def loss(rhs):
    out = ops.gmm(
      LHS,
      rhs,
      np.array([4]),
      rhs_scale=SCALE,
      dout_quantization="float8_e5m2",
      config=XLA,
    )
    return jnp.sum(out)

  with pytest.raises(TypeError, match="gradient of `rhs`"):
    jax.grad(loss)(fp8)
