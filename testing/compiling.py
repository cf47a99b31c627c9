"""Options for one `jax.jit` that make XLA compile it quickly."""

import functools

import jax
import jax.numpy as jnp

from testing import xla_options


@functools.cache
def fast_options() -> dict[str, int | bool]:
  """For `jax.jit`: options that this XLA knows; it refuses unknown ones."""
  trivial = jax.jit(jnp.negative).lower(1)
  known = {}
  for name, value in xla_options.FAST_TO_COMPILE.items():
    try:
      trivial.compile({name: value})
    except jax.errors.JaxRuntimeError:
      continue
    known[name] = value
  return known
