"""The kernels compile for every chip that has a row, with no chip at hand.

libtpu holds the whole TPU compiler: what does not fit VMEM, or uses what the
chip lacks, fails here.
"""

import functools

import jax
import jax.numpy as jnp
import pytest

from gmm import aot, kernels
from gmm.kernels import chip as chips

BF16, F32, I8 = jnp.bfloat16, jnp.float32, jnp.int8
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2


def compile_for(chip, fn, *specs):
  """Compiles fn for a chip; specs are (shape, dtype)."""
  return aot.compile_for(fn, *(aot.spec(*s) for s in specs), chip=chip)


def compile_mode(chip, mode, sizes, dtypes, **options):
  """Compiles one product: sizes (m, g, k, n), dtypes (lhs, rhs or dout)."""
  m, g, k, n = sizes
  groups = ((g,), jnp.int32)
  options |= {"chip": chip}
  if mode in ("nn", "nt"):
    weight = (g, k, n) if mode == "nn" else (g, n, k)
    fn = functools.partial(
      kernels.gmm_v2, transpose_rhs=mode == "nt", **options
    )
    return compile_for(
      chip, fn, ((m, k), dtypes[0]), (weight, dtypes[1]), groups
    )
  fn = functools.partial(
    kernels.tgmm_v2, num_groups=g, transpose_out=mode == "tn_t", **options
  )
  return compile_for(chip, fn, ((m, k), dtypes[0]), ((m, n), dtypes[1]), groups)


@pytest.mark.parametrize("chip", chips.CHIPS)
@pytest.mark.parametrize("mode", ["nn", "nt", "tn", "tn_t"])
def test_modes(chip, mode):
  compiled = compile_mode(chip, mode, (512, 4, 384, 256), (BF16, BF16))
  assert "tpu_custom_call" in compiled.as_text()
  # No room for a copy of an operand.
  assert compiled.memory_analysis().temp_size_in_bytes < 4 * 384 * 256


# Partial tiles along k and n, formats that are widened, rows that are padded.
CASES = {
  "nn-bf16-tails": ("nn", (512, 4, 320, 200), (BF16, BF16), (64, 128, 128)),
  "nt-f32-tails": ("nt", (512, 4, 320, 200), (F32, F32), (64, 128, 128)),
  "tn-bf16-tails": ("tn", (512, 4, 320, 200), (BF16, BF16), (64, 128, 128)),
  "nn-i8": ("nn", (512, 4, 256, 256), (I8, I8), None),
  "nt-e4m3": ("nt", (512, 4, 256, 256), (E4M3, E4M3), None),
  "tn-e5m2": ("tn", (512, 4, 256, 256), (E5M2, E5M2), None),
  "nt-mixed": ("nt", (512, 4, 256, 256), (F32, BF16), None),
  "nn-odd": ("nn", (59, 4, 77, 33), (BF16, BF16), None),
  "tn-odd": ("tn", (59, 4, 77, 33), (F32, F32), None),
  "nn-one": ("nn", (1, 1, 1, 1), (BF16, BF16), None),
  "nt-one": ("nt", (40, 3, 64, 1), (BF16, BF16), None),
  "nt-one-i8": ("nt", (40, 3, 64, 1), (I8, I8), None),
  "nt-one-e5m2": ("nt", (40, 3, 64, 1), (E5M2, BF16), None),
  "nt-one-past-a-piece": ("nt", (40, 3, 64, 513), (BF16, BF16), None),
  "tn-one-past-a-piece": ("tn", (40, 3, 1, 513), (BF16, BF16), None),
}


@pytest.mark.parametrize("chip", chips.CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_formats_and_tails(chip, name):
  # Each case on two chips: one that a rotation picks, and the oldest.
  index = list(CASES).index(name)
  picked = list(chips.CHIPS)[1 + index % (len(chips.CHIPS) - 1)]
  if chip in ("v4", picked):
    mode, sizes, dtypes, tiling = CASES[name]
    compile_mode(chip, mode, sizes, dtypes, tiling=tiling)


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_precision(precision):
  for mode in ("nn", "nt", "tn"):
    compile_mode(
      "v6e", mode, (256, 2, 128, 128), (F32, F32), precision=precision
    )


def test_existing_out_is_updated_in_place():
  m, g, k, n = 512, 4, 256, 128

  def add(lhs, rhs, sizes, out):
    return kernels.gmm_v2(lhs, rhs, sizes, existing_out=out, chip="v6e")

  compiled = aot.compile_for(
    add,
    aot.spec((m, k), BF16),
    aot.spec((g, k, n), BF16),
    aot.spec((g,), jnp.int32),
    aot.spec((m, n), BF16),
    chip="v6e",
    donate_argnums=3,
  )
  assert compiled.memory_analysis().alias_size_in_bytes == m * n * 2


@pytest.mark.parametrize("mode", ["nn", "tn"])
def test_programs_with_64_bit_types(mode):
  with jax.enable_x64(True):
    compile_mode("v5p", mode, (512, 4, 384, 256), (BF16, BF16))
