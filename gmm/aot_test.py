"""The kernels compile for every chip, and to what their plans promise.

The whole TPU compiler runs, on a machine without a TPU. `aot_full_test` takes
every combination of what is covered pairwise here.
"""

import importlib.util
import os
import signal
import tempfile
import time

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
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
  # two MXUs; 1024 rows in chunks of 256, the last of them a block of 16 longer.
  fn, specs = small(m=1024, g=1, k=512, n=512, tiling=(1024, 512, 512))
  ((chunk, last),) = [s.arms for s in aot.schedule(fn, *specs, chip="v6e")]
  assert (chunk.depth, last.depth) == (2, 1)
  assert (chunk.rows, last.rows) == (256, 272)
  assert (chunk.k_pieces, last.k_pieces) == (2, 2)
  assert (chunk.vmatmuls, last.vmatmuls) == (16 * 2 * 2, 17 * 2 * 2)
  assert chunk.mxu_cycles == 16 * 2 * 2 * 8 / 2
  assert chunk.matpushes > 0
  assert chunk.transposing_pushes == 0


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
  assert first.mesh == aot.mesh("v5e", (2, 2), ("a", "b"))
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


def test_arrays_and_numbers_are_specs_too():
  compiled = aot.compile_for(
    lambda tree, s: tree["x"] * s, {"x": jnp.ones((8, 128))}, 2.0, chip="v6e"
  )
  assert "f32[8,128]" in compiled.as_text()


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
