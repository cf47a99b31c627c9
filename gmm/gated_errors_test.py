"""Bad input for gate and up: which error, and what it names."""

import re
import types

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


SCALE = np.ones((G, 2, 2 * N), np.float32)
HALF_SCALE = SCALE[..., :N]
QUANTISED = {"rhs_gate_up": like((G, K, 2 * N), jnp.int8)}
HALVES = {
  "rhs_gate": like((G, K, N), jnp.int8),
  "rhs_up": like((G, K, N), jnp.int8),
}


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
  "scale_blocks": (
    QUANTISED | {"rhs_scale": like((G, 3, 2 * N))},
    ValueError,
    ("`rhs_scale`", "[g, k_blocks, 2n]", "k = 16", "divide k"),
  ),
  "scale_of_a_half": (
    QUANTISED | {"rhs_scale": HALF_SCALE},
    ValueError,
    ("`rhs_scale`", "[3, 2, 24]", "2n = 48"),
  ),
  "scale_of_integers": (
    QUANTISED | {"lhs": like((M, K), jnp.int8), "rhs_scale": SCALE},
    NotImplementedError,
    ("`lhs` is int8", "`rhs_gate_up`", "ops.gmm"),
  ),
  "scale_of_floats": (
    {"rhs_scale": SCALE},
    TypeError,
    ("`rhs_scale`", "`rhs_gate_up` is float32", "not quantised"),
  ),
  "bias_of_a_half": (
    {"rhs_bias": like((G, N))},
    ValueError,
    ("`rhs_bias`", "[g, 2n] = [3, 24]", "2n = 48"),
  ),
  "bias_dtype": (
    {"rhs_bias": like((G, 2 * N), np.int32)},
    TypeError,
    ("`rhs_bias`", "int32"),
  ),
  "two_scales": (
    {
      "rhs_gate_up": types.SimpleNamespace(
        qvalue=like((G, K, 2 * N), jnp.int8), scale=SCALE
      ),
      "rhs_scale": SCALE,
    },
    ValueError,
    ("`rhs_gate_up`", "`rhs_scale`"),
  ),
  "packed_k": (
    {"rhs_gate_up": like((G, K, 2 * N), np.int32)},
    ValueError,
    ("`rhs_gate_up` is int32", "k / 8"),
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
  "scale_of_integers": (
    HALVES
    | {"lhs": like((M, K), jnp.int8)}
    | {"rhs_gate_scale": HALF_SCALE, "rhs_up_scale": HALF_SCALE},
    NotImplementedError,
    ("`lhs` is int8", "`rhs_gate`", "ops.gmm"),
  ),
  "one_scale": (
    HALVES | {"rhs_gate_scale": HALF_SCALE},
    ValueError,
    ("`rhs_gate_scale` is given", "`rhs_up_scale` is None"),
  ),
  "one_bias": (
    {"rhs_up_bias": like((G, N))},
    ValueError,
    ("`rhs_up_bias` is given", "`rhs_gate_bias` is None"),
  ),
  "blocks": (
    HALVES | {"rhs_gate_scale": HALF_SCALE, "rhs_up_scale": SCALE[:, :1, :N]},
    ValueError,
    ("`rhs_gate_scale` has k_blocks = 2", "`rhs_up_scale` has 1"),
  ),
  "scale_dtypes": (
    HALVES
    | {
      "rhs_gate_scale": HALF_SCALE,
      "rhs_up_scale": HALF_SCALE.astype(jnp.bfloat16),
    },
    TypeError,
    ("`rhs_gate_scale` is float32", "`rhs_up_scale` is bfloat16"),
  ),
  "up_scale": (
    HALVES | {"rhs_gate_scale": HALF_SCALE, "rhs_up_scale": SCALE},
    ValueError,
    ("`rhs_up_scale`", "[3, 2, 48]", "n = 24"),
  ),
  "up_bias": (
    {"rhs_gate_bias": like((G, N)), "rhs_up_bias": like((G, N + 1))},
    ValueError,
    ("`rhs_up_bias`", "[3, 25]", "n = 24"),
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


REFUSED = {
  "rhs_gate_up": (TypeError, "float8_e4m3fn that has been quantised"),
  "rhs_scale": (NotImplementedError, "not supported"),
  "rhs_gate": (TypeError, "float8_e4m3fn that has been quantised"),
  "rhs_up": (TypeError, "float8_e4m3fn that has been quantised"),
  "rhs_gate_scale": (NotImplementedError, "not supported"),
  "rhs_up_scale": (NotImplementedError, "not supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_gradients_that_are_refused(name):
  e4m3 = jnp.float8_e4m3fn
  given = {"rhs_gate_up": BOTH.astype(e4m3), "rhs_scale": SCALE}
  function = ops.gmm_gated
  if name not in given:
    function = ops.split_gmm
    given = {n: x.astype(e4m3) for n, x in HALVES.items()}
    given |= {"rhs_gate_scale": HALF_SCALE, "rhs_up_scale": HALF_SCALE}
  given |= {"lhs": LHS, "group_sizes": SIZES}

  def loss(of, of_name):
    return jnp.sum(jnp.stack(function(**(given | {of_name: of}))))

  error, said = REFUSED[name]
  with pytest.raises(error, match=f"the gradient of `{name}` .*{said}"):
    jax.grad(loss)(given[name], name)
  assert not np.any(jax.grad(loss)(LHS, "lhs"))


def test_an_object_with_a_scale_of_its_own():
  rng = np.random.default_rng(0)
  lhs = rng.normal(size=(M, K)).astype(np.float32)
  value = rng.integers(-9, 9, (G, K, 2 * N)).astype(np.int8)
  scale = rng.uniform(size=(1, 2, 2 * N)).astype(np.float32)
  sizes = np.array([1, 2, 3], np.int32)
  whole = types.SimpleNamespace(qvalue=value, scale=scale)
  got = ops.gmm_gated(lhs, whole, sizes)
  own = {"rhs_scale": np.tile(scale, (G, 1, 1))}
  np.testing.assert_array_equal(got, ops.gmm_gated(lhs, value, sizes, **own))
  halves = [
    types.SimpleNamespace(qvalue=value[..., at], scale=scale[..., at])
    for at in (slice(N), slice(N, None))
  ]
  gate, up = ops.split_gmm(lhs, *halves, sizes)
  both = ops.gmm(lhs, whole, sizes)
  np.testing.assert_array_equal(np.concatenate([gate, up], axis=1), both)


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


@pytest.mark.parametrize("backend", ["xla", "interpret", "auto"])
def test_biases_of_no_contraction(backend):
  bias = np.arange(2 * N * G, dtype=np.float32).reshape(G, 2 * N) / 100
  sizes = np.array([1, 2, 1], np.int32)
  config = ops.Config(backend=backend, chip="v6e")
  lhs, weight = np.ones((M, 0), np.float32), np.ones((G, 0, 2 * N), np.float32)
  own = bias[[0, 1, 1, 2]]
  out = ops.gmm_gated(
    lhs, weight, sizes, rhs_bias=bias, activation=_shifted, config=config
  )
  want = (own[:, :N] + 1) * (own[:, N:] + 2)
  np.testing.assert_allclose(out[:4], want, rtol=1e-6)
  halves, biases = np.split(weight, 2, 2), np.split(bias, 2, 1)
  gate, up = ops.split_gmm(
    lhs,
    *halves,
    sizes,
    rhs_gate_bias=biases[0],
    rhs_up_bias=biases[1],
    config=config,
  )
  np.testing.assert_array_equal(gate[:4], own[:, :N])
  np.testing.assert_array_equal(up[:4], own[:, N:])
  for x in (out, gate, up):
    assert not np.any(x[4:])


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
