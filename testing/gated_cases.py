"""The case table of `gmm_gated` and `split_gmm`.

Each program meets the group patterns, places of a shard and poisons; programs
differ in what a compilation depends on. To add an activation, a shape or a
format, add a program.

Nothing here imports jax.
"""

import dataclasses
from collections.abc import Mapping

from testing import patterns
from testing.case import Case, Tiling


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedCase:
  """One call of `gmm_gated` or `split_gmm`, and its gradients.

  Attributes:
    case: rows, groups, formats and layout; n is that of gate.
    op: "gated" or "split".
    activation: of "gated": a name, or "shifted", which is a caller's function
      that is not zero at zero.
    n_up: of "split": columns of up; None for as many as gate.
  """

  case: Case
  op: str
  activation: str = "silu"
  n_up: int | None = None

  @property
  def name(self) -> str:
    """Says what the case is; unique."""
    return self.case.name

  @property
  def columns(self) -> tuple[int, int]:
    """Columns of gate and of up."""
    return self.case.n, self.case.n if self.n_up is None else self.n_up

  @property
  def fused(self) -> bool:
    """Whether one kernel does it."""
    return self.columns[0] == self.columns[1]

  @property
  def program(self) -> "GatedCase":
    """What a compilation depends on."""
    return dataclasses.replace(self, case=self.case.program)

  @property
  def program_name(self) -> str:
    """A name that cases share exactly if they share a program."""
    what = self.activation if self.op == "gated" else f"up{self.columns[1]}"
    return f"{self.op}-{what}-{self.case.program_name}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Program:
  """Cases that share a compilation."""

  op: str
  shape: tuple[int, int, int]
  dtypes: str
  layout: str
  activation: str = "silu"
  tiling: Tiling | None = None
  shard: tuple[int, int] | None = (3, 8)
  chip: str = "v6e"
  n_up: int | None = None
  scale_blocks: int = 0
  scale_dtype: str = "float32"
  bias: bool = False
  packed: bool = False


# By what is special about the shape.
_PROGRAMS: Mapping[str, _Program] = {
  "aligned": _Program(
    op="gated", shape=(48, 128, 128), dtypes="bf16", layout="N"
  ),
  # Gate and up start within a register: the accumulator is cut in two.
  "wide_k_tiles": _Program(
    op="gated",
    shape=(45, 200, 72),
    dtypes="f32",
    layout="N",
    activation="gelu",
    tiling=(16, 128, 128),
  ),
  "wide_one_tile": _Program(
    op="gated",
    shape=(40, 136, 200),
    dtypes="bf16_f32",
    layout="N",
    activation="shifted",
    shard=None,
  ),
  "wide_rows": _Program(
    op="gated",
    shape=(48, 128, 72),
    dtypes="bf16",
    layout="T",
    activation="shifted",
  ),
  # Several tiles of n and k, dealt out to two cores.
  "tiles": _Program(
    op="gated",
    shape=(58, 264, 256),
    dtypes="bf16_to_f32",
    layout="N",
    activation="swigluoai",
    tiling=(32, 128, 128),
    chip="v4",
  ),
  "tile_tails": _Program(
    op="gated",
    shape=(45, 136, 160),
    dtypes="f32_highest",
    layout="T",
    activation="gelu_tanh",
    tiling=(16, 256, 128),
  ),
  "int8_weight": _Program(
    op="gated", shape=(45, 72, 128), dtypes="bf16_i8", layout="N", shard=None
  ),
  "float8": _Program(
    op="gated",
    shape=(40, 128, 96),
    dtypes="e4m3",
    layout="T",
    activation="swigluoai",
    chip="tpu7x",
  ),
  "split_k_tiles": _Program(
    op="split",
    shape=(45, 200, 72),
    dtypes="bf16",
    layout="N",
    tiling=(16, 128, 128),
  ),
  "split_tiles": _Program(
    op="split",
    shape=(58, 264, 136),
    dtypes="f32",
    layout="T",
    tiling=(32, 128, 128),
    chip="v4",
  ),
  "split_integers": _Program(
    op="split", shape=(48, 128, 128), dtypes="i8", layout="N", shard=None
  ),
  "split_mixed": _Program(
    op="split",
    shape=(40, 136, 72),
    dtypes="bf16_f32",
    layout="T",
    chip="tpu7x",
  ),
  "split_unlike": _Program(
    op="split", shape=(45, 72, 40), dtypes="bf16", layout="N", n_up=24
  ),
  # Quantised weights, and biases: each form of scales, and what is wide.
  "channel": _Program(
    op="gated",
    shape=(48, 136, 128),
    dtypes="bf16_i8",
    layout="N",
    activation="swigluoai",
    scale_blocks=1,
    scale_dtype="bfloat16",
    bias=True,
  ),
  "wide_blocks": _Program(
    op="gated",
    shape=(45, 200, 72),
    dtypes="bf16_e4m3",
    layout="T",
    activation="shifted",
    chip="tpu7x",
    scale_blocks=5,
  ),
  "blocks_in_tiles": _Program(
    op="gated",
    shape=(42, 384, 256),
    dtypes="bf16_i4",
    layout="N",
    tiling=(32, 128, 128),
    chip="v4",
    scale_blocks=3,
    bias=True,
  ),
  "wide_bias": _Program(
    op="gated",
    shape=(45, 136, 96),
    dtypes="bf16",
    layout="T",
    activation="swigluoai",
    tiling=(16, 128, 128),
    bias=True,
  ),
  "packed": _Program(
    op="gated",
    shape=(40, 200, 128),
    dtypes="bf16_i4",
    layout="N",
    shard=None,
    scale_blocks=5,
    packed=True,
  ),
  "split_blocks": _Program(
    op="split",
    shape=(45, 264, 136),
    dtypes="bf16_i8",
    layout="N",
    scale_blocks=3,
    scale_dtype="bfloat16",
    bias=True,
  ),
  "split_channel": _Program(
    op="split",
    shape=(40, 256, 160),
    dtypes="bf16_e4m3",
    layout="T",
    tiling=(32, 128, 128),
    chip="tpu7x",
    scale_blocks=1,
  ),
  "split_packed": _Program(
    op="split",
    shape=(40, 136, 72),
    dtypes="bf16_i4",
    layout="N",
    scale_blocks=2,
    packed=True,
  ),
  "split_unlike_blocks": _Program(
    op="split",
    shape=(45, 72, 40),
    dtypes="bf16_i8",
    layout="T",
    n_up=24,
    scale_blocks=2,
    bias=True,
  ),
}

# Of the cases of a program: (pattern, place of the shard, poison).
_RUNS = (
  ("ragged", "middle", "nan"),
  ("empty_runs", "first", "inf"),
  ("short", "last", "huge"),
  ("one_takes_all", "middle", "nan"),
  ("too_many", "hanging", "nan"),
  ("all_ones", "beyond", "nan"),
)


def _case(name: str, run: tuple[str, str, str], p: _Program) -> GatedCase:
  pattern, place, poison = run
  m, k, n = p.shape
  g, g_total = p.shard or (5, 5)
  offset = None if p.shard is None else patterns.POSITIONS[place](g, g_total)
  return GatedCase(
    case=Case(
      name="-".join((name, pattern, place, poison)),
      m=m,
      k=k,
      n=n,
      group_sizes=patterns.PATTERNS[pattern](m, g_total),
      num_groups=g,
      group_offset=offset,
      dtypes=p.dtypes,
      transpose_rhs=p.layout == "T",
      tiling=p.tiling,
      chip=p.chip,
      poison=poison,
      scale_blocks=p.scale_blocks,
      scale_dtype=p.scale_dtype,
      bias=p.bias,
      packed=p.packed,
    ),
    op=p.op,
    activation=p.activation,
    n_up=p.n_up,
  )


CASES: tuple[GatedCase, ...] = tuple(
  _case(name, run, program)
  for name, program in _PROGRAMS.items()
  for run in _RUNS
)

# For what need not meet every program: interpreted gradients take long.
_FEW = ("aligned", "wide_rows", "split_k_tiles", "split_unlike")
FEW_CASES: tuple[GatedCase, ...] = tuple(
  c for c in CASES if c.name.split("-")[0] in _FEW and "ragged" in c.name
)
