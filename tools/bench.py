"""Times the NT kernel against the explicit transpose, on one TPU.

    ./bazelw run //tools:bench -- --gate 1.0 --out run.json
    ./bazelw run //tools:bench -- --gate 1.0 --against run.json

Without a TPU, at toy size, with times that mean nothing, and compiling only:

    ./bazelw run //tools:bench -- --backend interpret
    ./bazelw run //tools:bench -- --compile_for v6e tpu7x

The gradient of the activations, dlhs = dout @ rhs^T, by the kernel that reads
the weight where it lies and by the forward kernel on a transposed copy of it:
the kernel alone, the kernel of a shard with a group_offset, and a whole step
through ops.gmm's VJP. First their results are compared with the float64 oracle
and with each other, then they are timed in turn on the same operands.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import jax

from gmm.kernels import chip as chips
from testing import chip_at_hand
from tools import (
  bench_clock,
  bench_compile,
  bench_estimate,
  bench_report,
  bench_run,
  flags,
)
from tools import bench_programs as programs
from tools import bench_shapes as shapes


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the tool; returns its exit status."""
  arguments = _parser().parse_args(argv)
  try:
    _check(arguments)
    if arguments.compile_for:
      return _compile(arguments)
    return _bench(arguments)
  except _FAULTS as error:
    said = " ".join(str(error).split()) or type(error).__name__
    if "KeyboardInterrupt" in said:  # from within an interpreted kernel
      return _interrupted()
    print(f"error: {said}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    return _interrupted()


def _interrupted() -> int:
  print("error: interrupted", file=sys.stderr)
  return 130  # as shells have it


# What flags, files, the machine and the chip may be at fault for.
_FAULTS = (
  ValueError,
  TypeError,
  OSError,
  ImportError,
  RuntimeError,
  MemoryError,
  OverflowError,
)


def _parser() -> argparse.ArgumentParser:
  parser = flags.Parser("bench", __doc__)
  add = parser.add_argument
  add("--model", help="of testing/workloads.py, or all; default gemma4-26b")
  flags.add_shape(parser)
  add(
    "--group_sizes",
    nargs="+",
    default=[shapes.DEFAULT_SIZES],
    help="equal, mean+-1, skew, zipf, or a file.npy of integers [g]",
  )
  add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
  add("--level", choices=shapes.LEVELS, nargs="+", default=shapes.LEVELS)
  add(
    "--peers",
    nargs="*",
    choices=programs.PEERS,
    help="default: those that can be imported; none after a bare --peers",
  )
  add(
    "--backend",
    choices=("pallas", "interpret"),
    default="pallas",
    help="interpret runs anywhere, at toy size; its times mean nothing",
  )
  add("--chip", help=f"of interpreted kernels; default {chips.DEFAULT}")
  add("--expect_chip", help="fail where another one is attached")
  for name, count, what in (
    ("turns", 20, "of which the median counts"),
    ("calls", 4, "in a turn of the wall clock"),
    ("sets", 2, "of operands, by turns"),
  ):
    add(f"--{name}", type=flags.positive, default=count, help=what)
  add("--clock", choices=bench_clock.CLOCKS, default="auto")
  add("--estimate", choices=bench_estimate.SOURCES, default="auto")
  add(
    "--gate",
    type=float,
    help="fail where the explicit transpose takes less than this times NT",
  )
  add("--out", metavar="RUN.json", help="where to store the run")
  add("--against", metavar="RUN.json", help="a stored run to compare with")
  add(
    "--compile_for",
    nargs="+",
    metavar="CHIP",
    help="compile every program for these chips, and run nothing",
  )
  return parser


def _check(arguments: argparse.Namespace) -> None:
  """Raises ValueError for a gate that is none, and flags that nobody reads."""
  gate = arguments.gate
  if gate is not None and not 0 < gate < math.inf:
    raise ValueError(f"`gate` is {gate}; want a number above 0, such as 1.0")
  for name in ("model", "chip", "expect_chip", "out", "against"):
    # Of a variable that is not set, say: it must not pass for no flag.
    if getattr(arguments, name) == "":
      raise ValueError(f"`{name}` is empty; give it a value, or drop it")
  if arguments.compile_for:
    where, unread = "--compile_for", ["gate", "out", "against"]
    unread += ["chip", "expect_chip"]
  elif arguments.backend == "interpret":
    where, unread = "--backend interpret", ["expect_chip"]
  else:
    where, unread = "--backend pallas", ["chip"]
  for name in unread:
    if getattr(arguments, name) is not None:
      raise ValueError(f"`{name}` means nothing with {where}; drop it")


def _shapes(arguments: argparse.Namespace) -> tuple[shapes.Shape, ...]:
  return shapes.chosen(
    model=arguments.model,
    own=flags.own_shape(arguments),
    patterns=tuple(dict.fromkeys(arguments.group_sizes)),
    toy=arguments.backend == "interpret",
  )


def _compile(arguments: argparse.Namespace) -> int:
  wanted = _shapes(arguments)
  names = [chips.resolve(name).name for name in arguments.compile_for]
  failed = []
  jax.config.update("jax_platforms", "cpu")  # looks for nothing else
  for name in dict.fromkeys(names):
    target = programs.Target(backend="pallas", chip=name, dtype=arguments.dtype)
    failed += bench_compile.compile_all(
      wanted, _levels(arguments), target, _say, peers=_peers(arguments)
    )
  for line in failed:
    print(f"error: {line}", file=sys.stderr)
  return 1 if failed else 0


def _levels(arguments: argparse.Namespace) -> tuple[str, ...]:
  return tuple(dict.fromkeys(arguments.level))


def _peers(arguments: argparse.Namespace) -> tuple[str, ...]:
  if arguments.peers is None:
    return programs.importable_peers()
  return tuple(dict.fromkeys(arguments.peers))


def _bench(arguments: argparse.Namespace) -> int:
  wanted = _shapes(arguments)
  shapes.check_rows(wanted, _levels(arguments))
  stored = None
  if arguments.against:
    stored = bench_report.load(arguments.against)
  target, device = _target(arguments)
  header = _header(arguments, target, device)
  if stored is not None:
    bench_report.check_comparable(
      stored,
      header,
      [(shape.key, level) for shape in wanted for level in _levels(arguments)],
    )
  if arguments.out:  # before minutes are spent on what goes there
    bench_report.check_writable(arguments.out)
  print(f"{header['device']}, jax {header['jax']}, {arguments.dtype}")
  if target.interpret:
    print(f"NOTE: {bench_report.MEANINGLESS}")
  rows = []
  with bench_estimate.estimator(arguments.estimate, target, _say) as estimator:
    runner = bench_run.Runner(
      target=target,
      device=device,
      method=bench_clock.Method(
        clock=arguments.clock, turns=arguments.turns, calls=arguments.calls
      ),
      sets=arguments.sets,
      peers=_peers(arguments),
      estimator=estimator,
      say=_say,
    )
    for i, shape in enumerate(wanted):
      print(f"\n[{i + 1}/{len(wanted)}] {shape.key}", flush=True)
      print(bench_report.heading())
      for level in _levels(arguments):
        for row in runner.rows(shape, level):
          rows.append(row)
          print(bench_report.line(row), flush=True)
      if arguments.out:  # what there is, if the rest fails
        bench_report.write(arguments.out, {**header, "rows": rows})
  return _conclude(arguments, {**header, "rows": rows}, stored)


def _target(
  arguments: argparse.Namespace,
) -> tuple[programs.Target, jax.Device]:
  if arguments.backend == "interpret":
    jax.config.update("jax_platforms", "cpu")
    name = chips.resolve(arguments.chip or chips.DEFAULT).name
  else:
    try:
      name = chip_at_hand.find(arguments.expect_chip)
    except chip_at_hand.NoTpuError as error:
      raise ValueError(
        f"{error}; `--backend interpret` runs the same program here at toy "
        "size, with times that mean nothing"
      ) from None
  target = programs.Target(
    backend=arguments.backend, chip=name, dtype=arguments.dtype
  )
  return target, jax.devices()[0]


def _header(
  arguments: argparse.Namespace, target: programs.Target, device: jax.Device
) -> dict[str, Any]:
  return {
    "version": bench_report.VERSION,
    "chip": target.chip,
    "backend": target.backend,
    "device": device.device_kind,
    "times": bench_report.MEANINGLESS if target.interpret else "of the device",
    "jax": jax.__version__,
    "dtype": arguments.dtype,
    "turns": arguments.turns,
  }


def _conclude(
  arguments: argparse.Namespace, run: dict[str, Any], stored: Any
) -> int:
  rows = run["rows"]
  counts = run["backend"] != "interpret"
  print()
  for (shape, level), speedup in bench_report.speedups(rows).items():
    print(f"transpose / nt {speedup:8.3f}  {shape} {level}")
  if stored is not None:
    print()
    for line in bench_report.comparison(rows, stored):
      print(line)
  if arguments.out:
    print(f"\nwrote {bench_report.write(arguments.out, run)}")
  failed = bench_report.failures(rows, arguments.gate, times_count=counts)
  for line in failed:
    print(f"FAIL: {line}")
  if not counts:
    print(f"NOTE: {bench_report.MEANINGLESS}; only the results were judged")
  print("FAIL" if failed else "PASS")
  return 1 if failed else 0


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
  # A second libtpu compiles beside the one that holds the chip.
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  with contextlib.suppress(BrokenPipeError):
    sys.exit(main())
