"""Bad requests to quantise lhs, or to scale it: what each error names."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import kernels, ops

M, K, N, G = 6, 16, 24, 3
SIZES = np.zeros((G,), np.int32)


def like(shape, dtype=np.float32):
  return np.zeros(shape, jnp.dtype(dtype))


LHS8 = {"lhs": like((M, K), "i1")}
RHS8 = {"rhs": like((G, K, N), "i1")}
TO_I8 = {"lhs_quantization": "int8"}

# The error, what is passed, and what its message must hold.
CASES = {
  "scale_of_f32": (
    TypeError,
    {"lhs_scale": like((M, 1))},
    "`lhs_scale`",
    "`lhs` is float32",
    "int8",
  ),
  "scale_rank": (
    ValueError,
    {**LHS8, "lhs_scale": like((M,))},
    "`lhs_scale`",
    "[6]",
    "[m, 1]",
  ),
  "scale_rows": (
    ValueError,
    {**LHS8, "lhs_scale": like((M - 1, 1))},
    "`lhs_scale`",
    "[5, 1]",
    "[1, 1] or [m, 1] = [6, 1]",
  ),
  "scale_columns": (
    ValueError,
    {**LHS8, "lhs_scale": like((1, K))},
    "`lhs_scale`",
    "[1, 16]",
    "[m, 1] = [6, 1]",
  ),
  "scale_float16": (
    TypeError,
    {**LHS8, "lhs_scale": like((M, 1), "f2")},
    "`lhs_scale`",
    "float16",
    "bfloat16",
  ),
  "sum_of_integers": (
    TypeError,
    {**LHS8, **RHS8, "lhs_scale": like((M, 1))}
    | {"preferred_element_type": jnp.int32},
    "`preferred_element_type` is int32",
    "float32",
  ),
  "unknown_format": (
    TypeError,
    {**RHS8, "lhs_quantization": "int3"},
    "`lhs_quantization`",
    "int3",
    "float8_e4m3fn",
  ),
  "no_format_of_lhs": (
    TypeError,
    {**RHS8, "lhs_quantization": "int4"},
    "`lhs_quantization`",
    "int4",
    "int8, float8_e4m3fn, float8_e5m2",
  ),
  "twice": (
    ValueError,
    {**LHS8, **RHS8, **TO_I8},
    "`lhs_quantization` is int8",
    "`lhs` is int8",
    "lhs_scale",
  ),
  "weight_of_floats": (
    ValueError,
    {"rhs": like((G, K, N)), **TO_I8},
    "`lhs_quantization` is int8",
    "`rhs` is float32",
    "int8 or int4",
  ),
  "weight_of_another_format": (
    ValueError,
    {**RHS8, "lhs_quantization": "float8_e5m2"},
    "`lhs_quantization` is float8_e5m2",
    "`rhs` is int8",
    "want float8_e5m2",
  ),
  "precision": (
    ValueError,
    {**RHS8, **TO_I8, "precision": "highest"},
    "`precision` is HIGHEST",
    "`lhs_quantization`",
  ),
}


def call(function, **changes):
  x = {"lhs": like((M, K)), "rhs": like((G, K, N)), "group_sizes": SIZES}
  x |= changes
  return function(x.pop("lhs"), x.pop("rhs"), x.pop("group_sizes"), **x)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("function", [ops.gmm, kernels.gmm_v2])
def test_refuses(function, name):
  error, arguments, *said = CASES[name]
  with pytest.raises(error) as caught:
    call(function, **arguments)
  assert caught.type is error
  for words in said:
    assert words in str(caught.value)


@pytest.mark.parametrize(
  ("chip", "dtype", "has"),
  [
    ("v4", "int8", "none"),
    ("v5e", "float8_e4m3fn", "float8_e5m2, int8"),
    ("v5p", "float8_e4m3fn", "float8_e5m2, int8"),
    ("v6e", "float8_e4m3fn", "float8_e5m2, int8"),
    ("tpu7x", "int8", "float8_e4m3fn, float8_e5m2"),
  ],
)
def test_a_chip_without_the_format_says_what_it_has(chip, dtype, has):
  x = {"rhs": like((G, K, N), dtype), "lhs_quantization": dtype}
  calls = [
    functools.partial(call, kernels.gmm_v2, chip=chip),
    *(
      functools.partial(
        call, ops.gmm, config=ops.Config(backend=backend, chip=chip)
      )
      for backend in ("pallas", "interpret")
    ),
  ]
  for refused in calls:
    with pytest.raises(
      NotImplementedError, match=f"`lhs_quantization` is {dtype}.*{chip}.*{has}"
    ):
      refused(**x)
  # XLA multiplies what the values stand for, wherever it runs.
  config = ops.Config(chip=chip, use_gmm_v2=False)
  assert not np.any(call(ops.gmm, config=config, **x))


def test_no_scales_along_the_columns_of_the_result():
  x = {"rhs": like((G, N, K), "i1"), "transpose_rhs": True, **TO_I8}
  with pytest.raises(NotImplementedError, match="`lhs_quantization`.*backward"):
    call(kernels.gmm_v2, backward=True, rhs_scale=like((G, 1, K)), **x)


def test_an_ambient_precision_is_for_other_products():
  with jax.default_matmul_precision("highest"):
    assert not np.any(call(ops.gmm, **RHS8, **TO_I8))
