"""The tests of a target that this process runs: Bazel's filter and shards.

A pytest plugin, which the runner loads with the two options below. Tests that
share an `xdist_group` share a compilation, so a shard takes a group whole.
"""

import collections
import fnmatch
from collections.abc import Generator, Sequence

import pytest

_COUNTS = pytest.StashKey[dict[str, int]]()
_WORKER_KEY = "gmm_selection"


def matches(node_id: str, pattern: str) -> bool:
  """Whether `--test_filter=pattern` names a test.

  Args:
    node_id: pytest's, such as `gmm/vjp_test.py::test_dlhs[ragged]`.
    pattern: a part of it. `*` and `?` stand for any text and any character;
      a pattern with `::` in it names whole tests, so that
      `vjp_test.py::test_d` is not `test_dlhs` but is `test_d[ragged]`.
  """
  # Brackets are part of the names of parametrised tests, not of a pattern.
  pattern = pattern.replace("[", "[[]")
  starts = fnmatch.fnmatchcase(node_id, f"*{pattern}*")
  if "::" not in pattern:
    return starts
  ends = ("", "[[]*", "::*")
  return any(fnmatch.fnmatchcase(node_id, f"*{pattern}{end}") for end in ends)


def shards(groups: Sequence[str], count: int) -> list[int]:
  """The shard of each test, given each test's group.

  Largest groups first, each to the shard that has the fewest tests: the shards
  differ by less than the largest group. The same list gives the same shards.
  """
  sizes = collections.Counter(groups)
  loads = [0] * count
  shard_of = {}
  # Sorting keeps the order of first appearance among groups of one size.
  for group, size in sorted(sizes.items(), key=lambda item: -item[1]):
    shard_of[group] = loads.index(min(loads))
    loads[shard_of[group]] += size
  return [shard_of[group] for group in groups]


def pytest_addoption(parser: pytest.Parser) -> None:
  """Adds the options that the runner passes on from Bazel."""
  group = parser.getgroup("gmm")
  group.addoption("--test-filter", metavar="PATTERN", help="see `matches`")
  group.addoption(
    "--shard",
    metavar="INDEX/COUNT",
    default="0/1",
    help="run one part of the tests; INDEX counts from 0",
  )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
  config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
  """Drops what the filter leaves out, then what other shards run."""
  counts = {"found": len(items)}
  pattern = config.getoption("test_filter")
  if pattern:
    _keep(config, items, [matches(item.nodeid, pattern) for item in items])
  yield  # Other plugins deselect here, by -k and -m.
  counts["selected"] = len(items)
  index, count = map(int, config.getoption("shard").split("/"))
  of_item = shards([_group(item) for item in items], count)
  _keep(config, items, [shard == index for shard in of_item])
  config.stash[_COUNTS] = counts


def _keep(
  config: pytest.Config, items: list[pytest.Item], wanted: Sequence[bool]
) -> None:
  pairs = list(zip(items, wanted, strict=True))
  dropped = [item for item, want in pairs if not want]
  if dropped:
    config.hook.pytest_deselected(items=dropped)
    items[:] = [item for item, want in pairs if want]


def _group(item: pytest.Item) -> str:
  marker = item.get_closest_marker("xdist_group")
  if marker is None:
    return item.nodeid
  return str(marker.args[0] if marker.args else marker.kwargs["name"])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
  """Lets an empty shard pass, and nothing else that ran no test."""
  config = session.config
  counts = config.stash.get(_COUNTS, None)
  if hasattr(config, "workeroutput"):
    config.workeroutput[_WORKER_KEY] = counts
  elif exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and counts:
    empty_shard = counts["selected"] > 0
    session.exitstatus = (
      pytest.ExitCode.OK if empty_shard else pytest.ExitCode.TESTS_FAILED
    )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
  """Takes the counts from a worker of xdist, which all count alike."""
  del error
  counts = getattr(node, "workeroutput", {}).get(_WORKER_KEY)
  if counts:
    node.config.stash[_COUNTS] = counts


def pytest_terminal_summary(
  terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
  """Says why nothing ran, where nothing did."""
  counts = config.stash.get(_COUNTS, None)
  if counts is None or terminalreporter.stats.get("error"):
    return
  if not counts["found"]:
    terminalreporter.write_line("ERROR: this target has no tests", red=True)
  elif not counts["selected"]:
    pattern = config.getoption("test_filter")
    what = f"--test_filter={pattern}" if pattern else "the selection"
    terminalreporter.write_line(
      f"ERROR: {what} matches none of this target's {counts['found']} tests",
      red=True,
    )
