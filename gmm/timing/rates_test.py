"""The chips' rates, and what they make of instructions."""

import jax.numpy as jnp
import pytest
from jax import lax

from gmm.kernels import chip as chips
from gmm.timing import rates


@pytest.mark.parametrize(
  ("chip", "clock_ghz"),
  [("v4", 1.05), ("v5e", 1.5), ("v5p", 1.75), ("v6e", 1.75), ("tpu7x", 2.2)],
)
def test_the_clock_follows_from_the_peak(chip, clock_ghz):
  rate = rates.rates(chip)
  assert rate.clock_hz == pytest.approx(clock_ghz * 1e9, rel=0.005)
  per_cycle = rate.num_mxus * 2 * rate.mxu_size**2
  per_cycle *= rate.rows_per_cycle("bfloat16")
  assert per_cycle * rate.clock_hz == pytest.approx(rate.flops["bfloat16"])


@pytest.mark.parametrize("chip", chips.CHIPS)
def test_every_format_of_the_mxu_has_a_rate(chip):
  rate, spec = rates.rates(chip), chips.resolve(chip)
  assert rate.chip == chip
  assert rate.num_cores == spec.num_cores
  assert rate.device_bytes_per_second == (
    spec.num_cores * spec.hbm_bytes_per_second
  )
  assert 0 < rate.compute_share <= 1
  for name in spec.mxu_dtypes:
    assert rate.flops[name] >= rate.flops["bfloat16"]
    mnemonic = rates.mnemonic_format(name)
    assert rates.mxu_cycles(chip, mnemonic, 100) > 0


@pytest.mark.parametrize(
  ("chip", "mnemonic", "cycles"),
  [
    # 16 rows at 2 rows per cycle of two MXUs, or at 1 of four.
    ("v6e", "bf16", 4),
    ("tpu7x", "bf16", 4),
    ("v5e", "bf16", 4),
    ("v5p", "bf16", 4),
    ("v4", "bf16", 4),
    ("v6e", "f32", 2),
    ("v4", "f32", 2),
    ("v6e", "s8", 4),
    ("v5e", "s8", 4),
    # Widened by the MXU on the way, so at the rate of bfloat16.
    ("v6e", "f8e5m2.bf16", 8),
    ("v6e", "f8e5m2", 8),
    ("tpu7x", "f8e4m3fn", 4),
    ("tpu7x", "f8e5m2", 4),
  ],
)
def test_cycles_of_a_vmatmul(chip, mnemonic, cycles):
  assert rates.mxu_cycles(chip, mnemonic, 100) == 100 * cycles


def test_cycles_are_rounded_up():
  assert rates.mxu_cycles("v6e", "bf16", 0) == 0
  assert rates.mxu_cycles("v6e", "f32", 1) == 2


def test_more_than_the_default_precision_takes_six_passes():
  float32, bfloat16 = jnp.dtype("float32"), jnp.dtype("bfloat16")
  assert rates.float32_passes(float32, lax.Precision.DEFAULT) == 1
  assert rates.float32_passes(float32, None) == 1
  assert rates.float32_passes(float32, lax.Precision.HIGHEST) == 6
  assert rates.float32_passes(float32, lax.Precision.HIGH) == 6
  assert rates.float32_passes(bfloat16, lax.Precision.HIGHEST) == 1


def test_bad_arguments():
  with pytest.raises(ValueError, match="`chip` is 'v9'; known chips: v4"):
    rates.rates("v9")
  with pytest.raises(ValueError, match="`mnemonic` is 'q5'; want one of"):
    rates.mxu_cycles("v6e", "q5", 1)
  with pytest.raises(ValueError, match="`compute_dtype` is float16"):
    rates.mnemonic_format("float16")
