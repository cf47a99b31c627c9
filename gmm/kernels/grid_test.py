"""Visits: every local row once, by an interpreted kernel that only records."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from gmm.kernels import grid

M, BLOCK, G, G_TOTAL, OUTER, INNER = 96, 8, 4, 7, 2, 3
STEPS = 256
# (chunk, tile) of rows.
CUTS = [(8, 16), (16, 32), (8, 24)]


def _record(cut, sizes, offset, out, totals, *table):
  rows = grid.RowGrid(
    m=M, block=BLOCK, chunk=cut[0], tile=cut[1], g=G, g_total=G_TOTAL
  )
  table = grid.GroupTable(*table)
  sums = rows.fill_group_table(sizes, offset, table)
  for i, total in enumerate(sums):
    totals[i] = total
  steps = OUTER * INNER * sums.visits

  def step(i, visit):
    window = rows.window_of(visit)
    for j, value in enumerate(
      (
        visit.outer,
        visit.id,
        window.start,
        window.rows,
        window.lo,
        window.hi,
        visit.inner,
        rows.is_last_tile(visit).astype(jnp.int32),
      )
    ):
      out[i, j] = value
    return rows.advance(table, sums.groups, INNER, visit)

  @pl.when(steps > 0)
  def _():
    jax.lax.fori_loop(0, steps, step, rows.first_visit(table, jnp.int32(0)))


@functools.cache
def _program(cut):
  smem = pl.BlockSpec(memory_space=pltpu.SMEM)
  return jax.jit(
    pl.pallas_call(
      functools.partial(_record, cut),
      grid_spec=pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=2,
        grid=(),
        in_specs=[],
        out_specs=[smem, smem],
        scratch_shapes=list(grid.GroupTable.scratch(G)),
      ),
      out_shape=[
        jax.ShapeDtypeStruct((STEPS, 8), jnp.int32),
        jax.ShapeDtypeStruct((4,), jnp.int32),
      ],
      interpret=pltpu.InterpretParams(),
    )
  )


def visits(sizes, offset, cut):
  """Every step, and the totals, for canonical sizes and offset."""
  out, totals = _program(cut)(
    jnp.array(sizes, jnp.int32), jnp.array([offset], jnp.int32)
  )
  groups, count, first, end = (int(x) for x in totals)
  return np.asarray(out)[: OUTER * INNER * count], groups, first, end


def local_groups(sizes, offset):
  """(local index, first row, row after the last) of groups with rows."""
  ends = np.minimum(np.cumsum(sizes), M)
  starts = np.concatenate([[0], ends[:-1]])
  groups = range(offset, min(offset + G, G_TOTAL))
  return [
    (i - offset, int(starts[i]), int(ends[i]))
    for i in groups
    if ends[i] > starts[i]
  ]


SIZES = {
  "ragged": [5, 14, 3, 31, 0, 20, 23],
  "aligned": [8, 16, 24, 8, 8, 8, 24],
  "ones": [1, 1, 1, 1, 1, 1, 1],
  "none": [0] * 7,
  "one_takes_all": [0, 0, 96, 0, 0, 0, 0],
  "over_m": [90, 90, 90, 0, 0, 0, 0],
  "sparse": [0, 9, 0, 0, 63, 0, 2],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("offset", [0, 2, 5, 7])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_windows_cover_each_local_row_once(sizes, offset, cut):
  chunk, tile = cut
  steps, count, first, end = visits(sizes, offset, cut)
  groups = local_groups(sizes, offset)
  assert count == len(groups)
  if not groups:
    assert (first, end, len(steps)) == (0, 0, 0)
    return
  assert (first, end) == (groups[0][1], groups[-1][2])
  per_outer = steps.reshape(OUTER, -1, INNER, 8)
  assert np.all(per_outer[..., 0] == np.arange(OUTER)[:, None, None])
  assert np.all(per_outer[..., 6] == np.arange(INNER))
  # Nothing but the outer and inner index changes along those.
  same = per_outer[:, :, :, [1, 2, 3, 4, 5, 7]]
  assert np.all(same == same[:1, :, :1])
  covered = []
  for _, group, start, rows, lo, hi, _, last in per_outer[0, :, 0]:
    assert start % BLOCK == 0
    assert rows % BLOCK == 0
    assert 0 < rows <= tile + BLOCK
    assert last or rows % chunk == 0
    assert (group, lo, hi) in groups
    assert last == (start + rows >= hi)
    own = range(max(start, lo), min(start + rows, hi))
    assert len(own) > 0
    covered += own
  assert covered == [r for _, lo, hi in groups for r in range(lo, hi)]
  assert len(per_outer[0]) <= (M + BLOCK * count) / tile + count


def test_windows_of_a_group_are_alike():
  steps, *_ = visits([0, 0, 90, 0, 0, 0, 0], 0, (8, 32))
  rows = steps.reshape(OUTER, -1, INNER, 8)[0, :, 0, 3]
  # 96 rows in whole blocks: three of 32, and none of a few rows.
  assert rows.tolist() == [32, 32, 32]
  steps, *_ = visits([0, 0, 49, 0, 0, 0, 0], 0, (8, 32))
  rows = steps.reshape(OUTER, -1, INNER, 8)[0, :, 0, 3]
  assert rows.tolist() == [24, 32]


def test_an_axis_ends_with_what_is_left():
  axis = grid.Axis(320, 128)
  assert (axis.count, axis.last) == (3, 64)
  whole = grid.Axis(77, 77)
  assert (whole.count, whole.last, whole.start(0)) == (1, 77, 0)
