"""Products over row blocks, for tests on several devices, and their oracle.

All numbers are small integers, so that every sum is exact in float32, whatever
its order: results equal the float64 oracle's. What must not be read is NaN.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmm import ops
from reference import oracle
from testing import compiling


def integers(seed: int, *shape: int) -> np.ndarray:
  """float32 integers from -2 to 2."""
  rng = np.random.default_rng(seed)
  return rng.integers(-2, 3, shape).astype(np.float32)


def poison_rows(x: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """NaN in rows of no group: x [blocks * m, ...], sizes [blocks, g]."""
  x = x.copy()
  for rows, own in zip(np.split(x, len(sizes)), sizes, strict=True):
    rows[own.sum() :] = np.nan
  return x


def poison_groups(x: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """NaN in what belongs to groups that have no rows: x [g, ...]."""
  x = x.copy()
  used = np.zeros(len(x), bool)
  used[: sizes.shape[1]] = sizes.sum(axis=0) > 0
  x[~used] = np.nan
  return x


def product(x: Any, weight: Any, sizes: np.ndarray) -> np.ndarray:
  """The oracle's gmm of each block of rows, with its own sizes."""
  return np.concatenate(
    [
      oracle.gmm(rows, weight, own)
      for rows, own in zip(np.split(x, len(sizes)), sizes, strict=True)
    ]
  )


def weight_product(x: Any, dout: Any, sizes: np.ndarray, g: int) -> np.ndarray:
  """The oracle's tgmm, summed over blocks of rows."""
  blocks = zip(
    np.split(x, len(sizes)), np.split(dout, len(sizes)), sizes, strict=True
  )
  return sum(oracle.tgmm(a, b, own, num_groups=g) for a, b, own in blocks)


def product_vjp(
  x: Any, weight: Any, sizes: np.ndarray, dout: Any
) -> tuple[np.ndarray, np.ndarray]:
  """Dx and dweight of `product`."""
  dx = product(dout, weight.swapaxes(1, 2), sizes)
  return dx, weight_product(x, dout, sizes, len(weight))


def reglu(gate: jax.Array, up: jax.Array) -> jax.Array:
  """An activation for gmm_gated that is exact in integers."""
  return jnp.where(gate > 0, gate, 0) * up


def reglu_vjp(
  gate_up: np.ndarray, dout: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The value of `reglu` on [m, 2n], and its pull back of dout [m, n]."""
  gate, up = np.split(gate_up, 2, axis=1)
  passed = np.where(gate > 0, gate, 0)
  grads = [np.where(gate > 0, dout * up, 0), dout * passed]
  return passed * up, np.concatenate(grads, axis=1)


def value_and_vjp(
  function: Callable[..., Any], args: Sequence[Any], cotangent: Any
) -> list[np.ndarray]:
  """The value, and the gradients of all arguments that are floats."""

  @functools.partial(jax.jit, compiler_options=compiling.fast_options())
  def run(floats, rest, cotangent):
    out, vjp = jax.vjp(lambda *floats: function(*floats, *rest), *floats)
    return out, *vjp(cotangent)

  floats = [x for x in args if x.dtype == jnp.float32]
  rest = [x for x in args if x.dtype != jnp.float32]
  return [np.asarray(x) for x in run(floats, rest, cotangent)]


def assert_equal(got: Sequence[Any], want: Sequence[Any]) -> None:
  """Compares arrays exactly, NaN and shapes included."""
  for i, (a, b) in enumerate(zip(got, want, strict=True)):
    np.testing.assert_array_equal(
      a.astype(np.float64), b, err_msg=f"result {i}", strict=True
    )


OPS = ("gmm", "gmm_nt", "gmm_gated", "split_gmm")


def apply(op: str, x: Any, weight: Any, sizes: Any, **options: Any) -> Any:
  """One of OPS: x [m, k] times a weight [g, k, n], n even, or [g, n, k]."""
  if op == "gmm_gated":
    return ops.gmm_gated(x, weight, sizes, activation=reglu, **options)
  if op == "split_gmm":
    halves = jnp.split(weight, 2, axis=2)
    return jnp.concatenate(ops.split_gmm(x, *halves, sizes, **options), axis=1)
  nt = op == "gmm_nt"
  return ops.gmm(x, weight, sizes, transpose_rhs=nt, **options)


def expected(
  op: str, x: Any, weight: Any, sizes: np.ndarray, *, dout: Any
) -> list[np.ndarray]:
  """The value of `apply` over blocks of rows, dx and dweight."""
  if op == "gmm_nt":
    weight = weight.swapaxes(1, 2)
  out = product(x, weight, sizes)
  if op == "gmm_gated":
    out, dout = reglu_vjp(out, dout)
  dx, dweight = product_vjp(x, weight, sizes, dout)
  if op == "gmm_nt":
    dweight = dweight.swapaxes(1, 2)
  return [out, dx, dweight]
