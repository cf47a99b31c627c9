"""Quantised weights are read where they lie, forward and back, on each chip.

Compiled ahead of time by the TPU compiler: neither a copy of a weight nor
temporary memory for anything of its size.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

from gmm import aot, ops

M, G, K, N = 2048, 4, 512, 512
# Small things of the compiler's own.
TEMP_BYTES = 1 << 16


def step(lhs, rhs, scale, sizes, dout, *, config, transpose_rhs):
  """Forward and dlhs: NN and NT, or NT and NN of a weight stored [g, n, k]."""

  def forward(lhs):
    return ops.gmm(
      lhs,
      rhs,
      sizes,
      rhs_scale=scale,
      transpose_rhs=transpose_rhs,
      config=config,
    )

  out, vjp = jax.vjp(forward, lhs)
  return out, *vjp(dout)


# Each chip, each format and each layout meet somewhere.
@pytest.mark.parametrize(
  ("chip", "dtype", "blocks", "layout"),
  [
    ("v5e", "int8", 1, "gkn"),
    ("v5e", "int4", 4, "gkn"),
    ("v6e", "int8", 4, "gkn"),
    ("v6e", "int8", 1, "gnk"),
    ("v6e", "packed", 1, "gkn"),
    ("v6e", "packed", 4, "gnk"),  # along lanes
    ("tpu7x", "int8", 4, "gnk"),
    ("tpu7x", "int4", 1, "gkn"),
    ("tpu7x", "float8_e4m3fn", 1, "gkn"),
  ],
)
def test_no_weight_is_copied(chip, dtype, blocks, layout):
  bf16, transposed = jnp.bfloat16, layout == "gnk"
  shape = (G, N, K) if transposed else (G, K, N)
  rhs = aot.spec(shape, "int32" if dtype == "packed" else dtype)
  if dtype == "packed":
    packed = (G, N, K // 8) if transposed else (G, K // 8, N)
    rhs = aot.spec(packed, jnp.int32)
  compiled = aot.compile_for(
    functools.partial(
      step,
      config=ops.Config(chip=chip, rhs_layout=layout),
      transpose_rhs=transposed,
    ),
    aot.spec((M, K), bf16),
    rhs,
    aot.spec((G, blocks, N), jnp.float32),
    aot.spec((G,), jnp.int32),
    aot.spec((M, N), bf16),
    chip=chip,
    row_major=True,
  )
  # A packed int4 weight of one group, and smaller than any other.
  assert not aot.weight_copies(compiled, min_bytes=K * N // 2)
  assert compiled.memory_analysis().temp_size_in_bytes <= TEMP_BYTES
  text = compiled.as_text()
  for kernel in ("gmm_v2-nn", "gmm_v2-nt"):
    assert f"{kernel}-g_{G}-" in text


@pytest.mark.parametrize(
  ("chip", "dtype", "blocks", "layout"),
  [
    ("v5e", "float8_e5m2", 1, "gkn"),
    ("v6e", "int8", 4, "gnk"),
    ("tpu7x", "float8_e4m3fn", 1, "gkn"),
  ],
)
@pytest.mark.parametrize("how", ["given", "on the way"])
def test_lhs_is_quantised_in_the_kernel(chip, dtype, blocks, layout, how):
  transposed, given = layout == "gnk", how == "given"

  def forward(lhs, rhs, scale, sizes, by_row):
    return ops.gmm(
      lhs,
      rhs,
      sizes,
      rhs_scale=scale,
      lhs_scale=by_row if given else None,
      lhs_quantization=None if given else dtype,
      transpose_rhs=transposed,
      config=ops.Config(backend="pallas", chip=chip, rhs_layout=layout),
    )

  compiled = aot.compile_for(
    forward,
    aot.spec((M, K), dtype if given else jnp.bfloat16),
    aot.spec((G, N, K) if transposed else (G, K, N), dtype),
    aot.spec((G, blocks, N), jnp.float32),
    aot.spec((G,), jnp.int32),
    aot.spec((M, 1), jnp.float32),
    chip=chip,
    row_major=True,
  )
  assert not aot.weight_copies(compiled, min_bytes=K * N)
  # Neither quantised rows nor a scale for each lane of each row.
  assert compiled.memory_analysis().temp_size_in_bytes <= TEMP_BYTES
