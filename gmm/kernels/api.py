"""The kernels' public wrappers: checked operands in, a planned call out."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from gmm import checks, config
from gmm.kernels import chip as chips
from gmm.kernels import gmm_call, tgmm_kernel
from gmm.kernels import tiling as tiles


def gmm_v2(
  lhs: jax.Array,
  rhs: jax.Array,
  group_sizes: jax.Array,
  *,
  group_offset: jax.Array | int | None = None,
  transpose_rhs: bool = False,
  preferred_element_type: Any = None,
  rhs_scale: jax.Array | None = None,
  rhs_bias: jax.Array | None = None,
  lhs_scale: jax.Array | None = None,
  lhs_quantization: Any = None,
  backward: bool = False,
  existing_out: jax.Array | None = None,
  precision: Any = None,
  tiling: tuple[int, int, int] | None = None,
  chip: str | None = None,
  interpret: Any = False,
) -> jax.Array:
  """Multiplies each group of rows of `lhs` by that group's matrix, on TPU.

    out[r] = lhs[r] @ rhs[group(r) - group_offset]    rows of local groups
    out[r] = 0                                        every other row

  where `rhs` is scaled by `rhs_scale` and `lhs` by `lhs_scale`; `rhs_bias` is
  added to rows of local groups, and `existing_out` to all rows. Not
  differentiable: use `ops.gmm` for that.

  Args:
    lhs: [m, k].
    rhs: [g, k, n], or [g, n, k] if `transpose_rhs`; read where it lies. Also of
      4 bits: int4, float4_e2m1fn, or eight int4 along k in an int32, the first
      one in the low bits: [g, k / 8, n].
    group_sizes: integers [g_total], g_total >= g. Rows of each group; clipped
      so that they add up to m at most.
    group_offset: int, or integer scalar or [1]: the group of `rhs[0]`.
    transpose_rhs: a static bool: NT instead of NN.
    preferred_element_type: the result's dtype. By default lhs's for 16- and
      32-bit floats, bfloat16 for float8, int32 for integers without scales and
      bfloat16 with some.
    rhs_scale: [g, k_blocks, n] float32 or bfloat16, for a quantised `rhs`: the
      weight in use is `rhs` times the scale of its block of k. k_blocks divides
      k; k is as in `lhs` and n as in the result, however `rhs` lies.
    rhs_bias: [g, n] float, added to rows of local groups before the rounding.
    lhs_scale: [1, 1] or [m, 1] float32 or bfloat16, for an int8 or float8
      `lhs`: sums are multiplied by it, in float32.
    lhs_quantization: "int8", "float8_e4m3fn" or "float8_e5m2": `lhs` is
      quantised to it in VMEM, as in `ops.gmm`.
    backward: a static bool: this is the gradient of lhs, where k and n have
      changed places: `rhs_scale` is [g, n_blocks, k], and an int32 `rhs` is
      packed along n.
    existing_out: [m, n] in the result's dtype, updated in place if donated.
    precision: for float32 operands: a `jax.lax.Precision` or its name.
    tiling: (tile_m, tile_k, tile_n): rows, contraction, columns of the result.
      Clipped to the shapes and rounded up to whole hardware tiles, and to whole
      blocks of `rhs_scale` along the axis that it has blocks of.
    chip: the TPU to choose tiles for, "v6e" for one; None finds out.
    interpret: True, or `pltpu.InterpretParams`, runs the kernel on any machine.

  Returns:
    [m, n]. Accumulated in float32 (int32 for integers) and rounded once.

  Raises:
    ValueError: shapes disagree, or `tiling` does not fit VMEM.
    TypeError: a dtype that no backend takes, or an argument of a wrong type.
    NotImplementedError: a valid request that this kernel or chip cannot serve.
  """
  problem = checks.gmm_problem(
    lhs,
    rhs,
    group_sizes,
    group_offset=group_offset,
    transpose_rhs=transpose_rhs,
    preferred_element_type=preferred_element_type,
    existing_out=existing_out,
    rhs_scale=rhs_scale,
    rhs_bias=rhs_bias,
    lhs_scale=lhs_scale,
    lhs_quantization=lhs_quantization,
    backward=backward,
    precision=precision,
  )
  checks.check_interpret(interpret)
  if problem.k == 0 and not problem.is_empty:
    # Biases alone: those of a weight of zeros.
    problem = dataclasses.replace(
      problem,
      k=1,
      scale_block=0,
      packed_axis="",
      lhs_scales=0,
      lhs_quantization=None,
    )
    lhs = jnp.zeros((problem.m, 1), problem.lhs_dtype)
    rhs = jnp.zeros(problem.weight_shape, problem.rhs_dtype)
    rhs_scale = lhs_scale = None
  plan = _plan(problem, tiling, chip)
  if problem.is_empty:
    if existing_out is not None:
      return jnp.asarray(existing_out)
    return jnp.zeros(problem.out_shape, problem.out_dtype)
  operands = _operands(problem, group_sizes, group_offset, (lhs, rhs))
  extras = gmm_call.Extras(
    *(
      None if x is None else jnp.asarray(x)
      for x in (rhs_scale, lhs_scale, rhs_bias, existing_out)
    )
  )
  return gmm_call.gmm(plan, operands, extras, interpret)


def tgmm_v2(
  lhs: jax.Array,
  dout: jax.Array,
  group_sizes: jax.Array,
  *,
  num_groups: int,
  group_offset: jax.Array | int | None = None,
  preferred_element_type: Any = None,
  precision: Any = None,
  transpose_out: bool = False,
  tiling: tuple[int, int, int] | None = None,
  chip: str | None = None,
  interpret: Any = False,
) -> jax.Array:
  """Multiplies the rows of each group of `lhs` and `dout`, over those rows.

    out[i] = lhs[rows of group i + group_offset]^T @ dout[the same rows]

  Zero for groups without rows. Not differentiable: use `ops.tgmm` for that.

  Args:
    lhs: [m, k].
    dout: [m, n].
    group_sizes: integers [g_total], g_total >= num_groups.
    num_groups: local groups: a static int.
    group_offset: int, or integer scalar or [1]: the group of `out[0]`.
    preferred_element_type: the result's dtype; the default is as in `gmm_v2`.
    precision: for float32 operands: a `jax.lax.Precision` or its name.
    transpose_out: a static bool: writes each result as [n, k].
    tiling: (tile_m, tile_k, tile_n): rows, columns of lhs, columns of dout.
    chip: the TPU to choose tiles for, "v6e" for one; None finds out.
    interpret: True, or `pltpu.InterpretParams`, runs the kernel on any machine.

  Returns:
    [num_groups, k, n], or [num_groups, n, k] if `transpose_out`.

  Raises:
    ValueError: shapes disagree, or `tiling` does not fit VMEM.
    TypeError: a dtype that no backend takes, or an argument of a wrong type.
    NotImplementedError: a valid request that this kernel or chip cannot serve.
  """
  problem = checks.tgmm_problem(
    lhs,
    dout,
    group_sizes,
    num_groups=num_groups,
    group_offset=group_offset,
    preferred_element_type=preferred_element_type,
    precision=precision,
    transpose_out=transpose_out,
  )
  shape, operands = problem.out_shape, (lhs, dout)
  if transpose_out:
    # (lhs^T dout)^T is dout^T lhs: the same kernel, its operands exchanged.
    problem, operands = _exchanged(problem), (dout, lhs)
    tiling = config.checked_tiling("tiling", tiling)
    tiling = tiling and (tiling[0], tiling[2], tiling[1])
  checks.check_interpret(interpret)
  plan = _plan(problem, tiling, chip)
  if problem.is_empty:
    return jnp.zeros(shape, problem.out_dtype)
  operands = _operands(problem, group_sizes, group_offset, operands)
  return tgmm_kernel.tgmm(plan, operands, interpret)


def _exchanged(problem: config.Problem) -> config.Problem:
  return dataclasses.replace(
    problem,
    k=problem.n,
    n=problem.k,
    lhs_dtype=problem.rhs_dtype,
    rhs_dtype=problem.lhs_dtype,
    transpose_out=False,
  )


def _plan(
  problem: config.Problem, tiling: Any, chip: str | None
) -> tiles.Plan | None:
  tiling = config.checked_tiling("tiling", tiling)
  spec = chips.resolve(chip)
  checks.check_pallas_dtypes(problem, spec)
  return None if problem.is_empty else tiles.make_plan(problem, spec, tiling)


def _operands(
  problem: config.Problem, sizes: Any, offset: Any, arrays: tuple[Any, Any]
) -> list[jax.Array]:
  return [
    checks.canonical_sizes(sizes, problem.m),
    checks.canonical_offset(offset, problem.g_total),
    *(jnp.asarray(x) for x in arrays),
  ]
