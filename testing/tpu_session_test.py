"""What a session on a TPU says and how it ends, on TPUs that are not there.

pytest runs as in a target, in a process of its own, in which jax finds a TPU of
some kind and the kernels that would run on it are interpreted.
"""

import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from testing import runner

_ROOT = pathlib.Path(runner.__file__).absolute().parent.parent

# A plugin for the process.
FAKE = """
import functools, os, types
import jax
from gmm import kernels
from gmm.kernels import chip

kind = os.environ["KIND"]
devices = jax.devices

def with_tpu(platform=None):
  if platform != "tpu":
    return devices(platform)
  return [types.SimpleNamespace(platform="tpu", device_kind=kind)]

jax.devices = with_tpu
chip._device_kind = lambda: kind
kernels.gmm_v2 = functools.partial(kernels.gmm_v2, interpret=True)
"""

# As forward_test.py, with few cases and one product.
PRODUCTS = """
from testing import harness, parametrize
from testing.case import Case

SHARED = {"m": 16, "k": 32, "n": 24, "group_sizes": (5, 0, 9)}
CASES = [
  Case(name=dtypes, dtypes=dtypes, **SHARED)
  for dtypes in ("bf16", "f32_f4", "f16")
]

@parametrize.over(CASES)
def test_products(case, backend, unless_refused):
  with unless_refused(case):
    results = harness.run_products(case, backend, names=("out",))
    harness.check(case, results)

def test_nothing_on_the_backend():
  pass
"""

LIES = """
import dataclasses
import pytest
from testing.case import Case
from testing.gated_cases import GatedCase

PLAIN = Case(name="a", m=8, k=8, n=8, group_sizes=(8,), dtypes="bf16")
FLOAT4 = dataclasses.replace(PLAIN, dtypes="bf16_f4")
FLOAT16 = dataclasses.replace(PLAIN, dtypes="bf16_to_f16")

def test_runs_and_must_not(unless_refused):
  with unless_refused(FLOAT4):
    pass

def test_refused_in_other_words(unless_refused):
  with unless_refused(GatedCase(case=FLOAT4, op="gated")):
    raise NotImplementedError("float4_e2m1fn: not today")

def test_another_error(unless_refused):
  with unless_refused(FLOAT4):
    raise ValueError("float4_e2m1fn on v6e")

def test_refused_and_must_not(unless_refused):
  with unless_refused(PLAIN):
    raise NotImplementedError("bfloat16 on v6e")

@pytest.mark.parametrize("case", [FLOAT4, GatedCase(case=FLOAT4, op="split")])
def test_right(case, unless_refused):
  with unless_refused(case):
    raise NotImplementedError("no float4_e2m1fn on v6e")

def test_right_too(unless_refused):
  with unless_refused(FLOAT16):
    raise NotImplementedError("no float16 anywhere")
  with unless_refused(PLAIN):
    pass
"""


@pytest.fixture(name="run")
def _run(tmp_path):
  """Runs a source text on a kind of TPU: (exit status, output)."""
  for name in ("pyproject.toml", "gmm", "reference", "testing"):
    (tmp_path / name).symlink_to(_ROOT / name)
  (tmp_path / "fake_tpu.py").write_text(FAKE)

  def run(source, kind, *arguments, **environ):
    (tmp_path / "sample_test.py").write_text(source)
    command = ["testing/runner.py", "sample_test.py", "-pfake_tpu"]
    # Not what Bazel, pytest or a caller say about the test that runs here.
    own = ("TEST_", "TESTBRIDGE_", "XML_", "PYTEST_", "GMM_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    fixed = {"KIND": kind, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
      [sys.executable, *command, "--backend=pallas", *arguments],
      env=inherited | fixed | environ,
      cwd=tmp_path,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=200,
      check=False,
    )
    return result.returncode, result.stdout

  return run


def outcomes(output):
  """Outcome by the name of a test, after -rA."""
  lines = re.findall(
    r"^(PASSED|FAILED|ERROR|SKIPPED) \S*::(\S+)", output, re.MULTILINE
  )
  return {name: outcome for outcome, name in lines}


@pytest.mark.parametrize(
  ("kind", "chip", "counts", "arguments"),
  [
    ("TPU v6 lite", "v6e", "1 run, 2 refused", []),
    ("TPU7x", "tpu7x", "2 run, 1 refused", []),
    ("TPU v4", "v4", "0 run, 2 refused", ["-k", "not bf16"]),
  ],
)
def test_what_a_chip_runs_and_refuses(
  run, tmp_path, kind, chip, counts, arguments
):
  xml = tmp_path / "out.xml"
  environ = {"GMM_EXPECT_CHIP": chip, "XML_OUTPUT_FILE": str(xml)}
  status, output = run(PRODUCTS, kind, *arguments, **environ)
  assert status == 0, output
  assert "passed" in output
  assert "skipped" not in output
  lines = output.splitlines()
  assert f"TPU {chip}: {counts}" in lines
  assert "sample_test.py::test_products[f16]: no float16" in lines
  line = f"sample_test.py::test_products[f32_f4]: no float4_e2m1fn on {chip}"
  assert (line in lines) == (chip != "tpu7x")
  said = {
    case.get("name"): {p.get("name"): p.get("value") for p in case[0]}
    for case in ET.parse(xml).iter("testcase")
    if len(case)
  }
  where = {"backend": f"pallas on {chip}"}
  assert said.get("test_products[bf16]", where) == where
  assert said["test_products[f16]"] == where | {"refused": "float16"}
  assert "test_nothing_on_the_backend" not in said


def test_what_is_not_refused_as_it_has_to_be_fails(run):
  status, output = run(LIES, "TPU v6 lite", "-rA")
  assert status == 1
  assert outcomes(output) == {
    "test_runs_and_must_not": "FAILED",
    "test_refused_in_other_words": "FAILED",
    "test_another_error": "FAILED",
    "test_refused_and_must_not": "FAILED",
    "test_right[case0]": "PASSED",
    "test_right[case1]": "PASSED",
    "test_right_too": "PASSED",
  }
  assert "float4_e2m1fn on v6e has to be refused, and it ran" in output
  assert "does not name v6e: float4_e2m1fn: not today" in output
  assert "TPU v6e: 4 run, 3 refused" in output.splitlines()


def test_another_chip_than_expected_fails_in_one_line(run):
  status, output = run(LIES, "TPU v5 lite", GMM_EXPECT_CHIP="v6e")
  assert status not in (0, 1)
  (line,) = filter(None, output.splitlines())
  assert line == (
    "ERROR: --backend=pallas, GMM_EXPECT_CHIP=v6e: the attached TPU is a "
    "'TPU v5 lite', which is v5e; v6e was expected"
  )
