"""Hands cases to pytest."""

from collections.abc import Iterable, Mapping

import pytest

from testing.case import Case
from testing.gated_cases import GatedCase


def params(cases: Iterable[Case | GatedCase]) -> list:
  """A pytest parameter for each case, named by it.

  Cases that share a program carry the same xdist group, so that one process
  compiles it and no other does.
  """
  return [
    pytest.param(
      case, id=case.name, marks=pytest.mark.xdist_group(case.program_name)
    )
    for case in cases
  ]


def by_backend(
  metafunc: pytest.Metafunc, tables: Mapping[str, Iterable[Case | GatedCase]]
) -> None:
  """Gives a test that takes `case` the table of the session's backend.

  For `pytest_generate_tests`: nothing is collected only to be skipped.
  """
  if "case" in metafunc.fixturenames:
    table = tables[metafunc.config.getoption("backend")]
    metafunc.parametrize("case", params(table))


def over(cases: Iterable[Case]) -> pytest.MarkDecorator:
  """Runs a test that takes `case` for each of `cases`."""
  return pytest.mark.parametrize("case", params(cases))
