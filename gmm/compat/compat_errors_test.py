"""Bad calls of the adapters: what the error names, and the way out."""

import collections
import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

from gmm.compat import maxtext, megablox

M, K, N, G = 40, 8, 16, 4
SIZES = np.array([5, 0, 9, 12], np.int32)
TILES = (8, 8, 8)
LHS, RHS = np.zeros((M, K), np.float32), np.zeros((G, K, N), np.float32)
OUT = np.zeros((M, N), np.float32)

# Like qwix's QArray.
_QArray = collections.namedtuple("_QArray", ["qvalue", "scale"])

ORDER = "the order is gmm(lhs, rhs, group_sizes, preferred_element_type, tiling"
BAD = {
  "sizes_second": (TypeError, (LHS, SIZES, RHS), {}, "like group_sizes", ORDER),
  "weight_third": (TypeError, (LHS, RHS, RHS), {}, "`group_sizes`", ORDER),
  "weight_first": (TypeError, (RHS, LHS, SIZES), {}, "like the weight", ORDER),
  "offset_fourth": (TypeError, (LHS, RHS, SIZES, 0), {}, "want a dtype", ORDER),
  "tiling_fourth": (
    TypeError,
    (LHS, RHS, SIZES, TILES),
    {},
    "`preferred_element_type` is (8, 8, 8), which looks like a tiling",
    ORDER,
  ),
  "lookup_fourth": (
    TypeError,
    (LHS, RHS, SIZES, lambda m, k, n: TILES),
    {},
    "looks like a tiling",
    ORDER,
  ),
  "dtype_fifth": (
    TypeError,
    (LHS, RHS, SIZES, jnp.float32, jnp.bfloat16),
    {},
    "`tiling` is bfloat16, which looks like a dtype",
    ORDER,
  ),
  "six_tiles": (
    ValueError,
    (LHS, RHS, SIZES),
    {"tiling": 2 * TILES},
    "has 6 entries",
    "want 3 of them (tile_m, tile_k, tile_n), 9",
  ),
  "one_tile": (TypeError, (LHS, RHS, SIZES), {"tiling": 8}, "`tiling` is 8"),
  "zero_tile": (
    ValueError,
    (LHS, RHS, SIZES),
    {"tiling": (8, 0, 8)},
    "three positive ints",
  ),
  "existing_of_another_shape": (
    ValueError,
    (LHS, RHS, SIZES),
    {"existing_out": LHS},
    "`existing_out` is [m, n] = [40, 8]",
  ),
  "existing_of_another_dtype": (
    TypeError,
    (LHS, RHS, SIZES, jnp.bfloat16),
    {"existing_out": OUT},
    "`existing_out` is float32",
  ),
  "other_layout": (
    ValueError,
    (LHS, RHS.swapaxes(1, 2), SIZES),
    {},
    "pass transpose_rhs=True",
  ),
  "interpret": (
    TypeError,
    (LHS, RHS, SIZES),
    {"interpret": "yes"},
    "`interpret` is 'yes'",
  ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("adapter", [megablox, maxtext])
def test_errors(adapter, name):
  kind, args, options, *words = BAD[name]
  if adapter is maxtext and name == "lookup_fourth":
    args = (*args[:3], (512,) * 9)
  with pytest.raises(kind) as error:
    adapter.gmm(*args, **options)
  for word in words:
    assert word in str(error.value)


def test_errors_of_lookups_and_tgmm():
  with pytest.raises(ValueError, match=r"None for \(m, k, n\) = \(40, 8, 16\)"):
    megablox.gmm(LHS, RHS, SIZES, tiling=lambda m, k, n: None)
  with pytest.raises(ValueError, match=r"pass lhs.swapaxes\(0, 1\)"):
    megablox.tgmm(LHS, OUT, SIZES)
  with pytest.raises(TypeError, match="`group_offset` is .*the order is tgmm"):
    megablox.tgmm(LHS.T, OUT, SIZES, jnp.float32, TILES, TILES)
  with pytest.raises(ValueError, match=r"`existing_out` is .* but the result"):
    megablox.tgmm(LHS.T, OUT, SIZES, existing_out=RHS[:1])
  with pytest.raises(TypeError, match="looks like group_sizes.*order is tgmm"):
    megablox.tgmm(LHS.T, SIZES, OUT)
  with pytest.raises(TypeError, match="`num_actual_groups` is an .* is tgmm"):
    megablox.tgmm(LHS.T, OUT, SIZES, jnp.float32, TILES, 0, RHS)
  with pytest.raises(TypeError, match="`num_actual_groups` is True; want"):
    megablox.tgmm(LHS.T, OUT, SIZES, num_actual_groups=True)


@pytest.mark.parametrize(
  ("preferred", "existing", "words"),
  [
    (jnp.int8, jnp.float32, "`preferred_element_type` is int8 for a sum in"),
    (np.float64, jnp.float32, "`preferred_element_type` is float64 for a sum"),
    (jnp.float32, jnp.int32, "`existing_out` is int32 but the result is float"),
    (jnp.float32, jnp.complex64, "`existing_out` is complex64 but the result"),
  ],
)
def test_formats_of_what_tgmm_adds_to(preferred, existing, words):
  with pytest.raises(TypeError, match=words):
    megablox.tgmm(
      LHS.T,
      OUT,
      SIZES,
      preferred,
      existing_out=jnp.zeros((G, K, N), existing),
    )


@pytest.mark.parametrize("adapter", [megablox, maxtext])
def test_sizes_sharded_over_an_explicit_axis(adapter):
  mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
  sizes = jax.device_put(SIZES, NamedSharding(mesh, jax.P("x")))
  for more in ({}, {"existing_out": OUT}):
    with pytest.raises(NotImplementedError, match="`group_sizes` is sharded"):
      adapter.gmm(LHS, RHS, sizes, **more)


QUANTISED = {
  "lhs_quantize_dtype": jnp.int8,
  "rhs_quantize_dtype": jnp.int8,
  "qwix_rule": "rule",
  "use_manual_quantization": True,
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantisation_is_refused(name):
  with pytest.raises(NotImplementedError, match=f"`{name}` is .* as a QArray"):
    maxtext.gmm(LHS, RHS, SIZES, **{name: QUANTISED[name]})


def test_a_rule_of_qwix_is_refused_where_one_holds(monkeypatch):
  call = functools.partial(maxtext.gmm, LHS, RHS, SIZES)
  plain = call()
  rules = {"gmm": None}
  fake = types.SimpleNamespace(get_current_rule=rules.get)
  for _ in range(2):  # not loaded, then loaded
    np.testing.assert_array_equal(call(use_qwix_quantization=True), plain)
    monkeypatch.setitem(sys.modules, "qwix.pallas", fake)
  rules["gmm"] = "int8 all over"
  np.testing.assert_array_equal(call(), plain)
  with pytest.raises(NotImplementedError, match="`qwix_rule` is 'int8 all ove"):
    call(use_qwix_quantization=True)


def test_more_errors_of_maxtext():
  more = OUT
  with pytest.raises(ValueError, match="both given; want one"):
    maxtext.gmm(LHS, RHS, SIZES, existing_out=more, partial_sum=more)
  with pytest.raises(NotImplementedError, match="`lhs` is a _QArray"):
    maxtext.gmm(_QArray(LHS, LHS[:, :1]), RHS, SIZES)
