"""The process that compiles with dumps: `python -m gmm.aot.worker FOLDER`.

It reads a request a line, and answers each with a line of JSON. `dumping.py`
is the other end of the pipe.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from gmm.aot import bundles, compiling
from gmm.aot.scheduling import Schedule, read

ERRORS = {
  error.__name__: error
  for error in (compiling.CompileError, bundles.FormatError)
}


def _answer(request: Mapping[str, Any], dump: pathlib.Path) -> dict[str, Any]:
  """Compiles one program; never raises what the other end has a name for."""
  exported = jax.export.deserialize(
    bytearray(base64.b64decode(request["program"]))
  )
  specs, named = jax.tree.unflatten(exported.in_tree, exported.in_avals)
  chip = request["chip"]
  start = time.monotonic()
  try:
    compiled = compiling.compile_for(
      exported.call, *specs, chip=chip, row_major=request["row_major"], **named
    )
    took = time.monotonic() - start
    hlo = compiled.as_text()
    memory = compiled.memory_analysis()
    schedules = _schedules(dump, hlo, chip)
  except tuple(ERRORS.values()) as error:
    return {"error": type(error).__name__, "message": str(error)}
  return {
    "schedules": [dataclasses.asdict(s) for s in schedules],
    "hlo": hlo,
    "temp_bytes": memory.temp_size_in_bytes,
    "code_bytes": memory.generated_code_size_in_bytes,
    "compile_seconds": took,
  }


def _schedules(dump: pathlib.Path, hlo: str, chip: str) -> list[Schedule]:
  """Reads every gmm kernel of a program, in the order of its HLO."""
  found = []
  for name, metadata in _kernels(hlo):
    final = _latest(dump, f"-{name}-*-final_bundles.txt")
    listing = _latest(dump, f"-{name}-*-post-delay-converter.txt")
    kernel = re.sub(r"\.\d+$", "", name)
    found.append(
      read(kernel, chip, (final.read_text(), listing.read_text()), metadata)
    )
  return found


def _kernels(hlo: str) -> Iterator[tuple[str, dict[str, str]]]:
  """Names and metadata of the gmm kernels' custom calls."""
  calls = re.finditer(
    r"%(t?gmm_v2-\S+) = [^\n]*? custom-call\([^\n]*tpu_custom_call"
    r"(?:.*?kernel_metadata=\{(.*?)\})?",
    hlo,
    re.DOTALL,
  )
  for call in calls:
    pairs = re.findall(r'"([^"]+)":"([^"]*)"', call[2] or "")
    yield call[1], dict(pairs)


def _latest(dump: pathlib.Path, pattern: str) -> pathlib.Path:
  files = [
    path
    for path in dump.glob("*" + pattern)
    if "schedule-analysis" not in path.name
  ]
  if not files:
    raise bundles.FormatError(
      f"the TPU compiler wrote no file *{pattern}: its dump has changed"
    )
  return max(files)


def _empty(folder: pathlib.Path) -> None:
  for path in folder.glob("*"):
    path.unlink()


def main() -> None:
  """Answers a request a line until there is no more."""
  dump = pathlib.Path(sys.argv[1]) / "dump"
  dump.mkdir(exist_ok=True)
  _empty(dump)
  # Whatever a library prints must not end up among the answers.
  answers = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)
  for line in sys.stdin.buffer:
    answer = _answer(json.loads(line), dump)
    _empty(dump)
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
  main()
