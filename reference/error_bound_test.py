"""The bound holds for every correct order of summation, and not for a fault."""

import jax.numpy as jnp
import numpy as np
import pytest

from reference.error_bound import error_bound

F32 = float(jnp.finfo(jnp.float32).eps)


def _problem(k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(seed)
  lhs = rng.normal(size=(8, k)).astype(np.float32)
  # A large part that cancels: the error is then far above |expected|.
  rhs = rng.normal(size=(k, 8)).astype(np.float32)
  lhs[:, k // 2 :] = -lhs[:, : k - k // 2]
  rhs[k // 2 :] = rhs[: k - k // 2] * np.float32(1 + 1e-4)
  return lhs, rhs


def _expected(
  lhs: np.ndarray, rhs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  lhs, rhs = lhs.astype(np.float64), rhs.astype(np.float64)
  return lhs @ rhs, np.abs(lhs) @ np.abs(rhs)


def _one_after_the_other(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
  total = np.zeros((lhs.shape[0], rhs.shape[1]), np.float32)
  for j in range(lhs.shape[1]):
    total = total + lhs[:, j : j + 1] * rhs[j : j + 1]
  return total


@pytest.mark.parametrize("k", [2, 64, 512])
@pytest.mark.parametrize(
  "out", [jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2]
)
def test_float32_sums_are_within_it(k, out):
  out_eps = float(jnp.finfo(out).eps) if out != jnp.float32 else 0.0
  for seed in range(20):
    lhs, rhs = _problem(k, seed)
    expected, magnitude = _expected(lhs, rhs)
    got = _one_after_the_other(lhs, rhs).astype(out).astype(np.float64)
    bound = error_bound(
      expected,
      magnitude,
      terms=k,
      acc_eps=F32,
      out_eps=out_eps,
      out_floor=float(jnp.finfo(out).smallest_subnormal),
    )
    assert np.all(np.abs(got - expected) <= bound)


def test_rounded_operands_are_within_operand_eps_and_not_without_it():
  lhs, rhs = _problem(256, 0)
  expected, magnitude = _expected(lhs, rhs)
  rounded = [x.astype(jnp.bfloat16).astype(np.float32) for x in (lhs, rhs)]
  error = np.abs(_one_after_the_other(*rounded) - expected)
  options = {"terms": 256, "acc_eps": F32, "out_eps": 0.0}
  both = 2 * float(jnp.finfo(jnp.bfloat16).eps)
  assert np.all(
    error <= error_bound(expected, magnitude, operand_eps=both, **options)
  )
  assert np.any(error > error_bound(expected, magnitude, **options))


def test_a_lost_term_is_outside():
  lhs, rhs = _problem(256, 0)
  expected, magnitude = _expected(lhs, rhs)
  got = _one_after_the_other(lhs[:, :-1], rhs[:-1]).astype(jnp.bfloat16)
  bound = error_bound(
    expected,
    magnitude,
    terms=256,
    acc_eps=F32,
    out_eps=float(jnp.finfo(jnp.bfloat16).eps),
  )
  assert np.mean(np.abs(got.astype(np.float64) - expected) > bound) > 0.9


def test_exact_integers_have_no_room():
  bound = error_bound([[3.0]], [[7.0]], terms=4, acc_eps=0.0, out_eps=0.0)
  assert bound[0, 0] == 0


def test_nothing_added_up_leaves_no_room():
  bound = error_bound(
    [[0.0, 1.0]],
    [[0.0, 1.0]],
    terms=4,
    acc_eps=F32,
    out_eps=F32,
    out_floor=1e-3,
  )
  assert bound[0, 0] == 0
  assert bound[0, 1] > 0
