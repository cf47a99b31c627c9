"""Weights that arrive quantised: their forms, and gradients refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import ops, quantized
from testing import inputs

M, K, N, G = 12, 32, 24, 3
SIZES = np.array([5, 0, 4], np.int32)
CONFIG = ops.Config(backend="xla")


@dataclasses.dataclass(frozen=True)
class Quantised:
  """As the quantised arrays of other libraries look."""

  qvalue: np.ndarray
  scale: np.ndarray
  zero_point: np.ndarray | None = None


def draw(*shape, dtype="float32", seed=0):
  values = np.random.default_rng(seed).standard_normal(shape) * 3
  if dtype in ("int8", "int4"):
    values = np.clip(np.rint(values), -8, 7)
  return values.astype(jnp.dtype(dtype))


LHS = draw(M, K)
SCALE = np.abs(draw(G, 4, N, seed=2))
BIAS = draw(G, N, seed=3)


def loss(lhs, rhs, scale, bias):
  out = ops.gmm(lhs, rhs, SIZES, rhs_scale=scale, rhs_bias=bias, config=CONFIG)
  return jnp.sum(out**2)


def rhs_of(dtype):
  return draw(G, K, N, dtype=dtype, seed=1)


# ---- gradients


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float4_e2m1fn", "int4"])
def test_a_gradient_that_is_not_asked_for_is_not_refused(dtype, wrap):
  grads = jax.grad(wrap(loss), (0, 3))(LHS, rhs_of(dtype), SCALE, BIAS)
  assert all(np.any(np.asarray(g) != 0) for g in grads)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("dtype", ["float8_e5m2", "float4_e2m1fn"])
def test_a_quantised_float_has_no_gradient(dtype, wrap):
  with pytest.raises(TypeError, match=f"gradient of `rhs`.*{dtype}"):
    jax.grad(wrap(loss), 1)(LHS, rhs_of(dtype), SCALE, BIAS)


def test_a_scale_has_no_gradient():
  with pytest.raises(NotImplementedError, match="gradient of `rhs_scale`"):
    jax.grad(loss, 2)(LHS, rhs_of("int8"), SCALE, BIAS)
  stopped = functools.partial(
    lambda lhs, s: loss(lhs, rhs_of("int8"), jax.lax.stop_gradient(s), BIAS)
  )
  dlhs, dscale = jax.grad(stopped, (0, 1))(LHS, SCALE)
  assert np.any(dlhs != 0)
  assert not np.any(dscale)


def loss_of_scaled(lhs, rhs, by_row):
  out = ops.gmm(lhs, rhs, SIZES, lhs_scale=by_row, config=CONFIG)
  return jnp.sum(out**2)


def test_an_lhs_with_scales_and_those_have_no_gradient():
  lhs, rhs = draw(M, K, dtype="float8_e5m2"), draw(G, K, N, seed=1)
  by_row = np.abs(draw(M, 1, seed=4))
  with pytest.raises(TypeError, match="gradient of `lhs`.*float8_e5m2"):
    jax.grad(loss_of_scaled)(lhs, rhs, by_row)
  with pytest.raises(NotImplementedError, match="gradient of `lhs_scale`"):
    jax.grad(loss_of_scaled, 2)(lhs, rhs, by_row)


@pytest.mark.parametrize("rows", [1, M])
def test_a_weight_times_an_lhs_with_scales_has_one(rows):
  lhs, rhs = draw(M, K, dtype="int8"), draw(G, K, N, seed=1)
  by_row = np.abs(draw(rows, 1, seed=4))
  got = jax.grad(loss_of_scaled, 1)(lhs, rhs, by_row)
  wide = lhs.astype(np.float32) * by_row
  want = jax.grad(loss_of_scaled, 1)(wide, rhs, None)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


def test_integers_have_none():
  _, drhs = jax.grad(loss, (0, 1), allow_int=True)(
    LHS, rhs_of("int4"), SCALE, BIAS
  )
  assert drhs.dtype == jax.dtypes.float0


def test_a_second_derivative():
  rhs = rhs_of("int8")

  def norm(lhs):
    return jnp.sum(jax.grad(loss)(lhs, rhs, SCALE, BIAS) ** 2)

  got = jax.grad(norm)(LHS)
  wide = rhs.astype(np.float32) * np.repeat(SCALE, K // 4, axis=1)

  def plain(lhs):
    return jnp.sum(jax.grad(loss)(lhs, wide, None, BIAS) ** 2)

  np.testing.assert_allclose(got, jax.grad(plain)(LHS), rtol=1e-4, atol=1e-2)


# ---- forms


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("ones", [(), (0,), (2,), (0, 2)])
def test_a_quantised_array_is_a_weight_and_its_scale(ones, transpose_rhs):
  rhs, scale = rhs_of("int8"), SCALE.copy()
  for axis in ones:
    scale = scale.take([0], axis)
  call = functools.partial(
    ops.gmm, LHS, group_sizes=SIZES, transpose_rhs=transpose_rhs, config=CONFIG
  )
  given = (rhs, scale)
  if transpose_rhs:
    given = tuple(x.swapaxes(1, 2) for x in given)
  got = call(Quantised(*given))
  want = call(given[0], rhs_scale=np.broadcast_to(scale, SCALE.shape))
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
  ("rhs", "said"),
  [
    (Quantised(rhs_of("int8"), SCALE[:, 0]), "as many axes"),
    (Quantised(rhs_of("int8"), SCALE[:2]), "g = 3"),
    (Quantised(rhs_of("int8"), SCALE[:, :, :6]), "n = 24"),
  ],
)
def test_scales_that_do_not_fit_a_quantised_array(rhs, said):
  with pytest.raises(ValueError, match=f"`rhs`.*{said}"):
    ops.gmm(LHS, rhs, SIZES, config=CONFIG)


def test_a_quantised_array_has_one_scale_and_no_zero_point():
  rhs = Quantised(rhs_of("int8"), SCALE)
  with pytest.raises(ValueError, match="`rhs_scale`"):
    ops.gmm(LHS, rhs, SIZES, rhs_scale=SCALE, config=CONFIG)
  rhs = dataclasses.replace(rhs, zero_point=SCALE)
  with pytest.raises(NotImplementedError, match="`zero_point`"):
    ops.gmm(LHS, rhs, SIZES, config=CONFIG)


@pytest.mark.parametrize("axis", [1, 2])
def test_packing_and_unpacking(axis):
  rhs = rhs_of("int4")
  carrier = inputs.packed(rhs, axis)
  assert carrier.shape[axis] == rhs.shape[axis] // 8
  got = quantized.unpack(jnp.asarray(carrier), axis)
  np.testing.assert_array_equal(got, rhs.astype(np.int8))


def test_what_a_packed_weight_must_look_like():
  carrier = inputs.packed(rhs_of("int4"), 1)
  with pytest.raises(ValueError, match=r"`rhs` is int32 \[3, 4, 24\].*k = 24"):
    ops.gmm(LHS[:, :24], carrier, SIZES, config=CONFIG)
  stored = inputs.packed(rhs_of("int4").swapaxes(1, 2), 2)
  call = functools.partial(ops.gmm, LHS, stored, SIZES, transpose_rhs=True)
  want = ops.gmm(LHS, rhs_of("int4"), SIZES, config=CONFIG)
  np.testing.assert_allclose(call(config=CONFIG), want, rtol=1e-5, atol=1e-4)
  got = call(config=ops.Config(backend="interpret"))
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_two_weights_that_are_packed_along_lanes():
  stored = inputs.packed(rhs_of("int4").swapaxes(1, 2), 2)
  call = functools.partial(ops.split_gmm, LHS, stored, stored, SIZES)
  with pytest.raises(NotImplementedError, match="`rhs.*packed.*xla"):
    call(transpose_rhs=True, config=ops.Config(backend="interpret"))
  # "auto" finds the backend that can.
  assert call(transpose_rhs=True)[0].shape == (M, N)


# ---- biases


@pytest.mark.parametrize("backend", ["xla", "interpret"])
def test_shards_add_each_bias_once(backend):
  config = ops.Config(backend=backend)
  sizes = np.array([3, 4, 0, 5], np.int32)
  rhs, bias = draw(4, K, N, seed=4), draw(4, N, seed=5)
  whole = ops.gmm(LHS, rhs, sizes, rhs_bias=bias, config=config)
  total = None
  for first in (0, 2):
    local = slice(first, first + 2)
    total = ops.gmm(
      LHS,
      rhs[local],
      sizes,
      group_offset=first,
      rhs_bias=bias[local],
      existing_out=total,
      config=config,
    )
  np.testing.assert_allclose(total, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["xla", "interpret"])
def test_nothing_to_multiply_but_biases(backend):
  config = ops.Config(backend=backend)
  out = ops.gmm(
    LHS[:, :0], rhs_of("int8")[:, :0], SIZES, rhs_bias=BIAS, config=config
  )
  np.testing.assert_array_equal(out[:5], np.tile(BIAS[0], (5, 1)))
  np.testing.assert_array_equal(out[5:9], np.tile(BIAS[2], (4, 1)))
  assert not np.any(np.asarray(out[9:]))


# ---- what is never made


def _arrays_made(jaxpr, seen):
  for eqn in jaxpr.eqns:
    if eqn.primitive.name != "pallas_call":
      seen += [v.aval for v in eqn.outvars if hasattr(v.aval, "size")]
      for value in jax.tree.leaves(
        eqn.params, is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
      ):
        value = getattr(value, "jaxpr", value)
        if hasattr(value, "eqns"):
          _arrays_made(value, seen)
  return seen


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("blocks", [1, 4])
def test_no_weight_is_dequantised_outside_the_kernels(blocks, transpose_rhs):
  m, k, n, g = 16, 256, 512, 3
  config = ops.Config(
    backend="pallas",
    chip="v6e",
    rhs_layout="gnk" if transpose_rhs else "gkn",
  )
  rhs = jnp.zeros((g, n, k) if transpose_rhs else (g, k, n), jnp.int8)
  scale = jnp.zeros((g, blocks, n))

  def step(lhs, dout):
    call = functools.partial(
      ops.gmm, transpose_rhs=transpose_rhs, rhs_scale=scale, config=config
    )
    out, vjp = jax.vjp(lambda lhs: call(lhs, rhs, jnp.zeros(g, int)), lhs)
    return out, vjp(dout)

  lhs, dout = jnp.zeros((m, k)), jnp.zeros((m, n))
  made = _arrays_made(jax.make_jaxpr(step)(lhs, dout).jaxpr, [])
  assert made
  # The weight itself passes through calls, and nothing else is as large.
  assert {a.dtype for a in made if a.size >= k * n} <= {rhs.dtype}
