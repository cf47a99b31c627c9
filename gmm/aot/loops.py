"""How often the instructions of a scheduled HLO module run.

A `Scope` is a computation as one instruction calls it, so that a value can be
followed out of a fusion or a branch to where it comes from. From that the trip
count of a loop is read: XLA for TPU does not write it down.
"""

from __future__ import annotations

import dataclasses
import re

from gmm.aot import hlo

# What leaves a value as it is.
_SAME = frozenset(
  ("copy", "bitcast", "convert", "reshape", "copy-done", "copy-start")
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scope:
  """A computation, and who runs it.

  Attributes:
    module: that holds it.
    computation: the one that runs.
    parent: where it is called; None for the entry.
    arguments: names of the parent's instructions that are its parameters.
    body: None, or the body of the loop whose body or condition this is: then
      the parameter changes from one trip to the next.
  """

  module: hlo.Module
  computation: hlo.Computation
  parent: Scope | None = None
  arguments: tuple[str, ...] = ()
  body: hlo.Computation | None = None

  def __getitem__(self, name: str) -> hlo.Instruction:
    """The computation's instruction of that name."""
    return self.computation.instructions[name]

  def call(self, name: str, arguments: tuple[str, ...]) -> Scope:
    """The scope of a computation that runs once where it is called."""
    return Scope(
      module=self.module,
      computation=self.module.computation(name),
      parent=self,
      arguments=arguments,
    )

  def loop(self, instruction: hlo.Instruction, part: str) -> Scope:
    """The scope of the "body" or the "condition" of a `while`."""
    return dataclasses.replace(
      self.call(instruction.attribute(part) or "", instruction.operands),
      body=self.module.computation(instruction.attribute("body") or ""),
    )


_Value = tuple[Scope, hlo.Instruction]


def origin(scope: Scope, instruction: hlo.Instruction) -> _Value:
  """Follows a value to the instruction that makes it.

  Copies and conversions are passed, and so are the bounds of fusions, calls
  and branches; a loop's parameter is passed for elements that no trip changes.
  """
  while (before := _before(scope, instruction)) is not None:
    scope, instruction = before
  return scope, instruction


def _before(scope: Scope, instruction: hlo.Instruction) -> _Value | None:
  opcode = instruction.opcode
  if opcode in _SAME:
    return scope, scope[instruction.operands[0]]
  if opcode == "parameter" and scope.parent and scope.body is None:
    number = int(instruction.literal)
    if number < len(scope.arguments):
      return scope.parent, scope.parent[scope.arguments[number]]
  if opcode in ("fusion", "call"):
    called = instruction.attribute("calls") or instruction.attribute("to_apply")
    inner = scope.call(called or "", instruction.operands)
    return inner, inner.computation.root
  if opcode == "get-tuple-element":
    inner, source = origin(scope, scope[instruction.operands[0]])
    index = int(instruction.attribute("index") or 0)
    if source.opcode == "tuple":
      return inner, inner[source.operands[index]]
    if source.opcode == "parameter" and _unchanged(inner, index):
      return _element(inner.parent, inner.arguments[0], index)
  return None


def _element(scope: Scope, name: str, index: int) -> _Value | None:
  inner, source = origin(scope, scope[name])
  if source.opcode == "tuple":
    return inner, inner[source.operands[index]]
  if source.opcode == "parameter" and _unchanged(inner, index):
    return _element(inner.parent, inner.arguments[0], index)
  return None


def _unchanged(scope: Scope, index: int) -> bool:
  """Whether the loop hands an element of its tuple on as it came."""
  if scope.body is None or scope.body.root.opcode != "tuple":
    return False
  instructions = scope.body.instructions
  value = instructions[scope.body.root.operands[index]]
  while value.opcode in _SAME:
    value = instructions[value.operands[0]]
  return (
    value.opcode == "get-tuple-element"
    and int(value.attribute("index") or 0) == index
    and instructions[value.operands[0]].opcode == "parameter"
  )


def trip_count(scope: Scope, loop: hlo.Instruction) -> int | None:
  """How often the body of a `while` runs, or None where that is not known.

  Taken from the compiler's note where there is one; else from a counter that
  starts at a constant, is compared with a constant, and grows by a constant.
  """
  noted = re.search(r'"known_trip_count":\{"n":"?(\d+)', loop.notes)
  if noted:
    return int(noted[1])
  condition, body = scope.loop(loop, "condition"), scope.loop(loop, "body")
  inner, test = origin(condition, condition.computation.root)
  if test.opcode != "compare":
    return None
  counter, limit = (origin(inner, inner[name]) for name in test.operands)
  direction = test.attribute("direction") or ""
  if _carried(counter, condition) is None:
    counter, limit = limit, counter
    direction = _MIRRORED.get(direction, direction)
  index, last = _carried(counter, condition), _constant(limit)
  if index is None or last is None:
    return None
  start = _element(scope, loop.operands[0], index)
  first = _constant(origin(*start)) if start else None
  step = _step(body, index)
  if first is None or not step:
    return None
  return _trips(direction, last - first, step)


_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def _trips(direction: str, distance: int, step: int) -> int | None:
  if step < 0:
    distance, step = -distance, -step
    direction = _MIRRORED.get(direction, direction)
  if direction == "NE" and (distance < 0 or distance % step):
    return None
  if direction in ("LT", "NE"):
    return max(0, -(-distance // step))
  if direction == "LE":
    return max(0, distance // step + 1)
  return None


def _carried(value: _Value, loop: Scope) -> int | None:
  """Which element of this loop's tuple a value is, if it is one."""
  scope, instruction = value
  if instruction.opcode != "get-tuple-element":
    return None
  scope, source = origin(scope, scope[instruction.operands[0]])
  # An outer loop's tuple is another one.
  if source.opcode != "parameter" or scope.computation is not loop.computation:
    return None
  return int(instruction.attribute("index") or 0)


def _constant(value: _Value) -> int | None:
  _, instruction = value
  if instruction.opcode != "constant":
    return None
  number = re.fullmatch(r"\{?(-?\d+)\}?", instruction.literal.strip())
  return int(number[1]) if number else None


def _step(body: Scope, index: int) -> int | None:
  """What a trip adds to an element of the loop's tuple."""
  root = body.computation.root
  if root.opcode != "tuple":
    return None
  inner, value = origin(body, body[root.operands[index]])
  if value.opcode not in ("add", "subtract"):
    return None
  left, right = (origin(inner, inner[name]) for name in value.operands)
  if value.opcode == "add" and _carried(left, body) is None:
    left, right = right, left
  step = _constant(right)
  if _carried(left, body) != index or step is None:
    return None
  return step if value.opcode == "add" else -step
