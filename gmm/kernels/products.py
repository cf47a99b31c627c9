"""Which MXU products cover the rows of a window: for gmm and tgmm alike.

A window's whole chunks come first: as many at a time as `Plan.run` says, then
one by one. What is left, if anything, is one product that ends the window. With
chunks of 256 rows, runs of 2 and 8-row blocks in gmm:

    rows 1032    |---- 512 ----|-256-|- 264 -|
    rows 1024    |---- 512 ----|---- 512 ----|
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from gmm.kernels.plan import Plan

# Rows of a product: where they start in the window, and how many they are.
Rows = tuple[Any, int]


def whole_chunks(plan: Plan, rows: jax.Array) -> jax.Array:
  """How many chunks of a window of gmm come before the product that ends it."""
  if not plan.whole:
    return np.int32(0)
  chunk = np.int32(plan.chunk)
  left = rows - plan.ends[-1]
  some = jnp.where(left > 0, lax.div(left + (chunk - 1), chunk), 0)
  # Nothing may be left, where one chunk more would not reach the end.
  return jnp.where(lax.rem(rows, chunk) == 0, lax.div(rows, chunk), some)


def each_whole(
  plan: Plan, chunks: jax.Array, fn: Callable[[Rows], None]
) -> None:
  """Calls fn for products that cover so many chunks."""
  done = np.int32(0)
  for rows in plan.whole:
    count = lax.div(chunks * plan.chunk, np.int32(rows))
    done = _repeat(plan, (done, count), rows, fn)
    chunks -= count * (rows // plan.chunk)


def _repeat(
  plan: Plan,
  turns: tuple[Any, jax.Array],
  rows: int,
  fn: Callable[[Rows], None],
) -> jax.Array:
  """Calls fn for products of `rows` rows; returns where they end."""
  start, count = turns

  @pl.loop(0, count)
  def _(i: jax.Array) -> None:
    fn((pl.multiple_of(start + i * rows, plan.block), rows))

  return start + count * rows


def end(
  plan: Plan, rows: jax.Array, chunks: jax.Array, fn: Callable[[Rows], None]
) -> None:
  """Calls fn for what a window has left after its whole chunks, if anything."""
  start = pl.multiple_of(chunks * plan.chunk, plan.block)
  left = rows - start
  # One branch for each: the scalar core passes the others by.
  call = functools.partial(fn, (start, plan.ends[-1]))
  for most in plan.ends[-2::-1]:
    shorter = functools.partial(fn, (start, most))
    call = functools.partial(lax.cond, left <= most, shorter, call)
  if plan.problem.kind == "tgmm" or not plan.whole:
    call()  # there is always something
  else:
    pl.when(left > 0)(call)
