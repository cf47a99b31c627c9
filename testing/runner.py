"""The main program of every test target: pytest that obeys Bazel.

Bazel tells a test its shard, its filter, where to write XML and where to put
temporary files through the environment, which pytest does not read. Arguments
of the target and `--test_arg` go to pytest as they are:

    bazel test //gmm:vjp_test_xla --test_filter=ragged --test_arg=-x
"""

import os
import pathlib
import sys
from collections.abc import Mapping, Sequence

import pytest

# Not resolved: under Bazel this is the runfiles tree, which has no more than
# the target's own dependencies.
_ROOT = pathlib.Path(__file__).absolute().parent.parent


def pytest_arguments(
  environ: Mapping[str, str], arguments: Sequence[str]
) -> list[str]:
  """The arguments for pytest, from Bazel's environment and the target's."""
  result = [
    f"--config-file={_ROOT / 'pyproject.toml'}",
    f"--rootdir={_ROOT}",
    "-ptesting.plugin",
    "-ptesting.selection",
    "-pno:cacheprovider",
    "--durations=5",
    "--durations-min=1",
  ]
  if "TEST_TMPDIR" in environ:
    # A folder of its own, since pytest empties it first.
    result.append(f"--basetemp={environ['TEST_TMPDIR']}/pytest")
  if "XML_OUTPUT_FILE" in environ:
    result.append(f"--junitxml={environ['XML_OUTPUT_FILE']}")
  if environ.get("TESTBRIDGE_TEST_ONLY"):
    result.append(f"--test-filter={environ['TESTBRIDGE_TEST_ONLY']}")
  if "TEST_TOTAL_SHARDS" in environ:
    shard = f"{environ['TEST_SHARD_INDEX']}/{environ['TEST_TOTAL_SHARDS']}"
    result.append(f"--shard={shard}")
  if any(a.startswith(("-n", "--numprocesses")) for a in arguments):
    result.append("--dist=loadgroup")
  return result + list(arguments)


def main() -> int:
  """Runs pytest on this program's arguments; returns its exit status."""
  status_file = os.environ.get("TEST_SHARD_STATUS_FILE")
  if status_file:  # Tells Bazel that we know about shards.
    pathlib.Path(status_file).touch()
  # Python puts this file's folder first, where our modules could hide others.
  sys.path[0] = str(_ROOT)
  # Here and in the processes of xdist: sources may be read-only.
  sys.dont_write_bytecode = True
  os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
  return int(pytest.main(pytest_arguments(os.environ, sys.argv[1:])))


if __name__ == "__main__":
  sys.exit(main())
