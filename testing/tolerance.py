"""What the oracle expects of a case, and how far off a backend may be."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from reference import oracle
from reference.error_bound import error_bound
from testing import inputs
from testing.case import Case

_BF16_EPS = float(jnp.finfo(jnp.bfloat16).eps)
_F32_EPS = float(jnp.finfo(jnp.float32).eps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
  """The oracle's result, with a bound for each element."""

  value: np.ndarray
  bound: np.ndarray


def expected(
  case: Case, x: inputs.Inputs, *, on_tpu: bool
) -> Mapping[str, Expected]:
  """The oracle's `out`, `dlhs` and `drhs` for a case.

  Args:
    case: The case.
    x: Its inputs.
    on_tpu: whether float32 is multiplied in bfloat16 at default precision.
  """
  where = {"group_offset": case.group_offset}
  layout = {"transpose_rhs": case.transpose_rhs}
  out = oracle.gmm(
    x.lhs, x.rhs, x.group_sizes, existing_out=x.existing_out, **where, **layout
  )
  grads = oracle.gmm_vjp(x.lhs, x.rhs, x.group_sizes, x.dout, **where, **layout)
  lhs, rhs, dout = (np.abs(_wide(a)) for a in (x.lhs, x.rhs, x.dout))
  existing = None if x.existing_out is None else np.abs(_wide(x.existing_out))
  magnitude = oracle.gmm(
    lhs, rhs, x.group_sizes, existing_out=existing, **where, **layout
  )
  of_grads = oracle.gmm_vjp(lhs, rhs, x.group_sizes, dout, **where, **layout)

  def bounded(
    value: np.ndarray, size: np.ndarray, *, terms, dtypes, out_dtype
  ) -> Expected:
    eps = _eps_of(
      dtypes, out_dtype, precision=case.formats.precision, on_tpu=on_tpu
    )
    bound = error_bound(value, size, terms=terms, **eps)
    return Expected(value=value, bound=bound)

  return {
    "out": bounded(
      out,
      magnitude,
      terms=case.k + (existing is not None),
      dtypes=(x.lhs.dtype, x.rhs.dtype),
      out_dtype=inputs.out_dtype(case),
    ),
    "dlhs": bounded(
      grads.dlhs,
      of_grads.dlhs,
      terms=case.n,
      dtypes=(x.dout.dtype, x.rhs.dtype),
      out_dtype=inputs.gradient_dtype(case, "lhs"),
    ),
    "drhs": bounded(
      grads.drhs,
      of_grads.drhs,
      terms=_rows_of_groups(case)[:, None, None],
      dtypes=(x.lhs.dtype, x.dout.dtype),
      out_dtype=inputs.gradient_dtype(case, "rhs"),
    ),
  }


def _eps_of(
  operands: tuple[np.dtype, np.dtype],
  out: np.dtype,
  *,
  precision: str | None,
  on_tpu: bool,
) -> dict[str, float]:
  """The eps values that `error_bound` takes, for one product."""
  integers = all(inputs.is_integer(dtype) for dtype in operands)
  acc_eps = 0.0 if integers else _F32_EPS
  operand_eps = 0.0
  if on_tpu and jnp.float32 in operands:
    # The matrix unit multiplies bfloat16: once, or in six passes that keep
    # float32's digits but for the last.
    operand_eps = 2 * (_F32_EPS if precision == "highest" else _BF16_EPS)
  if inputs.is_integer(out):
    return {"acc_eps": acc_eps, "operand_eps": operand_eps, "out_eps": 0.0}
  info = jnp.finfo(out)
  rounded = integers or out != jnp.float32
  # Below its normal numbers a 16- or 32-bit result may be flushed to zero.
  floor = info.tiny if info.bits > 8 else info.smallest_subnormal
  return {
    "acc_eps": acc_eps,
    "operand_eps": operand_eps,
    "out_eps": float(info.eps) if rounded else 0.0,
    "out_floor": float(floor),
  }


def _rows_of_groups(case: Case) -> np.ndarray:
  rows = np.zeros(case.g)
  for group, start, end in oracle.local_rows(
    case.group_sizes,
    num_groups=case.g,
    m=case.m,
    group_offset=case.group_offset,
  ):
    rows[group] = end - start
  return rows


def _wide(x: np.ndarray) -> np.ndarray:
  return x.astype(np.float64)
