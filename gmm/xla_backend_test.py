"""The XLA backend against the oracle, its promises and its memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gmm import checks, xla_backend
from reference import oracle


def gmm(lhs, rhs, sizes, group_offset=None, existing_out=None, **options):
  problem = checks.gmm_problem(
    lhs,
    rhs,
    sizes,
    group_offset=group_offset,
    existing_out=existing_out,
    **options,
  )
  return xla_backend.gmm(
    jnp.asarray(lhs),
    jnp.asarray(rhs),
    checks.canonical_sizes(sizes, problem.m),
    checks.canonical_offset(group_offset, problem.g_total),
    existing_out=existing_out,
    problem=problem,
  )


def tgmm(lhs, dout, sizes, group_offset=None, **options):
  problem = checks.tgmm_problem(
    lhs, dout, sizes, group_offset=group_offset, **options
  )
  return xla_backend.tgmm(
    jnp.asarray(lhs),
    jnp.asarray(dout),
    checks.canonical_sizes(sizes, problem.m),
    checks.canonical_offset(group_offset, problem.g_total),
    problem=problem,
  )


def normal(seed, *shape):
  rng = np.random.default_rng(seed)
  return rng.standard_normal(shape).astype(np.float32)


# m, k, n, group sizes, g, offset. Blocks have at least 32 rows and panels at
# least 64 columns: the shapes have one, several, and some that are not full.
SHAPES = {
  "one_row": (1, 3, 5, (1,), 1, 0),
  "short_sum": (70, 7, 9, (20, 0, 13), 3, 0),
  "over_long": (40, 7, 9, (30, -4, 30, 5), 4, 0),
  "many_blocks": (300, 17, 33, (1, 150, 0, 140, 9), 5, 0),
  "many_panels": (70, 190, 200, (33, 0, 30, 7), 4, 0),
  "one_group_of_many_panels": (33, 150, 200, (30,), 1, 0),
  "first_shard": (90, 8, 12, (20, 3, 30, 7, 20), 2, 0),
  "middle_shard": (90, 8, 12, (20, 3, 30, 7, 20), 2, 2),
  "past_the_end": (90, 8, 12, (20, 3, 30, 7, 20), 3, 4),
  "before_the_start": (90, 8, 12, (20, 3, 30, 7, 20), 3, -1),
  "after_the_end": (90, 8, 12, (20, 3, 30, 7, 20), 3, 5),
}


@pytest.mark.parametrize(
  ("name", "transposed"),
  [(name, False) for name in SHAPES]
  + [(name, True) for name in ("many_blocks", "many_panels", "middle_shard")],
)
def test_against_the_oracle(name, transposed):
  m, k, n, sizes, g, offset = SHAPES[name]
  lhs, dout, existing = normal(0, m, k), normal(1, m, n), normal(2, m, n)
  rhs = normal(3, g, n, k) if transposed else normal(3, g, k, n)
  sizes = jnp.array(sizes, jnp.int32)

  @jax.jit
  def both(lhs, rhs, dout, existing, sizes, offset):
    options = {"group_offset": offset}
    out = gmm(
      lhs,
      rhs,
      sizes,
      existing_out=existing,
      transpose_rhs=transposed,
      **options,
    )
    drhs = tgmm(
      lhs, dout, sizes, num_groups=g, transpose_out=transposed, **options
    )
    return out, drhs

  out, drhs = both(lhs, rhs, dout, existing, sizes, offset)
  want = oracle.gmm(
    lhs,
    rhs,
    np.asarray(sizes),
    group_offset=offset,
    transpose_rhs=transposed,
    existing_out=existing,
  )
  np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-4)
  want = oracle.tgmm(
    lhs, dout, np.asarray(sizes), num_groups=g, group_offset=offset
  )
  want = want.swapaxes(1, 2) if transposed else want
  np.testing.assert_allclose(drhs, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
def test_what_must_not_be_read_does_not_matter(poison):
  sizes = np.array([10, 25, 0, 7, 3], np.int32)  # rows 45 to 59 are unowned
  local = slice(10, 42)  # groups 1, 2 and 3
  lhs, dout, rhs = normal(0, 60, 8), normal(1, 60, 12), normal(2, 3, 8, 12)
  bad_lhs, bad_dout = np.full_like(lhs, poison), np.full_like(dout, poison)
  bad_lhs[local], bad_dout[local] = lhs[local], dout[local]
  rhs[1] = poison  # of an empty group
  out = np.asarray(gmm(bad_lhs, rhs, sizes, 1))
  np.testing.assert_array_equal(out[:10], 0)
  np.testing.assert_array_equal(out[42:], 0)
  assert np.isfinite(out).all() and out[local].any()
  drhs = np.asarray(tgmm(bad_lhs, bad_dout, sizes, 1, num_groups=3))
  np.testing.assert_array_equal(drhs[1], 0)
  np.testing.assert_array_equal(drhs, tgmm(lhs, dout, sizes, 1, num_groups=3))


def test_a_row_has_the_same_bits_wherever_it_lies():
  lhs, rhs = normal(0, 200, 40), normal(1, 3, 40, 24)
  one = jax.jit(gmm)(lhs, rhs, jnp.array([90, 60, 50]), 0)
  moved = np.concatenate([normal(2, 13, 40), lhs[90:150], lhs[:127]])
  two = jax.jit(gmm)(moved, rhs, jnp.array([13, 60, 127]), 0)
  np.testing.assert_array_equal(one[90:150], two[13:73])


@pytest.mark.parametrize(
  "dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8"]
)
def test_sums_are_wide_and_rounded_once(dtype):
  """4096 ones per sum: each format but float32 and int32 would get stuck."""
  lhs = jnp.ones((40, 4096), dtype)
  rhs = jnp.ones((2, 4096, 8), dtype)
  out = gmm(lhs, rhs, jnp.array([10, 30]), preferred_element_type="float32")
  np.testing.assert_array_equal(out, 4096)
  long = jnp.ones((4096, 8), dtype)
  out = tgmm(
    long,
    long,
    jnp.array([1, 4095]),
    num_groups=2,
    preferred_element_type="float32",
  )
  np.testing.assert_array_equal(out[1], 4095)


def test_existing_out_is_added_before_the_rounding():
  existing = jnp.full((4, 8), 256, jnp.bfloat16)  # 256 + 1 rounds to 256
  lhs, rhs = jnp.ones((4, 3), jnp.bfloat16), jnp.ones((1, 3, 8), jnp.bfloat16)
  out = gmm(lhs, rhs, jnp.array([3]), existing_out=existing)
  np.testing.assert_array_equal(out[:3], 260)  # 259, to even; 256 + 1 + 1 + 1
  np.testing.assert_array_equal(out[3:], 256)


def test_float8_results():
  lhs, rhs = normal(0, 8, 16), normal(1, 1, 16, 8)
  wide = gmm(lhs, rhs, jnp.array([8]))
  out = gmm(lhs, rhs, jnp.array([8]), preferred_element_type="float8_e5m2")
  np.testing.assert_array_equal(
    out.astype("float32"), wide.astype("float8_e5m2").astype("float32")
  )


@pytest.mark.parametrize("precision", list(lax.Precision))
def test_dots_get_the_precision(precision):
  lhs, rhs, sizes = normal(0, 8, 16), normal(1, 2, 16, 8), jnp.array([3, 5])
  for jaxpr in (
    jax.make_jaxpr(lambda: gmm(lhs, rhs, sizes, precision=precision))(),
    jax.make_jaxpr(
      lambda: tgmm(lhs, lhs, sizes, num_groups=2, precision=precision)
    )(),
  ):
    assert str(jaxpr).count("dot_general[") == 1
    assert f"Precision.{precision.name}" in str(jaxpr)
    assert "ragged_dot" not in str(jaxpr)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
  ("m", "g", "k", "n"),
  [
    (1024, 1, 512, 512),
    (1024, 2, 256, 256),
    (1024, 2, 512, 512),
    (1024, 32, 2816, 704),
    (8192, 128, 256, 256),
  ],
)
def test_temporaries_are_no_larger_than_the_result(m, g, k, n, dtype):
  lhs, dout = (jax.ShapeDtypeStruct((m, x), dtype) for x in (k, n))
  rhs = jax.ShapeDtypeStruct((g, k, n), dtype)
  sizes = jax.ShapeDtypeStruct((g,), jnp.int32)
  products = {
    "NN": (gmm, lhs, rhs),
    "NT": (lambda *x: gmm(*x, transpose_rhs=True), dout, rhs),
    "TN": (lambda *x: tgmm(*x, num_groups=g), lhs, dout),
  }
  for name, (function, *operands) in products.items():
    compiled = jax.jit(function).lower(*operands, sizes).compile()
    memory = compiled.memory_analysis()
    used, out = memory.temp_size_in_bytes, memory.output_size_in_bytes
    if dtype == "bfloat16" and xla_backend._WIDENS_UPDATES:
      used -= out  # its bits, made floats at the end
    assert used <= out, f"{name}: {used} bytes of temporaries, {out} of result"


def test_blocks_follow_the_groups():
  def rows(m, g):
    lhs = jax.ShapeDtypeStruct((m, 8), jnp.float32)
    rhs = jax.ShapeDtypeStruct((g, 8, 8), jnp.float32)
    sizes = jax.ShapeDtypeStruct((g,), jnp.int32)
    return xla_backend.block_rows(checks.gmm_problem(lhs, rhs, sizes))

  assert rows(8192, 1) == 256
  assert rows(4096, 32) == 64
  assert rows(4096, 128) == 32
  assert rows(5, 2) == 5


def test_one_compilation_serves_any_sizes():
  traced = []

  @jax.jit
  def f(lhs, rhs, sizes, offset):
    traced.append(1)
    return gmm(lhs, rhs, sizes, offset)

  lhs, rhs = normal(0, 30, 4), normal(1, 2, 4, 6)
  for sizes, offset in (([30, 0, 0], 0), ([1, 2, 3], 1), ([0, 0, 0], 2)):
    f(lhs, rhs, jnp.array(sizes), jnp.int32(offset))
  assert len(traced) == 1
