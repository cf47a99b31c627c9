"""What `gmm_gated` may do with gate and up.

An activation is a function of two float32 arrays of one shape, gate and up. It
returns the value of the product, an array of the same shape, element by
element: `lambda gate, up: jax.nn.relu(gate) * up` for one. It runs within the
kernel, so that it can only use what Pallas has for a TPU, and must not close
over arrays. It is compared by identity: define it once, or each call compiles
anew. Gradients come from jax's own derivative of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Activation = Callable[[jax.Array, jax.Array], jax.Array]

_LIMIT = np.float32(7.0)
_ALPHA = np.float32(1.702)
_SQRT_HALF = np.float32(np.sqrt(0.5))
_SQRT_2_OVER_PI = np.float32(np.sqrt(2 / np.pi))
_CUBIC = np.float32(0.044715)


def silu(gate: jax.Array, up: jax.Array) -> jax.Array:
  """SwiGLU: `gate * sigmoid(gate) * up`."""
  return gate * lax.logistic(gate) * up


def gelu(gate: jax.Array, up: jax.Array) -> jax.Array:
  """GEGLU: gate times the normal distribution's share below it, times up."""
  return np.float32(0.5) * gate * (1 + lax.erf(gate * _SQRT_HALF)) * up


def gelu_tanh(gate: jax.Array, up: jax.Array) -> jax.Array:
  """GEGLU with the usual approximation of the distribution by a tanh."""
  inner = _SQRT_2_OVER_PI * (gate + _CUBIC * gate * gate * gate)
  return np.float32(0.5) * gate * (1 + jnp.tanh(inner)) * up


def swigluoai(gate: jax.Array, up: jax.Array) -> jax.Array:
  """As in gpt-oss: both clipped, `(up + 1) * gate * sigmoid(1.702 * gate)`."""
  gate = jnp.minimum(gate, _LIMIT)
  up = jnp.clip(up, -_LIMIT, _LIMIT)
  return (up + 1) * (gate * lax.logistic(_ALPHA * gate))


ACTIVATIONS: dict[str, Activation] = {
  "silu": silu,
  "gelu": gelu,
  "gelu_tanh": gelu_tanh,
  "swigluoai": swigluoai,
}


def resolve(activation: Any) -> Activation:
  """Returns the function that a name stands for, or the caller's own.

  Raises:
    ValueError: an unknown name.
    TypeError: neither a name nor something that can be called and hashed.
  """
  known = ", ".join(map(repr, ACTIVATIONS))
  if isinstance(activation, str):
    if activation not in ACTIVATIONS:
      raise ValueError(
        f"`activation` is {activation!r}; want one of {known}, or a function "
        "of float32 gate and up"
      )
    return ACTIVATIONS[activation]
  if not callable(activation) or getattr(activation, "__hash__", None) is None:
    raise TypeError(
      f"`activation` is a {type(activation).__name__}; want one of {known}, or "
      "a function of float32 gate and up"
    )
  return activation


def apply(activation: Activation, gate: jax.Array, up: jax.Array) -> jax.Array:
  """The activation of float32 gate and up, whatever they come in.

  Raises:
    ValueError: the result has another shape.
    TypeError: the result is no floating-point array.
  """
  gate, up = gate.astype(np.float32), up.astype(np.float32)
  out = jnp.asarray(activation(gate, up))
  if out.shape != gate.shape:
    raise ValueError(
      f"`activation` made {list(out.shape)} of gate and up of "
      f"{list(gate.shape)}; want the same shape: it is element by element"
    )
  if not jnp.issubdtype(out.dtype, jnp.floating):
    raise TypeError(f"`activation` returns {out.dtype}; want float32")
  return out.astype(np.float32)
