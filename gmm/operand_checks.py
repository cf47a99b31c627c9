"""Rules for operands' formats, and for operands that are quantised."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm import check_pieces, quantization
from gmm import config as config_lib
from gmm import precision as precision_lib


def formats(
  operands: tuple[np.dtype, np.dtype],
  preferred: Any,
  precision: Any,
  *,
  is_scaled: bool = False,
) -> dict[str, Any]:
  """The fields of a Problem that follow from dtypes and precision.

  Args:
    operands: dtypes of both operands.
    preferred: the result's dtype, or None.
    precision: as the caller has it.
    is_scaled: sums of integers are multiplied by scales: they become floats.

  Raises:
    ValueError: a precision that has no meaning.
    TypeError: a result of another kind than the sum.
  """
  lhs, rhs = operands
  acc = config_lib.acc_dtype(lhs, rhs)
  compute = config_lib.compute_dtype(lhs, rhs)
  out = config_lib.default_result_dtype(lhs, rhs)
  total = acc
  if is_scaled and acc == jnp.int32:
    total, out = jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)
  if preferred is not None:
    out = _preferred_dtype(preferred, total)
  wanted = precision_lib.canonical(precision)
  if compute == jnp.float32:
    wanted = precision_lib.ambient() if wanted is None else wanted
  elif wanted not in (None, lax.Precision.DEFAULT):
    raise ValueError(
      f"`precision` is {wanted.name} but the operands are {lhs} and {rhs}: it "
      "has a meaning for float32 only; pass None, or float32 operands"
    )
  else:
    # Said rather than left to the ambient default, which is for float32.
    wanted = lax.Precision.DEFAULT
  return {
    "acc_dtype": acc,
    "compute_dtype": compute,
    "out_dtype": out,
    "precision": wanted,
  }


def _preferred_dtype(preferred: Any, acc: np.dtype) -> np.dtype:
  known = config_lib.result_dtypes(acc)
  try:
    dtype = jnp.dtype(preferred)
  except TypeError:
    dtype = None
  if dtype is None or dtype.name not in known:
    got = preferred if dtype is None else dtype
    raise TypeError(
      f"`preferred_element_type` is {got} for a sum in {acc}; "
      f"want one of {check_pieces.names_of(known)}"
    )
  return dtype


def scaled_formats(
  fields: dict[str, Any], lhs: np.dtype, k: int
) -> dict[str, Any]:
  """Formats of a product with `rhs_scale`, where they are others than without.

  Args:
    fields: of the Problem, those of rhs_scale among them.
    lhs: its dtype.
    k: its columns.
  """
  acc = {"acc_dtype": jnp.dtype(jnp.float32)}
  if fields["scale_axis"] == "n":
    if config_lib.DTYPES[lhs].kind == "float":
      return {}
    # lhs takes the scales before it is multiplied, and needs room for them.
    return {"compute_dtype": jnp.dtype(jnp.bfloat16)} | acc
  # Sums of one scale per row and column are scaled when they are complete.
  return acc if fields["scale_block"] < k else {}


def row_scale_fields(scale: Any, dtype: np.dtype, m: int) -> dict[str, Any]:
  """The fields of a Problem that follow from `lhs_scale`.

  Args:
    scale: what came.
    dtype: of lhs.
    m: rows of lhs.

  Raises:
    ValueError, TypeError: as `check_scale`.
  """
  check_scale("lhs_scale", scale, dtype, (m, 1))
  return {"lhs_scales": scale.shape[0]}


def check_scale(
  name: str, scale: Any, dtype: np.dtype, shape: tuple[int, int]
) -> None:
  """Checks the scales of lhs or dout.

  Args:
    name: "lhs_scale" or "dout_scale".
    scale: what came.
    dtype: of the operand.
    shape: that the scales of all rows or columns have; [1, 1] is another.

  Raises:
    ValueError: another shape.
    TypeError: a format that scales do not have, or an operand that is not
      quantised.
  """
  operand = name.removesuffix("_scale")
  axis = "[m, 1]" if shape[1] == 1 else "[1, k]"
  check_pieces.shape_of(name, scale, axis)
  if tuple(scale.shape) not in ((1, 1), shape):
    raise ValueError(
      f"`{name}` is {list(scale.shape)} but `{operand}` wants [1, 1] or "
      f"{axis} = {list(shape)}"
    )
  if (
    not check_pieces.is_numpy(scale.dtype)
    or np.dtype(scale.dtype).name not in config_lib.SCALES
  ):
    raise TypeError(
      f"`{name}` is {scale.dtype}; want one of "
      f"{check_pieces.names_of(config_lib.SCALES)}"
    )
  if dtype.name not in quantization.OPERANDS:
    raise TypeError(
      f"`{name}` is given but `{operand}` is {dtype}, which is not quantised; "
      f"want one of {check_pieces.names_of(quantization.OPERANDS)}, or "
      f"{name}=None"
    )


def lhs_quantization_fields(
  value: Any,
  precision: Any,
  operands: tuple[np.dtype, np.dtype],
  fields: dict[str, Any],
  *,
  k: int,
) -> dict[str, Any]:
  """The fields of a Problem that follow from `lhs_quantization`.

  Args:
    value: a format or its name.
    precision: as the caller has it.
    operands: dtypes of lhs and rhs.
    fields: of the Problem, those of rhs_scale among them.
    k: columns of lhs.

  Raises:
    ValueError: lhs is quantised already, or the weight's format does not go
      with it.
    TypeError: a format that lhs cannot be quantised to.
    NotImplementedError: a scale along the columns of the result.
  """
  lhs, rhs = operands
  how = quantization.format_of("lhs_quantization", value, quantization.OPERANDS)
  if config_lib.DTYPES[lhs].kind != "float":
    raise ValueError(
      f"`lhs_quantization` is {how} but `lhs` is {lhs}, quantised already; "
      "pass `lhs_scale`, or a bfloat16 or float32 `lhs`"
    )
  goes_with = ("int8", "int4") if how == "int8" else (how,)
  if rhs.name not in goes_with:
    raise ValueError(
      f"`lhs_quantization` is {how} but `rhs` is {rhs}, and no matrix unit "
      f"multiplies the two; want {' or '.join(goes_with)} in `rhs`"
    )
  wanted = precision_lib.canonical(precision)
  if wanted not in (None, lax.Precision.DEFAULT):
    raise ValueError(
      f"`precision` is {wanted.name} but `lhs_quantization` is {how}: it has a "
      "meaning for float32 only; pass None"
    )
  block = fields.get("scale_block", 0)
  if block and fields["scale_axis"] == "n":
    raise NotImplementedError(
      "`lhs_quantization` with backward=True and a `rhs_scale`: lhs takes that "
      "scale as it is; quantise it before, and pass `lhs_scale`"
    )
  return {
    "lhs_quantization": jnp.dtype(how),
    "lhs_block": block if 0 < block < k else quantization.LHS_BLOCK,
    "compute_dtype": jnp.dtype(how),
    "acc_dtype": jnp.dtype(jnp.float32),
    "precision": lax.Precision.DEFAULT,
  }
