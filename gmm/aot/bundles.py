"""Reads the TPU compiler's final bundles: the code of one kernel, cycle by cycle.

A bundle is what the chip's units do in one cycle. libtpu writes them as text,
in a format that it does not promise to keep. So what is read is checked: every
bundle must be numbered, every jump must land, and one loop must hold all the
MXU's work. Where that fails, `FormatError` says so.

The text, in short (addresses, loop depth as `>`, operations between `;;`):

     0x18   : > { %p7 = scmp.lt.s32 %s1, %s2  ;;  %29 = sbr.rel (!%p8) target = $region218 }
     0x1d PF:  { ... } /* Start/End empty region 212 :: Start region 242 */
"""  # noqa: E501

from __future__ import annotations

import collections
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence


class FormatError(ValueError):
  """The dump is not in the format that this was written for."""


_BUNDLE = re.compile(
  r"^\s*(0x[0-9a-f]+|0)\s*([A-Z]{2})?\s*:\s*(?:>+ *)*\{", re.MULTILINE
)
_OPCODE = re.compile(r"%\w+ = ([a-z][\w.]*)")
_TARGET = re.compile(r"sbr\.\w+\s*(\([^)]*\))?\s*target = \$region(\d+)")
_START = re.compile(r"Start(?:/End empty)? region (\d+)")
_SPILL = re.compile(r" = (vst|vld)\S* [^;]*_spill\]")
# What is allocated where, in the listing of the last pass but one.
_ALLOCATION = re.compile(
  r"^\s*#allocation\S+ \[shape = '[^']*', space=vmem, size = (0x[0-9a-f]+|0), "
  r"offset = (0x[0-9a-f]+|0),[^\]]*tag = '([^']*)'",
  re.MULTILINE,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
  """One cycle.

  Attributes:
    label: "LB" for a loop's first bundle, "PF" where a jump lands, or "".
    ops: opcodes, such as "vmatmul.mubr.bf16.gmra.mxu0".
    target: number of the region that it jumps to, or None.
    always: whether that jump is taken whatever holds.
    regions: numbers of the regions that start here.
    spills: vector registers that it stores to make room.
    fills: vector registers that it loads again.
  """

  label: str
  ops: tuple[str, ...]
  target: int | None
  always: bool
  regions: tuple[int, ...]
  spills: int
  fills: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
  """Bundles [start, end) that run one after the other."""

  start: int
  end: int

  @property
  def bundles(self) -> int:
    """How many there are."""
    return self.end - self.start


def parse(text: str) -> tuple[Bundle, ...]:
  """Reads a `*-final_bundles.txt`.

  Raises:
    FormatError: the text is something else, or was cut.
  """
  starts = list(_BUNDLE.finditer(text))
  if not starts:
    raise FormatError("no bundles in the dump: its format has changed")
  ends = [m.start() for m in starts[1:]] + [len(text)]
  bundles = []
  for address, (match, end) in enumerate(zip(starts, ends, strict=True)):
    if int(match[1], 16) != address:
      raise FormatError(
        f"bundle {match[1]} stands where {address:#x} belongs: the dump is cut "
        "or its format has changed"
      )
    bundles.append(_bundle(match[2] or "", text[match.end() : end]))
  return tuple(bundles)


def _bundle(label: str, body: str) -> Bundle:
  jump = _TARGET.search(body)
  moves = collections.Counter(_SPILL.findall(body))
  return Bundle(
    label=label,
    ops=tuple(_OPCODE.findall(body)),
    target=int(jump[2]) if jump else None,
    always=bool(jump) and not jump[1],
    regions=tuple(int(n) for n in _START.findall(body)),
    spills=moves["vst"],
    fills=moves["vld"],
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vmem:
  """VMEM of a kernel, in bytes.

  Attributes:
    total: up to where it reaches; what lives at different times may overlap.
    spills: that part of it which holds spilled registers.
  """

  total: int
  spills: int


def vmem(text: str) -> Vmem:
  """Reads the VMEM that a listing allocates (`*-post-delay-converter.txt`).

  Raises:
    FormatError: it allocates none.
  """
  found = [
    (int(size, 16), int(offset, 16), tag)
    for size, offset, tag in _ALLOCATION.findall(text)
  ]
  if not found:
    raise FormatError("no VMEM in the dump: its format has changed")
  return Vmem(
    total=max(size + offset for size, offset, _ in found),
    spills=sum(size for size, _, tag in found if "spill" in tag),
  )


class Code:
  """One kernel's bundles, and how control moves through them."""

  def __init__(self, bundles: Sequence[Bundle]) -> None:
    """Finds where each jump lands; raises FormatError where one does not."""
    self.bundles = tuple(bundles)
    self._address: dict[int, int] = {}
    for address, bundle in enumerate(self.bundles):
      for region in bundle.regions:
        self._address.setdefault(region, address)
    self.jumps = {
      address: self._landing(bundle.target)
      for address, bundle in enumerate(self.bundles)
      if bundle.target is not None
    }

  def _landing(self, region: int) -> int:
    if region not in self._address:
      raise FormatError(
        f"a jump to region {region}, which starts nowhere: the dump's format "
        "has changed"
      )
    return self._address[region]

  @functools.cached_property
  def delay(self) -> int:
    """Bundles after a jump that still run: the chip's delay slots.

    The nearest label after a jump is right behind them.
    """
    labels = [a for a, b in enumerate(self.bundles) if b.label]
    gaps = [
      min((label - jump for label in labels if label > jump), default=None)
      for jump in self.jumps
    ]
    known = [gap for gap in gaps if gap is not None]
    return min(known) - 1 if known else 0

  @functools.cached_property
  def loops(self) -> tuple[Block, ...]:
    """Every loop, as a jump back closes it."""
    return tuple(
      Block(start=to, end=jump + self.delay + 1)
      for jump, to in self.jumps.items()
      if to <= jump
    )

  @functools.cached_property
  def blocks(self) -> tuple[Block, ...]:
    """The basic blocks, in order."""
    leaders = {0, len(self.bundles)}
    leaders.update(a for a, b in enumerate(self.bundles) if b.label)
    for jump, to in self.jumps.items():
      leaders |= {to, min(jump + self.delay + 1, len(self.bundles))}
    ordered = sorted(leaders)
    return tuple(
      Block(start=a, end=b)
      for a, b in zip(ordered[:-1], ordered[1:], strict=True)
    )

  def ops_of(self, block: Block) -> Iterator[str]:
    """The opcodes of a block."""
    for bundle in self.bundles[block.start : block.end]:
      yield from bundle.ops

  def holds_mxu_work(self, block: Block) -> bool:
    """Whether anything is multiplied in it."""
    return any(op.startswith("vmatmul") for op in self.ops_of(block))

  @functools.cached_property
  def hot_loop(self) -> Block:
    """The smallest loop that holds all of the MXU's work: that of the steps.

    It waits for copies, too: a loop within the only product does not.

    Raises:
      FormatError: there is no such loop.
    """
    working = [b for b in self.blocks if self.holds_mxu_work(b)]
    if not working:
      raise FormatError("no vmatmul in the dump: its format has changed")
    start, end = working[0].start, working[-1].end
    around = [o for o in self.loops if o.start <= start and end <= o.end]
    if not around:
      raise FormatError(
        "no loop holds all of the kernel's vmatmuls: its dump's format has "
        "changed, or it is no grouped product"
      )
    waiting = [o for o in around if "dma.done.wait" in self.ops_of(o)]
    return min(waiting or around, key=lambda loop: loop.bundles)

  def depth(self, block: Block) -> int:
    """Loops around a block, within and with the hot one."""
    hot = self.hot_loop
    return sum(
      loop.start <= block.start and block.end <= loop.end
      for loop in self.loops
      if hot.start <= loop.start and loop.end <= hot.end
    )

  def longest_way(self, loop: Block, free: Sequence[Block]) -> int:
    """Bundles of the longest way through a loop; those in `free` cost none.

    Loops within it are run once.
    """
    blocks = [
      b for b in self.blocks if loop.start <= b.start and b.end <= loop.end
    ]
    cost_free = {b.start for b in free}
    longest = {blocks[0].start: 0}
    furthest = 0
    for block in blocks:
      if block.start not in longest:
        continue  # nothing leads here
      cost = 0 if block.start in cost_free else block.bundles
      done = longest[block.start] + cost
      furthest = max(furthest, done)
      for to in self._ways_on(block):
        if block.start < to < loop.end:
          longest[to] = max(longest.get(to, 0), done)
    return furthest

  def _ways_on(self, block: Block) -> Iterator[int]:
    jump = next(
      (a for a in self.jumps if a + self.delay + 1 == block.end), None
    )
    if jump is not None:
      yield self.jumps[jump]
    if jump is None or not self.bundles[jump].always:
      yield block.end
