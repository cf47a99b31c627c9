"""The whole bench: on a TPU with its gate, interpreted for its results."""

import json

import pytest

from testing import chip_at_hand
from tools import bench, bench_report

# The weight is most of what is moved, so that its copy tells.
SHAPES = {
  "pallas": ["--m", "1024", "--g", "32", "--k", "1024", "--n", "1024"],
  "interpret": ["--m", "24", "--g", "2", "--k", "40", "--n", "24"],
}
LEVELS = {"kernel", "offset", "vjp"}


@pytest.fixture(name="run", scope="module")
def _run(backend, tmp_path_factory):
  """Exit status of a run, what it stored, and where."""
  folder = tmp_path_factory.mktemp("bench")
  flags = [*SHAPES[backend], "--backend", backend, "--gate", "1.0"]
  if backend == "interpret":
    flags += ["--turns", "1", "--clock", "wall"]
  else:
    flags += ["--expect_chip", chip_at_hand.find()]
  path = folder / "run.json"
  status = bench.main([*flags, "--out", str(path)])
  return status, json.loads(path.read_text()), str(path)


def test_it_passes(run):
  assert run[0] == 0


def test_every_program_ran_and_is_right(run, backend):
  rows = run[1]["rows"]
  ours = {
    (row["level"], row["program"])
    for row in rows
    if not row["refused"] and row["right"]
  }
  want = {(level, p) for level in LEVELS for p in ("nt", "transpose")}
  assert want <= ours
  if backend == "interpret":
    assert {("kernel", "megablox"), ("kernel", "ragged_dot")} <= ours
  for row in rows:
    if row["program"] == "nt":
      against = [check.split(" against ")[1] for check in row["checks"]]
      results = 3 if row["level"] == "vjp" else 1
      assert len(against) == 2 * results
      assert sum(a.startswith("transpose:") for a in against) == results


def test_every_number_is_there(run, backend):
  for row in run[1]["rows"]:
    if row["refused"]:
      continue
    assert row["clock"] in ("profile", "wall")
    assert row["seconds"] > 0
    assert row["spread"] >= 0
    assert 0 < row["tflops"] and 0 < row["gbps"]
    has_model = row["program"] in ("nt", "transpose")
    assert (row["model_seconds"] is not None) == has_model
    if has_model:
      ratio = row["seconds"] / row["model_seconds"]
      assert row["over_model"] == pytest.approx(ratio)
  times = run[1]["times"]
  assert ("mean nothing" in times) == (backend == "interpret")


def test_it_can_be_compared_with_itself(run):
  _, stored, path = run
  rows = stored["rows"]
  assert bench_report.load(path) == stored
  wanted = {bench_report.key(row)[:2] for row in rows}
  assert len(wanted) == len(LEVELS)
  bench_report.check_comparable(stored, stored, sorted(wanted))
  lines = bench_report.comparison(rows, stored)
  assert len(lines) == 1 + sum(not row["refused"] for row in rows)
  assert all("1.000" in line for line in lines[1:])
