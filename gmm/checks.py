"""Shape, dtype and support rules: the only source of user errors.

Checks read `.shape` and `.dtype` only, so they take arrays, tracers, NumPy
arrays and `jax.ShapeDtypeStruct`s alike. Values of group_sizes and
group_offset are traced and cannot be checked; `canonical_sizes` and
`canonical_offset` make any value safe instead.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from gmm import check_pieces, operand_checks, quantization, weight_checks
from gmm import config as config_lib

Problem = config_lib.Problem

# ---- problems


def gmm_problem(
  lhs: Any,
  rhs: Any,
  group_sizes: Any,
  *,
  group_offset: Any = None,
  transpose_rhs: bool = False,
  preferred_element_type: Any = None,
  existing_out: Any = None,
  rhs_scale: Any = None,
  rhs_bias: Any = None,
  lhs_scale: Any = None,
  lhs_quantization: Any = None,
  backward: bool = False,
  precision: Any = None,
) -> Problem:
  """Checks the operands of gmm and describes the product.

  Args:
    lhs: [m, k].
    rhs: [g, k, n], or [g, n, k] if `transpose_rhs`.
    group_sizes: integers [g_total], g_total >= g.
    group_offset: None, an int, or an integer scalar or [1].
    transpose_rhs: a bool.
    preferred_element_type: the result's dtype, or None.
    existing_out: None, or [m, n] in the result's dtype.
    rhs_scale: None, or [g, k_blocks, n], k_blocks divides k.
    rhs_bias: None, or [g, n].
    lhs_scale: None, or [1, 1] or [m, 1] for a quantised lhs.
    lhs_quantization: None, or the format that lhs is quantised to on the way.
    backward: a bool: `rhs_scale` is [g, n_blocks, k] instead, and an int32
      `rhs` is packed along n.
    precision: None, a `lax.Precision`, its string, or a pair of equal ones.

  Returns:
    The Problem.

  Raises:
    ValueError: shapes disagree, or a precision that has no meaning.
    TypeError: a dtype that no backend takes.
    NotImplementedError: a valid request that is not supported yet.
  """
  check_pieces.check_bool("transpose_rhs", transpose_rhs)
  check_pieces.check_bool("backward", backward)
  names = "[g, n, k]" if transpose_rhs else "[g, k, n]"
  m, k = check_pieces.shape_of("lhs", lhs, "[m, k]")
  g, *weight = check_pieces.shape_of("rhs", rhs, names)
  rhs_k, n = weight[::-1] if transpose_rhs else weight
  lhs_dtype = operand_dtype("lhs", lhs)
  packed_axis = ""
  if weight_checks.is_packed(rhs):
    rhs_dtype, packed_axis = jnp.dtype(jnp.int4), "n" if backward else "k"
    rhs_k *= 1 if backward else config_lib.PACKED
    n *= config_lib.PACKED if backward else 1
    if rhs_k != k:
      axis = "k" if packed_axis == "k" else "n"
      raise ValueError(
        f"`rhs` is int32 {list(rhs.shape)}, eight 4-bit values along {axis} in "
        f"each, but `lhs` has k = {k}; want {names} with {axis} / 8 for {axis}"
      )
  else:
    rhs_dtype = operand_dtype("rhs", rhs)
  if rhs_k != k:
    message = (
      f"`rhs` is {names} = {list(rhs.shape)} but `lhs` is [m, k] = "
      f"[{m}, {k}], so k = {k}"
    )
    if n == k:
      flipped = not transpose_rhs
      other = "[g, n, k]" if flipped else "[g, k, n]"
      message += f"; pass transpose_rhs={flipped} if `rhs` is {other}"
    else:
      message += f"; want k = {k} in `rhs` too"
    raise ValueError(message)
  g_total = _check_groups(
    group_sizes, group_offset, g, f"`rhs` {names} = {list(rhs.shape)}"
  )
  formats = operand_checks.formats(
    (lhs_dtype, rhs_dtype),
    preferred_element_type,
    precision,
    is_scaled=not (lhs_scale is None and rhs_scale is None),
  )
  if existing_out is not None:
    _check_existing(existing_out, (m, n), formats["out_dtype"])
  if rhs_bias is not None:
    weight_checks.check_bias(rhs_bias, (g, n), formats["out_dtype"])
  if rhs_scale is not None:
    weight_checks.check_scale_formats(rhs_scale, rhs_dtype)
    formats |= weight_checks.scale_fields(rhs_scale, (g, k, n), backward)
    formats |= operand_checks.scaled_formats(formats, lhs_dtype, k)
  if lhs_scale is not None:
    formats |= operand_checks.row_scale_fields(lhs_scale, lhs_dtype, m)
  if lhs_quantization is not None:
    formats |= operand_checks.lhs_quantization_fields(
      lhs_quantization, precision, (lhs_dtype, rhs_dtype), formats, k=k
    )
  return Problem(
    kind="gmm",
    m=m,
    k=k,
    n=n,
    g=g,
    g_total=g_total,
    lhs_dtype=lhs_dtype,
    rhs_dtype=rhs_dtype,
    transpose_rhs=bool(transpose_rhs),
    has_existing=existing_out is not None,
    has_bias=rhs_bias is not None,
    packed_axis=packed_axis,
    **formats,
  )


def tgmm_problem(
  lhs: Any,
  dout: Any,
  group_sizes: Any,
  *,
  num_groups: int,
  group_offset: Any = None,
  preferred_element_type: Any = None,
  precision: Any = None,
  transpose_out: bool = False,
) -> Problem:
  """Checks the operands of tgmm and describes the product.

  Args:
    lhs: [m, k].
    dout: [m, n].
    group_sizes: integers [g_total], g_total >= num_groups.
    num_groups: local groups, the result's first dimension.
    group_offset: None, an int, or an integer scalar or [1].
    preferred_element_type: the result's dtype, or None.
    precision: None, a `lax.Precision`, its string, or a pair of equal ones.
    transpose_out: whether the result is [g, n, k] rather than [g, k, n].

  Returns:
    The Problem.

  Raises:
    ValueError: shapes disagree, or a precision that has no meaning.
    TypeError: a dtype that no backend takes.
    NotImplementedError: a valid request that is not supported yet.
  """
  check_pieces.check_bool("transpose_out", transpose_out)
  m, k = check_pieces.shape_of("lhs", lhs, "[m, k]")
  dout_m, n = check_pieces.shape_of("dout", dout, "[m, n]")
  lhs_dtype = operand_dtype("lhs", lhs)
  dout_dtype = operand_dtype("dout", dout)
  if dout_m != m:
    raise ValueError(
      f"`dout` is [m, n] = [{dout_m}, {n}] but `lhs` is [m, k] "
      f"= [{m}, {k}]; want m = {m} rows in both"
    )
  g = check_pieces.index_of("num_groups", num_groups)
  if g < 0:
    raise ValueError(f"`num_groups` is {g}; want at least 0")
  g_total = _check_groups(group_sizes, group_offset, g, f"`num_groups` = {g}")
  return Problem(
    kind="tgmm",
    m=m,
    k=k,
    n=n,
    g=g,
    g_total=g_total,
    lhs_dtype=lhs_dtype,
    rhs_dtype=dout_dtype,
    transpose_out=bool(transpose_out),
    **operand_checks.formats(
      (lhs_dtype, dout_dtype), preferred_element_type, precision
    ),
  )


def pallas_refusal(problem: Problem, chip: Any = None) -> str | None:
  """Says why the Pallas kernels cannot take the problem's formats, or None.

  Args:
    problem: the product.
    chip: the ChipSpec that it is for, or None to ask about all chips.
  """
  if problem.pair is not None and problem.packs_lanes:
    return (
      "`rhs` is int32, packed along its last axis, which the Pallas kernels of "
      "two products cannot unpack; pack weights [g, k / 8, n], or use "
      "backend='xla'"
    )
  second = "rhs" if problem.kind == "gmm" else "dout"
  for name, dtype in (
    ("lhs", problem.lhs_dtype),
    (second, problem.rhs_dtype),
    ("preferred_element_type", problem.out_dtype),
  ):
    row = config_lib.DTYPES.get(dtype)
    if row is not None and row.refused_by_pallas is not None:
      return (
        f"`{name}` is {dtype} on the Pallas backend: {row.refused_by_pallas}"
      )
    if chip is not None and dtype.name in chip.lacks:
      return (
        f"`{name}` is {dtype}, which {chip.name} cannot load; use int4, a "
        "float8 or int8, a chip that has it, or backend='xla'"
      )
  wanted = problem.lhs_quantization
  if chip is not None and wanted and wanted.name not in chip.mxu_dtypes:
    own = sorted(chip.mxu_dtypes & set(quantization.OPERANDS))
    return (
      f"`lhs_quantization` is {wanted}, which the matrix unit of {chip.name} "
      f"does not multiply: of such formats it has "
      f"{check_pieces.names_of(own) or 'none'}; choose one of these, None, a "
      "chip that has it, or backend='xla'"
    )
  return None


def check_pallas_dtypes(problem: Problem, chip: Any = None) -> None:
  """Raises NotImplementedError for formats that the kernels cannot take."""
  refusal = pallas_refusal(problem, chip)
  if refusal is not None:
    raise NotImplementedError(refusal)


# ---- run-time values


def canonical_sizes(group_sizes: Any, m: int) -> jax.Array:
  """Group sizes as int32 [g_total]: negatives are 0, none is above m.

  Their sum may still be above m (the groups are then clipped at row m), but it
  never overflows int32.
  """
  info = np.iinfo(group_sizes.dtype)
  # Clip in the caller's own dtype: a cast first would wrap large values. NumPy
  # arrays are clipped by NumPy, since jax would cut int64 down to int32.
  xp = np if isinstance(group_sizes, np.ndarray) else jnp
  sizes = group_sizes
  if info.min < 0:
    sizes = xp.maximum(sizes, xp.zeros_like(sizes))
  if info.max > m:
    sizes = xp.minimum(sizes, xp.full_like(sizes, m))
  sizes = jnp.asarray(sizes.astype(np.int32))
  if sizes.shape[0] * m <= np.iinfo(np.int32).max:
    return sizes
  ends = lax.associative_scan(
    lambda a, b: jnp.minimum(a + b, jnp.uint32(m)), sizes.astype(jnp.uint32)
  ).astype(jnp.int32)
  return jnp.diff(ends, prepend=jnp.zeros_like(ends[:1]))


def canonical_offset(group_offset: Any, g_total: int) -> jax.Array:
  """The group offset as int32 [1]; outside [0, g_total) it becomes g_total."""
  if group_offset is None:
    return jnp.zeros((1,), jnp.int32)
  if isinstance(group_offset, (int, np.integer, np.ndarray)):
    # As a Python integer, since g_total may not fit the given dtype.
    offset = int(np.asarray(group_offset).reshape(()))
    inside = 0 <= offset < g_total
    return jnp.full((1,), offset if inside else g_total, jnp.int32)
  offset = group_offset.reshape(1)
  limit = min(g_total, np.iinfo(offset.dtype).max)
  inside = (offset >= 0) & (offset < limit)
  if limit < g_total:
    inside |= offset == limit
  return jnp.where(inside, offset.astype(jnp.int32), jnp.int32(g_total))


def check_interpret(interpret: Any) -> None:
  """Checks the kernels' `interpret`.

  Raises:
    TypeError: it is neither a bool nor InterpretParams.
  """
  if not isinstance(interpret, (bool, pltpu.InterpretParams)):
    raise TypeError(
      f"`interpret` is {interpret!r}; want True, False or "
      "pltpu.InterpretParams(...)"
    )


# ---- pieces


def operand_dtype(name: str, x: Any) -> np.dtype:
  """An operand's dtype; raises unless it is one of `config.DTYPES`."""
  row = config_lib.DTYPES.get(
    np.dtype(x.dtype) if check_pieces.is_numpy(x.dtype) else None
  )
  if row is None:
    known = check_pieces.names_of(r.name for r in config_lib.DTYPES.values())
    raise TypeError(f"`{name}` is {x.dtype}; want one of {known}")
  if row.bits == 4 and name != "rhs":
    raise NotImplementedError(
      f"`{name}` is {row.name}: formats of 4 bits are for weights, `rhs` of "
      "gmm with its `rhs_scale`; use int8, float8 or bfloat16"
    )
  return jnp.dtype(row.name)


def _is_integer(dtype: Any) -> bool:
  return check_pieces.is_numpy(dtype) and np.dtype(dtype).kind in "iu"


def _check_groups(sizes: Any, offset: Any, g: int, has_g: str) -> int:
  (g_total,) = check_pieces.shape_of("group_sizes", sizes, "[g_total]")
  if not _is_integer(sizes.dtype):
    raise TypeError(f"`group_sizes` is {sizes.dtype}; want integers")
  if g_total < g:
    raise ValueError(
      f"`group_sizes` is [g_total] = [{g_total}] but {has_g} has "
      f"g = {g} groups; want g_total >= g"
    )
  _check_offset(offset)
  return g_total


def _check_offset(offset: Any) -> None:
  wanted = "want None, an int, or an integer scalar or [1]"
  if offset is None:
    return
  if isinstance(offset, (bool, float, complex)):
    raise TypeError(f"`group_offset` is {offset!r}; {wanted}")
  if isinstance(offset, int):
    return
  if not hasattr(offset, "shape") or not hasattr(offset, "dtype"):
    raise TypeError(f"`group_offset` is a {type(offset).__name__}; {wanted}")
  if not _is_integer(offset.dtype):
    raise TypeError(f"`group_offset` is {offset.dtype}; {wanted}")
  if tuple(offset.shape) not in ((), (1,)):
    raise ValueError(f"`group_offset` has shape {list(offset.shape)}; {wanted}")


def _check_existing(
  existing: Any, shape: tuple[int, int], dtype: np.dtype
) -> None:
  m, n = check_pieces.shape_of("existing_out", existing, "[m, n]")
  if (m, n) != shape:
    raise ValueError(
      f"`existing_out` is [m, n] = [{m}, {n}] but the result is "
      f"[{shape[0]}, {shape[1]}]"
    )
  if existing.dtype != dtype:
    raise TypeError(
      f"`existing_out` is {existing.dtype} but the result is "
      f"{dtype}; cast it, or set preferred_element_type"
    )
