"""What the oracle expects of a case, and how far off a backend may be."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from gmm import config as config_lib
from reference import oracle, quantizing
from reference.error_bound import error_bound
from testing import inputs
from testing.case import Case

_BF16_EPS = float(jnp.finfo(jnp.bfloat16).eps)
# Elements of a block that the kernels scale the products of.
_LEAST_BLOCK = 128
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
  # Poisoned scales of weights that nobody reads may make NaN of them.
  with np.errstate(invalid="ignore"):
    return _expected(case, x, on_tpu=on_tpu)


def _expected(
  case: Case, x: inputs.Inputs, *, on_tpu: bool
) -> Mapping[str, Expected]:
  shared = {
    "group_offset": case.group_offset,
    "transpose_rhs": case.transpose_rhs,
  }
  more = {
    name: getattr(x, name) for name in ("rhs_scale", "rhs_bias", "existing_out")
  }
  of_lhs = {
    "lhs_scale": x.lhs_scale,
    "lhs_quantization": case.lhs_quantization,
  }
  out = oracle.gmm(x.lhs, x.rhs, x.group_sizes, **more, **of_lhs, **shared)
  scaled = oracle.lhs_in_use(x.lhs, x.lhs_scale)
  grads = oracle.gmm_vjp(scaled, x.rhs, x.group_sizes, x.dout, **more, **shared)
  lhs, rhs, dout = (np.abs(_wide(a)) for a in (scaled, x.rhs, x.dout))
  more = {
    name: None if a is None else np.abs(_wide(a)) for name, a in more.items()
  }
  in_use = np.abs(oracle.lhs_in_use(x.lhs, *of_lhs.values(), x.rhs_scale))
  magnitude = oracle.gmm(in_use, rhs, x.group_sizes, **more, **shared)
  of_grads = oracle.gmm_vjp(lhs, rhs, x.group_sizes, dout, **more, **shared)
  flushed = _flushed(case, (lhs, rhs, dout), x.group_sizes, more["rhs_scale"])
  other_neighbours = 0.0
  if case.lhs_quantization:
    near = quantizing.near_ties(
      x.lhs,
      case.lhs_quantization,
      axis=1,
      block=oracle.lhs_block(case.k, x.rhs_scale),
    )
    weight = {"rhs_scale": more["rhs_scale"], **shared}
    other_neighbours = oracle.gmm(near, rhs, x.group_sizes, **weight)
  # The product of each block is scaled, and one sum more has each of them.
  scaling = 1 + 2 * case.scale_blocks
  # Scales are computed and multiplied by, for each block of lhs.
  scaling_out = scaling + 4 * bool(case.lhs_scale or case.lhs_quantization)

  def bounded(
    value: np.ndarray, size: np.ndarray, *, terms, dtypes, out_dtype, name=""
  ) -> Expected:
    eps = eps_of(
      dtypes, out_dtype, precision=case.formats.precision, on_tpu=on_tpu
    )
    if case.is_scaled and name == "out":
      eps["acc_eps"] = _F32_EPS
      eps["out_floor"] += other_neighbours
    elif case.bias and name == "out" and not eps["acc_eps"]:
      # Sums of integers are exact, but what is added to them is not.
      terms, eps["acc_eps"] = 2 + case.existing_out, _F32_EPS
    if case.lhs_scale and not name:  # dout takes the scale
      eps["operand_eps"] += _F32_EPS + float(jnp.finfo(dtypes[1]).eps)
    if case.scale_blocks and name:
      eps["operand_eps"] += scaling_eps(case, dtypes, name, on_tpu=on_tpu)
      eps["out_floor"] += flushed[name]
    bound = error_bound(value, size, terms=terms, **eps)
    return Expected(value=value, bound=bound)

  results = {
    "out": bounded(
      out,
      magnitude,
      terms=case.k + scaling_out + case.existing_out + case.bias,
      dtypes=(case.lhs_quantization or x.lhs.dtype, x.rhs.dtype),
      out_dtype=inputs.out_dtype(case),
      name="out",
    ),
    "dlhs": bounded(
      grads.dlhs,
      of_grads.dlhs,
      terms=case.n + scaling,
      dtypes=(x.dout.dtype, x.rhs.dtype),
      out_dtype=inputs.gradient_dtype(case, "lhs"),
      name="dlhs",
    ),
  }
  if case.has_drhs:
    results["drhs"] = bounded(
      grads.drhs,
      of_grads.drhs,
      terms=rows_of_groups(case)[:, None, None],
      dtypes=(x.lhs.dtype, x.dout.dtype),
      out_dtype=inputs.gradient_dtype(case, "rhs"),
    )
  if case.bias:
    results["drhs_bias"] = bounded(
      grads.drhs_bias,
      of_grads.drhs_bias,
      terms=rows_of_groups(case)[:, None],
      dtypes=(x.dout.dtype, x.dout.dtype),
      out_dtype=x.rhs_bias.dtype,
    )
  return results


def unquantised(case: Case, x: inputs.Inputs) -> Expected:
  """What `out` would be if lhs were not quantised on the way.

  The bound adds what the format moves each element of lhs by, half of its step
  there, to the bound of the quantised product.
  """
  plain = dataclasses.replace(case, lhs_quantization=None)
  with np.errstate(invalid="ignore"):
    value = _expected(plain, x, on_tpu=False)["out"].value
    bound = _expected(case, x, on_tpu=False)["out"].bound
    moved = quantizing.half_steps(
      x.lhs,
      case.lhs_quantization,
      axis=1,
      block=oracle.lhs_block(case.k, x.rhs_scale),
    )
    scale = None if x.rhs_scale is None else np.abs(_wide(x.rhs_scale))
    moved = oracle.gmm(
      moved,
      np.abs(_wide(x.rhs)),
      x.group_sizes,
      group_offset=case.group_offset,
      transpose_rhs=case.transpose_rhs,
      rhs_scale=scale,
    )
  # The result was rounded where it was, not where it would have been.
  rounding = 1 + float(jnp.finfo(inputs.out_dtype(case)).eps)
  return Expected(value=value, bound=bound + rounding * moved)


def eps_of(
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


def has_small_blocks(case: Case) -> bool:
  """Whether the weight may be rounded with its scales, forward too."""
  return 0 < case.k < _LEAST_BLOCK * case.scale_blocks


def scaling_eps(
  case: Case, operands: tuple[np.dtype, np.dtype], name: str, *, on_tpu: bool
) -> float:
  """What operands that are scaled before they are multiplied lose by it.

  In dlhs dout is scaled, or the weight, and rounded to the format that is
  multiplied; a weight of blocks below 128 elements is so in the result, too.
  XLA scales the weight, in float32, which a TPU multiplies as bfloat16.
  """
  compute = config_lib.compute_dtype(*map(jnp.dtype, operands))
  rounds = name == "dlhs" or has_small_blocks(case)
  if rounds and compute != jnp.float32:
    return _BF16_EPS + on_tpu * 2 * _BF16_EPS
  return on_tpu * 2 * _BF16_EPS


def _flushed(
  case: Case,
  operands: tuple[np.ndarray, np.ndarray, np.ndarray],
  sizes: np.ndarray,
  scale: np.ndarray | None,
) -> Mapping[str, np.ndarray]:
  """What scaled products lose where a factor or a product is flushed to zero.

  Any of lhs, rhs, scale and their partial products may be off by the smallest
  normal number: it is multiplied by the factors that are left. Operands and
  scale come as absolute values.
  """
  if scale is None:
    return {}
  lhs, rhs, dout = operands
  shared = {
    "group_offset": case.group_offset,
    "transpose_rhs": case.transpose_rhs,
  }

  def products(lhs, rhs, dout, scale):
    more = {"rhs_scale": scale, **shared}
    back = oracle.gmm_vjp(lhs, rhs, sizes, dout, **more)
    return {"out": oracle.gmm(lhs, rhs, sizes, **more), "dlhs": back.dlhs}

  one = [np.ones_like(x) for x in (lhs, rhs, dout, scale)]
  lost = [
    products(lhs, one[1], dout, one[3]),
    products(one[0], rhs, one[2], scale),
    products(one[0], rhs, one[2], one[3]),
    products(one[0], one[1], one[2], scale),
    products(*one),
  ]
  tiny = float(jnp.finfo(jnp.float32).tiny)
  return {name: tiny * sum(x[name] for x in lost) for name in lost[0]}


def rows_of_groups(case: Case) -> np.ndarray:
  """How many rows each local group has: [g]."""
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
