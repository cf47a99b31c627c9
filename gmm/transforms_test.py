"""jax's transformations of the operations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from gmm import ops
from testing import toy
from testing.toy import (
  SIZES,
  XLA,
  G,
  K,
  M,
  N,
  assert_close,
  assert_same_grads,
  batched,
  dense,
  equations,
  loss_of,
  normal,
  owners,
)


@pytest.fixture(name="x")
def _operands():
  return toy.operands()


# ---- derivatives


@pytest.mark.parametrize("config", [ops.Config(), XLA])
def test_grad_outside_jit(config, x):
  gmm = functools.partial(ops.gmm, config=config)
  got = jax.grad(loss_of(gmm), (0, 1))(*x)
  assert_close(got, jax.grad(loss_of(dense), (0, 1))(*x))


def test_grad_of_the_transposed_weight(x):
  def transposed(lhs, rhs, sizes):
    return ops.gmm(lhs, rhs.swapaxes(1, 2), sizes, transpose_rhs=True)

  assert_same_grads(loss_of, x, transposed)


def test_grad_of_tgmm(x):
  lhs, _, sizes = x
  dout = normal(2, M, N)

  def einsum(lhs, dout):
    owned = owners(sizes, M, 3, 2)
    return jnp.einsum("mg,mk,mn->gkn", owned, lhs, dout)

  def tgmm(lhs, dout):
    return ops.tgmm(lhs, dout, sizes, num_groups=3, group_offset=2)

  def grads(function):
    return jax.value_and_grad(
      lambda lhs, dout: jnp.sum(jnp.sin(function(lhs, dout))), (0, 1)
    )

  assert_close(jax.jit(grads(tgmm))(lhs, dout), grads(einsum)(lhs, dout))


def test_second_derivatives(x):
  def gradient_norm(function):
    gradient = jax.grad(loss_of(function), 1)
    return lambda *x: jnp.sum(gradient(*x) ** 2)

  assert_same_grads(gradient_norm, x)


def test_cotangents_have_the_operands_dtypes(x):
  lhs, rhs, sizes = x
  lhs, existing = lhs.astype(jnp.bfloat16), normal(2, M, N)
  out, vjp = jax.vjp(
    lambda lhs, rhs, sizes, existing: ops.gmm(
      lhs, rhs, sizes, existing_out=existing, preferred_element_type="float32"
    ),
    lhs,
    rhs,
    sizes,
    existing,
  )
  dout = normal(3, M, N)
  dlhs, drhs, dsizes, dexisting = vjp(dout)
  assert out.dtype == jnp.float32
  assert (dlhs.dtype, drhs.dtype) == (jnp.bfloat16, jnp.float32)
  assert dsizes.dtype == jax.dtypes.float0
  np.testing.assert_array_equal(dexisting, dout)


@pytest.mark.parametrize("rhs_dtype", ["int8", "float32"])
def test_integers_have_no_gradient(x, rhs_dtype):
  lhs, rhs, sizes = x[0].astype(jnp.int8), x[1].astype(rhs_dtype), x[2]
  out, vjp = jax.vjp(lambda lhs, rhs: ops.gmm(lhs, rhs, sizes), lhs, rhs)
  if rhs_dtype == "int8":
    assert out.dtype == jnp.int32
    dlhs, drhs = vjp(np.zeros(out.shape, jax.dtypes.float0))
    assert drhs.dtype == jax.dtypes.float0
  else:
    dlhs, drhs = vjp(jnp.ones_like(out))
    assert drhs.dtype == jnp.float32 and drhs.any()
  assert dlhs.dtype == jax.dtypes.float0


@pytest.mark.parametrize(
  ("want", "default", "asked"),
  [
    ("HIGHEST", None, "highest"),
    ("HIGH", "high", None),
    ("DEFAULT", None, None),
  ],
)
def test_gradients_keep_the_precision(want, default, asked, x):
  gmm = functools.partial(ops.gmm, precision=asked, config=XLA)
  with jax.default_matmul_precision(default):
    out, vjp = jax.vjp(lambda lhs, rhs: gmm(lhs, rhs, x[2]), *x[:2])
  # Without that default: what the forward pass was given holds.
  jaxpr = jax.make_jaxpr(vjp)(out).jaxpr
  dots = [e for e in equations(jaxpr) if e.primitive.name == "dot_general"]
  assert len(dots) == 2
  for dot in dots:
    assert set(dot.params["precision"]) == {lax.Precision[want]}


def test_a_default_precision_does_not_disturb_bfloat16(x):
  lhs, rhs = (a.astype(jnp.bfloat16) for a in x[:2])
  with jax.default_matmul_precision("highest"):
    got = jax.jit(jax.grad(loss_of(ops.gmm), (0, 1)))(lhs, rhs, x[2])
  assert [g.dtype for g in got] == [jnp.bfloat16, jnp.bfloat16]


def test_forward_mode_is_refused(x):
  with pytest.raises(TypeError, match="forward-mode"):
    jax.jvp(lambda lhs: ops.gmm(lhs, *x[1:]), x[:1], x[:1])


# ---- batches and loops

AXES = [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)]


@pytest.mark.parametrize("axes", AXES)
def test_grad_of_vmap(axes, x):
  assert_same_grads(
    lambda f: lambda *x: jnp.sum(jax.vmap(loss_of(f), axes)(*x)),
    batched(x, axes),
  )


@pytest.mark.parametrize("axes", AXES)
def test_vmap_of_grad(axes, x):
  def transformed(function):
    return jax.vmap(jax.value_and_grad(loss_of(function), (0, 1)), axes)

  x = batched(x, axes)
  assert_close(jax.jit(transformed(ops.gmm))(*x), transformed(dense)(*x))


def test_vmap_of_group_offset_and_existing_out(x):
  lhs, rhs, sizes = x
  existing, offsets = normal(2, 3, M, N), jnp.array([0, 3, 7])
  got = jax.vmap(
    lambda offset, existing: ops.gmm(
      lhs, rhs[:2], sizes, group_offset=offset, existing_out=existing
    )
  )(offsets, existing)
  want = jax.vmap(lambda offset: dense(lhs, rhs[:2], sizes, offset))(offsets)
  assert_close(got, want + existing)


def test_nested_vmap(x):
  lhs, rhs, sizes = batched(x, (0, 0, 0))

  def nested(function):
    inner = jax.vmap(function, (0, None, None))
    return jax.vmap(inner, (None, 0, 0), out_axes=1)

  got = jax.jit(nested(ops.gmm))(lhs, rhs, sizes)
  assert_close(got, nested(dense)(lhs, rhs, sizes))


def test_vmap_of_tgmm(x):
  lhs, dout = x[0], normal(2, 3, M, N)
  got = jax.vmap(lambda d: ops.tgmm(lhs, d, x[2], num_groups=G))(dout)
  for one, d in zip(got, dout, strict=True):
    assert_close(one, ops.tgmm(lhs, d, x[2], num_groups=G))


def test_vmap_of_interpreted_kernels(x):
  gmm = functools.partial(ops.gmm, config=ops.Config(backend="interpret"))
  axes = (0, None, None)
  x = batched((x[0][:16], x[1][:2], x[2][:2]), axes)
  assert_close(jax.jit(jax.vmap(gmm, axes))(*x), jax.vmap(dense, axes)(*x))


def test_scan_over_layers(x):
  def layers(function):
    def loss(lhs, rhs, sizes):
      def layer(h, w):
        return jnp.sin(function(h, w, sizes)) @ jnp.ones((N, K)) / N, None

      return jnp.sum(lax.scan(layer, lhs, rhs)[0])

    return loss

  assert_same_grads(layers, batched(x, (None, 0, None)))


@pytest.mark.parametrize("policy", ["nothing_saveable", "save_by_name"])
def test_checkpoint(policy, x):
  policies = jax.checkpoint_policies
  if policy == "save_by_name":
    rule = policies.save_only_these_names("product")
  else:
    rule = policies.nothing_saveable

  def rematerialised(function):
    def named(*x):
      return checkpoint_name(function(*x), "product")

    return jax.checkpoint(loss_of(named), policy=rule)

  assert_same_grads(rematerialised, x)


# ---- compilations, buffers, number types


def test_no_retrace_when_group_sizes_change(x):
  lhs, rhs, _ = x
  traced = []

  @jax.jit
  def grads(lhs, rhs, sizes, offset):
    traced.append(1)
    return jax.grad(
      lambda r: jnp.sum(ops.gmm(lhs, r, sizes, group_offset=offset))
    )(rhs)

  for sizes, offset in (([40] + [0] * 7, 0), (SIZES, 2), ([0] * 8, 9)):
    grads(lhs, rhs[:2], jnp.array(sizes, jnp.int32), jnp.int32(offset))
  assert len(traced) == grads._cache_size() == 1


def test_calls_outside_jit_compile_once(x):
  lhs, rhs, sizes = x
  ops.gmm(lhs, rhs, sizes)
  turned = jnp.array(SIZES[::-1], jnp.int32)
  with jax.no_tracing():
    ops.gmm(lhs, rhs, turned)


def test_existing_out_can_be_donated(x):
  existing = normal(2, M, N)
  want = dense(*x) + existing

  @functools.partial(jax.jit, donate_argnums=3)
  def add(lhs, rhs, sizes, existing):
    return ops.gmm(lhs, rhs, sizes, existing_out=existing)

  memory = add.lower(*x, existing).compile().memory_analysis()
  assert memory.alias_size_in_bytes == existing.nbytes
  assert_close(add(*x, existing), want)
  assert existing.is_deleted()


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_x64(dtype, x):
  lhs, rhs, sizes = x
  want = jax.grad(loss_of(dense), (0, 1))(*x)
  with jax.enable_x64(True):
    got = jax.jit(jax.grad(loss_of(ops.gmm), (0, 1)))(
      lhs, rhs, sizes.astype(dtype)
    )
    assert got[0].dtype == jnp.float32
    with pytest.raises(TypeError, match="`lhs` is float64"):
      ops.gmm(lhs.astype(jnp.float64), rhs, sizes)
  assert_close(got, want)
