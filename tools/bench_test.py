"""The pieces of the bench."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm.kernels import chip as chips
from gmm.timing import rates
from testing.workloads import Workload
from tools import (
  bench_check,
  bench_clock,
  bench_estimate,
  bench_profile,
)
from tools import bench_programs as programs
from tools import bench_shapes as shapes

SHAPE = shapes.Shape(
  workload=Workload(name="own", m=24, g=3, k=40, n=16),
  pattern="given",
  sizes=(9, 0, 11),
)


# ---- shapes


def test_every_model_and_its_toy():
  found = shapes.chosen(model=None, own=None, patterns=["skew"], toy=False)
  names = [s.workload.name for s in found]
  assert names == ["gemma4-26b/wi", "gemma4-26b/wo"]
  every = shapes.chosen(
    model="all", own=None, patterns=["equal", "zipf"], toy=True
  )
  assert len(every) == 42
  assert max(s.workload.m * s.workload.k * s.workload.n for s in every) < 1e7
  assert all(sum(s.sizes) == s.workload.m for s in every)


def test_a_shard_has_half_of_the_groups():
  groups = shapes.groups(SHAPE, "offset")
  assert groups.sizes.tolist() == [5, 4, 0, 0, 6, 5]
  assert groups.local.tolist() == [4, 0, 0]
  assert (groups.offset, groups.first_row, groups.rows) == (1, 5, 4)
  of_row = bench_check.group_of_row(groups, 24)
  assert of_row.tolist() == [3] * 5 + [0] * 4 + [3] * 15


# ---- results


@pytest.fixture(name="right", scope="module")
def _right():
  """Operands of a step and its results, by another way than ours."""
  keys = jax.random.split(jax.random.key(0), 3)
  w = SHAPE.workload
  lhs = jax.random.normal(keys[0], (w.m, w.k), jnp.bfloat16)
  rhs = jax.random.normal(keys[1], (w.g, w.k, w.n), jnp.bfloat16)
  dout = jax.random.normal(keys[2], (w.m, w.n), jnp.bfloat16)
  # Rows of no group are for nobody to read.
  lhs, dout = (x.at[20:].set(jnp.nan) for x in (lhs, dout))
  of_row = np.repeat([0, 2, 3], [9, 11, 4])
  member = jnp.asarray(of_row[:, None] == np.arange(w.g), jnp.float32)
  x, y = (
    jnp.where(of_row[:, None] < 3, z, 0).astype(jnp.float32)
    for z in (lhs, dout)
  )
  weight = rhs.astype(jnp.float32)
  results = {
    "out": jnp.einsum("mg,mk,gkn->mn", member, x, weight),
    "dlhs": jnp.einsum("mg,mn,gkn->mk", member, y, weight),
    "drhs": jnp.einsum("mg,mk,mn->gkn", member, x, y),
  }
  results = {name: r.astype(jnp.bfloat16) for name, r in results.items()}
  operands = lhs, rhs, dout, jnp.asarray(SHAPE.sizes, jnp.int32)
  return operands, results


def test_what_is_right_passes(right):
  operands, results = right
  shares = bench_check.with_oracle(SHAPE, "vjp", operands, results)
  shares |= {
    f"other {name}": share
    for name, share in bench_check.each_other(
      SHAPE, "vjp", operands, (results, results)
    ).items()
  }
  assert len(shares) == 6
  assert all(0 <= share <= 1 for share in shares.values()), shares


@pytest.mark.parametrize("name", ["out", "dlhs", "drhs"])
@pytest.mark.parametrize("fault", ["off", "nan", "outside"])
def test_what_is_wrong_does_not(right, name, fault):
  operands, results = right
  # In the first row of the first group, or where exact zeros are.
  place = {"out": (0, 3), "dlhs": (0, 3), "drhs": (0, 1, 2)}[name]
  if fault == "outside":
    place = (1, 0, 0) if name == "drhs" else (22, 0)
  got = results[name]
  value = jnp.nan if fault == "nan" else got[place] + 1
  wrong = results | {name: got.at[place].set(value)}
  with_oracle = bench_check.with_oracle(SHAPE, "vjp", operands, wrong)
  assert not with_oracle[name] <= 1
  pair = results, wrong
  each_other = bench_check.each_other(SHAPE, "vjp", operands, pair)
  assert not each_other[name] <= 1
  assert all(each_other[n] <= 1 for n in results if n != name)


def test_rows_are_compared_in_chunks(right, monkeypatch):
  operands, results = right
  monkeypatch.setattr(bench_check, "_CHUNK", 7)
  for name, groups in (("out", (23, 0)), ("drhs", (2, 5, 5))):
    arrays = dict(zip(("lhs", "rhs", "dout"), operands, strict=False))
    of_row = bench_check.group_of_row(shapes.groups(SHAPE, "vjp"), 24)
    first = results[name]
    for other, wrong in ((first, False), (first.at[groups].add(1), True)):
      share = bench_check.compared(
        (first, other),
        bench_check.comparison(name, arrays),
        (of_row, operands[3]),
        name=name,
        dtype=jnp.bfloat16,
        on_tpu=False,
      )
      assert (not share <= 1) == wrong


# ---- clocks

TRACE = """
planes { name: "/device:TPU:1" lines { name: "XLA Modules" } }
planes { name: "/device:TPU:0 SparseCore 0" lines { name: "XLA Modules" } }
planes {
  name: "/device:TPU:0"
  lines {
    name: "XLA Modules"
    timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 0 duration_ps: 5000000 }
    events { metadata_id: 2 offset_ps: 6000000 duration_ps: 3000000 }
    events { metadata_id: 1 offset_ps: 10000000 duration_ps: 7000000 }
  }
  lines {
    name: "XLA Ops"
    timestamp_ns: 1000
    events { metadata_id: 3 offset_ps: 1000000 duration_ps: 4000000 }
    events { metadata_id: 4 offset_ps: 6000000 duration_ps: 2500000 }
    events { metadata_id: 3 offset_ps: 10500000 duration_ps: 6000000 }
  }
  event_metadata {
    key: 1 value { id: 1 name: "jit_bench_kernel_nt(123)" } }
  event_metadata {
    key: 2 value { id: 2 name: "jit_bench_kernel_transpose(7)" } }
  event_metadata {
    key: 3 value { id: 3 name: "%gmm_v2-nt-g_2.1 = bf16[24,40] call(%x)" } }
  event_metadata {
    key: 4 value { id: 4 name: "%copy.1 = bf16[2] copy(%gmm_v2-nn)" } }
}
"""


@pytest.fixture(name="modules")
def _modules():
  data = jax.profiler.ProfileData
  serialized = data.text_proto_to_serialized_xspace(TRACE)
  return bench_profile.read(data.from_serialized_xspace(serialized))


def contestant(name, run=None):
  module = f"jit_bench_kernel_{name}"
  return bench_clock.Contestant(name=name, module=module, run=run)


def test_a_profile(modules):
  assert set(modules) == {
    "jit_bench_kernel_nt",
    "jit_bench_kernel_transpose",
  }
  found, _ = bench_clock.of_profile([contestant("nt")], modules, 2)
  assert found["nt"].clock == "profile"
  assert found["nt"].seconds == pytest.approx((5e-6, 7e-6))
  assert found["nt"].kernel_seconds == pytest.approx((4e-6, 6e-6))
  assert found["nt"].median == pytest.approx(6e-6)


def test_a_profile_that_lacks_runs(modules):
  both = [contestant("nt"), contestant("transpose")]
  found, why = bench_clock.of_profile(both, modules, 2)
  assert found is None
  assert why == "the profile has 1 of 2 runs of jit_bench_kernel_transpose"
  nothing = bench_profile.Module(seconds=(1.0, 0.0), kernel_seconds=(0, 0))
  both = {one.module: nothing for one in both}
  found, why = bench_clock.of_profile([contestant("nt")], both, 2)
  assert found is None
  assert why.endswith("runs of jit_bench_kernel_nt that took no time")


def test_a_profile_in_a_file_of_the_profilers_own(tmp_path):
  # What it writes on a CPU, with the planes of a host, and a TPU's beside them.
  run = jax.jit(lambda x: x + 1)
  with jax.profiler.trace(str(tmp_path)):
    jax.block_until_ready(run(np.ones(3)))
  (path,) = tmp_path.rglob("*.xplane.pb")
  assert bench_profile.read_folder(str(tmp_path)) == {}
  data = jax.profiler.ProfileData
  with path.open("ab") as file:
    # Messages joined are one message with the planes of both.
    file.write(data.text_proto_to_serialized_xspace(TRACE))
  names = {plane.name for plane in data.from_file(str(path)).planes}
  assert {"/host:CPU", "/device:TPU:0", "/device:TPU:1"} <= names
  found = bench_profile.read_folder(str(tmp_path))
  nt = found["jit_bench_kernel_nt"]
  assert nt.seconds == pytest.approx((5e-6, 7e-6))
  assert nt.kernel_seconds == pytest.approx((4e-6, 6e-6))


def test_a_cpu_has_the_wall_clock_only():
  run = jax.jit(lambda x: x + 1)
  sets = [(np.ones(3),)]
  method = bench_clock.Method(clock="auto", turns=2, calls=1)
  found, why = bench_clock.times([contestant("nt", run)], sets, method)
  assert found["nt"].clock == "wall"
  assert len(found["nt"].seconds) == 2
  assert "no TPU's programs" in why
  method = bench_clock.Method(clock="profile", turns=2, calls=1)
  with pytest.raises(ValueError, match="`clock` is profile, but"):
    bench_clock.times([contestant("nt", run)], sets, method)


def test_no_trace(tmp_path):
  with pytest.raises(ValueError, match="wrote no trace"):
    bench_profile.read_folder(str(tmp_path))
  (tmp_path / "a.xplane.pb").write_bytes(b"\xff\xff\xff")
  with pytest.raises(ValueError, match="cannot be read"):
    bench_profile.read_folder(str(tmp_path))


def test_programs_and_operands_take_turns():
  seen = []
  both = [contestant(n, lambda x, n=n: seen.append((n, x))) for n in "ab"]
  method = bench_clock.Method(clock="wall", turns=3, calls=1)
  bench_clock.times(both, [(0,), (1,)], method)
  names = "".join(n for n, _ in seen)
  assert names == "abba" + "abbaab"
  inputs = [x for _, x in seen]
  assert inputs[4:] == [1, 0, 1, 0, 1, 0]


# ---- peers


@pytest.mark.parametrize(
  ("backend", "wanted"),
  [("pallas", ["mosaic", "mosaic_tpu_v2"]), ("interpret", ["xla", "xla"])],
)
def test_tokamax_is_asked_for_its_own_kernels(monkeypatch, backend, wanted):
  # Its function, as far as the bench calls it.
  asked = []

  def ragged_dot(lhs, rhs, group_sizes, *, preferred_element_type, **more):
    asked.append(more.pop("implementation"))
    assert not more
    out = jax.lax.ragged_dot(lhs, rhs, group_sizes)
    return out.astype(preferred_element_type)

  module = types.SimpleNamespace(ragged_dot=ragged_dot)
  monkeypatch.setitem(sys.modules, "tokamax", module)
  target = programs.Target(backend=backend, chip="v6e", dtype="bfloat16")
  names = ("tokamax", "tokamax_v2")
  specs = programs.specs(SHAPE.workload, "kernel", "bfloat16")
  for program in programs.peers("kernel", names, target):
    dlhs = jax.eval_shape(program.fn, *specs)
    assert (dlhs.shape, dlhs.dtype) == ((24, 40), jnp.bfloat16)
  assert asked == wanted


def test_peers_that_are_not_installed(monkeypatch):
  # None is what Python takes for a module that is not there.
  monkeypatch.setitem(sys.modules, "tokamax", None)
  monkeypatch.setattr(programs, "_MEGABLOX", "no_such_package.megablox")
  assert programs.importable_peers() == ("ragged_dot",)
  target = programs.Target(backend="pallas", chip="v6e", dtype="bfloat16")
  specs = programs.specs(SHAPE.workload, "kernel", "bfloat16")
  for program in programs.peers("kernel", ("tokamax", "megablox"), target):
    with pytest.raises(ImportError):
      jax.eval_shape(program.fn, *specs)


# ---- the model


def test_the_estimate_of_the_transpose_has_the_copy():
  target = programs.Target(
    backend="pallas", chip=chips.DEFAULT, dtype="bfloat16"
  )
  w = Workload(name="own", m=1024, g=8, k=512, n=512)
  shape = shapes.Shape(workload=w, pattern="equal", sizes=(128,) * 8)
  estimator = bench_estimate.Estimator(target, None, print)
  nt, transpose, peer = (
    estimator.of(shape, "kernel", name)
    for name in ("nt", "transpose", "megablox")
  )
  assert nt.flops == 2 * 1024 * 512 * 512 == transpose.flops
  copy = rates.copy_seconds(chips.DEFAULT, 8 * 512 * 512 * 2)
  # A square weight: the forward kernel does the same work.
  assert transpose.seconds == pytest.approx(nt.seconds + copy, rel=0.2)
  assert transpose.seconds > nt.seconds
  assert peer.seconds is None
  step = estimator.of(shape, "vjp", "nt")
  assert step.flops == 3 * nt.flops
  assert estimator.of(shape, "offset", "nt").flops == nt.flops / 2
