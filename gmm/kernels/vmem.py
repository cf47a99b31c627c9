"""How much VMEM a kernel takes: its own buffers, and the compiler's.

The buffers are known. What the compiler adds was found in its listings: room
for values that one product keeps, for every product in the code anew.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm.config import Problem, bits
from gmm.kernels import (
  carriers,
  pairs,
  quantizing,
  row_scales,
  scales,
  small_blocks,
  tgmm_scales,
)
from gmm.kernels.grid import LANES, round_up
from gmm.kernels.plan import PIECE_N, Plan, sublanes

# What the compiler may take besides `_most_spills`; and the most it keeps of a
# widened weight.
_COMPILER_BYTES = 5 << 19
_WIDENED_BYTES = 3 << 20


def needed(plan: Plan) -> int:
  """Bytes that must be there for the kernel to compile: an upper bound."""
  more, plan = pairs.more_bytes(plan), pairs.twin(plan)
  return more + buffers(plan) + _COMPILER_BYTES + _most_spills(plan)


def estimate(plan: Plan) -> int:
  """Bytes that the compiler is expected to report."""
  more, plan = pairs.more_bytes(plan), pairs.twin(plan)
  return more + buffers(plan) + _usual_spills(plan)


def buffers(plan: Plan) -> int:
  """Bytes of the kernel's own scratch, where it is of one product."""
  problem = plan.problem
  rows, k, n = plan.buffer_rows, plan.tile_k, plan.tile_n
  lhs = 2 * _padded_bytes(rows, k, problem.lhs_dtype)
  zeros = _padded_bytes(plan.zero_rows, problem.n, problem.out_dtype)
  if problem.kind == "tgmm":
    dout = 2 * _padded_bytes(rows, n, problem.rhs_dtype)
    out = 2 * _padded_bytes(k, n, problem.out_dtype)
    acc = _padded_bytes(k, n, problem.acc_dtype)
    tail = problem.k % plan.zero_rows
    zeros += _padded_bytes(tail, problem.n, problem.out_dtype)
    return lhs + dout + out + acc + zeros + tgmm_scales.vmem_bytes(plan)
  rhs = _weight_bytes(plan)
  if problem.scale_block:
    rhs += _padded_bytes(*scales.shape_in_tile(plan), problem.scale_dtype)
  if problem.has_bias:
    rhs += _padded_bytes(1, n, np.dtype(np.float32))
  rhs *= plan.rhs_buffers
  out = _padded_bytes(rows, n, problem.out_dtype)
  out *= 4 if problem.has_existing else 2
  acc = _padded_bytes(quantizing.acc_rows(plan), n, problem.acc_dtype)
  carry = _padded_bytes(plan.block, n, problem.out_dtype)
  if problem.lhs_quantization:
    shape = quantizing.scratch_shape(plan)
    carry += _padded_bytes(*shape, problem.lhs_quantization)
  if problem.packs_lanes:  # once more, the other way round
    words = carriers.tile_shape(plan)[::-1]
    carry += _padded_bytes(*words, np.dtype(np.int32))
  if problem.lhs_scales:
    shape = row_scales.rows_in_vmem(plan), LANES
    carry += 2 * _padded_bytes(*shape, np.dtype(np.float32))
  return lhs + rhs + out + acc + carry + zeros


def _weight_bytes(plan: Plan) -> int:
  if plan.problem.packed_axis:
    return _padded_bytes(*carriers.tile_shape(plan), np.dtype(np.int32))
  k, n = plan.tile_k, plan.tile_n
  shape = (n, k) if plan.problem.transpose_rhs else (k, n)
  return _padded_bytes(*shape, plan.problem.rhs_dtype)


def _padded_bytes(rows: int, columns: int, dtype: np.dtype) -> int:
  """Bytes of a matrix in VMEM."""
  padded = round_up(rows, sublanes(dtype)) * round_up(columns, LANES)
  return padded * bits(dtype) // 8


def _most_spills(plan: Plan) -> int:
  """An upper bound of the values that products keep in VMEM.

  The result of a piece, rows of lhs as the MXU takes them, and what operands
  become that have to be widened.
  """
  problem, n = plan.problem, min(plan.tile_n, PIECE_N)
  lhs, rhs = sum(plan.products) * plan.tile_k, plan.tile_k * n
  rows = max(plan.products)
  if problem.kind == "tgmm":
    lhs //= plan.parts
    rows, rhs = plan.tile_k // plan.parts, sum(plan.products) * n
  result = rows * round_up(n, LANES) * 4
  wide = plan.compute_dtype.itemsize
  if plan.turn:
    return _spills_of_turn(plan) * 3 // 2
  if problem.scale_block:
    # What is scaled, in float32: a second result, and lhs.
    result += result + rows * plan.tile_k * (4 + wide)
    if small_blocks.scales_weight(plan):
      return result + lhs * wide * 9 // 8 + rhs * (4 + wide)
  if _takes_passes(problem):
    return result + (lhs + rhs) * 3 * wide  # the parts that are multiplied
  if problem.rhs_dtype != plan.compute_dtype and _widens_slowly(plan):
    return result + (lhs + rhs) * 8
  lhs = lhs * wide * 9 // 8
  if problem.rhs_dtype != plan.compute_dtype:
    return result + lhs + min(rhs * wide, _WIDENED_BYTES)
  if problem.kind == "tgmm":  # what stays in registers needs no room
    return max(result, lhs * 2 // 3)
  return result + lhs


def _usual_spills(plan: Plan) -> int:
  """What products usually keep: lhs where the MXU does not take it as it is."""
  problem, wide = plan.problem, plan.compute_dtype.itemsize
  rows = sum(plan.products)
  if _takes_passes(problem):
    return _most_spills(plan) // 2
  if problem.kind == "tgmm":
    # Transposed; short ones stay in registers.
    long = sum(r for r in plan.products if r > LANES * 2)
    return long * plan.tile_k // plan.parts * wide * 5 // 8
  if plan.turn:
    return _spills_of_turn(plan)
  kept = rows * plan.tile_k * wide
  if problem.rhs_dtype != plan.compute_dtype and _widens_slowly(plan):
    # In NN the products share the room for a piece of the weight.
    pieces = len(plan.products) if problem.transpose_rhs else 1
    piece = plan.tile_k * min(plan.tile_n, PIECE_N)
    return pieces * piece * 4 + kept // 2
  if problem.lhs_quantization and plan.parts == 1:
    return kept // 4  # a chunk at a time
  if problem.lhs_dtype != plan.compute_dtype:
    return kept if problem.lhs_dtype.itemsize > 1 else kept // 2
  if plan.compute_dtype != np.dtype(jnp.bfloat16):
    return kept // 10
  if plan.chip.mxu_size == LANES:
    return kept
  return kept // 10 if problem.transpose_rhs else kept * 2 // 5


def _spills_of_turn(plan: Plan) -> int:
  """What a turn usually keeps, in room that the products share.

  Sums in float32, before and after they are scaled, and rows' scales.
  """
  return max(plan.products) * (8 * plan.tile_n // plan.parts + 2048)


def _takes_passes(problem: Problem) -> bool:
  """Whether float32 is multiplied in several passes of bfloat16 parts."""
  return problem.precision in (lax.Precision.HIGH, lax.Precision.HIGHEST)


def _widens_slowly(plan: Plan) -> bool:
  """Whether 8-bit operands are unpacked through 32-bit values."""
  return plan.chip.name == "v4" and plan.problem.rhs_dtype.itemsize == 1
