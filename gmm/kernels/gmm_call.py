"""The call of the forward kernel: its operands padded, its result cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gmm.config import PACKED
from gmm.kernels import grid, launch, row_scales
from gmm.kernels.gmm_kernel import Body
from gmm.kernels.gmm_memory import Memory, scratch
from gmm.kernels.plan import Plan


class Extras(NamedTuple):
  """Operands that a product may do without.

  Attributes:
    scale: as `Problem.scale_shape` says.
    lhs_scale: [1, 1] or [m, 1].
    bias: [g, n].
    existing_out: [m, n].
  """

  scale: jax.Array | None = None
  lhs_scale: jax.Array | None = None
  bias: jax.Array | None = None
  existing_out: jax.Array | None = None


def gmm(
  plan: Plan,
  operands: Sequence[jax.Array],
  extras: Extras,
  interpret: Any,
) -> jax.Array:
  """Runs the kernel.

  Args:
    plan: from `tiling.make_plan`.
    operands: sizes int32 [g_total] within [0, m], offset int32 [1] within
      [0, g_total], lhs [m, k], rhs [g, k, n] or [g, n, k], as before padding.
    extras: what the product is made of besides, as before padding.
    interpret: False, True or InterpretParams.

  Returns:
    [m, n].
  """
  sizes, offset, lhs, rhs = operands
  problem = plan.problem
  pad_m, pad_k, pad_n = plan.pads
  pads = [0, pad_n, pad_k] if problem.transpose_rhs else [0, pad_k, pad_n]
  if problem.packed_axis:
    pads[1 if problem.packs_rows else 2] //= PACKED
  arrays = [
    sizes,
    offset,
    launch.pad_axes(lhs, {0: pad_m, 1: pad_k}),
    launch.pad_axes(rhs, dict(enumerate(pads))),
  ]
  arrays += _padded_extras(plan, extras)
  flat, tree = jax.tree.flatten(scratch(plan))
  first_out = len(arrays) + 1

  def body(*refs: Any) -> None:
    sizes_ref, offset_ref, lanes, lhs_ref, rhs_ref, *more = refs[:first_out]
    out_ref, *scratch_refs = refs[first_out:]
    more = iter(more)
    memory = Memory(
      plan=plan,
      rows=grid.RowGrid.of(plan),
      lhs=lhs_ref,
      rhs=rhs_ref,
      scale=next(more) if problem.scale_block else None,
      lhs_scale=next(more) if problem.lhs_scales else None,
      bias=next(more) if problem.has_bias else None,
      out=out_ref,
      buf=jax.tree.unflatten(tree, scratch_refs),
      lanes=lanes,
    )
    Body(memory).run(sizes_ref, offset_ref)

  out = launch.call(
    body,
    plan,
    arrays,
    out_shape=(problem.m, problem.n),
    scratch_shapes=flat,
    input_output_aliases={len(arrays): 0} if problem.has_existing else {},
    interpret=interpret,
  )
  if pad_m or pad_n:
    out = out[: problem.m - pad_m, : problem.n - pad_n]
  return out


def _padded_extras(plan: Plan, extras: Extras) -> list[jax.Array]:
  """Those that there are, in the order of the kernel's operands."""
  problem = plan.problem
  pad_m, _, pad_n = plan.pads
  arrays = []
  if extras.scale is not None:
    _, blocks, lanes = problem.scale_shape
    pads = {
      1: blocks - extras.scale.shape[1],
      2: lanes - extras.scale.shape[2],
    }
    arrays.append(launch.pad_axes(extras.scale, pads))
  if extras.lhs_scale is not None:
    arrays.append(row_scales.table(extras.lhs_scale, plan))
  if extras.bias is not None:
    bias = extras.bias.astype(np.float32)[:, None, :]
    arrays.append(launch.pad_axes(bias, {2: pad_n}))
  if extras.existing_out is not None:
    arrays.append(launch.pad_axes(extras.existing_out, {0: pad_m, 1: pad_n}))
  return arrays
