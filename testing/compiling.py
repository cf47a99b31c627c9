"""Options that make XLA compile quickly, at the expense of what it compiles."""

import functools

import jax
import jax.numpy as jnp

# An interpreted kernel is thousands of small operations around callbacks:
# nearly all of its time goes into compiling it. So does that of the XLA
# backend on arrays as small as these.
_FAST_TO_COMPILE = {
  "xla_backend_optimization_level": 0,
  "xla_llvm_disable_expensive_passes": True,
  "xla_cpu_parallel_codegen_split_count": 1,
  "xla_cpu_use_fusion_emitters": False,
}


@functools.cache
def fast_options() -> dict[str, int | bool]:
  """For `jax.jit`: options that this XLA knows; it refuses unknown ones."""
  trivial = jax.jit(jnp.negative).lower(1)
  known = {}
  for name, value in _FAST_TO_COMPILE.items():
    try:
      trivial.compile({name: value})
    except jax.errors.JaxRuntimeError:
      continue
    known[name] = value
  return known
