"""The calls that `aot.product` compiles and `aot.roofline` estimates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gmm import check_pieces, checks, gated_checks, kernels
from gmm.aot.operands import Weight, checked_dtype
from gmm.problem import Problem

MODES = ("nn", "nt", "tn", "tn_t")
# What may share a scale of lhs, by whether the product is tgmm, and of dout.
LHS_SCALES = {False: ("tensor", "row"), True: ("tensor", "channel")}
DOUT_SCALES = ("tensor", "channel")
# Two products in one kernel.
FUSED = ("gated", "split")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Operands:
  """What a product is made of; `aot.product` says what each field means."""

  dtype: Any = "bfloat16"
  rhs_dtype: Any = None
  scale_block: int | None = None
  scale_axis: str = "k"
  lhs_quantization: Any = None
  lhs_scale: str | None = None
  dout_scale: str | None = None
  bias: bool = False
  existing_out: bool = False
  fused: str | None = None

  def check(self, mode: str) -> None:
    """Checks what needs no shape.

    Raises:
      ValueError: an unknown mode, or a choice that the mode does not have.
      TypeError: a flag that is no bool.
    """
    for name in ("bias", "existing_out"):
      check_pieces.check_bool(name, getattr(self, name))
    if mode not in MODES:
      raise ValueError(f"`mode` is {mode!r}; want one of {', '.join(MODES)}")
    if self.fused is not None:
      self._check_fused(mode)
    is_tgmm = mode not in ("nn", "nt")
    _check_choice("lhs_scale", self.lhs_scale, LHS_SCALES[is_tgmm], mode)
    if not is_tgmm:
      _check_absent("dout_scale", self.dout_scale, mode, "tn or tn_t")
      return
    _check_choice("dout_scale", self.dout_scale, DOUT_SCALES, mode)
    for name in ("lhs_quantization", "bias", "existing_out", "scale_block"):
      _check_absent(name, getattr(self, name) or None, mode, "nn or nt")

  def _check_fused(self, mode: str) -> None:
    """Checks what the kernels of two products can do."""
    _check_choice("fused", self.fused, FUSED, mode)
    if mode != "nn":
      raise ValueError(
        f"`fused` is {self.fused!r} in mode {mode!r}; want None, or mode nn, "
        "the forward product"
      )
    for name in ("lhs_quantization", "lhs_scale", "existing_out"):
      value = getattr(self, name)
      if value:
        raise ValueError(
          f"`{name}` is {value!r} but `fused` is {self.fused!r}, whose kernel "
          "takes none; want one of the two"
        )
    if self.scale_axis != "k":
      raise ValueError(
        f"`scale_axis` is {self.scale_axis!r} but `fused` is {self.fused!r}, a "
        "forward product in mode nn; want k"
      )


class Call(NamedTuple):
  """One call of a kernel.

  Attributes:
    kernel: of `gmm.kernels`.
    check: what describes the problem, from the same arrays.
    arrays: specs by the name of their argument; the positional ones first.
    options: static arguments that both of them take.
  """

  kernel: Callable[..., Any]
  check: Callable[..., Problem]
  arrays: dict[str, jax.ShapeDtypeStruct]
  options: dict[str, Any]

  def problem(self, **options: Any) -> Problem:
    """The problem that the kernel computes.

    Args:
      **options: `preferred_element_type` and `precision`.

    Raises:
      ValueError, TypeError, NotImplementedError: as `gmm.checks`.
    """
    found = self.check(**self.arrays, **self.options, **options)
    if not found.transpose_out:
      return found
    # A transposed result comes of the same kernel, its operands exchanged.
    other = {"lhs": "dout", "dout": "lhs"}
    other |= {f"{a}_scale": f"{b}_scale" for a, b in other.items()}
    arrays = {other.get(name, name): x for name, x in self.arrays.items()}
    return self.check(**arrays, **self.options | {"transpose_out": False})


def call(
  mode: str, shape: Mapping[str, int], operands: Operands, **results: Any
) -> Call:
  """The call of one product.

  Args:
    mode: "nn", "nt", "tn" or "tn_t".
    shape: m, g, k and n.
    operands: of which formats.
    **results: as `Call.problem` takes them: `existing_out` is a result, too.

  Raises:
    ValueError, TypeError: as `aot.product`.
  """
  operands.check(mode)
  dtype = checked_dtype("dtype", operands.dtype)
  rhs_dtype = dtype if operands.rhs_dtype is None else operands.rhs_dtype
  weight = Weight.of(rhs_dtype, operands.scale_block, operands.scale_axis)
  if operands.fused is not None:
    return _pair(shape, operands, (dtype, weight))
  if mode in ("nn", "nt"):
    found = _gmm(mode, shape, operands, (dtype, weight))
    if operands.existing_out:
      problem = found.problem(**results)
      existing = _spec(problem.out_shape, problem.out_dtype)
      found.arrays["existing_out"] = existing
    return found
  return _tgmm(mode, shape, operands, (dtype, weight))


def _gmm(
  mode: str,
  shape: Mapping[str, int],
  operands: Operands,
  formats: tuple[Any, Weight],
) -> Call:
  m, g, k, n = (shape[name] for name in "mgkn")
  dtype, weight = formats
  arrays = {
    "lhs": _spec((m, k if mode == "nn" else n), dtype),
    "rhs": weight.rhs(g, k, n),
    "group_sizes": _spec((g,), jnp.int32),
    "rhs_scale": weight.scale(g, k, n),
    "lhs_scale": _scale(operands.lhs_scale, (m, 1)),
    "rhs_bias": None,
  }
  if operands.bias:
    columns = n if mode == "nn" else k
    arrays["rhs_bias"] = _spec((g, columns), jnp.float32)
  options = {
    "transpose_rhs": mode == "nt",
    "backward": weight.is_backward(mode),
    "lhs_quantization": operands.lhs_quantization,
  }
  return Call(kernels.gmm_v2, checks.gmm_problem, _given(arrays), options)


def _pair(
  shape: Mapping[str, int], operands: Operands, formats: tuple[Any, Weight]
) -> Call:
  """Gate and up, weights of k x n each: side by side, or two arrays."""
  m, g, k, n = (shape[name] for name in "mgkn")
  dtype, weight = formats
  is_gated = operands.fused == "gated"
  columns = 2 * n if is_gated else n
  halves = ("rhs",) if is_gated else ("rhs_gate", "rhs_up")
  arrays = {"lhs": _spec((m, k), dtype)}
  for half in ("rhs_gate_up",) if is_gated else halves:
    arrays[half] = weight.rhs(g, k, columns)
  arrays["group_sizes"] = _spec((g,), jnp.int32)
  for half in halves:
    arrays[f"{half}_scale"] = weight.scale(g, k, columns)
  for half in halves if operands.bias else ():
    arrays[f"{half}_bias"] = _spec((g, columns), jnp.float32)
  if is_gated:
    kernel, check = kernels.gmm_gated_v2, gated_checks.gated_problem
  else:
    kernel, check = kernels.split_gmm_v2, _split_problem
  return Call(kernel, check, _given(arrays), {})


def _split_problem(
  lhs: Any,
  rhs_gate: Any,
  rhs_up: Any,
  group_sizes: Any,
  *,
  rhs_gate_scale: Any = None,
  rhs_up_scale: Any = None,
  rhs_gate_bias: Any = None,
  rhs_up_bias: Any = None,
  **options: Any,
) -> Problem:
  """The check of `split_gmm_v2`, by the names of its arguments."""
  return gated_checks.split_problem(
    lhs,
    (rhs_gate, rhs_up),
    group_sizes,
    rhs_scale=(rhs_gate_scale, rhs_up_scale),
    rhs_bias=(rhs_gate_bias, rhs_up_bias),
    **options,
  )


def _tgmm(
  mode: str,
  shape: Mapping[str, int],
  operands: Operands,
  formats: tuple[Any, Weight],
) -> Call:
  m, g, k, n = (shape[name] for name in "mgkn")
  dtype, weight = formats
  arrays = {
    "lhs": _spec((m, k), dtype),
    "dout": _spec((m, n), weight.dtype),
    "group_sizes": _spec((g,), jnp.int32),
    "lhs_scale": _scale(operands.lhs_scale, (1, k)),
    "dout_scale": _scale(operands.dout_scale, (1, n)),
  }
  options = {"num_groups": g, "transpose_out": mode == "tn_t"}
  return Call(kernels.tgmm_v2, checks.tgmm_problem, _given(arrays), options)


def _given(arrays: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
  return {name: x for name, x in arrays.items() if x is not None}


def _spec(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def _scale(
  per: str | None, shape: tuple[int, int]
) -> jax.ShapeDtypeStruct | None:
  """The scales of an operand: one for all of it, or one for each of many."""
  if per is None:
    return None
  return _spec((1, 1) if per == "tensor" else shape, jnp.float32)


def _check_choice(
  name: str, value: Any, known: tuple[str, ...], mode: str
) -> None:
  if value is not None and value not in known:
    raise ValueError(
      f"`{name}` is {value!r} in mode {mode!r}; want None or one of "
      f"{', '.join(known)}"
    )


def _check_absent(name: str, value: Any, mode: str, wanted: str) -> None:
  """Raises for what belongs to products of another kind."""
  if value is not None:
    raise ValueError(
      f"`{name}` is {value!r} but mode {mode!r} takes none; want None, or mode "
      f"{wanted}"
    )
