"""Runs the runner as Bazel does, on small test files made here."""

import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from testing import runner

_ROOT = pathlib.Path(runner.__file__).absolute().parent.parent

SAMPLE = """
import pytest

@pytest.mark.parametrize("case", ["equal", "ragged"])
def test_forward(case):
  pass

def test_backend(backend):
  assert backend == "interpret"
"""

GROUPED = """
import pytest

@pytest.mark.parametrize("i", range(3))
@pytest.mark.parametrize(
  "key", [pytest.param(k, marks=pytest.mark.xdist_group(k)) for k in "abcd"])
def test_case(key, i):
  print(f"ran {key}{i}")
"""


@pytest.fixture(name="run")
def _run(tmp_path):
  """Runs a source text; returns the exit status and the output."""
  # A tree of links with the test in it, as Bazel's runfiles are.
  for name in ("pyproject.toml", "gmm", "testing"):
    (tmp_path / name).symlink_to(_ROOT / name)

  def run(source, *arguments, **bazel):
    (tmp_path / "sample_test.py").write_text(source)
    # Not what Bazel or pytest say about the test that runs here.
    own = ("TEST_", "TESTBRIDGE_", "XML_", "PYTEST_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    result = subprocess.run(
      [sys.executable, "testing/runner.py", "sample_test.py", *arguments],
      env=environ | bazel,
      cwd=tmp_path,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=120,
      check=False,
    )
    return result.returncode, result.stdout

  return run


def _ran(output):
  return re.findall(r"ran (\w+)", output)


def test_passes_and_writes_xml(run, tmp_path):
  xml = tmp_path / "out.xml"
  status, output = run(SAMPLE, XML_OUTPUT_FILE=str(xml))
  assert status == 0, output
  assert "3 passed" in output
  names = [case.get("name") for case in ET.parse(xml).iter("testcase")]
  assert names == [
    "test_forward[equal]",
    "test_forward[ragged]",
    "test_backend",
  ]


def test_a_failing_test_fails(run, tmp_path):
  xml = tmp_path / "out.xml"
  source = "def test_it():\n  assert 1 == 2, 'on purpose'\n"
  status, output = run(source, XML_OUTPUT_FILE=str(xml))
  assert status == 1
  assert "on purpose" in output
  assert "on purpose" in xml.read_text()


def test_a_file_that_does_not_import_fails(run):
  status, output = run("import no_such_module\n")
  assert status != 0
  assert "no_such_module" in output
  assert "has no tests" not in output


def test_a_warning_fails(run):
  source = "import warnings\ndef test_it():\n  warnings.warn('loud')\n"
  assert run(source)[0] == 1


def test_a_file_without_tests_fails(run):
  status, output = run("x = 1\n")
  assert status == 1
  assert "ERROR: this target has no tests" in output


@pytest.mark.parametrize(
  ("pattern", "passed"),
  [
    ("ragged", 1),
    ("test_forward", 2),
    ("sample_test.py::test_forward", 2),
    ("sample_test.py::test_forward[equal]", 1),
    ("test_*e*", 3),
  ],
)
def test_filter(run, pattern, passed):
  status, output = run(SAMPLE, TESTBRIDGE_TEST_ONLY=pattern)
  assert status == 0, output
  assert f"{passed} passed" in output


def test_a_filter_that_matches_nothing_fails(run):
  status, output = run(SAMPLE, TESTBRIDGE_TEST_ONLY="nowhere")
  assert status == 1
  line = "ERROR: --test_filter=nowhere matches none of this target's 3 tests"
  assert line in output


def test_shards_run_each_test_once_and_groups_whole(run, tmp_path):
  status_file = tmp_path / "shard"
  seen = []
  for index in range(3):
    status_file.unlink(missing_ok=True)
    status, output = run(
      GROUPED,
      "-s",
      TEST_TOTAL_SHARDS="3",
      TEST_SHARD_INDEX=str(index),
      TEST_SHARD_STATUS_FILE=str(status_file),
    )
    assert status == 0, output
    assert status_file.exists()
    seen.append(_ran(output))
  assert sorted(sum(seen, [])) == sorted(
    f"{k}{i}" for k in "abcd" for i in range(3)
  )
  groups = [{name[0] for name in part} for part in seen]
  assert sorted(len(part) for part in groups) == [1, 1, 2]


@pytest.mark.parametrize("arguments", [[], ["-n2"]])
def test_an_empty_shard_passes(run, arguments):
  status, output = run(
    SAMPLE, *arguments, TEST_TOTAL_SHARDS="9", TEST_SHARD_INDEX="8"
  )
  assert status == 0, output


@pytest.mark.parametrize("pattern", ["nowhere", "a0"])
def test_an_empty_filter_fails_in_every_shard(run, pattern):
  for index in range(2):
    status, output = run(
      GROUPED,
      TESTBRIDGE_TEST_ONLY=pattern,
      TEST_TOTAL_SHARDS="2",
      TEST_SHARD_INDEX=str(index),
    )
    assert status == 1, output
    assert "matches none of this target's 12 tests" in output


def test_workers_keep_groups_whole(run, tmp_path):
  source = """
import os, pathlib
import pytest

@pytest.mark.parametrize("i", range(4))
@pytest.mark.parametrize(
  "key", [pytest.param(k, marks=pytest.mark.xdist_group(k)) for k in "ab"])
def test_case(key, i):
  worker = os.environ["PYTEST_XDIST_WORKER"]
  pathlib.Path(os.environ["SEEN"], f"{key} {worker}").touch()
"""
  seen = tmp_path / "seen"
  seen.mkdir()
  status, output = run(source, "-n2", SEEN=str(seen))
  assert status == 0, output
  assert "8 passed" in output
  assert sorted(path.name[0] for path in seen.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
  ("bazel", "passed", "status"),
  [
    ({"TESTBRIDGE_TEST_ONLY": "ragged"}, "1 passed", 0),
    ({"TESTBRIDGE_TEST_ONLY": "nowhere"}, "matches none", 1),
    ({"TEST_TOTAL_SHARDS": "3", "TEST_SHARD_INDEX": "0"}, "1 passed", 0),
  ],
)
def test_workers_obey_filter_and_shard(run, bazel, passed, status):
  actual, output = run(SAMPLE, "-n2", **bazel)
  assert actual == status, output
  assert passed in output


def test_arguments_of_the_target_reach_pytest(run):
  status, output = run(SAMPLE, "-k", "equal")
  assert status == 0, output
  assert "1 passed, 2 deselected" in output


def test_temporary_files_are_bazels(run, tmp_path):
  source = "def test_it(tmp_path):\n  print('at', tmp_path)\n"
  folder = tmp_path / "bazel"
  folder.mkdir()
  _, output = run(source, "-s", TEST_TMPDIR=str(folder))
  assert f"at {folder}/pytest/" in output


def test_cpu_backends_see_no_other_platform(run):
  source = """
import os

def test_it(backend):
  assert backend == "xla"
  assert os.environ["JAX_PLATFORMS"] == "cpu"
  assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
"""
  status, output = run(source, "--backend=xla", JAX_PLATFORMS="tpu")
  assert status == 0, output


def test_fast_compile_keeps_the_callers_flags(run):
  source = """
import os

def test_it():
  flags = os.environ["XLA_FLAGS"].split()
  assert flags[0] == "--xla_cpu_enable_fast_math=false"
  assert "--xla_backend_optimization_level=0" in flags
"""
  own = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}
  status, output = run(source, "--fast-compile", **own)
  assert status == 0, output


# A machine may have a TPU; a jax that is told to use the CPU has none.
@pytest.fixture(name="no_tpu")
def _no_tpu():
  return {"JAX_PLATFORMS": "cpu"}


def test_pallas_without_a_tpu_fails_in_one_line(run, no_tpu):
  status, output = run(SAMPLE, "--backend=pallas", **no_tpu)
  assert status != 0
  lines = [line for line in output.splitlines() if line.strip()]
  assert len(lines) == 1, output
  assert "needs an attached TPU, and jax finds none" in lines[0]
  assert "passed" not in output
  assert "skipped" not in output


def test_pallas_in_several_processes_is_refused(run):
  status, output = run(SAMPLE, "--backend=pallas", "-n2")
  assert status != 0
  assert "drop -n" in output
