"""What plans of two products hold, and which of them are wide."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from gmm import checks, gated_checks
from gmm.kernels import chip as chips
from gmm.kernels import pairs, tiling, vmem
from gmm.timing import steps

BF16 = jnp.bfloat16
V6E = chips.resolve("v6e")
M, G, K, N = 4096, 8, 512, 768


def spec(*shape):
  return jax.ShapeDtypeStruct(shape, BF16)


SIZES = jax.ShapeDtypeStruct((G,), jnp.int32)


def weight(n, transpose_rhs):
  return spec(G, n, K) if transpose_rhs else spec(G, K, n)


def problem(pair, n=N, transpose_rhs=False):
  lhs, options = spec(M, K), {"transpose_rhs": transpose_rhs}
  one = weight(n, transpose_rhs)
  if pair == "gated":
    both = weight(2 * n, transpose_rhs)
    return gated_checks.gated_problem(lhs, both, SIZES, **options)
  if pair == "split":
    return gated_checks.split_problem(lhs, (one, one), SIZES, **options)
  return gated_checks.sum_problem((lhs, lhs), (one, one), SIZES, **options)


def test_the_problem_of_a_gated_product():
  p = problem("gated", transpose_rhs=True)
  assert (p.pair, p.n, p.out_shape) == ("gated", N, (M, N))
  assert p.weight_shape == (G, 2 * N, K)


@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("n", [704, 768, 72, 96, 2880])
def test_wide_is_what_a_copy_cannot_cut(n, transpose_rhs):
  p = problem("gated", n, transpose_rhs)
  assert pairs.is_wide(p) == (n % (32 if transpose_rhs else 128) != 0)
  # Then all columns are one tile, whatever the caller's.
  plan = tiling.make_plan(p, V6E, (128, 128, 128))
  assert plan.n.count == (1 if pairs.is_wide(p) else -(-n // 128))
  assert not pairs.is_wide(problem("split", n, transpose_rhs))


@pytest.mark.parametrize("pair", ["gated", "split", "sum"])
def test_a_pair_takes_what_two_products_take(pair):
  tiles = (256, 256, 256)
  p = problem(pair)
  plan = tiling.make_plan(p, V6E, tiles)
  plan = dataclasses.replace(plan, rhs_buffers=2)
  one = dataclasses.replace(plan, problem=dataclasses.replace(p, pair=None))
  sides = pairs.sides(p)
  assert pairs.twin(one) is one
  more = vmem.needed(plan) - vmem.needed(one)
  buffers = (sides.lhs - 1) * 2 * plan.buffer_rows * 256 * 2
  buffers += 2 * 256 * 256 * 2  # a second tile of the weight, twice
  buffers += (sides.out - 1) * 2 * plan.buffer_rows * 256 * 2
  assert abs(more - buffers) <= 1 << 20  # what products keep, and zeros
  assert tiling.cost_seconds(plan) > tiling.cost_seconds(one)
  twin = pairs.twin(plan)
  cycles = steps.mxu_cycles(twin, 256, twin.tile_k)
  assert cycles == 2 * steps.mxu_cycles(one, 256, one.tile_k)


def test_a_wide_plan_has_an_accumulator_where_k_is_one_tile():
  p = problem("gated", 704)
  plan = tiling.make_plan(p, V6E, (256, 512, 704))
  assert plan.k.count == 1
  assert pairs.more_bytes(plan) == plan.buffer_rows * 1408 * 4
  tiled = tiling.make_plan(p, V6E, (256, 256, 704))
  assert pairs.more_bytes(tiled) == 0


@pytest.mark.parametrize("chip", chips.CHIPS)
@pytest.mark.parametrize("pair", ["gated", "split", "sum"])
@pytest.mark.parametrize("n", [704, 2880])
def test_something_fits_every_chip(n, pair, chip):
  plan = tiling.make_plan(problem(pair, n), chips.resolve(chip))
  assert vmem.needed(plan) <= plan.chip.vmem_budget


def test_checks_are_those_of_one_product():
  whole = gated_checks.whole_problem(spec(M, K), weight(2 * N, False), SIZES)
  plain = checks.gmm_problem(spec(M, K), weight(2 * N, False), SIZES)
  assert whole == plain
