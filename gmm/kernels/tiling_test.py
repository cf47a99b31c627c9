"""Tiles: what is chosen, what fits, what is refused."""

import dataclasses

import numpy as np
import pytest
from jax import ShapeDtypeStruct
from jax import numpy as jnp

from gmm import checks
from gmm.kernels import chip, tiling, vmem
from testing.workloads import WORKLOADS

DTYPES = (jnp.bfloat16, jnp.float32, jnp.int8, jnp.float8_e4m3fn)
MODES = ("nn", "nt", "tn")


def problem_of(mode, w, dtype, **changes):
  """The forward product, dlhs, or drhs of a workload."""
  m, g, k, n = (changes.get(name, getattr(w, name)) for name in "mgkn")
  sizes = ShapeDtypeStruct((g,), jnp.int32)
  wide, narrow = (ShapeDtypeStruct((m, width), dtype) for width in (k, n))
  weight = ShapeDtypeStruct((g, k, n), dtype)
  if mode == "nn":
    return checks.gmm_problem(wide, weight, sizes)
  if mode == "nt":
    return checks.gmm_problem(narrow, weight, sizes, transpose_rhs=True)
  return checks.tgmm_problem(wide, narrow, sizes, num_groups=g)


@pytest.mark.parametrize("name", chip.CHIPS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: jnp.dtype(d).name)
def test_every_workload_has_tiles(name, mode, dtype):
  spec = chip.resolve(name)
  # Choosing takes a while: all of them in bfloat16, some in other formats.
  for w in WORKLOADS if dtype == jnp.bfloat16 else WORKLOADS[::4]:
    plan = tiling.make_plan(problem_of(mode, w, dtype), spec)
    assert vmem.needed(plan) <= spec.vmem_budget, w
    assert plan.pads[0] == 0, w
    # Padding k or n would copy the weight.
    assert plan.pads[1:] == (0, 0), w


@pytest.mark.parametrize("mode", MODES)
def test_two_cores_both_have_work(mode):
  for name in ("v4", "v5p"):
    for w in WORKLOADS:
      plan = tiling.make_plan(
        problem_of(mode, w, jnp.bfloat16), chip.resolve(name)
      )
      tiles = plan.n.count * (plan.k.count if mode == "tn" else 1)
      assert tiles > 1, (name, w)


@pytest.mark.parametrize("m", [1, 7, 8, 59, 1000])
@pytest.mark.parametrize("width", [1, 5, 129, 704, 1000])
@pytest.mark.parametrize("mode", MODES)
def test_any_shape_has_tiles(m, width, mode):
  for dtype in DTYPES:
    problem = problem_of(mode, WORKLOADS[0], dtype, m=m, k=width, n=77)
    plan = tiling.make_plan(problem, chip.resolve("v6e"))
    assert plan.problem.m == m + plan.pads[0]
    assert plan.problem.m % plan.block == 0


def test_tilings_are_clipped_and_rounded():
  problem = problem_of("nn", WORKLOADS[0], jnp.bfloat16, m=1000, k=300, n=200)
  plan = tiling.make_plan(problem, chip.resolve("v6e"), (9999, 100, 130))
  assert (plan.tile_m, plan.tile_k, plan.tile_n) == (1008, 128, 200)
  assert (plan.k.count, plan.k.last) == (3, 64)  # 300 was padded to 320
  assert plan.pads == (8, 20, 0)
  one = tiling.make_plan(problem, chip.resolve("v6e"), (1, 300, 1))
  assert (one.tile_m, one.tile_k, one.tile_n) == (16, 300, 128)


def test_a_window_holds_a_tile_that_starts_within_a_block():
  for tile_m in (16, 100, 256, 300, 1024):
    problem = problem_of("nn", WORKLOADS[0], jnp.bfloat16)
    plan = tiling.make_plan(problem, chip.resolve("v6e"), (tile_m, 2816, 704))
    assert plan.window >= plan.tile_m + plan.block
    assert plan.window % plan.block == 0
    assert (plan.window - plan.block) % plan.chunk == 0
    assert plan.chunk <= plan.chip.mxu_size
    assert max(plan.products) <= plan.window


def test_a_tiling_that_does_not_fit_is_refused():
  problem = problem_of("nn", WORKLOADS[0], jnp.bfloat16)
  spec = chip.resolve("v4")
  with pytest.raises(ValueError, match=r"`tiling` = \(2048, 2816, 704\)") as e:
    tiling.make_plan(problem, spec, (2048, 2816, 704))
  need = vmem.needed(
    dataclasses.replace(
      tiling.make_plan(problem, chip.resolve("v6e"), (2048, 2816, 704)),
      chip=spec,
      chunk=spec.mxu_size,
      run=1,
      rhs_buffers=2,
    )
  )
  assert f"needs {need} bytes" in str(e.value)
  assert f"v4 has {spec.vmem_budget}" in str(e.value)


def test_formats_are_widened_where_the_mxu_lacks_them():
  table = {
    (jnp.int8, "v6e"): "int8",
    (jnp.int8, "tpu7x"): "bfloat16",
    (jnp.float8_e4m3fn, "v6e"): "bfloat16",
    (jnp.float8_e4m3fn, "tpu7x"): "float8_e4m3fn",
    (jnp.float8_e5m2, "v6e"): "float8_e5m2",
    (jnp.float8_e5m2, "v4"): "bfloat16",
    (jnp.float32, "v4"): "float32",
  }
  for (dtype, name), compute in table.items():
    problem = problem_of("nn", WORKLOADS[0], dtype)
    plan = tiling.make_plan(problem, chip.resolve(name))
    assert plan.compute_dtype == np.dtype(compute), (dtype, name)


def test_a_large_group_reads_its_weight_once():
  for w in WORKLOADS[:4]:
    plan = tiling.make_plan(
      problem_of("nn", w, jnp.bfloat16), chip.resolve("v6e")
    )
    assert plan.k.count == 1
    assert plan.n.count == 1
