"""`lax.ragged_dot` and `lax.ragged_dot_general` on the operations of `ops`.

    ragged dimension    product                       here
    not contracted      lhs [m, k], rhs [g, k, n]     ops.gmm, NN or NT
    contracted          lhs [m, k], rhs [m, n]        ops.tgmm
    of a batch          lhs [b, m, k], rhs [b, k, n]  lax.dot_general

This only translates: axes are put in order and joined, and the axes that
`group_sizes` may have besides the groups' become vmaps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm import check_pieces, checks, positional, ragged_dims
from gmm import config as config_lib
from gmm import precision as precision_lib

_RAGGED_DOT = (
  "ragged_dot(lhs, rhs, group_sizes, precision, preferred_element_type, "
  "group_offset, out_sharding)"
)
_RAGGED_DOT_GENERAL = (
  "ragged_dot_general(lhs, rhs, group_sizes, ragged_dot_dimension_numbers, "
  "precision, preferred_element_type, group_offset, out_sharding)"
)


def ragged_dot(  # noqa: PLR0917
  lhs: jax.Array,
  rhs: jax.Array,
  group_sizes: jax.Array,
  precision: Any = None,
  preferred_element_type: Any = None,
  group_offset: jax.Array | int | None = None,
  out_sharding: Any = None,
) -> jax.Array:
  """`jax.lax.ragged_dot`, with its parameters, on the kernels of `ops.gmm`.

  Differentiable in lhs and rhs, in reverse only. What `lax.ragged_dot` leaves
  open or refuses, `ops.gmm` settles: rows of no group are exactly zero whatever
  lhs holds there, group sizes may be of any integer type, and `group_offset`
  works. `ops.gmm` is the same with a `config`.

  Args:
    lhs: [m, k], of a dtype of `ops.gmm`.
    rhs: [g, k, n], as it is: neither packed nor with a scale.
    group_sizes: integers [g], or more of them with `group_offset`.
    precision: as in `ops.gmm` for float32 operands. Products of narrower ones
      are exact in any case, so that nothing has to be done for them.
    preferred_element_type: the result's dtype. By default what `lax.dot` makes
      of the operands': their own (of int8 too: sums are taken in int32, then
      cut), or the wider of the two.
    group_offset: None, or int, or integer scalar or [1]: the group of rhs[0].
    out_sharding: None, or a PartitionSpec or NamedSharding over explicit axes
      of a mesh: each device multiplies all, and keeps its part of the result.

  Returns:
    [m, n].

  Raises:
    ValueError: shapes disagree, or an unknown precision.
    TypeError: a dtype that no backend takes, or arguments in another order.
    NotImplementedError: operands sharded over explicit mesh axes, or as
      `ops.gmm`.
  """
  operands = rhs, group_sizes, lhs
  _check(_RAGGED_DOT, operands, precision, preferred_element_type)
  _check_out_sharding(_RAGGED_DOT, out_sharding)
  check_pieces.shape_of("lhs", lhs, "[m, k]")
  check_pieces.shape_of("rhs", rhs, "[g, k, n]")
  options = _Options(
    precision=precision,
    preferred_element_type=preferred_element_type,
    group_offset=group_offset,
  )
  out = options.gmm(lhs, rhs, group_sizes, transpose_rhs=False)
  return _placed(out, out_sharding)


def ragged_dot_general(  # noqa: PLR0917
  lhs: jax.Array,
  rhs: jax.Array,
  group_sizes: jax.Array,
  ragged_dot_dimension_numbers: lax.RaggedDotDimensionNumbers,
  precision: Any = None,
  preferred_element_type: Any = None,
  group_offset: jax.Array | int | None = None,
  out_sharding: Any = None,
) -> jax.Array:
  """`jax.lax.ragged_dot_general`, with its parameters, on our kernels.

  With b batch axes, and x those before the ragged axis m among the axes of
  lhs that are not contracted (or are, in the second form):

    [b.., x.., m, ..k..] [g, b.., ..k.., ..n..] -> [b.., x.., m, .., ..n..]
    [b.., x.., m, ..k..] [b.., x.., m, ..n..]   -> [g, b.., ..k.., ..n..]
    [b.., ..m.., ..k..]  [b.., ..k.., ..n..]    -> [b.., ..m.., ..n..]

  Axes may stand in any order. A weight [g, k, n] or [g, n, k] is read as it
  lies; other orders are transposed first. Batch axes, and x, are one product
  after the other. The third form is `lax.dot_general`: its result does not
  depend on `group_sizes`. Else all is as in `ragged_dot`.

  Args:
    lhs: with one ragged axis.
    rhs: with one group axis in the first form, none in the others.
    group_sizes: integers [g], or [b.., x.., g]; [x.., g] in the third form.
    ragged_dot_dimension_numbers: a `jax.lax.RaggedDotDimensionNumbers`.
    precision: as in `ragged_dot`.
    preferred_element_type: as in `ragged_dot`.
    group_offset: as in `ragged_dot`, in the first form.
    out_sharding: as in `ragged_dot`; in the third form `lax.dot_general`'s.

  Returns:
    The result, with its axes in the order above.

  Raises:
    ValueError: shapes disagree, dimension numbers that are none of the three
      forms, or an unknown precision.
    TypeError: a dtype that no backend takes, or arguments in another order.
    NotImplementedError: a `group_offset` in the second or third form, or as
      `ragged_dot`.
  """
  operands = rhs, group_sizes
  _check(_RAGGED_DOT_GENERAL, operands, precision, preferred_element_type)
  _check_out_sharding(_RAGGED_DOT_GENERAL, out_sharding)
  dims = ragged_dims.parse(lhs, rhs, group_sizes, ragged_dot_dimension_numbers)
  if dims.form != "noncontracting" and group_offset is not None:
    raise NotImplementedError(
      f"`group_offset` is given but the ragged dimension is {dims.form}; want "
      "None (ops.tgmm has a group_offset beside its num_groups)"
    )
  options = _Options(
    precision=precision,
    preferred_element_type=preferred_element_type,
    group_offset=group_offset,
  )
  if dims.form == "batch":
    return lax.dot_general(
      lhs,
      rhs,
      ragged_dot_dimension_numbers.dot_dimension_numbers,
      precision=precision_lib.canonical(precision),
      preferred_element_type=preferred_element_type,
      out_sharding=out_sharding,
    )
  contracting = dims.form == "contracting"
  product = _contracting if contracting else _noncontracting
  return _placed(product(dims, options, (lhs, rhs, group_sizes)), out_sharding)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Options:
  """What a product has besides its operands."""

  precision: Any
  preferred_element_type: Any
  group_offset: Any

  def gmm(
    self, lhs: Any, rhs: Any, sizes: Any, *, transpose_rhs: bool
  ) -> jax.Array:
    """`ops.gmm` with the dtypes of `lax.dot`."""
    keywords, out = self._keywords(lhs, rhs)
    product = _ops().gmm(
      lhs,
      rhs,
      sizes,
      transpose_rhs=transpose_rhs,
      group_offset=self.group_offset,
      **keywords,
    )
    return product.astype(out)

  def tgmm(
    self, lhs: Any, rhs: Any, sizes: Any, *, summed: bool = False
  ) -> jax.Array:
    """`ops.tgmm` likewise; if `summed`, unrounded, for more to be added."""
    keywords, out = self._keywords(lhs, rhs)
    if summed:
      keywords["preferred_element_type"] = out = config_lib.acc_dtype(
        np.dtype(lhs.dtype), np.dtype(rhs.dtype)
      )
    groups = sizes.shape[0]
    product = _ops().tgmm(lhs, rhs, sizes, num_groups=groups, **keywords)
    return product.astype(out)

  def out_dtype(self, lhs: Any, rhs: Any) -> Any:
    """What `lax.dot` makes of two operands."""
    if self.preferred_element_type is not None:
      return self.preferred_element_type
    pair = (jax.ShapeDtypeStruct((1, 1), x.dtype) for x in (lhs, rhs))
    return jax.eval_shape(lax.dot, *pair).dtype

  def _keywords(self, lhs: Any, rhs: Any) -> tuple[dict[str, Any], Any]:
    """Keywords of a product, and the dtype to cast its result to."""
    formats = []
    for name, x in (("lhs", lhs), ("rhs", rhs)):
      formats.append(checks.operand_dtype(name, x))
    out = self.out_dtype(lhs, rhs)
    given = preferred = out
    if config_lib.acc_dtype(*formats) == jnp.int32:
      known = config_lib.result_dtypes(jnp.dtype(jnp.int32))
      if jnp.issubdtype(out, jnp.integer) and jnp.dtype(out).name not in known:
        preferred = jnp.int32
    precision = precision_lib.canonical(self.precision)
    if config_lib.compute_dtype(*formats) != jnp.float32:
      precision = None
    keywords = {"preferred_element_type": preferred, "precision": precision}
    return keywords, given


# ---- the forms


def _noncontracting(
  dims: ragged_dims.Dims, options: _Options, operands: tuple[Any, Any, Any]
) -> jax.Array:
  lhs, rhs, sizes = operands
  x, w = dims.lhs, dims.rhs
  rows = (*x.ragged, *x.inner)
  lhs = _joined(lhs, x.batch, x.outer, rows, x.contract)
  first = (*w.batch, *w.group)
  transposed = (*first, *w.free, *w.contract) == tuple(range(rhs.ndim))
  last = (w.free, w.contract) if transposed else (w.contract, w.free)
  rhs = _joined(rhs, w.batch, w.group, *last)

  def product(lhs: Any, rhs: Any, sizes: Any) -> jax.Array:
    sizes = _times(sizes, dims.rows, dims.inner)
    return options.gmm(lhs, rhs, sizes, transpose_rhs=transposed)

  out = _mapped(product, dims, (None, 0), (lhs, rhs, sizes))
  shape = [operands[0].shape[i] for i in (*x.batch, *x.outer, *rows)]
  return out.reshape(*shape, *(operands[1].shape[i] for i in w.free))


def _contracting(
  dims: ragged_dims.Dims, options: _Options, operands: tuple[Any, Any, Any]
) -> jax.Array:
  lhs, rhs, sizes = operands
  joined = []
  for x, d in ((lhs, dims.lhs), (rhs, dims.rhs)):
    joined.append(_joined(x, d.batch, d.outer, (*d.ragged, *d.inner), d.free))
  summed = bool(dims.lhs.outer)

  def product(lhs: Any, rhs: Any, sizes: Any) -> jax.Array:
    sizes = _times(sizes, dims.rows, dims.inner)
    return options.tgmm(lhs, rhs, sizes, summed=summed)

  # [b, x, g, k, n], without the axes that are not there
  out = _mapped(product, dims, (0, 0), (*joined, sizes))
  if summed:
    axis = 1 if dims.lhs.batch else 0
    out = jnp.sum(out, axis=axis).astype(options.out_dtype(lhs, rhs))
  if dims.lhs.batch:
    out = jnp.moveaxis(out, 1, 0)
  free = [lhs.shape[i] for i in (*dims.lhs.batch, *dims.lhs.free)]
  free += [rhs.shape[i] for i in dims.rhs.free]
  return out.reshape(sizes.shape[-1], *free)


def _joined(x: Any, *axes: Sequence[int]) -> jax.Array:
  """With each group of axes joined to one; the first two, where they are."""
  shape = []
  for i, group in enumerate(axes):
    if group or i > 1:
      shape.append(math.prod(x.shape[a] for a in group))
  order = [a for group in axes for a in group]
  return jnp.transpose(x, order).reshape(shape)


def _mapped(
  product: Callable[..., jax.Array],
  dims: ragged_dims.Dims,
  rhs_axes: tuple[int | None, int | None],
  operands: tuple[Any, Any, Any],
) -> jax.Array:
  """Vmaps over b and x, as there are; x is an axis of rhs, or is not."""
  lhs, rhs, sizes = operands
  many = len(sizes.shape) > 1
  counts = [
    math.prod(dims.shape[i] for i in axes)
    for axes in (dims.lhs.batch, dims.lhs.outer)
    if axes
  ]
  if many:
    sizes = sizes.reshape(*counts, sizes.shape[-1])
  along = 0 if many else None
  x_axis, b_axis = rhs_axes
  if dims.lhs.outer:
    product = jax.vmap(product, (0, x_axis, along))
  if dims.lhs.batch:
    product = jax.vmap(product, (0, b_axis, along))
  return product(lhs, rhs, sizes)


def _times(sizes: Any, rows: int, inner: int) -> Any:
  """Sizes in rows that `inner` rows are made of each."""
  if inner == 1:
    return sizes
  return checks.canonical_sizes(sizes, rows) * inner


# ---- pieces


def _check(
  order: str, operands: tuple[Any, ...], precision: Any, preferred: Any
) -> None:
  positional.check_operands(order, *operands)
  positional.check_no_dtype(order, "precision", precision)
  positional.check_dtype(order, "preferred_element_type", preferred)
  precision_lib.canonical(precision)


def _check_out_sharding(order: str, out_sharding: Any) -> None:
  wanted = (jax.sharding.PartitionSpec, jax.sharding.NamedSharding)
  if out_sharding is not None and not isinstance(out_sharding, wanted):
    raise TypeError(
      f"`out_sharding` is {out_sharding!r}; want None, or a PartitionSpec or a "
      f"NamedSharding over explicit mesh axes; the order is {order}"
    )


def _placed(out: jax.Array, out_sharding: Any) -> jax.Array:
  """The product of whole operands, cut up as was asked for."""
  return out if out_sharding is None else jax.reshard(out, out_sharding)


def _ops() -> Any:
  # Imported here because `gmm.ops` offers what this module defines.
  from gmm import ops

  return ops
