"""Gate and up against loops, central differences and jax's own functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import activations
from reference import gated

# (group_sizes, g, group_offset), with m = 7 in all of them.
ROUTINGS = {
  "all": ([2, 0, 5], 3, None),
  "short": ([1, 2, 0], 3, None),
  "shard": ([2, 1, 3, 1], 2, 1),
  "beyond": ([2, 1, 3, 1], 2, 4),
}
M, K, N = 7, 4, 3

# As 1 at (0, 0) shows, rows of no group do not reach it.
SHIFTED = gated.Activation(
  value=lambda gate, up: (gate + 1) * (up + 1),
  dgate=lambda gate, up: up + 1,
  dup=lambda gate, up: gate + 1,
)
ALL = {**gated.ACTIVATIONS, "shifted": SHIFTED}

routings = pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
layouts = pytest.mark.parametrize("transpose_rhs", [False, True])


def _operands(g, transpose_rhs):
  rng = np.random.default_rng(0)
  weight = rng.normal(size=(g, K, 2 * N))
  return {
    "lhs": rng.normal(size=(M, K)),
    "rhs": weight.swapaxes(1, 2) if transpose_rhs else weight,
    "dout": rng.normal(size=(M, N)),
  }


def _row_groups(sizes):
  return [i for i, size in enumerate(sizes) for _ in range(size)][:M]


def test_the_same_names():
  assert list(gated.ACTIVATIONS) == list(activations.ACTIVATIONS)


@pytest.mark.parametrize("name", gated.ACTIVATIONS)
def test_activations_are_those_of_jax(name):
  gate, up = np.meshgrid(np.linspace(-9, 9, 43), np.linspace(-8, 8, 17))
  own = {
    "silu": lambda g, u: jax.nn.silu(g) * u,
    "gelu": lambda g, u: jax.nn.gelu(g, approximate=False) * u,
    "gelu_tanh": lambda g, u: jax.nn.gelu(g, approximate=True) * u,
    "swigluoai": lambda g, u: (
      (jnp.clip(u, -7, 7) + 1)
      * jnp.minimum(g, 7)
      * jax.nn.sigmoid(1.702 * jnp.minimum(g, 7))
    ),
  }[name]
  want = own(gate.astype(np.float32), up.astype(np.float32))
  got = gated.ACTIVATIONS[name].value(gate, up)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_derivatives_are_central_differences(name):
  # Off the points where something is clipped.
  act, step = ALL[name], 1e-6
  gate, up = np.meshgrid(np.linspace(-9.1, 9, 23), np.linspace(-8.2, 8, 17))
  dgate = act.value(gate + step, up) - act.value(gate - step, up)
  dup = act.value(gate, up + step) - act.value(gate, up - step)
  for got, want in ((act.dgate, dgate), (act.dup, dup)):
    np.testing.assert_allclose(
      got(gate, up), want / (2 * step), rtol=1e-6, atol=1e-8
    )


@routings
@layouts
@pytest.mark.parametrize("name", ALL)
def test_gated_is_the_loop(name, routing, transpose_rhs):
  sizes, g, offset = routing
  x = _operands(g, transpose_rhs)
  weight = x["rhs"].swapaxes(1, 2) if transpose_rhs else x["rhs"]
  want = np.zeros((M, N))
  for row, group in enumerate(_row_groups(sizes)):
    local = group - (offset or 0)
    if not 0 <= local < g or (offset or 0) >= len(sizes):
      continue
    for col in range(N):
      gate = sum(x["lhs"][row, j] * weight[local, j, col] for j in range(K))
      up = sum(x["lhs"][row, j] * weight[local, j, N + col] for j in range(K))
      want[row, col] = ALL[name].value(np.array([gate]), np.array([up]))[0]
  got = gated.gmm_gated(
    x["lhs"],
    x["rhs"],
    sizes,
    group_offset=offset,
    transpose_rhs=transpose_rhs,
    activation=ALL[name],
  )
  np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@routings
@layouts
@pytest.mark.parametrize("name", ALL)
def test_gated_vjp_is_the_numeric_derivative(name, routing, transpose_rhs):
  sizes, g, offset = routing
  x = _operands(g, transpose_rhs)
  options = {
    "group_offset": offset,
    "transpose_rhs": transpose_rhs,
    "activation": ALL[name],
  }
  grads = gated.gmm_gated_vjp(x["lhs"], x["rhs"], sizes, x["dout"], **options)
  for operand, got in (("lhs", grads.dlhs), ("rhs", grads.drhs_gate_up)):
    want, step = np.zeros(x[operand].shape), 1e-6
    for index in np.ndindex(want.shape):
      outs = []
      for sign in (1, -1):
        moved = dict(x, **{operand: np.array(x[operand])})
        moved[operand][index] += sign * step
        outs.append(
          gated.gmm_gated(moved["lhs"], moved["rhs"], sizes, **options)
        )
      want[index] = np.sum((outs[0] - outs[1]) * x["dout"]) / (2 * step)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-8)


@routings
@layouts
def test_split_vjp_is_the_numeric_derivative(routing, transpose_rhs):
  # It is affine in each operand: a difference over any step is the derivative.
  sizes, g, offset = routing
  x = _operands(g, transpose_rhs)
  cut = [N + 1]  # of two widths
  axis = 1 if transpose_rhs else 2
  both = np.random.default_rng(1).normal(size=(M, 2 * N))
  douts = np.split(both, cut, axis=1)
  options = {"group_offset": offset, "transpose_rhs": transpose_rhs}
  weights = np.split(x["rhs"], cut, axis=axis)
  operands = {"lhs": x["lhs"], "rhs_gate": weights[0], "rhs_up": weights[1]}
  grads = gated.split_gmm_vjp(x["lhs"], weights, sizes, douts, **options)
  for name in operands:
    want = np.zeros(operands[name].shape)
    for index in np.ndindex(want.shape):
      moved = dict(operands, **{name: np.array(operands[name])})
      moved[name][index] += 1.0
      after = gated.split_gmm(*moved.values(), sizes, **options)
      before = gated.split_gmm(*operands.values(), sizes, **options)
      want[index] = sum(
        np.sum((a - b) * dout)
        for a, b, dout in zip(after, before, douts, strict=True)
      )
    got = getattr(grads, f"d{name}")
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


@layouts
def test_nan_outside_local_groups_stays_there(transpose_rhs):
  sizes = [2, 1, 0, 1]  # row 2 is local; group 2 is local and empty
  x = _operands(2, transpose_rhs)
  for name in ("lhs", "dout"):
    x[name][[0, 1, 3, 4, 5, 6]] = np.nan
  x["rhs"][1] = np.nan
  options = {
    "group_offset": 1,
    "transpose_rhs": transpose_rhs,
    "activation": SHIFTED,
  }
  out = gated.gmm_gated(x["lhs"], x["rhs"], sizes, **options)
  grads = gated.gmm_gated_vjp(x["lhs"], x["rhs"], sizes, x["dout"], **options)
  for rows in (out, grads.dlhs):
    assert np.all(np.delete(rows, 2, axis=0) == 0)
    assert np.all(np.isfinite(rows[2]))
    assert np.any(rows[2] != 0)
  assert np.all(np.isfinite(grads.drhs_gate_up[0]))
  assert np.all(grads.drhs_gate_up[1] == 0)


@routings
@layouts
def test_scale_and_bias_are_a_weight_and_a_row_of_it(routing, transpose_rhs):
  sizes, g, offset = routing
  x = _operands(g, transpose_rhs)
  rng = np.random.default_rng(2)
  scale = rng.uniform(0.5, 2, (g, 2, 2 * N))
  bias = rng.normal(size=(g, 2 * N))
  weight = x["rhs"].swapaxes(1, 2) if transpose_rhs else x["rhs"]
  weight = weight * np.repeat(scale, K // 2, axis=1)
  weight = np.concatenate([weight, bias[:, None]], axis=1)
  lhs = np.concatenate([x["lhs"], np.ones((M, 1))], axis=1)
  shared = {"group_offset": offset}
  own = shared | {"transpose_rhs": transpose_rhs}
  more = {"rhs_scale": scale, "rhs_bias": bias}
  gate_up = x["rhs"], sizes
  np.testing.assert_allclose(
    gated.gmm_gated(x["lhs"], *gate_up, **more, **own),
    gated.gmm_gated(lhs, weight, sizes, **shared),
  )
  grads = gated.gmm_gated_vjp(x["lhs"], *gate_up, x["dout"], **more, **own)
  want = gated.gmm_gated_vjp(lhs, weight, sizes, x["dout"], **shared)
  np.testing.assert_allclose(grads.dlhs, want.dlhs[:, :K])
  np.testing.assert_allclose(grads.drhs_bias, want.drhs_gate_up[:, K])

  cut = [N + 1]
  halves = np.split(x["rhs"], cut, axis=1 if transpose_rhs else 2)
  more = {
    name: tuple(np.split(value, cut, axis=-1)) for name, value in more.items()
  }
  douts = np.split(rng.normal(size=(M, 2 * N)), cut, axis=1)
  weights = np.split(weight, cut, axis=2)
  got = gated.split_gmm(x["lhs"], *halves, sizes, **more, **own)
  wanted = gated.split_gmm(lhs, *weights, sizes, **shared)
  for one, other in zip(got, wanted, strict=True):
    np.testing.assert_allclose(one, other)
  grads = gated.split_gmm_vjp(x["lhs"], halves, sizes, douts, **more, **own)
  want = gated.split_gmm_vjp(lhs, weights, sizes, douts, **shared)
  np.testing.assert_allclose(grads.dlhs, want.dlhs[:, :K])
  np.testing.assert_allclose(grads.drhs_gate_bias, want.drhs_gate[:, K])
  np.testing.assert_allclose(grads.drhs_up_bias, want.drhs_up[:, K])
