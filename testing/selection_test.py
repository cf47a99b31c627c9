import collections

import pytest

from testing import selection


@pytest.mark.parametrize(
  "pattern",
  [
    "ragged",
    "test_dlhs",
    "vjp_test.py",
    "vjp_test.py::test_dlhs",
    "gmm/vjp_test.py::test_dlhs",
    "::test_dlhs[ragged-bf16]",
    "test_dlhs[ragged-bf16]",
    "test_d*ragged",
    "vjp_test.py::test_d*bf1?]",
  ],
)
def test_pattern_names_the_test(pattern):
  assert selection.matches("gmm/vjp_test.py::test_dlhs[ragged-bf16]", pattern)


@pytest.mark.parametrize(
  "pattern",
  ["equal", "vjp_test.py::test_d", "::test_dlhs[ragged]", "test_d?ragged"],
)
def test_pattern_names_other_tests(pattern):
  node_id = "gmm/vjp_test.py::test_dlhs[ragged-bf16]"
  assert not selection.matches(node_id, pattern)


def test_pattern_names_all_of_a_class():
  assert selection.matches("a_test.py::TestNt::test_x", "a_test.py::TestNt")


GROUPS = [f"group {i}" for i in range(7) for _ in range(3 * i + 1)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 50])
def test_shards_keep_groups_whole_and_lose_nothing(count):
  of_item = selection.shards(GROUPS, count)
  assert len(of_item) == len(GROUPS)
  assert set(of_item) <= set(range(count))
  of_group = collections.defaultdict(set)
  for group, shard in zip(GROUPS, of_item, strict=True):
    of_group[group].add(shard)
  assert all(len(shards) == 1 for shards in of_group.values())


@pytest.mark.parametrize("count", [2, 3, 5])
def test_shards_differ_by_less_than_the_largest_group(count):
  loads = collections.Counter(selection.shards(GROUPS, count))
  largest = max(collections.Counter(GROUPS).values())
  assert max(loads.values()) - min(loads.values()) <= largest


def test_single_tests_are_dealt_evenly():
  loads = collections.Counter(selection.shards([str(i) for i in range(40)], 4))
  assert loads == {shard: 10 for shard in range(4)}
