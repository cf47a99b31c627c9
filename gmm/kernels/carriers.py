"""Weights of eight int4 in each int32, along either of a tile's axes.

A register's int32 words become int4 by a change of type alone where the eight
lie along sublanes: [k / 8, n] is [k, n]. Where they lie along lanes, as in a
weight [g, n, k / 8], the tile of words is transposed first, once for each
weight that arrives. That is an eighth of what there would be to transpose of
int4, and the product takes the tile the other way round: NT as NN, NN as NT.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.config import PACKED, Problem
from gmm.kernels import grid, scales
from gmm.kernels.grid import LANES, Axis
from gmm.kernels.plan import Plan


def unit(problem: Problem, axis: str) -> int:
  """What tiles of axis "k" or "n" are multiples of, scales included."""
  size = scales.unit(problem, axis)
  if problem.packs_lanes and problem.packed_axis == axis:
    size = math.lcm(size, PACKED * LANES)
  return size


def axes(plan: Plan) -> tuple[Axis, Axis]:
  """The axes k and n as the weight lies: in words where it is packed."""

  def of(name: str, axis: Axis) -> Axis:
    if plan.problem.packed_axis != name:
      return axis
    return Axis(axis.size // PACKED, axis.tile // PACKED)

  return of("k", plan.k), of("n", plan.n)


def tile_shape(plan: Plan) -> tuple[int, int]:
  """A tile of the weight, as it lies."""
  k, n = (axis.tile for axis in axes(plan))
  return (n, k) if plan.problem.transpose_rhs else (k, n)


def turned(plan: Plan) -> Any:
  """Scratch for the transposed words of one tile, or None."""
  if not plan.problem.packs_lanes:
    return None
  return pltpu.VMEM(tile_shape(plan)[::-1], jnp.int32)


def words(plan: Plan, buf: Any, slot: Any) -> Any:
  """The ref of a weight tile's words, packed along sublanes."""
  return buf.turned if plan.problem.packs_lanes else buf.rhs.at[slot]


def turn(plan: Plan, buf: Any, slot: Any) -> None:
  """Makes `words` of a tile that has arrived."""
  if plan.problem.packs_lanes:
    buf.turned[...] = buf.rhs[slot].T


def values(plan: Plan, ref: Any, at: tuple[pl.Slice, pl.Slice]) -> jax.Array:
  """Some of k and some of n, as int4 [k, n], or [n, k] if packed along n."""
  k, n = at
  major, minor = (k, n) if plan.problem.packed_axis == "k" else (n, k)
  start = grid.divided(major.start, PACKED)
  if not isinstance(start, int):  # whole registers of lanes, of words now
    start = pl.multiple_of(start, LANES // PACKED)
  rows = pl.ds(start, major.size // PACKED)
  return pltpu.bitcast(ref[rows, minor], jnp.int4)
