"""What runs where: the targets that need a TPU, and .bazelrc, which picks them.

Bazel itself says what it knows of every test, in every_test.xml.
"""

import dataclasses
import pathlib
import shlex
from xml.etree import ElementTree

import pytest

from gmm.kernels import chip

_ROOT = pathlib.Path(__file__).absolute().parents[2]

# Tests that take a TPU -> the shards that each makes in a pool. Each new
# kernel_test for "pallas" has its line here.
_IN_POOL = {
  "//gmm:equivalence_test": 2,
  "//gmm:existing_out_test": 1,
  "//gmm:forward_test": 4,
  "//gmm:gated_kernel_test": 2,
  "//gmm:gated_test": 1,
  "//gmm:quantised_backward_test": 1,
  "//gmm:quantised_lhs_test": 1,
  "//gmm:tgmm_scales_test": 1,
  "//gmm:vjp_test": 4,
  "//testing:pool_worker_test": 1,
  "//tools:bench_gate_test": 1,
}

# It asks whether a worker was set up as this machine sets itself up.
_WORKER_TEST = "//testing:pool_worker_test"

_HERE = [stem for stem in _IN_POOL if stem != _WORKER_TEST]

# Chip -> its workers: the property `Pool`, a tag, the end of a target's name.
_POOLS = {
  "v4": "tpu_v4",
  "v5e": "tpu_v5e",
  "v5p": "tpu_v5p",
  "v6e": "tpu_v6e",
  "tpu7x": "tpu7x",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
  """A test, as Bazel has it."""

  name: str
  size: str
  shards: int
  tags: frozenset[str]
  args: tuple[str, ...]
  env: dict[str, str]
  exec_properties: dict[str, str]


def _strings(rule, name):
  return [e.get("value") for e in rule.findall(f"list[@name='{name}']/string")]


def _pairs(rule, name):
  pairs = rule.findall(f"dict[@name='{name}']/pair")
  return {key.get("value"): value.get("value") for key, value in pairs}


def _value(rule, name, default=None):
  element = rule.find(f"*[@name='{name}']")
  return default if element is None else element.get("value")


def _rules():
  path = _ROOT / "tools" / "bazel" / "every_test.xml"
  if not path.exists():
    pytest.skip("every_test.xml is Bazel's: run //tools/bazel:tpu_targets_test")
  return ElementTree.parse(path).getroot().findall("rule")


@pytest.fixture(name="targets", scope="module")
def _targets():
  """Every test of the repository, by name."""
  found = {}
  for rule in _rules():
    if rule.get("class") == "py_test":
      found[rule.get("name")] = Target(
        name=rule.get("name"),
        size=_value(rule, "size"),
        shards=max(1, int(_value(rule, "shard_count", 1))),
        tags=frozenset(_strings(rule, "tags")),
        args=tuple(_strings(rule, "args")),
        env=_pairs(rule, "env"),
        exec_properties=_pairs(rule, "exec_properties"),
      )
  return found


def _flags(*configs):
  """What .bazelrc gives `bazel test` with these configs, the last one wins."""
  sections = ["build", "test"]
  sections += [f"{c}:{config}" for config in configs for c in sections[:2]]
  flags = {}
  for line in (_ROOT / ".bazelrc").read_text().splitlines():
    section, *words = shlex.split(line, comments=True) or [""]
    if section not in sections:
      continue
    for word in words:
      name, _, value = word.partition("=")
      flags[name] = value
  return flags


def _run(targets, tag_filters):
  """The names of the targets that a --test_tag_filters lets through."""
  filters = tag_filters.split(",")
  wanted = {f for f in filters if not f.startswith("-")}
  unwanted = {f[1:] for f in filters if f.startswith("-")}
  return {
    t.name
    for t in targets.values()
    if not t.tags & unwanted and (not wanted or t.tags & wanted)
  }


def test_every_chip_has_a_pool():
  assert _POOLS.keys() == chip.CHIPS.keys()


def test_the_targets_of_a_pool(targets):
  found = {n: t for n, t in targets.items() if "tpu_pool" in t.tags}
  assert found.keys() == {
    f"{stem}_{pool}" for stem in _IN_POOL for pool in _POOLS.values()
  }
  for stem, shards in _IN_POOL.items():
    for name, pool in _POOLS.items():
      target = found[f"{stem}_{pool}"]
      assert "--backend=pallas" in target.args, target
      assert target.tags == {"pallas", "tpu_pool", pool}, target
      assert target.exec_properties == {"Pool": pool}, target
      assert target.env == {"GMM_EXPECT_CHIP": name}, target
      quick = stem == _WORKER_TEST
      assert target.size == ("medium" if quick else "enormous"), target
      assert target.shards == shards, target


def test_the_targets_of_the_tpu_that_is_here(targets):
  found = {n: t for n, t in targets.items() if "tpu" in t.tags}
  assert found.keys() == {f"{stem}_tpu" for stem in _HERE}
  for target in found.values():
    assert "--backend=pallas" in target.args, target
    assert target.tags == {"pallas", "tpu"}, target
    assert not target.exec_properties, target
    assert not target.env, target  # Whatever chip is there.
    assert target.size == "enormous", target
    assert target.shards == 1, target


def test_no_other_target_asks_for_a_tpu(targets):
  others = [t for t in targets.values() if not t.tags & {"tpu", "tpu_pool"}]
  assert len(others) > 50
  for target in others:
    assert "--backend=pallas" not in target.args, target
    assert not target.tags & {"pallas", *_POOLS.values()}, target
    assert not target.exec_properties, target
    assert "GMM_EXPECT_CHIP" not in target.env, target


def test_each_config_runs_its_own_targets(targets):
  def names(*configs):
    return _run(targets, _flags(*configs)["--test_tag_filters"])

  here, pool = names("tpu"), names("tpu_pool")
  assert here == {f"{stem}_tpu" for stem in _HERE}
  assert pool == {f"{s}_{p}" for s in _IN_POOL for p in _POOLS.values()}
  assert names() == targets.keys() - here - pool


@pytest.mark.parametrize("pool", _POOLS.values())
def test_the_name_of_a_pool_filters_its_targets(targets, pool):
  assert _run(targets, pool) == {f"{stem}_{pool}" for stem in _IN_POOL}


def test_one_process_at_a_time_holds_the_tpu_here():
  flags = _flags("tpu")
  assert flags["--local_test_jobs"] == "1"
  assert flags["--strategy"] == "TestRunner=local"
  assert "--nocache_test_results" in flags
  assert "--remote_executor" not in flags


def test_a_pool_runs_all_tests_remotely_and_anew():
  flags = _flags("tpu_pool")
  assert flags["--strategy"] == "TestRunner=remote"
  assert flags["--extra_toolchains"] == "@tpu_pool//:toolchain"
  assert "--nocache_test_results" in flags
  assert "--noremote_accept_cached" in flags
  assert "--remote_local_fallback" not in flags
  assert "--local_test_jobs" not in flags


def test_a_pool_has_no_endpoint_until_one_is_named():
  host = _flags("tpu_pool")["--remote_executor"]
  assert host.startswith("grpc://") and host.endswith(".invalid")
  # The last line, so that a user's own endpoint wins.
  last = (_ROOT / ".bazelrc").read_text().splitlines()[-1]
  assert last == "try-import %workspace%/.bazelrc.user"


def test_the_python_of_a_pool_is_at_a_path_of_the_workers():
  (runtime,) = [r for r in _rules() if r.get("class") == "py_runtime"]
  assert _value(runtime, "interpreter_path").startswith("/")
