"""Chooses tiles: candidates that fit VMEM, then the cheapest of them.

A pure function of the problem and the chip, so that it can be tested, printed
and compared on any machine.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np

from gmm.config import Problem, bits
from gmm.kernels import carriers, pairs, quantizing, scales, vmem
from gmm.kernels.chip import ChipSpec
from gmm.kernels.grid import LANES, cdiv, round_up
from gmm.kernels.plan import SHORT_NT_ENDS, Plan, row_block, sublanes
from gmm.timing import estimate, rates, steps, visits

# A last tile's rows are moved in whole packed sublane tiles of any dtype.
TAIL_ROWS = 32
# Cycles of the MXU that a product should take, by kernel and chip, and the most
# chunks it may have for this: code grows with them. Results leave the MXU
# a few hundred cycles after the last rows went in, and nothing else goes in
# before; on the other chips the MXU's own cycles hide that.
ENOUGH_CYCLES = {
  ("gmm", "v6e"): 4000,
  ("tgmm", "v6e"): 4600,
  ("tgmm", "tpu7x"): 7500,
}
# Likewise where lhs is quantised before each product: nothing is multiplied
# meanwhile, the less the longer its other work.
ENOUGH_CYCLES_QUANTISING = {"tpu7x": 3000}
MOST_CHUNKS = 4
MOST_BUNDLES = 32_000
# Cycles of the MXU above which a product is worked off in parts: the compiler
# takes long for more code without a jump, and spills more; the more so where
# the rows that stay in registers are long.
MOST_CYCLES = 9000
MOST_CYCLES_OF_LONG_ROWS = 4000
LONG_ROW_BYTES = 6144
# The same of a turn of a loop over blocks.
MOST_BUNDLES_OF_TURN = 3000
# Most columns of lhs in a part of tgmm's product: more are loaded again for
# each piece of dout. (On v6e the MXU's cycles hide that.)
MOST_PART_K = {"tpu7x": 1536}
# Tilings for which other numbers of chunks are tried.
RUNS_TRIED = 3
# Most weights that are there or on their way: while a large group is worked on,
# the weights of the small ones after it arrive, which would wait for theirs.
MOST_WEIGHTS = 3
# Most rows of a window. Three quarters of them are tried where they are best:
# the copies of a shorter window wait less behind a weight.
MOST_ROWS = 2048
# The rough price of a grid step.
STEP_SECONDS = 0.35e-6
# How many candidates the model plays, with how many groups.
MODELLED = 8
MODELLED_GROUPS = 24


def chip_compute_dtype(problem: Problem, chip: ChipSpec) -> np.dtype:
  """The dtype that the MXU multiplies: as asked, or bfloat16 if it lacks it.

  One float8 stands for two different ones where the MXU multiplies these as
  they are, as tgmm asks it to.
  """
  wanted = problem.compute_dtype
  both = {problem.lhs_dtype.name, problem.rhs_dtype.name}
  if problem.kind == "tgmm" and both in chip.mxu_pairs:
    return np.dtype(jnp.float8_e5m2)
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
    need = vmem.needed(plan)
    if need > chip.vmem_budget:
      raise ValueError(
        f"`tiling` = {tuple(tiling)} needs {need} bytes of VMEM, and "
        f"{chip.name} has {chip.vmem_budget} for it; choose smaller tiles, or "
        "None"
      )
    return _with_more_weights(plan)
  return _choose(problem, chip)


@functools.lru_cache(maxsize=1024)
def _choose(problem: Problem, chip: ChipSpec) -> Plan:
  plans = [_plan_for(problem, chip, t) for t in candidates(problem, chip)]
  fitting = [p for p in plans if vmem.needed(p) <= chip.vmem_budget]
  if not fitting:
    raise ValueError(
      f"`lhs` and `rhs` with m={problem.m}, k={problem.k}, n={problem.n} in "
      f"{problem.lhs_dtype.name} are too wide for the kernels: no tiling fits "
      f"the {chip.vmem_budget} bytes of VMEM of {chip.name}; use backend='xla'"
    )

  # A rough price for all, and the model of docs/model.md for the best of them.
  fitting.sort(key=_with_vmem(cost_seconds))
  likely = sorted(fitting[:MODELLED], key=_with_vmem(_modelled_seconds))
  if _enough_cycles(problem, chip):
    likely = [p for plan in likely[:RUNS_TRIED] for p in _with_any_run(plan)]
  price = _with_vmem(_modelled_seconds)
  best = min(likely, key=lambda plan: price(plan) * (1 + 0.002 * plan.run))
  if problem.kind == "gmm" and best.tile_m == MOST_ROWS:
    shorter = dataclasses.replace(best, tile_m=MOST_ROWS * 3 // 4)
    best = min(best, shorter, key=price)
  return _with_more_weights(best)


def _with_any_run(plan: Plan) -> list[Plan]:
  """The plan, and the same with more chunks in a product."""
  runs = range(plan.run + 1, min(MOST_CHUNKS, plan.tile_m // plan.chunk) + 1)
  plans = [_with_run(plan, run) for run in runs]
  return [plan] + [
    p
    for p in plans
    if _code_bundles(p) <= MOST_BUNDLES
    and vmem.needed(p) <= plan.chip.vmem_budget
  ]


def _code_bundles(plan: Plan) -> float:
  """Bundles of all products, by the MXU's cycles that they take."""
  plan = pairs.twin(plan)
  turn = plan.turn or plan.tile_k
  k = turn + plan.tile_k % turn
  return sum(_bundles(plan, rows, k) for rows in plan.products) / plan.parts


def _with_run(plan: Plan, run: int) -> Plan:
  """The plan with so many chunks in a product, in as many parts as it needs."""
  if plan.turn:
    run = 1  # what it gains is not worth its code
  plan = dataclasses.replace(plan, run=run)
  size, unit = plan.tile_n, plan.chip.mxu_size
  if plan.problem.kind == "tgmm":
    size, unit = plan.tile_k, LANES
  twin = pairs.twin(plan)
  bundles = _bundles(twin, run * plan.chunk, plan.turn or twin.tile_k)
  # Wider values than of 16 bits are multiplied in parts of 16.
  row_bytes = plan.tile_k * min(plan.compute_dtype.itemsize, 2)
  is_long = plan.problem.kind == "gmm" and row_bytes > LONG_ROW_BYTES
  # In one part with its product, some of the quantising is done beside it.
  is_long = is_long and not plan.problem.lhs_quantization
  least = cdiv(bundles, MOST_CYCLES_OF_LONG_ROWS if is_long else MOST_CYCLES)
  if plan.turn:
    least = cdiv(bundles, MOST_BUNDLES_OF_TURN)
  if plan.problem.kind == "tgmm" and run > 1 and plan.chip.name in MOST_PART_K:
    least = max(least, cdiv(plan.tile_k, MOST_PART_K[plan.chip.name]))
  parts = (p for p in range(least, 2 * least + 2) if size % (p * unit) == 0)
  # What is blocked along n is so at places that have to be known.
  blocked = plan.problem.scale_block and plan.problem.scale_axis == "n"
  if blocked or plan.problem.packed_axis == "n":
    return dataclasses.replace(plan, parts=1)
  return dataclasses.replace(plan, parts=next(parts, 1))


def _bundles(plan: Plan, rows: int, k: int) -> int:
  """Bundles of a product: the MXU's cycles, or more of vector work."""
  cycles = steps.mxu_cycles(plan, rows, k)
  return max(cycles, quantizing.vector_bundles(plan, rows, k))


def _with_more_weights(plan: Plan) -> Plan:
  """Takes what VMEM is left for weights that are fetched further ahead."""
  if plan.problem.kind == "tgmm" or plan.k.count > 1:
    return plan
  most = min(MOST_WEIGHTS, plan.problem.g + 1)
  for count in range(most, plan.rhs_buffers, -1):
    more = dataclasses.replace(plan, rhs_buffers=count)
    if vmem.needed(more) <= plan.chip.vmem_budget:
      return more
  return plan


def _with_vmem(price: Callable[[Plan], float]) -> Callable[[Plan], float]:
  """Adds a little for VMEM and for tiles: of equals the simplest is taken."""

  def priced(plan: Plan) -> float:
    share = vmem.needed(plan) / plan.chip.vmem_budget
    tiles = plan.k.count * plan.n.count
    return price(plan) * (1 + 0.005 * share + 0.002 * math.log2(tiles))

  return priced


def _modelled_seconds(plan: Plan) -> float:
  """Time of a few groups, of equal and of unequal sizes."""
  plan = pairs.twin(_with_more_weights(plan))
  problem = plan.problem
  g = min(problem.g, MODELLED_GROUPS)
  m = round_up(max(problem.m * g // problem.g, 1), plan.block)
  # What exists and the scales of rows are read whatever the tiles.
  few = dataclasses.replace(
    problem, m=m, g=g, g_total=g, has_existing=False, lhs_scales=0
  )
  plan = dataclasses.replace(plan, problem=few, pads=(0, *plan.pads[1:]))
  like = rates.code_like(problem.kind, plan.chip.name)
  cycles = steps.mxu_cycles(plan, plan.chunk, plan.tile_k)
  share = _bundles(plan, plan.chunk, plan.tile_k) / cycles
  if share > 1:
    like = dataclasses.replace(like, share=share)
  total = 0.0
  for name in ("equal", "skew", "zipf"):
    found = visits.visits(plan, visits.size_patterns(name, m, g))
    total += estimate.estimate(plan, found, like=like).seconds
    # All the groups wait for the first weight only once.
    total -= _first_seconds(plan) * (1 - g / problem.g)
  return total


def _plan_for(
  problem: Problem, chip: ChipSpec, tiling: tuple[int, int, int]
) -> Plan:
  block = row_block(problem)
  m = round_up(problem.m, block)
  tile_m = min(round_up(tiling[0], block), m)
  tile_k = _tile(problem.k, tiling[1], carriers.unit(problem, "k"))
  tile_n = _tile(problem.n, tiling[2], carriers.unit(problem, "n"))
  if pairs.is_wide(problem):
    tile_n = problem.n
  tail = max(TAIL_ROWS, sublanes(problem.rhs_dtype))
  k = _padded(problem.k, tile_k, tail)
  n = _padded(problem.n, tile_n, tail)
  plan = Plan(
    problem=dataclasses.replace(scales.padded(problem, k, n), m=m),
    chip=chip,
    tile_m=tile_m,
    tile_k=tile_k,
    tile_n=tile_n,
    block=block,
    chunk=_chunk(problem, chip, tile_m, block),
    run=1,
    parts=1,
    rhs_buffers=2,
    compute_dtype=chip_compute_dtype(problem, chip),
    pads=(m - problem.m, k - problem.k, n - problem.n),
  )
  return _with_run(plan, _run(plan))


def _chunk(problem: Problem, chip: ChipSpec, tile_m: int, block: int) -> int:
  """Rows of one MXU product: near-equal parts of a tile, none above the MXU's.

  Fewer rows than the MXU has leave it waiting for its next weight tile, and
  more are more than the end of a group needs, and more code.
  """
  most = chip.mxu_size
  chunks = cdiv(tile_m, most)
  chunk = round_up(cdiv(tile_m, chunks), block)
  narrow = bits(problem.rhs_dtype) <= 8 and chip.name in SHORT_NT_ENDS
  if narrow and tile_m <= LANES:
    return chunk  # one product, and nothing to ask which
  if problem.contracts_lanes and most > LANES:
    # With fewer rows than the MXU has, the compiler keeps these in it instead
    # of the weight, and transposes the result in the XLU. The MXU takes as
    # long either way, and rows past the window come to nothing. (The last
    # chunk, alone in a small tile, is a block longer.)
    chunk = most - block if tile_m <= most - block else most
  return chunk


def _enough_cycles(problem: Problem, chip: ChipSpec) -> int:
  """Cycles of the MXU that a product should take, or 0 for any number."""
  cycles = ENOUGH_CYCLES.get((problem.kind, chip.name), 0)
  if problem.lhs_quantization:
    cycles = max(cycles, ENOUGH_CYCLES_QUANTISING.get(chip.name, 0))
  return cycles


def _run(plan: Plan) -> int:
  """How many chunks one product takes: enough to keep the MXU busy."""
  enough = _enough_cycles(plan.problem, plan.chip)
  twin = pairs.twin(plan)
  wanted = cdiv(enough, _bundles(twin, plan.chunk, twin.tile_k))
  run = max(1, min(wanted, MOST_CHUNKS, plan.tile_m // plan.chunk))
  while run > 1 and _code_bundles(_with_run(plan, run)) > MOST_BUNDLES:
    run -= 1
  return run


def _tile(size: int, tile: int, unit: int) -> int:
  """Clips to the dimension, which needs no alignment; else whole units."""
  rounded = round_up(tile, unit)
  return size if rounded >= size else rounded


def _padded(size: int, tile: int, rows: int) -> int:
  """A dimension in one tile may have any size; a last tile must be movable."""
  return size if tile == size else round_up(size, rows)


def candidates(
  problem: Problem, chip: ChipSpec
) -> Iterator[tuple[int, int, int]]:
  """Yields (tile_m, tile_k, tile_n), larger tiles first."""
  block = row_block(problem)
  most_rows = min(round_up(problem.m, block), MOST_ROWS)
  # An MXU of 256 columns takes 128 rows or fewer in the same time.
  least = 128 if chip.mxu_size > 128 else block
  heights = (MOST_ROWS, 1024, 512, 256, 128, 64, 32)
  rows = {min(max(r, least), most_rows) for r in heights}
  columns = _splits(problem.n, chip)
  for tile_n in columns[:1] if pairs.is_wide(problem) else columns:
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


def cost_seconds(plan: Plan) -> float:
  """Estimated time: the longer of MXU and DMA, and a little for each step.

  Groups differ in size: half a visit and half a chunk are lost in each.
  """
  plan = pairs.twin(plan)
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
  first = _first_seconds(plan)
  padding = _padding_bytes(plan) / bandwidth
  return (seconds + steps * STEP_SECONDS) / _cores_used(plan) + first + padding


def _first_seconds(plan: Plan) -> float:
  """What nothing is computed beside: the first weight, or the last result."""
  size = plan.tile_k * plan.tile_n * bits(plan.problem.rhs_dtype) // 8
  return size / (plan.chip.hbm_bytes_per_second * rates.DMA_SHARE)


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
    + reads * weights * bits(problem.rhs_dtype) / 8
    + reads * steps.beside_bytes(problem, problem.k, problem.n)
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
  return 2 * weight * bits(dtype) // 8
