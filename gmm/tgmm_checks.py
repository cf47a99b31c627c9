"""Rules for the scales of tgmm's operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from gmm import check_pieces, operand_checks, quantization
from gmm.problem import Problem


def scale_fields(
  operand: str, scale: Any, dtype: np.dtype, size: int
) -> dict[str, int]:
  """The field of a Problem that follows from a scale.

  Args:
    operand: "lhs" or "dout".
    scale: None, or [1, 1] or [1, size].
    dtype: of the operand.
    size: its columns.

  Raises:
    ValueError, TypeError: as `operand_checks.check_scale`.
  """
  if scale is None:
    return {}
  axis = "[1, k]" if operand == "lhs" else "[1, n]"
  operand_checks.check_scale(
    f"{operand}_scale", scale, dtype, (1, size), axis=axis
  )
  return {f"{operand}_scales": scale.shape[1]}


def refusal(problem: Problem, chip: Any) -> str | None:
  """Why a chip cannot multiply operands that come with scales, or None.

  Without scales they are widened to bfloat16 where the matrix unit lacks their
  format. Who quantises them for speed wants to know.
  """
  if problem.kind != "tgmm" or chip is None:
    return None
  compute = problem.compute_dtype.name
  if compute not in quantization.OPERANDS or compute in chip.mxu_dtypes:
    return None
  for operand, scales in (
    ("lhs", problem.lhs_scales),
    ("dout", problem.dout_scales),
  ):
    if scales:
      own = [f for f in quantization.OPERANDS if f in chip.mxu_dtypes]
      return (
        f"`{operand}` is {compute} with `{operand}_scale`, which the matrix "
        f"unit of {chip.name} does not multiply: of such formats it has "
        f"{check_pieces.names_of(own) or 'none'}; choose one of these, "
        "bfloat16, a chip that has it, or backend='xla'"
      )
  return None
