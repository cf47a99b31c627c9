"""Runs a mixture-of-experts block forward and backward, against the oracle.

    ./bazelw run //tools:demo
    ./bazelw run //tools:demo -- --model qwen3-30b-a3b --tokens 32

Every grouped product of the block is run by itself on each backend, then the
whole block with its gradients. Ends with PASS or FAIL, and exits accordingly.
Times are of this CPU: those of the interpreter say nothing about a TPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gmm import ops
from reference import gated, oracle
from reference.error_bound import error_bound
from testing import compiling
from testing.examples import moe
from tools import models, moe_block

DTYPES = ("float32", "bfloat16")
PATHS = {"in place": True, "explicit transpose": False}


class Row(NamedTuple):
  """One line of the table."""

  what: str
  backend: str
  path: str
  error: float
  milliseconds: float
  ok: bool


class Layer(NamedTuple):
  """One grouped product and the cotangent of its result."""

  name: str
  lhs: jax.Array
  rhs: jax.Array
  group_sizes: jax.Array
  dout: jax.Array


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the table; returns the exit status."""
  args = _arguments(argv)
  if not {"pallas", "auto"} & set(args.backends):
    # Nothing here is for an accelerator, so none is looked for.
    jax.config.update("jax_platforms", "cpu")
  try:
    model = models.scaled(
      args.model, scale=args.scale, experts=args.experts, top_k=args.top_k
    )
  except ValueError as error:
    print(f"demo: {error}", file=sys.stderr)
    return 2
  print(
    f"{args.model} / {args.scale}: hidden {model.hidden}, intermediate "
    f"{model.intermediate}, {model.experts} experts, top {model.top_k}; "
    f"{args.tokens} tokens, {args.tokens * model.top_k} rows, {args.dtype}\n"
  )
  print(
    f"{'product':<17}{'backend':<11}{'path':<20}"
    f"{'max relative error':<20}{'ms':<9}"
  )
  rows = []
  for row in _rows(args, model):
    rows.append(row)
    print(
      f"{row.what:<17}{row.backend:<11}{row.path:<20}{row.error:<20.1e}"
      f"{row.milliseconds:<9.1f}{'ok' if row.ok else 'WRONG'}",
      flush=True,
    )
  good = sum(row.ok for row in rows)
  print(f"\n{good} of {len(rows)} agree with the float64 oracle")
  print("PASS" if good == len(rows) else "FAIL")
  return 0 if good == len(rows) else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="demo", description=__doc__.splitlines()[0]
  )
  parser.add_argument(
    "--model", default="gemma4-26b-a4b", help=", ".join(models.MODELS)
  )
  parser.add_argument(
    "--scale", type=int, default=16, help="divides the model's sizes"
  )
  parser.add_argument("--tokens", type=_positive, default=48)
  parser.add_argument("--experts", type=int, help="instead of the model's")
  parser.add_argument("--top_k", type=int, help="instead of the model's")
  parser.add_argument("--dtype", choices=DTYPES, default="float32")
  parser.add_argument(
    "--backends",
    default="xla,interpret",
    type=_backends,
    help="of xla, interpret, pallas and auto, separated by commas",
  )
  parser.add_argument("--seed", type=int, default=0)
  return parser.parse_args(argv)


def _positive(text: str) -> int:
  if not text.isdigit() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
  return int(text)


def _backends(text: str) -> list[str]:
  known = ("xla", "interpret", "pallas", "auto")
  names = text.split(",")
  for name in names:
    if name not in known:
      raise argparse.ArgumentTypeError(
        f"{name!r} is no backend; want some of {', '.join(known)}"
      )
  return names


def _rows(args: argparse.Namespace, model: models.Model) -> Iterator[Row]:
  weights, target = _problem(args, model)
  experts = moe.route(weights.tokens, weights.router, model.top_k).experts
  rows = moe.by_expert(experts, model.experts)
  for layer in _layers(weights, rows, args.seed):
    for backend in args.backends:
      yield from _product_rows(layer, backend)
  want = moe_block.reference_gradients(
    weights, np.asarray(experts), np.asarray(target)
  )
  for backend in args.backends:
    for path, in_place in PATHS.items():
      config = ops.Config(
        backend=backend, use_gmm_v2_transposed_rhs_dlhs=in_place
      )
      yield from _block_rows(weights, rows, target, (config, path, want))


def _problem(
  args: argparse.Namespace, model: models.Model
) -> tuple[moe_block.Weights, jax.Array]:
  """Random weights at the usual scale, and a target."""
  dtype = jnp.dtype(args.dtype)
  keys = iter(jax.random.split(jax.random.key(args.seed), 5))

  def normal(shape: tuple[int, ...], fan_in: int) -> jax.Array:
    return jax.random.normal(next(keys), shape, jnp.float32) / fan_in**0.5

  t, h, f, e = args.tokens, model.hidden, model.intermediate, model.experts
  weights = moe_block.Weights(
    normal((t, h), 1).astype(dtype),
    normal((h, e), h),
    normal((e, h, 2 * f), h).astype(dtype),
    normal((e, f, h), f).astype(dtype),
  )
  return weights, normal((t, h), 1)


def _layers(w: moe_block.Weights, rows: moe.Rows, seed: int) -> Iterator[Layer]:
  lhs = w.tokens[rows.token]
  activation = gated.ACTIVATIONS[moe_block.ACTIVATION]
  for i, (name, rhs) in enumerate((("wi", w.wi), ("wo", w.wo))):
    key = jax.random.key(seed + 1 + i)
    shape = (lhs.shape[0], rhs.shape[2])
    dout = jax.random.normal(key, shape, jnp.float32).astype(rhs.dtype)
    yield Layer(name, lhs, rhs, rows.group_sizes, dout)
    # wo multiplies what wi gives, here in float64 and then rounded.
    inner = oracle.gmm(_wide(lhs), _wide(rhs), np.asarray(rows.group_sizes))
    gate_up = np.split(inner, 2, axis=1)
    lhs = jnp.asarray(activation.value(*gate_up), rhs.dtype)


def _product_rows(layer: Layer, backend: str) -> Iterator[Row]:
  """The three products of a layer, dlhs both ways."""
  lhs, rhs, dout = layer.lhs, layer.rhs, layer.dout
  sizes = np.asarray(layer.group_sizes)

  def of_oracle(x: Any, y: Any, z: Any) -> dict[str, np.ndarray]:
    grads = oracle.gmm_vjp(x, y, sizes, z)
    out = oracle.gmm(x, y, sizes)
    return {"forward": out, "dlhs": grads.dlhs, "drhs": grads.drhs}

  wide = [_wide(x) for x in (lhs, rhs, dout)]
  want = of_oracle(*wide)
  magnitude = of_oracle(*(np.abs(x) for x in wide))
  terms = {"forward": lhs.shape[1], "dlhs": dout.shape[1], "drhs": sizes.max()}

  def row(name: str, path: str, fn: Callable[..., jax.Array], *x: Any) -> Row:
    got, milliseconds = _timed(backend, fn, *x)
    bound = error_bound(
      want[name], magnitude[name], terms=terms[name], **_eps(rhs.dtype)
    )
    error = np.abs(_wide(got) - want[name])
    return Row(
      f"{layer.name} {name}",
      backend,
      path,
      _relative(error, want[name]),
      milliseconds,
      bool(np.all(error <= bound)),
    )

  config = ops.Config(backend=backend)
  at = {"group_sizes": layer.group_sizes, "config": config}

  def forward(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return ops.gmm(lhs, rhs, **at)

  def in_place(dout: jax.Array, rhs: jax.Array) -> jax.Array:
    return ops.gmm(dout, rhs, transpose_rhs=True, **at)

  def explicit(dout: jax.Array, rhs: jax.Array) -> jax.Array:
    return ops.gmm(dout, rhs.swapaxes(1, 2), **at)

  def drhs(lhs: jax.Array, dout: jax.Array) -> jax.Array:
    return ops.tgmm(lhs, dout, num_groups=rhs.shape[0], **at)

  yield row("forward", "in place", forward, lhs, rhs)
  yield row("dlhs", "in place", in_place, dout, rhs)
  yield row("dlhs", "explicit transpose", explicit, dout, rhs)
  yield row("drhs", "in place", drhs, lhs, dout)


def _block_rows(
  weights: moe_block.Weights,
  rows: moe.Rows,
  target: jax.Array,
  run: tuple[ops.Config, str, tuple[float, moe_block.Weights]],
) -> Iterator[Row]:
  """The block's loss and its gradients, on one backend."""
  config, path, (want_loss, want) = run
  top_k = rows.place.shape[1]

  def fn(w: moe_block.Weights) -> Any:
    return jax.value_and_grad(moe_block.loss)(w, target, top_k, config)

  (loss, grads), milliseconds = _timed(config.backend, fn, weights)
  # Errors pass through at most this many sums and roundings, one after another.
  w = weights
  sums = sum((*w.wi.shape[1:], *w.wo.shape[1:], *w.tokens.shape))
  sums += int(rows.group_sizes.max())
  allowed = sums * _eps(jnp.dtype(np.float32))["acc_eps"]
  if w.wi.dtype != np.float32:
    # Three results and their cotangents, gate and up again, what is made of
    # these, and the rows of a token that are added up: half an eps each.
    allowed += (9 + top_k) / 2 * float(jnp.finfo(w.wi.dtype).eps)
  pairs = {"loss": (loss, want_loss)}
  pairs |= {
    f"d{name}": (getattr(grads, name), getattr(want, name))
    for name in moe_block.Weights._fields
  }
  for name, (got, expected) in pairs.items():
    error = _relative(np.abs(_wide(got) - expected), expected)
    yield Row(
      f"block {name}",
      config.backend,
      path,
      error,
      milliseconds,
      error <= allowed,
    )


def _timed(
  backend: str, fn: Callable[..., Any], *args: Any
) -> tuple[Any, float]:
  """The result, and the milliseconds of a run, without compiling."""
  # Nobody waits for interpreted kernels to run fast.
  options = compiling.fast_options() if backend == "interpret" else {}
  run = jax.jit(fn, compiler_options=options).lower(*args).compile()
  start = time.perf_counter()
  result = jax.block_until_ready(run(*args))
  return result, 1e3 * (time.perf_counter() - start)


def _eps(dtype: np.dtype) -> dict[str, float]:
  f32, own = (float(jnp.finfo(d).eps) for d in (jnp.float32, dtype))
  rounding = {"acc_eps": f32, "out_eps": own if own > f32 else 0.0}
  # A TPU multiplies float32 as bfloat16 unless asked for more.
  if jax.default_backend() == "tpu" and own == f32:
    rounding["operand_eps"] = 2 * float(jnp.finfo(jnp.bfloat16).eps)
  return rounding


def _relative(error: np.ndarray, want: np.ndarray) -> float:
  largest = np.max(np.abs(want))
  return float(np.max(error) / largest) if largest > 0 else float(np.max(error))


def _wide(x: Any) -> np.ndarray:
  return np.asarray(x, np.float64)


if __name__ == "__main__":
  sys.exit(main())
