"""Arrays for a case, with poison wherever nothing may be read."""

import dataclasses
import zlib

import jax.numpy as jnp
import numpy as np

from gmm import config as config_lib
from reference import oracle
from testing.case import Case


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
  """The operands of a case, NumPy arrays all.

  Attributes:
    lhs: [m, k].
    rhs: [g, k, n] or [g, n, k].
    dout: [m, n], the cotangent of the result.
    group_sizes: int32 [g_total].
    group_offset: an int or an array, None where the case has none.
    existing_out: [m, n], None where the case has none.
    rhs_scale: [g, k_blocks, n], None where the case has none.
    rhs_bias: [g, n], None where the case has none.
    lhs_scale: [1, 1] or [m, 1], None where the case has none.
  """

  lhs: np.ndarray
  rhs: np.ndarray
  dout: np.ndarray
  group_sizes: np.ndarray
  group_offset: np.ndarray | int | None
  existing_out: np.ndarray | None
  rhs_scale: np.ndarray | None
  rhs_bias: np.ndarray | None
  lhs_scale: np.ndarray | None = None


def out_dtype(case: Case) -> np.dtype:
  """The result's dtype."""
  formats = case.formats
  if formats.out is not None:
    return jnp.dtype(formats.out)
  dtype = config_lib.default_result_dtype(
    jnp.dtype(formats.lhs), jnp.dtype(formats.rhs)
  )
  if case.is_scaled and is_integer(dtype):
    return jnp.dtype(jnp.bfloat16)
  return dtype


def dout_dtype(case: Case) -> np.dtype:
  """The cotangent's dtype: the result's, or for integers that of lhs.

  Integers have no gradients, but the products that would compute them exist,
  and take operands as narrow as the forward product does.
  """
  if jnp.dtype(case.formats.lhs).kind == "i" and not case.lhs_scale:
    return jnp.dtype(case.formats.lhs)
  return out_dtype(case)


def gradient_dtype(case: Case, operand: str) -> np.dtype:
  """The dtype of the gradient of "lhs" or "rhs".

  For integers, which have none, that of the product that would compute it.
  """
  dtype = jnp.dtype(getattr(case.formats, operand))
  if not is_integer(dtype):
    return dtype
  integers = is_integer(dout_dtype(case))
  return jnp.dtype(jnp.int32 if integers else jnp.float32)


def is_integer(dtype: np.dtype) -> bool:
  """Whether it is one of the integer formats, int4 included."""
  return jnp.issubdtype(dtype, jnp.integer)


def make(case: Case) -> Inputs:
  """The operands of `case`: the same ones in every process.

  Each operand has its own random stream. Poisoned are the rows of lhs and dout
  that belong to no local group, and the weights of local groups without rows,
  with their scales and biases.
  """
  seeds = np.random.SeedSequence(zlib.crc32(case.name.encode())).spawn(7)
  lhs, rhs, dout, existing, scale, bias, by_row = map(
    np.random.default_rng, seeds
  )
  weight = (case.n, case.k) if case.transpose_rhs else (case.k, case.n)
  arrays = {
    "lhs": _draw(lhs, (case.m, case.k), jnp.dtype(case.formats.lhs)),
    "rhs": _draw(rhs, (case.g, *weight), jnp.dtype(case.formats.rhs)),
    "dout": _draw(dout, (case.m, case.n), dout_dtype(case)),
  }
  if case.values == "faint":
    powers = np.resize([1e-30, 1e-37, 1e-40, 1.0], case.m)[:, None]
    wide = arrays["lhs"].astype(np.float64) * powers
    arrays["lhs"] = wide.astype(arrays["lhs"].dtype)
  dtype = jnp.dtype(case.scale_dtype)
  arrays["rhs_scale"] = arrays["rhs_bias"] = None
  if case.scale_blocks:
    arrays["rhs_scale"] = _scale(scale, case).astype(dtype)
  if case.bias:
    arrays["rhs_bias"] = _draw(bias, (case.g, case.n), dtype, scale=8)
  arrays["lhs_scale"] = None
  if case.lhs_scale:
    shape = (case.m if case.lhs_scale == "row" else 1, 1)
    arrays["lhs_scale"] = (2.0 ** by_row.uniform(-6, 0, shape)).astype(dtype)
  rows, groups = local_rows_and_groups(case)
  if case.lhs_scale == "row":
    poison = _poison(case.poison, dtype)
    arrays["lhs_scale"][~rows] = poison
  for name, outside in (
    ("lhs", ~rows),
    ("dout", ~rows),
    ("rhs", ~groups),
    ("rhs_scale", ~groups),
    ("rhs_bias", ~groups),
  ):
    if arrays[name] is not None:
      arrays[name][outside] = _poison(case.poison, arrays[name].dtype)
  return Inputs(
    **arrays,
    group_sizes=np.array(case.group_sizes, np.int32),
    group_offset=_offset(case),
    existing_out=_draw(existing, (case.m, case.n), out_dtype(case), scale=8)
    if case.existing_out
    else None,
  )


def packed(rhs: np.ndarray, axis: int) -> np.ndarray:
  """Each eight int4 along an axis as an int32, the first in the low bits."""
  first = np.moveaxis(rhs, axis, 0).astype(np.int8).view(np.uint8) & 15
  eights = first.reshape(-1, 8, *first.shape[1:]).astype(np.uint32)
  shifts = 4 * np.arange(8, dtype=np.uint32)
  shifts = shifts.reshape(8, *([1] * (first.ndim - 1)))
  carrier = np.bitwise_or.reduce(eights << shifts, axis=1).view(np.int32)
  return np.ascontiguousarray(np.moveaxis(carrier, 0, axis))


def local_rows_and_groups(case: Case) -> tuple[np.ndarray, np.ndarray]:
  """Which rows belong to a local group, and which local groups have rows."""
  rows = np.zeros(case.m, bool)
  groups = np.zeros(case.g, bool)
  for group, start, end in oracle.local_rows(
    case.group_sizes,
    num_groups=case.g,
    m=case.m,
    group_offset=case.group_offset,
  ):
    rows[start:end] = True
    groups[group] = True
  return rows, groups


def _scale(rng: np.random.Generator, case: Case) -> np.ndarray:
  """Scales, as the case's `values` says."""
  blocks = case.scale_blocks
  scale = 2.0 ** rng.uniform(-3, 3, (case.g, blocks, case.n))
  if case.values == "steep":
    scale *= 10.0 ** (2 * (np.arange(blocks) % 3) - 2)[:, None]
  elif case.values == "zeros":
    scale[rng.random(scale.shape) < 1 / 3] = 0
    scale[:, -1:] = 0
  elif case.values in ("tiny", "faint"):
    scale *= 1e-30
  if jnp.dtype(case.formats.lhs).itemsize == 1:
    scale *= 2.0**-10  # dlhs has few numbers above 100
  return scale


def _draw(
  rng: np.random.Generator,
  shape: tuple[int, ...],
  dtype: np.dtype,
  *,
  scale: int = 1,
) -> np.ndarray:
  if is_integer(dtype):
    # Negated, every value is one too, so that |x| fits.
    top = min(127 * scale, jnp.iinfo(dtype).max)
    return rng.integers(-top, top, size=shape, endpoint=True).astype(dtype)
  return (scale * rng.standard_normal(shape)).astype(dtype)


def _poison(kind: str, dtype: np.dtype) -> float | int:
  """The nearest thing to `kind` that the format has."""
  if is_integer(dtype):
    return jnp.iinfo(dtype).min if kind == "inf" else jnp.iinfo(dtype).max
  info = jnp.finfo(dtype)
  if kind == "huge" or info.bits == 4:  # which have numbers only
    return min(3e38, float(info.max))
  # float8_e4m3fn has no infinity.
  if kind == "inf" and np.isinf(np.array(np.inf).astype(dtype)):
    return np.inf
  return np.nan


def _offset(case: Case) -> np.ndarray | int | None:
  if case.group_offset is None or case.offset_form == "int":
    return case.group_offset
  shape = (1,) if case.offset_form == "traced_1" else ()
  return np.full(shape, case.group_offset, np.int32)
