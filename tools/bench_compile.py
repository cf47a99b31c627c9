"""Compiles, without a TPU, every program that the bench runs on one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmm import aot
from testing.workloads import Workload
from tools import bench_check, bench_inputs
from tools import bench_programs as programs
from tools import bench_shapes as shapes


def every_program(
  shape: shapes.Shape,
  levels: Sequence[str],
  target: programs.Target,
  peers: Sequence[str],
) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
  """Yields (name, function, specs) of all that runs on the chip for a shape."""
  for level in levels:
    specs = programs.specs(shape.workload, level, target.dtype)
    ours = programs.ours(level, target)
    yield f"{level} draw", bench_inputs.drawing(shape, level, target), (_SEED,)
    for program in ours:
      yield f"{level} {program.name}", program.fn, specs
    yield from _comparisons(shape, level, (ours[0].fn, specs))
  if "kernel" in levels:
    specs = programs.specs(shape.workload, "kernel", target.dtype)
    for peer in programs.peers("kernel", peers, target):
      fn = programs.as_if_attached(peer, target.chip)
      yield f"kernel {peer.name}", fn, specs


_SEED = jax.ShapeDtypeStruct((), jnp.int32)


def _comparisons(
  shape: shapes.Shape, level: str, program: tuple[Callable[..., Any], Any]
) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
  fn, specs = program
  results = jax.eval_shape(fn, *specs)
  names = ("lhs", "rhs", "dout") if level == "vjp" else ("dout", "rhs")
  arrays = dict(zip(names, specs, strict=False))
  groups = (
    jax.ShapeDtypeStruct((shape.workload.m,), jnp.int32),
    jax.ShapeDtypeStruct((shape.workload.g,), jnp.int32),
  )
  for name, result in bench_check.named_results(level, results).items():
    compare = functools.partial(
      bench_check.compared,
      name=name,
      dtype=np.dtype(result.dtype),
      on_tpu=True,
    )
    of = bench_check.comparison(name, arrays)
    yield f"{level} compare {name}", compare, ((result, result), of, groups)


def compile_all(
  wanted: Sequence[shapes.Shape],
  levels: Sequence[str],
  target: programs.Target,
  say: Callable[[str], None],
  *,
  peers: Sequence[str],
) -> list[str]:
  """Compiles for the target's chip; returns what was refused, a line each.

  What others wrote may be refused: that is said, and is no failure.

  Args:
    wanted: the shapes.
    levels: of the programs.
    target: what they are for.
    say: takes a line about each.
    peers: names of other programs.
  """
  failed = []
  for workload in dict.fromkeys(shape.workload for shape in wanted):
    shape = _of(wanted, workload)
    for name, fn, specs in every_program(shape, levels, target, peers):
      start = time.monotonic()
      what = f"{target.chip} {workload.name} {name}"
      try:
        compiled = aot.compile_for(fn, *specs, chip=target.chip)
      except Exception as error:  # peers raise what they like
        is_peer = name.split()[-1] in programs.PEERS
        if not is_peer and not isinstance(error, aot.CompileError):
          raise
        reason = " ".join(str(error).split())[:200]
        say(f"{what}: refused: {reason}")
        failed += [] if is_peer else [f"{what}: {reason}"]
        continue
      size = workload.g * workload.k * workload.n
      size *= np.dtype(jnp.dtype(target.dtype)).itemsize
      say(
        f"{what}: compiled in {time.monotonic() - start:.1f} s, "
        f"{_copied(compiled, size)}"
      )
  return failed


def _of(wanted: Sequence[shapes.Shape], workload: Workload) -> shapes.Shape:
  return next(shape for shape in wanted if shape.workload == workload)


def _copied(compiled: Any, size: int) -> str:
  """What a program copies in arrays of so many bytes or more."""
  try:
    copies = aot.weight_copies(compiled, min_bytes=size)
  except jax.errors.JaxRuntimeError:
    # TODO: drop, when jax 0.10 is no longer supported: it cannot read the HLO
    # that libtpu makes of some programs.
    return "whose HLO this jax cannot read"
  copied = sum(copy.bytes for copy in copies)
  return f"copies {copied} bytes in arrays no smaller than the weight"
