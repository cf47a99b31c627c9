"""The compile report: what the TPU compiler makes of grouped products.

    ./bazelw run //tools:aot_report -- --chip v6e --model gemma4-26b

Compiles each product for each chip on this machine, without a TPU, and writes a
table, report.json and report.html (one page, open it in any browser): the
roofline, where the time of each product would go, the copies of weights that
the explicit transpose costs, the rows that each tile visits, VMEM.

Nothing runs on a TPU: times are a model's (docs/model.md).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from gmm import aot
from gmm.kernels import chip as chips
from testing import peers, workloads
from testing.workloads import Workload
from tools import flags, published
from tools.report import collect, operand_flags, page, request, terminal

# What the training step whose copies are counted does not have.
_NOT_OF_A_STEP = (
  "rhs_dtype",
  "lhs_quantization",
  "lhs_scale",
  "dout_scale",
  "bias",
  "existing_out",
  "fused",
)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the tool; returns its exit status."""
  arguments = _parser().parse_args(argv)
  try:
    if arguments.published:
      return _published()
    return _report(arguments)
  except (ValueError, TypeError, OSError, ImportError, RuntimeError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
  parser = flags.Parser("aot_report", __doc__)
  add = parser.add_argument
  add("--chip", default="v6e", help=f"{', '.join(chips.CHIPS)}, or all")
  add(
    "--model",
    help=f"{', '.join(workloads.models())}; all; decode, all of few rows; or "
    "compared, those that other kernels' times are known of; default "
    "gemma4-26b",
  )
  flags.add_shape(parser)
  add("--mode", choices=request.MODES, nargs="+", default=None)
  operand_flags.add(parser)
  add("--group_sizes", metavar="FILE.npy", help="integers [g] of your own")
  add("--out", default="aot_report", help="folder for the JSON and the page")
  add("--no_copies", action="store_true", help="leave out the weights' copies")
  add(
    "--published",
    action="store_true",
    help="print the model beside published measurements, and nothing else",
  )
  return parser


def _published() -> int:
  fn, specs = aot.product("nt", **published.SHAPE, chip="tpu7x")
  _say("compiling our NT kernel for tpu7x ...")
  (schedule,) = aot.schedule(fn, *specs, chip="tpu7x")
  print(published.constants())
  print()
  print(published.table(schedule))
  return 0


def _report(arguments: argparse.Namespace) -> int:
  names = tuple(chips.CHIPS) if arguments.chip == "all" else (arguments.chip,)
  for name in names:
    chips.resolve(name)
  title, shapes = _shapes(arguments)
  operands = operand_flags.operands_of(arguments)
  modes = operand_flags.modes_of(arguments, operands)
  out = _writable(arguments.out)
  report = collect.header(title, names)
  requests = [
    request.Request(
      chip=name,
      workload=shape,
      mode=mode,
      group_sizes=_group_sizes(arguments, shape),
      **operands,
    )
    for name in names
    for shape in shapes
    for mode in modes
  ]
  report["products"] = _products(requests)
  refused = []
  of_a_step = not any(operands.get(name) for name in _NOT_OF_A_STEP)
  if of_a_step and not arguments.no_copies:
    try:
      report["copies"] = _copies(shapes[0], names[0], arguments.dtype)
    except aot.CompileError as error:
      _say(" refused")
      refused.append(f"copies of {shapes[0].name} on {names[0]}: {error}")
  (out / "report.json").write_text(json.dumps(report, indent=1))
  (out / "report.html").write_text(page.render(report), encoding="utf-8")
  print(terminal.text_table(report))
  _say(f"wrote {out / 'report.json'} and {out / 'report.html'}")
  refused += [
    f"{p['chip']} {p['workload']} {p['mode']}: {p['error']}"
    for p in report["products"]
    if p["error"]
  ]
  for line in refused:
    print(f"error: {line}", file=sys.stderr)
  return 1 if refused else 0


def _shapes(
  arguments: argparse.Namespace,
) -> tuple[str, tuple[Workload, ...]]:
  """The title and the shapes that the flags ask for."""
  own = flags.own_shape(arguments)
  if own is not None:
    return "own", (own,)
  model = arguments.model or "gemma4-26b"
  if model == "all":
    return "all", workloads.WORKLOADS
  if model == "decode":
    return model, workloads.decode()
  if model == "compared":
    known = peers.known()
    return model, tuple(w for w in workloads.WORKLOADS if w.name in known)
  return model, workloads.of_model(model)


def _group_sizes(arguments: argparse.Namespace, shape: Workload) -> Any:
  if arguments.group_sizes is None:
    return None
  path = flags.from_here(arguments.group_sizes)
  return collect.checked_group_sizes(str(path), shape.m, shape.g)


def _products(requests: Sequence[request.Request]) -> list[dict[str, Any]]:
  found = []
  with aot.scheduler() as compile_program:
    for i, request in enumerate(requests):
      what = f"{request.chip} {request.workload.name} {request.mode}"
      _say(f"[{i + 1}/{len(requests)}] compiling {what} ...", end="")
      start = time.monotonic()
      one = collect.product(request, compile_program)
      if not one["error"] and request.mode == requests[0].mode:
        one["visits"] = collect.visited_rows(request)
      outcome = "refused" if one["error"] else "done"
      _say(f" {outcome} in {time.monotonic() - start:.1f} s")
      found.append(one)
  return found


def _copies(shape: Workload, chip: str, dtype: str) -> dict[str, Any] | None:
  layers = workloads.LAYERS.get(shape.name.split("/")[0])
  _say(f"compiling a step of {shape.name} twice for its copies ...", end="")
  start = time.monotonic()
  found = collect.copies(shape, chip, layers, dtype)
  _say(f" done in {time.monotonic() - start:.1f} s")
  return found


def _writable(path: str) -> pathlib.Path:
  """Makes the folder, before minutes are spent on what goes there."""
  out = flags.from_here(path)
  try:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out):
      pass
  except OSError as error:
    raise OSError(
      f"`out` {str(out)!r} cannot be written to: {error.strerror}"
    ) from None
  return out


def _say(text: str, end: str = "\n") -> None:
  print(text, end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
  sys.exit(main())
