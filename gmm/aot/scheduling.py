"""What the TPU compiler's own schedule says of a kernel.

libtpu writes each operation's final code to a folder that is named when the
library is loaded, so programs are compiled by a process of their own
(`worker.py`), and the folder goes away with it.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence

from gmm.aot import bundles
from gmm.kernels import chip as chips
from gmm.kernels.grid import cdiv
from gmm.timing import rates

_FORMAT = re.compile("|".join(sorted(rates.VMATMUL_ROWS, key=len)[::-1]))
# Kernels that multiply one lhs by two weights.
_TWO_WEIGHTS = re.compile(r"-(?:gated|split)-")
# Shorter stretches without MXU work count as the step's overhead.
_LEAST_ARM = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
  """A stretch of the hot loop without a jump: MXU work, or much vector work.

  Attributes:
    bundles: VLIW bundles, a cycle each if nothing stalls.
    depth: 1 runs at most once in a grid step; more in loops of its own.
    vmatmuls: matrix instructions.
    mxu_cycles: the least the MXUs need for them.
    rows: rows that it multiplies: of the result in gmm, of both operands in
      tgmm; 0 where it multiplies nothing.
    k_pieces: MXU-deep pieces of the contraction that it runs.
    matpushes: tiles of the stationary operand (instructions) pushed to an MXU.
    transposing_pushes: those that the MXU transposes while it takes them.
    xlu_transposes: transposes (instructions) of the cross-lane unit.
    spills: vector registers stored for want of room.
    fills: vector registers loaded again.
  """

  bundles: int
  depth: int
  vmatmuls: int
  mxu_cycles: int
  rows: int
  k_pieces: int
  matpushes: int
  transposing_pushes: int
  xlu_transposes: int
  spills: int
  fills: int

  @property
  def cycles(self) -> int:
    """Its time: bundles, or what the MXUs need."""
    return max(self.bundles, self.mxu_cycles)

  @property
  def mxu_busy(self) -> float:
    """Share of that time in which the MXUs work."""
    return self.mxu_cycles / self.cycles


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
  """One kernel's code.

  Attributes:
    kernel: its name, which holds the problem and the tiles.
    chip: what it was compiled for.
    operands: the format that its MXUs multiply, as mnemonics spell it: "bf16".
    bundles: all of its code.
    arms: of the hot loop, in program order.
    step_bundles: the longest way through the hot loop outside the arms.
    vmem_bytes: VMEM that the compiler allocated.
    spill_vmem_bytes: that part of it which holds spilled registers.
  """

  kernel: str
  chip: str
  operands: str
  bundles: int
  arms: tuple[Arm, ...]
  step_bundles: int
  vmem_bytes: int
  spill_vmem_bytes: int


def read(
  kernel: str,
  chip: str,
  texts: tuple[str, str],
  metadata: Mapping[str, str],
) -> Schedule:
  """Reads one kernel's dump.

  Args:
    kernel: its name.
    chip: what it was compiled for.
    texts: the final bundles, and the listing with allocations.
    metadata: the kernel's, with its tiles.

  Raises:
    FormatError: the dump is not in the format that this knows.
  """
  final, listing = texts
  code = bundles.Code(bundles.parse(final))
  shape = _Shape.of(kernel, metadata)
  hot = code.hot_loop
  blocks = [
    b
    for b in code.blocks
    if hot.start <= b.start
    and b.end <= hot.end
    and (
      code.holds_mxu_work(b) or b.bundles >= _LEAST_ARM and _is_vector(code, b)
    )
  ]
  vmem = bundles.vmem(listing)
  rows = _product_rows(code, blocks, shape)
  arms = tuple(
    _arm(code, block, (shape, rows.get(block, 0)), chip) for block in blocks
  )
  formats = {_format(o) for o in code.ops_of(hot) if o.startswith("vmatmul")}
  return Schedule(
    kernel=kernel,
    chip=chip,
    operands=" ".join(sorted(formats)),
    bundles=len(code.bundles),
    arms=arms,
    step_bundles=code.longest_way(hot, blocks),
    vmem_bytes=vmem.total,
    spill_vmem_bytes=vmem.spills,
  )


def _is_vector(code: bundles.Code, block: bundles.Block) -> bool:
  """Whether most of a block's bundles use vector registers."""
  within = code.bundles[block.start : block.end]
  busy = sum(any(op.startswith("v") for op in b.ops) for b in within)
  return 2 * busy > len(within)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shape:
  """A kernel's tiles, from its metadata and its name."""

  is_tgmm: bool
  tile_k: int
  tile_n: int
  products: tuple[int, ...]
  parts: int
  weights: int

  @classmethod
  def of(cls, kernel: str, metadata: Mapping[str, str]) -> _Shape:
    try:
      return cls(
        is_tgmm=kernel.startswith("tgmm"),
        tile_k=int(metadata["tiles.tile_k"]),
        tile_n=int(metadata["tiles.tile_n"]),
        products=tuple(
          int(rows) for rows in metadata["dims.product_rows"].split(",")
        ),
        parts=int(metadata["dims.product_parts"]),
        weights=2 if _TWO_WEIGHTS.search(kernel) else 1,
      )
    except (KeyError, ValueError):
      raise bundles.FormatError(
        f"the metadata of {kernel} does not say its tiles: {dict(metadata)}"
      ) from None


def _product_rows(
  code: bundles.Code, blocks: Sequence[bundles.Block], shape: _Shape
) -> dict[bundles.Block, int]:
  """Rows of the arms that multiply: products in the order of the code.

  A last k tile of another size has code of its own: as many products again.
  """
  working = [block for block in blocks if code.holds_mxu_work(block)]
  if len(working) % len(shape.products):
    raise bundles.FormatError(
      f"{len(working)} arms with vmatmuls in the dump of a kernel with "
      f"{len(shape.products)} products: its format has changed"
    )
  return dict(zip(working, itertools.cycle(shape.products), strict=False))


def _arm(
  code: bundles.Code,
  block: bundles.Block,
  product: tuple[_Shape, int],
  chip: str,
) -> Arm:
  shape, rows = product
  depth = code.depth(block)
  within = code.bundles[block.start : block.end]
  ops = list(code.ops_of(block))
  count = collections.Counter(op.split(".")[0] for op in ops)
  pushes = [op for op in ops if op.startswith("vmatpush")]
  matmuls = collections.Counter(
    _format(op) for op in ops if op.startswith("vmatmul")
  )
  return Arm(
    bundles=block.bundles,
    depth=depth,
    vmatmuls=matmuls.total(),
    mxu_cycles=sum(
      rates.mxu_cycles(chip, format, n) for format, n in matmuls.items()
    ),
    rows=rows,
    k_pieces=_k_pieces(matmuls, shape, rows, chip),
    matpushes=len(pushes),
    transposing_pushes=sum("xpose" in op for op in pushes),
    xlu_transposes=count["vxpose"],
    spills=sum(b.spills for b in within),
    fills=sum(b.fills for b in within),
  )


def _k_pieces(
  matmuls: Mapping[str, int], shape: _Shape, rows: int, chip: str
) -> int:
  """Passes over the contraction: vmatmuls by those that one piece takes."""
  if not rows:
    return 0
  tile_k, tile_n = shape.tile_k, shape.tile_n
  if shape.is_tgmm:
    tile_k //= shape.parts
  else:
    tile_n //= shape.parts
  size = chips.resolve(chip).mxu_size
  # All of a kernel's are of one format.
  each = min(rates.VMATMUL_ROWS[format.split(".")[0]] for format in matmuls)
  tiles = shape.weights
  ways = [(tile_k if shape.is_tgmm else rows, tile_n, tiles)]
  if shape.is_tgmm:
    ways.append((tile_n, tile_k, 1))  # either operand may be the stationary one
  elif tiles > 1:
    ways.append((rows, tiles * tile_n, 1))  # side by side in one tile
  total = sum(matmuls.values())
  pieces = [
    total / (cdiv(streamed, each) * cdiv(columns, size) * count)
    for streamed, columns, count in ways
  ]
  # One that comes out even is the one; parts of registers may be left out.
  best = min(pieces, key=lambda count: (abs(count - round(count)), count))
  return max(round(best), 1)


def _format(op: str) -> str:
  """The operands' format in a vmatmul's mnemonic."""
  found = _FORMAT.search(op)
  if not found:
    raise bundles.FormatError(f"{op} names no operand format that is known")
  return found[0]
