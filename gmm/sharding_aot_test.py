"""docs/sharding.md's programs, compiled for TPUs: no weight is copied.

The collectives move weights, and nothing else does. Each program with its
gradients is compiled for a chip or two; `sharding_aot_full_test` has the rest.
"""

import pytest

from testing import sharding_aot

PLACES = [
  ("expert_parallel", "v6e", 8),
  ("fsdp", "tpu7x", 8),
  ("experts_in_shards", "tpu7x", 4),
  ("tensor_parallel", "v6e", 4),
  ("tokens_exchanged", "v6e", 8),
  ("tokens_exchanged", "tpu7x", 4),
]


@pytest.mark.parametrize(("recipe", "chip", "devices"), PLACES)
def test_no_weight_is_copied(recipe, chip, devices):
  if not sharding_aot.readable(recipe, chip, devices):
    chip, devices = ("v6e", 4) if recipe == "tokens_exchanged" else (chip, 4)
  assert not sharding_aot.faults(recipe, chip, devices)


def test_shards_of_few_lanes_are_copied():
  """The check can fail: "auto" takes k for the lanes of so narrow a shard."""
  copies, _ = sharding_aot.weight_copies("tensor_parallel", "v6e", 4, lanes=64)
  assert copies
