"""megablox, as jax ships it, on the kernels of `gmm.ops`: swap one import.

    from jax.experimental.pallas.ops.tpu.megablox import gmm    # before
    from gmm.compat.megablox import gmm                         # after

Parameters have the original's names, order and defaults, and the original's
meaning, also where `ops` means something else:

- `gmm` *overwrites* the rows of `existing_out` that belong to a group of `rhs`
  and leaves the others as they are (`ops.gmm` adds). Its gradient is all of
  dout, as there, although the overwritten rows do not matter to the result.
- `tgmm` adds to `existing_out`, takes lhs as [k, m], and its number of groups
  is optional.
- The result is float32 unless `preferred_element_type` says otherwise.

What the original leaves open or refuses is as in `ops`: rows of no group are
exactly zero without an `existing_out` (there they hold whatever was in memory,
unless group_sizes has more groups than `rhs`); m need not be a multiple of
tile_m; more dtypes and integer types; a `group_offset` that is an int or [1];
`tgmm` has gradients; and off TPU, without `interpret`, the XLA backend runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gmm import check_pieces, checks, ops, positional
from gmm.compat import rows, tilings
from gmm.config import Problem

Tiling = tuple[int, ...] | Callable[[int, int, int], Any] | None

_GMM = (
  "gmm(lhs, rhs, group_sizes, preferred_element_type, tiling, group_offset, "
  "existing_out, transpose_rhs, interpret)"
)
_TGMM = (
  "tgmm(lhs, rhs, group_sizes, preferred_element_type, tiling, group_offset, "
  "num_actual_groups, existing_out, interpret)"
)


def gmm(  # noqa: PLR0917
  lhs: jax.Array,
  rhs: jax.Array,
  group_sizes: jax.Array,
  preferred_element_type: Any = jnp.float32,
  tiling: Tiling = tilings.DEFAULT,
  group_offset: jax.Array | int | None = None,
  existing_out: jax.Array | None = None,
  transpose_rhs: bool = False,
  interpret: bool = False,
) -> jax.Array:
  """The `gmm` of megablox: each group of rows of lhs times that group's matrix.

  Differentiable in lhs, rhs and existing_out, in reverse.

  Args:
    lhs: [m, k].
    rhs: [g, k, n], or [g, n, k] if `transpose_rhs`.
    group_sizes: integers [g_total], g_total >= g.
    preferred_element_type: the result's dtype.
    tiling: (tile_m, tile_k, tile_n) in the terms of each product, gradients
      too; 9 of them, three each for forward, dlhs and drhs; a function of
      (m, k, n) of each that returns three; or None. None, and the default,
      have them chosen. They change nothing but speed and rounding.
    group_offset: the number of the group that rhs[0] belongs to.
    existing_out: [m, n], in the result's dtype: overwritten, see above.
    transpose_rhs: whether `rhs` is [g, n, k].
    interpret: whether to interpret the TPU kernel, on any machine.

  Returns:
    [m, n].

  Raises:
    ValueError: shapes disagree, or tilings of another length or that do not
      fit.
    TypeError: a dtype that no backend takes, or arguments in another order.
    NotImplementedError: as `ops.gmm`.
  """
  positional.check_operands(_GMM, rhs, group_sizes, lhs)
  _check(_GMM, preferred_element_type, tiling, group_offset)
  options = {"group_offset": group_offset, "transpose_rhs": transpose_rhs}
  options["preferred_element_type"] = preferred_element_type
  if existing_out is not None:
    local = rows.local_rows(
      lhs, rhs, group_sizes, existing_out=existing_out, **options
    )
    existing_out = rows.masked(existing_out, ~local)
  return ops.gmm(
    lhs,
    rhs,
    group_sizes,
    existing_out=existing_out,
    config=tilings.config(
      _backend(interpret),
      tilings.of_gmm(tiling, tilings.sizes_of(lhs, rhs, transpose_rhs)),
    ),
    **options,
  )


def tgmm(  # noqa: PLR0917
  lhs: jax.Array,
  rhs: jax.Array,
  group_sizes: jax.Array,
  preferred_element_type: Any = jnp.float32,
  tiling: Tiling = tilings.DEFAULT,
  group_offset: jax.Array | int | None = None,
  num_actual_groups: int | None = None,
  existing_out: jax.Array | None = None,
  interpret: bool = False,
) -> jax.Array:
  """The `tgmm` of megablox: lhs times rhs over the rows of each group.

  Args:
    lhs: [k, m]: where it is the transpose of an array [m, k], nothing is moved.
    rhs: [m, n].
    group_sizes: integers [g_total].
    preferred_element_type: the result's dtype.
    tiling: as in `gmm`; of 9, the last three.
    group_offset: the number of the group that the result's first belongs to.
    num_actual_groups: groups of the result, by default g_total.
    existing_out: [num_actual_groups, k, n], of floats where the result is one
      of floats, and of integers where it is one of integers: added in float32
      or int32, before the one rounding.
    interpret: as in `gmm`.

  Returns:
    [num_actual_groups, k, n].

  Raises:
    ValueError: as `gmm`.
    TypeError: as `gmm`.
    NotImplementedError: as `ops.tgmm`.
  """
  positional.check_operands(_TGMM, rhs, group_sizes)
  _check(_TGMM, preferred_element_type, tiling, group_offset)
  k, m = check_pieces.shape_of("lhs", lhs, "[k, m]")
  rhs_m, n = check_pieces.shape_of("rhs", rhs, "[m, n]")
  if rhs_m != m:
    message = (
      f"`rhs` is [m, n] = [{rhs_m}, {n}] but `lhs` is [k, m] = [{k}, {m}]"
    )
    if rhs_m == k:
      message += "; pass lhs.swapaxes(0, 1) if `lhs` is [m, k]"
    raise ValueError(message)
  if num_actual_groups is None:
    (num_actual_groups,) = check_pieces.shape_of(
      "group_sizes", group_sizes, "[g_total]"
    )
  elif getattr(num_actual_groups, "shape", ()):
    raise TypeError(
      f"`num_actual_groups` is an array {list(num_actual_groups.shape)}; want "
      f"an int; the order is {_TGMM}"
    )
  num_actual_groups = check_pieces.index_of(
    "num_actual_groups", num_actual_groups
  )
  lhs, wanted, summed = jnp.swapaxes(lhs, 0, 1), preferred_element_type, None
  if existing_out is not None:
    problem = checks.tgmm_problem(
      lhs,
      rhs,
      group_sizes,
      num_groups=num_actual_groups,
      group_offset=group_offset,
      preferred_element_type=wanted,
    )
    _check_existing(existing_out, problem)
    wanted = problem.out_dtype
    is_integer = jnp.issubdtype(wanted, jnp.integer)
    summed = jnp.int32 if is_integer else jnp.float32
  out = ops.tgmm(
    lhs,
    rhs,
    group_sizes,
    num_groups=num_actual_groups,
    group_offset=group_offset,
    preferred_element_type=wanted if summed is None else summed,
    config=tilings.config(
      _backend(interpret), tilings.of_tgmm(tiling, (m, k, n))
    ),
  )
  if summed is None:
    return out
  return (out + existing_out.astype(summed)).astype(wanted)


def _backend(interpret: bool) -> str:
  check_pieces.check_bool("interpret", interpret)
  return "interpret" if interpret else "auto"


def _check(order: str, preferred: Any, tiling: Any, offset: Any) -> None:
  positional.check_dtype(order, "preferred_element_type", preferred)
  positional.check_no_dtype(order, "tiling", tiling)
  if isinstance(offset, (tuple, list)):
    positional.check_dtype(order, "group_offset", offset)


def _check_existing(existing: Any, problem: Problem) -> None:
  names = "[num_actual_groups, k, n]"
  shape = check_pieces.shape_of("existing_out", existing, names)
  if shape != problem.out_shape:
    raise ValueError(
      f"`existing_out` is {names} = {list(shape)} but the result is "
      f"{list(problem.out_shape)}"
    )
  integer = jnp.issubdtype(problem.out_dtype, jnp.integer)
  kind = jnp.integer if integer else jnp.floating
  if not jnp.issubdtype(existing.dtype, kind):
    raise TypeError(
      f"`existing_out` is {existing.dtype} but the result is "
      f"{problem.out_dtype}; cast it, or set preferred_element_type"
    )
