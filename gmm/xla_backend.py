"""The products in plain XLA, on any platform: a loop over visits.

A visit is one block of rows of one group. Blocks start where their group
starts, so a row belongs to exactly one visit, and a group of s rows takes
cdiv(s, block) of them:

    rows      0 1 2 3 4 5 6 7 8 9        block = 4, group_sizes = [5, 0, 3]
    group     0 0 0 0 0 2 2 2 - -
    visits    [0 . . .]
                      [0 x x x]          x: rows masked out
                        [2 . . x]

The work is that of about m + g * block / 2 rows, whatever the group sizes, and
the program is the same for all of them. `jax.lax.ragged_dot` multiplies every
row by every group's matrix on most platforms.

Nothing here knows about backends, gradients or vmap.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm import quantization, quantized, varying
from gmm.config import PACKED, Problem

# Fewer rows do not pay for reading the weight, more do not make a dot faster.
_MIN_BLOCK = 32
_MAX_BLOCK = 256
# Narrower panels of the result would cost more than their temporaries.
_MIN_PANEL = 64
# TODO: drop, with _bits and _values, when jax 0.10 is no longer supported.
_WIDENS_UPDATES = jax.__version_info__ < (0, 12)


def block_rows(problem: Problem) -> int:
  """Rows of a visit: about half a group, so that little of it is masked."""
  half = max(1, problem.m // max(1, 2 * problem.g_total))
  block = 1 << (half.bit_length() - 1)
  return min(problem.m, max(_MIN_BLOCK, min(_MAX_BLOCK, block)))


def gmm(
  lhs: jax.Array,
  rhs: jax.Array,
  sizes: jax.Array,
  offset: jax.Array,
  *,
  rhs_scale: jax.Array | None = None,
  lhs_scale: jax.Array | None = None,
  rhs_bias: jax.Array | None = None,
  existing_out: jax.Array | None = None,
  problem: Problem,
) -> jax.Array:
  """Multiplies each local group's rows by its matrix; other rows are zero.

  Args:
    lhs: [m, k].
    rhs: [g, k, n], or [g, n, k] with `problem.transpose_rhs`.
    sizes: canonical group sizes, int32 [g_total].
    offset: canonical offset of the first local group, int32 [1].
    rhs_scale: None, or the weight's scale, as `problem.scale_shape` says.
    lhs_scale: None, or [1, 1] or [m, 1].
    rhs_bias: None, or [g, n], added to rows of local groups.
    existing_out: None, or [m, n], added before the one rounding.
    problem: what `checks.gmm_problem` made of the call.

  Returns:
    [m, n] in `problem.out_dtype`.
  """
  p = problem
  out = existing_out
  if out is None:
    out = jnp.zeros(p.out_shape, p.out_dtype)
  more = [x for x in (rhs_scale, lhs_scale, rhs_bias) if x is not None]
  out = varying.vary_like(out, lhs, rhs, sizes, offset, *more)
  if p.is_empty:
    return out
  if (
    p.g_total == 1
    and p.out_dtype == p.acc_dtype
    and not (more or p.packed_axis or p.lhs_quantization is not None)
  ):
    return _gmm_of_one(lhs, rhs, sizes, offset, existing_out=out, problem=p)
  block = min(block_rows(p), max(_MIN_BLOCK, p.m // 8))
  dims = _gmm_dims(p)
  width = p.n
  if p.g > 1 or p.scale_block or p.packed_axis or p.lhs_quantization:
    # One weight is read in place, unless it is scaled; else a panel is copied.
    item = max(p.rhs_dtype.itemsize, p.compute_dtype.itemsize)
    if p.scale_block or p.packed_axis or p.lhs_quantization:
      item = 8
    budget = p.m * p.n * p.out_dtype.itemsize // 2
    width = _panel_width(p.n, budget, max(p.k, 1) * item)

  packed = {p.packed_axis: PACKED}
  if p.packed_axis == "n":
    width = min(-(-width // PACKED) * PACKED, p.n)
  # Of the weight in memory: rows of k, and of a panel of n.
  height, span = p.k // packed.get("k", 1), width // packed.get("n", 1)

  out = _bits(out)
  zero = jnp.int32(0)
  # Integers may be added to floats that are there already.
  is_float = jnp.issubdtype(p.out_dtype, jnp.floating)
  wide = jnp.float32 if is_float else p.acc_dtype

  def panel(
    i: jax.Array, col: jax.Array, rows: jax.Array, out: jax.Array
  ) -> jax.Array:
    first, columns = _window(col, col + width, width, p.n)
    begin = first // packed.get("n", 1)
    if p.transpose_rhs:
      weight = _slice(rhs, (i, begin, zero), (1, span, height))[0]
    else:
      weight = _slice(rhs, (i, zero, begin), (1, height, span))[0]
    if p.packed_axis:
      axis = int((p.packed_axis == "k") == p.transpose_rhs)
      weight = quantized.unpack(weight, axis)
    if rhs_scale is not None and p.k:
      weight = weight.astype(jnp.float32) * _scale_of_panel(
        rhs_scale, (i, first, width), p
      )
    if rhs_bias is not None:
      bias = lax.dynamic_slice(rhs_bias, (i, first), (1, width))
      bias = bias.astype(jnp.float32)

    def visit(row: jax.Array, out: jax.Array) -> jax.Array:
      at, mask = _window(row, rows[1], block, p.m)
      x = _slice(lhs, (at, zero), (block, p.k))
      if p.lhs_quantization is not None:
        x = quantization.dequantized_rows(x, p.lhs_quantization, p.lhs_block)
      y = _dot(x, weight, dims, p)
      if lhs_scale is not None:
        y = y.astype(jnp.float32) * _scale_of_rows(lhs_scale, at, block)
      if rhs_bias is not None:
        y = y.astype(wide) + bias
      old = lax.dynamic_slice(out, (at, first), (block, width))
      if p.has_existing:
        y = y.astype(wide) + _values(old, p.out_dtype).astype(wide)
      mask = mask[:, None] & columns[None, :]
      y = jnp.where(mask, _bits(y.astype(p.out_dtype)), old)
      return lax.dynamic_update_slice(out, y, (at, first))

    return _for_blocks(rows, block, visit, out)

  out = _for_panels(p, sizes, offset, width=width, body=panel, init=out)
  return _values(out, p.out_dtype)


def _scale_of_panel(
  scale: jax.Array, panel: tuple[jax.Array, jax.Array, int], problem: Problem
) -> jax.Array:
  """The scales of a panel of columns, float32, for each of its elements.

  Args:
    scale: as `problem.scale_shape` says.
    panel: the group, the first column and their number.
    problem: the product.
  """
  i, first, width = panel
  own = lax.dynamic_index_in_dim(scale, i, keepdims=False).astype(jnp.float32)
  if problem.scale_axis == "k":
    own = lax.dynamic_slice_in_dim(own, first, width, axis=1)
    own = jnp.repeat(own, problem.scale_block, axis=0)  # [k, width]
    return own.T if problem.transpose_rhs else own
  blocks = (first + lax.iota(jnp.int32, width)) // problem.scale_block
  own = jnp.take(own, blocks, axis=0)  # [width, k]
  return own if problem.transpose_rhs else own.T


def _scale_of_rows(scale: jax.Array, row: jax.Array, rows: int) -> jax.Array:
  """The scales of some rows of lhs, float32 [rows, 1] or [1, 1]."""
  if scale.shape[0] > 1:
    scale = lax.dynamic_slice_in_dim(scale, row, rows)
  return scale.astype(jnp.float32)


def _gmm_of_one(
  lhs: jax.Array,
  rhs: jax.Array,
  sizes: jax.Array,
  offset: jax.Array,
  *,
  existing_out: jax.Array,
  problem: Problem,
) -> jax.Array:
  """A single group: one dot, masked in place, is all m rows and no more."""
  y = _dot(lhs, rhs[0], _gmm_dims(problem), problem)
  if problem.has_existing:
    y += existing_out
  end = jnp.where(offset[0] == 0, sizes[0], 0)
  mask = lax.broadcasted_iota(jnp.int32, (problem.m, 1), 0) < end
  return jnp.where(mask, y, existing_out)


def tgmm(
  lhs: jax.Array,
  dout: jax.Array,
  sizes: jax.Array,
  offset: jax.Array,
  *,
  problem: Problem,
) -> jax.Array:
  """Computes lhs_i^T @ dout_i over the rows of each local group i.

  Args:
    lhs: [m, k].
    dout: [m, n].
    sizes: canonical group sizes, int32 [g_total].
    offset: canonical offset of the first local group, int32 [1].
    problem: what `checks.tgmm_problem` made of the call.

  Returns:
    [g, k, n], or [g, n, k] with `problem.transpose_out`, in
    `problem.out_dtype`; zeros for an empty group.
  """
  p = problem
  left, right = (dout, lhs) if p.transpose_out else (lhs, dout)
  out = varying.vary_like(
    jnp.zeros(p.out_shape, p.out_dtype), lhs, dout, sizes, offset
  )
  if p.is_empty:
    return out
  dims = (((0,), (0,)), ((), ()))
  _, height, width = p.out_shape
  # Temporaries of a panel: its sum, the dot that is added to it, and the masked
  # blocks of both operands, which XLA may widen to 4 bytes.
  out_bytes = p.g * height * width * p.out_dtype.itemsize
  block = min(block_rows(p), max(_MIN_BLOCK, out_bytes // (16 * width)))
  height = _panel_width(
    height, out_bytes * 3 // 4 - 4 * block * width, 8 * width + 4 * block
  )

  out = _bits(out)
  zero = jnp.int32(0)

  def panel(
    i: jax.Array, col: jax.Array, rows: jax.Array, out: jax.Array
  ) -> jax.Array:
    first, _ = _window(col, col + height, height, p.out_shape[1])

    def visit(row: jax.Array, acc: jax.Array) -> jax.Array:
      at, mask = _window(row, rows[1], block, p.m)
      # Both sides: a row of zeros times a row of NaN is NaN.
      x = _slice(left, (at, first), (block, height))
      y = _slice(right, (at, zero), (block, width))
      x = jnp.where(mask[:, None], x, jnp.zeros_like(x))
      y = jnp.where(mask[:, None], y, jnp.zeros_like(y))
      return acc + _dot(x, y, dims, p)

    acc = varying.vary_like(jnp.zeros((height, width), p.acc_dtype), out)
    acc = _bits(_for_blocks(rows, block, visit, acc).astype(p.out_dtype))
    return lax.dynamic_update_slice(out, acc[None], (i, first, zero))

  out = _for_panels(p, sizes, offset, width=height, body=panel, init=out)
  return _values(out, p.out_dtype)


def _slice(
  x: jax.Array, starts: tuple[jax.Array, ...], sizes: tuple[int, ...]
) -> jax.Array:
  """A dynamic slice that keeps XLA from touching the whole of `x`.

  XLA for CPU may widen narrow floats to float32 before it slices them. A loop's
  body does that for the slice alone, unless it is moved out of the loop: so the
  array is tied to the place, which changes.
  """
  if x.dtype.itemsize < 4:
    x, starts = lax.optimization_barrier((x, starts))
  return lax.dynamic_slice(x, starts, sizes)


def _bits(x: jax.Array) -> jax.Array:
  """Narrow floats as unsigned integers, where XLA for CPU cannot update them.

  It would rewrite the whole result for each visit. The way back is one copy of
  the result, in temporary memory.
  """
  is_narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
  if not (_WIDENS_UPDATES and is_narrow):
    return x
  bits = jnp.uint16 if x.dtype.itemsize == 2 else jnp.uint8
  return lax.bitcast_convert_type(x, bits)


def _values(bits: jax.Array, dtype: np.dtype) -> jax.Array:
  """Undoes `_bits`."""
  if bits.dtype == dtype:
    return bits
  return lax.bitcast_convert_type(bits, dtype)


def _panel_width(size: int, budget: int, bytes_each: int) -> int:
  """Splits an axis evenly so that a panel's temporaries stay in the budget."""
  most = max(_MIN_PANEL, budget // bytes_each)
  return -(-size // -(-size // most))


def _for_panels(
  problem: Problem,
  sizes: jax.Array,
  offset: jax.Array,
  *,
  width: int,
  body: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array],
  init: jax.Array,
) -> jax.Array:
  """Runs body(i, column, [begin, end], carry) for each local group's panels.

  The groups end where the running sum does, or at row m. A local group whose
  global number is past the last one has no rows.
  """
  size = problem.n if problem.kind == "gmm" else problem.out_shape[1]
  panels = -(-size // width)
  ends = jnp.minimum(jnp.cumsum(sizes), problem.m)
  begins = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])

  def step(j: jax.Array, carry: jax.Array) -> jax.Array:
    i = j // panels
    at = jnp.minimum(i + offset[0], problem.g_total - 1)
    end = jnp.where(i + offset[0] < problem.g_total, ends[at], begins[at])
    rows = jnp.stack([begins[at], end])
    return body(i, j % panels * width, rows, carry)

  if problem.g * panels == 1:  # without a loop, the weight is used in place
    return step(jnp.int32(0), init)
  return lax.fori_loop(jnp.int32(0), jnp.int32(problem.g * panels), step, init)


def _for_blocks(
  rows: jax.Array,
  block: int,
  body: Callable[[jax.Array, jax.Array], jax.Array],
  init: jax.Array,
) -> jax.Array:
  """Runs body(row, carry) for each block of the rows [begin, end)."""
  row, carry = lax.while_loop(
    lambda c: c[0] < rows[1],
    lambda c: (c[0] + block, body(*c)),
    (rows[0], init),
  )
  del row
  return carry


def _window(
  begin: jax.Array, end: jax.Array, size: int, limit: int
) -> tuple[jax.Array, jax.Array]:
  """Where to slice `size` for [begin, end) below `limit`, and which are in it.

  A slice that would pass the limit is moved back, as dynamic_slice would do.
  """
  at = jnp.minimum(begin, limit - size)
  places = at + lax.iota(jnp.int32, size)
  return at, (places >= begin) & (places < end)


def _gmm_dims(problem: Problem) -> lax.DotDimensionNumbers:
  return (((1,), (1 if problem.transpose_rhs else 0,)), ((), ()))


def _dot(
  x: jax.Array,
  y: jax.Array,
  dims: lax.DotDimensionNumbers,
  problem: Problem,
) -> jax.Array:
  """The dot of one visit: operands widened here, block by block."""
  compute, acc = problem.compute_dtype, problem.acc_dtype
  if problem.scale_block or problem.lhs_quantization is not None:
    compute = acc = jnp.float32  # as operands are, with their scales in them
  return lax.dot_general(
    x.astype(compute),
    y.astype(compute),
    dims,
    precision=problem.precision,
    preferred_element_type=acc,
  )
