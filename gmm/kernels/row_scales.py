"""Scales of lhs: one for all of it, or one for each row.

They multiply the complete float32 sums of a row, before they are rounded. In
HBM and VMEM they lie along lanes, 128 rows of lhs in a row of a table, where
they take 1/128 of the room of a column; a step brings the part of the table
that its window needs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from gmm.kernels.grid import LANES, cdiv, round_up
from gmm.kernels.plan import Plan

# Rows of a register of 32-bit values: where copies may start.
_ROWS = 8


def rows_in_vmem(plan: Plan) -> int:
  """Rows of the table that a window needs, wherever it starts."""
  if plan.problem.lhs_scales == 1:
    return _ROWS
  # A window starts up to a register's rows of the table after the copy does,
  # and `column` looks at one row more.
  return round_up(cdiv(plan.buffer_rows - 1, LANES) + _ROWS + 1, _ROWS)


def table(scale: jax.Array, plan: Plan) -> jax.Array:
  """The scales [1, 1] or [m, 1] as the kernel copies them: [rows, 128]."""
  flat = scale.astype(np.float32).reshape(-1)
  rows = rows_in_vmem(plan)
  if plan.problem.lhs_scales == 1:
    return jnp.broadcast_to(flat, (rows, LANES))
  rows += cdiv(flat.size, LANES)
  return jnp.pad(flat, (0, rows * LANES - flat.size)).reshape(rows, LANES)


def first_row(plan: Plan, start: jax.Array) -> Any:
  """The row of the table from which the scales of rows from `start` on lie."""
  if plan.problem.lhs_scales == 1:
    return 0
  part = np.int32(_ROWS * LANES)
  return pl.multiple_of(lax.div(start, part) * _ROWS, _ROWS)


def column(plan: Plan, ref: Any, start: jax.Array, count: int) -> jax.Array:
  """The scales of rows [start, start + count), float32 [count, 1] or [1, 1].

  From lanes they go to sublanes, one register of 128 at a time.

  Args:
    plan: the static choices.
    ref: rows of the table, from `first_row` of the window on.
    start: a row of lhs, less those before the first one in `ref`.
    count: of rows.
  """
  if plan.problem.lhs_scales == 1:
    return ref[0:1, 0:1]
  lanes = np.int32(LANES)
  first, offset = lax.div(start, lanes), lax.rem(start, lanes)
  parts = []
  for i in range(cdiv(count, LANES)):
    size = min(LANES, count - i * LANES)
    row, after = (ref[pl.ds(first + (i + j), 1), :] for j in range(2))
    lane = lax.broadcasted_iota(jnp.int32, (size, LANES), 1)
    wanted = lax.broadcasted_iota(jnp.int32, (size, LANES), 0) + offset
    spread = jnp.where(lane == wanted, row, np.float32(0))
    spread = jnp.where(lane == wanted - lanes, after, spread)
    parts.append(jnp.sum(spread, axis=1, keepdims=True))
  return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
