"""Interpreted kernels get NumPy arrays, and nobody else does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl

from testing import callbacks, races


@pytest.fixture(name="handed")
def _handed(monkeypatch):
  """What jax itself is asked to put on a device, by dtype."""
  from jax._src import callback as module

  seen = []
  monkeypatch.setattr(
    module, "io_callback_impl", module.io_callback_impl.by_device
  )
  original = module.io_callback_impl

  def impl(*args, **options):
    seen.extend(arg.dtype for arg in args)
    return original(*args, **options)

  monkeypatch.setattr(module, "io_callback_impl", impl)
  assert callbacks.install()
  return seen


def test_once_is_enough():
  from jax._src import callback as module

  assert callbacks.install()
  first = module.io_callback_impl
  assert callbacks.install()
  assert module.io_callback_impl is first
  assert not hasattr(first.by_device, "by_device")


@pytest.mark.parametrize(
  "dtype", ["float32", "bfloat16", "int8", "float8_e5m2", "int4"]
)
def test_a_kernel_gives_the_same(handed, dtype):
  def double(x, out):
    out[...] = x[...] + x[...]

  call = pl.pallas_call(
    double,
    out_shape=jax.ShapeDtypeStruct((16, 128), dtype),
    interpret=races.interpret_params(),
  )
  x = jnp.arange(2048).reshape(16, 128) % 3
  x = x.astype(dtype)
  with races.checked():
    got = np.asarray(jax.jit(call)(x))
  assert not handed
  assert got.tobytes() == np.asarray(jax.jit(lambda x: x + x)(x)).tobytes()


def test_other_callbacks_get_what_jax_gives_them(handed):
  got = []

  def keep(x):
    got.append(x)
    return x

  shape = jax.ShapeDtypeStruct((3,), "float32")
  out = jax.jit(lambda x: io_callback(keep, shape, x))(jnp.ones(3))
  np.testing.assert_array_equal(out, np.ones(3))
  assert handed == [jnp.float32]
  assert isinstance(got[0], jax.Array)
