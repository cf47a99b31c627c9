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
import queue
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from gmm.aot import bundles, compiling, hlo
from gmm.aot.scheduling import Schedule, read

_KERNEL = re.compile(r"t?gmm_v2-")
_METADATA = re.compile(r"kernel_metadata=\{(.*?)\}", re.DOTALL)

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
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    schedules = _schedules(dump, text, chip)
  except tuple(ERRORS.values()) as error:
    return {"error": type(error).__name__, "message": str(error)}
  return {
    "schedules": [dataclasses.asdict(s) for s in schedules],
    "hlo": text,
    "temp_bytes": memory.temp_size_in_bytes,
    "code_bytes": memory.generated_code_size_in_bytes,
    "compile_seconds": took,
  }


def _schedules(dump: pathlib.Path, text: str, chip: str) -> list[Schedule]:
  """Reads every gmm kernel of a program, in the order of its HLO."""
  found = []
  for name, dumped, metadata in _kernels(text):
    final = _latest(dump, f"-{dumped}-*-final_bundles.txt")
    listing = _latest(dump, f"-{dumped}-*-post-delay-converter.txt")
    kernel = re.sub(r"\.\d+$", "", name)
    found.append(
      read(kernel, chip, (final.read_text(), listing.read_text()), metadata)
    )
  return found


def _kernels(text: str) -> Iterator[tuple[str, str, dict[str, str]]]:
  """Kernels in program order: names, names in the dump, and metadata."""
  for module in hlo.parse(text):
    fusions = {
      i.attribute("calls"): i.name
      for c in module.computations.values()
      for i in c.instructions.values()
      if i.opcode == "fusion"
    }
    for computation in module.computations.values():
      for i in computation.instructions.values():
        if i.opcode != "custom-call" or not _KERNEL.match(i.name):
          continue
        said = re.search(
          r"kernel_metadata=\{(.*?)\}", i.attributes + i.notes, re.DOTALL
        )
        pairs = re.findall(r'"([^"]+)":"([^"]*)"', said[1] if said else "")
        # A kernel that was fused is dumped under the fusion's name.
        yield i.name, fusions.get(computation.name, i.name), dict(pairs)


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
  folder = pathlib.Path(sys.argv[1])
  dump = folder / "dump"
  dump.mkdir(exist_ok=True)
  _empty(dump)
  # Whatever a library prints must not end up among the answers.
  answers = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)
  requests: queue.Queue[bytes] = queue.Queue()
  threading.Thread(target=_listen, args=(folder, requests), daemon=True).start()
  while True:
    request = json.loads(requests.get())
    try:
      with jax.enable_x64(request["x64"]):
        answer = _answer(request, dump)
    except BaseException:
      traceback.print_exc()
      sys.stderr.flush()
      os._exit(1)  # not past a thread that reads
    _empty(dump)
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _listen(folder: pathlib.Path, requests: queue.Queue[bytes]) -> None:
  """Passes requests on; where the other end is gone, cleans up and ends."""
  for line in sys.stdin.buffer:
    requests.put(line)
  shutil.rmtree(folder, ignore_errors=True)
  os._exit(0)


if __name__ == "__main__":
  main()
