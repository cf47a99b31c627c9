"""The adapters beside what they stand for.

Operands are small whole numbers, so that every sum is exact in every format,
and results are the same bits. MaxText's own function needs packages that are
not here; the megablox that it falls back to is the one that jax ships.
"""

import collections
import functools
import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from gmm import ops
from gmm.compat import maxtext, megablox, tilings
from testing import compiling
from testing.toy import equations

# Tiles of 8 rows: groups begin within tiles, and one tile belongs to nobody.
M, K, N, G = 40, 8, 16, 4
SIZES = np.array([5, 0, 9, 12], np.int32)
LOCAL = np.arange(M) < SIZES.sum()
TILES = (8, 8, 8)

# `megablox.gmm` is the function, and hides the module of that name.
_MEGABLOX = "jax.experimental.pallas.ops.tpu.megablox."
ORIGINAL = importlib.import_module(_MEGABLOX + "ops")
KERNELS = importlib.import_module(_MEGABLOX + "gmm")

jit = functools.partial(jax.jit, compiler_options=compiling.fast_options())


def whole(seed, *shape, dtype="float32"):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.integers(-2, 3, shape), dtype)


def equal(got, want):
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    np.testing.assert_array_equal(
      np.asarray(a, np.float32), np.asarray(b, np.float32)
    )


def grads(function, arrays):
  """The result, and what its VJP makes of a cotangent."""
  out, vjp = jax.vjp(function, *arrays)
  dout = jnp.arange(out.size).reshape(out.shape) % 5 - 2
  return out, vjp(dout.astype(out.dtype))


# ---- megablox


@pytest.mark.parametrize(
  ("ours", "theirs"),
  [(megablox.gmm, ORIGINAL.gmm), (megablox.tgmm, KERNELS.tgmm)],
  ids=["gmm", "tgmm"],
)
def test_signatures_of_megablox(ours, theirs):
  pairs = zip(
    inspect.signature(ours).parameters.values(),
    inspect.signature(theirs).parameters.values(),
    strict=True,
  )
  for a, b in pairs:
    assert (a.name, a.kind, a.default) == (b.name, b.kind, b.default)


def test_a_shard_through_both_adapters():
  dtype = jnp.bfloat16
  x = whole(0, M, K, dtype=dtype), whole(1, G, K, N, dtype=dtype)[:2]
  offset = jnp.int32(2)

  # Everything by position, and in the original's order.
  def call(function, interpret):
    return lambda lhs, rhs: function(
      lhs, rhs, SIZES, dtype, TILES, offset, None, False, interpret
    )

  def layer(lhs, rhs):
    return as_the_layer_calls(lhs, rhs, group_offset=offset)

  *ours, theirs = jit(
    lambda *x: (
      grads(call(megablox.gmm, False), x),
      grads(layer, x),
      grads(call(ORIGINAL.gmm, True), x),
    )
  )(*x)
  for results in ours:
    equal(results, theirs)


def test_overwritten_rows():
  x = whole(0, M, K), whole(1, G, N, K), whole(2, M, N)

  def call(function, interpret):
    return lambda lhs, rhs, out: function(
      lhs, rhs, SIZES, jnp.float32, TILES, None, out, True, interpret
    )

  ours, theirs = jit(
    lambda *x: (
      grads(call(megablox.gmm, False), x),
      grads(call(ORIGINAL.gmm, True), x),
    )
  )(*x)
  np.testing.assert_array_equal(ours[0][~LOCAL], x[2][~LOCAL])
  assert not np.any(np.asarray(ours[1][0])[~LOCAL])
  # There the original leaves what was in memory.
  equal(*(jax.tree.map(_local_rows, results) for results in (ours, theirs)))
  equal((ours[0], ours[1][1:]), (theirs[0], theirs[1][1:]))


def _local_rows(x):
  return x[LOCAL] if x.shape == (M, K) else x


def test_rows_of_no_group_are_zero():
  out = jit(megablox.gmm)(
    whole(0, M, K).at[~LOCAL].set(jnp.nan), whole(1, G, K, N), SIZES
  )
  assert not np.any(np.asarray(out)[~LOCAL])
  assert np.any(np.asarray(out)[LOCAL])


def test_what_is_overwritten_does_not_matter():
  existing = jnp.where(LOCAL[:, None], jnp.nan, whole(2, M, N))
  out = jit(
    lambda existing: megablox.gmm(
      whole(0, M, K), whole(1, G, K, N), SIZES, existing_out=existing
    )
  )(existing)
  assert np.all(np.isfinite(out))


def test_tgmm():
  lhs, rhs = whole(0, K, M), whole(1, M, N)
  offset, count = jnp.int32(1), 2
  existing = whole(2, count, K, N)

  def call(function, existing, interpret):
    args = lhs, rhs, SIZES, jnp.float32, TILES, offset, count, existing
    return function(*args, interpret)

  equal(
    *jit(
      lambda: [
        [call(function, out, interpret) for out in (None, existing)]
        for function, interpret in (
          (megablox.tgmm, False),
          (KERNELS.tgmm, True),
        )
      ]
    )()
  )


def test_tgmm_adds_before_it_rounds():
  # 257 + 1 is 258 in bfloat16, and 256 if 257 is rounded first.
  out = jit(megablox.tgmm, static_argnums=3)(
    jnp.array([[256, 1]], jnp.bfloat16),
    jnp.ones((2, 1), jnp.bfloat16),
    jnp.array([2]),
    jnp.bfloat16,
    existing_out=jnp.ones((1, 1, 1), jnp.bfloat16),
  )
  assert out.dtype == jnp.bfloat16 and float(out[0, 0, 0]) == 258


def test_tgmm_adds_integers_exactly():
  # No float32 holds 2^24 + 1.
  out = jit(megablox.tgmm, static_argnums=3)(
    jnp.array([[3, 1]], jnp.int8),
    jnp.array([[1], [-1]], jnp.int8),
    jnp.array([2]),
    jnp.int32,
    existing_out=jnp.full((1, 1, 1), 2**24 + 1),
  )
  assert out.dtype == jnp.int32 and int(out[0, 0, 0]) == 2**24 + 3


@pytest.mark.parametrize("adapter", [megablox, maxtext])
def test_without_groups_nothing_is_overwritten(adapter):
  out = whole(2, M, N)
  got = adapter.gmm(
    whole(0, M, K), jnp.zeros((0, K, N)), SIZES[:0], existing_out=out
  )
  equal(got, out)


def test_tgmm_has_gradients():
  lhs, rhs = whole(0, K, M), whole(1, M, N)

  def loss(function):
    return lambda *x: jnp.sum(function(*x) * whole(2, G, K, N))

  def dense(lhs, rhs):
    owners = jnp.searchsorted(jnp.cumsum(SIZES), jnp.arange(M), side="right")
    return jnp.einsum("km,mn,mg->gkn", lhs, rhs, jax.nn.one_hot(owners, G))

  equal(
    *jit(
      lambda *x: [
        jax.grad(loss(function), (0, 1))(*x)
        for function in (lambda *x: megablox.tgmm(*x, SIZES), dense)
      ]
    )(lhs, rhs)
  )


def kernels_of(function, *arrays):
  """Names of the kernels in a function's jaxpr, which hold their tiles."""
  jaxpr = jax.make_jaxpr(function)(*arrays)
  return [
    str(e.params["name"])
    for e in equations(jaxpr.jaxpr)
    if e.primitive.name == "pallas_call"
  ]


LARGE = jnp.zeros((512, 512)), jnp.zeros((2, 512, 1024))
PAIR = np.array([300, 212], np.int32)


def tiles_of(tiling, function=megablox.gmm):
  """The tiles of forward, dlhs and drhs, each in the terms of its call."""

  def both(lhs, rhs):
    return grads(
      lambda lhs, rhs: function(lhs, rhs, PAIR, jnp.float32, tiling), (lhs, rhs)
    )

  found = []
  for name in kernels_of(both, *LARGE):
    parts = dict(p.split("_") for p in name.split("-") if p.count("_") == 1)
    found.append(tuple(int(parts[key]) for key in ("tm", "tk", "tn")))
  return found


NINE = (64, 128, 256, 128, 256, 128, 256, 512, 256)


@pytest.mark.filterwarnings("ignore:gmm. no `chip`")
def test_tilings():
  fwd, dlhs, drhs = NINE[:3], NINE[3:6], NINE[6:]
  assert tiles_of(NINE) == [fwd, dlhs, drhs]
  assert tiles_of(NINE, maxtext.gmm) == [fwd, dlhs, drhs]
  # One of three is for each call in its own terms.
  assert tiles_of((64, 128, 256)) == [(64, 128, 256)] * 3
  asked = []

  def looked_up(m, k, n):
    asked.append((m, k, n))
    return (64, k // 2, n // 4)

  fwd, dlhs, drhs = tiles_of(looked_up)
  assert (fwd, dlhs) == ((64, 256, 256), (64, 512, 128))
  assert drhs == fwd
  assert set(asked) == {(512, 512, 1024), (512, 1024, 512)}
  # The original's default is nobody's choice.
  for nobody_chose in (None, tilings.DEFAULT, list(tilings.DEFAULT_9)):
    assert tilings.of_gmm(nobody_chose, (M, K, N)) is None
    assert tilings.of_tgmm(nobody_chose, (M, K, N)) is None
  assert tilings.of_tgmm(NINE, (M, K, N)).drhs == NINE[6:]


def test_interpret_runs_the_kernel():
  jaxpr = jax.make_jaxpr(
    lambda lhs, rhs: megablox.gmm(lhs, rhs, SIZES, interpret=True)
  )(whole(0, M, K), whole(1, G, K, N))
  kernels = [
    e for e in equations(jaxpr.jaxpr) if e.primitive.name == "pallas_call"
  ]
  assert len(kernels) == 1 and kernels[0].params["interpret"]


# ---- MaxText

# In the order of MaxText 0.2.5.
MAXTEXT = {
  "lhs": inspect.Parameter.empty,
  "rhs": inspect.Parameter.empty,
  "group_sizes": inspect.Parameter.empty,
  "preferred_element_type": jnp.float32,
  "tiling": 9 * (128,),
  "group_offset": None,
  "existing_out": None,
  "transpose_rhs": False,
  "interpret": None,
  "lhs_quantize_dtype": None,
  "rhs_quantize_dtype": None,
  "use_qwix_quantization": False,
  "use_tokamax_backend": False,
  "weight_gather_axes": None,
  "lhs_vma_axes": (),
  "rhs_vma_axes": (),
  "qwix_rule": None,
  "use_manual_quantization": False,
  "use_gmm_v2": False,
  "use_gmm_v2_heuristic_tiling": False,
  "partial_sum": None,
}


def test_signature_of_maxtext():
  parameters = inspect.signature(maxtext.gmm).parameters
  assert list(parameters) == list(MAXTEXT)
  assert {k: p.default for k, p in parameters.items()} == MAXTEXT


def as_the_layer_calls(lhs, rhs, **more):
  """With every keyword that MaxText's MoE layer passes."""
  given = {
    "lhs": lhs,
    "rhs": rhs,
    "group_sizes": SIZES,
    "preferred_element_type": jnp.bfloat16,
    "tiling": 3 * TILES,
    "group_offset": 0,
    "lhs_quantize_dtype": None,
    "rhs_quantize_dtype": None,
    "use_qwix_quantization": False,
    "use_tokamax_backend": False,
    "weight_gather_axes": [],
    "lhs_vma_axes": (),
    "rhs_vma_axes": (),
    "use_gmm_v2": False,
    "use_gmm_v2_heuristic_tiling": False,
    "partial_sum": None,
    "interpret": True,
  }
  return maxtext.gmm(**{**given, **more})


def test_its_choice_of_kernels_changes_nothing():
  x = whole(0, M, K, dtype="bfloat16"), whole(1, G, K, N, dtype="bfloat16")
  flags = ("use_tokamax_backend", "use_gmm_v2", "use_gmm_v2_heuristic_tiling")
  outs = jit(
    lambda *x: [
      as_the_layer_calls(*x),
      as_the_layer_calls(*x, **dict.fromkeys(flags, True)),
      as_the_layer_calls(*x, interpret=None),
      # The tiles of its default config, larger than these operands.
      as_the_layer_calls(*x, tiling=3 * (512, 1024, 1024)),
      as_the_layer_calls(*x, use_qwix_quantization=True),  # by no rule
    ]
  )(*x)
  for out in outs[1:]:
    equal(out, outs[0])


def test_existing_out_and_partial_sum():
  x = whole(0, M, K), whole(1, G, K, N)[1:3]
  more = whole(2, M, N)
  local = (np.arange(M) >= SIZES[0]) & (np.arange(M) < SIZES[:3].sum())

  def results(more, *x):
    options = {"preferred_element_type": jnp.float32, "group_offset": 1}
    call = functools.partial(as_the_layer_calls, **options)
    return call(*x), *(
      grads(lambda more, name=name: call(*x, **{name: more}), (more,))
      for name in ("existing_out", "partial_sum")
    )

  plain, (overwritten, (d_existing,)), (added, (d_partial,)) = jit(results)(
    more, *x
  )
  keep = local[:, None]
  equal(overwritten, jnp.where(keep, plain, more))
  equal(added, jnp.where(keep, plain + more, 0))
  # All of dout for either, as MaxText has it.
  dout = (jnp.arange(M * N).reshape(M, N) % 5 - 2).astype(jnp.float32)
  equal((d_existing, d_partial), (dout, dout))


# Like qwix's QArray.
_QArray = collections.namedtuple("_QArray", ["qvalue", "scale"])


def test_a_quantised_weight_is_read_as_it_is():
  lhs = whole(0, M, K)
  weight = _QArray(whole(1, G, K, N, dtype="int8"), jnp.full((G, 1, N), 2.0))
  got, want = (
    maxtext.gmm(lhs, weight, SIZES, partial_sum=whole(2, M, N)),
    maxtext.gmm(lhs, 2 * whole(1, G, K, N), SIZES, partial_sum=whole(2, M, N)),
  )
  equal(got, want)


def test_types_under_shard_map():
  # Its checks are of types alone: a mesh without devices will do.
  auto = (jax.sharding.AxisType.Auto,)

  @functools.partial(
    jax.shard_map,
    mesh=jax.sharding.AbstractMesh((2,), ("x",), axis_types=auto),
    in_specs=(P(), P("x"), P()),
    out_specs=P("x"),
  )
  def sharded(lhs, rhs, out):
    offset = jax.lax.axis_index("x") * rhs.shape[0]
    options = {"group_offset": offset}
    return (
      megablox.gmm(lhs, rhs, SIZES, existing_out=out, **options)
      + maxtext.gmm(lhs, rhs, SIZES, partial_sum=out, **options)
      + ops.ragged_dot(lhs, rhs, SIZES, **options)
    )

  def loss(*x):
    return jnp.sum(sharded(*x))

  x = whole(0, M, K), whole(1, G, K, N), whole(2, M, N)
  grads = jax.eval_shape(jax.grad(loss, (0, 1, 2)), *x)
  assert [d.shape for d in grads] == [a.shape for a in x]
