"""A kernel with every static choice made, and what follows from them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from gmm.config import Problem, bits
from gmm.kernels.chip import ChipSpec
from gmm.kernels.grid import LANES, Axis, round_up

# Columns of one MXU product: its float32 result must not swamp the registers.
PIECE_N = 512
ZERO_BYTES = 1 << 20
# Chips where NT ends with fewer rows, too: Gemma4's wi takes 1,747 bundles for
# 144 rows on tpu7x, and would take 2,244 cycles for 272.
SHORT_NT_ENDS = ("tpu7x",)
# Rows, but for a block, of the products that may end a window before the chunk
# is full. Where the schedule has fewer bundles than the MXU has cycles, more of
# them pay; in NT not the shortest, whose result takes as long to transpose.
SHORT_ENDS = {"nn": (128,), "nt": ()}
SHORT_ENDS_ON = {"tpu7x": {"nn": (64, 128, 192), "nt": (128, 192)}}
# Chips where a product of few rows in tgmm has more bundles than the MXU has
# cycles, for what it reads and adds of the rows before.
ALONE_ON = ("tpu7x",)
# Chips whose memory brings a weight of 8 bits sooner than the MXU has passed
# 144 rows; and what fewer rows a product then has, where groups have fewer.
QUICK_WEIGHTS = ("tpu7x",)
FEW_ROWS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """A kernel with every static choice made.

  Attributes:
    problem: the call, after padding (rows to `block`, and k or n where a
      partial tile could not be moved).
    chip: what it is planned for.
    tile_m: rows that a visit is meant for.
    tile_k: columns of lhs in a step.
    tile_n: columns of the result (gmm) or dout (tgmm) in a step.
    block: rows that move together.
    chunk: rows that windows are cut in: about as many as the MXU is high.
    run: most chunks that one MXU product takes.
    parts: equal parts of a tile's columns (gmm: of the result, tgmm: of lhs)
      that a product takes one after the other, by the same code.
    rhs_buffers: weights, or tiles of them, that are there or on their way.
    compute_dtype: what operands are widened to in VMEM.
    pads: what padding added to m, k and n.
  """

  problem: Problem
  chip: ChipSpec
  tile_m: int
  tile_k: int
  tile_n: int
  block: int
  chunk: int
  run: int
  parts: int
  rhs_buffers: int
  compute_dtype: np.dtype
  pads: tuple[int, int, int] = (0, 0, 0)

  @property
  def window(self) -> int:
    """Most rows of a visit: tile_m and one block.

    A group that starts within a block spans up to one block more than it has
    rows, and must not need a second visit for that.
    """
    return round_up(self.tile_m, self.unit) + self.block

  @property
  def unit(self) -> int:
    """Rows that a group's windows are multiples of, but for its last."""
    return self.chunk * (self.run if self.problem.kind == "tgmm" else 1)

  @property
  def buffer_rows(self) -> int:
    """Rows of a buffer: the window in whole chunks."""
    if self.problem.kind == "gmm":
      return self.window
    return round_up(self.window, self.chunk)

  @property
  def whole(self) -> tuple[int, ...]:
    """Rows of the products of whole chunks, longest first.

    The results of a product leave the MXU a few hundred cycles after its last
    rows went in, and nothing follows them there before: the longer the better,
    but for the code, and for what is left at a window's end.
    """
    if self.problem.kind == "tgmm":
      return (self.unit,)
    if self.run > 1:
      return self.run * self.chunk, self.chunk
    if self.window <= self.chunk + self.block:
      return ()  # one product ends each window, whole or not
    return (self.chunk,)

  @property
  def ends(self) -> tuple[int, ...]:
    """Rows of the products that end a window, shortest first.

    In gmm they take a block more, so that a group of whole chunks that starts
    within a block needs no product more.
    """
    if self.problem.kind == "tgmm":
      return tuple(self.chunk * i for i in range(1, self.run + 1))
    ends = [self.chunk + self.block]
    if self.chunk > LANES:
      # In NT fewer rows than the MXU's are not the ones that it streams: their
      # result is transposed, which takes most of the time that is gained.
      mode = "nt" if self.problem.contracts_lanes else "nn"
      # Each is much code where rows are quantised in a loop.
      where = None if self.turn else self.chip.name
      short = SHORT_ENDS_ON.get(where, SHORT_ENDS)[mode]
      ends = [r + self.block for r in short if r < self.chunk] + ends
    pushed_whole = self.problem.contracts_lanes and not self.turns_weight
    if self.has_quick_weights and not pushed_whole:
      ends.insert(0, FEW_ROWS + self.block)
    return tuple(ends)

  @property
  def alone(self) -> tuple[int, ...]:
    """Rows of the products of tgmm that are all of a group: they add nothing.

    A group of one chunk needs no accumulator. (With parts, the loop takes what
    is gained.)
    """
    if self.problem.kind != "tgmm" or self.chip.name not in ALONE_ON:
      return ()
    return (self.chunk,) if self.parts == 1 else ()

  @property
  def turns_weight(self) -> bool:
    """Whether few rows of NT are multiplied by a weight transposed before.

    The MXU takes longer to transpose what int8 is widened to than the XLU takes
    to transpose it as it is stored.
    """
    return (
      self.has_quick_weights
      and self.problem.contracts_lanes
      and self.problem.rhs_dtype == np.int8
    )

  @property
  def has_quick_weights(self) -> bool:
    """Whether few rows wait for the MXU rather than for their weight."""
    problem = self.problem
    return (
      self.chip.name in QUICK_WEIGHTS
      and bits(problem.rhs_dtype) <= 8
      and problem.m <= FEW_ROWS * problem.g
      and self.chunk > FEW_ROWS
    )

  @property
  def products(self) -> tuple[int, ...]:
    """Rows of every MXU product, in the order of the kernel's code."""
    return self.whole + self.alone + self.ends

  @property
  def turn(self) -> int:
    """Columns of lhs of a turn of the loop in which its rows are quantised.

    0 is no loop. With one, all tiles of k are whole turns, but for a tile that
    is all of k.
    """
    problem, k = self.problem, self.k
    block = problem.scale_block
    if not problem.lhs_quantization or not block or problem.scale_axis != "k":
      return 0
    turn = blocks_together(problem) * block
    if k.count == 1:
      return turn if k.tile >= 2 * turn else 0
    return turn if k.tile % turn == 0 and k.last % turn == 0 else 0

  @property
  def k(self) -> Axis:
    """The columns of lhs, as tiles."""
    return Axis(self.problem.k, self.tile_k)

  @property
  def n(self) -> Axis:
    """The columns of the result or of dout, as tiles."""
    return Axis(self.problem.n, self.tile_n)

  @property
  def zero_rows(self) -> int:
    """Rows of the buffer of zeros, which is as wide as the result."""
    rows, width = self.problem.m, self.problem.n
    unit = self.block
    if self.problem.kind == "tgmm":
      rows, unit = self.problem.k, sublanes(self.problem.out_dtype)
    row_bytes = round_up(width, LANES) * self.problem.out_dtype.itemsize
    return min(rows, max(ZERO_BYTES // row_bytes // unit, 1) * unit)


def sublanes(dtype: np.dtype) -> int:
  """Rows of one packed VMEM tile of `dtype`: 8, 16, 32 or 64."""
  return 8 * (32 // bits(dtype))


def blocks_together(problem: Problem) -> int:
  """Blocks of a turn of a loop: whole registers of lanes and of scales."""
  unit = sublanes(problem.scale_dtype)
  return unit * LANES // math.gcd(unit * problem.scale_block, LANES)


def row_block(problem: Problem) -> int:
  """Rows that move together: whole tiles in every operand that has rows."""
  dtypes = [problem.lhs_dtype]
  dtypes.append(
    problem.out_dtype if problem.kind == "gmm" else problem.rhs_dtype
  )
  return max(sublanes(dtype) for dtype in dtypes)
