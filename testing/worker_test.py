"""The Python that runs this has the packages of the lock file.

On a machine's own it always does. For a pool's workers (docs/tpu_pool.md) this
is the first test to run: it says which chip a worker has, and what its image
lacks.
"""

import importlib.metadata
import os
import pathlib
import sys

import pytest

from testing import worker

_LOCK = pathlib.Path(__file__).absolute().parent.parent / "requirements.lock"

_SMALL = """\
Some.Package==1.2 \\
    --hash=sha256:00
other==3.0 ; python_full_version < '3.0' \\
    --hash=sha256:01 \\
    --hash=sha256:02
other==4.0 ; python_full_version >= '3.0' \\
    --hash=sha256:03
"""


@pytest.mark.skipif(
  "TEST_TARGET" not in os.environ, reason="outside Bazel, any Python will do"
)
def test_this_python_has_what_is_locked():
  installed = {
    d.metadata["Name"]: d.version for d in importlib.metadata.distributions()
  }
  found = worker.differences(_LOCK.read_text(), installed)
  assert not found, f"{sys.executable} is not requirements.lock's: {found}"


@pytest.mark.parametrize(
  ("installed", "found"),
  [
    ({"some-package": "1.2", "other": "4.0", "more": "1"}, []),
    ({"some_package": "1.2.0", "Other": "4"}, []),
    (
      {"some-package": "1.3", "other": "3.0"},
      [
        "Some.Package==1.2: 1.3 is installed",
        "other==4.0: 3.0 is installed",
      ],
    ),
    ({"other": "4.0"}, ["Some.Package==1.2: not installed"]),
  ],
)
def test_differences(installed, found):
  assert worker.differences(_SMALL, installed) == found
