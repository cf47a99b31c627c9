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
    scales: of each weight; None where the case has none.
    biases: of each weight; None where the case has none.
  """

  one: inputs.Inputs
  weights: tuple[np.ndarray, ...]
  douts: tuple[np.ndarray, ...]
  scales: tuple[np.ndarray | None, ...]
  biases: tuple[np.ndarray | None, ...]


def make(case: GatedCase) -> GatedInputs:
  """The operands of `case`, with sums of a size that activations care about."""
  n, n_up = case.columns
  x = inputs.make(dataclasses.replace(case.case, n=n + n_up))
  lhs = x.lhs
  if not inputs.is_integer(lhs.dtype):
    smaller = 2.0**-2
    if inputs.is_integer(x.rhs.dtype):
      smaller = 2.0**-9 if jnp.iinfo(x.rhs.dtype).bits == 8 else 2.0**-5
    lhs = (lhs.astype(np.float64) * smaller).astype(lhs.dtype)
  bias = x.rhs_bias
  if bias is not None:
    bias = (bias.astype(np.float64) / 4).astype(bias.dtype)
  x = dataclasses.replace(x, lhs=lhs, rhs_bias=bias)
  if case.op == "gated":
    return GatedInputs(
      one=x,
      weights=(x.rhs,),
      douts=(x.dout[:, :n],),
      scales=(x.rhs_scale,),
      biases=(x.rhs_bias,),
    )

  def halves(array: np.ndarray | None, axis: int) -> tuple:
    if array is None:
      return (None, None)
    return tuple(np.split(array, [n], axis=axis))

  return GatedInputs(
    one=x,
    weights=halves(x.rhs, 1 if case.case.transpose_rhs else 2),
    douts=halves(x.dout, 1),
    scales=halves(x.rhs_scale, 2),
    biases=halves(x.rhs_bias, 1),
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
  # Poisoned scales of weights that nobody reads may make NaN of them.
  with np.errstate(invalid="ignore"):
    return own(case, x, on_tpu)


def _options(case: GatedCase) -> dict:
  return {
    "group_offset": case.case.group_offset,
    "transpose_rhs": case.case.transpose_rhs,
  }


def _eps(
  case: GatedCase, dtypes: tuple, out: np.dtype, *, on_tpu: bool, name: str = ""
) -> dict[str, float]:
  """As of one product; `name` is "out" or "dlhs" of what scales may enter."""
  precision = case.case.formats.precision
  eps = tolerance.eps_of(dtypes, out, precision=precision, on_tpu=on_tpu)
  if case.case.scale_blocks and name:
    eps["operand_eps"] += tolerance.scaling_eps(
      case.case, dtypes, name, on_tpu=on_tpu
    )
  return eps


def _terms(case: GatedCase, products: int) -> int:
  """What is added up, where each block's product is scaled before."""
  return products + 1 + 2 * case.case.scale_blocks + case.case.bias


def _more(x: GatedInputs, i: int, size: bool = False) -> dict:
  """Scale and bias of a weight, for the oracle; absolute values for a size."""
  found = {"rhs_scale": x.scales[i], "rhs_bias": x.biases[i]}
  if not size:
    return found
  return {n: None if a is None else _abs(a) for n, a in found.items()}


def _abs(x: np.ndarray) -> np.ndarray:
  return np.abs(x.astype(np.float64))


def _expected_split(
  case: GatedCase, x: GatedInputs, on_tpu: bool
) -> Mapping[str, Expected]:
  one, sizes, options = x.one, x.one.group_sizes, _options(case)
  rows = tolerance.rows_of_groups(case.case)
  parts, magnitudes, found = [], [], {}
  for i, name in enumerate(("gate", "up")):
    weight, dout, size = x.weights[i], x.douts[i], _abs(x.weights[i])
    own, own_size = _more(x, i) | options, _more(x, i, size=True) | options
    operands, lhs = (one.lhs.dtype, weight.dtype), _abs(one.lhs)
    value = oracle.gmm(one.lhs, weight, sizes, **own)
    eps = _eps(
      case, operands, inputs.out_dtype(case.case), on_tpu=on_tpu, name="out"
    )
    found[name] = Expected(
      value=value,
      bound=error_bound(
        value,
        oracle.gmm(lhs, size, sizes, **own_size),
        terms=_terms(case, case.case.k),
        **eps,
      ),
    )
    parts.append(oracle.gmm_vjp(one.lhs, weight, sizes, dout, **own))
    magnitudes.append(oracle.gmm_vjp(lhs, size, sizes, _abs(dout), **own_size))
    of_weight = []
    if case.case.has_drhs:
      dtype = inputs.gradient_dtype(case.case, "rhs")
      of_weight.append(("drhs", "", one.lhs, dtype))
    if case.case.bias:
      of_weight.append(("drhs_bias", "_bias", dout, x.biases[i].dtype))
    for field, suffix, other, dtype in of_weight:
      value = getattr(parts[-1], field)
      found[f"drhs_{name}{suffix}"] = Expected(
        value=value,
        bound=error_bound(
          value,
          getattr(magnitudes[-1], field),
          terms=rows.reshape(-1, *[1] * (value.ndim - 1)),
          **_eps(case, (other.dtype, dout.dtype), dtype, on_tpu=on_tpu),
        ),
      )
  eps = _eps(
    case,
    (x.douts[0].dtype, x.weights[0].dtype),
    inputs.gradient_dtype(case.case, "lhs"),
    on_tpu=on_tpu,
    name="dlhs",
  )
  dlhs = parts[0].dlhs + parts[1].dlhs
  magnitude = magnitudes[0].dlhs + magnitudes[1].dlhs
  terms = _terms(case, sum(case.columns))
  bound = error_bound(dlhs, magnitude, terms=terms, **eps)
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
  both = oracle.gmm(one.lhs, weight, one.group_sizes, **_more(x, 0), **options)
  size = oracle.gmm(
    _abs(one.lhs),
    _abs(weight),
    one.group_sizes,
    **_more(x, 0, size=True),
    **options,
  )
  f32 = jnp.dtype(jnp.float32)
  off = error_bound(
    both,
    size,
    terms=_terms(case, case.case.k),
    **_eps(case, dtypes, f32, on_tpu=on_tpu, name="out"),
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

  def vjp(lhs: np.ndarray, rhs: np.ndarray, dout: np.ndarray, **own):
    return oracle.gmm_vjp(lhs, rhs, one.group_sizes, dout, **own, **options)

  own_size = _more(x, 0, size=True)
  value = vjp(one.lhs, weight, d, **_more(x, 0))
  size = vjp(_abs(one.lhs), _abs(weight), np.abs(d) + d_off, **own_size)
  carried = vjp(_abs(one.lhs), _abs(weight), d_off, **own_size)
  rows = tolerance.rows_of_groups(case.case)
  of = {
    "dlhs": (_terms(case, sum(case.columns)), weight.dtype, "lhs"),
  }
  if case.case.has_drhs:
    of["drhs"] = (rows[:, None, None], one.lhs.dtype, "rhs")
  if case.case.bias:
    of["drhs_bias"] = (rows[:, None], kept, "bias")
  found = {}
  for name, (terms, other, operand) in of.items():
    dtype = (
      x.biases[0].dtype
      if operand == "bias"
      else inputs.gradient_dtype(case.case, operand)
    )
    scaled = name if name == "dlhs" else ""
    eps = _eps(case, (other, kept), dtype, on_tpu=on_tpu, name=scaled)
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
