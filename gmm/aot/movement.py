"""Tells whether an HLO instruction does nothing but move data, and how.

Values are followed from a result to the arrays it is made of, through whatever
a fusion holds, and only along operands that carry data: how an index or a
padding value comes about does not matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from gmm.aot import hlo, loops
from gmm.aot.shapes import Shape

# Instructions that move data, and how many of their operands are data.
_DATA_OPERANDS = {
  "copy": 1,
  "transpose": 1,
  "reshape": 1,
  "reverse": 1,
  "pad": 1,
  "slice": 1,
  "dynamic-slice": 1,
  "dynamic-update-slice": 2,
  "concatenate": None,
  # Not movement by themselves, but part of it.
  "convert": 1,
  "maximum": 2,
}
# What a movement is called: the first of these that is part of it.
_RANKS = (
  "relayout",
  "concatenate",
  "pad",
  "reshape",
  "reverse",
  "update",
  "slice",
  "copy",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Movement:
  """What is moved.

  Attributes:
    moves: "relayout", "convert" (a relayout to another dtype), "concatenate",
      "pad", "reshape", "reverse", "update", "slice" or "copy".
    source: the largest array that is read, as a whole.
    written: what is written: of an update in place only the update.
    read_bytes: that are read, as they lie in memory.
  """

  moves: str
  source: Shape
  written: Shape
  read_bytes: int


def movements(
  scope: loops.Scope, instruction: hlo.Instruction, min_bytes: int
) -> Iterator[Movement]:
  """The results of an instruction that are data moved, and nothing else.

  Args:
    scope: the computation that holds the instruction.
    instruction: a fusion, or an instruction of any other kind.
    min_bytes: the least size of what is moved, in bytes without padding.

  Yields:
    A Movement for each such result, unless it only goes from one memory to
    another, or only changes the dtype.
  """
  for shape, flow in _results(scope, instruction, min_bytes):
    moved = _movement(shape, flow) if flow else None
    if flow and not moved:
      moved = _round_trip(scope, instruction, shape, flow)
    if moved and moved.written.bytes >= min_bytes:
      yield moved


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flow:
  """How a value is made of arrays.

  Attributes:
    source: the largest array that is read; None if none is.
    reads: what is read, each once.
    moves: what is done on the way.
    written: None, or the part of the array that is written in place.
    least_bits: of an element, on the way.
    padded_low: what lies around the data is minus infinity.
  """

  source: Shape | None = None
  reads: Mapping[str, Shape] = dataclasses.field(default_factory=dict)
  moves: frozenset[str] = frozenset()
  written: Shape | None = None
  least_bits: int = 64
  padded_low: bool = False


_Result = tuple[Shape, _Flow | None]


def _results(
  scope: loops.Scope, instruction: hlo.Instruction, min_bytes: int
) -> Iterator[_Result]:
  opcode, shapes = instruction.opcode, instruction.results
  base = opcode.removesuffix("-start")
  if base != opcode and len(shapes) > 1:
    # copy-start returns (result, operand, context), the others
    # ((operands), result, context).
    opcode = base
    shape = shapes[0 if opcode == "copy" else 1]
    shapes = shape if isinstance(shape, tuple) else (shape,)
  if opcode == "fusion":
    tracer = _Tracer(scope, instruction)
    for shape, value in zip(shapes, tracer.results(), strict=True):
      if isinstance(shape, Shape) and shape.bytes >= min_bytes:
        yield shape, tracer.flow(tracer.top, value)
    return
  shape = shapes[0] if shapes else None
  if opcode not in _DATA_OPERANDS or not isinstance(shape, Shape):
    return
  if shape.bytes >= min_bytes:
    operands = scope.computation.operands(instruction)
    value = dataclasses.replace(instruction, opcode=opcode, shape=shape)
    data = operands[: _DATA_OPERANDS[opcode]]
    yield shape, _combine(value, operands, [_leaf(d) for d in data])


def _movement(shape: Shape, flow: _Flow) -> Movement | None:
  source = flow.source
  if source is None or not flow.moves:
    return None
  moves = next(name for name in _RANKS if name in flow.moves)
  if source.dtype != shape.dtype or flow.least_bits < source.element_bits:
    if moves != "relayout":
      return None
    moves = "convert"
  space = shape.memory_space
  if moves in ("copy", "slice", "update") and space != source.memory_space:
    return None
  return Movement(
    moves=moves,
    source=source,
    written=dataclasses.replace(flow.written or shape, memory_space=space),
    read_bytes=sum(read.padded_bytes for read in flow.reads.values()),
  )


def _round_trip(
  scope: loops.Scope, instruction: hlo.Instruction, shape: Shape, flow: _Flow
) -> Movement | None:
  """A copy that ends where an unchanged array came from: a detour by VMEM."""
  if not instruction.opcode.startswith("copy") or flow.moves != {"copy"}:
    return None
  _, first = loops.origin(scope, scope[instruction.operands[0]])
  source = first.shape
  if not isinstance(source, Shape) or source.memory_space != shape.memory_space:
    return None
  if (source.dtype, source.dims) != (shape.dtype, shape.dims):
    return None
  return Movement(
    moves="copy",
    source=source,
    written=shape,
    read_bytes=source.padded_bytes,
  )


class _Tracer:
  """Follows values within one fusion."""

  def __init__(self, scope: loops.Scope, fusion: hlo.Instruction):
    name = fusion.attribute("calls") or ""
    self.top = scope.call(name, fusion.operands)
    self._known: dict[tuple[loops.Scope, str], _Flow | None] = {}

  def results(self) -> tuple[hlo.Instruction, ...]:
    """The values that the fusion returns."""
    root = self.top.computation.root
    if root.opcode == "tuple":
      return self.top.computation.operands(root)
    return (root,)

  def flow(self, scope: loops.Scope, value: hlo.Instruction) -> _Flow | None:
    """How a value comes about; None if by more than movement."""
    key = scope, value.name
    if key not in self._known:
      self._known[key] = self._flow(scope, value)
    return self._known[key]

  def _flow(self, scope: loops.Scope, value: hlo.Instruction) -> _Flow | None:
    opcode = value.opcode
    if opcode in ("constant", "iota"):
      return _Flow()
    if opcode == "parameter":
      if scope is self.top:
        return _leaf(value)
      name = scope.arguments[int(value.literal)]
      return self.flow(scope.parent, scope.parent[name])
    operands = scope.computation.operands(value)
    if opcode == "get-tuple-element":
      is_input = scope is self.top and operands[0].opcode == "parameter"
      return _leaf(value) if is_input else None
    if opcode == "bitcast":
      return self.flow(scope, operands[0])
    if opcode == "broadcast":
      flow = self.flow(scope, operands[0])
      fills = _is_scalar(operands[0]) or (flow and not flow.reads)
      return _Flow() if fills else None
    if opcode == "fusion":
      inner = scope.call(value.attribute("calls") or "", value.operands)
      return self.flow(inner, inner.computation.root)
    if opcode not in _DATA_OPERANDS or not isinstance(value.shape, Shape):
      return None
    flows = [
      self.flow(scope, operand)
      for operand in operands[: _DATA_OPERANDS[opcode]]
    ]
    return _combine(value, operands, flows)


def _is_scalar(instruction: hlo.Instruction) -> bool:
  return isinstance(instruction.shape, Shape) and not instruction.shape.dims


def _leaf(instruction: hlo.Instruction) -> _Flow | None:
  shape = instruction.shape
  if not isinstance(shape, Shape):
    return None
  return _Flow(
    source=shape,
    reads={instruction.name: shape},
    least_bits=shape.element_bits,
  )


def _combine(
  value: hlo.Instruction,
  operands: Sequence[hlo.Instruction],
  flows: Sequence[_Flow | None],
) -> _Flow | None:
  """The flow of a value, from those of its operands that carry data."""
  opcode = value.opcode
  data = [flow for flow in flows if flow is not None]
  if len(data) != len(flows):
    return None
  if opcode == "dynamic-update-slice":
    return _update(value, operands, data)
  flow = _merged(data)
  if opcode == "maximum":
    if not flow.padded_low:
      return None
    return dataclasses.replace(flow, moves=flow.moves | {"concatenate"})
  moves = {opcode.removeprefix("dynamic-")}
  if opcode in ("transpose", "convert"):
    moves = {"copy"} if opcode == "transpose" else set()
  if opcode == "pad":
    flow = dataclasses.replace(flow, padded_low=_is_low(operands[1]))
  if opcode == "slice" or opcode == "dynamic-slice":
    reads = {value.name: value.shape} if flow.reads else {}
    flow = dataclasses.replace(flow, reads=reads)
  if opcode != "reshape" and _reorders(value, operands[0].shape):
    moves.add("relayout")
  return dataclasses.replace(
    flow,
    moves=flow.moves | moves,
    least_bits=min(flow.least_bits, value.shape.element_bits),
  )


def _update(
  value: hlo.Instruction,
  operands: Sequence[hlo.Instruction],
  data: Sequence[_Flow],
) -> _Flow:
  base, update = data
  if not base.reads or base.moves:
    # The array that is written into is made on the way: all of it is written.
    flow = _merged(data)
    return dataclasses.replace(flow, moves=flow.moves | {"update"})
  moves = {"update"}
  if _reorders(value, operands[1].shape):
    moves.add("relayout")
  written = operands[1].shape
  return dataclasses.replace(
    update, moves=update.moves | moves, written=written
  )


def _merged(flows: Sequence[_Flow]) -> _Flow:
  sources = [flow.source for flow in flows if flow.source]
  return _Flow(
    source=max(sources, key=lambda s: s.bytes, default=None),
    reads={name: s for flow in flows for name, s in flow.reads.items()},
    moves=frozenset().union(*(flow.moves for flow in flows)),
    least_bits=min(flow.least_bits for flow in flows),
    padded_low=all(flow.padded_low for flow in flows),
  )


def _is_low(padding: hlo.Instruction) -> bool:
  return padding.opcode == "constant" and padding.literal.strip() == "-inf"


def _reorders(value: hlo.Instruction, before: object) -> bool:
  """Whether a value's elements lie in another order than they did."""
  after = value.shape
  if not isinstance(before, Shape) or len(before.dims) != len(after.dims):
    return False
  names = range(len(after.dims))
  if value.opcode == "transpose":
    names = value.numbers("dimensions")
  # A dimension of size 1 lies anywhere; a slice may have made it so.
  new = [
    names[d]
    for d in after.minor_to_major
    if after.dims[d] != 1 and before.dims[names[d]] != 1
  ]
  retiled = (
    value.opcode == "copy"
    and before.tiles
    and after.tiles
    and before.tiles != after.tiles
  )
  return bool(retiled) or new != [d for d in before.minor_to_major if d in new]
