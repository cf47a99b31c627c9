"""Whole programs: loops, exports, donated buffers, x64, one trace for all."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from gmm import ops
from gmm.compat import maxtext, megablox
from testing import compiling, toy
from testing.toy import (
  SIZES,
  V6E,
  XLA,
  G,
  K,
  M,
  N,
  assert_close,
  dense,
  loss_of,
  normal,
)

jit = functools.partial(jax.jit, compiler_options=compiling.fast_options())

SIZED = jnp.array(SIZES, jnp.int32)
MORE_SIZES = jnp.array([[5, 5, 5, 5, 5, 5, 5, 5], [0, 0, 40, 0, 0, 0, 0, 0]])


def gmm(lhs, rhs, sizes, config=XLA):
  return ops.gmm(lhs, rhs, sizes, config=config)


def every(lhs, rhs, sizes, config=XLA):
  """One result of each operation: [M, N]."""
  gated = ops.gmm_gated(
    lhs, jnp.concatenate([rhs, rhs], axis=2), sizes, config=config
  )
  gate, up = ops.split_gmm(lhs, rhs, rhs, sizes, config=config)
  weight = ops.tgmm(lhs, lhs[:, :1], sizes, num_groups=G, config=config)
  plain = ops.gmm(lhs, rhs, sizes, config=config)
  return plain + gated + gate * up + jnp.sum(weight)


def dense_every(lhs, rhs, sizes):
  """The same by einsums."""
  plain = dense(lhs, rhs, sizes)
  owned = jnp.sum(toy.owners(sizes, M, G, 0), axis=1)
  weight = jnp.einsum("m,mk,m->k", owned, lhs, lhs[:, 0])
  return plain + jax.nn.silu(plain) * plain + plain**2 + jnp.sum(weight)


# ---- loops


def test_scan_over_layers_with_their_own_sizes():
  lhs, weights = normal(0, M, K), normal(1, 3, G, K, N)
  sizes = jnp.concatenate([SIZED[None], MORE_SIZES])
  down = normal(2, N, K) / N

  def layer(function, h, w, s):
    return h + jnp.sin(function(h, w, s)) @ down

  def scanned(body):
    def loss(lhs, weights, sizes):
      out, _ = lax.scan(lambda h, x: (body(h, *x), None), lhs, (weights, sizes))
      return jnp.sum(out**2)

    return loss

  def unrolled(lhs, weights, sizes):
    for w, s in zip(weights, sizes, strict=True):
      lhs = layer(dense, lhs, w, s)
    return jnp.sum(lhs**2)

  body = functools.partial(layer, gmm)
  policy = jax.checkpoint_policies.save_only_these_names(ops.GMM_OUT)
  remat = jax.checkpoint(body, policy=policy)
  *got, want = jit(
    lambda *x: [
      jax.grad(f, (0, 1))(*x) for f in (scanned(body), scanned(remat), unrolled)
    ]
  )(lhs, weights, sizes)
  largest = max(float(jnp.max(jnp.abs(w))) for w in want)
  for one in got:
    assert_close(*([x / largest for x in xs] for xs in (one, want)))


# ---- exports


def round_trip(exported, vjp_order=1):
  again = export.deserialize(exported.serialize(vjp_order=vjp_order))
  assert again.mlir_module() == exported.mlir_module()
  for name in ("in_avals", "out_avals", "platforms", "in_tree", "out_tree"):
    assert getattr(again, name) == getattr(exported, name)
  return again


def test_export_for_tpu_from_a_cpu_host():
  function = jax.jit(functools.partial(gmm, config=V6E))
  exported = export.export(function, platforms=["tpu"])(*toy.operands())
  again = round_trip(exported)
  assert again.platforms == ("tpu",)
  assert [a.shape for a in again.out_avals] == [(M, N)]
  assert again.mlir_module().count("@tpu_custom_call") == 1
  gradient = again.vjp()
  assert gradient.platforms == ("tpu",)
  assert gradient.mlir_module().count("@tpu_custom_call") == 2
  assert [a.shape for a in gradient.out_avals][:2] == [(M, K), (G, K, N)]


def test_every_operation_is_exported_for_tpu():
  function = jax.jit(functools.partial(every, config=V6E))
  exported = export.export(function, platforms=["tpu"])(*toy.operands())
  assert round_trip(exported, 0).mlir_module().count("@tpu_custom_call") == 4


@pytest.mark.parametrize("platforms", [["cpu"], ["cpu", "tpu"]])
def test_export_and_call(platforms):
  lhs, rhs, sizes = toy.operands()
  exported = export.export(jax.jit(gmm), platforms=platforms)(lhs, rhs, sizes)
  again = round_trip(exported)
  # Other sizes than those of the example, and the gradient that came with it.
  got, want = jit(
    lambda *x: [
      jax.value_and_grad(loss_of(f), (0, 1))(*x) for f in (again.call, dense)
    ]
  )(lhs, rhs, MORE_SIZES[1].astype(jnp.int32))
  assert_close(got, want)


def test_a_kernel_is_exported_for_tpu_alone():
  function = jax.jit(functools.partial(gmm, config=V6E))
  with pytest.raises(
    NotImplementedError, match="at once .* each of them alone"
  ):
    export.export(function, platforms=["cpu", "tpu"])(*toy.operands())


# ---- buffers


def donating(function, x, i):
  """The result, and how many bytes are written over argument i of x."""
  step = jit(function, donate_argnums=i)
  compiled = step.lower(*x).compile()
  out = compiled(*x)
  assert x[i].is_deleted()
  return out, compiled.memory_analysis().alias_size_in_bytes


def test_a_weight_is_updated_in_place():
  def step(function):
    def update(lhs, rhs, sizes):
      return rhs - 0.1 * jax.grad(loss_of(function), 1)(lhs, rhs, sizes)

    return update

  x = toy.operands()
  want = jit(step(dense))(*x)
  got, aliased = donating(step(gmm), x, 1)
  assert aliased == x[1].nbytes
  assert_close(got, want)


def test_what_is_overwritten_can_be_donated():
  x = *toy.operands(), normal(2, M, N)
  owned = jnp.arange(M)[:, None] < sum(SIZES)
  want = jnp.where(owned, dense(*x[:3]), x[3])
  got, aliased = donating(
    lambda *x: megablox.gmm(*x[:3], existing_out=x[3]), x, 3
  )
  assert aliased == x[3].nbytes
  assert_close(got, want)


# ---- number types


def test_x64():
  lhs, rhs, sizes = toy.operands()
  want = jit(jax.value_and_grad(loss_of(dense_every), (0, 1)))(lhs, rhs, sizes)
  with jax.enable_x64(True):
    got = jit(jax.value_and_grad(loss_of(every), (0, 1)))(
      lhs, rhs, sizes.astype(jnp.int64)
    )
    assert {x.dtype.name for x in jax.tree.leaves(got)} == {"float32"}
  assert_close(got, want)


def test_offsets_and_counts_of_every_integer_type_in_x64():
  lhs, rhs, sizes = toy.operands()
  with jax.enable_x64(True):
    weak = jnp.asarray(2)  # int64, weakly typed
    assert weak.weak_type and weak.dtype == jnp.int64

    @jit
    def results(traced, weak):
      offsets = 2, np.int64(2), np.array([2]), traced, weak
      return [
        (
          gmm_of_two(lhs, rhs[2:4], sizes, group_offset=offset),
          ops.tgmm(
            lhs,
            lhs[:, :1],
            sizes,
            num_groups=np.int64(2),
            group_offset=offset,
            config=XLA,
          ),
        )
        for offset in offsets
      ]

    first, *others = results(jnp.int64(2), weak)
    assert {x.dtype.name for x in first} == {"float32"}
    for other in others:
      jax.tree.map(np.testing.assert_array_equal, other, first)
  assert_close(first[0], dense(lhs, rhs[2:4], sizes, 2))


def gmm_of_two(lhs, rhs, sizes, **options):
  return ops.gmm(lhs, rhs, sizes, config=XLA, **options)


def test_weak_types_do_not_widen():
  # A weakly typed float32, as of a Python float.
  rhs = normal(1, G, K, N).astype(jnp.bfloat16)

  def results():
    lhs = jnp.broadcast_to(jnp.asarray(1.5), (M, K))
    assert lhs.weak_type
    out, vjp = jax.vjp(lambda lhs, rhs: gmm(lhs, rhs, SIZED), lhs, rhs)
    return out, vjp(out)

  out, (dlhs, drhs) = jax.eval_shape(results)
  assert (out.dtype, dlhs.dtype) == (jnp.float32, jnp.float32)
  assert not out.weak_type and drhs.dtype == jnp.bfloat16


def test_x64_lowers_for_tpu():
  lhs, rhs, sizes = toy.operands()

  def loss(lhs, rhs, sizes, offset):
    out = ops.gmm(lhs, rhs, sizes, group_offset=offset, config=V6E)
    return jnp.sum(jnp.sin(out))

  with jax.enable_x64(True):
    grad = jax.jit(jax.value_and_grad(loss, (0, 1)))
    traced = grad.trace(lhs, rhs, sizes.astype(jnp.int64), jnp.int64(0))
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
  assert text.count("@tpu_custom_call") == 3


# ---- one trace


def test_one_trace_for_all_sizes():
  traced = []

  @jit
  def results(lhs, rhs, sizes, offset):
    traced.append(1)
    ragged = ops.ragged_dot(lhs, rhs, sizes)
    layer = maxtext.gmm(lhs, rhs[:2], sizes, group_offset=offset)
    return jnp.sum(every(lhs, rhs, sizes) + ragged + layer)

  lhs, rhs, _ = toy.operands()
  values = [
    float(results(lhs, rhs, sizes.astype(jnp.int32), jnp.int32(offset)))
    for offset, sizes in ((0, SIZED), (2, MORE_SIZES[0]), (7, MORE_SIZES[1]))
  ]
  assert len(traced) == results._cache_size() == 1
  assert len({*values}) == 3


# ---- forward mode

FUNCTIONS = {
  "gmm": gmm,
  "tgmm": lambda lhs, rhs, sizes: ops.tgmm(
    lhs, lhs, sizes, num_groups=G, config=XLA
  ),
  "gated": lambda lhs, rhs, sizes: ops.gmm_gated(lhs, rhs, sizes, config=XLA),
  "split": lambda lhs, rhs, sizes: ops.split_gmm(
    lhs, rhs, rhs, sizes, config=XLA
  ),
  "ragged_dot": ops.ragged_dot,
  "maxtext": maxtext.gmm,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_mode_says_that_it_is_not_there(name):
  lhs, rhs, sizes = toy.operands()

  def of_lhs(lhs):
    return FUNCTIONS[name](lhs, rhs, sizes)

  def linearized(lhs):
    _, tangent = jax.linearize(of_lhs, lhs)
    return tangent(lhs)

  for forward in (
    lambda lhs: jax.jvp(of_lhs, (lhs,), (lhs,)),
    linearized,
    jax.jacfwd(of_lhs),
    jax.hessian(of_lhs),
  ):
    with pytest.raises(TypeError, match=r"forward-mode.*custom_vjp"):
      jax.jit(forward)(lhs)


def test_jacobians_in_reverse():
  lhs, rhs, sizes = normal(0, 3, 2), normal(1, 2, 2, 2), jnp.array([1, 1])

  def second(function):
    return jax.jacrev(jax.grad(loss_of(function)))(lhs, rhs, sizes)

  got, want = jit(lambda: (second(gmm), second(dense)))()
  assert_close(got, want)
