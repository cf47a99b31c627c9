"""The bounds of activations that tolerances are made of."""

import dataclasses

import numpy as np
import pytest

from testing import gated_cases, gated_tolerance, tolerance

GATES = np.linspace(-12, 12, 48_001)


def _case(activation):
  one = gated_cases.CASES[0]
  return dataclasses.replace(one, activation=activation)


@pytest.mark.parametrize("name", gated_tolerance.SLOPES)
def test_slopes_are_bounds_and_not_far_off(name):
  act = gated_tolerance.activation_of(_case(name))
  # B(up) is 1 there, and 0 at the other.
  up = {"swigluoai": 0.0, "shifted": -1.0}.get(name, 1.0)
  slope, bend = gated_tolerance.SLOPES[name]
  first = act.dgate(GATES, np.full_like(GATES, up))
  inside = np.abs(GATES - 7) > 0.01  # where swigluoai is not differentiable
  second = np.gradient(first, GATES)[inside]
  assert 0.97 * slope <= np.max(np.abs(first)) <= slope
  assert 0.97 * bend <= np.max(np.abs(second)) <= bend + 1e-6


@pytest.mark.parametrize("name", gated_tolerance.SLOPES)
def test_an_activation_is_a_product(name):
  act = gated_tolerance.activation_of(_case(name))
  gate, up = np.meshgrid(np.linspace(-9, 9, 37), np.linspace(-9, 9, 37))
  assert np.all(np.abs(act.dup(gate, up)) <= np.abs(gate) + 1)
  most = (np.abs(gate) + 1) * (np.abs(up) + 2)
  assert np.all(np.abs(act.value(gate, up)) <= most)


def test_every_case_has_room_for_errors_and_no_more():
  # Bounds are a few units in the last place of what results are made of.
  for case in gated_cases.CASES[::7]:
    x = gated_tolerance.make(case)
    found = gated_tolerance.expected(case, x, on_tpu=False)
    for name, want in found.items():
      assert np.all(np.isfinite(want.bound)), (case.name, name)
      assert np.all(want.bound >= 0)
      largest = np.max(np.abs(want.value), initial=0)
      # Of a weight that is rounded with its scales, gate and up are off by as
      # much, and their gradients by that times each other. How much comes of
      # it no rule says: this guards against bounds that check nothing.
      carried = tolerance.has_small_blocks(case.case) and name != "out"
      most = 0.35 if carried else 0.05
      assert np.median(want.bound) <= most * largest + 1e-30, (case.name, name)
