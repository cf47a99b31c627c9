"""Two processes that train a layer together agree with one, and the oracle."""

import os

# Before jax is imported.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from testing import distributed, processes, sharding
from testing.distributed import RATE, SIZES, STEPS

CODE = "from testing import distributed; distributed.main()"


def trained_by(count, folder):
  """What processes that share four devices come to."""
  out = folder / "results.npz"
  with processes.free_port() as port:
    job = distributed.Job(
      coordinator=f"127.0.0.1:{port}", count=count, index=0, out=str(out)
    )
    jobs = [dataclasses.replace(job, index=i) for i in range(count)]
    processes.run(
      CODE,
      [[json.dumps(dataclasses.asdict(job))] for job in jobs],
      folder=folder,
      environment={"XLA_FLAGS": ""},
      timeout=200,
    )
  with np.load(out) as results:
    return dict(results)


@pytest.fixture(scope="module", name="results")
def _results(tmp_path_factory):
  assert jax.device_count() >= distributed.DEVICES, "XLA_FLAGS came too late"
  folder = tmp_path_factory.mktemp("processes")
  return {1: distributed.train(), 2: trained_by(2, folder)}


@functools.cache
def expected(blocks):
  """Gradient descent in float64 by the oracle: weights and losses."""
  sizes = SIZES[:blocks]
  x, target, up, down = (a.astype(float) for a in distributed.blocks(sizes))
  losses = []
  for _ in range(STEPS):
    hidden = sharding.product(x, up, sizes)
    passed = np.where(hidden > 0, hidden, 0)
    off = sharding.product(passed, down, sizes) - target
    losses.append(np.abs(off).sum())
    # The sign of no sum may depend on how it was rounded.
    assert np.abs(off).min() > 1e-3
    dpassed, ddown = sharding.product_vjp(passed, down, sizes, np.sign(off))
    dhidden = np.where(hidden > 0, dpassed, 0)
    _, dup = sharding.product_vjp(x, up, sizes, dhidden)
    up, down = up - RATE * dup, down - RATE * ddown
  return up, down, losses


@pytest.mark.parametrize(
  ("layer", "blocks"), [("in_shards", 2), ("exchanged", 4)]
)
@pytest.mark.parametrize("count", [1, 2])
def test_processes_agree_with_the_oracle(results, layer, blocks, count):
  up, down, losses = expected(blocks)
  got = {
    key.split(".")[1]: value
    for key, value in results[count].items()
    if key.startswith(layer)
  }
  sharding.assert_equal([got["up"], got["down"]], [up, down])
  np.testing.assert_allclose(got["losses"], losses, rtol=1e-5)
  assert losses[-1] < losses[0]
  # Each process has its share of the weights, and no more.
  assert got["held"] == 1 / count


def test_what_a_failing_process_printed_is_shown(tmp_path):
  code = (
    "import sys, time\n"
    "print('I am', sys.argv[1], flush=True)\n"
    "time.sleep(60 if sys.argv[1] == 'slow' else 0)\n"
    "sys.exit(sys.argv[1] == 'bad')\n"
  )
  run = functools.partial(processes.run, code, folder=tmp_path, environment={})
  run([["good"], ["good"]], timeout=60)
  with pytest.raises(RuntimeError, match=r"(?s)process 1 .*status 1.*I am bad"):
    run([["slow"], ["bad"]], timeout=60)
  with pytest.raises(TimeoutError, match=r"(?s)\[0\] took .* 1 s.*I am slow"):
    run([["slow"], ["good"]], timeout=1)
