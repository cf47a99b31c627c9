"""The kernels compile for every chip, and to what their plans promise.

The whole TPU compiler runs, on a machine without a TPU. `aot_full_test` takes
every combination of what is covered pairwise here.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from gmm import aot, ops
from gmm.kernels import chip as chips
from testing import aot_cases, aot_checks

MOST_COMPILES = 40
CASES = aot_cases.designed()


@pytest.fixture(scope="module")
def compile_program():
  with aot.scheduler(timeout=300) as compile_program:
    yield compile_program


def test_the_table():
  assert len(CASES) <= MOST_COMPILES
  assert {case.chip for case in CASES} == set(chips.CHIPS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernel(case, compile_program):
  aot_checks.check(case, aot_checks.compiled(case, compile_program))


# ---- schedules


def small(mode="nn", **options):
  sizes = {"m": 512, "g": 4, "k": 256, "n": 128, "chip": "v6e"}
  return aot.product(mode, **(sizes | options))


@pytest.fixture
def temporary(monkeypatch, tmp_path):
  """Where temporary folders are made."""
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  return tmp_path


def test_a_program_of_several_kernels(temporary):
  def step(lhs, weight, sizes, dout):
    config = ops.Config(chip="v6e")
    out, vjp = jax.vjp(
      lambda lhs, weight: ops.gmm(lhs, weight, sizes, config=config),
      lhs,
      weight,
    )
    return out, *vjp(dout)

  specs = (*small().specs, aot.spec((512, 128), jnp.bfloat16))
  schedules = aot.schedule(step, *specs, chip="v6e")
  assert not os.listdir(temporary)
  kinds = [s.kernel.split("-g_")[0] for s in schedules]
  assert sorted(kinds) == ["gmm_v2-nn", "gmm_v2-nt", "tgmm_v2-tn"]
  for schedule in schedules:
    assert schedule.chip == "v6e"
    assert schedule.bundles > schedule.step_bundles > 0
    assert schedule.vmem_bytes > schedule.spill_vmem_bytes >= 0
    assert all(0 < arm.mxu_busy <= 1 for arm in schedule.arms if arm.vmatmuls)


def test_an_arm_counts_what_is_known():
  # On v6e a vmatmul is 16 rows of bfloat16 by 256 by 256, 8 cycles of one of
  # two MXUs; 1024 rows in one product, and shorter ones for other groups.
  fn, specs = small(m=1024, g=1, k=512, n=512, tiling=(1024, 512, 512))
  ((long, chunk, *ends),) = [
    s.arms for s in aot.schedule(fn, *specs, chip="v6e")
  ]
  assert (long.depth, chunk.depth) == (2, 2)
  assert [arm.depth for arm in ends] == [1, 1]
  rows = [arm.rows for arm in (long, chunk, *ends)]
  assert rows == [1024, 256, 144, 272]
  for arm in (long, chunk, *ends):
    assert arm.k_pieces == 2
    assert arm.vmatmuls == arm.rows // 16 * 2 * 2
    assert arm.mxu_cycles == arm.vmatmuls * 8 / 2
    assert arm.transposing_pushes == 0
  assert long.mxu_busy > chunk.mxu_busy
  assert chunk.matpushes > 0


class State(NamedTuple):
  lhs: jax.Array
  weight: jax.Array


def test_trees_of_any_kind():
  # As optimisers have them; an exported program cannot name such classes.
  fn, (lhs, weight, sizes) = small()
  (schedule,) = aot.schedule(
    lambda state, sizes: State(fn(*state, sizes), state.lhs),
    State(lhs, weight),
    sizes,
    chip="v6e",
  )
  assert schedule.kernel.startswith("gmm_v2-nn")
  assert schedule.operands == "bf16"


def test_a_kernel_within_a_fusion():
  # XLA fuses each result of a loop with its place in the stack.
  fn, (lhs, weight, sizes) = small()

  def each(stack, weight, sizes):
    return jax.lax.map(lambda lhs: fn(lhs, weight, sizes), stack)

  stack = aot.spec((3, *lhs.shape), lhs.dtype)
  (schedule,) = aot.schedule(each, stack, weight, sizes, chip="v6e")
  assert schedule.kernel.startswith("gmm_v2-nn")


def test_programs_with_64_bit_types():
  fn, specs = small()
  with jax.enable_x64(True):
    (schedule,) = aot.schedule(
      lambda *xs: (fn(*xs), jnp.arange(3)), *specs, chip="v6e"
    )
  assert schedule.kernel.startswith("gmm_v2-nn")


KILLED = """
import os, signal, threading, time
from gmm import aot
from gmm.aot import dumping
with aot.scheduler() as compile_program:
  fn, specs = aot.product("nn", m=512, g=4, k=256, n=128)
  compile_program(fn, *specs)
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(60)
"""


def test_nothing_is_left_when_it_is_killed(tmp_path):
  environment = {
    **os.environ,
    "TMPDIR": str(tmp_path),
    "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path),
  }
  done = subprocess.run(
    [sys.executable, "-c", KILLED], env=environment, capture_output=True
  )
  assert done.returncode == -signal.SIGTERM, done.stderr.decode()[-500:]
  for _ in range(100):
    if not os.listdir(tmp_path):
      break
    time.sleep(0.1)
  assert not os.listdir(tmp_path)


def test_modules_of_the_callers_folder_are_not_taken(tmp_path, monkeypatch):
  (tmp_path / "types.py").write_text("raise SystemExit('the wrong types')")
  monkeypatch.chdir(tmp_path)
  assert aot.schedule(*flat(small()), chip="v6e")


def flat(product):
  return (product.fn, *product.specs)


def test_a_temporary_folder_with_a_space(tmp_path, monkeypatch):
  spaced = tmp_path / "a b"
  spaced.mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(spaced))
  assert aot.schedule(*flat(small()), chip="v6e")
  assert not os.listdir(spaced)
  assert os.listdir(tmp_path) == ["a b"]


def test_a_schedule_is_of_its_format():
  shape = {"m": 512, "g": 4, "k": 256, "n": 128}
  fn, specs = aot.product("nn", **shape, dtype="float32")
  schedules = aot.schedule(fn, *specs, chip="v6e")
  with pytest.raises(ValueError, match="`schedule` multiplies f32.*bf16"):
    aot.roofline("nn", **shape, schedule=schedules[0])
  with pytest.raises(TypeError, match="`schedule` is a tuple; want one"):
    aot.roofline("nn", **shape, schedule=schedules)


def test_no_kernel_no_schedule():
  with pytest.raises(ValueError, match="`fn` holds no gmm kernel"):
    aot.schedule(lambda x: x + 1, aot.spec((8,), jnp.float32), chip="v6e")


def test_it_is_given_up_in_time(temporary):
  fn, specs = small()
  with pytest.raises(TimeoutError, match="more than 0.01 s.*`timeout`"):
    aot.schedule(fn, *specs, chip="v6e", timeout=0.01)
  assert not os.listdir(temporary)


def children():
  with open(f"/proc/self/task/{os.getpid()}/children") as file:
    return [int(pid) for pid in file.read().split()]


def test_a_process_that_dies_is_named_and_replaced():
  fn, specs = small()
  before = set(children())
  with aot.scheduler() as compile_program:
    first = compile_program(fn, *specs, chip="v6e")
    (worker,) = set(children()) - before
    os.kill(worker, signal.SIGKILL)
    time.sleep(0.5)
    again = compile_program(fn, *specs, chip="v6e")
  assert again.schedules == first.schedules
  assert set(children()) <= before


# ---- compile_for


def test_what_does_not_fit_says_why():
  # Planned for a chip with 128 MiB of VMEM, compiled for one with 16.
  fn, specs = small(m=8192, k=4096, n=4096)
  for compile_ in (aot.compile_for, aot.schedule):
    with pytest.raises(aot.CompileError, match="(?i)vmem") as error:
      compile_(fn, *specs, chip="v4")
    assert "\n" not in str(error.value)


def test_specs_on_several_devices():
  mesh = AbstractMesh((2, 2), ("a", "b"))
  sharded = NamedSharding(mesh, P("a"))
  x = jax.ShapeDtypeStruct((256, 128), jnp.float32, sharding=sharded)
  compiled = aot.compile_for(
    lambda x, y: x @ y, x, aot.spec((128, 128), jnp.float32), chip="v5e"
  )
  first, second = compiled.input_shardings[0]
  want = aot.mesh("v5e", (2, 2), ("a", "b"))
  assert first.mesh.axis_names == want.axis_names
  assert first.mesh.devices.tolist() == want.devices.tolist()
  assert first.spec == P("a")
  assert second.is_fully_replicated


def test_entry_layouts_are_row_major_unless_told():
  def double(x):
    return x * 2

  spec = aot.spec((4, 256, 100), jnp.bfloat16)
  for row_major, lanes in ((True, 2), (False, 1)):
    compiled = aot.compile_for(double, spec, chip="v6e", row_major=row_major)
    (entry,) = aot.entry_layouts(compiled)
    assert entry.minor_to_major[0] == lanes
    order = compiled.output_formats.layout.major_to_minor
    assert order[-1] == lanes


def test_a_layout_of_its_own_is_kept():
  (device,) = aot.mesh("v6e", (1,), ("x",)).devices.flat
  by_columns = Format(Layout((1, 0)), SingleDeviceSharding(device))
  spec = jax.ShapeDtypeStruct((256, 512), jnp.float32, sharding=by_columns)
  compiled = aot.compile_for(lambda x: x + 1, spec, chip="v6e")
  (entry,) = aot.entry_layouts(compiled)
  assert entry.minor_to_major == (0, 1)


def test_a_number_stays_weak():
  # Else a bfloat16 weight would become float32 beside a learning rate.
  compiled = aot.compile_for(
    lambda w, rate: w * rate, aot.spec((8, 128), jnp.bfloat16), 0.1, chip="v6e"
  )
  assert "->bf16[8,128]" in compiled.as_text().splitlines()[0]


def test_a_swap_is_two_copies():
  # By way of VMEM, each of them; with donation nothing else is left of it.
  spec = aot.spec((1024, 1024), jnp.float32)
  compiled = aot.compile_for(
    lambda x, y: (y, x), spec, spec, chip="v6e", donate_argnums=(0, 1)
  )
  assert len(aot.weight_copies(compiled)) == 2


def test_arrays_and_numbers_are_specs_too():
  compiled = aot.compile_for(
    lambda tree, s: tree["x"] * s, {"x": jnp.ones((8, 128))}, 2.0, chip="v6e"
  )
  assert "f32[8,128]" in compiled.as_text()


def sharded(count):
  mesh = AbstractMesh((count,), ("x",))
  return jax.ShapeDtypeStruct(
    (8,), jnp.float32, sharding=NamedSharding(mesh, P("x"))
  )


@pytest.mark.parametrize(
  ("error", "call", "said"),
  [
    (ValueError, lambda: aot.mesh("v9", (1,), ("x",)), "`chip`.*v9.*v6e"),
    (TypeError, lambda: aot.mesh(None, (1,), ("x",)), "`chip`.*None.*v6e"),
    (ValueError, lambda: aot.mesh("v6e", (9,), ("x",)), "`devices` is 9.*8"),
    (
      ValueError,
      lambda: aot.compile_for(jnp.sin, 1.0, devices=0),
      "`devices` is 0.*1 to 8",
    ),
    (
      TypeError,
      lambda: aot.compile_for(jnp.sin, 1.0, devices="two"),
      "`devices` is 'two'.*int",
    ),
    (
      ValueError,
      lambda: aot.compile_for(jnp.sin, 1.0, chip="h100"),
      "`chip`.*h100.*v6e",
    ),
    (
      ValueError,
      lambda: aot.schedule(*small(), chip="h100"),
      "`chip`.*h100.*v6e",
    ),
    (TypeError, lambda: aot.mesh("v6e", 4, "x"), r"`shape` is 4.*\(4,\)"),
    (
      ValueError,
      lambda: aot.compile_for(jnp.sin, 1.0, out_shardings=P("x")),
      "`out_shardings`.*one device",
    ),
    (
      ValueError,
      lambda: aot.compile_for(jnp.add, sharded(2), sharded(4), chip="v6e"),
      "several meshes.*2.*4",
    ),
    (
      ValueError,
      lambda: aot.compile_for(jnp.sin, sharded(4), chip="v6e", devices=2),
      "`devices` is 2.*4",
    ),
    (ValueError, lambda: small("mm"), "`mode` is 'mm'.*nn"),
  ],
)
def test_bad_input(error, call, said):
  with pytest.raises(error, match=said):
    call()


def test_without_the_compiler(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
  with pytest.raises(ImportError, match="pip install libtpu"):
    aot.schedule(*small(), chip="v6e")


def test_an_unknown_compiler_is_read_with_a_warning(monkeypatch):
  monkeypatch.setattr("importlib.metadata.version", lambda name: "9.9.9")
  with pytest.warns(UserWarning, match="libtpu 9.9.9 are read as those of"):
    with aot.scheduler():
      pass
