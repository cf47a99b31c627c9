"""The oracle against loops, numeric gradients and jax.lax.ragged_dot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reference import oracle

# (group_sizes, g, group_offset), with m = 7 in all of them.
ROUTINGS = {
  "all rows": ([2, 0, 5], 3, None),
  "fewer rows than m": ([1, 2, 0], 3, None),
  "more rows than m": ([3, 9, 4], 3, None),
  "negative size": ([3, -2, 2], 3, None),
  "sizes whose int32 sum wraps": ([2**31 - 1, 2**31 - 1, 2], 3, None),
  "first shard": ([2, 1, 3, 1], 2, 0),
  "middle shard": ([2, 1, 3, 1], 2, np.int32(1)),
  "last shard": ([2, 1, 3, 1], 2, np.array([2])),
  "shard past the end": ([2, 1, 3, 1], 2, 3),
  "offset too large": ([2, 1, 3, 1], 2, 4),
  "offset negative": ([2, 1, 3, 1], 2, -1),
}

M, K, N = 7, 4, 3

routings = pytest.mark.parametrize(
  "routing",
  ROUTINGS.values(),
  ids=[name.replace(" ", "_") for name in ROUTINGS],
)
layouts = pytest.mark.parametrize("transpose_rhs", [False, True])


def _group_of_row(row: int, sizes: list[int]) -> int | None:
  """Counts rows off one by one, without sums or spans."""
  left = list(sizes)
  for _ in range(row + 1):
    owner = next((i for i, size in enumerate(left) if size > 0), None)
    if owner is None:
      return None
    left[owner] -= 1
  return owner


def _local(row: int, routing: tuple) -> int | None:
  sizes, g, offset = routing
  offset = 0 if offset is None else int(np.reshape(offset, ()))
  group = _group_of_row(row, sizes)
  if group is None or not 0 <= offset < len(sizes):
    return None
  return group - offset if 0 <= group - offset < g else None


def _operands(routing: tuple, transpose_rhs: bool, seed: int = 0) -> dict:
  rng = np.random.default_rng(seed)
  g = routing[1]
  rhs = rng.normal(size=(g, K, N))
  return {
    "lhs": rng.normal(size=(M, K)),
    "rhs": rhs.swapaxes(1, 2) if transpose_rhs else rhs,
    "dout": rng.normal(size=(M, N)),
    "existing_out": rng.normal(size=(M, N)),
    "rhs_scale": rng.uniform(0.5, 2.0, size=(g, 2, N)),
    "rhs_bias": rng.normal(size=(g, N)),
  }


def _gmm(x: dict, routing: tuple, transpose_rhs: bool) -> np.ndarray:
  options = {k: v for k, v in x.items() if k not in ("lhs", "rhs", "dout")}
  return oracle.gmm(
    x["lhs"],
    x["rhs"],
    routing[0],
    group_offset=routing[2],
    transpose_rhs=transpose_rhs,
    **options,
  )


@routings
@layouts
def test_gmm_is_the_triple_loop(routing, transpose_rhs):
  x = _operands(routing, transpose_rhs)
  want = np.array(x["existing_out"])
  for row in range(M):
    group = _local(row, routing)
    if group is None:
      continue
    for col in range(N):
      for j in range(K):
        weight = (
          x["rhs"][group, col, j]
          if transpose_rhs
          else (x["rhs"][group, j, col])
        )
        scale = x["rhs_scale"][group, j // 2, col]
        want[row, col] += x["lhs"][row, j] * weight * scale
      want[row, col] += x["rhs_bias"][group, col]
  got = _gmm(x, routing, transpose_rhs)
  np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@routings
def test_tgmm_is_the_triple_loop(routing):
  x = _operands(routing, False)
  want = np.zeros((routing[1], K, N))
  for row in range(M):
    group = _local(row, routing)
    if group is None:
      continue
    for j in range(K):
      for col in range(N):
        want[group, j, col] += x["lhs"][row, j] * x["dout"][row, col]
  got = oracle.tgmm(
    x["lhs"],
    x["dout"],
    routing[0],
    num_groups=routing[1],
    group_offset=routing[2],
  )
  np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@routings
@layouts
def test_vjp_is_the_numeric_derivative(routing, transpose_rhs):
  # gmm is affine in each operand: a difference over any step is the derivative.
  x = _operands(routing, transpose_rhs)
  options = {k: v for k, v in x.items() if k not in ("lhs", "rhs", "dout")}
  grads = oracle.gmm_vjp(
    x["lhs"],
    x["rhs"],
    routing[0],
    x["dout"],
    group_offset=routing[2],
    transpose_rhs=transpose_rhs,
    **options,
  )
  for name in ("lhs", "rhs", "existing_out", "rhs_scale", "rhs_bias"):
    want = np.zeros(x[name].shape)
    for index in np.ndindex(want.shape):
      moved = dict(x, **{name: np.array(x[name])})
      moved[name][index] += 1.0
      difference = _gmm(moved, routing, transpose_rhs) - _gmm(
        x, routing, transpose_rhs
      )
      want[index] = np.sum(difference * x["dout"])
    got = getattr(grads, "d" + name)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11, err_msg=name)


def test_vjp_leaves_out_operands_that_were_not_given():
  x = _operands(([2, 5], 2, None), False)
  grads = oracle.gmm_vjp(x["lhs"], x["rhs"], [2, 5], x["dout"])
  assert grads.dexisting_out is None
  assert grads.drhs_scale is None
  assert grads.drhs_bias is None


@layouts
def test_agrees_with_ragged_dot(transpose_rhs):
  # ragged_dot knows neither offsets nor bad counts, so: all rows and a tail.
  sizes = np.array([3, 0, 2], np.int32)
  x = _operands((sizes, 3, None), False)
  lhs, dout = x["lhs"].astype(np.float32), x["dout"].astype(np.float32)
  rhs = x["rhs"].astype(np.float32)

  out, vjp = jax.vjp(
    lambda lhs, rhs: jax.lax.ragged_dot(
      lhs, rhs, sizes, precision=jax.lax.Precision.HIGHEST
    ),
    jnp.asarray(lhs),
    jnp.asarray(rhs),
  )
  dlhs, drhs = vjp(jnp.asarray(dout))

  weights = rhs.swapaxes(1, 2) if transpose_rhs else rhs
  got = oracle.gmm(lhs, weights, sizes, transpose_rhs=transpose_rhs)
  grads = oracle.gmm_vjp(lhs, weights, sizes, dout, transpose_rhs=transpose_rhs)
  drhs = np.swapaxes(drhs, 1, 2) if transpose_rhs else drhs
  np.testing.assert_allclose(got, out, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(grads.dlhs, dlhs, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(grads.drhs, drhs, rtol=1e-5, atol=1e-5)


@layouts
def test_nan_outside_local_groups_stays_there(transpose_rhs):
  routing = ([2, 1, 0, 1], 2, 1)  # row 2 is local; group 2 is local and empty
  x = _operands(routing, transpose_rhs)
  for name in ("lhs", "dout"):
    x[name][[0, 1, 3, 4, 5, 6]] = np.nan
  x["rhs"][1] = np.nan
  out = oracle.gmm(
    x["lhs"], x["rhs"], routing[0], group_offset=1, transpose_rhs=transpose_rhs
  )
  grads = oracle.gmm_vjp(
    x["lhs"],
    x["rhs"],
    routing[0],
    x["dout"],
    group_offset=1,
    transpose_rhs=transpose_rhs,
  )
  for rows in (out, grads.dlhs):
    assert np.all(np.delete(rows, 2, axis=0) == 0)
    assert np.all(np.isfinite(rows[2]))
    assert np.any(rows[2] != 0)
  assert np.all(np.isfinite(grads.drhs[0]))
  assert np.all(grads.drhs[1] == 0)


def test_every_row_keeps_existing_out():
  existing = np.arange(M * N, dtype=np.float64).reshape(M, N)
  out = oracle.gmm(
    np.ones((M, K)), np.ones((1, K, N)), [2], existing_out=existing
  )
  np.testing.assert_array_equal(out[2:], existing[2:])
  np.testing.assert_array_equal(out[:2], existing[:2] + K)


def test_only_rows_of_local_groups_get_a_bias():
  out = oracle.gmm(
    np.zeros((M, K)),
    np.zeros((1, K, N)),
    [2, 3, 1],
    group_offset=1,
    rhs_bias=np.ones((1, N)),
  )
  np.testing.assert_array_equal(out[:, 0], [0, 0, 1, 1, 1, 0, 0])


def test_narrow_formats_are_read_as_they_are():
  lhs = jnp.full((2, 1), 0.1, jnp.bfloat16)
  rhs = jnp.ones((1, 1, 1), jnp.float8_e4m3fn)
  out = oracle.gmm(lhs, rhs, [2])
  assert out.dtype == np.float64
  assert out[0, 0] == float(lhs[0, 0]) != 0.1


@pytest.mark.parametrize("shape", [(0, 4, 3), (7, 0, 3), (7, 4, 0)])
def test_empty_dimensions(shape):
  m, k, n = shape
  lhs, rhs, dout = np.ones((m, k)), np.ones((2, k, n)), np.ones((m, n))
  assert np.all(oracle.gmm(lhs, rhs, [1, 2]) == 0)
  assert oracle.gmm(lhs, rhs, [1, 2]).shape == (m, n)
  grads = oracle.gmm_vjp(lhs, rhs, [1, 2], dout)
  assert grads.dlhs.shape == lhs.shape
  assert grads.drhs.shape == rhs.shape


def test_k_blocks_must_divide_k():
  with pytest.raises(ValueError, match="3 k_blocks"):
    oracle.gmm(
      np.ones((1, 4)), np.ones((1, 4, 2)), [1], rhs_scale=np.ones((1, 3, 2))
    )
