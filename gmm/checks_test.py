"""What checks make of good operands: problems, formats, canonical values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from gmm import checks, config, precision
from gmm.kernels import chip

BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
E4M3, E5M2, INT8 = jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int8
S = jax.ShapeDtypeStruct


def problem(lhs=F32, rhs=F32, **options):
  return checks.gmm_problem(
    S((5, 3), lhs), S((2, 3, 4), rhs), S((6,), jnp.int32), **options
  )


def test_a_problem_is_in_the_calls_own_terms():
  p = problem()
  assert (p.kind, p.m, p.k, p.n, p.g, p.g_total) == ("gmm", 5, 3, 4, 2, 6)
  assert p.out_shape == (5, 4)
  nt = checks.gmm_problem(
    S((5, 3), F32), S((2, 4, 3), F32), S((6,), jnp.int32), transpose_rhs=True
  )
  assert (nt.k, nt.n, nt.transpose_rhs, nt.out_shape) == (3, 4, True, (5, 4))
  tn = checks.tgmm_problem(
    S((5, 3), F32),
    S((5, 4), F32),
    S((6,), jnp.int32),
    num_groups=2,
    transpose_out=True,
  )
  assert (tn.kind, tn.k, tn.n, tn.out_shape) == ("tgmm", 3, 4, (2, 4, 3))
  assert hash(tn) != hash(p)


@pytest.mark.parametrize(
  ("lhs", "rhs", "compute", "acc", "out"),
  [
    (BF16, BF16, BF16, F32, BF16),
    (F32, F32, F32, F32, F32),
    (F16, F16, F16, F32, F16),
    (BF16, F32, F32, F32, BF16),
    (F32, BF16, F32, F32, F32),
    (F16, BF16, F32, F32, F16),
    (E4M3, E4M3, E4M3, F32, BF16),
    (E4M3, E5M2, BF16, F32, BF16),
    (BF16, E5M2, BF16, F32, BF16),
    (F32, E4M3, F32, F32, F32),
    (E4M3, F32, F32, F32, BF16),
    (INT8, INT8, INT8, jnp.int32, jnp.int32),
    (BF16, INT8, BF16, F32, BF16),
    (INT8, F32, F32, F32, F32),
    (INT8, E4M3, BF16, F32, BF16),
  ],
)
def test_formats(lhs, rhs, compute, acc, out):
  p = problem(lhs, rhs)
  assert p.compute_dtype == jnp.dtype(compute)
  assert p.acc_dtype == jnp.dtype(acc)
  assert p.out_dtype == jnp.dtype(out)


def test_every_pair_of_formats_is_widened_exactly():
  rows = config.DTYPES.values()
  for a in rows:
    for b in rows:
      a_dtype, b_dtype = jnp.dtype(a.name), jnp.dtype(b.name)
      wide = config.compute_dtype(a_dtype, b_dtype)
      assert wide == config.compute_dtype(b_dtype, a_dtype)
      for dtype in (a_dtype, b_dtype):
        info = jnp.iinfo if config.DTYPES[dtype].kind == "int" else jnp.finfo
        top = jnp.asarray(info(dtype).max, dtype)
        assert top.astype(wide).astype(dtype) == top


def test_result_dtypes():
  for dtype in (F32, BF16, F16, E4M3, E5M2):
    assert problem(preferred_element_type=dtype).out_dtype == dtype
  assert problem(preferred_element_type="bfloat16").out_dtype == BF16
  for dtype in (jnp.int32, F32, BF16):
    p = problem(INT8, INT8, preferred_element_type=dtype)
    assert (p.out_dtype, p.acc_dtype) == (dtype, jnp.int32)


@pytest.mark.parametrize(
  "given",
  [
    "highest",
    "float32",
    "HIGHEST",
    lax.Precision.HIGHEST,
    ("highest", lax.Precision.HIGHEST),
  ],
)
def test_precision_spellings(given):
  assert problem(precision=given).precision == lax.Precision.HIGHEST


def test_precision_follows_jax_default_for_float32_alone():
  assert problem().precision == lax.Precision.DEFAULT
  with jax.default_matmul_precision("highest"):
    assert problem().precision == lax.Precision.HIGHEST
    assert problem(BF16, F32).precision == lax.Precision.HIGHEST
    assert problem(BF16, BF16).precision == lax.Precision.DEFAULT
    assert problem(INT8, INT8).precision == lax.Precision.DEFAULT
    assert problem(precision="high").precision == lax.Precision.HIGH
  with jax.default_matmul_precision("F32_F32_F32"):
    assert precision.ambient() == lax.Precision.HIGHEST
  assert problem(BF16, BF16, precision="default").precision == (
    lax.Precision.DEFAULT
  )


def test_pallas_refuses_float16_in_any_place():
  for p in (
    problem(F16, F16),
    problem(F32, F16),
    problem(preferred_element_type=F16),
  ):
    with pytest.raises(NotImplementedError, match="no float16 arithmetic"):
      checks.check_pallas_dtypes(p)
  checks.check_pallas_dtypes(problem(E4M3, BF16))


@pytest.mark.parametrize(
  "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"]
)
def test_canonical_sizes_of_any_integer_dtype(dtype):
  top = jnp.iinfo(dtype).max
  sizes = jnp.asarray([0, 3, top], dtype)
  got = checks.canonical_sizes(sizes, 1000)
  assert got.dtype == jnp.int32
  assert got.tolist() == [0, 3, min(top, 1000)]


def test_canonical_sizes_of_bad_values():
  assert checks.canonical_sizes(jnp.array([-7, 2]), 5).tolist() == [0, 2]
  assert checks.canonical_sizes(jnp.array([9, 9]), 0).tolist() == [0, 0]
  # NumPy's int64 is clipped before jax makes an int32 of it.
  wide = np.array([2**40, -(2**40), 2**32 + 1])
  assert checks.canonical_sizes(wide, 5).tolist() == [5, 0, 5]
  with jax.enable_x64(True):
    got = checks.canonical_sizes(jnp.array([2**40, -1], jnp.int64), 5)
    assert (got.tolist(), got.dtype) == ([5, 0], jnp.int32)


def test_the_sum_of_canonical_sizes_does_not_overflow():
  m = 2**30
  got = checks.canonical_sizes(jnp.array([5, m - 2, m, m, 7]), m)
  assert got.tolist() == [5, m - 5, 0, 0, 0]


@pytest.mark.parametrize(
  "make",
  [
    int,
    np.int64,
    np.array,
    jnp.array,
    jnp.int8,
    lambda x: np.array([x]),
    lambda x: jnp.array([x], jnp.int16),
  ],
)
def test_canonical_offset(make):
  for offset, want in (
    (0, 0),
    (3, 3),
    (4, 4),
    (5, 4),
    (-1, 4),
    (-128, 4),
    (127, 4),
  ):
    got = checks.canonical_offset(make(offset), 4)
    assert (got.tolist(), got.dtype, got.shape) == ([want], jnp.int32, (1,))


def test_canonical_offset_of_narrow_and_wide_dtypes():
  assert checks.canonical_offset(None, 3).tolist() == [0]
  assert checks.canonical_offset(2**70, 3).tolist() == [3]
  assert checks.canonical_offset(jnp.int8(127), 200).tolist() == [127]
  assert checks.canonical_offset(jnp.uint8(255), 255).tolist() == [255]
  assert checks.canonical_offset(jnp.uint32(2**32 - 1), 9).tolist() == [9]
  traced = jax.jit(lambda x: checks.canonical_offset(x, 9))
  assert traced(jnp.int32(8)).tolist() == [8]


# ---- Config


def test_config_is_hashable_and_clips_nothing():
  c = config.Config(tiling=[8, 128, 256])
  assert c.tiling == (8, 128, 256)
  assert c.tiles.dlhs == (8, 128, 256)
  assert {c: 1}[config.Config(tiling=(8, 128, 256))] == 1
  own = config.Config(tiling=config.Tiles(drhs=(16, 128, 128)))
  assert (own.tiles.fwd, own.tiles.drhs) == (None, (16, 128, 128))


def test_every_chip_is_a_config_chip():
  for name in chip.CHIPS:
    assert config.Config(chip=name).chip == name


def test_use_gmm_v2_false_is_the_xla_backend():
  c = config.Config(use_gmm_v2=False)
  assert (c.effective_backend, c.dlhs_in_place) == ("xla", False)
  assert config.Config().dlhs_in_place
  assert not config.Config(use_gmm_v2_transposed_rhs_dlhs=False).dlhs_in_place


def test_from_keys_reads_a_trainers_config():
  read = config.Config.from_keys
  assert read({}) == config.Config()
  assert read({"steps": 10, "quantization": ""}) == config.Config()
  assert read({"use_gmm_v2": "False"}) == config.Config(use_gmm_v2=False)
  want = config.Config(use_gmm_v2_transposed_rhs_dlhs=False)
  assert read({"use_gmm_v2_transposed_rhs_dlhs": False}) == want
  assert read({"moe_gmm_v2_dlhs_transpose_rhs": "false"}) == want
  both = {
    "use_gmm_v2": True,
    "use_gmm_v2_transposed_rhs_dlhs": True,
    "moe_gmm_v2_dlhs_transpose_rhs": True,
  }
  assert read(both) == config.Config(use_gmm_v2_transposed_rhs_dlhs=True)
  assert read({"use_gmm_v2": None, "quantization": None}) == config.Config()


@pytest.mark.parametrize(
  ("offset", "g_total"),
  [
    (np.int8(-1), 200),
    (np.int8(-1), 255),
    (np.int16(-1), 40000),
    (np.uint8(255), 255),
    (2**70, 3),
    (np.array([-1], np.int8), 130),
  ],
)
def test_offsets_out_of_range_find_no_rows_in_any_dtype(offset, g_total):
  assert checks.canonical_offset(offset, g_total).tolist() == [g_total]
