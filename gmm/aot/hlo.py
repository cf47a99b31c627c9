"""Reads the text of scheduled HLO: what a compiled JAX program says it runs.

The text is what `compiled.as_text()` returns and what people save to a file.
XLA's own parser is no public API of jax, so the parts that matter here are
read by hand: modules, computations, instructions, shapes with their layouts,
and the tables that lead from an instruction to a source line. What an
instruction means is not known here.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping

import jax

from gmm.aot import shapes

# ---- what a module is made of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
  """One instruction of a computation.

  Attributes:
    name: without the percent sign.
    opcode: "copy", "fusion", "while", ...
    shape: of the result; a tuple of shapes if it is a tuple.
    operands: names of instructions of the same computation.
    literal: what stands in the parentheses: the value of a constant, the number
      of a parameter.
    attributes: the text between the operands and the metadata.
    notes: the text after that: metadata, frontend attributes, backend config.
  """

  name: str
  opcode: str
  shape: shapes.ShapeTree
  operands: tuple[str, ...]
  literal: str
  attributes: str
  notes: str

  @property
  def results(self) -> tuple[shapes.ShapeTree, ...]:
    """The results: one, or the elements of the tuple."""
    return self.shape if isinstance(self.shape, tuple) else (self.shape,)

  def attribute(self, name: str) -> str | None:
    """What `name=` says, without percent signs; lists lose their braces."""
    match = re.search(rf"\b{name}=(\{{[^}}]*\}}|[^,\s]+)", self.attributes)
    return match[1].strip("{}").replace("%", "") if match else None

  def numbers(self, name: str) -> tuple[int, ...]:
    """The integers of an attribute such as `dimensions={0,2,1}`."""
    return tuple(map(int, re.findall(r"-?\d+", self.attribute(name) or "")))

  @property
  def op_name(self) -> str | None:
    """The name that jax gave it: the path of transformations and names."""
    match = re.search(r'\bop_name="((?:[^"\\]|\\.)*)"', self.notes)
    return re.sub(r"\\(.)", r"\1", match[1]) if match else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
  """Instructions in the order in which they run; the names are the keys."""

  name: str
  instructions: Mapping[str, Instruction]
  root: Instruction

  @functools.cached_property
  def parameters(self) -> Mapping[int, Instruction]:
    """The parameters by number."""
    return {
      int(i.literal): i
      for i in self.instructions.values()
      if i.opcode == "parameter"
    }

  def operands(self, instruction: Instruction) -> tuple[Instruction, ...]:
    """The operands of one of its instructions."""
    return tuple(self.instructions[name] for name in instruction.operands)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
  """A scheduled HLO module; `tables` lead from stack frames to source lines."""

  name: str
  computations: Mapping[str, Computation]
  entry: Computation
  tables: Mapping[str, Mapping[int, str]]

  def source(self, instruction: Instruction) -> str | None:
    """Where the instruction comes from, "path/file.py:12", or None."""
    frame = _field("stack_frame_id", instruction.notes)
    if frame is None:
      match = re.search(r'\bsource_file="([^"]*)"', instruction.notes)
      line = _field("source_line", instruction.notes)
      return f"{match[1]}:{line or 0}" if match else None
    frames, places, files = (
      self.tables.get(name, {})
      for name in ("StackFrames", "FileLocations", "FileNames")
    )
    place = places.get(
      _field("file_location_id", frames.get(frame, "")) or 0, ""
    )
    file = files.get(_field("file_name_id", place) or 0)
    line = _field("line", place) or 0
    return "{}:{}".format(file.strip('"'), line) if file else None

  def computation(self, name: str) -> Computation:
    """The computation of that name; a ValueError where the text lacks it."""
    if name not in self.computations:
      raise ValueError(
        f"the HLO text of {self.name} calls {name!r} but does not hold it; is"
        " the text whole?"
      )
    return self.computations[name]


def _field(name: str, text: str) -> int | None:
  match = re.search(rf"\b{name}=(\d+)", text)
  return int(match[1]) if match else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntryLayout:
  """How a parameter of a program lies in memory.

  Attributes:
    name: what jax calls the argument, such as "params['w']"; else HLO's name.
    dtype: as HLO spells it.
    dims: the size of each dimension, on one device.
    minor_to_major: the dimensions' order in memory, the fastest first.
  """

  name: str
  dtype: str
  dims: tuple[int, ...]
  minor_to_major: tuple[int, ...]


def entry_layouts(
  program: jax.stages.Compiled | str,
) -> tuple[EntryLayout, ...]:
  """Tells which layout the compiler gave each parameter of a program.

  Args:
    program: a compiled JAX program, or its scheduled HLO text.

  Returns:
    The array parameters, in order; arguments that the program does not use are
    no longer among them.

  Raises:
    ValueError: text that is not scheduled HLO.
    TypeError: `program` is something else.
  """
  found = []
  for module in parse(program):
    for _, p in sorted(module.entry.parameters.items()):
      for shape in shapes.leaves(p.shape):
        found.append(
          EntryLayout(
            name=p.op_name or p.name,
            dtype=shape.dtype,
            dims=shape.dims,
            minor_to_major=shape.minor_to_major,
          )
        )
  return tuple(found)


# ---- from a program to modules


def parse(program: jax.stages.Compiled | str) -> tuple[Module, ...]:
  """Reads the scheduled HLO of a program.

  Args:
    program: a compiled JAX program, or its HLO text.

  Returns:
    Its modules; nearly always one.

  Raises:
    ValueError: text that is not scheduled HLO, or is not whole.
    TypeError: `program` is neither.
  """
  text = _text(program)
  starts = [m.start() for m in re.finditer(r"^HloModule\b", text, re.M)]
  ends = starts[1:] + [len(text)]
  return tuple(
    _module(text[start:end]) for start, end in zip(starts, ends, strict=True)
  )


def _text(program: jax.stages.Compiled | str) -> str:
  if isinstance(program, jax.stages.Compiled):
    text = program.as_text()
    if text is None:
      raise ValueError("`program` is compiled, but its backend gives no text")
  elif isinstance(program, str):
    text = program
  else:
    raise TypeError(
      f"`program` is a {type(program).__name__}; want a compiled program, as"
      " from jax.jit(f).lower(...).compile(), or its HLO text"
    )
  wanted = "want the scheduled HLO text that compiled.as_text() gives"
  if not text.strip():
    raise ValueError(f"`program` is empty; {wanted}")
  if re.search(r"^HloModule\b", text, re.M):
    return text
  if re.search(r"^\s*(module\b|func\.func\b|#loc)|\bstablehlo\.", text, re.M):
    raise ValueError(
      "`program` is MLIR text (StableHLO), from before the compiler adds"
      f" copies and layouts; {wanted}"
    )
  raise ValueError(
    f"`program` is not HLO text: it starts with {text.strip()[:40]!r}; {wanted}"
  )


_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_ROW = re.compile(r"(\d+) (.+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


def _module(text: str) -> Module:
  lines = text.splitlines()
  name = re.match(r"HloModule\s+([^,\s]*)", lines[0])
  name = name[1] if name else ""
  if not re.search(r"\bis_scheduled=true\b", lines[0]):
    raise ValueError(
      f"the HLO text of {name} is not scheduled: it is from before the"
      " compiler adds copies and layouts; want what"
      " jax.jit(f).lower(...).compile().as_text() gives"
    )
  computations: dict[str, Computation] = {}
  tables: dict[str, dict[int, str]] = {}
  entry = None
  position = 1
  while position < len(lines):
    line = lines[position]
    position += 1
    if line in _TABLES:
      position, tables[line] = _table(lines, position)
    elif match := _COMPUTATION.match(line):
      position, found = _computation(match[2], lines, position)
      computations[found.name] = found
      entry = found if match[1] else entry
  if entry is None:
    raise ValueError(f"the HLO text of {name} has no ENTRY computation")
  return Module(
    name=name, computations=computations, entry=entry, tables=tables
  )


def _table(lines: list[str], position: int) -> tuple[int, dict[int, str]]:
  rows = {}
  while position < len(lines) and (match := _ROW.match(lines[position])):
    rows[int(match[1])] = match[2]
    position += 1
  return position, rows


def _computation(
  name: str, lines: list[str], position: int
) -> tuple[int, Computation]:
  # A string among the attributes may hold newlines: lines that start no
  # instruction belong to the one before.
  texts: list[list[str]] = []
  while position < len(lines):
    line = lines[position]
    position += 1
    if line == "}" or line.startswith("}, "):
      break
    if _INSTRUCTION.match(line):
      texts.append([line])
    elif texts:
      texts[-1].append(line)
  else:
    raise ValueError(f"the HLO text ends within the computation {name}")
  if not texts:
    raise ValueError(f"the HLO text has no instruction in {name}")
  found, root = {}, None
  for parts in texts:
    is_root, instruction = _instruction("\n".join(parts))
    found[instruction.name] = instruction
    root = instruction if is_root or root is None else root
  for instruction in found.values():
    for operand in instruction.operands:
      if operand not in found:
        raise ValueError(
          f"the HLO text of {name} lacks {operand!r}, which"
          f" {instruction.name!r} reads"
        )
  return position, Computation(name=name, instructions=found, root=root)


_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_NOTES = re.compile(r", (?:metadata|frontend_attributes|backend_config)=")


def _instruction(text: str) -> tuple[bool, Instruction]:
  start = _INSTRUCTION.match(text)
  try:
    shape, end = shapes.parse(text, start.end())
    opcode = _OPCODE.match(text, end)
    if opcode is None:
      raise ValueError("no opcode")
    close = _closing(text, opcode.end() - 1)
  except ValueError as error:
    line = text.strip().splitlines()[0][:80]
    raise ValueError(f"no HLO instruction: {line!r}; {error}") from error
  inside = text[opcode.end() : close]
  rest = text[close + 1 :]
  notes = _NOTES.search(rest)
  cut = notes.start() if notes else len(rest)
  return bool(start[1]), Instruction(
    name=start[2],
    opcode=opcode[1],
    shape=shape,
    operands=_operands(opcode[1], inside),
    literal=inside,
    attributes=rest[:cut],
    notes=rest[cut:],
  )


def _operands(opcode: str, inside: str) -> tuple[str, ...]:
  if opcode in ("constant", "parameter", "iota"):
    return ()
  if "%" in inside:
    return tuple(re.findall(r"%([\w.\-]+)", inside))
  return tuple(re.findall(r"([\w.\-]+)\s*(?:,|$)", _without_comments(inside)))


def _without_comments(text: str) -> str:
  return re.sub(r"/\*.*?\*/", "", text)


def _closing(text: str, start: int) -> int:
  depth = 0
  for match in re.compile(r'[()]|"(?:[^"\\]|\\.)*"').finditer(text, start):
    depth += {"(": 1, ")": -1}.get(match[0], 0)
    if depth == 0:
      return match.start()
  raise ValueError("a parenthesis is not closed")
