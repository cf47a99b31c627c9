"""Bounds and estimates: small cases by hand, and what must always hold."""

import dataclasses
import itertools

import numpy as np
import pytest

from gmm.aot.model import MODES, plan_for, roofline
from gmm.aot.scheduling import Arm, Schedule
from gmm.kernels import chip as chips
from gmm.kernels import launch
from gmm.timing import estimate as estimates
from gmm.timing import rates, steps, visits

CALL = 3e-6
CLOCK = rates.rates("v6e").clock_hz
BANDWIDTH = 0.9 * 1.64e12
SHAPE = {"m": 1024, "g": 4, "k": 256, "n": 256}


def _arm(**fields):
  rest = dict.fromkeys((f.name for f in dataclasses.fields(Arm)), 0)
  return Arm(**{**rest, **fields})


def _schedule(arms, mode="nn", step_bundles=0, **kwargs):
  plan = plan_for(mode, **kwargs)
  return Schedule(
    kernel=launch.kernel_name(plan),
    chip=plan.chip.name,
    operands=rates.mnemonic_format(plan.compute_dtype),
    bundles=10_000,
    arms=tuple(arms),
    step_bundles=step_bundles,
    vmem_bytes=0,
    spill_vmem_bytes=0,
  )


def _products(bundles, mxu_cycles=0):
  """Arms of products by their rows, in the order of the kernel's code."""
  cycles = mxu_cycles or dict.fromkeys(bundles, 0)
  return [
    _arm(rows=rows, bundles=count, mxu_cycles=cycles[rows], vmatmuls=1, depth=1)
    for rows, count in bundles.items()
  ]


def _total(parts):
  return parts.mxu_seconds + parts.dma_seconds + parts.idle_seconds


def test_one_visit_by_hand():
  # 16 blocks of 16 rows, run as 17: a chunk of 256 rows and a block.
  got = roofline("nn", m=256, g=1, k=256, n=256)
  assert (got.visits, got.steps, got.rows_useful, got.rows_run) == (
    (1, 1, 256, 272)
  )
  matrix = 256 * 256 * 2
  assert got.flops == 2 * 256**3
  assert got.bytes == got.dma_bytes == 3 * matrix
  assert got.mxu_seconds == pytest.approx(17 * 4 / CLOCK)
  assert got.dma_seconds == pytest.approx(3 * matrix / BANDWIDTH)
  assert got.idle_seconds == pytest.approx(CALL)
  assert got.seconds == pytest.approx(_total(got))
  assert got.compute_seconds == pytest.approx(2 * 256**3 / 920e12)
  assert got.memory_seconds == pytest.approx(3 * matrix / 1.64e12)
  assert (got.bound, got.bound_seconds) == ("memory", got.memory_seconds)
  assert got.roofline_share == pytest.approx(got.bound_seconds / got.seconds)
  assert not got.from_schedule


def test_a_schedule_that_bounds():
  # Slow products: each step hides the next one's copies, but for the first's
  # and for the last result's.
  shape = {"m": 2048, "g": 4, "k": 256, "n": 256, "tiling": (512, 256, 256)}
  bundles = {512: 90_000, 256: 70_000, 144: 60_000, 272: 80_000}
  arms = _products(bundles, dict.fromkeys(bundles, 64))
  arms.append(_arm(bundles=512, depth=1))  # a cycle for each row
  schedule = _schedule(arms, step_bundles=250, **shape)
  moved = (512 + 256 + 512) * 256 * 2 / BANDWIDTH
  got = roofline("nn", **shape, schedule=schedule)
  cycles = 4 * (90_000 + 512 + 250)
  assert got.seconds == pytest.approx(CALL + cycles / CLOCK + moved)
  assert got.mxu_seconds == pytest.approx(4 * 64 / CLOCK)
  assert got.dma_seconds == pytest.approx(moved)
  assert got.from_schedule
  # 136 rows end with the shortest product, 392 with the longest one.
  sizes = [512, 136, 136 + 256, 1008]
  got = roofline("nn", **shape, schedule=schedule, group_sizes=sizes)
  assert got.rows_run == 512 + 144 + (256 + 144) + (512 + 256 + 272)


def test_code_that_the_mxu_bounds():
  # Bundles of the step and of the product hide behind the MXU's cycles.
  arms = _products({144: 10, 272: 20}, {144: 5, 272: 10**6})
  schedule = _schedule(arms, m=256, g=1, k=256, n=256, step_bundles=10**5)
  got = roofline("nn", m=256, g=1, k=256, n=256, schedule=schedule)
  assert got.mxu_seconds == pytest.approx(10**6 / CLOCK)
  assert got.idle_seconds == pytest.approx(CALL)


@pytest.mark.parametrize("k", [1152, 896])
def test_a_last_k_tile_has_code_of_its_own(k):
  shape = {"m": 256, "g": 1, "k": k, "n": 256, "tiling": (256, 512, 256)}
  whole = _products({144: 1, 272: 10**6})
  last = _products({144: 1, 272: 10**5})
  finish = _arm(bundles=10**4, depth=1)  # from the accumulator to the result
  schedule = _schedule([*whole, *last, finish], **shape)
  got = roofline("nn", **shape, schedule=schedule)
  assert got.steps == -(-k // 512)
  first = (256 * 512 + 512 * 256) * 2
  want = CALL + ((k // 512) * 10**6 + 10**5 + 10**4) / CLOCK
  want += (first + 256 * 256 * 2) / BANDWIDTH
  assert got.seconds == pytest.approx(want)


def test_few_rows_wait_for_the_next_weight_tile():
  # 80 rows run, in the time in which an MXU of 256 rows is loaded: 176 rows'.
  got = roofline("nn", m=64, g=1, k=256, n=256)
  assert got.rows_run == 80
  assert got.mxu_seconds == pytest.approx(5 * 4 / CLOCK)
  assert got.idle_seconds == pytest.approx(CALL + 6 * 4 / CLOCK)


def test_cores_that_fall_short_of_their_nominal_rate():
  shape = {"m": 256, "g": 1, "k": 256, "n": 256, "chip": "tpu7x"}
  short = dict.fromkeys((80, 144, 208), 1)
  arms = _products(short | {272: 10**6}, short | {272: 9**5})
  got = roofline("nn", **shape, schedule=_schedule(arms, **shape))
  clock = rates.rates("tpu7x").clock_hz
  assert got.seconds - got.dma_seconds - CALL == pytest.approx(
    10**6 / clock / 0.68
  )
  assert got.mxu_seconds == pytest.approx(9**5 / clock)


def test_shared_blocks_are_read_twice_and_written_once():
  # The first visit's only block is the second's too: it is carried.
  got = roofline("nn", m=256, g=2, k=256, n=256, group_sizes=[8, 248])
  row, weight = 256 * 2, 256 * 256 * 2
  assert got.dma_bytes == (16 + 256) * row + 2 * weight + 256 * row
  assert got.bytes == 256 * row + 2 * weight + 256 * row


def test_zeros_use_a_queue_that_is_free():
  shape = {"m": 65536, "g": 1, "k": 256, "n": 256, "tiling": (256, 256, 256)}
  schedule = _schedule(_products({144: 1, 272: 10**6}), **shape)
  some = roofline("nn", **shape, group_sizes=[256], schedule=schedule)
  moved = 3 * 256 * 256 * 2
  want = CALL + 10**6 / CLOCK + moved / BANDWIDTH
  assert some.seconds == pytest.approx(want)
  assert some.dma_bytes == moved + (65536 - 256) * 256 * 2


def test_tgmm_goes_through_tiles_of_k_first():
  plan = plan_for("tn", m=256, g=1, k=384, n=512, tiling=(256, 256, 256))
  found = visits.visits(plan, np.array([256]))
  costs = steps.Costs.of(plan, rates.rates("v6e"), None, rates.NO_CODE)
  tiles = steps.TgmmTiles(plan, found, costs)
  assert tiles.count == 4
  sent = [int(tiles.tile(i).sent[0]) // (256 * 2) for i in range(4)]
  assert sent == [256, 128, 256, 128]


def test_the_product_of_the_group_end_comes_last_in_tgmm():
  shape = {"m": 1024, "g": 1, "k": 256, "n": 256, "tiling": (256, 256, 256)}
  arms = [
    _arm(bundles=10**5, depth=2, vmatmuls=1, rows=256),
    _arm(bundles=10**6, depth=1, vmatmuls=1, rows=256),
  ]
  got = roofline("tn", **shape, schedule=_schedule(arms, "tn", **shape))
  # Windows of 256 rows, a chunk each: only the last one ends the group.
  cycles = 3 * 10**5 + 10**6
  assert got.visits == 4
  moved = 256 * 2 * 256 * 2 + 256 * 256 * 2
  want = CALL + cycles / CLOCK + moved / BANDWIDTH
  assert got.seconds == pytest.approx(want)


def test_zeros_are_moved_too():
  sizes = [0, 128, 128, 0]
  nn = roofline("nn", **SHAPE, group_sizes=sizes)
  row, weight = 256 * 2, 256 * 256 * 2
  assert nn.bytes == 256 * row + 2 * weight + 1024 * row
  assert nn.dma_bytes == nn.bytes
  tn = roofline("tn", **SHAPE, group_sizes=sizes)
  assert tn.bytes == tn.dma_bytes == 256 * 2 * row + 4 * weight
  none = roofline("nn", **SHAPE, group_sizes=[0] * 4)
  assert (none.visits, none.flops, none.mxu_seconds) == (0, 0, 0)
  assert none.seconds == pytest.approx(CALL + 1024 * row / BANDWIDTH)


def test_weights_are_read_once_a_group_unless_k_is_in_tiles():
  sizes = [512, 512]
  shape = {"m": 1024, "g": 2, "k": 512, "n": 256, "group_sizes": sizes}
  whole = roofline("nn", **shape, tiling=(256, 512, 256))
  tiled = roofline("nn", **shape, tiling=(256, 256, 256))
  assert whole.visits == tiled.visits == 4
  weight = 512 * 256 * 2
  assert whole.dma_bytes == whole.bytes
  assert tiled.dma_bytes == tiled.bytes + 2 * weight


def test_lanes_and_padding_outside_count():
  # 704 columns take 768 lanes; k = 300 in tiles is padded to 320.
  got = roofline("nn", m=256, g=1, k=704, n=256)
  assert got.bytes + (256 * 64) * 2 == got.dma_bytes
  whole = roofline("nn", m=256, g=1, k=300, n=256)
  cut = roofline("nn", m=256, g=1, k=300, n=256, tiling=(256, 128, 256))
  assert whole.bytes == cut.bytes
  pad = 2 * (256 * 320 + 320 * 256) * 2
  lhs, rhs, out = 256 * 3 * 128 * 2, 320 * 256 * 2, 256 * 256 * 2
  assert cut.dma_bytes == lhs + rhs + out + pad
  assert cut.dma_seconds > pad / (0.7 * 1.64e12)


def test_cores_share_output_tiles():
  shape = {"m": 4096, "g": 4, "k": 1024, "n": 512, "chip": "v5p"}
  one = roofline("nn", **shape, tiling=(512, 1024, 512))
  two = roofline("nn", **shape, tiling=(512, 1024, 256))
  # The other core has nothing to do, so half of the MXUs idle.
  assert one.idle_seconds > one.seconds / 2
  assert one.seconds > 1.5 * two.seconds
  assert one.mxu_seconds == pytest.approx(two.mxu_seconds)
  assert one.peak_flops == pytest.approx(459e12)


def test_equal_output_tiles_are_played_once(monkeypatch):
  shape = {"m": 4096, "g": 8, "k": 256, "n": 2048, "group_sizes": "skew"}
  tiling = (256, 256, 128)
  for mode in MODES:
    short = roofline(mode, **shape, tiling=tiling)
    with monkeypatch.context() as patch:
      patch.setattr(estimates, "_SAME_SECONDS", -1.0)
      full = roofline(mode, **shape, tiling=tiling)
    assert short.seconds == pytest.approx(full.seconds, rel=1e-6)
    assert short.dma_seconds == pytest.approx(full.dma_seconds, rel=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chip", chips.CHIPS)
def test_no_estimate_beats_the_bound(chip, mode):
  for name in visits.PATTERNS:
    for shape in ((4096, 8, 704, 512), (1000, 3, 130, 250), (64, 16, 512, 512)):
      sizes = dict(zip("mgkn", shape, strict=True))
      got = roofline(mode, **sizes, chip=chip, group_sizes=name)
      assert 0 < got.bound_seconds < got.seconds
      assert got.rows_useful == sizes["m"] <= got.rows_run
      assert got.dma_bytes >= got.bytes
      assert got.seconds == pytest.approx(_total(got))
      shares = (got.mxu_seconds, got.dma_seconds, got.idle_seconds)
      assert min(shares) >= 0


@pytest.mark.parametrize("mode", MODES)
def test_more_rows_never_take_less_time(mode):
  sizes = np.arange(0, 4096, 64)
  times = [
    roofline(
      mode,
      m=8192,
      g=2,
      k=512,
      n=512,
      tiling=(512, 512, 512),
      group_sizes=[rows, rows],
    )
    for rows in sizes
  ]
  # A group of whole chunks is spared the block that others end with.
  block = 16 / 256 * 64 / CLOCK * 8
  seconds = [t.mxu_seconds for t in times]
  for fewer, more in itertools.pairwise(seconds):
    assert fewer <= more + block
  assert times[-1].seconds > times[1].seconds


def test_formats_have_their_own_peaks():
  def peak(dtype, chip="v6e", **kwargs):
    return roofline("nn", **SHAPE, dtype=dtype, chip=chip, **kwargs).peak_flops

  assert peak("int8") == 2 * peak("bfloat16")
  assert peak("float32") == peak("bfloat16")
  assert 6 * peak("float32", precision="highest") == peak("bfloat16")
  # What the MXU lacks runs as bfloat16.
  assert peak("int8", "tpu7x") == peak("bfloat16", "tpu7x")
  assert peak("float8_e4m3fn", "tpu7x") == 2.3e15
  assert peak("float8_e4m3fn") == peak("bfloat16")
  wide = roofline("nn", **SHAPE, out_dtype="float32")
  assert wide.bytes == roofline("nn", **SHAPE).bytes + 1024 * 256 * 2


def test_a_transposed_result_is_the_exchanged_product():
  shape = {"m": 1024, "g": 4}
  got = roofline("tn_t", **shape, k=256, n=512, tiling=(256, 128, 512))
  same = roofline("tn", **shape, k=512, n=256, tiling=(256, 512, 128))
  assert got == dataclasses.replace(same, mode="tn_t")


@pytest.mark.parametrize(
  ("kwargs", "error", "message"),
  [
    ({"mode": "tt"}, ValueError, "`mode` is 'tt'; want one of nn"),
    ({"chip": "v9"}, ValueError, "`chip` is 'v9'; known chips"),
    ({"m": 0}, ValueError, "`m` is 0; want 1 to"),
    ({"n": -2}, ValueError, "`n` is -2; want 1 to"),
    ({"k": 1.5}, TypeError, "`k` is 1.5; want a positive int"),
    ({"g": True}, TypeError, "`g` is True; want a positive int"),
    ({"dtype": "bf17"}, TypeError, "`dtype` is 'bf17'"),
    ({"dtype": "int32"}, TypeError, "int32; want one of"),
    ({"dtype": "float16"}, NotImplementedError, "float16"),
    ({"group_sizes": "odd"}, ValueError, "`group_sizes` is 'odd'"),
    ({"group_sizes": [1, 2]}, ValueError, "`group_sizes` has shape"),
    ({"tiling": (1, 2)}, ValueError, "`tiling`"),
    ({"out_dtype": "int32"}, TypeError, "preferred_element_type"),
  ],
)
def test_bad_arguments(kwargs, error, message):
  mode = kwargs.pop("mode", "nn")
  with pytest.raises(error, match=message):
    roofline(mode, **{**SHAPE, **kwargs})


def test_the_schedule_of_another_kernel():
  shape = {**SHAPE, "tiling": (512, 256, 256)}
  schedule = _schedule(_products({512: 9, 256: 9, 144: 9}), **shape)
  with pytest.raises(ValueError, match="no arm for 272 rows"):
    roofline("nn", **shape, group_sizes=[264, 0, 0, 0], schedule=schedule)
  with pytest.raises(ValueError, match="is of the kernel gmm_v2-nn"):
    roofline("nt", **shape, schedule=schedule)
  with pytest.raises(ValueError, match="is for v6e; want one for tpu7x"):
    roofline("nn", **shape, chip="tpu7x", schedule=schedule)


def test_one_schedule_serves_any_rows_and_groups():
  shape = {**SHAPE, "tiling": (256, 256, 256)}
  schedule = _schedule(_products({144: 90, 272: 100}), **shape)
  more = {**shape, "m": 4096, "g": 16}
  got = roofline("nn", **more, schedule=schedule)
  assert got.visits == 16
