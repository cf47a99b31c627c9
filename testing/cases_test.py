"""The table is what it says: large, named, covering, and cheap to compile."""

import collections
import os
import subprocess
import sys

import pytest

from testing import case as case_lib
from testing import cases, covering, patterns


def test_it_is_large_and_every_name_is_its_own():
  names = [case.name for case in cases.CASES]
  assert len(names) >= 300
  assert len(set(names)) == len(names)
  assert all(name.isascii() and " " not in name for name in names)


def test_every_pair_of_choices_meets():
  met = set()
  for row in cases.designed_rows():
    met |= covering.pairs_of(row)
  factors = {
    **cases.PROGRAM_FACTORS,
    "pattern": tuple(patterns.PATTERNS),
    "position": tuple(patterns.POSITIONS),
    "poison": ("nan", "inf", "huge"),
  }
  placed = ("offset", "position")
  missing = {
    pair
    for pair in covering.all_pairs(factors) - met
    # Where there is no offset there is no position.
    if not (tuple(name for name, _ in pair) == placed and pair[0][1] == "none")
  }
  assert not missing


@pytest.mark.parametrize("seed", ["1", "2"])
def test_it_is_the_same_in_every_process(seed):
  # xdist and Bazel's shards split the table, so they must see the same one.
  script = (
    "from testing import cases; print(*(c.name for c in cases.CASES), sep=',')"
  )
  env = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}
  names = subprocess.check_output(
    [sys.executable, "-c", script], env=os.environ | env, text=True
  )
  assert names.strip() == ",".join(case.name for case in cases.CASES)


def test_cases_share_programs():
  programs = collections.Counter(c.program for c in cases.CASES)
  names = collections.Counter(c.program_name for c in cases.CASES)
  assert sorted(programs.values()) == sorted(names.values())
  assert len(programs) <= 140


def test_a_program_does_not_depend_on_what_is_known_at_run_time():
  case = case_lib.Case(
    name="a", m=8, k=8, n=8, group_sizes=(3, 5), num_groups=1, group_offset=1
  )
  other = case_lib.Case(
    name="b",
    m=8,
    k=8,
    n=8,
    group_sizes=(8, 0),
    num_groups=1,
    group_offset=0,
    poison="inf",
  )
  assert case.program == other.program
  assert case.program_name == other.program_name


def test_a_static_offset_is_part_of_the_program():
  options = {"m": 8, "k": 8, "n": 8, "group_sizes": (3, 5), "num_groups": 1}
  programs = {
    case_lib.Case(
      name="", group_offset=offset, offset_form=form, **options
    ).program
    for offset in (0, 1)
    for form in ("int", "array", "traced", "traced_1")
  }
  assert len(programs) == 6


def test_patterns_are_what_they_are_called():
  m, g = 77, 5
  sizes = {name: make(m, g) for name, make in patterns.PATTERNS.items()}
  assert all(len(s) == g for s in sizes.values())
  for name in ("equal", "ragged", "off_block", "empty_first", "empty_last"):
    assert sum(sizes[name]) == m, name
    assert min(sizes[name]) >= 0, name
  assert set(sizes["all_ones"]) == {1}
  assert sizes["empty_first"][:2] == sizes["empty_last"][-2:] == (0, 0)
  assert sizes["empty_runs"][1:3] == (0, 0)
  assert sorted(sizes["one_takes_all"]) == [0] * (g - 1) + [m]
  assert sum(sizes["one_row"]) == 1
  assert 0 < sum(sizes["short"]) < m
  assert sum(sizes["too_many"]) > m
  assert sum(sizes["sum_wraps"]) > 2**31
  assert min(sizes["negative"]) < 0
  inner = [sum(sizes["off_block"][:i]) for i in range(1, g)]
  assert all(bound % 8 for bound in inner)
  assert all(size % 8 == 0 for size in sizes["on_block"])


def test_positions_are_inside_where_they_say():
  g, g_total = 3, 8
  place = {name: f(g, g_total) for name, f in patterns.POSITIONS.items()}
  assert place["first"] == 0 < place["middle"] < place["last"] == g_total - g
  assert place["last"] < place["hanging"] < g_total <= place["beyond"]
  assert place["before"] < 0
