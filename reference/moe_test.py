"""The float64 layer against loops over tokens and central differences."""

import numpy as np
import pytest

from reference import gated, moe

# Of 6 tokens among 4 experts: top_k columns.
CHOICES = {
  "spread": [[0, 1], [2, 0], [3, 2], [1, 3], [0, 3], [2, 1]],
  "empty experts": [[2, 0], [0, 2], [2, 0], [2, 0], [0, 2], [0, 2]],
  "one expert": [[1], [1], [1], [1], [1], [1]],
  "all experts": [[0, 1, 2, 3]] * 6,
}
T, H, F, E = 6, 4, 3, 4

choices = pytest.mark.parametrize("experts", CHOICES.values(), ids=CHOICES)


def _weights(seed=0):
  rng = np.random.default_rng(seed)
  shapes = (T, H), (H, E), (E, H, 2 * F), (E, F, H)
  return moe.Weights(*(rng.normal(size=shape) for shape in shapes))


@choices
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_layer_is_its_definition(experts, activation):
  w = _weights()
  act = gated.ACTIVATIONS[activation]
  want = np.zeros((T, H))
  for t, chosen in enumerate(experts):
    scores = [np.exp(w.tokens[t] @ w.router[:, e]) for e in chosen]
    for score, e in zip(scores, chosen, strict=True):
      both = w.tokens[t] @ w.wi[e]
      inner = act.value(both[:F], both[F:]) @ w.wo[e]
      want[t] += score / sum(scores) * inner
  got = moe.layer(w, experts, activation=activation)
  np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@choices
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gradients_by_differences(experts, activation):
  w, way = _weights(), _weights(1)
  dout = np.random.default_rng(2).normal(size=(T, H))
  gradients = moe.layer_vjp(w, experts, dout, activation=activation)
  for name in moe.Weights._fields:  # each alone, so that none hides another
    step = 1e-5 * getattr(way, name)

    def along(sign, name=name, step=step):
      moved = w._replace(**{name: getattr(w, name) + sign * step})
      return np.sum(dout * moe.layer(moved, experts, activation=activation))

    want = (along(1) - along(-1)) / 2e-5
    got = np.sum(getattr(gradients, name) * getattr(way, name))
    # The error of a central difference: step^2, and rounding over step.
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7, err_msg=name)


def test_experts_without_tokens_have_no_gradient():
  w = _weights()
  gradients = moe.layer_vjp(w, CHOICES["one expert"], np.ones((T, H)))
  others = [0, 2, 3]
  assert not gradients.wi[others].any() and not gradients.wo[others].any()
  assert gradients.wi[1].any()
  assert not gradients.router.any()  # a single gate is 1, whatever its logit


@choices
def test_balance_and_its_gradients(experts):
  w, way = _weights(), _weights(1)
  value, dtokens, drouter = moe.balance(w.tokens, w.router, experts)
  step = 1e-5

  def at(sign):
    tokens = w.tokens + sign * step * way.tokens
    return moe.balance(tokens, w.router + sign * step * way.router, experts)[0]

  got = np.sum(dtokens * way.tokens) + np.sum(drouter * way.router)
  want = (at(1) - at(-1)) / (2 * step)
  np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-8)
  if len(experts[0]) == E:  # every expert gets the same
    assert value == pytest.approx(1)


def test_balance_of_all_tokens_on_one_expert_is_the_number_of_experts():
  tokens, router = np.ones((T, H)), np.zeros((H, E))
  router[:, 2] = 50
  value, *_ = moe.balance(tokens, router, [[2]] * T)
  assert value == pytest.approx(E)
