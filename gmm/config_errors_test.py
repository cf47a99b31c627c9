"""What bad tilings, chips and configs raise, and what empty operands give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import kernels, ops
from testing.calls import G, K, M, N, call_gmm, call_tgmm, like

# A tiling in the kernels' signature.
TILINGS = {
  "tiling_zero": (ValueError, (0, 128, 128), "tiling"),
  "tiling_negative": (ValueError, (8, -128, 128), "tiling"),
  "tiling_pair": (ValueError, (8, 128), "tiling"),
  "tiling_float": (TypeError, (8.0, 128, 128), "tiling"),
  "tiling_int": (TypeError, 128, "tiling"),
}


@pytest.mark.parametrize("name", TILINGS)
@pytest.mark.parametrize("where", ["gmm_v2", "tgmm_v2", "config", "tiles"])
def test_bad_tilings(name, where):
  error, tiling, said = TILINGS[name]
  calls = {
    "gmm_v2": lambda: call_gmm(kernels.gmm_v2, tiling=tiling),
    "tgmm_v2": lambda: call_tgmm(kernels.tgmm_v2, tiling=tiling),
    "config": lambda: ops.Config(tiling=tiling),
    "tiles": lambda: ops.Config(tiling=ops.Tiles(drhs=tiling)),
  }
  with pytest.raises(error, match=said) as caught:
    calls[where]()
  assert caught.type is error


@pytest.mark.parametrize("backend", ["auto", "pallas", "interpret"])
def test_a_tiling_that_does_not_fit_says_how_much_it_needs(backend):
  m, k, n = 8192, 8192, 8192
  x = {
    "lhs": jax.ShapeDtypeStruct((m, k), jnp.float32),
    "rhs": jax.ShapeDtypeStruct((G, k, n), jnp.float32),
    "group_sizes": jax.ShapeDtypeStruct((G,), jnp.int32),
  }
  config = ops.Config(backend=backend, tiling=(m, k, n), chip="v5e")
  with pytest.raises(ValueError, match="tiling.*bytes"):
    jax.eval_shape(lambda x: call_gmm(ops.gmm, config=config, **x), x)


@pytest.mark.parametrize("chip", ["v99", "cpu", ""])
def test_unknown_chips(chip):
  for call in (
    lambda: ops.Config(chip=chip),
    lambda: call_gmm(kernels.gmm_v2, chip=chip),
    lambda: call_tgmm(kernels.tgmm_v2, chip=chip),
  ):
    with pytest.raises(ValueError, match="`chip`.*v6e"):
      call()


def test_config_is_a_config():
  with pytest.raises(TypeError, match="`config`.*dict"):
    call_gmm(ops.gmm, config={"backend": "xla"})
  with pytest.raises(TypeError, match="`config`.*str"):
    call_tgmm(ops.tgmm, config="xla")


@pytest.mark.parametrize("backend", ["pallas", "interpret"])
def test_float16_is_for_the_xla_backend(backend):
  half = {"lhs": like((M, K), "f2")}
  config = ops.Config(backend=backend)
  for call in (
    lambda: call_gmm(ops.gmm, config=config, **half),
    lambda: call_gmm(kernels.gmm_v2, **half),
    lambda: call_tgmm(ops.tgmm, config=config, **half),
    lambda: call_tgmm(kernels.tgmm_v2, **half),
    lambda: call_gmm(ops.gmm, config=config, preferred_element_type="float16"),
  ):
    with pytest.raises(NotImplementedError, match="`.*`.*float16.*xla"):
      call()
  for name in ("xla", "auto"):
    assert call_gmm(ops.gmm, config=ops.Config(backend=name), **half).shape


@pytest.mark.parametrize("backend", ["pallas", "interpret"])
def test_chips_without_a_format_say_so(backend):
  four = {"rhs": like((G, K, N), "float4_e2m1fn")}
  config = ops.Config(backend=backend, chip="v6e")
  for call in (
    lambda: call_gmm(ops.gmm, config=config, **four),
    lambda: call_gmm(kernels.gmm_v2, chip="v6e", **four),
  ):
    with pytest.raises(NotImplementedError, match="`rhs`.*float4.*v6e.*int4"):
      call()
  for config in (ops.Config(backend="xla"), ops.Config(chip="v6e")):
    assert call_gmm(ops.gmm, config=config, **four).shape == (M, N)


def test_pallas_on_another_platform_says_so():
  with pytest.raises(NotImplementedError, match="'pallas'.*cpu.*'interpret'"):
    call_gmm(ops.gmm, config=ops.Config(backend="pallas", chip="v6e"))


@pytest.mark.parametrize("backend", ["auto", "interpret", "xla"])
@pytest.mark.parametrize(
  ("m", "k", "n", "g"), [(0, 4, 5, 2), (3, 0, 5, 2), (3, 4, 0, 2), (3, 4, 5, 0)]
)
def test_empty_operands_give_empty_or_zero_results(backend, m, k, n, g):
  config = ops.Config(backend=backend)
  lhs, rhs, dout = jnp.ones((m, k)), jnp.ones((g, k, n)), jnp.ones((m, n))
  sizes = jnp.full((g + 1,), 2, jnp.int32)
  out, vjp = jax.vjp(
    lambda lhs, rhs, existing: ops.gmm(
      lhs, rhs, sizes, existing_out=existing, config=config
    ),
    lhs,
    rhs,
    dout,
  )
  dlhs, drhs, dexisting = vjp(dout)
  np.testing.assert_array_equal(out, dout)
  np.testing.assert_array_equal(dlhs, jnp.zeros((m, k)))
  np.testing.assert_array_equal(drhs, jnp.zeros((g, k, n)))
  np.testing.assert_array_equal(dexisting, dout)
  got = ops.tgmm(lhs, dout, sizes, num_groups=g, config=config)
  np.testing.assert_array_equal(got, jnp.zeros((g, k, n)))


@pytest.mark.parametrize("interpret", [1, None, "yes", {}])
def test_interpret_is_a_bool_or_parameters(interpret):
  for call in (
    lambda: call_gmm(kernels.gmm_v2, interpret=interpret),
    lambda: call_tgmm(kernels.tgmm_v2, interpret=interpret),
  ):
    with pytest.raises(TypeError, match="`interpret` is .*InterpretParams"):
      call()
