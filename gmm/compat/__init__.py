"""The signatures of other grouped matmuls, on the operations of `gmm.ops`.

    megablox    jax.experimental.pallas.ops.tpu.megablox
    maxtext     maxtext.kernels.megablox

They only translate, and keep what the original means where that is not what
`ops` means: their docstrings say where. (`jax.lax.ragged_dot` is
`ops.ragged_dot`.)
"""
