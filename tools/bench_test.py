"""The pieces of the bench, and what it says to bad input."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm.kernels import chip as chips
from gmm.timing import rates
from testing.workloads import Workload
from tools import (
  bench,
  bench_check,
  bench_clock,
  bench_estimate,
  bench_profile,
  bench_report,
)
from tools import bench_programs as programs
from tools import bench_shapes as shapes

OWN = ["--m", "24", "--g", "2", "--k", "40", "--n", "24"]
SHAPE = shapes.Shape(
  workload=Workload(name="own", m=24, g=3, k=40, n=16),
  pattern="given",
  sizes=(9, 0, 11),
)


def error_of(capsys, *flags):
  """The one line that a run ends with."""
  assert bench.main(flags) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("error: ")
  return line


# ---- bad input


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


STORED = {
  "version": 1,
  "chip": "v6e",
  "backend": "interpret",
  "rows": [{"shape": "other m=1", "level": "kernel", "program": "nt"}],
}


@pytest.mark.parametrize(
  ("text", "said"),
  [
    (None, "cannot be read: No such file"),
    ("{", "cannot be read: "),
    ("[1]", "is no run of the bench"),
    (json.dumps(STORED | {"version": 7}), "is of version 7; want 1"),
    (json.dumps(STORED), "is a run of other shapes: it has no own m=24"),
    (json.dumps(STORED | {"chip": "v4"}), "of chip v4; this one is of v6e"),
    (json.dumps(STORED | {"backend": "pallas"}), "a run of backend pallas"),
  ],
)
def test_a_stored_run_that_does_not_fit(capsys, tmp_path, text, said):
  path = tmp_path / "run.json"
  if text is not None:
    path.write_text(text)
  flags = [*OWN, "--backend", "interpret", "--against", str(path)]
  assert said in error_of(capsys, *flags)


def test_a_run_that_cannot_be_stored(capsys, tmp_path):
  (tmp_path / "file").write_text("")
  out = str(tmp_path / "file" / "run.json")
  flags = [*OWN, "--backend", "interpret", "--out", out]
  assert "cannot be written to" in error_of(capsys, *flags)


@pytest.mark.parametrize(
  ("flags", "said"),
  [
    (["--m", "8"], "give --k, --n, --g too"),
    ([*OWN, "--model", "all"], "drop --model"),
    (["--model", "gpt"], "known models: gemma4-26b"),
    ([*OWN, "--k", "0"], "`k` is 0; want 1 or more"),
    ([*OWN, "--group_sizes", "flat"], "want one of equal"),
    ([*OWN, "--group_sizes", "no.npy"], "cannot be read"),
  ],
)
def test_shapes_that_are_none(capsys, flags, said):
  assert said in error_of(capsys, "--backend", "interpret", *flags)


@pytest.mark.parametrize("sizes", [[30, 0], [-1, 4], [0, 0], [1, 2, 3]])
def test_sizes_that_do_not_fit(capsys, tmp_path, sizes):
  np.save(tmp_path / "sizes.npy", np.array(sizes))
  path = str(tmp_path / "sizes.npy")
  flags = [*OWN, "--backend", "interpret", "--group_sizes", path]
  assert "want 2 from 0 that add up to 1 to 24" in error_of(capsys, *flags)


# ---- shapes


def test_every_model_and_its_toy():
  no = dict.fromkeys("mgkn")
  found = shapes.chosen(model=None, own=no, patterns=["skew"], toy=False)
  names = [s.workload.name for s in found]
  assert names == ["gemma4-26b/wi", "gemma4-26b/wo"]
  every = shapes.chosen(
    model="all", own=no, patterns=["equal", "zipf"], toy=True
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


# ---- the gate


def row(program, seconds, **more):
  base = {
    "shape": "s",
    "level": "kernel",
    "program": program,
    "seconds": seconds,
    "clock": "wall",
    "refused": None,
    "checks": [],
  }
  return base | more


@pytest.mark.parametrize(
  ("transpose", "gate", "passes"),
  [(2.0, 1.0, True), (0.9, 1.0, False), (0.9, None, True), (1.2, 1.3, False)],
)
def test_the_gate(transpose, gate, passes):
  rows = [row("nt", 1.0), row("transpose", transpose), row("megablox", 0.1)]
  found = bench_report.failures(rows, gate, times_count=True)
  assert (not found) == passes
  assert not bench_report.failures(rows, gate, times_count=False)
  if not passes:
    assert f"takes {transpose:.3f} times as long as NT" in found[0]


def test_wrong_results_fail_without_a_gate():
  wrong = ["dlhs of nt against oracle: 3 of the bound, WRONG"]
  ours = row("nt", 1.0, checks=wrong)
  peer = row("megablox", 1.0, checks=wrong, refused="refused: no")
  (line,) = bench_report.failures([ours, peer], None, times_count=False)
  assert line.endswith("WRONG")
  refused = row("transpose", None, refused="refused: out of memory")
  (line,) = bench_report.failures([refused], None, times_count=False)
  assert "transpose did not run: refused: out of memory" in line


# ---- clocks

TRACE = """
planes { name: "/host:CPU" lines { name: "XLA Modules" } }
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
