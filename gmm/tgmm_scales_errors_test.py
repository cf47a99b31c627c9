"""Scales of tgmm's operands: what is refused, and what has a gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import kernels, ops

LHS, DOUT = np.zeros((8, 4), jnp.float8_e5m2), np.zeros((8, 6), np.int8)
SIZES = np.array([8], np.int32)
XLA = ops.Config(backend="xla")


@pytest.mark.parametrize(
  ("scales", "error", "said"),
  [
    ({"lhs_scale": np.ones((1, 6))}, ValueError, r"`lhs_scale`.*\[1, k\]"),
    ({"dout_scale": np.ones((8, 1))}, ValueError, r"`dout_scale`.*\[1, n\]"),
    ({"dout_scale": np.ones(6)}, ValueError, "`dout_scale` has shape"),
    ({"dout_scale": np.ones((1, 1), int)}, TypeError, "`dout_scale` is int"),
    ({"lhs_scale": 1.0}, TypeError, "`lhs_scale` is a float"),
  ],
)
def test_scales_that_do_not_fit(scales, error, said):
  for function in (ops.tgmm, kernels.tgmm_v2):
    with pytest.raises(error, match=said):
      function(LHS, DOUT, SIZES, num_groups=1, **scales)


def test_a_scale_is_for_what_is_quantised():
  one = np.ones((1, 1), np.float32)
  for name in ("lhs", "dout"):
    operands = {"lhs": LHS, "dout": DOUT, name: np.ones((8, 4), np.float32)}
    with pytest.raises(TypeError, match=f"`{name}_scale`.*`{name}` is float32"):
      ops.tgmm(
        **operands, group_sizes=SIZES, num_groups=1, **{f"{name}_scale": one}
      )


@pytest.mark.parametrize(
  ("dtype", "chip", "has"),
  [
    ("int8", "tpu7x", "float8_e4m3fn, float8_e5m2"),
    ("float8_e4m3fn", "v6e", "int8, float8_e5m2"),
    ("float8_e5m2", "v4", "none"),
  ],
)
def test_a_format_that_the_matrix_unit_lacks(dtype, chip, has):
  x = np.zeros((8, 8), jnp.dtype(dtype))
  one = np.ones((1, 1), np.float32)
  call = functools.partial(ops.tgmm, x, x, SIZES, num_groups=1, dout_scale=one)
  with pytest.raises(NotImplementedError, match=f"`dout` is {dtype}.*{has};"):
    call(config=ops.Config(backend="interpret", chip=chip))
  # "auto" finds the backend that can.
  assert not np.any(call(config=ops.Config(chip=chip)))


def test_what_has_no_gradient():
  x = np.ones((8, 4), jnp.float8_e5m2)
  one = np.ones((1, 1), np.float32)

  def loss(lhs, dout, lhs_scale, dout_scale):
    return jnp.sum(
      ops.tgmm(
        lhs,
        dout,
        SIZES,
        num_groups=1,
        lhs_scale=lhs_scale,
        dout_scale=dout_scale,
        config=XLA,
      ).astype(jnp.float32)
    )

  for i, name in enumerate(("lhs", "dout", "lhs_scale", "dout_scale")):
    error = NotImplementedError if "scale" in name else TypeError
    with pytest.raises(error, match=f"gradient of `{name}`"):
      jax.grad(loss, i)(x, x, one, one)


def test_an_operand_without_a_scale_has_its_gradient():
  """That of the product, with the other's scale on the cotangent."""
  scaled, other = "lhs", "dout"
  rng = np.random.default_rng(0)
  sizes = np.array([4, 0, 9], np.int32)
  narrow = rng.integers(-127, 128, (16, 8)).astype(np.int8)
  scale = 2.0 ** rng.integers(-9, -6, (1, 8)).astype(np.float32)
  wide = {scaled: narrow * scale}
  narrow = {scaled: narrow, f"{scaled}_scale": scale}

  def loss(given, x):
    out = ops.tgmm(
      **given, **{other: x}, group_sizes=sizes, num_groups=3, config=XLA
    )
    return jnp.sum(out**2)

  def second(given, x):
    return jnp.sum(jax.grad(loss, 1)(given, x) ** 2)

  x = rng.standard_normal((16, 12)).astype(np.float32)
  for f in (loss, second):
    got, want = (jax.jit(jax.grad(f, 1))(given, x) for given in (narrow, wide))
    # Scales of powers of two: but for the order of sums the same numbers.
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.max(want))
    assert np.any(want)
