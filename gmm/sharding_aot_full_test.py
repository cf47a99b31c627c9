"""All that `sharding_aot_test` has some of: each program for each topology."""

import pytest

from testing import sharding_aot

PLACES = [
  (recipe, chip, devices)
  for recipe in sharding_aot.RECIPES
  for chip in ("v6e", "tpu7x")
  for devices in (4, 8)
  if sharding_aot.readable(recipe, chip, devices)
]


@pytest.mark.parametrize(("recipe", "chip", "devices"), PLACES)
def test_no_weight_is_copied(recipe, chip, devices):
  assert not sharding_aot.faults(recipe, chip, devices)
