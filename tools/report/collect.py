"""Compiles products and puts together what the report says of them."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmm import aot, ops
from gmm.aot import topology
from gmm.aot.model import plan_for
from gmm.kernels import chip as chips
from gmm.kernels import vmem
from gmm.timing import rates, visits
from testing import peers
from testing.workloads import Workload
from tools import published
from tools.report.request import Request

VISITS_SHOWN = 24
# Rows of the program whose copies are counted: they do not depend on them.
_FEW_ROWS = 1024

NOTES = (
  "Stalls within a bundle, VMEM bank conflicts, waits of the scalar core.",
  "Fetching instructions: large kernels do not fit the instruction memory.",
  "What a DMA costs to issue, and its latency where nothing hides it.",
  "HBM refresh and whatever else of the program uses HBM at the same time.",
  "Clock changes under load. docs/model.md says how well the model fits.",
)


def header(title: str, names: Iterable[str]) -> dict[str, Any]:
  """What a report says before its products.

  Args:
    title: the model's name, or the shape.
    names: of chips.
  """
  return {
    "version": 1,
    "title": title,
    "jax": jax.__version__,
    "libtpu": topology.compiler_version(),
    "chips": {name: _peaks(name) for name in names},
    "products": [],
    "copies": None,
    "notes": list(NOTES),
  }


def _peaks(name: str) -> dict[str, Any]:
  rate, spec = rates.rates(name), chips.CHIPS[name]
  return {
    "bf16_flops": rate.flops["bfloat16"] * rate.num_cores,
    "hbm_bytes_per_second": rate.device_bytes_per_second,
    "vmem_bytes": spec.vmem_bytes,
    "clock_hz": rate.clock_hz,
    "source": "jax's chip facts (pltpu.get_tpu_info_for_chip), one JAX device; "
    "the clock follows from the peak",
  }


# ---- products


def product(
  request: Request, compile_program: Callable[..., aot.Compiled]
) -> dict[str, Any]:
  """Compiles one product; what the compiler refuses has an "error".

  Args:
    request: what to compile.
    compile_program: from `aot.scheduler`.
  """
  found = {
    "chip": request.chip,
    "workload": request.workload.name,
    "mode": request.mode,
    **request.shape,
    **request.operands,
    "error": None,
  }
  options = {**request.operands, "chip": request.chip}
  try:
    fn, specs = aot.product(request.mode, **request.shape, **options)
    plan = plan_for(request.mode, **request.shape, **options)
    compiled = compile_program(fn, *specs, chip=request.chip)
  except (aot.CompileError, ValueError, NotImplementedError) as error:
    return found | {"error": str(error).splitlines()[0]}
  (schedule,) = compiled.schedules
  return found | {
    "kernel": schedule.kernel,
    "tiles": {
      "tile_m": plan.tile_m,
      "tile_k": plan.tile_k,
      "tile_n": plan.tile_n,
    },
    "bundles": schedule.bundles,
    "code_bytes": compiled.code_bytes,
    "compile_seconds": compiled.compile_seconds,
    "temp_bytes": compiled.temp_bytes,
    "vmem": {
      "claimed": vmem.needed(plan),
      "estimated": vmem.estimate(plan),
      "reported": schedule.vmem_bytes,
      "capacity": plan.chip.vmem_bytes,
    },
    "arms": [_arm(arm) for arm in schedule.arms],
    "peers": peers.seconds(request.chip, request.workload.name, request.mode)
    if request.is_plain
    else {},
    "step_bundles": schedule.step_bundles,
    **_model(request, schedule),
  }


def _arm(arm: aot.Arm) -> dict[str, Any]:
  return dataclasses.asdict(arm) | {
    "cycles": arm.cycles,
    "mxu_busy": arm.mxu_busy,
  }


def _model(request: Request, schedule: aot.Schedule) -> dict[str, Any]:
  """The bound for the first sizes, and an estimate for each."""
  models = {
    name: aot.roofline(
      request.mode,
      **request.shape,
      **request.operands,
      chip=request.chip,
      group_sizes=sizes,
      schedule=schedule,
    )
    for name, sizes in request.patterns.items()
  }
  first = next(iter(models.values()))
  return {
    "roofline": {
      "flops": first.flops,
      "bytes": first.bytes,
      "compute_seconds": first.compute_seconds,
      "memory_seconds": first.memory_seconds,
      "bound": first.bound,
      "seconds": first.bound_seconds,
    },
    "estimates": {
      name: {
        key: getattr(model, key)
        for key in (
          "seconds",
          "mxu_seconds",
          "dma_seconds",
          "idle_seconds",
          "rows_useful",
          "rows_run",
          "visits",
          "roofline_share",
          "dma_share",
        )
      }
      for name, model in models.items()
    },
  }


def visited_rows(request: Request) -> dict[str, Any]:
  """The first visits of a product, for the picture of the rows they work on."""
  name, sizes = "given", request.group_sizes
  if sizes is None:
    name = "mean+-1"
    sizes = visits.size_patterns(name, request.workload.m, request.workload.g)
  plan = plan_for(
    request.mode, **request.shape, **request.operands, chip=request.chip
  )
  found = visits.visits(plan, sizes)
  shown = [
    {
      key: int(getattr(found, key)[i])
      for key in ("group", "start", "rows", "lo", "hi", "rows_run")
    }
    for i in range(min(found.count, VISITS_SHOWN))
  ]
  return {
    "sizes_name": name,
    "visits_total": found.count,
    "visits_shown": len(shown),
    "groups": sorted({(v["lo"], v["hi"]) for v in shown}),
    "visits": shown,
  }


# ---- copies


def copies(
  workload: Workload, chip: str, layers: int | None, dtype: str = "bfloat16"
) -> dict[str, Any] | None:
  """Copies of weights in a step, with the explicit transpose and in place.

  Args:
    workload: the projection into an expert; its gate and its way out have the
      same size. Without layers, the one weight of that shape.
    chip: to compile for.
    layers: of the model, or None.
    dtype: of activations and weights.

  Returns:
    What the page shows; None where integers have no gradient to transpose for.

  Raises:
    CompileError: a step does not fit the chip.
  """
  if jnp.issubdtype(dtype, jnp.integer):
    return None
  model = workload.name.split("/")[0]
  is_gemma = model == "gemma4-26b" and chip == "v6e"
  return {
    "chip": chip,
    "model": model,
    "layers": layers or 1,
    "explicit": _copies_of_step(
      (workload, layers, dtype), chip, in_place=False
    ),
    "in_place": _copies_of_step((workload, layers, dtype), chip, in_place=True),
    "measured_milliseconds": published.GEMMA_MILLISECONDS if is_gemma else None,
    "measured_source": published.MAXTEXT if is_gemma else None,
  }


def _copies_of_step(
  step: tuple[Workload, int | None, str], chip: str, *, in_place: bool
) -> dict[str, Any]:
  workload, layers, dtype = step
  g, k, n = workload.g, workload.k, workload.n
  config = ops.Config(
    chip=chip,
    use_gmm_v2_transposed_rhs_dlhs=in_place,
    rhs_layout="gkn",  # row-major, as training states are
  )
  weights = [(g, k, n)] if layers is None else [(g, k, n), (g, k, n), (g, n, k)]
  fn = functools.partial(_step, config=config)
  compiled = aot.compile_for(
    fn,
    aot.spec((_FEW_ROWS, k), dtype),
    [aot.spec(shape, dtype) for shape in weights],
    aot.spec((g,), jnp.int32),
    chip=chip,
  )
  found = [
    c
    for c in aot.weight_copies(
      compiled, min_bytes=g * k * n * jnp.dtype(dtype).itemsize, chip=chip
    )
    if sorted(_dims(c.shape)) == sorted((g, k, n))
  ]
  times = layers or 1
  return {
    "milliseconds_per_step": 1e3 * times * sum(c.total_seconds for c in found),
    "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
    "copies": [_copy(c, times) for c in found],
  }


def _step(
  x: jax.Array, weights: list[jax.Array], sizes: jax.Array, *, config: Any
) -> Any:
  """One layer of experts, forward and backward."""

  def layer(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
    gmm = functools.partial(ops.gmm, group_sizes=sizes, config=config)
    if len(weights) == 1:
      return gmm(x, weights[0])
    gate, up, down = weights
    return gmm(jax.nn.silu(gmm(x, gate)) * gmm(x, up), down)

  out, vjp = jax.vjp(layer, x, weights)
  return out, vjp(out)


def _dims(shape: str) -> list[int]:
  return [int(d) for d in re.findall(r"\d+", shape.partition("[")[2])]


def _copy(copy: aot.Copy, layers: int) -> dict[str, Any]:
  def order(minor_to_major: Any) -> str:
    return "{" + ",".join(map(str, minor_to_major or ())) + "}"

  return {
    "name": copy.name,
    "op_name": copy.op_name,
    "source": copy.source,
    "shape": copy.shape,
    "layout_in": order(copy.layout_in),
    "layout_out": order(copy.layout_out),
    "bytes": copy.bytes,
    "times": copy.times * layers,
    "seconds": copy.seconds,
  }


def checked_group_sizes(path: str, m: int, g: int) -> np.ndarray:
  """Reads group sizes from a .npy file.

  Raises:
    ValueError: it cannot be read, or holds something else.
  """
  try:
    # Of a path NumPy does not close all files that it cannot read.
    with open(path, "rb") as file:
      sizes = np.load(file, allow_pickle=False)
  except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"`group_sizes` {path!r} cannot be read: {error}"
    ) from None
  if not isinstance(sizes, np.ndarray):
    raise ValueError(f"`group_sizes` {path!r} holds several arrays; want one")
  return visits.checked_sizes(sizes, m, g)


def finite(report: Mapping[str, Any]) -> bool:
  """Whether every number of a report is one."""
  leaves = jax.tree.leaves(report)
  return all(math.isfinite(x) for x in leaves if isinstance(x, float))
