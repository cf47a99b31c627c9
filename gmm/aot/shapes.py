"""Array shapes as HLO text writes them, with how they lie in memory."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
  """An array as it lies in memory.

  Attributes:
    dtype: as HLO spells it: "bf16", "f32", "s8", "f8e4m3fn".
    dims: the size of each dimension; a bounded one by its bound.
    minor_to_major: the dimensions' order in memory, the fastest first.
    tiles: sizes of the tiles it is cut into, the outermost tiling first:
      ((8, 128), (2, 1)) for T(8,128)(2,1).
    memory_space: 0 is the device's main memory (HBM), 1 VMEM.
    element_bits: bits that an element takes.
  """

  dtype: str
  dims: tuple[int, ...]
  minor_to_major: tuple[int, ...]
  tiles: tuple[tuple[int, ...], ...] = ()
  memory_space: int = 0
  element_bits: int = 32

  @property
  def bytes(self) -> int:
    """Bytes of the elements, without padding."""
    return math.prod(self.dims) * self.element_bits // 8

  @property
  def padded_bytes(self) -> int:
    """Bytes that it takes in memory, with every tile made whole."""
    sizes = [self.dims[d] for d in reversed(self.minor_to_major)]
    for tile in self.tiles:
      if len(tile) > len(sizes):
        sizes = [1] * (len(tile) - len(sizes)) + sizes
      kept, tiled = sizes[: -len(tile)], sizes[-len(tile) :]
      sizes = kept + [-(-s // t) for s, t in zip(tiled, tile, strict=True)]
      sizes += tile
    return math.prod(sizes) * self.element_bits // 8

  def __str__(self) -> str:
    """For example "bf16[8,256,384]"."""
    return f"{self.dtype}[{','.join(map(str, self.dims))}]"


ShapeTree = Shape | tuple["ShapeTree", ...]


def leaves(shape: ShapeTree) -> Iterator[Shape]:
  """The array shapes within a shape, in order."""
  if isinstance(shape, Shape):
    yield shape
    return
  for element in shape:
    yield from leaves(element)


_SPACE = re.compile(r"(?:[\s,]|/\*.*?\*/)*")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^{}]*)\})?")


def parse(text: str, start: int) -> tuple[ShapeTree, int]:
  """The shape that starts at `start` of `text`, and where it ends.

  Raises:
    ValueError: no shape is there, or the text ends within it.
  """
  start = _SPACE.match(text, start).end()
  if not text.startswith("(", start):
    match = _ARRAY.match(text, start)
    if match is None:
      raise ValueError(f"no shape: {text[start : start + 40]!r}")
    return _array(match[0]), match.end()
  elements = []
  start = _SPACE.match(text, start + 1).end()
  while not text.startswith(")", start):
    element, start = parse(text, start)
    elements.append(element)
    start = _SPACE.match(text, start).end()
  return tuple(elements), start + 1


@functools.lru_cache(maxsize=4096)
def _array(text: str) -> Shape:
  dtype, sizes, layout = _ARRAY.match(text).groups()
  dims = tuple(map(int, re.findall(r"\d+", sizes)))
  order, _, rest = (layout or "").partition(":")
  tiles = re.search(r"T((?:\([\d,]*\))+)", rest)
  space = re.search(r"S\((\d+)\)", rest)
  bits = re.search(r"E\((\d+)\)", rest)
  return Shape(
    dtype=dtype,
    dims=dims,
    minor_to_major=tuple(map(int, re.findall(r"\d+", order)))
    or tuple(reversed(range(len(dims)))),
    tiles=tuple(
      tuple(map(int, tile.split(",")))
      for tile in re.findall(r"\(([\d,]+)\)", tiles[1] if tiles else "")
    ),
    memory_space=int(space[1]) if space else 0,
    element_bits=int(bits[1]) if bits else element_bits(dtype),
  )


def element_bits(dtype: str) -> int:
  """Bits of an element of a dtype as HLO spells it; none for a token."""
  if dtype == "pred":
    return 8
  digits = re.search(r"\d+", dtype)
  return int(digits[0]) if digits else 0
