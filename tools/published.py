"""The model of docs/model.md beside times that others measured on TPUs.

The numbers are few, and the model's constants were chosen with all of them in
view: this shows how well it fits, not how well it predicts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gmm.aot.model import roofline
from gmm.kernels import chip as chips
from gmm.timing import rates

if TYPE_CHECKING:
  from gmm.aot import Schedule

TOKAMAX = "github.com/openxla/tokamax/pull/1220 (TPU7x, median of 20)"
MAXTEXT = "MaxText, gemma4-26b training on v6e; reported as about 87 ms"
# The gradient of lhs: bfloat16, with the weight [g, k, n].
SHAPE = {"m": 65536, "g": 128, "k": 3072, "n": 2048}
# Microseconds: with the weight transposed first, and with it read in place.
MEASURED = {
  "equal": (2214.2, 1065.6),
  "skew": (2466.6, 1317.5),
  "mean+-1": (2428.1, 1304.7),
}
# The experts' weights of one layer: two of [128, 2816, 704] into the expert,
# one of [128, 704, 2816] out of it, in bfloat16; 30 layers.
GEMMA_WEIGHT = 128 * 2816 * 704 * 2
GEMMA_COPIES = 3 * 30
GEMMA_MILLISECONDS = 87.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One measured time and the model's.

  Attributes:
    what: was measured.
    unit: of both times.
    measured: by others.
    model: ours.
    same_program: whether the model is of the program that was measured; False
      where it is of our kernel and the time is of another one.
    source: where the measured time is published.
  """

  what: str
  unit: str
  measured: float
  model: float
  same_program: bool
  source: str

  @property
  def ratio(self) -> float:
    """The model's time over the measured one."""
    return self.model / self.measured


def rows(schedule: Schedule | None = None) -> list[Row]:
  """Returns each published time beside the model's.

  Args:
    schedule: of our NT kernel for `SHAPE` on tpu7x, from `aot.schedule`; None
      counts the cycles of the MXU only.
  """
  return [*_copies(), *_products(schedule), _gemma()]


def table(schedule: Schedule | None = None) -> str:
  """Returns `rows` as text."""
  lines = [f"{'':<52}{'measured':>12}{'model':>12}{'ratio':>8}"]
  for row in rows(schedule):
    what = row.what + ("" if row.same_program else " *")
    measured = f"{row.measured:.1f} {row.unit}"
    model = f"{row.model:.1f} {row.unit}"
    lines.append(f"{what:<52}{measured:>12}{model:>12}{row.ratio:>8.2f}")
  cycles = "its MXU cycles only" if schedule is None else "its schedule"
  lines += [
    "",
    "* Measured: Tokamax's kernel. Model: ours, another kernel for the same",
    f"  product, from {cycles}. The ratio compares kernels and model at once.",
    *dict.fromkeys(f"  {row.source}" for row in rows(schedule)),
  ]
  return "\n".join(lines)


def constants() -> str:
  """Returns the model's constants for each chip, as text."""
  lines = [
    f"{'':<7}{'cores':>6}{'MXUs':>6}{'size':>6}{'rows/cycle':>12}"
    f"{'GHz':>7}{'bf16 TF/s':>11}{'GB/s':>7}{'compute share':>15}"
  ]
  for chip in chips.CHIPS:
    rate = rates.rates(chip)
    lines.append(
      f"{chip:<7}{rate.num_cores:>6}{rate.num_mxus:>6}{rate.mxu_size:>6}"
      f"{rate.rows_per_cycle('bfloat16'):>12}{rate.clock_hz / 1e9:>7.2f}"
      f"{rate.flops['bfloat16'] / 1e12:>11.1f}"
      f"{rate.hbm_bytes_per_second / 1e9:>7.0f}{rate.compute_share:>15.2f}"
    )
  lines.append(
    "MXUs, TF/s and GB/s are of one core. Shares of peak HBM bandwidth: "
    f"{rates.DMA_SHARE} (kernels), {rates.COPY_SHARE} (XLA's copies). "
    f"A call costs {rates.CALL_SECONDS * 1e6:.0f} us."
  )
  return "\n".join(lines)


def _copies() -> list[Row]:
  """What the transpose adds: one copy of the weight.

  The rest of the difference, two kernels that differ a little, is neglected.
  """
  weight = SHAPE["g"] * SHAPE["k"] * SHAPE["n"] * 2
  model = rates.copy_seconds("tpu7x", weight) * 1e6
  return [
    Row(
      what=f"copy of {weight / 1e9:.2f} GB, transposed - in place, {name}",
      unit="us",
      measured=swapped - in_place,
      model=model,
      same_program=True,
      source=TOKAMAX,
    )
    for name, (swapped, in_place) in MEASURED.items()
  ]


def _products(schedule: Schedule | None) -> list[Row]:
  return [
    Row(
      what=f"gradient of lhs, weight in place, {name}",
      unit="us",
      measured=in_place,
      model=1e6
      * roofline(
        "nt", **SHAPE, chip="tpu7x", group_sizes=name, schedule=schedule
      ).seconds,
      same_program=False,
      source=TOKAMAX,
    )
    for name, (_, in_place) in MEASURED.items()
  ]


def _gemma() -> Row:
  copies = GEMMA_COPIES * rates.copy_seconds("v6e", GEMMA_WEIGHT)
  return Row(
    what=f"{GEMMA_COPIES} copies of {GEMMA_WEIGHT / 1e6:.0f} MB in a step",
    unit="ms",
    measured=GEMMA_MILLISECONDS,
    model=copies * 1e3,
    same_program=True,
    source=MAXTEXT,
  )
