"""One shape and level of the bench: compile, compare, time, put into rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from tools import bench_check, bench_clock, bench_inputs
from tools import bench_estimate as estimates
from tools import bench_programs as programs
from tools import bench_shapes as shapes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runner:
  """Runs all programs of a shape and level.

  Attributes:
    target: what programs are made for.
    device: what they run on.
    method: how they are timed.
    sets: how many sets of operands take turns.
    peers: names of other programs to run beside ours.
    estimator: what the model says of them.
    say: takes lines of progress.
  """

  target: programs.Target
  device: jax.Device
  method: bench_clock.Method
  sets: int
  peers: tuple[str, ...]
  estimator: estimates.Estimator
  say: Callable[[str], None]
  _compiled: dict[Any, Any] = dataclasses.field(default_factory=dict)

  def rows(self, shape: shapes.Shape, level: str) -> Iterator[dict[str, Any]]:
    """Yields a row for each program, ours first."""
    found = [*programs.ours(level, self.target)]
    found += programs.peers(level, self.peers, self.target)
    refused: dict[str, str] = {}
    ready = self._compile(found, (shape, level), refused)
    self.say(f"{level}: drawing {self.sets} sets of operands")
    sets = bench_inputs.draw_sets(
      shape, level, self.target, count=self.sets, device=self.device
    )
    checks = self._checks((shape, level), sets[0], ready, refused)
    ready = [one for one in ready if one.name not in refused]
    self.say(f"{level}: timing {', '.join(one.name for one in ready)}")
    times, reason = {}, None
    if ready:
      times, reason = bench_clock.times(ready, sets, self.method)
    if reason is not None:
      self.say(f"{level}: wall clock: {reason}")
    for program in found:
      name = program.name
      yield {
        "shape": shape.key,
        "level": level,
        "program": name,
        "refused": refused.get(name),
        **self._numbers((shape, level, name), times.get(name)),
        **_judged(checks.get(name, [])),
      }

  def _compile(
    self,
    found: list[programs.Program],
    where: tuple[shapes.Shape, str],
    refused: dict[str, str],
  ) -> list[bench_clock.Contestant]:
    shape, level = where
    specs = programs.specs(shape.workload, level, self.target.dtype)
    ready = []
    for program in found:
      key = (shape.workload, level, program.name)
      try:
        if key not in self._compiled:
          self.say(f"{level}: compiling {program.name}")
          self._compiled[key] = programs.compile_on(
            program.fn,
            specs,
            self.device,
            interpret=self.target.interpret,
          )
      except Exception as error:  # peers raise what they like
        refused[program.name] = _reason(error)
        continue
      ready.append(
        bench_clock.Contestant(
          name=program.name, module=program.module, run=self._compiled[key]
        )
      )
    return ready

  def _checks(
    self,
    where: tuple[shapes.Shape, str],
    operands: tuple[Any, ...],
    ready: list[bench_clock.Contestant],
    refused: dict[str, str],
  ) -> dict[str, list[bench_check.Check]]:
    """Runs each once and compares; refuses what does not run."""
    shape, level = where
    kept, checks = {}, {}
    for one in ready:
      self.say(f"{level}: checking {one.name}")
      try:
        results = jax.block_until_ready(one.run(*operands))
      except Exception as error:  # out of memory, for one
        refused[one.name] = _reason(error)
        continue
      named = bench_check.named_results(level, results)
      shares = bench_check.with_oracle(shape, level, operands, named)
      checks[one.name] = _made(one.name, "oracle", shares)
      if one.name in (programs.OURS, programs.EXPLICIT):
        kept[one.name] = named
    if len(kept) == 2:
      pair = kept[programs.OURS], kept[programs.EXPLICIT]
      shares = bench_check.each_other(shape, level, operands, pair)
      checks[programs.OURS] += _made(programs.OURS, programs.EXPLICIT, shares)
    return checks

  def _numbers(
    self,
    where: tuple[shapes.Shape, str, str],
    timing: bench_clock.Timing | None,
  ) -> dict[str, Any]:
    names = (
      "clock",
      "seconds",
      "spread",
      "turns",
      "kernel_seconds",
      "tflops",
      "flops_share",
      "gbps",
      "bytes_share",
      "model_seconds",
      "model_from_schedule",
      "over_model",
    )
    if timing is None:
      return dict.fromkeys(names)
    estimate = self.estimator.of(*where)
    seconds = timing.median
    flops, moved = estimate.flops / seconds, estimate.bytes / seconds
    model = estimate.seconds
    kernel = sorted(timing.kernel_seconds)
    values = (
      timing.clock,
      seconds,
      timing.spread,
      len(timing.seconds),
      kernel[len(kernel) // 2] if kernel else None,
      flops * 1e-12,
      flops / estimate.peak_flops,
      moved * 1e-9,
      moved / estimate.peak_bytes,
      model,
      estimate.from_schedule,
      None if model is None else seconds / model,
    )
    return dict(zip(names, values, strict=True))


def _made(
  name: str, against: str, shares: dict[str, float]
) -> list[bench_check.Check]:
  return [
    bench_check.Check(what=f"{result} of {name}", against=against, share=share)
    for result, share in shares.items()
  ]


def _judged(checks: list[bench_check.Check]) -> dict[str, Any]:
  return {
    "error_share": max((check.share for check in checks), default=None),
    "right": all(check.ok for check in checks),
    "checks": [str(check) for check in checks],
  }


def _reason(error: Exception) -> str:
  text = " ".join(str(error).split()) or type(error).__name__
  return f"refused: {text[:160]}"
