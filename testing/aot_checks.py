"""Compiles a case ahead of time, and what must hold of every kernel."""

from collections.abc import Callable

import jax.numpy as jnp

from gmm import aot, checks, config
from gmm.kernels import chip as chips
from gmm.kernels import tiling, vmem
from gmm.kernels.grid import cdiv
from testing.aot_cases import AotCase

# What an estimate of VMEM may be off by besides 10%: the smallest kernels take
# no more than a few hundred kilobytes.
SLACK_BYTES = 1 << 18
# MXU cycles of a product that make it worth asking how busy they keep the MXU.
BUSY_CYCLES = 4000

# Products of int8 as bfloat16 are in pieces of their own length, a multiple of
# the MXU's; no format here takes several passes.


def compiled(
  case: AotCase, compile_program: Callable[..., aot.Compiled]
) -> aot.Compiled:
  """Compiles a case with what `aot.scheduler` yields."""
  m, g, k, n = case.sizes
  fn, specs = aot.product(
    case.mode,
    m=m,
    g=g,
    k=k,
    n=n,
    dtype=case.formats.lhs,
    rhs_dtype=case.formats.rhs,
    chip=case.chip,
  )
  return compile_program(fn, *specs, chip=case.chip)


def plan_of(case: AotCase) -> tiling.Plan:
  """The plan of a case's kernel."""
  m, g, k, n = case.sizes
  lhs, rhs = (jnp.dtype(d) for d in (case.formats.lhs, case.formats.rhs))
  sizes = aot.spec((g,), jnp.int32)
  if case.mode in ("nn", "nt"):
    transposed = case.mode == "nt"
    problem = checks.gmm_problem(
      aot.spec((m, n if transposed else k), lhs),
      aot.spec((g, k, n), rhs),
      sizes,
      transpose_rhs=transposed,
    )
  else:
    operands = [aot.spec((m, k), lhs), aot.spec((m, n), rhs)]
    if case.mode == "tn_t":
      operands.reverse()
    problem = checks.tgmm_problem(
      *operands,
      sizes,
      num_groups=g,
      preferred_element_type=config.default_result_dtype(lhs, rhs),
    )
  return tiling.make_plan(problem, chips.resolve(case.chip))


def check(case: AotCase, found: aot.Compiled) -> None:
  """Checks one kernel's schedule against its plan.

  Raises:
    AssertionError: what the compiler made is not what the plan promised.
  """
  (schedule,) = found.schedules
  plan = plan_of(case)
  working = [arm for arm in schedule.arms if arm.vmatmuls]
  _expect(bool(working), case, "no arm multiplies")
  claimed, estimate = vmem.needed(plan), vmem.estimate(plan)
  _expect(
    schedule.vmem_bytes <= claimed,
    case,
    f"the compiler took {schedule.vmem_bytes} bytes of VMEM, the tiling "
    f"claims {claimed}",
  )
  _expect(
    abs(estimate - schedule.vmem_bytes) <= 0.1 * estimate + SLACK_BYTES,
    case,
    f"the compiler took {schedule.vmem_bytes} bytes of VMEM, the estimate is "
    f"{estimate}",
  )
  depth = plan.chip.mxu_size
  if case.mode in ("nn", "nt"):
    wanted = {cdiv(size, depth) for size in (plan.tile_k, plan.k.last)}
  else:
    wanted = {cdiv(rows, depth) for rows in plan.products}
  pieces = {arm.k_pieces for arm in working}
  _expect(
    pieces <= wanted, case, f"pieces of the contraction: {pieces}, not {wanted}"
  )
  if case.mode in ("nn", "nt") and (case.chip, case.dtypes) == ("v6e", "bf16"):
    full = working[0]
    _expect(
      full.mxu_busy >= 0.95 or full.mxu_cycles < BUSY_CYCLES,
      case,
      f"the MXU is busy for {full.mxu_busy:.1%} of a full product",
    )
  if case.mode == "nt":
    # Where a short end pays, the weight streams past its rows, and what is
    # transposed is their result.
    short = plan.ends[:-1]
    pushing = [arm for arm in working if arm.rows not in short]
    on_xlu = sum(arm.xlu_transposes for arm in pushing)
    _expect(on_xlu == 0, case, f"{on_xlu} transposes on the XLU")
    _expect(
      all(arm.transposing_pushes == arm.matpushes for arm in pushing),
      case,
      "weights are pushed that the MXU does not transpose",
    )


def _expect(holds: bool, case: AotCase, problem: str) -> None:
  if not holds:
    raise AssertionError(f"{case.name}: {problem}")
