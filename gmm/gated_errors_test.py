"""Bad input for gate and up: which error, and what it names."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import activations, kernels, ops

M, K, N, G = 6, 16, 24, 3
LHS = np.zeros((M, K), np.float32)
BOTH = np.zeros((G, K, 2 * N), np.float32)
HALF = np.zeros((G, K, N), np.float32)
SIZES = np.zeros((G,), np.int32)


def like(shape, dtype=np.float32):
  return np.zeros(shape, jnp.dtype(dtype))


# What is changed, the error, and what its message must hold.
GATED = {
  "odd": (
    {"rhs_gate_up": like((G, K, 7))},
    ValueError,
    ("`rhs_gate_up`", "[g, k, 2n]", "7", "even"),
  ),
  "odd_transposed": (
    {"rhs_gate_up": like((G, 7, K)), "transpose_rhs": True},
    ValueError,
    ("`rhs_gate_up`", "[g, 2n, k]", "7", "even"),
  ),
  "k": (
    {"rhs_gate_up": like((G, K + 1, 2 * N))},
    ValueError,
    ("`rhs_gate_up`", "17", "k = 16"),
  ),
  "dtype": (
    {"rhs_gate_up": like((G, K, 2 * N), np.float64)},
    TypeError,
    ("`rhs_gate_up`", "float64"),
  ),
  "integers": (
    {
      "lhs": like((M, K), np.int8),
      "rhs_gate_up": like((G, K, 2 * N), np.int8),
    },
    NotImplementedError,
    ("`lhs`", "int8", "activation"),
  ),
  "unknown_name": (
    {"activation": "relu"},
    ValueError,
    ("`activation`", "'relu'", "'silu'", "'swigluoai'"),
  ),
  "no_function": ({"activation": 3}, TypeError, ("`activation`", "int")),
  "reduces": (
    {"activation": lambda gate, up: jnp.sum(gate * up)},
    ValueError,
    ("`activation`", "[]", "[6, 24]", "element by element"),
  ),
  "bools": (
    {"activation": lambda gate, up: gate > up},
    TypeError,
    ("`activation`", "bool"),
  ),
  "integer_result": (
    {"preferred_element_type": jnp.int32},
    TypeError,
    ("`preferred_element_type`", "int32"),
  ),
  "recompute": ({"recompute": 1}, TypeError, ("`recompute`", "1")),
  "config": ({"config": "xla"}, TypeError, ("`config`", "str")),
}
SPLIT = {
  "g": ({"rhs_up": like((G - 1, K, N))}, ValueError, ("`rhs_gate`", "2", "3")),
  "k": (
    {"rhs_up": like((G, K + 1, N))},
    ValueError,
    ("`rhs_up`", "17", "k = 16"),
  ),
  "dtypes": (
    {"rhs_up": like((G, K, N), jnp.bfloat16)},
    TypeError,
    ("`rhs_gate` is float32", "`rhs_up` is bfloat16"),
  ),
  "rank": ({"rhs_gate": like((K, N))}, ValueError, ("`rhs_gate`", "[g, k, n]")),
}


def _raises(call, row, given):
  changed, error, said = row
  with pytest.raises(error) as caught:
    call(**(given | changed))
  assert caught.type is error
  for words in said:
    assert words in str(caught.value), str(caught.value)


@pytest.mark.parametrize("row", GATED.values(), ids=GATED)
def test_gated(row):
  given = {"lhs": LHS, "rhs_gate_up": BOTH, "group_sizes": SIZES}
  given["config"] = ops.Config(backend="xla")
  _raises(ops.gmm_gated, row, given)


@pytest.mark.parametrize("row", SPLIT.values(), ids=SPLIT)
def test_split(row):
  given = {"lhs": LHS, "rhs_gate": HALF, "rhs_up": HALF, "group_sizes": SIZES}
  _raises(ops.split_gmm, row, given)


def test_float16_is_for_xla():
  lhs, weight = LHS.astype(np.float16), BOTH.astype(np.float16)
  config = ops.Config(backend="interpret", chip="v6e")
  with pytest.raises(NotImplementedError, match="`lhs` is float16"):
    ops.gmm_gated(lhs, weight, SIZES, config=config)
  assert ops.gmm_gated(lhs, weight, SIZES).dtype == np.float16


def test_a_tiling_that_does_not_fit():
  with pytest.raises(ValueError, match="`tiling` = .* needs .* of VMEM"):
    jax.eval_shape(
      lambda *x: kernels.gmm_gated_v2(
        *x, chip="tpu7x", tiling=(8192, 8192, 8192)
      ),
      jax.ShapeDtypeStruct((8192, 8192), np.float32),
      jax.ShapeDtypeStruct((1, 8192, 16384), np.float32),
      jax.ShapeDtypeStruct((1,), np.int32),
    )


def test_the_kernels_want_two_weights_of_one_shape():
  with pytest.raises(ValueError, match=re.escape("`ops.split_gmm`")):
    kernels.split_gmm_v2(LHS, HALF, HALF[..., :8], SIZES, chip="v6e")
  with pytest.raises(TypeError, match="two products that differ"):
    kernels.sum_gmm_v2(
      (LHS, LHS), (HALF, HALF.astype(jnp.bfloat16)), SIZES, chip="v6e"
    )


@pytest.mark.parametrize("zero", ["m", "k", "n", "g"])
@pytest.mark.parametrize("backend", ["xla", "interpret", "auto"])
def test_nothing_to_multiply(zero, backend):
  # Rows of a group have sums of zero where k is, and what is made of those.
  size = {"m": M, "k": K, "n": N, "g": G} | {zero: 0}
  m, k, n, g = size.values()
  sizes = np.array([1, 2, 1][: max(g, 1)], np.int32)
  lhs = np.ones((m, k), np.float32)
  weight = np.ones((g, k, 2 * n), np.float32)

  def gated(lhs, weight):
    return ops.gmm_gated(
      lhs,
      weight,
      sizes,
      activation=_shifted,
      config=ops.Config(backend=backend, chip="v6e"),
    )

  out, vjp = jax.vjp(gated, lhs, weight)
  assert out.shape == (m, n)
  rows = np.arange(m) < (4 if zero == "k" else 0)
  np.testing.assert_array_equal(out, rows[:, None] * np.full((m, n), 2.0))
  dlhs, drhs = vjp(jnp.ones_like(out))
  assert not np.any(dlhs) and not np.any(drhs)
  assert (dlhs.shape, drhs.shape) == (lhs.shape, weight.shape)


def _shifted(gate, up):
  return (gate + 1) * (up + 2)


def test_names_stand_for_functions():
  for name, function in activations.ACTIVATIONS.items():
    assert activations.resolve(name) is function
    assert activations.resolve(function) is function
