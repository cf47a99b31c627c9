"""Choices that contradict each other, and keys that mean nothing."""

import pytest

from gmm import ops


@pytest.mark.parametrize(
  ("error", "keys", "said"),
  [
    (ValueError, {"backend": "tpu"}, "`backend`.*'tpu'.*interpret"),
    (ValueError, {"backend": None}, "`backend`"),
    (TypeError, {"chip": 6}, "`chip`"),
    (TypeError, {"use_gmm_v2": None}, "`use_gmm_v2`"),
    (TypeError, {"use_gmm_v2": 1}, "`use_gmm_v2`"),
    (
      TypeError,
      {"use_gmm_v2_transposed_rhs_dlhs": "yes"},
      "`use_gmm_v2_transposed_rhs_dlhs`.*'yes'",
    ),
    (
      ValueError,
      {"use_gmm_v2": False, "use_gmm_v2_transposed_rhs_dlhs": True},
      "use_gmm_v2_transposed_rhs_dlhs=True.*use_gmm_v2=False",
    ),
    (
      ValueError,
      {"use_gmm_v2": False, "backend": "pallas"},
      "'pallas'.*use_gmm_v2=False",
    ),
    (
      ValueError,
      {"use_gmm_v2": False, "backend": "interpret"},
      "'interpret'.*use_gmm_v2=False",
    ),
    (ValueError, {"rhs_layout": "kgn"}, "`rhs_layout`.*'kgn'.*auto.*gkn.*gnk"),
    (ValueError, {"rhs_layout": None}, "`rhs_layout`.*None.*auto"),
  ],
)
def test_bad_configs(error, keys, said):
  with pytest.raises(error, match=said):
    ops.Config(**keys)


@pytest.mark.parametrize(
  ("error", "keys", "said"),
  [
    (ValueError, {"use_gmm_v2": "maybe"}, "`use_gmm_v2`.*maybe"),
    (TypeError, {"use_gmm_v2": 1}, "`use_gmm_v2`"),
    (
      ValueError,
      {"use_gmm_v2": False, "use_gmm_v2_transposed_rhs_dlhs": True},
      "use_gmm_v2_transposed_rhs_dlhs=True.*use_gmm_v2=False",
    ),
    (
      ValueError,
      {"use_gmm_v2": False, "moe_gmm_v2_dlhs_transpose_rhs": True},
      "moe_gmm_v2_dlhs_transpose_rhs=True.*use_gmm_v2=False",
    ),
    (
      ValueError,
      {
        "use_gmm_v2_transposed_rhs_dlhs": False,
        "moe_gmm_v2_dlhs_transpose_rhs": True,
      },
      "use_gmm_v2_transposed_rhs_dlhs=False.*moe_gmm_v2_dlhs_transpose_rhs",
    ),
    (NotImplementedError, {"quantization": "int8"}, "`quantization`.*int8"),
    (NotImplementedError, {"quantization": "fp8"}, "`quantization`.*fp8"),
  ],
)
def test_bad_keys(error, keys, said):
  with pytest.raises(error, match=said):
    ops.Config.from_keys(keys)


@pytest.mark.parametrize("keys", [None, ["use_gmm_v2"], "use_gmm_v2"])
def test_keys_are_a_mapping(keys):
  with pytest.raises(TypeError, match="`keys` is a .*mapping"):
    ops.Config.from_keys(keys)
