"""The chip table, and who may name the chip."""

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from gmm.kernels import chip


@pytest.mark.parametrize("name", chip.CHIPS)
def test_rows_are_whole(name):
  spec = chip.resolve(name)
  assert spec.name == name
  assert spec.device_kinds
  assert spec.num_cores in (1, 2)
  assert spec.mxu_size in (128, 256)
  assert {"bfloat16", "float32"} <= spec.mxu_dtypes
  assert 0 < spec.vmem_budget < spec.vmem_bytes


@pytest.mark.parametrize(
  ("name", "cores", "lacks"),
  [
    ("v4", 2, {"int8", "float8_e4m3fn", "float8_e5m2"}),
    ("v5e", 1, {"float8_e4m3fn"}),
    ("v5p", 2, {"float8_e4m3fn"}),
    ("v6e", 1, {"float8_e4m3fn"}),
    ("tpu7x", 1, {"int8"}),
  ],
)
def test_what_mxus_take(name, cores, lacks):
  spec = chip.resolve(name)
  formats = {"bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2"}
  assert spec.num_cores == cores
  assert spec.mxu_dtypes == formats - lacks


@pytest.mark.parametrize("name", chip.CHIPS)
def test_an_abstract_mesh_names_the_chip(name):
  spec = chip.resolve(name)
  for kind in spec.device_kinds:
    device = AbstractDevice(
      device_kind=kind, num_cores=spec.num_cores, platform="tpu"
    )
    with jax.sharding.use_abstract_mesh(
      AbstractMesh((), (), abstract_device=device)
    ):
      assert chip.resolve(None) == spec
      assert not chip.is_default(None)
      assert chip.resolve("v4").name == "v4"  # what is said goes first


def test_without_a_tpu_v6e_is_assumed():
  assert chip.resolve(None).name == "v6e"
  assert chip.is_default(None)
  assert not chip.is_default("v6e")


def test_an_unknown_tpu_is_an_error():
  device = AbstractDevice(device_kind="TPU v9", num_cores=1, platform="tpu")
  mesh = AbstractMesh((), (), abstract_device=device)
  with (
    jax.sharding.use_abstract_mesh(mesh),
    pytest.raises(ValueError, match="TPU v9.*v4, v5e, v5p, v6e, tpu7x"),
  ):
    chip.resolve(None)


def test_unknown_names_are_errors():
  with pytest.raises(ValueError, match="`chip` is 'v3'.*known.*v6e"):
    chip.resolve("v3")
  with pytest.raises(TypeError, match="`chip` is 6"):
    chip.resolve(6)
