"""Bad calls of `ops.ragged_dot` and its general form."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gmm import ops

M, K, N, G = 24, 8, 6, 4
SIZES = np.array([5, 0, 9, 7], np.int32)
LHS, RHS = np.zeros((M, K), np.float32), np.zeros((G, K, N), np.float32)


def numbers(contract, batch=((), ()), *, ragged, group=()):
  return lax.RaggedDotDimensionNumbers((contract, batch), [ragged], group)


NN = numbers(([1], [1]), ragged=0, group=[0])
NT = numbers(([1], [2]), ragged=0, group=[0])
TN = numbers(([0], [0]), ragged=0)

BAD = {
  "sizes_second": (TypeError, (LHS, SIZES, RHS), {}, "looks like group_sizes"),
  "weight_third": (TypeError, (LHS, RHS, RHS), {}, "`group_sizes` is float32"),
  "dtype_fourth": (
    TypeError,
    (LHS, RHS, SIZES, jnp.float32),
    {},
    "`precision` is float32, which looks like a dtype; the order is rag",
  ),
  "offset_fourth": (
    TypeError,
    (LHS, RHS, SIZES, jnp.int32(0)),
    {},
    "`precision` is ",
  ),
  "tiling_fifth": (
    TypeError,
    (LHS, RHS, SIZES, None, (128, 128, 128)),
    {},
    "`preferred_element_type` is (128, 128, 128), which looks like a tiling",
  ),
  "sizes_fifth": (
    TypeError,
    (LHS, RHS, SIZES, None, SIZES),
    {},
    "`preferred_element_type` is an array [4]; want a dtype",
  ),
  "weight_first": (TypeError, (RHS, LHS, SIZES), {}, "the order is ragged_dot"),
  "precision_fifth": (
    TypeError,
    (LHS, RHS, SIZES, None, "highest"),
    {},
    "`preferred_element_type` is 'highest'; want a dtype; the order is ragged",
  ),
  "out_sharding": (
    TypeError,
    (LHS, RHS, SIZES, None, None, None, ("x", None)),
    {},
    "`out_sharding` is ('x', None); want None, or a PartitionSpec",
  ),
  "packed": (
    TypeError,
    (LHS, jnp.zeros((G, 1, N), jnp.int32), SIZES),
    {},
    "`rhs` is int32",
  ),
  "weight_of_another_k": (
    ValueError,
    (LHS, RHS.swapaxes(1, 2), SIZES),
    {},
    "`rhs` is [g, k, n] = [4, 6, 8]",
  ),
  "lhs_of_rank_3": (ValueError, (LHS[None], RHS, SIZES), {}, "want [m, k]"),
  "few_sizes": (ValueError, (LHS, RHS, SIZES[:2]), {}, "g_total >= g"),
  "unknown_precision": (
    ValueError,
    (LHS, RHS, SIZES, "great"),
    {},
    "'great'",
  ),
}


@pytest.mark.parametrize("row", BAD.values(), ids=BAD)
def test_errors(row):
  kind, args, options, words = row
  with pytest.raises(kind) as error:
    ops.ragged_dot(*args, **options)
  assert words in str(error.value)


BAD_GENERAL = {
  "a_tuple": (TypeError, {"dims": (((1,), (1,)), ((), ()))}, "a tuple; want"),
  "no_group": (
    ValueError,
    {"dims": numbers(([1], [1]), ragged=0)},
    "0 group dimensions of `rhs` beside a noncontracting",
  ),
  "a_group_too_many": (
    ValueError,
    {"dims": numbers(([0], [0]), ragged=0, group=[1]), "rhs": LHS},
    "1 group dimensions of `rhs` beside a contracting",
  ),
  "group_is_contracted": (
    ValueError,
    {"dims": numbers(([1], [1]), ragged=0, group=[1])},
    "the group dimension 1",
  ),
  "two_ragged": (
    ValueError,
    {
      "dims": lax.RaggedDotDimensionNumbers(
        (((1,), (1,)), ((), ())), [0, 1], [0]
      )
    },
    "2 ragged dimensions of `lhs`",
  ),
  "ragged_out_of_range": (
    ValueError,
    {"dims": numbers(([1], [1]), ragged=2, group=[0])},
    "the ragged dimension 2 of `lhs` of rank 2",
  ),
  "axis_out_of_range": (
    ValueError,
    {"dims": numbers(([1], [3]), ragged=0, group=[0])},
    "names axes [3] of `rhs` [4, 8, 6]",
  ),
  "axis_twice": (
    ValueError,
    {"dims": numbers(([1], [1]), ([1], [0]), ragged=0, group=[0])},
    "an axis of `lhs` twice",
  ),
  "sizes_disagree": (
    ValueError,
    {"dims": NT},
    "contracted axes of sizes [8] in `lhs`, [6] in `rhs`",
  ),
  "sizes_of_no_batch": (
    ValueError,
    {"dims": NN, "group_sizes": SIZES[None]},
    "`group_sizes` has shape [1, 4]; want [g] or [g]",
  ),
  "offset_of_tgmm": (
    NotImplementedError,
    {"dims": TN, "rhs": LHS, "group_offset": 1},
    "`group_offset` is given but the ragged dimension is contracting",
  ),
  "no_array": (
    TypeError,
    {"dims": NN, "lhs": [[1.0]]},
    "`lhs` is a list; want an array",
  ),
  "sizes_of_floats": (  # which no product of this form reads
    TypeError,
    {
      "dims": numbers(([1], [1]), ([0], [0]), ragged=0),
      "rhs": LHS,
      "group_sizes": SIZES.astype(np.float32),
    },
    "`group_sizes` is float32; want integers",
  ),
}


@pytest.mark.parametrize("row", BAD_GENERAL.values(), ids=BAD_GENERAL)
def test_errors_of_the_general_form(row):
  kind, given, words = row
  x = {"lhs": LHS, "rhs": RHS, "group_sizes": SIZES, **given}
  dims = x.pop("dims")
  with pytest.raises(kind) as error:
    ops.ragged_dot_general(**x, ragged_dot_dimension_numbers=dims)
  assert words in str(error.value)
  assert "want " in str(error.value)
