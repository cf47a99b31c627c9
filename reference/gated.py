"""Gate and up from their definition, in NumPy and float64.

    gate, up = lhs[r] @ gate weight, lhs[r] @ up weight   of the row's group
    gmm_gated[r] = act(gate, up)                          rows of local groups
    gmm_gated[r] = 0                                      every other row

Rows, groups and offsets are those of `oracle.gmm`. An activation is its value
and its two derivatives, each a function of gate and up; what is clipped has the
derivative 0 beyond the limit.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from reference import oracle

Elementwise = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activation:
  """A function of gate and up, and its derivatives.

  Attributes:
    value: of the function.
    dgate: its derivative in gate.
    dup: its derivative in up.
  """

  value: Elementwise
  dgate: Elementwise
  dup: Elementwise


class GatedGradients(NamedTuple):
  """What `gmm_gated_vjp` returns; None stands for an operand not given."""

  dlhs: np.ndarray
  drhs_gate_up: np.ndarray
  drhs_bias: np.ndarray | None


class SplitGradients(NamedTuple):
  """What `split_gmm_vjp` returns; None stands for an operand not given."""

  dlhs: np.ndarray
  drhs_gate: np.ndarray
  drhs_up: np.ndarray
  drhs_gate_bias: np.ndarray | None
  drhs_up_bias: np.ndarray | None


Two = tuple[ArrayLike | None, ArrayLike | None]
_NEITHER: Two = (None, None)


def _sigmoid(x: np.ndarray) -> np.ndarray:
  return np.exp(-np.logaddexp(0.0, -x))


def _erf(x: np.ndarray) -> np.ndarray:
  return np.vectorize(math.erf, otypes=[np.float64])(x)


def _silu(x: np.ndarray) -> np.ndarray:
  return x * _sigmoid(x)


def _dsilu(x: np.ndarray) -> np.ndarray:
  return _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))


def _gelu(x: np.ndarray) -> np.ndarray:
  return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _dgelu(x: np.ndarray) -> np.ndarray:
  density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
  return 0.5 * (1 + _erf(x / math.sqrt(2))) + x * density


def _inner(x: np.ndarray) -> np.ndarray:
  return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
  return 0.5 * x * (1 + np.tanh(_inner(x)))


def _dgelu_tanh(x: np.ndarray) -> np.ndarray:
  slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
  tanh = np.tanh(_inner(x))
  return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * slope


def _times_up(
  value: Callable[[np.ndarray], np.ndarray],
  derivative: Callable[[np.ndarray], np.ndarray],
) -> Activation:
  return Activation(
    value=lambda gate, up: value(gate) * up,
    dgate=lambda gate, up: derivative(gate) * up,
    dup=lambda gate, up: value(gate),
  )


def _swiglu(gate: np.ndarray) -> np.ndarray:
  return _silu(1.702 * gate) / 1.702


ACTIVATIONS: dict[str, Activation] = {
  "silu": _times_up(_silu, _dsilu),
  "gelu": _times_up(_gelu, _dgelu),
  "gelu_tanh": _times_up(_gelu_tanh, _dgelu_tanh),
  "swigluoai": Activation(
    value=lambda gate, up: (
      (np.clip(up, -7, 7) + 1) * _swiglu(np.minimum(gate, 7))
    ),
    dgate=lambda gate, up: (
      (np.clip(up, -7, 7) + 1) * _dsilu(1.702 * gate) * (gate < 7)
    ),
    dup=lambda gate, up: _swiglu(np.minimum(gate, 7)) * (np.abs(up) < 7),
  ),
}


def gmm_gated(
  lhs: ArrayLike,
  rhs_gate_up: ArrayLike,
  group_sizes: ArrayLike,
  *,
  group_offset: ArrayLike | None = None,
  transpose_rhs: bool = False,
  rhs_scale: ArrayLike | None = None,
  rhs_bias: ArrayLike | None = None,
  activation: str | Activation = "silu",
) -> np.ndarray:
  """Multiplies by gate and up, and combines the two.

  Args:
    lhs: [m, k].
    rhs_gate_up: [g, k, 2n], or [g, 2n, k] if `transpose_rhs`; gate first.
    group_sizes: integers [g_total].
    group_offset: as in `oracle.gmm`.
    transpose_rhs: whether `rhs_gate_up` is [g, 2n, k].
    rhs_scale: [g, k_blocks, 2n], as in `oracle.gmm`.
    rhs_bias: [g, 2n], as in `oracle.gmm`: it is in gate and up.
    activation: a key of `ACTIVATIONS`, or an `Activation`.

  Returns:
    [m, n] float64.
  """
  options = {
    "group_offset": group_offset,
    "transpose_rhs": transpose_rhs,
    "rhs_scale": rhs_scale,
    "rhs_bias": rhs_bias,
  }
  both = oracle.gmm(lhs, rhs_gate_up, group_sizes, **options)
  gate, up = np.split(both, 2, axis=1)
  out = np.zeros(gate.shape)
  local = {"num_groups": np.shape(rhs_gate_up)[0], "group_offset": group_offset}
  for _, start, end in oracle.local_rows(group_sizes, m=len(out), **local):
    rows = slice(start, end)
    out[rows] = _resolve(activation).value(gate[rows], up[rows])
  return out


def gmm_gated_vjp(
  lhs: ArrayLike,
  rhs_gate_up: ArrayLike,
  group_sizes: ArrayLike,
  dout: ArrayLike,
  *,
  group_offset: ArrayLike | None = None,
  transpose_rhs: bool = False,
  rhs_scale: ArrayLike | None = None,
  rhs_bias: ArrayLike | None = None,
  activation: str | Activation = "silu",
) -> GatedGradients:
  """Pulls `dout` [m, n] back through `gmm_gated`.

  Args:
    lhs: As in `gmm_gated`.
    rhs_gate_up: As in `gmm_gated`.
    group_sizes: As in `gmm_gated`.
    dout: [m, n], the cotangent of the result.
    group_offset: As in `gmm_gated`.
    transpose_rhs: As in `gmm_gated`.
    rhs_scale: As in `gmm_gated`; there is no gradient of it.
    rhs_bias: As in `gmm_gated`.
    activation: As in `gmm_gated`.

  Returns:
    Gradients in float64, each in the shape of its operand; that of the weight
    is before the scale.
  """
  options = {
    "group_offset": group_offset,
    "transpose_rhs": transpose_rhs,
    "rhs_scale": rhs_scale,
    "rhs_bias": rhs_bias,
  }
  both = oracle.gmm(lhs, rhs_gate_up, group_sizes, **options)
  gate, up = np.split(both, 2, axis=1)
  act = _resolve(activation)
  dout = np.asarray(dout).astype(np.float64)
  dboth = np.concatenate(
    [dout * act.dgate(gate, up), dout * act.dup(gate, up)], axis=1
  )
  grads = oracle.gmm_vjp(lhs, rhs_gate_up, group_sizes, dboth, **options)
  return GatedGradients(
    dlhs=grads.dlhs, drhs_gate_up=grads.drhs, drhs_bias=grads.drhs_bias
  )


def split_gmm(
  lhs: ArrayLike,
  rhs_gate: ArrayLike,
  rhs_up: ArrayLike,
  group_sizes: ArrayLike,
  *,
  group_offset: ArrayLike | None = None,
  transpose_rhs: bool = False,
  rhs_scale: Two = _NEITHER,
  rhs_bias: Two = _NEITHER,
) -> tuple[np.ndarray, np.ndarray]:
  """Multiplies by two weights.

  Args:
    lhs: [m, k].
    rhs_gate: [g, k, n], or [g, n, k] if `transpose_rhs`.
    rhs_up: [g, k, n2], or [g, n2, k].
    group_sizes: integers [g_total].
    group_offset: as in `oracle.gmm`.
    transpose_rhs: as in `oracle.gmm`.
    rhs_scale: of each weight, as in `oracle.gmm`.
    rhs_bias: of each weight, as in `oracle.gmm`.

  Returns:
    [m, n] and [m, n2], float64.
  """
  options = {"group_offset": group_offset, "transpose_rhs": transpose_rhs}
  gate, up = (
    oracle.gmm(
      lhs, weight, group_sizes, rhs_scale=scale, rhs_bias=bias, **options
    )
    for weight, scale, bias in zip(
      (rhs_gate, rhs_up), rhs_scale, rhs_bias, strict=True
    )
  )
  return gate, up


def split_gmm_vjp(
  lhs: ArrayLike,
  rhs: tuple[ArrayLike, ArrayLike],
  group_sizes: ArrayLike,
  douts: tuple[ArrayLike, ArrayLike],
  *,
  group_offset: ArrayLike | None = None,
  transpose_rhs: bool = False,
  rhs_scale: Two = _NEITHER,
  rhs_bias: Two = _NEITHER,
) -> SplitGradients:
  """Pulls `douts` back through `split_gmm`.

  Args:
    lhs: As in `split_gmm`.
    rhs: `rhs_gate` and `rhs_up` of `split_gmm`.
    group_sizes: As in `split_gmm`.
    douts: the cotangents of both results.
    group_offset: As in `split_gmm`.
    transpose_rhs: As in `split_gmm`.
    rhs_scale: As in `split_gmm`; there is no gradient of it.
    rhs_bias: As in `split_gmm`.

  Returns:
    Gradients in float64, each in the shape of its operand.
  """
  options = {"group_offset": group_offset, "transpose_rhs": transpose_rhs}
  gate, up = (
    oracle.gmm_vjp(
      lhs,
      weight,
      group_sizes,
      dout,
      rhs_scale=scale,
      rhs_bias=bias,
      **options,
    )
    for weight, dout, scale, bias in zip(
      rhs, douts, rhs_scale, rhs_bias, strict=True
    )
  )
  return SplitGradients(
    dlhs=gate.dlhs + up.dlhs,
    drhs_gate=gate.drhs,
    drhs_up=up.drhs,
    drhs_gate_bias=gate.drhs_bias,
    drhs_up_bias=up.drhs_bias,
  )


def _resolve(activation: str | Activation) -> Activation:
  if isinstance(activation, Activation):
    return activation
  return ACTIVATIONS[activation]
