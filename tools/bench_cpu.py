"""Times the XLA backend beside lax.ragged_dot and one dense product, on a CPU.

The dense product has the same rows and the same flops as useful ones of the
grouped product. All three run in one process, turn by turn, so that a machine
which slows down slows all of them; the table shows medians and their ratios.

  ./bazelw run //tools:bench_cpu -- --m 1024 8192 --g 2 32 --k 512 --n 512
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gmm import ops

_CONFIG = ops.Config(backend="xla")
_COLUMNS = (
  "product",
  "m",
  "g",
  "k",
  "n",
  "dtype",
  "ours ms",
  "ragged ms",
  "dense ms",
  "ragged/ours",
  "ours/dense",
  "temp/result",
)


def main(argv: list[str] | None = None) -> None:
  """Prints one row for each product and size."""
  flags = _flags(argv)
  jax.config.update("jax_platforms", "cpu")  # looks for nothing else
  print(
    f"jax {jax.__version__} on {jax.default_backend()}, {flags.reps} turns; "
    f"{flags.pattern} groups"
  )
  print(_row(_COLUMNS), flush=True)
  for m in flags.m:
    for g in flags.g:
      for product in flags.product:
        _bench(product, m, g, flags)


def _flags(argv: list[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--m",
    type=int,
    nargs="+",
    default=[1024, 8192],
    help="rows (default: 1024 8192)",
  )
  parser.add_argument(
    "--g",
    type=int,
    nargs="+",
    default=[1, 2, 32, 128],
    help="groups (default: 1 2 32 128)",
  )
  parser.add_argument("--k", type=int, default=512, help="default: 512")
  parser.add_argument("--n", type=int, default=512, help="default: 512")
  parser.add_argument("--dtype", default="float32", help="default: float32")
  parser.add_argument(
    "--product",
    nargs="+",
    choices=list(_PRODUCTS),
    default=["fwd"],
    help="fwd, dlhs, drhs or all three in a step; ragged_dot "
    "is timed for fwd and step (default: fwd)",
  )
  parser.add_argument(
    "--pattern",
    choices=("ragged", "equal"),
    default="ragged",
    help="group sizes (default: ragged)",
  )
  parser.add_argument(
    "--reps",
    type=int,
    default=7,
    help="turns, of which the median counts (default: 7)",
  )
  parser.add_argument(
    "--no_ragged_dot",
    action="store_true",
    help="leave lax.ragged_dot out: it takes g times as long",
  )
  return parser.parse_args(argv)


# ---- products of (lhs, rhs, dout, sizes): ours, ragged_dot's, and dense ones


def _ours(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
  return ops.gmm(lhs, rhs, sizes, config=_CONFIG)


def _dense(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
  del sizes
  return lax.dot(lhs, rhs[0], preferred_element_type=jnp.float32).astype(
    lhs.dtype
  )


def _fwd(function: Callable[..., jax.Array]) -> Callable[..., Any]:
  return lambda lhs, rhs, dout, sizes: function(lhs, rhs, sizes)


def _vjp(
  function: Callable[..., jax.Array], which: slice
) -> Callable[..., Any]:
  def step(
    lhs: jax.Array, rhs: jax.Array, dout: jax.Array, sizes: jax.Array
  ) -> Any:
    out, vjp = jax.vjp(lambda x, y: function(x, y, sizes), lhs, rhs)
    return (out, *vjp(dout))[which]

  return step


def _one(index: int) -> slice:
  return slice(index, index + 1)


_PRODUCTS: dict[str, tuple[Callable[..., Any] | None, ...]] = {
  "fwd": (_fwd(_ours), _fwd(lax.ragged_dot), _fwd(_dense)),
  "dlhs": (_vjp(_ours, _one(1)), None, _vjp(_dense, _one(1))),
  "drhs": (_vjp(_ours, _one(2)), None, _vjp(_dense, _one(2))),
  "step": (
    _vjp(_ours, slice(3)),
    _vjp(lax.ragged_dot, slice(3)),
    _vjp(_dense, slice(3)),
  ),
}


# ---- measuring


def _operands(m: int, g: int, flags: argparse.Namespace) -> list[jax.Array]:
  rng = np.random.default_rng(0)
  shapes = (m, flags.k), (g, flags.k, flags.n), (m, flags.n)
  arrays = [
    jnp.asarray(rng.standard_normal(s, np.float32), flags.dtype) for s in shapes
  ]
  shares = np.full(g, 1 / g)
  if flags.pattern == "ragged":
    shares = rng.dirichlet(np.full(g, 2.0))
  sizes = rng.multinomial(m, shares)
  return [*arrays, jnp.asarray(sizes, jnp.int32)]


def _bench(product: str, m: int, g: int, flags: argparse.Namespace) -> None:
  functions = list(_PRODUCTS[product])
  if flags.no_ragged_dot:
    functions[1] = None
  operands = _operands(m, g, flags)
  compiled = [f and jax.jit(f).lower(*operands).compile() for f in functions]
  times: list[list[float]] = [[] for _ in compiled]
  for turn in range(flags.reps + 1):  # the first warms up
    for call, into in zip(compiled, times, strict=True):
      if call is None:
        continue
      start = time.perf_counter()
      jax.block_until_ready(call(*operands))
      if turn > 0:
        into.append(1e3 * (time.perf_counter() - start))
  ours, ragged, dense = (np.median(t) if t else np.nan for t in times)
  memory = compiled[0].memory_analysis()
  temp = memory.temp_size_in_bytes / memory.output_size_in_bytes
  print(
    _row(
      (
        product,
        m,
        g,
        flags.k,
        flags.n,
        flags.dtype,
        f"{ours:.1f}",
        f"{ragged:.1f}",
        f"{dense:.1f}",
        f"{ragged / ours:.2f}",
        f"{ours / dense:.2f}",
        f"{temp:.2f}",
      )
    ),
    flush=True,
  )


def _row(cells: tuple[Any, ...]) -> str:
  return "  ".join(
    f"{c!s:>{max(7, len(name))}}"
    for c, name in zip(cells, _COLUMNS, strict=True)
  )


if __name__ == "__main__":
  main()
