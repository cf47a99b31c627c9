"""`ops.ragged_dot` and its general form beside jax's own.

Operands are small whole numbers, so that every sum is exact in every format,
and results are the same bits.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gmm import ops
from testing import compiling
from testing.toy import equations

M, K, N, G = 24, 8, 6, 4
SIZES = np.array([5, 0, 9, 7], np.int32)  # three rows belong to no group


def whole(seed, *shape, dtype="float32"):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.integers(-2, 3, shape), dtype)


def numbers(contract, batch=((), ()), *, ragged, group=()):
  return lax.RaggedDotDimensionNumbers((contract, batch), [ragged], group)


jit = functools.partial(jax.jit, compiler_options=compiling.fast_options())


def equal(got, want):
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    np.testing.assert_array_equal(
      np.asarray(a, np.float32), np.asarray(b, np.float32)
    )


def same(ours, theirs, *arrays):
  """Values and gradients of both, in one program."""

  def grads(function, *arrays):
    out, vjp = jax.vjp(function, *arrays)
    dout = jnp.arange(out.size).reshape(out.shape) % 5 - 2
    return out, vjp(dout.astype(out.dtype))

  both = jit(lambda *x: (grads(ours, *x), grads(theirs, *x)))
  got, want = both(*arrays)
  equal(got, want)
  return got


@pytest.mark.parametrize("name", ["ragged_dot", "ragged_dot_general"])
def test_signatures(name):
  ours, theirs = (
    inspect.signature(getattr(module, name)).parameters.values()
    for module in (ops, lax)
  )
  for a, b in zip(ours, theirs, strict=True):
    assert (a.name, a.kind, a.default) == (b.name, b.kind, b.default)


# ---- ragged_dot


def test_ragged_dot():
  dtype = jnp.bfloat16
  lhs, rhs = whole(0, M, K, dtype=dtype), whole(1, G, K, N, dtype=dtype)
  (out, _) = same(
    lambda lhs, rhs: ops.ragged_dot(lhs, rhs, SIZES),
    lambda lhs, rhs: lax.ragged_dot(lhs, rhs, SIZES),
    lhs,
    rhs,
  )
  assert not out[SIZES.sum() :].any() and out[: SIZES.sum()].any()


# lhs, rhs, preferred_element_type. None is what lax.dot makes of the two.
DTYPES = [
  ("bfloat16", "float32", None),
  ("bfloat16", "bfloat16", "float32"),
  ("float16", "bfloat16", None),
  ("float8_e5m2", "float8_e4m3fn", None),
  ("int8", "bfloat16", None),
  ("int8", "int8", "float32"),
]


def test_results_have_the_dtypes_of_lax():
  pairs = [
    (whole(0, M, K, dtype=a), whole(1, G, K, N, dtype=b)) for a, b, _ in DTYPES
  ]

  def all_of(function):
    return [
      function(lhs, rhs, SIZES, preferred_element_type=preferred)
      for (lhs, rhs), (*_, preferred) in zip(pairs, DTYPES, strict=True)
    ]

  equal(*jit(lambda: (all_of(ops.ragged_dot), all_of(lax.ragged_dot)))())


def test_int8_stays_int8():
  # 4 * 64 is 0 in int8, as lax.ragged_dot has it.
  lhs, rhs = jnp.full((3, 4), 8, jnp.int8), jnp.full((1, 4, 2), 8, jnp.int8)
  sizes = jnp.array([2])
  for function in (ops.ragged_dot, lax.ragged_dot):
    out = jit(function)(lhs, rhs, sizes)
    assert out.dtype == jnp.int8
    np.testing.assert_array_equal(out, np.zeros((3, 2)))


def test_nothing_reaches_rows_of_no_group():
  lhs = whole(0, M, K).at[SIZES.sum() :].set(jnp.nan)
  out = jit(ops.ragged_dot)(lhs, whole(1, G, K, N), SIZES)
  assert np.isfinite(out).all() and not out[SIZES.sum() :].any()


def test_a_group_offset_finds_its_rows():
  lhs, rhs = whole(0, M, K), whole(1, G, K, N)

  @jax.jit
  def shards(rhs, offsets):
    return [
      ops.ragged_dot(lhs, part, SIZES, group_offset=offset)
      for part, offset in zip((rhs[:2], rhs[2:]), offsets, strict=True)
    ]

  first, second = shards(rhs, jnp.array([0, 2]))
  np.testing.assert_array_equal(first + second, ops.ragged_dot(lhs, rhs, SIZES))
  assert first.any() and second.any()


def test_precision():
  lhs, rhs = whole(0, M, K), whole(1, G, K, N)
  # No default of jax's, and in the place that lax.ragged_dot has it.
  jaxpr = jax.make_jaxpr(
    lambda lhs, rhs: ops.ragged_dot(lhs, rhs, SIZES, "highest")
  )(lhs, rhs)
  asked = [
    set(e.params["precision"])
    for e in equations(jaxpr.jaxpr)
    if e.primitive.name == "dot_general"
  ]
  assert asked and all(p == {lax.Precision.HIGHEST} for p in asked)
  jax.eval_shape(lambda *x: ops.ragged_dot(*x, SIZES, "float32"), lhs, rhs)
  narrow = lhs.astype(jnp.bfloat16), rhs.astype(jnp.bfloat16)
  jax.eval_shape(
    lambda *x: ops.ragged_dot(*x, SIZES, lax.Precision.HIGHEST), *narrow
  )


# ---- ragged_dot_general

# numbers, lhs, rhs, and the axes that group_sizes has besides the groups'.
NN = numbers(([1], [1]), ragged=0, group=[0])
NT = numbers(([1], [2]), ragged=0, group=[0])
TN = numbers(([0], [0]), ragged=0)
FORMS = {
  "nn": (NN, (M, K), (G, K, N), ()),
  "nt": (NT, (M, K), (G, N, K), ()),
  "groups_last": (
    numbers(([0], [1]), ragged=1, group=[2]),
    (K, M),
    (N, K, G),
    (),
  ),
  "tn": (TN, (M, K), (M, N), ()),
  "tn_columns": (numbers(([1], [1]), ragged=1), (K, M), (N, M), ()),
  "of_batches": (
    numbers(([1], [2]), ([2], [0]), ragged=0, group=[1]),
    (M, K, 2),
    (2, G, K, N),
    (2,),
  ),
  "one_sizes_for_a_batch": (
    numbers(([2], [2]), ([0], [0]), ragged=1, group=[1]),
    (2, M, K),
    (2, G, K, N),
    (),
  ),
  # 2 before the ragged axis, 3 after it, two axes contracted and two of n.
  "more_axes": (
    numbers(([4, 3], [1, 2]), ragged=1, group=[0]),
    (2, M, 3, 4, 2),
    (G, 2, 4, N, 2),
    (2,),
  ),
  "tn_of_batches": (
    numbers(([1], [2]), ([0], [1]), ragged=1),
    (2, M, K),
    (N, 2, M),
    (2,),
  ),
  # Contracted axes before and after the ragged one.
  "tn_of_more_axes": (
    numbers(([0, 1, 2], [0, 2, 1]), ragged=1),
    (2, M, 3, K),
    (2, 3, M, N),
    (2,),
  ),
  "batch": (
    numbers(([2], [1]), ([0], [0]), ragged=0),
    (M, 3, K),
    (M, K, N),
    (),
  ),
}


# Axes are put in order by operations that jax differentiates.
DIFFERENTIATED = ("nn", "nt", "tn", "of_batches", "batch")


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
  dims, lhs, rhs, more = FORMS[name]
  sizes = np.stack([SIZES, SIZES[::-1] + 1]) if more else SIZES
  ours, theirs = (
    functools.partial(
      function, group_sizes=sizes, ragged_dot_dimension_numbers=dims
    )
    for function in (ops.ragged_dot_general, lax.ragged_dot_general)
  )
  x = whole(0, *lhs), whole(1, *rhs)
  if name not in DIFFERENTIATED:
    equal(*jit(lambda *x: (ours(*x), theirs(*x)))(*x))
    return
  if dims.rhs_group_dimensions:
    same(ours, theirs, *x)
    return

  # jax does not differentiate the others. They are linear in either operand:
  # <dout, f(t, rhs) + f(lhs, u)> = <dlhs, t> + <drhs, u>.
  @jit
  def both(x, t):
    out, vjp = jax.vjp(ours, *x)
    dout = (jnp.arange(out.size).reshape(out.shape) % 5 - 2).astype(out.dtype)
    moved = theirs(t[0], x[1]) + theirs(x[0], t[1])
    grads = sum(jnp.vdot(a, b) for a, b in zip(vjp(dout), t, strict=True))
    return (out, grads), (theirs(*x), jnp.vdot(dout, moved))

  got, want = both(x, (whole(2, *lhs), whole(3, *rhs)))
  equal(got, want)
  assert want[1] != 0


def test_many_small_rows_do_not_overflow_the_type_of_the_sizes():
  dims = numbers(([2], [1]), ragged=0, group=[0])
  lhs, rhs = whole(0, 100, 5, 2), whole(1, 2, 2, 3)
  sizes = jnp.array([60, 40], jnp.uint8)
  got, want = jit(
    lambda: (
      ops.ragged_dot_general(lhs, rhs, sizes, dims),
      lax.ragged_dot_general(lhs, rhs, sizes.astype(jnp.int32), dims),
    )
  )()
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("dims", "shape"), [(NN, (G, K, N)), (NT, (G, N, K))])
def test_no_weight_is_transposed(dims, shape):
  jaxpr = jax.make_jaxpr(
    lambda lhs, rhs: ops.ragged_dot_general(lhs, rhs, SIZES, dims)
  )(whole(0, M, K), whole(1, *shape))
  for eqn in equations(jaxpr.jaxpr):
    if eqn.primitive.name == "transpose":
      # Only the one of jnp.transpose in its own order, which does nothing.
      assert eqn.params["permutation"] == tuple(range(eqn.invars[0].aval.ndim))


def test_vmap():
  def ours(lhs, rhs):
    return jax.vmap(
      lambda one: ops.ragged_dot_general(one, rhs, SIZES, NT), 1, 2
    )(lhs)

  def theirs(lhs, rhs):
    parts = (
      lax.ragged_dot_general(x, rhs, SIZES, NT) for x in (lhs[:, 0], lhs[:, 1])
    )
    return jnp.stack(list(parts), axis=2)

  equal(
    *jit(lambda *x: (ours(*x), theirs(*x)))(
      whole(0, M, 2, K), whole(1, G, N, K)
    )
  )
