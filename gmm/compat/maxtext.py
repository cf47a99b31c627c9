"""MaxText's grouped matmul on the kernels of `gmm.ops`: swap one import.

    from maxtext.kernels import megablox as mblx    # before, in its MoE layer
    from gmm.compat import maxtext as mblx          # after

`gmm` has the parameters of `maxtext.kernels.megablox.gmm`, as of MaxText 0.2.5,
and the original's meaning, also where `ops` means something else:

- `existing_out` is *overwritten* in the rows of local groups, as in megablox;
- `partial_sum` is added there; rows of no local group are zero all the same.

The gradient of either is all of dout, as there. The original heeds each on one
of its backends only, here both work, but not together.

The layer calls this function where its config says `megablox: true`, and
`use_tokamax_gmm: false` or `use_gmm_v2: true`. Nothing is quantised on the way:
a call that asks for it is refused, never served in full precision. A weight
that is quantised already, as a QArray, is read as it is; it has no gradient.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp

from gmm import check_pieces, ops, positional
from gmm.compat import rows, tilings

_ORDER = (
  "gmm(lhs, rhs, group_sizes, preferred_element_type, tiling, group_offset, "
  "existing_out, transpose_rhs, interpret, ...)"
)


def gmm(  # noqa: PLR0917
  lhs: jax.Array,
  rhs: Any,
  group_sizes: jax.Array,
  preferred_element_type: Any = jnp.float32,
  tiling: tuple[int, ...] | None = tilings.DEFAULT_9,
  group_offset: jax.Array | int | None = None,
  existing_out: jax.Array | None = None,
  transpose_rhs: bool = False,
  interpret: bool | None = None,
  lhs_quantize_dtype: Any = None,
  rhs_quantize_dtype: Any = None,
  use_qwix_quantization: bool = False,
  use_tokamax_backend: bool = False,
  weight_gather_axes: list[tuple[str, int]] | None = None,
  lhs_vma_axes: tuple[str, ...] = (),
  rhs_vma_axes: tuple[str, ...] = (),
  qwix_rule: Any = None,
  use_manual_quantization: bool = False,
  use_gmm_v2: bool = False,
  use_gmm_v2_heuristic_tiling: bool = False,
  partial_sum: jax.Array | None = None,
) -> jax.Array:
  """Multiplies each group of rows of lhs by that group's matrix.

  Differentiable in lhs, rhs, existing_out and partial_sum, in reverse.

  Args:
    lhs: [m, k].
    rhs: [g, k, n], or [g, n, k] if `transpose_rhs`; or such a QArray.
    group_sizes: integers [g_total], g_total >= g.
    preferred_element_type: the result's dtype.
    tiling: nine tiles, (tile_m, tile_k, tile_n) of forward, dlhs and drhs, each
      in the terms of its own call; or three for all. None, and the default,
      have them chosen.
    group_offset: the number of the group that rhs[0] belongs to.
    existing_out: [m, n], in the result's dtype: overwritten, see above.
    transpose_rhs: whether `rhs` is [g, n, k].
    interpret: True, as the trainer says where its mesh is no TPU's, means the
      XLA backend (an interpreted kernel could not be rematerialised); None and
      False the kernels where lowered for TPU and XLA elsewhere.
    lhs_quantize_dtype: None.
    rhs_quantize_dtype: None.
    use_qwix_quantization: True has the rule of qwix obeyed that holds for
      "gmm", which is refused; where none holds, as the original has it, nothing
      is quantised.
    use_tokamax_backend: of no effect: it chooses among the trainer's kernels,
      and these stand for all of them.
    weight_gather_axes: of no effect: quantised weights are gathered over these.
    lhs_vma_axes: of no effect: lhs itself says what it varies over.
    rhs_vma_axes: of no effect, likewise.
    qwix_rule: None.
    use_manual_quantization: False.
    use_gmm_v2: of no effect, as `use_tokamax_backend`.
    use_gmm_v2_heuristic_tiling: True has tiles chosen, whatever `tiling` says.
    partial_sum: [m, n], in the result's dtype: added, see above.

  Returns:
    [m, n].

  Raises:
    ValueError: shapes disagree, tilings of another length or that do not fit,
      or both `existing_out` and `partial_sum`.
    TypeError: a dtype that no backend takes, or arguments in another order.
    NotImplementedError: a call that asks for quantisation, or as `ops.gmm`.
  """
  del use_tokamax_backend, use_gmm_v2  # choose among kernels of the trainer's
  del weight_gather_axes  # for weights that are quantised on the way
  del lhs_vma_axes, rhs_vma_axes  # the operands' types say so
  _refuse_quantization(
    lhs_quantize_dtype=lhs_quantize_dtype,
    rhs_quantize_dtype=rhs_quantize_dtype,
    qwix_rule=_rule(use_qwix_quantization, qwix_rule),
    use_manual_quantization=use_manual_quantization,
  )
  if hasattr(lhs, "qvalue"):
    raise NotImplementedError(
      f"`lhs` is a {type(lhs).__name__}: quantised activations are not "
      "supported; pass an array, and rhs as it is"
    )
  positional.check_operands(_ORDER, rhs, group_sizes, lhs)
  positional.check_dtype(
    _ORDER, "preferred_element_type", preferred_element_type
  )
  positional.check_no_dtype(_ORDER, "tiling", tiling)
  check_pieces.check_bool("transpose_rhs", transpose_rhs)
  check_pieces.check_bool(
    "use_gmm_v2_heuristic_tiling", use_gmm_v2_heuristic_tiling
  )
  weight = getattr(rhs, "qvalue", rhs)
  sizes = tilings.sizes_of(lhs, weight, transpose_rhs)
  if use_gmm_v2_heuristic_tiling:
    tiling = None
  options = {
    "group_offset": group_offset,
    "transpose_rhs": transpose_rhs,
    "preferred_element_type": preferred_element_type,
  }
  added = _added(existing_out, partial_sum)
  if added is not None:
    local = rows.local_rows(
      lhs, weight, group_sizes, existing_out=added, **options
    )
    keep = local if existing_out is None else ~local
    added = rows.masked(added, keep)
  return ops.gmm(
    lhs,
    rhs,
    group_sizes,
    existing_out=added,
    config=tilings.config(_backend(interpret), tilings.of_gmm(tiling, sizes)),
    **options,
  )


def _backend(interpret: bool | None) -> str:
  if interpret is not None:
    check_pieces.check_bool("interpret", interpret)
  return "xla" if interpret else "auto"


def _added(existing_out: Any, partial_sum: Any) -> Any:
  if existing_out is not None and partial_sum is not None:
    raise ValueError(
      "`existing_out` and `partial_sum` are both given; want one: the first is "
      "overwritten in the rows of local groups, the second added there"
    )
  return partial_sum if existing_out is None else existing_out


def _rule(asked: bool, given: Any) -> Any:
  """The rule of qwix that a call is to obey, or None."""
  # Where nobody has loaded qwix, none of its rules can hold.
  qwix = sys.modules.get("qwix.pallas") if asked else None
  return given or (qwix and qwix.get_current_rule("gmm"))


def _refuse_quantization(**given: Any) -> None:
  for name, value in given.items():
    if value is not None and value is not False:
      raise NotImplementedError(
        f"`{name}` is {value!r}, but nothing is quantised on the way: turn "
        "quantization off in the trainer's config, or pass `rhs` as a QArray"
      )
