"""How fast each TPU generation is: the constants of the model in docs/model.md.

Peaks are jax's own chip facts. The rest is what those leave out: what the
schedules of compiled kernels show, and a few shares fitted to measurements.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from gmm.kernels import chip as chips

# Share of peak HBM bandwidth that kernels reach in a long run.
DMA_SHARE = 0.9
# Share of peak HBM bandwidth that a copy reaches which XLA makes: read + write.
COPY_SHARE = 0.7
# Seconds that a kernel call costs, however small.
CALL_SECONDS = 3e-6
# Passes of the MXU for one float32 product by `precision`; counted in compiled
# kernels, whose compiler has no HIGH (launch.dot asks it for HIGHEST).
_FLOAT32_PASSES = {lax.Precision.HIGH: 6, lax.Precision.HIGHEST: 6}
# Rows of bfloat16 that one MXU takes in a cycle, by its size. Schedules show it
# on v6e (on one MXU, a vmatmul of 16 rows every 8 cycles; every 4 one of 8 rows
# of float32, every 8 of 32 of int8, every 16 of 32 of float8) and on v4 (8 rows
# of float32 every 8). The other chips are taken to be like these.
_ROWS_PER_CYCLE = {128: 1, 256: 2}
# Rows of one vmatmul by the format in its mnemonic, such as
# vmatmul.mubr.f8e5m2.bf16.gmra: a full register of 32-, 16- or 8-bit operands.
VMATMUL_ROWS = {"f32": 8, "bf16": 16, "s8": 32, "f8e4m3fn": 32, "f8e5m2": 32}
_MNEMONICS = {
  "float32": "f32",
  "bfloat16": "bf16",
  "int8": "s8",
  "float8_e4m3fn": "f8e4m3fn",
  "float8_e5m2": "f8e5m2",
}
# Share of the nominal MXU rate that whole kernels reach. The tpu7x figure is
# fitted to one published time; the others are not measured, so nominal.
_COMPUTE_SHARE = {"tpu7x": 0.68}
_VERSIONS = {
  "v4": pltpu.ChipVersion.TPU_V4,
  "v5e": pltpu.ChipVersion.TPU_V5E,
  "v5p": pltpu.ChipVersion.TPU_V5P,
  "v6e": pltpu.ChipVersion.TPU_V6E,
  "tpu7x": pltpu.ChipVersion.TPU_7X,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantising:
  """Bundles of a product that quantises its rows of lhs before.

  Attributes:
    product: of any product.
    share: for each cycle that the MXUs need for it.
    lhs: for each 1,024 values that are quantised, a register of float32.
    result: for each 1,024 sums that are scaled.
  """

  product: int
  share: float
  lhs: float
  result: float

  def bundles(self, shape: tuple[int, int, int], mxu_cycles: int) -> float:
    """Of a product [rows, k] @ [k, n] for which the MXUs need so long."""
    rows, k, n = shape
    vectors = rows * (k * self.lhs + n * self.result) / 1024
    return self.product + mxu_cycles * self.share + vectors


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeLike:
  """Bundles that compiled kernels have, where no schedule is at hand.

  Attributes:
    product: bundles of an MXU product beside the next.
    share: bundles for each cycle that the MXUs need for it.
    step: bundles of a step beside its products.
    quantising: of products that quantise lhs, instead of the first two; None
      for no matter.
  """

  product: int
  share: float
  step: int
  quantising: Quantising | None = None


# No kernel needs fewer bundles than the MXU cycles.
NO_CODE = CodeLike(product=0, share=1.0, step=0)
# Lines through the schedules of bfloat16 products of 128 to 1024 rows.
_CODE: dict[tuple[str, str], CodeLike] = {
  ("gmm", "v4"): CodeLike(product=60, share=1.0, step=300),
  ("gmm", "v5e"): CodeLike(product=280, share=0.77, step=300),
  ("gmm", "v5p"): CodeLike(product=280, share=0.8, step=300),
  ("gmm", "v6e"): CodeLike(product=220, share=1.0, step=290),
  ("gmm", "tpu7x"): CodeLike(product=450, share=0.5, step=260),
  ("tgmm", "v4"): CodeLike(product=200, share=1.0, step=230),
  ("tgmm", "v5e"): CodeLike(product=100, share=0.91, step=230),
  ("tgmm", "v5p"): CodeLike(product=100, share=0.91, step=230),
  ("tgmm", "v6e"): CodeLike(product=400, share=1.0, step=210),
  ("tgmm", "tpu7x"): CodeLike(product=650, share=0.75, step=190),
}


# Fitted to schedules of products of 128 to 1,024 rows, within 10% of each: of
# int8 on v5e, v5p and v6e, of float8_e4m3fn on tpu7x.
_QUANTISING = Quantising(product=165, share=1.0, lhs=0.9, result=0.33)
_QUANTISING_ON = {
  "tpu7x": Quantising(product=255, share=0.66, lhs=0.43, result=0.43),
}


def no_code_like(chip: str) -> CodeLike:
  """Returns what no kernel on a chip is better than, that quantises lhs."""
  quantising = _QUANTISING_ON.get(chip, _QUANTISING)
  return dataclasses.replace(NO_CODE, quantising=quantising)


def code_like(kind: str, chip: str) -> CodeLike:
  """Returns what schedules of "gmm" or "tgmm" on a chip look like."""
  return _CODE[kind, chip]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChipRates:
  """The rates of one TPU generation, as one JAX device sees it.

  Attributes:
    chip: its name.
    num_cores: cores that share the device.
    num_mxus: matrix units of one core.
    mxu_size: rows and columns of a weight tile that one MXU holds.
    clock_hz: cycles per second, derived: the peak in bfloat16 is num_mxus x 2 x
      mxu_size^2 x rows per cycle x clock. (About 1.05 GHz on v4, 1.50 on v5e,
      1.75 on v5p and v6e, 2.2 on tpu7x.)
    flops: peak rates of one core by operand format, in flops per second. What
      the MXU lacks runs as bfloat16, at its rate; float32 likewise, in the one
      pass of the default precision.
    hbm_bytes_per_second: peak bandwidth of one core.
    compute_share: share of the nominal MXU rate that whole kernels reach.
  """

  chip: str
  num_cores: int
  num_mxus: int
  mxu_size: int
  clock_hz: float
  flops: Mapping[str, float]
  hbm_bytes_per_second: float
  compute_share: float

  @property
  def device_bytes_per_second(self) -> float:
    """Peak bandwidth of the device: of all its cores."""
    return self.num_cores * self.hbm_bytes_per_second

  def rows_per_cycle(self, compute_dtype: np.dtype | str) -> float:
    """Rows of a format that one MXU takes in a cycle, in one pass."""
    ratio = self.flops[jnp.dtype(compute_dtype).name] / self.flops["bfloat16"]
    return _ROWS_PER_CYCLE[self.mxu_size] * round(ratio)


def rates(chip: str) -> ChipRates:
  """Returns the rates of a chip.

  Args:
    chip: a key of `chip.CHIPS`.

  Raises:
    TypeError, ValueError: `chip` is none.
  """
  return _rates(chips.resolve(chip).name)


@functools.cache
def _rates(chip: str) -> ChipRates:
  spec = chips.CHIPS[chip]
  info = pltpu.get_tpu_info_for_chip(_VERSIONS[spec.name], spec.num_cores)
  bf16 = float(info.bf16_ops_per_second)
  size = spec.mxu_size
  per_cycle = info.num_mxus * 2 * size * size * _ROWS_PER_CYCLE[size]
  # The facts know of no format that is slower than bfloat16; 0 means none.
  int8 = max(float(info.int8_ops_per_second), bf16)
  fp8 = max(float(info.fp8_ops_per_second), bf16)
  return ChipRates(
    chip=spec.name,
    num_cores=spec.num_cores,
    num_mxus=info.num_mxus,
    mxu_size=size,
    clock_hz=bf16 / per_cycle,
    flops={
      "bfloat16": bf16,
      "float32": bf16,
      "int8": int8,
      "float8_e4m3fn": fp8,
      "float8_e5m2": fp8,
    },
    hbm_bytes_per_second=float(spec.hbm_bytes_per_second),
    compute_share=_COMPUTE_SHARE.get(spec.name, 1.0),
  )


def copy_bytes_per_second(chip: str) -> float:
  """Bytes, read or written, that a copy by XLA moves in HBM in a second.

  Args:
    chip: a key of `chip.CHIPS`.
  """
  return rates(chip).device_bytes_per_second * COPY_SHARE


def copy_seconds(chip: str, size_bytes: int) -> float:
  """Seconds that XLA takes to copy or transpose an array in HBM.

  Args:
    chip: a key of `chip.CHIPS`.
    size_bytes: of the array, which is read once and written once.
  """
  return 2 * size_bytes / copy_bytes_per_second(chip)


def float32_passes(
  compute_dtype: np.dtype, precision: lax.Precision | None
) -> int:
  """MXU passes of a product: 1, or 6 for float32 with more than the default."""
  if compute_dtype != np.float32:
    return 1
  return _FLOAT32_PASSES.get(precision, 1)


def mnemonic_format(compute_dtype: np.dtype | str) -> str:
  """The format's name in vmatmul mnemonics, "bf16" for one.

  Raises:
    ValueError: no MXU multiplies such operands.
  """
  name = jnp.dtype(compute_dtype).name
  if name not in _MNEMONICS:
    raise ValueError(
      f"`compute_dtype` is {name}; want one of {', '.join(_MNEMONICS)}"
    )
  return _MNEMONICS[name]


def mxu_cycles(chip: str, mnemonic: str, vmatmuls: int) -> int:
  """Returns the least cycles in which a core's MXUs run some vmatmuls.

  An MXU takes as many rows in a cycle as the chip's peak for their format says.
  On v6e a vmatmul of 16 rows of bfloat16 is 8 cycles of one of two MXUs.

  Args:
    chip: a key of `chip.CHIPS`.
    mnemonic: the operand format as the mnemonics spell it: "f32", "bf16", "s8",
      "f8e4m3fn", "f8e5m2", or "f8e5m2.bf16" where the MXU widens on the way.
    vmatmuls: how many, over all MXUs of the core; each pass of a float32
      product in several passes is one.

  Raises:
    TypeError, ValueError: an unknown chip, or an unknown format.
  """
  known = {mnemonic: name for name, mnemonic in _MNEMONICS.items()}
  operand = mnemonic.split(".")[0]
  if operand not in known:
    raise ValueError(f"`mnemonic` is {mnemonic!r}; want one of {list(known)}")
  rate = rates(chip)
  rows_per_cycle = rate.rows_per_cycle(known[operand]) * rate.num_mxus
  return int(-(-vmatmuls * VMATMUL_ROWS[operand] // rows_per_cycle))
