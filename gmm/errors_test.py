"""Each bad input raises what the table promises and says which argument it is.

The same row goes through the operation and through the raw kernel wrapper.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import kernels, ops
from testing.calls import G, K, M, N, call_gmm, call_tgmm, like

RHS8 = np.zeros((G, K, N), np.int8)


def jax_like(shape, dtype):
  return jnp.zeros(shape, dtype)


# What both take, and what the message must hold: the argument, what came, what
# is wanted.
SHARED = {
  "lhs_rank_1": (ValueError, {"lhs": like((K,))}, "`lhs`", "[16]", "[m, k]"),
  "lhs_rank_3": (ValueError, {"lhs": like((1, M, K))}, "`lhs`", "[m, k]"),
  "lhs_float64": (
    TypeError,
    {"lhs": like((M, K), "f8")},
    "`lhs`",
    "float64",
    "bfloat16",
  ),
  "lhs_complex": (TypeError, {"lhs": like((M, K), "c8")}, "`lhs`", "complex64"),
  "lhs_bool": (TypeError, {"lhs": like((M, K), "?")}, "`lhs`", "bool"),
  "lhs_int32": (TypeError, {"lhs": like((M, K), "i4")}, "`lhs`", "int32"),
  "lhs_uint8": (TypeError, {"lhs": like((M, K), "u1")}, "`lhs`", "uint8"),
  "lhs_list": (TypeError, {"lhs": [[0.0] * K] * M}, "`lhs`", "list"),
  "lhs_int4": (
    NotImplementedError,
    {"lhs": like((M, K), jnp.int4)},
    "`lhs`",
    "int4",
    "rhs_scale",
  ),
  "sizes_rank_2": (
    ValueError,
    {"group_sizes": like((G, 1), "i4")},
    "`group_sizes`",
    "[3, 1]",
    "[g_total]",
  ),
  "sizes_scalar": (ValueError, {"group_sizes": np.int32(3)}, "`group_sizes`"),
  "sizes_float": (
    TypeError,
    {"group_sizes": like((G,))},
    "`group_sizes`",
    "float32",
    "integers",
  ),
  "sizes_bool": (TypeError, {"group_sizes": like((G,), "?")}, "`group_sizes`"),
  "sizes_list": (
    TypeError,
    {"group_sizes": [2, 2, 2]},
    "`group_sizes`",
    "list",
  ),
  "sizes_too_short": (
    ValueError,
    {"group_sizes": like((G - 1,), "i4")},
    "`group_sizes`",
    "[2]",
    "g = 3",
    "g_total >= g",
  ),
  "offset_shape_2": (
    ValueError,
    {"group_offset": like((2,), "i4")},
    "`group_offset`",
    "[2]",
    "[1]",
  ),
  "offset_shape_11": (
    ValueError,
    {"group_offset": like((1, 1), "i4")},
    "`group_offset`",
    "[1, 1]",
  ),
  "offset_float": (TypeError, {"group_offset": 1.0}, "`group_offset`", "1.0"),
  "offset_float_array": (
    TypeError,
    {"group_offset": like((1,))},
    "`group_offset`",
    "float32",
  ),
  "offset_bool": (TypeError, {"group_offset": True}, "`group_offset`", "True"),
  "offset_bool_array": (
    TypeError,
    {"group_offset": like((1,), "?")},
    "`group_offset`",
    "bool",
  ),
  "offset_list": (TypeError, {"group_offset": [1]}, "`group_offset`", "list"),
  "preferred_float64": (
    TypeError,
    {"preferred_element_type": "float64"},
    "`preferred_element_type`",
    "float64",
    "bfloat16",
  ),
  "preferred_int8": (
    TypeError,
    {"preferred_element_type": jnp.int8},
    "`preferred_element_type`",
    "int8",
  ),
  "preferred_int32": (
    TypeError,
    {"preferred_element_type": jnp.int32},
    "`preferred_element_type`",
    "float32",
  ),
  "preferred_nonsense": (
    TypeError,
    {"preferred_element_type": "fast"},
    "`preferred_element_type`",
    "fast",
  ),
  "precision_name": (
    ValueError,
    {"precision": "best"},
    "`precision`",
    "best",
    "highest",
  ),
  "precision_pair": (
    ValueError,
    {"precision": ("high", "highest")},
    "`precision`",
    "same",
  ),
  "precision_triple": (ValueError, {"precision": ("high",) * 3}, "`precision`"),
  "precision_type": (TypeError, {"precision": 3}, "`precision`", "3"),
}

GMM = SHARED | {
  "rhs_rank_2": (
    ValueError,
    {"rhs": like((K, N))},
    "`rhs`",
    "[16, 24]",
    "[g, k, n]",
  ),
  "rhs_rank_2_nt": (
    ValueError,
    {"rhs": like((N, K)), "transpose_rhs": True},
    "`rhs`",
    "[g, n, k]",
  ),
  "rhs_k": (
    ValueError,
    {"rhs": like((G, K + 1, N))},
    "`rhs`",
    "[3, 17, 24]",
    "k = 16",
  ),
  "rhs_is_nt": (
    ValueError,
    {"rhs": like((G, N, K))},
    "`rhs`",
    "[3, 24, 16]",
    "transpose_rhs=True",
  ),
  "rhs_is_nn": (
    ValueError,
    {"transpose_rhs": True},
    "`rhs`",
    "[g, n, k]",
    "transpose_rhs=False",
  ),
  "rhs_float64": (
    TypeError,
    {"rhs": like((G, K, N), "f8")},
    "`rhs`",
    "float64",
  ),
  "transpose_rhs": (TypeError, {"transpose_rhs": 1}, "`transpose_rhs`", "1"),
  "existing_rank": (
    ValueError,
    {"existing_out": like((M,))},
    "`existing_out`",
    "[m, n]",
  ),
  "existing_m": (
    ValueError,
    {"existing_out": like((M + 1, N))},
    "`existing_out`",
    "[7, 24]",
    "[6, 24]",
  ),
  "existing_n": (
    ValueError,
    {"existing_out": like((M, K))},
    "`existing_out`",
    "[6, 16]",
    "[6, 24]",
  ),
  "existing_dtype": (
    TypeError,
    {"existing_out": like((M, N), jnp.bfloat16)},
    "`existing_out`",
    "bfloat16",
    "float32",
  ),
  "scale_of_f32": (
    TypeError,
    {"rhs_scale": like((G, 1, N))},
    "`rhs_scale`",
    "`rhs` is float32",
    "int8",
  ),
  "scale_rank": (
    ValueError,
    {"rhs": RHS8, "rhs_scale": like((G, N))},
    "`rhs_scale`",
    "[3, 24]",
    "[g, k_blocks, n]",
  ),
  "scale_float16": (
    TypeError,
    {"rhs": RHS8, "rhs_scale": like((G, 1, N), "f2")},
    "`rhs_scale`",
    "float16",
    "float32",
  ),
  "scale_list": (
    TypeError,
    {"rhs": RHS8, "rhs_scale": [1.0]},
    "`rhs_scale`",
    "list",
  ),
  "scale_n": (
    ValueError,
    {"rhs": RHS8, "rhs_scale": like((G, 1, K))},
    "`rhs_scale`",
    "[3, 1, 16]",
    "[3, k_blocks, 24]",
  ),
  "scale_g": (
    ValueError,
    {"rhs": RHS8, "rhs_scale": like((1, 1, N))},
    "`rhs_scale`",
    "g = 3",
  ),
  "scale_blocks": (
    ValueError,
    {"rhs": RHS8, "rhs_scale": like((G, 3, N))},
    "`rhs_scale`",
    "k = 16",
    "divide",
  ),
  "scale_no_blocks": (
    ValueError,
    {"rhs": RHS8, "rhs_scale": like((G, 0, N))},
    "`rhs_scale`",
    "divide",
  ),
  "bias_rank": (
    ValueError,
    {"rhs_bias": like((N,))},
    "`rhs_bias`",
    "[24]",
    "[g, n]",
  ),
  "bias_n": (
    ValueError,
    {"rhs_bias": like((G, K))},
    "`rhs_bias`",
    "[3, 16]",
    "n = 24",
  ),
  "bias_int": (
    TypeError,
    {"rhs_bias": like((G, N), "i4")},
    "`rhs_bias`",
    "int32",
  ),
  "bias_of_integers": (
    TypeError,
    {"lhs": like((M, K), "i1"), "rhs": RHS8, "rhs_bias": like((G, N))},
    "`rhs_bias`",
    "int32",
    "preferred_element_type",
  ),
  "precision_of_bf16": (
    ValueError,
    {
      "lhs": like((M, K), jnp.bfloat16),
      "rhs": like((G, K, N), jnp.bfloat16),
      "precision": "highest",
    },
    "`precision`",
    "HIGHEST",
    "bfloat16",
    "float32",
  ),
}

TGMM = SHARED | {
  "dout_rank": (ValueError, {"dout": like((M,))}, "`dout`", "[m, n]"),
  "dout_m": (
    ValueError,
    {"dout": like((M + 1, N))},
    "`dout`",
    "[7, 24]",
    "m = 6",
  ),
  "dout_float64": (
    TypeError,
    {"dout": like((M, N), "f8")},
    "`dout`",
    "float64",
  ),
  "num_groups_float": (TypeError, {"num_groups": 3.0}, "`num_groups`", "3.0"),
  "num_groups_bool": (TypeError, {"num_groups": True}, "`num_groups`"),
  "num_groups_negative": (ValueError, {"num_groups": -1}, "`num_groups`", "-1"),
  "precision_of_bf16": (
    ValueError,
    {
      "lhs": like((M, K), jnp.bfloat16),
      "dout": like((M, N), jnp.bfloat16),
      "precision": "highest",
    },
    "`precision`",
    "HIGHEST",
    "bfloat16",
    "float32",
  ),
}


def raises(case, call):
  error, arguments, *said = case
  with pytest.raises(error) as caught:
    call(**arguments)
  assert caught.type is error
  for words in said:
    assert words in str(caught.value)


@pytest.mark.parametrize("name", GMM)
@pytest.mark.parametrize("function", [ops.gmm, kernels.gmm_v2])
def test_gmm_refuses(function, name):
  raises(GMM[name], functools.partial(call_gmm, function))


@pytest.mark.parametrize("name", TGMM)
@pytest.mark.parametrize("function", [ops.tgmm, kernels.tgmm_v2])
def test_tgmm_refuses(function, name):
  raises(TGMM[name], functools.partial(call_tgmm, function))


@pytest.mark.parametrize(
  "name", ["rhs_is_nt", "sizes_float", "existing_m", "offset_shape_2"]
)
def test_gmm_refuses_under_jit(name):
  error, arguments, *said = GMM[name]
  arrays = {k: v for k, v in arguments.items() if hasattr(v, "shape")}
  with pytest.raises(error, match=re.escape(said[0])):
    jax.jit(functools.partial(call_gmm, ops.gmm))(**arrays)
