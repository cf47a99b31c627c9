"""A program for processes that train one MoE layer together.

    from testing import distributed; distributed.main()

with a JSON object of `Job`'s fields as its argument. Whole numbers and steps
of 1 / 32 keep every sum exact in float32 three times, whatever its order; the
losses alone are rounded.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from testing import compiling, processes, recipes, sharding

DEVICES = 4
G, K, N = 8, 8, 16
M = 12  # rows of a block
STEPS, RATE = 3, 1 / 32
# For each device: the third has no tokens, and some experts none on any device.
SIZES = np.array(
  [
    [5, 0, 3, 0, 0, 2, 0, 0],
    [0, 12, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 0, 0],
    [3, 0, 0, 0, 9, 0, 0, 0],
  ],
  np.int32,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """What one process does.

  Attributes:
    coordinator: address of the first process.
    count: of the processes.
    index: of this one.
    out: where the first process writes what comes out: arrays by their names.
  """

  coordinator: str
  count: int
  index: int
  out: str


def main() -> None:
  """Joins the other processes, trains both layers, and writes the results."""
  processes.leave_with_parent()
  job = Job(**json.loads(sys.argv[1]))
  _join(job)
  results = train()
  if job.index == 0:
    np.savez(job.out, **results)
  # Nobody leaves while another still talks to it.
  jax.distributed.shutdown()


def train() -> dict[str, np.ndarray]:
  """Trains both layers on all devices; arrays by their names in `_train`."""
  return {
    f"{name}.{key}": np.asarray(value)
    for name, layer in LAYERS.items()
    for key, value in _train(*layer()).items()
  }


def _join(job: Job) -> None:
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", DEVICES // job.count)
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  _talk_on_loopback()
  jax.distributed.initialize(
    job.coordinator,
    num_processes=job.count,
    process_id=job.index,
    initialization_timeout=60,
  )
  counts = jax.device_count(), jax.local_device_count()
  if counts != (DEVICES, DEVICES // job.count):
    raise RuntimeError(f"{counts} devices and devices of this process")


def _talk_on_loopback() -> None:
  """Gloo looks up this host's name, which a sandbox may not know."""
  from jax._src.lib import _jax

  make = _jax.make_gloo_tcp_collectives

  def make_on_loopback(**keywords: Any) -> Any:
    return make(**keywords, hostname="127.0.0.1")

  _jax.make_gloo_tcp_collectives = make_on_loopback


# ---- the layers


def blocks(sizes: np.ndarray) -> tuple[np.ndarray, ...]:
  """x, its targets, up and down for blocks of rows; NaN is not to be read."""
  rows = len(sizes) * M
  x = sharding.poison_rows(sharding.integers(0, rows, K), sizes)
  target = sharding.integers(1, rows, K) + 0.5
  up = sharding.poison_groups(sharding.integers(2, G, K, N), sizes)
  down = sharding.poison_groups(sharding.integers(3, G, N, K), sizes)
  return x, target, up, down


def _in_shards() -> tuple[Any, ...]:
  """Experts on one axis and rows on the other; both cross the processes."""
  a, b, c, d = jax.devices()
  mesh = Mesh(np.array([[a, c], [d, b]]), ("expert", "data"))
  rows, weight = P("data"), P("expert", "data")
  experts_in_shards = recipes.load()["experts_in_shards"]

  def layer(x: Any, up: Any, down: Any, sizes: Any) -> Any:
    hidden = jax.nn.relu(experts_in_shards(x, up, sizes))
    return experts_in_shards(hidden, down, sizes)

  return layer, mesh, (rows, weight), SIZES[:2]


def _exchanged() -> tuple[Any, ...]:
  """Tokens that travel to their expert's device, and back."""
  mesh = Mesh(np.array(jax.devices()), ("expert",))
  up_layer, down_layer = (
    recipes.load()["tokens_exchanged"](M) for _ in range(2)
  )

  def layer(x: Any, up: Any, down: Any, sizes: Any) -> Any:
    return down_layer(jax.nn.relu(up_layer(x, up, sizes)), down, sizes)

  return layer, mesh, (P("expert"), P("expert")), SIZES


LAYERS = {"in_shards": _in_shards, "exchanged": _exchanged}


def _train(
  layer: Callable[..., Any],
  mesh: Mesh,
  specs: tuple[P, P],
  sizes: np.ndarray,
) -> dict[str, np.ndarray]:
  """Steps of gradient descent.

  Returns:
    up and down; losses, one for each step; held, the share of the weights that
    this process holds.
  """
  rows, weight = (NamedSharding(mesh, spec) for spec in specs)

  def put(x: np.ndarray, place: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(x.shape, place, lambda i: x[i])

  x, target, *weights = blocks(sizes)
  x, target, sizes = (put(a, rows) for a in (x, target, sizes))
  weights = [put(w, weight) for w in weights]

  def loss(weights: Any, x: Any, target: Any, sizes: Any) -> jax.Array:
    return jnp.sum(jnp.abs(layer(x, *weights, sizes) - target))

  @functools.partial(jax.jit, compiler_options=compiling.fast_options())
  def step(weights: Any, *batch: Any) -> tuple[jax.Array, Any]:
    value, grads = jax.value_and_grad(loss)(weights, *batch)
    new = jax.tree.map(lambda w, d: w - RATE * d, weights, grads)
    return value, jax.lax.with_sharding_constraint(new, weight)

  losses = []
  with jax.set_mesh(mesh):
    for _ in range(STEPS):
      value, weights = step(weights, x, target, sizes)
      losses.append(float(value))
    whole = jax.jit(lambda w: w, out_shardings=NamedSharding(mesh, P()))
    up, down = whole(weights)
  held = sum(s.data.size for s in weights[0].addressable_shards) / up.size
  return {"losses": losses, "up": up, "down": down, "held": held}
