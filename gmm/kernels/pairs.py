"""What two products in one kernel hold and move, next to a kernel of one.

A step of such a kernel multiplies by a tile of each of two weights (see
`config.Problem.pair`). Everything else is as in the kernel of one product:

    gated   lhs @ gate, lhs @ up -> act(gate, up)     one lhs,  one result
    split   lhs @ gate, lhs @ up -> gate, up          one lhs,  two results
    sum     x @ gate + y @ up                         two lhs,  one result

Gate and up of "gated" are the halves of one array [g, k, 2n] or [g, 2n, k]. A
DMA takes a tile of each half, if the second half starts on a whole register:
n is a multiple of 128 where it lies along lanes, of 32 or 64 where it does not.
(Scales and biases always have it in the lanes.) If it does not (704 for one, in
[g, k, 1408]), the step takes all 2n columns as one tile, adds up both products
in one accumulator [rows, 2n], and cuts that in two there: `is_wide`.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from gmm.config import Problem
from gmm.kernels.grid import LANES, round_up
from gmm.kernels.plan import Plan, sublanes

# Rows of a packed tile of formats of 8 bits or more, and so where its copies
# may start.
_ANY_ROWS = 32
# A format of half the bytes.
_HALF = {4: jnp.dtype(jnp.bfloat16), 2: jnp.dtype(jnp.int8)}


class Sides(NamedTuple):
  """How many operands and results of each kind there are."""

  lhs: int
  rhs: int
  out: int


_SIDES = {
  None: Sides(1, 1, 1),
  "gated": Sides(1, 2, 1),
  "split": Sides(1, 2, 2),
  "sum": Sides(2, 2, 1),
}


def sides(problem: Problem) -> Sides:
  """How many operands and results the problem's kernel has."""
  return _SIDES[problem.pair]


def is_wide(problem: Problem) -> bool:
  """Whether gate and up can only be moved as one tile of 2n columns."""
  unit = LANES
  if problem.transpose_rhs and not (problem.scale_block or problem.has_bias):
    unit = max(_ANY_ROWS, sublanes(problem.rhs_dtype))
  return problem.pair == "gated" and problem.n % unit > 0


def half_width(plan: Plan) -> int:
  """Where the second half of a buffer of two tiles starts."""
  return plan.tile_n if is_wide(plan.problem) else round_up(plan.tile_n, LANES)


def twin(plan: Plan) -> Plan:
  """The plan of one product that moves, multiplies and keeps as much.

  Two products of one lhs are one of twice the columns, and a sum of two is one
  of twice the contraction. The plan itself, if it is of one product.
  """
  p = plan.problem
  if p.pair is None:
    return plan
  if p.pair == "sum":
    problem = dataclasses.replace(p, pair=None, k=_twice(p.k))
    return dataclasses.replace(
      plan, problem=problem, tile_k=_twice(plan.tile_k)
    )
  out = p.out_dtype
  if p.pair == "gated":  # half of the columns leave the kernel
    out = _HALF.get(out.itemsize, out)
  problem = dataclasses.replace(p, pair=None, n=_twice(p.n), out_dtype=out)
  return dataclasses.replace(plan, problem=problem, tile_n=_twice(plan.tile_n))


def more_bytes(plan: Plan) -> int:
  """VMEM that the twin lacks: an accumulator where k is one tile."""
  if not is_wide(plan.problem) or plan.k.count > 1:
    return 0
  columns = round_up(2 * plan.problem.n, LANES)
  return plan.buffer_rows * columns * np.dtype(np.float32).itemsize


def _twice(size: int) -> int:
  return 2 * round_up(size, LANES)
