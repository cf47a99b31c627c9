"""The weights' product of int8, whose lhs is transposed as words."""

import functools

import jax
import numpy as np
import pytest

from gmm import kernels
from gmm.kernels import turning
from reference import oracle
from testing import compiling, races

M, G, K, N = 1300, 3, 72, 40


@functools.cache
def _program(dtype="int8"):
  kernel = functools.partial(
    kernels.tgmm_v2,
    num_groups=G,
    tiling=(512, K, N),
    chip="v6e",
    interpret=races.interpret_params(),
  )
  program = jax.jit(kernel, compiler_options=compiling.fast_options())
  specs = [
    jax.ShapeDtypeStruct(shape, d)
    for shape, d in (((M, K), dtype), ((M, N), dtype), ((G,), np.int32))
  ]
  return program.trace(*specs)


@pytest.mark.parametrize(
  ("dtype", "wanted"), [("int8", {(512, K)}), ("float8_e5m2", set())]
)
def test_which_products_turn_words(dtype, wanted, monkeypatch):
  shapes, turned = set(), turning.transposed_words
  monkeypatch.setattr(
    turning,
    "transposed_words",
    lambda lhs, rhs: shapes.add(lhs.shape) or turned(lhs, rhs),
  )
  _program.__wrapped__(dtype)
  assert shapes == wanted


@functools.cache
def _compiled():
  return _program().lower().compile()


# Windows of 512 rows and more, one that ends within it, and shorter ones.
@pytest.mark.parametrize(
  "sizes", [(600, 0, 530), (512, 512, 200), (0, 1024, 3), (1, 255, 1000)]
)
def test_sums_of_integers_are_exact(sizes):
  rng = np.random.default_rng(sum(sizes))
  lhs, dout = (
    rng.integers(-128, 128, (M, columns)).astype(np.int8) for columns in (K, N)
  )
  sizes = np.array(sizes, np.int32)
  with races.checked():
    got = np.asarray(_compiled()(lhs, dout, sizes))
  assert got.dtype == np.int32
  want = oracle.tgmm(lhs, dout, sizes, num_groups=G)
  np.testing.assert_array_equal(got, want)
