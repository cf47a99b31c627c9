"""What is compiled ahead of time: modes x chips x shapes x formats.

Nothing here imports jax.
"""

import dataclasses

from testing import covering, workloads
from testing.case import DTYPES, Dtypes


@dataclasses.dataclass(frozen=True, kw_only=True)
class AotCase:
  """One product for one chip.

  Attributes:
    name: says what it is; unique.
    mode: "nn", "nt", "tn" or "tn_t", as in `aot.product`.
    chip: "v6e" for one.
    sizes: m, g, k and n of the weight [g, k, n].
    dtypes: a key of `testing.case.DTYPES`.
  """

  name: str
  mode: str
  chip: str
  sizes: tuple[int, int, int, int]
  dtypes: str

  @property
  def formats(self) -> Dtypes:
    """What `dtypes` stands for."""
    return DTYPES[self.dtypes]


_OFF_ALIGNMENT = {
  "odd": (59, 4, 77, 33),
  "half-registers": (1000, 7, 200, 2880),
  "many-groups": (4096, 256, 192, 136),
}
_FROM_WORKLOADS = (
  "gemma4-26b/wi",
  "gpt-oss-20b/wi",
  "qwen3-30b-a3b/wi",
  "decode-qwen3-30b/wo",
)

SHAPES: dict[str, tuple[int, int, int, int]] = {
  w.name: (w.m, w.g, w.k, w.n)
  for w in workloads.WORKLOADS
  if w.name in _FROM_WORKLOADS
} | _OFF_ALIGNMENT

FACTORS: covering.Factors = {
  "chip": ("v6e", "tpu7x", "v5p", "v5e", "v4"),
  "shape": tuple(SHAPES),
  "mode": ("nn", "nt", "tn", "tn_t"),
  "dtypes": ("bf16", "f32", "bf16_f32", "i8", "e5m2"),
}


def _case_of(row: covering.Row) -> AotCase:
  return AotCase(
    name="-".join(row.values()).replace("/", "_"),
    mode=row["mode"],
    chip=row["chip"],
    sizes=SHAPES[row["shape"]],
    dtypes=row["dtypes"],
  )


# Large tiles compile slowly; these wait for the full table.
_SLOW = ("gpt-oss-20b/wi",)


def designed() -> tuple[AotCase, ...]:
  """Few cases in which every two levels meet."""
  quick = tuple(shape for shape in SHAPES if shape not in _SLOW)
  rows = covering.pairwise({**FACTORS, "shape": quick})
  return tuple(_case_of(row) for row in rows)


def full() -> tuple[AotCase, ...]:
  """Every combination."""
  return tuple(_case_of(row) for row in covering.product(FACTORS))
