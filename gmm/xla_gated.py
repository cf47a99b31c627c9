"""Two products in one, in plain XLA (see `config.Problem.pair`).

Sums are in float32 until the one rounding, as in the kernels. Gate and up are
there for a block of rows of a group at a time, never [m, 2n].
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gmm import activations, quantized, varying, xla_backend
from gmm.config import PACKED, Problem
from gmm.pair_operands import PairOperands


def run(
  problem: Problem,
  operands: PairOperands,
  activation: activations.Activation | None,
) -> Any:
  """Computes a problem with `pair`, which may be empty.

  Args:
    problem: what to compute.
    operands: arrays.
    activation: of "gated".

  Returns:
    [m, n] in `problem.out_dtype`; two of them in "split".
  """
  p, x = dataclasses.replace(problem, pair=None), operands

  def one(i: int, like: Problem, existing: Any = None) -> jax.Array:
    return xla_backend.gmm(
      x.lhs[min(i, len(x.lhs) - 1)],
      x.rhs[i],
      x.sizes,
      x.offset,
      rhs_scale=x.scale[i] if x.scale else None,
      rhs_bias=x.bias[i] if x.bias else None,
      existing_out=existing,
      problem=dataclasses.replace(like, has_existing=existing is not None),
    )

  if problem.pair == "split":
    return one(0, p), one(1, p)
  wide = dataclasses.replace(p, out_dtype=p.acc_dtype)
  if problem.pair == "sum":
    return one(1, wide, one(0, wide)).astype(p.out_dtype)
  return _gated(p, x, activation)


def _gated(
  problem: Problem, x: PairOperands, activation: activations.Activation
) -> jax.Array:
  """Gate, up and what is made of them, visit by visit as in `xla_backend`."""
  p, shape = problem, (problem.m, problem.n)
  out = jnp.zeros(shape, p.out_dtype)
  out = varying.vary_like(out, *x.flat())
  if 0 in (*shape, p.g):
    return out
  block = min(xla_backend.block_rows(p), max(xla_backend._MIN_BLOCK, p.m // 8))
  # Two panels of the weight are copied: what they may take is what the result
  # does. One weight is read in place.
  width = p.n
  if p.g > 1 or p.scale_block or p.packed_axis:
    item = max(p.rhs_dtype.itemsize, p.compute_dtype.itemsize)
    item = 8 if p.scale_block or p.packed_axis else item
    budget = p.m * p.n * p.out_dtype.itemsize // 2
    width = xla_backend._panel_width(p.n, budget, 2 * max(p.k, 1) * item)

  def panel(
    i: jax.Array, col: jax.Array, rows: jax.Array, out: jax.Array
  ) -> jax.Array:
    first, columns = xla_backend._window(col, col + width, width, p.n)
    halves = [_weight(p, x, (i, first + at, width)) for at in (0, p.n)]

    def visit(row: jax.Array, out: jax.Array) -> jax.Array:
      at, mask = xla_backend._window(row, rows[1], block, p.m)
      lhs = xla_backend._slice(x.lhs[0], (at, jnp.int32(0)), (block, p.k))
      gate, up = (
        xla_backend._dot(lhs, weight, xla_backend._gmm_dims(p), p) + bias
        for weight, bias in halves
      )
      value = activations.apply(activation, gate, up).astype(p.out_dtype)
      old = lax.dynamic_slice(out, (at, first), (block, width))
      mask = mask[:, None] & columns[None, :]
      value = jnp.where(mask, xla_backend._bits(value), old)
      return lax.dynamic_update_slice(out, value, (at, first))

    return xla_backend._for_blocks(rows, block, visit, out)

  out = xla_backend._for_panels(
    p, x.sizes, x.offset, width=width, body=panel, init=xla_backend._bits(out)
  )
  return xla_backend._values(out, p.out_dtype)


def _weight(
  problem: Problem, x: PairOperands, panel: tuple[jax.Array, jax.Array, int]
) -> tuple[jax.Array, jax.Array]:
  """A panel of a group's weight, with its scale, and of its bias.

  Args:
    problem: the product.
    x: its operands.
    panel: the group, the first of the 2n columns, and how many.
  """
  p, (i, first, width) = problem, panel
  height = p.k // PACKED if p.packed_axis else p.k
  start, size = (jnp.int32(0), first), (height, width)
  if p.transpose_rhs:
    start, size = start[::-1], size[::-1]
  weight = xla_backend._slice(x.rhs[0], (i, *start), (1, *size))[0]
  if p.packed_axis:
    weight = quantized.unpack(weight, int(p.transpose_rhs))
  if p.scale_block and p.k:
    scale = xla_backend._scale_of_panel(x.scale[0], panel, p)
    weight = weight.astype(jnp.float32) * scale
  bias = jnp.float32(0)
  if p.has_bias:
    bias = lax.dynamic_slice(x.bias[0], (i, first), (1, width))
    bias = bias.astype(jnp.float32)
  return weight, bias


def local_rows(
  problem: Problem, sizes: jax.Array, offset: jax.Array
) -> jax.Array:
  """Which rows belong to a local group: bool [m].

  Args:
    problem: the product.
    sizes: canonical group sizes, int32 [g_total].
    offset: canonical offset of the first local group, int32 [1].
  """
  ends = jnp.pad(jnp.minimum(jnp.cumsum(sizes), problem.m), (1, 0))
  first = ends[jnp.minimum(offset[0], problem.g_total)]
  last = ends[jnp.minimum(offset[0] + problem.g, problem.g_total)]
  rows = lax.iota(jnp.int32, problem.m)
  return (rows >= first) & (rows < last)
