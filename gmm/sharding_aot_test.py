"""docs/sharding.md's programs, compiled for TPUs: no weight is copied.

The collectives move weights, and nothing else does. Every program is compiled
with its gradients, for each chip and for four and eight devices once.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gmm import aot
from testing import recipes

BF16 = jnp.bfloat16
# Weights have more bytes than activations do, on each device.
G, K, N, M = 8, 256, 512, 128


def struct(mesh, shape, *axes, dtype=BF16):
  sharding = NamedSharding(mesh, P(*axes))
  return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def expert_parallel(devices):
  axes = {"expert": devices}
  return axes, lambda spec: (
    [spec((M, K)), spec((G, K, N), "expert")],
    spec((G,), dtype=jnp.int32),
    spec((M, N)),
  )


def fsdp(devices):
  axes = {"data": devices}
  return axes, lambda spec: (
    [spec((devices * M, K), "data"), spec((G, K, N), None, "data")],
    spec((devices, G), "data", dtype=jnp.int32),
    spec((devices * M, N), "data"),
  )


def experts_in_shards(devices):
  axes = {"expert": devices // 2, "data": 2}
  return axes, lambda spec: (
    [spec((2 * M, K), "data"), spec((G, K, N), "expert", "data")],
    spec((2, G), "data", dtype=jnp.int32),
    spec((2 * M, N), ("data", "expert")),
  )


def tensor_parallel(devices, lanes=128):
  axes, n = {"model": devices}, lanes * devices
  columns, rows = (None, None, "model"), (None, "model")
  return axes, lambda spec: (
    [
      spec((M, K)),
      spec((G, K, n), *columns),
      spec((G, K, n), *columns),
      spec((G, n, K), *rows),
    ],
    spec((G,), dtype=jnp.int32),
    spec((M, K)),
  )


def compile_step(program, layout, chip):
  """Compiles a program with its gradients, for `layout`'s axes and specs."""
  axes, specs = layout
  mesh = aot.mesh(chip, tuple(axes.values()), tuple(axes))
  weights, sizes, dout = specs(functools.partial(struct, mesh))

  def step(weights, sizes, dout):
    out, vjp = jax.vjp(lambda *weights: program(*weights, sizes), *weights)
    return out, *vjp(dout)

  with jax.set_mesh(mesh):
    compiled = aot.compile_for(
      step,
      weights,
      sizes,
      dout,
      chip=chip,
      out_shardings=(dout.sharding, *(x.sharding for x in weights)),
    )
  shard = min(
    x.dtype.itemsize * np.prod(x.sharding.shard_shape(x.shape))
    for x in weights[1:]
  )
  return compiled, aot.weight_copies(compiled, min_bytes=int(shard))


# TODO: 8 alone, when jax 0.10 is no longer supported: it cannot read the HLO
# that libtpu makes of some collectives on eight devices of tpu7x.
TPU7X_MOST = 8 if jax.__version_info__ >= (0, 12) else 4
GATHERED = ("all-gather", "reduce-scatter")


@pytest.mark.parametrize(
  ("layout", "collectives", "places"),
  [
    (expert_parallel, ["all-reduce"], [("v6e", 8), ("tpu7x", 4)]),
    (fsdp, GATHERED, [("v6e", 4), ("tpu7x", TPU7X_MOST)]),
    (experts_in_shards, GATHERED, [("v6e", 8), ("tpu7x", 4)]),
    (tensor_parallel, ["all-reduce"], [("v6e", 4), ("tpu7x", TPU7X_MOST)]),
  ],
)
def test_no_weight_is_copied(layout, collectives, places):
  for chip, devices in places:
    program = recipes.load()[layout.__name__]
    compiled, copies = compile_step(program, layout(devices), chip)
    assert not copies, (chip, devices)
    text = compiled.as_text()
    for name in (*collectives, "gmm_v2-nn", "gmm_v2-nt", "tgmm_v2-tn"):
      assert name in text, (chip, devices, name)


def test_shards_of_few_lanes_are_copied():
  """The check can fail: "auto" takes k for the lanes of so narrow a shard."""
  program = recipes.load()["tensor_parallel"]
  _, copies = compile_step(program, tensor_parallel(4, lanes=64), "v6e")
  assert copies
