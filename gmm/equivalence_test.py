"""A flag chooses an implementation, and a row's neighbours choose nothing."""

import numpy as np
import pytest

from testing import cases, harness, inputs, parametrize
from testing.case import Case

# One program of each kind; interpreting one takes seconds to compile.
_KINDS = ("C20-offset-N-3", "C20-offset-T-3", "C03-empty-between")
_OF_EACH_KIND = [c for c in cases.CASES if c.name in _KINDS]


def _assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
  assert a.dtype == b.dtype
  assert a.tobytes() == b.tobytes()


@parametrize.over(_OF_EACH_KIND)
def test_the_explicit_transpose_gives_the_same(case, backend):
  in_place = harness.run_vjp(case, backend)
  flag = {"use_gmm_v2_transposed_rhs_dlhs": False}
  explicit = harness.run_vjp(case, backend, **flag)
  harness.check(case, explicit, **flag)
  for name in ("out", "drhs"):
    _assert_same_bits(in_place[name], explicit[name])


@parametrize.over(_OF_EACH_KIND)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_weight_that_lies_the_other_way(case, in_place, backend):
  flags = {
    "rhs_layout": "gkn" if case.transpose_rhs else "gnk",
    "use_gmm_v2_transposed_rhs_dlhs": in_place,
  }
  harness.check(case, harness.run_vjp(case, backend, **flags), **flags)


@parametrize.over(_OF_EACH_KIND)
def test_ops_are_the_products(case, backend):
  # The harness calls the kernels with race detection, ops without.
  products = harness.run_products(case, backend)
  harness.check(case, products)
  for name, got in harness.run_vjp(case, backend).items():
    if name in products:
      _assert_same_bits(got, products[name])


@parametrize.over(_OF_EACH_KIND)
def test_other_ways_to_say_xla(case):
  want = harness.run_vjp(case, "xla")
  for name, got in harness.run_vjp(case, "auto", use_gmm_v2=False).items():
    _assert_same_bits(got, want[name])


# Where row 5 lies among its neighbours: (group_sizes, group_offset, row), all
# with the row in local group 1.
_PLACES = [
  ((3, 6, 0, 31), 0, 5),
  ((0, 40, 0, 0), 0, 39),
  ((0, 0, 1, 1), 1, 0),
  ((17, 8, 14, 1), 1, 38),
  ((9, 9, 0, 1), 2, 18),
]


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("dtypes", ["bf16", "f32"])
def test_a_row_has_the_same_bits_wherever_it_is(dtypes, transpose_rhs, backend):
  shared = {
    "m": 40,
    "k": 136,
    "n": 72,
    "num_groups": 2,
    "dtypes": dtypes,
    "transpose_rhs": transpose_rhs,
    "tiling": (32, 128, 128),
  }
  same = inputs.make(
    Case(name="same", group_sizes=(40, 0, 0, 0), group_offset=0, **shared)
  )
  first = {}
  for place, (sizes, offset, row) in enumerate(_PLACES):
    case = Case(
      name=f"place{place}", group_sizes=sizes, group_offset=offset, **shared
    )
    x = inputs.make(case)
    x.lhs[row], x.dout[row] = same.lhs[0], same.dout[0]
    x.rhs[1] = same.rhs[0]
    results = harness.run_products(case, backend, x=x)
    for name in ("out", "dlhs"):
      bits = results[name][row].tobytes()
      assert bits == first.setdefault(name, bits), (name, place)
