"""Options that make XLA compile quickly, at the expense of what it compiles.

Without jax, which has to be imported after flags are set.
"""

# An interpreted kernel is thousands of small operations around callbacks:
# nearly all of its time goes into compiling it. So does that of the XLA
# backend on arrays as small as these.
FAST_TO_COMPILE = {
  "xla_backend_optimization_level": 0,
  "xla_llvm_disable_expensive_passes": True,
  "xla_cpu_parallel_codegen_split_count": 1,
  "xla_cpu_use_fusion_emitters": False,
}
# Those that a later XLA than jaxlib 0.10's does not know.
_OF_0_10 = ("xla_cpu_use_fusion_emitters",)


def fast_flags(jaxlib: str) -> list[str]:
  """The same as flags; one that is not known would end the process.

  Args:
    jaxlib: its version.
  """
  return [
    f"--{name}={str(value).lower()}"
    for name, value in FAST_TO_COMPILE.items()
    if name not in _OF_0_10 or jaxlib.startswith("0.10.")
  ]
