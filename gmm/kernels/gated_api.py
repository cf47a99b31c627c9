"""The public wrappers of the kernels of two products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from gmm import activations, checks, config, gated_checks
from gmm.kernels import chip as chips
from gmm.kernels import gated_kernel
from gmm.kernels import tiling as tiles
from gmm.pair_operands import PairOperands


def gmm_gated_v2(
  lhs: jax.Array,
  rhs_gate_up: jax.Array,
  group_sizes: jax.Array,
  *,
  group_offset: jax.Array | int | None = None,
  transpose_rhs: bool = False,
  activation: str | activations.Activation = "silu",
  preferred_element_type: Any = None,
  rhs_scale: jax.Array | None = None,
  rhs_bias: jax.Array | None = None,
  precision: Any = None,
  tiling: tuple[int, int, int] | None = None,
  chip: str | None = None,
  interpret: Any = False,
) -> jax.Array:
  """The kernel of `ops.gmm_gated`, without a gradient.

  Args:
    lhs: [m, k].
    rhs_gate_up: [g, k, 2n], or [g, 2n, k] if `transpose_rhs`; gate first.
    group_sizes: integers [g_total], g_total >= g.
    group_offset: as in `gmm_v2`.
    transpose_rhs: a static bool: NT instead of NN.
    activation: as in `ops.gmm_gated`.
    preferred_element_type: the result's dtype; the default is as in `gmm_v2`.
    rhs_scale: [g, k_blocks, 2n], as in `gmm_v2`.
    rhs_bias: [g, 2n], added before the activation.
    precision: for float32 operands: a `jax.lax.Precision` or its name.
    tiling: (tile_m, tile_k, tile_n): rows, contraction, columns of the result.
      Of no effect is tile_n where gate and up do not both start on a whole
      register (see pairs.py): all columns are one tile then.
    chip: the TPU to choose tiles for; None finds out.
    interpret: True, or `pltpu.InterpretParams`, runs the kernel on any machine.

  Returns:
    [m, n].

  Raises:
    ValueError: shapes disagree, or `tiling` does not fit VMEM.
    TypeError: a dtype that no backend takes, or an argument of a wrong type.
    NotImplementedError: a valid request that this kernel or chip cannot serve.
  """
  problem = gated_checks.gated_problem(
    lhs,
    rhs_gate_up,
    group_sizes,
    group_offset=group_offset,
    transpose_rhs=transpose_rhs,
    preferred_element_type=preferred_element_type,
    rhs_scale=rhs_scale,
    rhs_bias=rhs_bias,
    precision=precision,
  )
  return _run(
    problem,
    PairOperands(
      lhs=(lhs,),
      rhs=(rhs_gate_up,),
      sizes=group_sizes,
      offset=group_offset,
      scale=_given(rhs_scale),
      bias=_given(rhs_bias),
    ),
    activation=activations.resolve(activation),
    tiling=tiling,
    chip=chip,
    interpret=interpret,
  )


def split_gmm_v2(
  lhs: jax.Array,
  rhs_gate: jax.Array,
  rhs_up: jax.Array,
  group_sizes: jax.Array,
  *,
  group_offset: jax.Array | int | None = None,
  transpose_rhs: bool = False,
  preferred_element_type: Any = None,
  rhs_gate_scale: jax.Array | None = None,
  rhs_up_scale: jax.Array | None = None,
  rhs_gate_bias: jax.Array | None = None,
  rhs_up_bias: jax.Array | None = None,
  precision: Any = None,
  tiling: tuple[int, int, int] | None = None,
  chip: str | None = None,
  interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
  """The kernel of `ops.split_gmm`: two weights of one shape, lhs read once.

  Args:
    lhs: [m, k].
    rhs_gate: [g, k, n], or [g, n, k] if `transpose_rhs`.
    rhs_up: the same shape and dtype.
    group_sizes: integers [g_total], g_total >= g.
    group_offset: as in `gmm_v2`.
    transpose_rhs: a static bool: NT instead of NN.
    preferred_element_type: the results' dtype; the default is as in `gmm_v2`.
    rhs_gate_scale: [g, k_blocks, n], as in `gmm_v2`.
    rhs_up_scale: the same shape and dtype.
    rhs_gate_bias: [g, n], added to rows of local groups.
    rhs_up_bias: the same shape.
    precision: for float32 operands: a `jax.lax.Precision` or its name.
    tiling: (tile_m, tile_k, tile_n), of each of the two products.
    chip: the TPU to choose tiles for; None finds out.
    interpret: True, or `pltpu.InterpretParams`, runs the kernel on any machine.

  Returns:
    gate [m, n] and up [m, n].

  Raises:
    ValueError, TypeError, NotImplementedError: as in `gmm_gated_v2`.
  """
  scale = rhs_gate_scale, rhs_up_scale
  bias = rhs_gate_bias, rhs_up_bias
  problem = gated_checks.split_problem(
    lhs,
    (rhs_gate, rhs_up),
    group_sizes,
    group_offset=group_offset,
    transpose_rhs=transpose_rhs,
    preferred_element_type=preferred_element_type,
    rhs_scale=scale,
    rhs_bias=bias,
    precision=precision,
  )
  return _run(
    problem,
    PairOperands(
      lhs=(lhs,),
      rhs=(rhs_gate, rhs_up),
      sizes=group_sizes,
      offset=group_offset,
      scale=_given(*scale),
      bias=_given(*bias),
    ),
    tiling=tiling,
    chip=chip,
    interpret=interpret,
  )


def sum_gmm_v2(
  lhs: tuple[jax.Array, jax.Array],
  rhs: tuple[jax.Array, jax.Array],
  group_sizes: jax.Array,
  *,
  group_offset: jax.Array | int | None = None,
  transpose_rhs: bool = False,
  preferred_element_type: Any = None,
  rhs_scale: tuple[jax.Array | None, jax.Array | None] = (None, None),
  precision: Any = None,
  tiling: tuple[int, int, int] | None = None,
  chip: str | None = None,
  interpret: Any = False,
) -> jax.Array:
  """The gradient of `split_gmm` in its lhs: `x @ gate + y @ up` in one pass.

  Args:
    lhs: two of [m, k], of one dtype.
    rhs: two of [g, k, n], or [g, n, k] if `transpose_rhs`, of one dtype; int32
      is packed along n.
    group_sizes: integers [g_total], g_total >= g.
    group_offset: as in `gmm_v2`.
    transpose_rhs: a static bool: NT instead of NN.
    preferred_element_type: the result's dtype; the default is as in `gmm_v2`.
    rhs_scale: of each rhs, [g, n_blocks, k]: of `split_gmm_v2`, whose k is n
      here.
    precision: for float32 operands: a `jax.lax.Precision` or its name.
    tiling: (tile_m, tile_k, tile_n), of each of the two products.
    chip: the TPU to choose tiles for; None finds out.
    interpret: True, or `pltpu.InterpretParams`, runs the kernel on any machine.

  Returns:
    [m, n]; the sum of both is rounded once.

  Raises:
    ValueError, TypeError, NotImplementedError: as in `gmm_gated_v2`.
  """
  problem = gated_checks.sum_problem(
    lhs,
    rhs,
    group_sizes,
    group_offset=group_offset,
    transpose_rhs=transpose_rhs,
    preferred_element_type=preferred_element_type,
    rhs_scale=rhs_scale,
    precision=precision,
  )
  return _run(
    problem,
    PairOperands(
      lhs=tuple(lhs),
      rhs=tuple(rhs),
      sizes=group_sizes,
      offset=group_offset,
      scale=_given(*rhs_scale),
    ),
    tiling=tiling,
    chip=chip,
    interpret=interpret,
  )


def run(
  problem: config.Problem,
  operands: PairOperands,
  *,
  activation: activations.Activation | None,
  tiling: Any,
  chip: str | None,
  interpret: Any,
) -> Any:
  """Runs the kernel of a checked problem that is not empty.

  Args:
    problem: with `pair`.
    operands: arrays.
    activation: of "gated".
    tiling: (tile_m, tile_k, tile_n) or None.
    chip: the TPU to choose tiles for; None finds out.
    interpret: False, True or InterpretParams.

  Returns:
    [m, n], or two of them in "split".
  """
  checks.check_pallas_dtypes(problem)
  tiling = config.checked_tiling("tiling", tiling)
  plan = tiles.make_plan(problem, chips.resolve(chip), tiling)
  return gated_kernel.pair(plan, operands, activation, interpret)


def _run(
  problem: config.Problem,
  operands: PairOperands,
  *,
  interpret: Any,
  activation: activations.Activation | None = None,
  **options: Any,
) -> Any:
  """As `run`, of operands as they came."""
  checks.check_interpret(interpret)
  if problem.is_empty or problem.k == 0:
    raise NotImplementedError(
      f"`lhs` and `rhs` have m={problem.m}, k={problem.k}, n={problem.n}, "
      f"g={problem.g}: there is nothing to multiply; use `gmm.ops`"
    )
  sizes = checks.canonical_sizes(operands.sizes, problem.m)
  offset = checks.canonical_offset(operands.offset, problem.g_total)
  return run(
    problem,
    jax.tree.map(jnp.asarray, operands._replace(sizes=sizes, offset=offset)),
    activation=activation,
    interpret=interpret,
    **options,
  )


def _given(*arrays: Any) -> tuple[Any, ...]:
  return tuple(x for x in arrays if x is not None)
