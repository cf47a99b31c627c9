"""Grouped matrix multiplication for JAX on TPU.

The public functions live in `gmm.ops` (differentiable) and `gmm.kernels` (raw).
"""
