"""Gate and up for TPUs: what the compiler makes of them, without a TPU.

Seven programs are compiled: gated NN and NT on two chips, a gradient, quantised
weights with biases, and a chain of `existing_out`. Their widths are what is
hard: up starts within a register of the NN weight.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from gmm import aot, kernels, ops

BF16 = jnp.bfloat16
M, G, K, N = 2048, 8, 512, 704
SIZES = aot.spec((G,), jnp.int32)
# What a chip's compiler takes for itself: no array here is that small.
FEW_BYTES = 1 << 15


def weight_of(transpose_rhs):
  return aot.spec((G, 2 * N, K) if transpose_rhs else (G, K, 2 * N), BF16)


@pytest.mark.parametrize("chip", ["v6e", "tpu7x"])
@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_neither_gate_and_up_nor_the_weight_are_written(transpose_rhs, chip):
  compiled = aot.compile_for(
    functools.partial(
      kernels.gmm_gated_v2, transpose_rhs=transpose_rhs, chip=chip
    ),
    aot.spec((M, K), BF16),
    weight_of(transpose_rhs),
    SIZES,
    chip=chip,
  )
  text = compiled.as_text()
  assert "-gated-" in text
  assert f"bf16[{M},{2 * N}]" not in text
  assert compiled.memory_analysis().temp_size_in_bytes < FEW_BYTES
  assert not aot.weight_copies(compiled, min_bytes=1 << 18, chip=chip)


def test_the_gradients_copy_no_weight():
  def step(lhs, weight, sizes, dout):
    config = ops.Config(backend="pallas", chip="v6e")
    out, vjp = jax.vjp(
      lambda lhs, weight: ops.gmm_gated(lhs, weight, sizes, config=config),
      lhs,
      weight,
    )
    return out, *vjp(dout)

  compiled = aot.compile_for(
    step,
    aot.spec((M, K), BF16),
    weight_of(False),
    SIZES,
    aot.spec((M, N), BF16),
    chip="v6e",
  )
  text = compiled.as_text()
  for kernel in ("gmm_v2-nn-gated-", "gmm_v2-nn-g_", "gmm_v2-nt-", "tgmm_v2-"):
    assert kernel in text
  assert not aot.weight_copies(compiled, min_bytes=1 << 18, chip="v6e")
  # Gate and up, and their cotangent: no third array of that size.
  two = 2 * M * 2 * N * 2
  assert compiled.memory_analysis().temp_size_in_bytes < two * 1.1


def test_quantised_weights_are_read_as_they_are():
  config = ops.Config(backend="pallas", chip="v6e", rhs_layout="gkn")

  def step(x):
    out = ops.gmm_gated(
      x["lhs"],
      x["both"],
      x["sizes"],
      rhs_scale=x["scale"],
      rhs_bias=x["bias"],
      activation="swigluoai",
      config=config,
    )

    def split(lhs):
      return ops.split_gmm(
        lhs,
        x["gate"],
        x["up"],
        x["sizes"],
        rhs_gate_scale=x["gate_scale"],
        rhs_up_scale=x["gate_scale"],
        config=config,
      )

    outs, vjp = jax.vjp(split, x["lhs"])
    return out, *outs, *vjp(x["douts"])

  dout = aot.spec((M, N), BF16)
  half = aot.spec((G, K, N), jnp.int8)
  compiled = aot.compile_for(
    step,
    {
      "lhs": aot.spec((M, K), BF16),
      "both": aot.spec((G, K, 2 * N), jnp.int8),
      "scale": aot.spec((G, 2, 2 * N), jnp.float32),
      "bias": aot.spec((G, 2 * N), BF16),
      "gate": half,
      "up": half,
      "gate_scale": aot.spec((G, 1, N), jnp.float32),
      "sizes": aot.spec((G,), jnp.int32),
      "douts": (dout, dout),
    },
    chip="v6e",
    row_major=True,
  )
  text = compiled.as_text()
  for kernel in ("gmm_v2-nn-gated-", "gmm_v2-nn-split-", "gmm_v2-nt-sum-"):
    assert kernel in text
  assert not aot.weight_copies(compiled, min_bytes=K * N, chip="v6e")
  # The bias as the kernel takes it is the largest.
  assert compiled.memory_analysis().temp_size_in_bytes < 8 * FEW_BYTES


def test_a_chain_of_shards_updates_its_result_in_place():
  local = G // 2

  def chain(lhs, rhs, sizes, out):
    def add(out, shard):
      weight, offset = shard
      config = ops.Config(backend="pallas", chip="v6e")
      out = ops.gmm(
        lhs,
        weight,
        sizes,
        group_offset=offset,
        existing_out=out,
        config=config,
      )
      return out, None

    shards = rhs.reshape(2, local, *rhs.shape[1:])
    return lax.scan(add, out, (shards, jnp.arange(0, G, local)))[0]

  out = aot.spec((M, 2 * N), BF16)
  compiled = aot.compile_for(
    chain,
    aot.spec((M, K), BF16),
    weight_of(False),
    SIZES,
    out,
    chip="v6e",
    donate_argnums=3,
  )
  assert "input_output_alias" in compiled.as_text()
  memory = compiled.memory_analysis()
  assert memory.alias_size_in_bytes == M * 2 * N * 2
  assert memory.temp_size_in_bytes < M * 2 * N * 2
