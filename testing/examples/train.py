"""Trains a small mixture-of-experts language model, and draws its loss.

    ./bazelw run //testing/examples:train
    ./bazelw run //testing/examples:train -- --steps 100 --out loss.svg

The text is made up (corpus.py). Prints the loss as it falls, writes its curve,
and ends with a few lines that the model writes.
"""

from __future__ import annotations

import argparse
import errno
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NoReturn

import jax

from gmm import ops
from testing.examples import corpus, loss_curve, training
from testing.examples.language_model import Shape

_BACKENDS = ("xla", "interpret", "pallas", "auto")
_CHARACTERS = 200


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the tool; returns its exit status."""
  arguments = _parser().parse_args(argv)
  if arguments.backend in ("xla", "interpret"):
    # Nothing here is for an accelerator, so none is looked for.
    jax.config.update("jax_platforms", "cpu")
  try:
    return _train(arguments)
  except (ValueError, TypeError, NotImplementedError, OSError) as error:
    print(f"train: {error}", file=sys.stderr)
    return 1


class _Parser(argparse.ArgumentParser):
  def error(self, message: str) -> NoReturn:
    """Says it in one line."""
    self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
  parser = _Parser(
    prog="train",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--steps", type=_number(1), default=400, help="of training (%(default)s)")
  add("--seed", type=_number(0), default=0, help="of all that is random")
  add("--batch", type=_number(1), default=16, help="texts a step (%(default)s)")
  add("--backend", choices=_BACKENDS, default="xla", help="of the products")
  add("--out", default="loss.svg", help="the curve's file (%(default)s)")
  return parser


def _number(least: int) -> type[int]:
  def number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
      raise argparse.ArgumentTypeError(
        f"{text!r} is no whole number from {least} on"
      )
    if int(text) >= 2**31:
      raise argparse.ArgumentTypeError(f"{text!r} is not below 2**31")
    return int(text)

  return number


def _train(arguments: argparse.Namespace) -> int:
  out = _writable(arguments.out)
  texts = training.Texts.make(arguments.seed)
  shape = Shape(
    vocabulary=len(texts.alphabet),
    config=ops.Config(backend=arguments.backend),
  )
  characters = texts.words(texts.train)
  levels = {
    "frequencies alone": corpus.unigram(characters),
    "chance": corpus.floor(),
  }
  print(
    f"{len(characters)} characters; {shape.blocks} blocks of {shape.experts} "
    f"experts, top {shape.top_k}; {arguments.steps} steps of "
    f"{arguments.batch * shape.length} characters, {arguments.backend} backend"
  )
  for name, level in levels.items():
    print(f"{name}: {level:.3f} nats a character")
  series = _run(arguments, texts, shape)
  title = f"Loss of a language model with experts, seed {arguments.seed}"
  out.write_text(loss_curve.render(series, levels, title), encoding="utf-8")
  print(f"wrote {out}")
  return 0


def _run(
  arguments: argparse.Namespace, texts: training.Texts, shape: Shape
) -> dict[str, list[tuple[int, float]]]:
  """Trains, prints and samples; returns the points of the curve."""
  evaluate = training.evaluator(texts, shape)
  trained, held_out = [], []
  every = max(arguments.steps // 10, 1)
  start = time.monotonic()
  print(f"{'step':>6}{'loss':>8}{'held out':>10}{'seconds':>9}", flush=True)
  for step in training.train(
    texts,
    shape,
    steps=arguments.steps,
    batch=arguments.batch,
    seed=arguments.seed,
  ):
    trained.append((step.number, step.loss))
    if step.number % every and 1 < step.number < arguments.steps:
      continue
    held_out.append((step.number, evaluate(step.parameters)))
    seconds = time.monotonic() - start
    print(
      f"{step.number:>6}{step.loss:>8.3f}{held_out[-1][1]:>10.3f}"
      f"{seconds:>9.1f}",
      flush=True,
    )
  print("\nit writes:\n")
  print(
    training.sample(step.parameters, texts, shape, characters=_CHARACTERS),
    flush=True,
  )
  return {"training": trained, "held out": held_out}


def _writable(path: str) -> pathlib.Path:
  """Where the curve goes, tried before minutes are spent on it."""
  # `bazel run` changes the folder.
  out = pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), path)
  try:
    if out.is_dir():
      raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with tempfile.TemporaryFile(dir=out.parent):
      pass
  except OSError as error:
    raise OSError(
      f"`out` {str(out)!r} cannot be written to: {error.strerror}"
    ) from None
  return out


if __name__ == "__main__":
  sys.exit(main())
