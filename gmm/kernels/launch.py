"""What surrounds both kernels' bodies: the pallas call, its name, its types."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm import varying
from gmm.config import PACKED, Problem, bits
from gmm.kernels import float8, pairs, small_blocks, turning
from gmm.kernels.grid import LANES, round_up
from gmm.kernels.plan import Plan

# Products of 8-bit integers that float32 adds up exactly: 2**24 / 2**14.
EXACT_INT8_TERMS = 1024


def kernel_name(plan: Plan) -> str:
  """The problem and its tiles, as profiles show them."""
  problem = plan.problem
  if problem.kind == "gmm":
    mode = "gmm_v2-nt" if problem.transpose_rhs else "gmm_v2-nn"
    if problem.pair is not None:
      mode += f"-{problem.pair}"
  else:
    mode = "tgmm_v2-tn"
  return (
    f"{mode}-g_{problem.g}-m_{problem.m}-k_{problem.k}-n_{problem.n}"
    f"-tm_{plan.tile_m}-tk_{plan.tile_k}-tn_{plan.tile_n}"
  )


def interpret_params(interpret: Any) -> Any:
  """True means TPU interpret mode: the plain one has no dynamic slices."""
  return pltpu.InterpretParams() if interpret is True else interpret


def last_lanes(plan: Plan, interpreted: bool) -> jax.Array:
  """Lanes that copies move of last tiles: of k, of n and of words, int32 [3].

  Words are those of a weight that is packed along its lanes.

  A TPU's memory holds whole registers of 128 lanes: a last tile that ends
  within one is moved with the lanes that pad it, which nothing reads.
  Interpreted memory has no such lanes. The kernel is told, and does not ask.
  """
  packed = plan.k if plan.problem.packed_axis == "k" else plan.n
  lasts = (plan.k.last, plan.n.last, packed.last // PACKED)
  return jnp.array(
    [x if interpreted else round_up(x, LANES) for x in lasts], jnp.int32
  )


def call(
  body: Callable[..., None],
  plan: Plan,
  operands: Sequence[jax.Array],
  *,
  out_shape: tuple[int, ...],
  scratch_shapes: Sequence[Any],
  input_output_aliases: dict[int, int],
  interpret: Any,
  outs: int = 1,
) -> Any:
  """Runs `body` once per core, with every array left in HBM.

  Args:
    body: called with the refs of sizes, offset, last lanes, the other operands,
      the output and the scratch, in this order.
    plan: the static choices.
    operands: group_sizes int32 [g_total], group_offset int32 [1], arrays.
    out_shape: of the result, in `plan.problem.out_dtype`.
    scratch_shapes: of the body.
    input_output_aliases: as in `pallas_call`.
    interpret: False, True or InterpretParams.
    outs: results of that shape.

  Returns:
    The result, or a list of several.
  """
  problem = plan.problem
  sizes, offset, *arrays = operands
  operands = varying.vary_alike(
    sizes, offset, last_lanes(plan, bool(interpret)), *arrays
  )
  in_hbm = pl.BlockSpec(memory_space=pl.ANY)
  result = jax.ShapeDtypeStruct(
    out_shape,
    problem.out_dtype,
    manual_axis_type=jax.typeof(operands[0]).manual_axis_type,
  )
  sides = pairs.sides(problem)
  run = pl.pallas_call(
    body,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=3,
      grid=(plan.chip.num_cores,),
      in_specs=[in_hbm] * len(arrays),
      out_specs=in_hbm if outs == 1 else [in_hbm] * outs,
      scratch_shapes=scratch_shapes,
    ),
    out_shape=result if outs == 1 else [result] * outs,
    input_output_aliases=input_output_aliases,
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel",),
      vmem_limit_bytes=plan.chip.vmem_budget,
    ),
    cost_estimate=pl.CostEstimate(
      flops=2 * problem.m * problem.k * problem.n * sides.rhs,
      bytes_accessed=bytes_accessed(problem),
      transcendentals=problem.m * problem.n * (problem.pair == "gated"),
    ),
    interpret=interpret_params(interpret),
    name=kernel_name(plan),
    metadata={
      "tiles.tile_m": str(plan.tile_m),
      "tiles.tile_k": str(plan.tile_k),
      "tiles.tile_n": str(plan.tile_n),
      "dims.size_lhs_sublane": str(plan.block),
      "dims.product_rows": ",".join(
        str(rows)
        for rows in plan.products
        for _ in small_blocks.arm_turns(plan)
      ),
      "dims.product_parts": str(plan.parts),
    },
  )
  # Programs may have 64-bit types on; the scalar core has none.
  with jax.enable_x64(False):
    return run(*operands)


def bytes_accessed(problem: Problem) -> int:
  """Bytes of all operands and results, each moved once, without padding."""
  sides = pairs.sides(problem)
  weights = problem.g * problem.k * problem.n
  total = (
    sides.lhs * problem.m * problem.k * problem.lhs_dtype.itemsize
    + sides.rhs * weights * bits(problem.rhs_dtype) // 8
    + sides.out * problem.m * problem.n * problem.out_dtype.itemsize
  )
  if problem.scale_block:
    # Those of gate and up are one array.
    arrays = 1 if problem.pair == "gated" else sides.rhs
    scales = math.prod(problem.scale_shape) * problem.scale_dtype.itemsize
    total += arrays * scales
  if problem.has_bias:
    total += sides.rhs * problem.g * problem.n * 4
  return total


def _precision(plan: Plan, compute: np.dtype) -> lax.Precision | None:
  """As asked; the kernels' compiler has no HIGH, which HIGHEST includes."""
  if compute != np.float32:
    return None
  if plan.problem.precision == lax.Precision.HIGH:
    return lax.Precision.HIGHEST
  return plan.problem.precision


def dot(
  plan: Plan,
  lhs: jax.Array,
  rhs: jax.Array,
  contract: tuple[int, int],
) -> jax.Array:
  """Widens both operands and multiplies them, contracting one axis of each.

  A weight of float8 is not widened where the MXU takes it beside bfloat16.

  Integers that the MXU does not take are multiplied as bfloat16, which holds
  them exactly, in pieces short enough for float32 to add up exactly.
  """
  compute = plan.compute_dtype
  integers = all(jnp.issubdtype(x.dtype, jnp.integer) for x in (lhs, rhs))
  if contract == (1, 1) and turning.turns_weight(plan, lhs, rhs):
    rhs, contract = turning.transposed_bytes(rhs), (1, 0)
  if contract == (0, 0) and turning.turns_words(plan, lhs, rhs):
    (lhs, rhs), contract = turning.transposed_words(lhs, rhs), (1, 0)
  if contract == (1, 1) and rhs.shape[0] == 1:
    # The compiler makes a multiply and a sum of this one, in float32 only.
    compute = np.dtype(np.float32)
  ratio = None
  if not all(map(_is_float8, (lhs.dtype, rhs.dtype, compute))):
    lhs = lhs.astype(compute)
    if float8.stays_narrow(plan, rhs.dtype, compute):
      rhs, ratio = float8.narrow(plan, rhs)
    else:
      rhs = rhs.astype(compute)
  dims = (((contract[0],), (contract[1],)), ((), ()))
  is_float = jnp.issubdtype(compute, jnp.floating)
  exact_pieces = integers and is_float

  def product(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.dot_general(
      x,
      y,
      dims,
      precision=_precision(plan, compute),
      preferred_element_type=np.float32 if is_float else np.int32,
    )

  if not exact_pieces:
    value = product(lhs, rhs)
    return value if ratio is None else value * ratio
  total = None
  size = lhs.shape[contract[0]]
  for start in range(0, size, EXACT_INT8_TERMS):
    end = min(start + EXACT_INT8_TERMS, size)
    part = product(
      lax.slice_in_dim(lhs, start, end, axis=contract[0]),
      lax.slice_in_dim(rhs, start, end, axis=contract[1]),
    ).astype(np.int32)
    total = part if total is None else total + part
  return total


def _is_float8(dtype: np.dtype) -> bool:
  return dtype.itemsize == 1 and jnp.issubdtype(dtype, jnp.floating)


def pieces(size: int, piece: int, start: Any = 0) -> list[pl.Slice]:
  """Cuts [start, start + size) into slices of at most `piece`."""
  return [
    pl.ds(_aligned(start, at), min(piece, size - at))
    for at in range(0, size, piece)
  ]


def _aligned(start: Any, at: int) -> Any:
  return (
    start + at if isinstance(start, int) else pl.multiple_of(start + at, LANES)
  )


def each_part(size: int, parts: int, fn: Callable[[Any, int], None]) -> None:
  """Calls fn(start, size) for equal parts of [0, size), in a loop."""
  if parts == 1:
    fn(0, size)
    return
  part = size // parts

  @pl.loop(0, parts)
  def _(i: jax.Array) -> None:
    fn(pl.multiple_of(i * part, LANES), part)


def pad_axes(x: jax.Array, pads: dict[int, int]) -> jax.Array:
  """Pads the ends of axes with zeros; returns `x` itself for no padding."""
  if not any(pads.values()):
    return x
  widths = [(0, pads.get(axis, 0)) for axis in range(x.ndim)]
  return jnp.pad(x, widths)
