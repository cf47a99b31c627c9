"""Products of quantised operands, and a step that quantises, on TPU.

Compiled ahead of time by the TPU compiler: operands are multiplied as they are,
and nothing of their size is written in a wider format.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

from gmm import aot, kernels, ops

M, G, K, N = 2048, 4, 512, 512
# Small things of the compiler's own, and tables of scales.
TEMP_BYTES = 1 << 18


# Formats that the matrix unit has, one of them a pair of two.
@pytest.mark.parametrize(
  ("chip", "lhs", "dout", "transpose_out"),
  [
    ("v6e", "int8", "int8", False),
    ("tpu7x", "float8_e4m3fn", "float8_e5m2", True),
  ],
)
def test_tgmm(chip, lhs, dout, transpose_out):
  def drhs(lhs, dout, lhs_scale, dout_scale, sizes):
    return kernels.tgmm_v2(
      lhs,
      dout,
      sizes,
      num_groups=G,
      lhs_scale=lhs_scale,
      dout_scale=dout_scale,
      transpose_out=transpose_out,
      chip=chip,
    )

  compiled = aot.compile_for(
    drhs,
    aot.spec((M, K), lhs),
    aot.spec((M, N), dout),
    aot.spec((1, K), jnp.float32),
    aot.spec((1, N), jnp.float32),
    aot.spec((G,), jnp.int32),
    chip=chip,
    row_major=True,
  )
  assert compiled.memory_analysis().temp_size_in_bytes <= TEMP_BYTES


def test_a_step_that_quantises_weight_and_cotangent():
  config = ops.Config(chip="tpu7x", rhs_layout="gkn")

  def step(lhs, rhs, sizes, dout):
    call = functools.partial(
      ops.gmm,
      group_sizes=sizes,
      rhs_quantization=ops.Quantization(dtype="float8_e4m3fn", block=128),
      dout_quantization="float8_e5m2",
      config=config,
    )
    out, vjp = jax.vjp(call, lhs, rhs)
    return out, *vjp(dout)

  bf16 = jnp.bfloat16
  compiled = aot.compile_for(
    step,
    aot.spec((M, K), bf16),
    aot.spec((G, K, N), bf16),
    aot.spec((G,), jnp.int32),
    aot.spec((M, N), bf16),
    chip="tpu7x",
    row_major=True,
  )
  # The weight and the cotangent in 8 bits.
  quantised = G * K * N + M * N
  temp = compiled.memory_analysis().temp_size_in_bytes
  assert quantised <= temp <= quantised + TEMP_BYTES
  assert not aot.weight_copies(compiled, min_bytes=K * N)
  text = compiled.as_text()
  for kernel in ("gmm_v2-nn", "gmm_v2-nt", "tgmm_v2-tn"):
    assert f"{kernel}-g_{G}-" in text
