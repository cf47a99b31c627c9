"""Which way a weight lies. `aot_test` asks the compiler the same questions."""

import jax.numpy as jnp
import pytest

from gmm import layouts
from testing import workloads

BF16 = jnp.dtype(jnp.bfloat16)


@pytest.mark.parametrize("w", workloads.WORKLOADS, ids=lambda w: w.name)
def test_workloads(w):
  # 704 columns would be padded to 768, 2880 are whether they are k or n.
  swapped = w.name == "gemma4-26b/wi"
  assert layouts.minor_axis((w.g, w.k, w.n), BF16) == (1 if swapped else 2)


@pytest.mark.parametrize(
  ("shape", "axis"),
  [
    ((4, 128, 100), 1),
    ((4, 100, 128), 2),
    ((4, 130, 100), 2),  # 2 * 128 lanes for 130, 1 * 128 for 100
    ((4, 100, 130), 1),
    ((4, 256, 1), 1),
    ((4, 1, 256), 2),
    ((4, 128, 128), 2),
    ((4, 704, 704), 2),
  ],
)
def test_the_order_that_pads_less(shape, axis):
  assert layouts.minor_axis(shape, BF16) == axis


@pytest.mark.parametrize(
  ("rhs_layout", "k_axis", "swapped"),
  [
    ("gkn", 1, False),
    ("gkn", 2, True),
    ("gnk", 1, True),
    ("gnk", 2, False),
  ],
)
def test_named_layouts(rhs_layout, k_axis, swapped):
  got = layouts.lies_swapped(rhs_layout, (4, 128, 128), BF16, k_axis=k_axis)
  assert got == swapped


@pytest.mark.parametrize("k_axis", [1, 2])
def test_auto_goes_by_the_array(k_axis):
  assert layouts.lies_swapped("auto", (4, 256, 100), BF16, k_axis=k_axis)
  assert not layouts.lies_swapped("auto", (4, 100, 256), BF16, k_axis=k_axis)
