"""Chooses tiles: candidates that fit VMEM, then the cheapest of them.

A pure function of the problem and the chip, so that it can be tested, printed
and compared on any machine.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm.config import Problem
from gmm.kernels.chip import ChipSpec
from gmm.kernels.grid import LANES, cdiv, round_up
from gmm.kernels.plan import PIECE_N, Plan, row_block, sublanes
from gmm.timing import estimate, rates, visits

# A last tile's rows are moved in whole packed sublane tiles of any dtype.
TAIL_ROWS = 32
# VMEM that the compiler takes for values of one chunk's product, besides those
# that `_spill_bytes` counts; and the most it keeps of a widened weight.
COMPILER_BYTES = 5 << 19
WIDENED_BYTES = 3 << 20
# The rough price of a grid step.
STEP_SECONDS = 0.35e-6
# How many candidates the model plays, with how many groups; and the bundles of
# a chunk and of a step that compiled kernels show beyond the MXU's cycles.
MODELLED = 16
MODELLED_GROUPS = 16
BEYOND_MXU = (200, 240)


def chip_compute_dtype(problem: Problem, chip: ChipSpec) -> np.dtype:
  """The dtype that the MXU multiplies: as asked, or bfloat16 if it lacks it."""
  wanted = problem.compute_dtype
  return wanted if wanted.name in chip.mxu_dtypes else np.dtype(jnp.bfloat16)


def make_plan(
  problem: Problem, chip: ChipSpec, tiling: tuple[int, int, int] | None = None
) -> Plan:
  """Returns the plan for `problem` on `chip`.

  Args:
    problem: from `checks`; not empty.
    chip: from `chip.resolve`.
    tiling: (tile_m, tile_k, tile_n) in the call's own terms, or None to choose.

  Raises:
    ValueError: `tiling` does not fit VMEM, or nothing does.
  """
  if tiling is not None:
    plan = _plan_for(problem, chip, tiling)
    need = vmem_bytes(plan)
    if need > chip.vmem_budget:
      raise ValueError(
        f"`tiling` = {tuple(tiling)} needs {need} bytes of VMEM, and "
        f"{chip.name} has {chip.vmem_budget} for it; choose smaller tiles, or "
        "None"
      )
    return plan
  return _choose(problem, chip)


@functools.lru_cache(maxsize=1024)
def _choose(problem: Problem, chip: ChipSpec) -> Plan:
  plans = [_plan_for(problem, chip, t) for t in candidates(problem, chip)]
  fitting = [p for p in plans if vmem_bytes(p) <= chip.vmem_budget]
  if not fitting:
    raise ValueError(
      f"`lhs` and `rhs` with m={problem.m}, k={problem.k}, n={problem.n} in "
      f"{problem.lhs_dtype.name} are too wide for the kernels: no tiling fits "
      f"the {chip.vmem_budget} bytes of VMEM of {chip.name}; use backend='xla'"
    )

  # A rough price for all, and the model of docs/model.md for the best of them.
  fitting.sort(key=_with_vmem(cost_seconds))
  return min(fitting[:MODELLED], key=_with_vmem(_modelled_seconds))


def _with_vmem(price: Callable[[Plan], float]) -> Callable[[Plan], float]:
  """Adds a little for VMEM, so that of equals the smaller one is taken."""
  return lambda plan: (
    price(plan) * (1 + 0.02 * vmem_bytes(plan) / plan.chip.vmem_budget)
  )


def _modelled_seconds(plan: Plan) -> float:
  """Time of a few groups, of equal and of unequal sizes."""
  problem = plan.problem
  g = min(problem.g, MODELLED_GROUPS)
  m = round_up(max(problem.m * g // problem.g, 1), plan.block)
  few = dataclasses.replace(problem, m=m, g=g, g_total=g)
  plan = dataclasses.replace(plan, problem=few, pads=(0, *plan.pads[1:]))
  total = 0.0
  for name in ("equal", "skew"):
    found = visits.visits(plan, visits.size_patterns(name, m, g))
    total += estimate.estimate(plan, found, beyond=BEYOND_MXU).seconds
  return total


def _plan_for(
  problem: Problem, chip: ChipSpec, tiling: tuple[int, int, int]
) -> Plan:
  block = row_block(problem)
  m = round_up(problem.m, block)
  tile_m = min(round_up(tiling[0], block), m)
  tile_k = _tile(problem.k, tiling[1])
  tile_n = _tile(problem.n, tiling[2])
  k = _padded(problem.k, tile_k)
  n = _padded(problem.n, tile_n)
  return Plan(
    problem=dataclasses.replace(problem, m=m, k=k, n=n),
    chip=chip,
    tile_m=tile_m,
    tile_k=tile_k,
    tile_n=tile_n,
    block=block,
    chunk=_chunk(problem, chip, tile_m, block),
    compute_dtype=chip_compute_dtype(problem, chip),
    pads=(m - problem.m, k - problem.k, n - problem.n),
  )


def _chunk(problem: Problem, chip: ChipSpec, tile_m: int, block: int) -> int:
  """Rows of one MXU product: near-equal parts of a tile, none above the MXU's.

  Fewer rows than the MXU has leave it waiting for its next weight tile, and
  more are more than the end of a group needs, and more code.
  """
  most = chip.mxu_size
  chunks = cdiv(tile_m, most)
  chunk = round_up(cdiv(tile_m, chunks), block)
  if problem.transpose_rhs and most > LANES:
    # With fewer rows than the MXU has, the compiler keeps these in it instead
    # of the weight, and transposes the result in the XLU. The MXU takes as
    # long either way, and rows past the window come to nothing. (The last
    # chunk, alone in a small tile, is a block longer.)
    chunk = most - block if tile_m <= most - block else most
  return chunk


def _tile(size: int, tile: int) -> int:
  """Clips to the dimension, which needs no alignment; else whole lanes."""
  rounded = round_up(tile, LANES)
  return size if rounded >= size else rounded


def _padded(size: int, tile: int) -> int:
  """A dimension in one tile may have any size; a last tile must be movable."""
  return size if tile == size else round_up(size, TAIL_ROWS)


def candidates(
  problem: Problem, chip: ChipSpec
) -> Iterator[tuple[int, int, int]]:
  """Yields (tile_m, tile_k, tile_n), larger tiles first."""
  block = row_block(problem)
  most_rows = min(round_up(problem.m, block), 2048)
  # An MXU of 256 columns takes 128 rows or fewer in the same time.
  least = 128 if chip.mxu_size > 128 else block
  rows = {
    min(max(r, least), most_rows) for r in (2048, 1024, 512, 256, 128, 64, 32)
  }
  for tile_n in _splits(problem.n, chip):
    for tile_k in _splits(problem.k, chip):
      for tile_m in sorted(rows, reverse=True):
        yield tile_m, tile_k, tile_n


def _splits(size: int, chip: ChipSpec) -> list[int]:
  """The whole dimension, and cuts of it in near-equal whole MXU tiles."""
  unit = max(chip.mxu_size, LANES)
  tiles = {size}
  parts = 1
  # Few candidates, but for dimensions so wide that small shares are needed.
  while cdiv(size, parts) > (unit if parts < 16 else 4096):
    for cut in (2 * parts, 3 * parts):
      tiles.add(min(round_up(cdiv(size, cut), unit), size))
    parts *= 2
  return sorted((t for t in tiles if t == size or t >= unit), reverse=True)


def vmem_bytes(plan: Plan) -> int:
  """VMEM of the plan's buffers, in bytes, plus what the compiler takes."""
  problem = plan.problem
  rows, k, n = plan.buffer_rows, plan.tile_k, plan.tile_n
  lhs = 2 * _padded_bytes(rows, k, problem.lhs_dtype)
  zeros = _padded_bytes(plan.zero_rows, problem.n, problem.out_dtype)
  spills = COMPILER_BYTES + _spill_bytes(plan)
  if problem.kind == "tgmm":
    dout = 2 * _padded_bytes(rows, n, problem.rhs_dtype)
    out = 2 * _padded_bytes(k, n, problem.out_dtype)
    acc = _padded_bytes(k, n, problem.acc_dtype)
    tail = problem.k % plan.zero_rows
    zeros += _padded_bytes(tail, problem.n, problem.out_dtype)
    return lhs + dout + out + acc + zeros + spills
  rhs_shape = (n, k) if problem.transpose_rhs else (k, n)
  rhs = 2 * _padded_bytes(*rhs_shape, problem.rhs_dtype)
  out = _padded_bytes(rows, n, problem.out_dtype)
  out *= 4 if problem.has_existing else 2
  acc = _padded_bytes(rows, n, problem.acc_dtype) if plan.k.count > 1 else 0
  carry = _padded_bytes(plan.block, n, problem.out_dtype)
  return lhs + rhs + out + acc + carry + zeros + spills


def _padded_bytes(rows: int, columns: int, dtype: np.dtype) -> int:
  """Bytes of a matrix in VMEM."""
  padded = round_up(rows, sublanes(dtype)) * round_up(columns, LANES)
  return padded * dtype.itemsize


def _spill_bytes(plan: Plan) -> int:
  """An upper bound of the values that one chunk's product keeps in VMEM.

  Found in the compiler's listings: the result of a piece, the chunk of lhs as
  the MXU takes it, and what operands become that have to be widened.
  """
  problem, n = plan.problem, min(plan.tile_n, PIECE_N)
  if problem.kind == "tgmm":
    rows, lhs, rhs = plan.tile_k, plan.chunk * plan.tile_k, plan.chunk * n
  else:
    rows = plan.chunk + plan.block
    lhs, rhs = rows * plan.tile_k, plan.tile_k * n
  result = rows * round_up(n, LANES) * 4
  wide = plan.compute_dtype.itemsize
  if _takes_passes(problem):
    return result + (lhs + rhs) * 3 * wide  # the parts that are multiplied
  if problem.rhs_dtype != plan.compute_dtype and _widens_slowly(plan):
    return result + (lhs + rhs) * 8
  if problem.rhs_dtype != plan.compute_dtype:
    return result + lhs * wide + min(rhs * wide, WIDENED_BYTES)
  return result + lhs * wide


def _takes_passes(problem: Problem) -> bool:
  """Whether float32 is multiplied in several passes of bfloat16 parts."""
  return problem.precision in (lax.Precision.HIGH, lax.Precision.HIGHEST)


def _widens_slowly(plan: Plan) -> bool:
  """Whether 8-bit operands are unpacked through 32-bit values."""
  return plan.chip.name == "v4" and plan.problem.rhs_dtype.itemsize == 1


def cost_seconds(plan: Plan) -> float:
  """Estimated time: the longer of MXU and DMA, and a little for each step.

  Groups differ in size: half a visit and half a chunk are lost in each.
  """
  problem, chip = plan.problem, plan.chip
  rows = problem.m / problem.g
  visits = problem.g * max(1, rows / plan.tile_m + 0.5)
  chunks = problem.g * max(1, rows / plan.chunk + 0.5)
  chunk_rows = max(plan.chunk, chip.mxu_size)
  flops = 2 * chunks * chunk_rows * problem.k * problem.n
  rate = chip.bf16_flops / (4 if plan.compute_dtype == np.float32 else 1)
  bandwidth = chip.hbm_bytes_per_second
  seconds = max(
    flops / rate, _hbm_bytes(plan, visits) / bandwidth / rates.DMA_SHARE
  )
  steps = visits * plan.k.count * plan.n.count
  first = plan.tile_k * plan.tile_n * problem.rhs_dtype.itemsize / bandwidth
  padding = _padding_bytes(plan) / bandwidth
  return (seconds + steps * STEP_SECONDS) / _cores_used(plan) + first + padding


def _cores_used(plan: Plan) -> float:
  """Cores' worth of work, when output tiles are dealt out to cores."""
  tiles = plan.n.count * (plan.k.count if plan.problem.kind == "tgmm" else 1)
  return tiles / cdiv(tiles, plan.chip.num_cores)


def _hbm_bytes(plan: Plan, visits: float) -> float:
  problem = plan.problem
  lhs = problem.m * problem.k * problem.lhs_dtype.itemsize
  weights = problem.k * problem.n
  if problem.kind == "tgmm":
    dout = problem.m * problem.n * problem.rhs_dtype.itemsize
    out = problem.g * weights * problem.out_dtype.itemsize
    return lhs * plan.n.count + dout * plan.k.count + out
  # With k in several tiles, each visit reads the group's weight again.
  reads = visits if plan.k.count > 1 else problem.g
  out = problem.m * problem.n * problem.out_dtype.itemsize
  return (
    lhs * plan.n.count
    + reads * weights * problem.rhs_dtype.itemsize
    + out * (2 if problem.has_existing else 1)
  )


def _padding_bytes(plan: Plan) -> int:
  """Bytes that padding k or n outside the kernel moves: a copied weight."""
  problem = plan.problem
  if not any(plan.pads[1:]):
    return 0
  weight = problem.g * problem.k * problem.n
  tgmm = problem.kind == "tgmm"
  dtype = problem.out_dtype if tgmm else problem.rhs_dtype
  return 2 * weight * dtype.itemsize
