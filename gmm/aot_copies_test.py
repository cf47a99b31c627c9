"""No weight is copied or transposed in a step of training, whichever way it lies.

Programs are compiled ahead of time by the TPU compiler and `weight_copies` reads
what it made of them. The last tests show that it finds copies that are there.
"""  # noqa: E501

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from gmm import aot, layouts, ops
from testing import workloads

BF16 = jnp.bfloat16
CHIPS = ("v5e", "v5p", "v6e", "tpu7x")
G, M, LAYERS = 8, 512, 3
# Which way the weight lies -> (k, n) for which XLA lays it so. Weights have
# more bytes than activations do.
SHAPES = {"gkn": (256, 512), "gnk": (512, 192)}


def weight_bytes(k, n):
  return G * k * n * 2


def relayouts(compiled, min_bytes):
  """Copies of weight size; cutting a layer out of a stack is another thing."""
  found = aot.weight_copies(compiled, min_bytes=min_bytes)
  return [c for c in found if c.moves not in ("slice", "update")]


def step(lhs, weight, sizes, dout, *, config):
  """Forward, dlhs and drhs."""
  out, vjp = jax.vjp(
    lambda lhs, weight: ops.gmm(lhs, weight, sizes, config=config), lhs, weight
  )
  return out, *vjp(dout)


def specs(k, n):
  """Of `step`."""
  shapes = [
    ((M, k), BF16),
    ((G, k, n), BF16),
    ((G,), jnp.int32),
    ((M, n), BF16),
  ]
  return [aot.spec(*shape) for shape in shapes]


def compile_step(chip, layout, **flags):
  """Compiles the plain step, with weights that lie as `layout` says."""
  k, n = SHAPES[layout]
  config = ops.Config(chip=chip, **flags)
  return aot.compile_for(
    functools.partial(step, config=config),
    *specs(k, n),
    chip=chip,
    row_major=layout == "gkn",  # XLA's own choice is the other
  )


def layout_of_weight(compiled):
  (weight,) = [e for e in aot.entry_layouts(compiled) if len(e.dims) > 2]
  return weight.minor_to_major


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("chip", CHIPS)
def test_a_step(chip, layout):
  compiled = compile_step(chip, layout)
  assert layout_of_weight(compiled)[0] == (1 if layout == "gnk" else 2)
  assert not relayouts(compiled, weight_bytes(*SHAPES[layout]))
  text = compiled.as_text()
  for kernel in ("gmm_v2-nn", "gmm_v2-nt", "tgmm_v2-tn"):
    assert f"{kernel}-g_{G}-" in text


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("remat", [False, True])
def test_scan_over_stacked_layers(chip, layout, remat):
  k, n = SHAPES[layout]
  config = ops.Config(chip=chip)

  def layer(x, weights, sizes):
    up, down = weights
    hidden = jax.nn.relu(ops.gmm(x, up, sizes, config=config))
    return ops.gmm(hidden, down, sizes, config=config)

  if remat:
    layer = jax.checkpoint(layer)

  def loss(weights, x, sizes):
    x, _ = jax.lax.scan(lambda x, w: (layer(x, w, sizes), None), x, weights)
    return jnp.sum(x.astype(jnp.float32) ** 2)

  compiled = aot.compile_for(
    jax.grad(loss),
    (aot.spec((LAYERS, G, k, n), BF16), aot.spec((LAYERS, G, n, k), BF16)),
    aot.spec((M, k), BF16),
    aot.spec((G,), jnp.int32),
    chip=chip,
    row_major=layout == "gkn",
  )
  assert not relayouts(compiled, weight_bytes(k, n))
  moved = aot.weight_copies(compiled, min_bytes=weight_bytes(k, n), chip=chip)
  assert {c.times for c in moved if c.computation != "main"} <= {LAYERS, 1}


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("chip", CHIPS)
def test_weights_gathered_from_four_devices(chip, layout):
  k, n = SHAPES[layout]
  # Along the axis that is not in the lanes, so that shards lie as the whole.
  axis = 1 if layout == "gkn" else 2
  mesh = aot.mesh(chip, (4,), ("x",))
  along = [None, None, None]
  along[axis] = "x"
  config = ops.Config(chip=chip, rhs_layout=layout)

  def on_device(lhs, shard, sizes, dout):
    weight = jax.lax.all_gather(shard, "x", axis=axis, tiled=True)
    out, dlhs, drhs = step(lhs, weight, sizes, dout, config=config)
    drhs = jax.lax.psum_scatter(drhs, "x", scatter_dimension=axis, tiled=True)
    return out, dlhs, drhs

  fsdp = jax.shard_map(
    on_device,
    mesh=mesh,
    in_specs=(P("x"), P(*along), P(), P("x")),
    out_specs=(P("x"), P("x"), P(*along)),
    check_vma=False,
  )

  def spec(shape, dtype, *axes):
    sharding = NamedSharding(mesh, P(*axes))
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  compiled = aot.compile_for(
    fsdp,
    spec((4 * M, k), BF16, "x"),
    spec((G, k, n), BF16, *along),
    spec((G,), jnp.int32),
    spec((4 * M, n), BF16, "x"),
    chip=chip,
    row_major=layout == "gkn",
  )
  assert "all-gather" in compiled.as_text()
  assert not relayouts(compiled, weight_bytes(k, n))


@pytest.mark.parametrize("chip", [*CHIPS, "v4"])
def test_auto_is_what_the_compiler_does(chip):
  # A stack of layers lies as one layer does.
  shapes = [(w.g, w.k, w.n) for w in workloads.WORKLOADS]
  shapes += [(1, 256, 100), (5, 130, 100), (6, 100, 130), (64, 8, 256)]
  stacks = [(2, *shape) for shape in shapes[:8]]
  entries = []
  for i in range(0, len(shapes + stacks), 4):  # HBM is too small for all
    compiled = aot.compile_for(
      lambda *weights: [w[:0] for w in weights],
      *(aot.spec(shape, BF16) for shape in (shapes + stacks)[i : i + 4]),
      chip=chip,
      row_major=False,
    )
    entries += aot.entry_layouts(compiled)
  assert len(entries) == len(shapes + stacks)
  groups_in_lanes = set()
  for entry in entries:
    dims = entry.dims[-3:]
    lanes = entry.minor_to_major[0] - (len(entry.dims) - 3)
    if lanes == 0:
      groups_in_lanes.add(dims)
    else:
      assert lanes == layouts.minor_axis(dims, jnp.dtype(BF16)), entry
  # No kernel can read these as they lie: README says what to do about them.
  assert groups_in_lanes == {(128, 2880, 2880)}


# ---- the check can fail


@pytest.mark.parametrize("chip", CHIPS)
def test_the_explicit_transpose_is_a_copy_of_the_weight(chip):
  compiled = compile_step(chip, "gkn", use_gmm_v2_transposed_rhs_dlhs=False)
  size = weight_bytes(*SHAPES["gkn"])
  (copy,) = relayouts(compiled, size)
  assert copy.moves == "relayout"
  assert copy.bytes == size
  (priced,) = aot.weight_copies(compiled, min_bytes=size, chip=chip)
  assert priced.seconds == copy.seconds  # the program knows its chip
  assert priced.seconds > 0


def test_in_the_other_layout_that_transpose_is_free():
  compiled = compile_step("v6e", "gnk", use_gmm_v2_transposed_rhs_dlhs=False)
  assert not relayouts(compiled, weight_bytes(*SHAPES["gnk"]))


@pytest.mark.parametrize("layout", SHAPES)
def test_the_wrong_layout_costs_copies(layout):
  other = {"gkn": "gnk", "gnk": "gkn"}[layout]
  compiled = compile_step("v6e", layout, rhs_layout=other)
  # The weight for both products that read it (once, if XLA shares the copy),
  # and its gradient.
  assert len(relayouts(compiled, weight_bytes(*SHAPES[layout]))) >= 2
