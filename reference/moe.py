"""A mixture-of-experts layer from its definition, in NumPy and float64.

    logits = tokens @ router
    gates[t] = softmax over logits[t, the experts of token t]
    out[t] = sum over those experts e of gates[t, e] * (act(gate, up) @ wo[e])
    where gate, up = tokens[t] @ wi[e]

Which experts a token visits is an argument: in another format than float64, two
experts that are nearly equal may change places, and the layer jumps there.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from reference import gated


class Weights(NamedTuple):
  """The layer's operands, or gradients of them.

  Attributes:
    tokens: [t, hidden].
    router: [hidden, experts].
    wi: [experts, hidden, 2 * intermediate], the columns of gate first.
    wo: [experts, intermediate, hidden].
  """

  tokens: ArrayLike
  router: ArrayLike
  wi: ArrayLike
  wo: ArrayLike


def layer(
  weights: Weights, experts: ArrayLike, *, activation: str = "silu"
) -> np.ndarray:
  """Computes the layer.

  Args:
    weights: tokens and what they are multiplied by.
    experts: integers [t, top_k], the experts of each token, each once.
    activation: a key of `gated.ACTIVATIONS`.

  Returns:
    [t, hidden] float64.
  """
  out, _ = _layer(weights, experts, activation, None)
  return out


def layer_vjp(
  weights: Weights,
  experts: ArrayLike,
  dout: ArrayLike,
  *,
  activation: str = "silu",
) -> Weights:
  """Pulls `dout` [t, hidden] back through `layer`.

  Args:
    weights: as in `layer`.
    experts: as in `layer`; they are constants.
    dout: [t, hidden].
    activation: as in `layer`.

  Returns:
    Gradients in float64, each in the shape of its operand.
  """
  _, gradients = _layer(weights, experts, activation, _wide(dout))
  return gradients


def balance(
  tokens: ArrayLike, router: ArrayLike, experts: ArrayLike
) -> tuple[float, np.ndarray, np.ndarray]:
  """How unevenly tokens are spread: 1 where each expert gets the same.

    experts * sum over e of (share of choices that are e) * (mean probability)

  Args:
    tokens: [t, hidden].
    router: [hidden, experts].
    experts: integers [t, top_k], constants.

  Returns:
    The value, and its gradients in tokens and router.
  """
  tokens, router, experts = _wide(tokens), _wide(router), np.asarray(experts)
  count = router.shape[1]
  shares = np.bincount(experts.ravel(), minlength=count) / experts.size
  probabilities = _softmax(tokens @ router)
  value = count * np.sum(shares * probabilities.mean(axis=0))
  slope = count * shares / len(tokens)
  inner = np.sum(slope * probabilities, axis=1, keepdims=True)
  dlogits = probabilities * (slope - inner)
  return float(value), dlogits @ router.T, tokens.T @ dlogits


def _layer(
  weights: Weights,
  experts: ArrayLike,
  activation: str,
  dout: np.ndarray | None,
) -> tuple[np.ndarray, Weights]:
  """The result and, for a cotangent, its gradients."""
  tokens, router, wi, wo = (_wide(x) for x in weights)
  experts, act = np.asarray(experts), gated.ACTIVATIONS[activation]
  gates = _softmax(np.take_along_axis(tokens @ router, experts, axis=1))
  out, dgates = np.zeros(tokens.shape), np.zeros(gates.shape)
  grads = Weights(*(np.zeros(x.shape) for x in (tokens, router, wi, wo)))
  for e in range(router.shape[1]):
    t, choice = np.nonzero(experts == e)  # a token has an expert at most once
    gate, up = np.split(tokens[t] @ wi[e], 2, axis=1)
    hidden = act.value(gate, up)
    outer = hidden @ wo[e]
    scale = gates[t, choice][:, None]
    out[t] += scale * outer
    if dout is None:
      continue
    douter = scale * dout[t]
    dgates[t, choice] = np.sum(outer * dout[t], axis=1)
    dhidden = douter @ wo[e].T
    dboth = np.concatenate(
      [dhidden * act.dgate(gate, up), dhidden * act.dup(gate, up)], axis=1
    )
    grads.wo[e] = hidden.T @ douter
    grads.wi[e] = tokens[t].T @ dboth
    grads.tokens[t] += dboth @ wi[e].T
  dchosen = gates * (dgates - np.sum(gates * dgates, axis=1, keepdims=True))
  dlogits = np.zeros((len(tokens), router.shape[1]))
  np.put_along_axis(dlogits, experts, dchosen, axis=1)
  router_gradient = tokens.T @ dlogits
  return out, grads._replace(
    tokens=grads.tokens + dlogits @ router.T, router=router_gradient
  )


def _softmax(logits: np.ndarray) -> np.ndarray:
  powers = np.exp(logits - logits.max(axis=1, keepdims=True))
  return powers / powers.sum(axis=1, keepdims=True)


def _wide(x: ArrayLike) -> np.ndarray:
  return np.asarray(x).astype(np.float64)
