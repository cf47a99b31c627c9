"""Finds what a compiled program does nothing with but move it.

A transpose of a weight that feeds a kernel, a copy of a loop's carry, a layer
cut out of stacked weights: each costs a read and a write of its bytes in every
step, and none stands in the JAX program. All stand in the scheduled HLO.

What counts, if its result has at least `min_bytes`:

- `copy`, `transpose`, `reshape` (one that only renames dimensions is a
  `bitcast`, which costs nothing), `reverse`, `pad`, `concatenate`, `slice` and
  `dynamic-slice`, `dynamic-update-slice` (for the bytes of the update: it
  writes in place), and their asynchronous forms, once for a start and its done.
- a fusion, or one result of a fusion, that is made of these alone. A maximum of
  two arrays padded with minus infinity is how TPUs concatenate, and counts.
- a conversion to another dtype that changes the order of the dimensions too. A
  conversion in the order that it finds does work, and does not count: it is
  the usual cast of a float32 weight to bfloat16.

What does not: arithmetic, kernels and other custom calls, collectives,
broadcasts (they fill), gathers and scatters, and transfers between memories
that keep the order (HBM to VMEM before an operation, VMEM to HBM after it, HBM
to the host): they move what has to be moved anyhow.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Iterator

import jax

from gmm.aot import hlo, loops, movement
from gmm.kernels import chip as chips
from gmm.timing import rates


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copy:
  """An instruction of a compiled program that only moves data.

  Sizes and times are those of one device.

  Attributes:
    name: of the HLO instruction.
    kind: its opcode: "copy", "transpose", "fusion", "copy-start", ...
    moves: what it does with the data: "relayout" (another order of the
      dimensions, or other tiles), "convert" (a relayout to another dtype),
      "concatenate", "pad", "reshape", "reverse", "update" (writes into part of
      an array), "slice" (reads part of one) or "copy" (none of these).
    computation: the HLO computation that holds it.
    op_name: the name that jax gave it, or None.
    source: where it comes from, "path/file.py:12", or None.
    shape: of what it writes, such as "bf16[8,256,384]".
    shape_in: of the largest array that it reads; the whole array for a slice.
    layout_in: minor-to-major order of the dimensions of `shape_in`.
    layout_out: minor-to-major order of the dimensions of `shape`.
    memory_in: memory space that it reads: 0 is HBM, 1 VMEM.
    memory_out: memory space that it writes.
    bytes: of `shape`, without padding.
    padded_bytes: of `shape` with every tile made whole, as it lies.
    read_bytes: that it reads, as they lie.
    times: how often it runs in one run of the program: the product of the trip
      counts of the loops around it; None if one of these is not known.
    conditional: it is in a branch, which may not be taken (counted once).
    seconds: that reading and writing take at `rates.COPY_SHARE` of the chip's
      HBM bandwidth, once; more than it takes where a side lies in VMEM. None
      if the chip is not known.
    estimated_cycles: the compiler's own estimate, or None. For what is bound by
      memory it is several times too high: no more than a note.
  """

  name: str
  kind: str
  moves: str
  computation: str
  op_name: str | None
  source: str | None
  shape: str
  shape_in: str
  layout_in: tuple[int, ...]
  layout_out: tuple[int, ...]
  memory_in: int
  memory_out: int
  bytes: int
  padded_bytes: int
  read_bytes: int
  times: int | None
  conditional: bool
  seconds: float | None
  estimated_cycles: int | None

  @property
  def total_seconds(self) -> float | None:
    """Seconds in one run of the program; None if not known."""
    if self.seconds is None or self.times is None:
      return None
    return self.seconds * self.times


def weight_copies(
  program: jax.stages.Compiled | str,
  *,
  min_bytes: int = 1 << 20,
  chip: str | None = None,
) -> tuple[Copy, ...]:
  """Lists what a compiled program copies, transposes or otherwise only moves.

  The module's docstring says what counts. Weights are told from other arrays by
  their size alone: give a `min_bytes` just below that of the smallest weight.

  Args:
    program: a compiled JAX program for any backend, or its scheduled HLO text,
      `compiled.as_text()`.
    min_bytes: the least size of what is moved, in bytes without padding.
    chip: "v4", "v5e", "v5p", "v6e" or "tpu7x", whose HBM bandwidth gives the
      times; None takes the chip that the program is compiled for. A text does
      not name it, so there the times are then None.

  Returns:
    The copies in the order of the program; those of a computation that is
    called from two places twice.

  Raises:
    ValueError: text that is not scheduled HLO, a negative `min_bytes`, or an
      unknown `chip`.
    TypeError: an argument of another type.
  """
  min_bytes = _size(min_bytes)
  spec = chips.resolve(chip) if chip is not None else _chip_of(program)
  found = []
  for module in hlo.parse(program):
    place = _Place(scope=loops.Scope(module=module, computation=module.entry))
    for moved in _moves_in(place, min_bytes):
      found.append(_copy(*moved, spec))
  return tuple(found)


def _size(min_bytes: int) -> int:
  if isinstance(min_bytes, bool):
    raise TypeError(f"`min_bytes` is {min_bytes}; want a number of bytes")
  try:
    size = operator.index(min_bytes)
  except TypeError:
    raise TypeError(
      f"`min_bytes` is {min_bytes!r}; want a whole number of bytes"
    ) from None
  if size < 0:
    raise ValueError(f"`min_bytes` is {size}; want 0 or more")
  return size


def _chip_of(program: jax.stages.Compiled | str) -> chips.ChipSpec | None:
  if not isinstance(program, jax.stages.Compiled):
    return None
  shardings = jax.tree.leaves(
    (program.input_shardings, program.output_shardings)
  )
  kinds = {d.device_kind for s in shardings for d in s.device_set}
  for spec in chips.CHIPS.values():
    if kinds & set(spec.device_kinds):
      return spec
  return None


# ---- the walk through the program


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
  """A computation within the run of a program, and how often it runs there."""

  scope: loops.Scope
  times: int | None = 1
  conditional: bool = False


_Moved = tuple[_Place, hlo.Instruction, movement.Movement]


def _moves_in(place: _Place, min_bytes: int) -> Iterator[_Moved]:
  scope = place.scope
  for instruction in scope.computation.instructions.values():
    for inner in _called(place, instruction):
      yield from _moves_in(inner, min_bytes)
    for moved in movement.movements(scope, instruction, min_bytes):
      yield place, instruction, moved


def _called(place: _Place, instruction: hlo.Instruction) -> Iterator[_Place]:
  """What an instruction runs that may hold copies; not fusions."""
  scope, opcode = place.scope, instruction.opcode
  if opcode == "while":
    trips = loops.trip_count(scope, instruction)
    # The condition is tested once more than it holds.
    for part, more in (("condition", 1), ("body", 0)):
      known = trips is not None and place.times is not None
      yield dataclasses.replace(
        place,
        scope=scope.loop(instruction, part),
        times=(trips + more) * place.times if known else None,
      )
  elif opcode == "conditional":
    for name, argument in _branches(instruction):
      yield dataclasses.replace(
        place, scope=scope.call(name, (argument,)), conditional=True
      )
  elif opcode in ("call", "call-start", "async-start"):
    name = instruction.attribute("to_apply") or instruction.attribute("calls")
    if name:
      yield dataclasses.replace(
        place, scope=scope.call(name, instruction.operands)
      )


def _branches(instruction: hlo.Instruction) -> Iterator[tuple[str, str]]:
  listed = instruction.attribute("branch_computations")
  names = (
    listed.split(",")
    if listed
    else [
      instruction.attribute(f"{side}_computation") or ""
      for side in ("true", "false")
    ]
  )
  for name, argument in zip(names, instruction.operands[1:], strict=True):
    yield name.strip(), argument


# ---- what is said of a copy


def _copy(
  place: _Place,
  instruction: hlo.Instruction,
  moved: movement.Movement,
  spec: chips.ChipSpec | None,
) -> Copy:
  module = place.scope.module
  source, written = moved.source, moved.written
  cycles = re.search(r'"estimated_cycles":"?(\d+)', instruction.notes)
  return Copy(
    name=instruction.name,
    kind=instruction.opcode,
    moves=moved.moves,
    computation=place.scope.computation.name,
    op_name=instruction.op_name,
    source=module.source(instruction),
    shape=str(written),
    shape_in=str(source),
    layout_in=source.minor_to_major,
    layout_out=written.minor_to_major,
    memory_in=source.memory_space,
    memory_out=written.memory_space,
    bytes=written.bytes,
    padded_bytes=written.padded_bytes,
    read_bytes=moved.read_bytes,
    times=place.times,
    conditional=place.conditional,
    seconds=_seconds(moved.read_bytes + written.padded_bytes, spec),
    estimated_cycles=int(cycles[1]) if cycles else None,
  )


def _seconds(size: int, spec: chips.ChipSpec | None) -> float | None:
  if spec is None:
    return None
  return size / rates.copy_bytes_per_second(spec.name)
