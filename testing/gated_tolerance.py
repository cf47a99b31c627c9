"""What the oracle expects of a gated or split case, and how far off one may be.

An activation is A(gate) B(up), with |B'| <= 1 and |B(up)| <= |up| + 2. With
`slope` and `bend`, bounds of |A'| and |A''|, and sums that are off by at most
dg and du (reference/error_bound.py):

    out     slope dg (|B| + du) + |A| du, and its evaluation
    dgate   |dout| (bend dg (|B| + du) + slope du), and its evaluation
    dup     |dout| (slope dg), and its evaluation

A function is evaluated in float32 by a few operations, each of which moves it
by a unit in the last place of (1 + |gate|) (1 + |up|), or less. Where the sums'
error reaches a limit that clips them, the derivative is either of both sides.
Then one rounding, as ever. For the gradients, gate, up, dgate and dup are
rounded to the format that is kept; the products of dgate and dup carry the
errors of these to dlhs and drhs.
"""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from reference import gated, oracle
from reference.error_bound import error_bound
from testing import inputs, tolerance
from testing.gated_cases import GatedCase
from testing.tolerance import Expected

SHIFTED = gated.Activation(
  value=lambda gate, up: (gate + 1) * (up + 2),
  dgate=lambda gate, up: up + 2,
  dup=lambda gate, up: gate + 1,
)
# Bounds of |A'| and |A''|; `gated_test` looks for larger ones.
SLOPES = {
  "silu": (1.1, 0.5),
  "gelu": (1.13, 0.8),
  "gelu_tanh": (1.13, 0.82),
  "swigluoai": (1.1, 0.852),
  "shifted": (1.0, 0.0),
}
_LIMITS = {"swigluoai": 7.0}
# Operations of an activation or a derivative, in units in the last place; a
# TPU's own exp, tanh and logistic are off by more than one.
_OPERATIONS, _OPERATIONS_ON_TPU = 16, 256
_F32_EPS = float(jnp.finfo(jnp.float32).eps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedInputs:
  """The operands of a case, NumPy arrays all.

  Attributes:
    one: of the product of gate and up together, [k, n + n_up] wide.
    weights: one weight in "gated", two in "split".
    douts: a cotangent for each result.
  """

  one: inputs.Inputs
  weights: tuple[np.ndarray, ...]
  douts: tuple[np.ndarray, ...]


def make(case: GatedCase) -> GatedInputs:
  """The operands of `case`, with sums of a size that activations care about."""
  n, n_up = case.columns
  x = inputs.make(dataclasses.replace(case.case, n=n + n_up))
  lhs = x.lhs
  if not inputs.is_integer(lhs.dtype):
    integers = inputs.is_integer(x.rhs.dtype)
    lhs = (lhs.astype(np.float64) * (2**-9 if integers else 2**-2)).astype(
      lhs.dtype
    )
  x = dataclasses.replace(x, lhs=lhs)
  if case.op == "gated":
    return GatedInputs(one=x, weights=(x.rhs,), douts=(x.dout[:, :n],))
  axis = 1 if case.case.transpose_rhs else 2
  return GatedInputs(
    one=x,
    weights=tuple(np.split(x.rhs, [n], axis=axis)),
    douts=tuple(np.split(x.dout, [n], axis=1)),
  )


def activation_of(case: GatedCase) -> gated.Activation:
  """The oracle's."""
  return {**gated.ACTIVATIONS, "shifted": SHIFTED}[case.activation]


def kept_dtype(case: GatedCase) -> np.dtype:
  """Of gate and up between the passes."""
  out = inputs.out_dtype(case.case)
  return out if out.itemsize > 1 else jnp.dtype(jnp.bfloat16)


def expected(
  case: GatedCase, x: GatedInputs, *, on_tpu: bool
) -> Mapping[str, Expected]:
  """The oracle's results for a case, by the names of the harness."""
  own = _expected_split if case.op == "split" else _expected_gated
  return own(case, x, on_tpu)


def _options(case: GatedCase) -> dict:
  return {
    "group_offset": case.case.group_offset,
    "transpose_rhs": case.case.transpose_rhs,
  }


def _eps(
  case: GatedCase, dtypes: tuple, out: np.dtype, *, on_tpu: bool
) -> dict[str, float]:
  precision = case.case.formats.precision
  return tolerance.eps_of(dtypes, out, precision=precision, on_tpu=on_tpu)


def _abs(x: np.ndarray) -> np.ndarray:
  return np.abs(x.astype(np.float64))


def _expected_split(
  case: GatedCase, x: GatedInputs, on_tpu: bool
) -> Mapping[str, Expected]:
  one, sizes, options = x.one, x.one.group_sizes, _options(case)
  parts, magnitudes = [], []
  found = {}
  for name, weight, dout in zip(
    ("gate", "up"), x.weights, x.douts, strict=True
  ):
    size = _abs(weight)
    found[name] = Expected(
      value=(value := oracle.gmm(one.lhs, weight, sizes, **options)),
      bound=error_bound(
        value,
        oracle.gmm(_abs(one.lhs), size, sizes, **options),
        terms=case.case.k,
        **_eps(
          case,
          (one.lhs.dtype, weight.dtype),
          inputs.out_dtype(case.case),
          on_tpu=on_tpu,
        ),
      ),
    )
    parts.append(oracle.gmm_vjp(one.lhs, weight, sizes, dout, **options))
    magnitudes.append(
      oracle.gmm_vjp(_abs(one.lhs), size, sizes, _abs(dout), **options)
    )
    found[f"drhs_{name}"] = Expected(
      value=parts[-1].drhs,
      bound=error_bound(
        parts[-1].drhs,
        magnitudes[-1].drhs,
        terms=tolerance.rows_of_groups(case.case)[:, None, None],
        **_eps(
          case,
          (one.lhs.dtype, dout.dtype),
          inputs.gradient_dtype(case.case, "rhs"),
          on_tpu=on_tpu,
        ),
      ),
    )
  eps = _eps(
    case,
    (x.douts[0].dtype, x.weights[0].dtype),
    inputs.gradient_dtype(case.case, "lhs"),
    on_tpu=on_tpu,
  )
  dlhs = parts[0].dlhs + parts[1].dlhs
  magnitude = magnitudes[0].dlhs + magnitudes[1].dlhs
  bound = error_bound(dlhs, magnitude, terms=sum(case.columns), **eps)
  if not case.fused:  # the first product is rounded before the second is added
    bound += eps["out_eps"] * np.abs(parts[0].dlhs)
    bound += np.where(magnitude > 0, eps.get("out_floor", 0.0), 0.0)
  found["dlhs"] = Expected(value=dlhs, bound=bound)
  return found


def _expected_gated(
  case: GatedCase, x: GatedInputs, on_tpu: bool
) -> Mapping[str, Expected]:
  one, options = x.one, _options(case)
  (weight,) = x.weights
  rows, _ = inputs.local_rows_and_groups(case.case)
  dtypes = (one.lhs.dtype, weight.dtype)
  both = oracle.gmm(one.lhs, weight, one.group_sizes, **options)
  size = oracle.gmm(_abs(one.lhs), _abs(weight), one.group_sizes, **options)
  off = error_bound(
    both,
    size,
    terms=case.case.k,
    **_eps(case, dtypes, jnp.dtype(jnp.float32), on_tpu=on_tpu),
  )
  sums = _Sums.of(case, both, off, on_tpu)
  value = np.where(rows[:, None], sums.value(), 0)
  own = _eps(case, dtypes, inputs.out_dtype(case.case), on_tpu=on_tpu)
  bound = sums.value_error() + own["out_eps"] * np.abs(value)
  bound += own.get("out_floor", 0.0)
  out = Expected(value=value, bound=np.where(rows[:, None], bound, 0))
  dout = np.where(rows[:, None], x.douts[0].astype(np.float64), 0)
  kept = kept_dtype(case)
  rounding = _eps(case, dtypes, kept, on_tpu=on_tpu)
  lost, floor = rounding["out_eps"], rounding.get("out_floor", 0.0)
  sums = _Sums.of(case, both, off + lost * np.abs(both) + floor, on_tpu)
  d, d_off = sums.gradients(dout)
  d_off += lost * (np.abs(d) + d_off) + floor
  return {"out": out} | _products(case, x, (d, d_off), on_tpu)


def _products(
  case: GatedCase,
  x: GatedInputs,
  cotangent: tuple[np.ndarray, np.ndarray],
  on_tpu: bool,
) -> Mapping[str, Expected]:
  """Gradients for a cotangent of gate and up, with what its errors do."""
  (weight,), one, options = x.weights, x.one, _options(case)
  d, d_off = cotangent
  kept = kept_dtype(case)

  def vjp(lhs: np.ndarray, rhs: np.ndarray, dout: np.ndarray):
    return oracle.gmm_vjp(lhs, rhs, one.group_sizes, dout, **options)

  value = vjp(one.lhs, weight, d)
  size = vjp(_abs(one.lhs), _abs(weight), np.abs(d) + d_off)
  carried = vjp(_abs(one.lhs), _abs(weight), d_off)
  found = {}
  for name, terms, other, of in (
    ("dlhs", sum(case.columns), weight, "lhs"),
    (
      "drhs",
      tolerance.rows_of_groups(case.case)[:, None, None],
      one.lhs,
      "rhs",
    ),
  ):
    eps = _eps(
      case,
      (other.dtype, kept),
      inputs.gradient_dtype(case.case, of),
      on_tpu=on_tpu,
    )
    exact, magnitude = getattr(value, name), getattr(size, name)
    carry = getattr(carried, name) * (1 + eps["out_eps"])
    found[name] = Expected(
      value=exact,
      bound=error_bound(exact, magnitude, terms=terms, **eps) + carry,
    )
  return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sums:
  """Gate and up with the errors that they may have."""

  case: GatedCase
  gate: np.ndarray
  up: np.ndarray
  gate_off: np.ndarray
  up_off: np.ndarray
  evaluation: np.ndarray

  @classmethod
  def of(
    cls, case: GatedCase, both: np.ndarray, off: np.ndarray, on_tpu: bool
  ) -> "_Sums":
    (gate, up), (gate_off, up_off) = (
      np.split(a, 2, axis=1) for a in (both, off)
    )
    operations = _OPERATIONS_ON_TPU if on_tpu else _OPERATIONS
    evaluation = (1 + np.abs(gate)) * (2 + np.abs(up))
    return cls(
      case=case,
      gate=gate,
      up=up,
      gate_off=gate_off,
      up_off=up_off,
      evaluation=operations * _F32_EPS * evaluation,
    )

  def value(self) -> np.ndarray:
    """The oracle's act(gate, up)."""
    return activation_of(self.case).value(self.gate, self.up)

  def value_error(self) -> np.ndarray:
    """How far off float32's may be."""
    slope, _ = SLOPES[self.case.activation]
    of_gate = slope * self.gate_off * (np.abs(self.up) + 2 + self.up_off)
    return of_gate + self._most_a() * self.up_off + self.evaluation

  def gradients(self, dout: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cotangents of gate and up, beside each other, and their errors."""
    act = activation_of(self.case)
    slope, bend = SLOPES[self.case.activation]
    most_b = np.abs(self.up) + 2 + self.up_off
    gate_off = bend * self.gate_off * most_b + slope * self.up_off
    up_off = slope * self.gate_off
    limit = _LIMITS.get(self.case.activation)
    if limit is not None:
      near = np.abs(self.gate - limit) <= self.gate_off
      gate_off = gate_off + np.where(near, slope * most_b, 0)
      near = np.abs(np.abs(self.up) - limit) <= self.up_off
      up_off = up_off + np.where(near, self._most_a(), 0)
    d = [dout * f(self.gate, self.up) for f in (act.dgate, act.dup)]
    off = [np.abs(dout) * (o + self.evaluation) for o in (gate_off, up_off)]
    return np.concatenate(d, axis=1), np.concatenate(off, axis=1)

  def _most_a(self) -> np.ndarray:
    return np.abs(self.gate) + 1
