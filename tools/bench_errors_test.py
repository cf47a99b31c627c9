"""What the bench says to bad input: one line, and it does not pass."""

import json
import types

import jax
import numpy as np
import pytest

from testing.workloads import Workload
from tools import bench
from tools import bench_shapes as shapes

OWN = ["--m", "24", "--g", "2", "--k", "40", "--n", "24"]
INTERPRET = [*OWN, "--backend", "interpret"]


def error_of(capsys, *flags, status=1):
  """The one line that a run ends with."""
  try:
    assert bench.main(flags) == status
  except SystemExit as error:
    assert error.code == status
  said = capsys.readouterr()
  assert not said.out
  (line,) = said.err.splitlines()
  assert line.startswith("error: ")
  return line


def test_no_tpu(capsys, monkeypatch):
  def no_devices(platform=None):
    raise RuntimeError("Unknown backend:\n tpu")

  monkeypatch.setattr(jax, "devices", no_devices)
  line = error_of(capsys, *OWN)
  assert "jax finds none: Unknown backend: tpu" in line
  assert "`--backend interpret` runs the same program" in line


def fake_tpu(monkeypatch, kind):
  device = types.SimpleNamespace(device_kind=kind, platform="tpu")
  monkeypatch.setattr(jax, "devices", lambda platform=None: [device])


def test_another_chip_than_expected(capsys, monkeypatch):
  fake_tpu(monkeypatch, "TPU v5 lite")
  line = error_of(capsys, *OWN, "--expect_chip", "v6e")
  assert "is a 'TPU v5 lite', which is v5e; v6e was expected" in line


ROW = {
  "shape": "other m=1",
  "level": "kernel",
  "program": "nt",
  "refused": None,
  "clock": "wall",
  "seconds": 1.0,
}
STORED = {
  "version": 1,
  "chip": "v6e",
  "backend": "interpret",
  "dtype": "bfloat16",
  "rows": [ROW],
}
SAME = ROW | {"shape": "own m=24 g=2 k=40 n=24 skew"}


def without(run, name):
  return {key: value for key, value in run.items() if key != name}


@pytest.mark.parametrize(
  ("run", "said"),
  [
    (None, "cannot be read: No such file"),
    ("{", "cannot be read: "),
    (b"\xff\xfe", "cannot be read: "),
    ([1], "is no run of the bench"),
    (STORED | {"version": 7}, "is of version 7; want 1"),
    (without(STORED, "rows"), "is no whole run of the bench"),
    (without(STORED, "backend"), "is no whole run of the bench"),
    (STORED | {"rows": [1]}, "is no whole run of the bench"),
    (STORED | {"rows": {"a": 1}}, "is no whole run of the bench"),
    (STORED | {"rows": [without(ROW, "seconds")]}, "is no whole run"),
    (STORED | {"rows": [ROW | {"seconds": 0.0}]}, "is no whole run"),
    (STORED, "is a run of other shapes: it has no own m=24"),
    (STORED | {"rows": [SAME]}, "it has no own m=24 g=2 k=40 n=24 skew offset"),
    (STORED | {"rows": []}, "(but none)"),
    (STORED | {"chip": "v4"}, "of chip v4; this one is of v6e"),
    (STORED | {"backend": "pallas"}, "a run of backend pallas"),
    (STORED | {"dtype": "float32"}, "dtype float32; this one is of bfloat16"),
  ],
)
def test_a_stored_run_that_does_not_fit(capsys, tmp_path, run, said):
  path = tmp_path / "run.json"
  if isinstance(run, bytes):
    path.write_bytes(run)
  elif run is not None:
    path.write_text(run if isinstance(run, str) else json.dumps(run))
  assert said in error_of(capsys, *INTERPRET, "--against", str(path))


def test_a_folder_is_no_stored_run(capsys, tmp_path):
  line = error_of(capsys, *INTERPRET, "--against", str(tmp_path))
  assert line.endswith("cannot be read: Is a directory")


@pytest.mark.parametrize("out", ["file/run.json", "."])
def test_a_run_that_cannot_be_stored(capsys, tmp_path, out):
  (tmp_path / "file").write_text("")
  line = error_of(capsys, *INTERPRET, "--out", str(tmp_path / out))
  assert "cannot be written to" in line


def test_a_run_that_fails_leaves_the_stored_one(capsys, tmp_path, monkeypatch):
  def fail(*args):
    raise RuntimeError("the chip has gone")

  path, new = tmp_path / "run.json", tmp_path / "new.json"
  path.write_text("what was stored")
  monkeypatch.setattr(bench.bench_run.Runner, "rows", fail)
  for out in (path, new):
    assert bench.main([*INTERPRET, "--out", str(out)]) == 1
    assert "error: the chip has gone" in capsys.readouterr().err
  assert path.read_text() == "what was stored"
  assert not new.exists()


@pytest.mark.parametrize(
  ("given", "said"),
  [
    (["--m", "8"], "takes --m --k --n --g: give --k, --n, --g too"),
    ([*OWN, "--model", "all"], "drop --model"),
    (["--model", "gpt"], "known models: gemma4-26b"),
    ([*OWN, "--k", "0"], "`k` is 0; want 1 or more"),
    ([*OWN, "--m", "3000000000"], "`m` is 3000000000; want 1 or more, and"),
    ([*OWN, "--group_sizes", "flat"], "want one of equal"),
    ([*OWN, "--group_sizes", "no.npy"], "cannot be read"),
    ([*OWN, "--chip", "v9"], "`chip` is 'v9'; known chips: v4"),
    ([*OWN, "--gate", "nan"], "`gate` is nan; want a number above 0"),
    ([*OWN, "--gate", "-1"], "`gate` is -1.0; want a number above 0"),
    ([*OWN, "--out", ""], "`out` is empty; give it a value, or drop it"),
    ([*OWN, "--against", ""], "`against` is empty; give it a value"),
    ([*OWN, "--chip", ""], "`chip` is empty; give it a value"),
    (["--model", ""], "`model` is empty; give it a value"),
    ([*OWN, "--expect_chip", "v6e"], "means nothing with --backend interpret"),
    ([*OWN, "--compile_for", "v6e", "--gate", "1"], "nothing with --compile_"),
    ([*OWN, "--compile_for", "v6e", "v9"], "`chip` is 'v9'; known chips: v4"),
    ([*OWN, "--backend", "pallas", "--chip", "v6e"], "with --backend pallas"),
  ],
)
def test_flags_that_mean_nothing(capsys, given, said):
  assert said in error_of(capsys, "--backend", "interpret", *given)


@pytest.mark.parametrize(
  ("given", "said"),
  [
    (["--turns", "0"], "argument --turns: '0' is not a positive integer"),
    (["--sets", "1.5"], "argument --sets: '1.5' is not a positive integer"),
    (["--m", "x"], "argument --m: invalid int value: 'x'"),
    (["--gate", "fast"], "argument --gate: invalid float value: 'fast'"),
    (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
    (["--no_such_flag"], "unrecognized arguments: --no_such_flag"),
  ],
)
def test_flags_that_are_none(capsys, given, said):
  line = error_of(capsys, *given, status=2)
  assert said in line
  assert line.endswith("; --help lists the flags")


@pytest.mark.parametrize(
  "sizes",
  [
    [30, 0],
    [-1, 4],
    [0, 0],
    [1, 2, 3],
    [2**63 - 1, 2**63 - 1],
    np.array([2**64 - 1, 25], np.uint64),  # their sum wraps to 24
  ],
)
def test_sizes_that_do_not_fit(capsys, tmp_path, sizes):
  np.save(tmp_path / "sizes.npy", np.array(sizes))
  path = str(tmp_path / "sizes.npy")
  line = error_of(capsys, *INTERPRET, "--group_sizes", path)
  assert "want 2 from 0 that add up to 1 to 24" in line


def test_sizes_that_leave_a_level_no_rows(capsys, tmp_path):
  path = str(tmp_path / "sizes.npy")
  np.save(path, np.array([24, 0, 0, 0]))
  own = [*INTERPRET, "--g", "4", "--group_sizes", path]
  line = error_of(capsys, *own)
  assert "have no rows at level 'offset'" in line
  assert "leave that level out of --level" in line
  # The other levels have them.
  said = error_of(
    capsys, *own, "--level", "kernel", "vjp", "--against", "no.json"
  )
  assert "`against` 'no.json' cannot be read" in said


@pytest.mark.parametrize(
  ("error", "status", "said"),
  [
    (KeyboardInterrupt(), 130, "error: interrupted"),
    (RuntimeError("callback: KeyboardInterrupt:"), 130, "error: interrupted"),
    (MemoryError(), 1, "error: MemoryError"),
    (OverflowError("too\n large"), 1, "error: too large"),
  ],
)
def test_a_run_that_ends_early(capsys, monkeypatch, error, status, said):
  def fail(*args):
    raise error

  monkeypatch.setattr(bench, "_target", fail)
  assert error_of(capsys, *INTERPRET, status=status) == said


@pytest.mark.parametrize(
  "text", [b"hello", b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00"]
)
def test_files_of_sizes_that_are_none(capsys, tmp_path, text):
  path = tmp_path / "sizes.npy"
  path.write_bytes(text)
  line = error_of(capsys, *INTERPRET, "--group_sizes", str(path))
  assert "sizes.npy' cannot be read: " in line


def test_an_archive_is_no_array(capsys, tmp_path):
  path = tmp_path / "sizes.npy"
  with path.open("wb") as file:
    np.savez(file, np.ones(2, int))
  line = error_of(capsys, *INTERPRET, "--group_sizes", str(path))
  assert "sizes.npy'" in line


def test_sizes_in_a_file_are_told_apart_by_what_it_holds(tmp_path):
  keys = set()
  for sizes in ([20, 4], [20, 4], [4, 20]):
    np.save(tmp_path / "sizes.npy", np.array(sizes))
    (shape,) = shapes.chosen(
      model=None,
      own=Workload(name="own", m=24, g=2, k=8, n=8),
      patterns=[str(tmp_path / "sizes.npy")],
      toy=True,
    )
    keys.add(shape.key)
  assert len(keys) == 2
