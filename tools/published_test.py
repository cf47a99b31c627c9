"""The published times, and how near the model comes to them."""

import pytest

from gmm.kernels import chip as chips
from tools import published


def test_copies_are_near_what_was_measured():
  rows = [r for r in published.rows() if r.same_program]
  assert len(rows) == 4
  for row in rows:
    assert 0.85 < row.ratio < 1.15, row
  *tokamax, gemma = rows
  assert [round(r.measured) for r in tokamax] == [1149, 1149, 1123]
  weight = 128 * 3072 * 2048 * 2
  assert tokamax[0].model == pytest.approx(2e6 * weight / (0.7 * 3.7e12))
  assert gemma.model == pytest.approx(90 * 2e3 * 507510784 / (0.7 * 1.64e12))


def test_another_kernel_is_said_to_be_one():
  others = [r for r in published.rows() if not r.same_program]
  assert [r.measured for r in others] == [1065.6, 1317.5, 1304.7]
  assert all(0.5 < r.ratio < 1.5 for r in others)
  text = published.table()
  marked = [line for line in text.splitlines() if " *" in line]
  assert len(marked) == len(others)
  assert "Measured: Tokamax's kernel. Model: ours" in text
  assert "MXU cycles only" in text


def test_the_table_has_every_row():
  text = published.table()
  for row in published.rows():
    assert row.what in text
    assert f"{row.model:.1f} {row.unit}" in text
    assert row.source in text


def test_constants_of_every_chip():
  lines = published.constants().splitlines()
  assert [line.split()[0] for line in lines[1:-1]] == list(chips.CHIPS)
  assert lines[-1].endswith("A call costs 3 us.")
