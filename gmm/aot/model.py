"""What bounds a grouped product on a chip, and an estimate of its time."""

from __future__ import annotations

import dataclasses
import operator
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from gmm import checks, config
from gmm.aot import calls
from gmm.aot.calls import MODES as MODES
from gmm.kernels import chip as chips
from gmm.kernels import launch, pairs
from gmm.kernels import tiling as tiles_lib
from gmm.kernels.plan import Plan
from gmm.timing import estimate as estimates
from gmm.timing import rates as rates_lib
from gmm.timing import visits as visits_lib

if TYPE_CHECKING:
  from gmm.aot.scheduling import Schedule

_NAME = re.compile(
  r"^(t?gmm_v2-[\w-]+?)-g_\d+-m_\d+(-k_\d+-n_\d+-tm_\d+-tk_\d+-tn_\d+)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
  """A product on one device: what bounds it, and where its time would go.

  Attributes:
    mode: "nn", "nt", "tn" or "tn_t".
    chip: what it is estimated for.
    kernel: the kernel's name, which holds its shape and tiles.
    tiles: (tile_m, tile_k, tile_n) in the kernel's own terms.
    flops: useful ones: 2 x rows in groups x k x n.
    bytes: each operand read, and the result written, once, without padding.
    peak_flops: per second, of the device, for the format that the MXU
      multiplies. From jax's chip facts.
    peak_bytes_per_second: of the device's HBM. From jax's chip facts.
    compute_seconds: flops at peak.
    memory_seconds: bytes at peak.
    bound: "compute" or "memory", whichever takes longer.
    bound_seconds: the longer of the two: no kernel is faster.
    seconds: estimate; the next three add up to it.
    mxu_seconds: what the MXUs need for the rows they run, at nominal rate.
    dma_seconds: what cores wait for memory.
    idle_seconds: the rest.
    dma_bytes: what is moved to and from HBM, padding and rereads included.
    rows_useful: rows in groups.
    rows_run: rows that the MXUs run for each output tile.
    visits: for each output tile.
    steps: grid steps, of all cores together.
    roofline_share: bound_seconds / seconds.
    dma_share: what dma_bytes take at the rate that copies reach, which is 0.9
      of the peak, / seconds: near 1 where nothing but memory holds it up.
    from_schedule: whether a compiled schedule is behind the estimate; else it
      counts MXU cycles only, and about what quantising lhs takes.
  """

  mode: str
  chip: str
  kernel: str
  tiles: tuple[int, int, int]
  flops: int
  bytes: int
  peak_flops: float
  peak_bytes_per_second: float
  compute_seconds: float
  memory_seconds: float
  bound: str
  bound_seconds: float
  seconds: float
  mxu_seconds: float
  dma_seconds: float
  idle_seconds: float
  dma_bytes: int
  rows_useful: int
  rows_run: int
  visits: int
  steps: int
  roofline_share: float
  dma_share: float
  from_schedule: bool


def roofline(
  mode: str,
  *,
  m: int,
  g: int,
  k: int,
  n: int,
  chip: str = "v6e",
  group_sizes: Any = None,
  tiling: tuple[int, int, int] | None = None,
  schedule: Schedule | None = None,
  out_dtype: Any = None,
  precision: Any = None,
  **operands: Any,
) -> Roofline:
  """Says what bounds one product on a chip, and estimates its time.

    nn   out [m, n] = lhs [m, k] @ rhs [g, k, n]        forward
    nt   out [m, k] = dout [m, n] @ rhs [g, k, n]^T     gradient of lhs
    tn   out [g, k, n] = lhs [m, k]^T @ dout [m, n]     gradient of rhs
    tn_t out [g, n, k] = the same, transposed

  docs/model.md describes the estimate, and what it leaves out.

  Args:
    mode: "nn", "nt", "tn" or "tn_t".
    m: rows.
    g: groups.
    k: of the weight [g, k, n], in all modes.
    n: of the weight, likewise.
    chip: a key of `kernels.chip.CHIPS`.
    group_sizes: None for equal ones, the name of a pattern ("equal", "mean+-1",
      "skew", "zipf"), or integers [g], known on the host.
    tiling: (tile_m, tile_k, tile_n) in the call's own terms, as the kernels
      take it (nt contracts tile_k); None as the kernels choose.
    schedule: `aot.schedule` of this kernel, for the cycles that it really
      takes; None counts MXU cycles only.
    out_dtype: of the result; None as the kernels choose.
    precision: for float32 operands, as the kernels take it.
    **operands: what they are, as in `product`: `dtype` (bfloat16), `rhs_dtype`,
      `scale_block`, `scale_axis`, `lhs_quantization`, `lhs_scale`,
      `dout_scale`, `bias`, `existing_out` and `fused`.

  Raises:
    ValueError: an unknown mode or chip, sizes below 1, group sizes that are
      none of the above, a tiling that does not fit VMEM, or the schedule of
      another kernel.
    TypeError: a dtype that no backend takes, or an argument of a wrong type.
    NotImplementedError: a dtype that the kernels cannot take.
  """
  plan = plan_for(
    mode,
    m=m,
    g=g,
    k=k,
    n=n,
    chip=chip,
    tiling=tiling,
    out_dtype=out_dtype,
    precision=precision,
    **operands,
  )
  if schedule is not None:
    _check_schedule(plan, schedule)
  sizes = visits_lib.checked_sizes(group_sizes, m, g)
  visits = visits_lib.visits(plan, sizes)
  like = rates_lib.no_code_like(plan.chip.name)
  parts = estimates.estimate(plan, visits, schedule, like=like)
  return Roofline(
    mode=mode,
    chip=plan.chip.name,
    kernel=launch.kernel_name(plan),
    tiles=(plan.tile_m, plan.tile_k, plan.tile_n),
    **_bounds(plan, visits, parts.seconds),
    **dataclasses.asdict(parts),
    rows_useful=int(visits.own_rows.sum()),
    rows_run=int(visits.rows_run.sum()),
    visits=visits.count,
    steps=_steps(plan, visits),
    dma_share=_dma_seconds(plan, parts.dma_bytes) / parts.seconds,
    from_schedule=schedule is not None,
  )


def plan_for(
  mode: str,
  *,
  m: int,
  g: int,
  k: int,
  n: int,
  chip: str = "v6e",
  tiling: tuple[int, int, int] | None = None,
  out_dtype: Any = None,
  precision: Any = None,
  **operands: Any,
) -> Plan:
  """Returns the kernel's plan for a product; arguments as of `roofline`."""
  spec = chips.resolve(chip)
  shape = _checked_shape(m=m, g=g, k=k, n=n)
  tiling = config.checked_tiling("tiling", tiling)
  results = {"preferred_element_type": out_dtype, "precision": precision}
  call = calls.call(mode, shape, calls.Operands(**operands), **results)
  if mode == "tn_t" and tiling is not None:
    tiling = (tiling[0], tiling[2], tiling[1])
  problem = call.problem(**results)
  checks.check_pallas_dtypes(problem, spec)
  return tiles_lib.make_plan(problem, spec, tiling)


def _checked_shape(**sizes: Any) -> dict[str, int]:
  checked = {}
  for name, value in sizes.items():
    try:
      if isinstance(value, (bool, np.bool_)):
        raise TypeError
      checked[name] = operator.index(value)
    except TypeError:
      raise TypeError(f"`{name}` is {value!r}; want a positive int") from None
    if not 1 <= checked[name] < 2**31:
      raise ValueError(f"`{name}` is {value}; want 1 to 2**31 - 1")
  return checked


def _check_schedule(plan: Plan, schedule: Schedule) -> None:
  """The same code serves any rows and groups, so those need not agree."""
  if not hasattr(schedule, "kernel"):
    raise TypeError(
      f"`schedule` is a {type(schedule).__name__}; want one Schedule of those "
      "that aot.schedule returns"
    )
  names = [launch.kernel_name(plan), schedule.kernel]
  wanted, got = (_NAME.match(name) for name in names)
  if got is None or wanted.groups() != got.groups():
    raise ValueError(
      f"`schedule` is of the kernel {schedule.kernel}; want one of {names[0]}"
    )
  if schedule.chip != plan.chip.name:
    raise ValueError(
      f"`schedule` is for {schedule.chip}; want one for {plan.chip.name}"
    )
  operands = rates_lib.mnemonic_format(plan.compute_dtype)
  if schedule.operands != operands:
    raise ValueError(
      f"`schedule` multiplies {schedule.operands}; want one of {operands}"
    )


def _dma_seconds(plan: Plan, moved: int) -> float:
  rate = rates_lib.rates(plan.chip.name)
  return moved / (rate.device_bytes_per_second * rates_lib.DMA_SHARE)


def _steps(plan: Plan, visits: visits_lib.Visits) -> int:
  return visits.count * plan.k.count * plan.n.count


def _bounds(
  plan: Plan, visits: visits_lib.Visits, seconds: float
) -> dict[str, Any]:
  """The fields of a Roofline that hold for any kernel."""
  pad_m, pad_k, pad_n = plan.pads
  padded = plan.problem
  problem = dataclasses.replace(
    padded, m=padded.m - pad_m, k=padded.k - pad_k, n=padded.n - pad_n
  )
  rate = rates_lib.rates(plan.chip.name)
  passes = rates_lib.float32_passes(plan.compute_dtype, problem.precision)
  peak = rate.num_cores * rate.flops[plan.compute_dtype.name] / passes
  flops = 2 * int(visits.own_rows.sum()) * problem.k * problem.n
  flops *= pairs.sides(problem).rhs
  moved = _useful_bytes(problem, visits)
  compute, memory = flops / peak, moved / rate.device_bytes_per_second
  bound = max(compute, memory)
  return {
    "flops": flops,
    "bytes": moved,
    "peak_flops": peak,
    "peak_bytes_per_second": rate.device_bytes_per_second,
    "compute_seconds": compute,
    "memory_seconds": memory,
    "bound": "compute" if compute >= memory else "memory",
    "bound_seconds": bound,
    "roofline_share": bound / seconds,
  }


def _useful_bytes(problem: config.Problem, visits: visits_lib.Visits) -> int:
  """Rows in groups, weights of groups with rows, and the whole result.

  All as it is stored, and with its scales. A result that is added to what there
  is, is read and written where groups have rows.
  """
  rows, weight = int(visits.own_rows.sum()), problem.k * problem.n
  sides = pairs.sides(problem)
  lhs = rows * problem.k * problem.lhs_dtype.itemsize
  if problem.kind == "tgmm":
    rhs = rows * problem.n * problem.rhs_dtype.itemsize
    rhs += 4 * (problem.lhs_scales + problem.dout_scales)
    return lhs + rhs + problem.g * weight * problem.out_dtype.itemsize
  lhs += 4 * min(rows, problem.lhs_scales)
  groups = len(np.unique(visits.group))
  rhs = groups * weight * config.bits(problem.rhs_dtype) // 8
  if problem.has_bias:
    rhs += groups * problem.n * 4
  rhs *= sides.rhs
  if problem.scale_block:
    _, blocks, lanes = problem.scale_shape
    arrays = 1 if problem.pair == "gated" else sides.rhs  # which has one of 2n
    rhs += arrays * groups * blocks * lanes * problem.scale_dtype.itemsize
  out = 2 * rows if problem.has_existing else problem.m
  out *= sides.out * problem.n * problem.out_dtype.itemsize
  return sides.lhs * lhs + rhs + out
