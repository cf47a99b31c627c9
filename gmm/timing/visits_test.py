"""Visits on the host are those of the kernel's scalar code."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.aot.model import plan_for
from gmm.kernels import grid
from gmm.timing import visits

M, G, G_TOTAL = 400, 4, 7
MOST = 64


def _plan(mode, tile_m=64, m=M, name="v6e"):
  tiling = (tile_m, 128, 128)
  return plan_for(mode, m=m, g=G, k=128, n=128, chip=name, tiling=tiling)


def _record(rows, sizes, offset, out, count, *table):
  table = grid.GroupTable(*table)
  totals = rows.fill_group_table(sizes, offset, table)
  count[0] = totals.visits

  def step(i, visit):
    window = rows.window_of(visit)
    values = (visit.id, window.start, window.rows, window.lo, window.hi)
    last = rows.is_last_tile(visit).astype(jnp.int32)
    for j, value in enumerate((*values, last)):
      out[i, j] = value
    return rows.advance(table, totals.groups, 1, visit)

  @pl.when(totals.visits > 0)
  def _():
    first = rows.first_visit(table, jnp.int32(0))
    jax.lax.fori_loop(0, totals.visits, step, first)


@functools.cache
def _program(plan):
  rows = dataclasses.replace(grid.RowGrid.of(plan), g_total=G_TOTAL)
  smem = pl.BlockSpec(memory_space=pltpu.SMEM)
  return jax.jit(
    pl.pallas_call(
      functools.partial(_record, rows),
      grid_spec=pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(),
        in_specs=[],
        out_specs=[smem, smem],
        scratch_shapes=list(grid.GroupTable.scratch(G)),
      ),
      out_shape=[
        jax.ShapeDtypeStruct((MOST, 6), jnp.int32),
        jax.ShapeDtypeStruct((1,), jnp.int32),
      ],
      interpret=pltpu.InterpretParams(),
    )
  )


@pytest.mark.parametrize("tile_m", [16, 64, 320])
def test_the_same_as_the_kernels(tile_m):
  plan = _plan("nn", tile_m=tile_m)
  program = _program(plan)
  random = np.random.default_rng(1)
  for trial in range(24):
    sizes = random.integers(0, (40, 150, 500)[trial % 3], G_TOTAL)
    sizes *= random.integers(0, 2, G_TOTAL) | (trial % 2)
    sizes = np.minimum(sizes, M)
    offset = int(random.integers(0, G_TOTAL + 1))
    out, count = program(
      jnp.array(sizes, jnp.int32), jnp.array([offset], jnp.int32)
    )
    want = np.asarray(out)[: int(count[0])]
    got = visits.visits(plan, sizes, offset)
    assert got.count == len(want)
    fields = (got.group, got.start, got.rows, got.lo, got.hi, got.is_last)
    np.testing.assert_array_equal(np.stack(fields, 1), want)
    covered = np.minimum(np.cumsum(sizes), M)
    first, end = np.concatenate([[0], covered])[[offset, min(offset + G, 7)]]
    assert got.own_rows.sum() == end - first


def test_rows_that_run():
  # A block is 16 rows, a chunk 64; a window is up to 80 rows, as is the last
  # chunk of gmm; before the last one it is a chunk.
  sizes = np.array([64, 5, 150, 80])
  gmm = visits.visits(_plan("nn"), sizes)
  assert gmm.group.tolist() == [0, 1, 2, 2, 2, 3, 3]
  assert gmm.start.tolist() == [0, 64, 64, 128, 192, 208, 272]
  assert gmm.rows.tolist() == [64, 16, 64, 64, 32, 64, 32]
  assert gmm.own_rows.tolist() == [64, 5, 59, 64, 27, 53, 27]
  assert gmm.is_last.tolist() == [True, True, False, False, True, False, True]
  assert gmm.rows_run.tolist() == [80] * 7
  tgmm = visits.visits(_plan("tn"), sizes)
  assert tgmm.rows_run.tolist() == [64] * 7
  assert np.all(tgmm.rows_run >= tgmm.rows)


def test_products_of_a_large_window():
  # Windows of 512 + 16 rows: a group that starts within a block fits one.
  plan = _plan("nn", tile_m=512, m=2048)
  assert plan.products == (512, 256, 144, 272)
  sizes = np.array([8, 512, 256, 1024])
  got = visits.visits(plan, sizes)
  assert got.rows.tolist() == [16, 528, 272, 512, 528]
  assert got.products.tolist() == [
    [0, 0, 1, 0],
    [0, 1, 0, 1],
    [0, 0, 0, 1],
    [1, 0, 0, 0],  # whole, so no block more
    [0, 1, 0, 1],
  ]
  assert got.rows_run.tolist() == [144, 528, 272, 512, 528]
  # NT has no product of fewer rows than the MXU's.
  got = visits.visits(_plan("nt", tile_m=512, m=2048), sizes)
  assert got.rows_run.tolist() == [272, 528, 272, 512, 528]
  # Where the bundles are fewer than the MXU's cycles, finer ends pay.
  plan = _plan("nn", tile_m=512, m=2048, name="tpu7x")
  assert plan.products == (256, 80, 144, 208, 272)
  got = visits.visits(plan, np.array([80, 400, 200]))
  assert got.products.tolist() == [
    [0, 1, 0, 0, 0],
    [1, 0, 1, 0, 0],
    [0, 0, 0, 1, 0],
  ]


def test_products_of_tgmm_end_a_group():
  plan = dataclasses.replace(_plan("tn", tile_m=512, m=2048), run=2)
  assert plan.products == (512, 256, 512)
  got = visits.visits(plan, np.array([300, 1300]))
  assert got.rows.tolist() == [304, 512, 512, 288]
  assert got.products.tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 0, 1]]


def test_a_group_of_one_chunk_is_alone():
  plan = _plan("tn", tile_m=512, m=2048, name="tpu7x")
  plan = dataclasses.replace(plan, run=1, parts=1)
  assert plan.products == (256, 256, 256)
  got = visits.visits(plan, np.array([256, 300, 1, 700]))
  assert got.products.tolist() == [
    [0, 1, 0],
    [1, 0, 1],
    [0, 1, 0],
    [2, 0, 0],
    [0, 0, 1],  # of a group of two windows
  ]


@pytest.mark.parametrize(
  ("sizes", "offset", "groups"),
  [
    ([-5, 10, 0, 3], 0, [1, 3]),
    ([300, 300, 300, 1], 0, [0] * 5 + [1] * 2),
    ([10] * 4, -1, []),
    ([10] * 4, 4, []),
    ([10] * 4, 3, [0]),
    ([0] * 4, 0, []),
  ],
)
def test_sizes_and_offsets_that_misbehave(sizes, offset, groups):
  got = visits.visits(_plan("nn"), np.array(sizes), offset)
  assert got.group.tolist() == groups
  assert got.count == 0 or got.hi.max() <= M


@pytest.mark.parametrize("name", visits.PATTERNS)
@pytest.mark.parametrize(("m", "g"), [(1000, 7), (3, 8), (0, 2), (4096, 16)])
def test_patterns_add_up(name, m, g):
  sizes = visits.size_patterns(name, m, g)
  assert sizes.shape == (g,)
  assert sizes.sum() == m
  assert sizes.min() >= 0
  np.testing.assert_array_equal(sizes, visits.size_patterns(name, m, g))


def test_what_the_patterns_are():
  assert visits.size_patterns("equal", 10, 4).tolist() == [2, 3, 2, 3]
  assert visits.size_patterns("mean+-1", 50, 5).tolist() == [9, 11, 9, 11, 10]
  skew = visits.size_patterns("skew", 64000, 64)
  assert 450 < skew.min() < 600 < 1400 < skew.max() < 1600
  zipf = np.sort(visits.size_patterns("zipf", 10**6, 8))[::-1]
  np.testing.assert_allclose(zipf * np.arange(1, 9) / zipf[0], 1, atol=1e-4)


@pytest.mark.parametrize(
  ("sizes", "message"),
  [
    ("normal", "is 'normal'; known patterns: equal"),
    ([1.0, 2.0], "is float64; want"),
    ([1], r"has shape \[1\]"),
    ([[1, 2]], r"has shape \[1, 2\]"),
  ],
)
def test_bad_sizes(sizes, message):
  with pytest.raises(ValueError, match=f"`group_sizes` {message}"):
    visits.checked_sizes(sizes, 10, 2)


def test_traced_sizes_are_refused():
  def traced(sizes):
    visits.checked_sizes(sizes, 10, 2)

  with pytest.raises(ValueError, match="without values"):
    jax.jit(traced)(jnp.array([1, 2]))


def test_bad_shape_of_a_pattern():
  with pytest.raises(ValueError, match="want m >= 0 and g >= 1"):
    visits.size_patterns("equal", 10, 0)
