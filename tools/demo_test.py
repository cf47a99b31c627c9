"""The demo and the CPU benchmark, small: what they print, how they end."""

import numpy as np
import pytest

from gmm import ops
from tools import bench_cpu, demo, models, moe_block

_SMALL = ["--scale=64", "--tokens=5", "--experts=4", "--top_k=2"]


@pytest.mark.parametrize("dtype", demo.DTYPES)
def test_it_passes(dtype, capsys):
  status = demo.main([*_SMALL, "--backends=xla,auto", f"--dtype={dtype}"])
  printed = capsys.readouterr().out
  assert status == 0, printed
  assert printed.rstrip().endswith("PASS")
  for what in (
    "wi forward",
    "wo dlhs",
    "wi drhs",
    "block drouter",
    "block dwo",
  ):
    assert what in printed
  for path in demo.PATHS:
    assert path in printed


def test_interpreted_kernels_pass(capsys):
  status = demo.main([*_SMALL, "--backends=interpret"])
  assert status == 0, capsys.readouterr().out


def test_a_wrong_product_fails(monkeypatch, capsys):
  right = ops.tgmm
  monkeypatch.setattr(
    ops, "tgmm", lambda *args, **options: right(*args, **options) * 1.001
  )
  assert demo.main([*_SMALL, "--backends=xla"]) == 1
  printed = capsys.readouterr().out
  assert "WRONG" in printed
  assert printed.rstrip().endswith("FAIL")


@pytest.mark.parametrize(
  ("args", "says"),
  [
    (["--model=gpt-2"], "`model` is 'gpt-2'; known models: gemma4-26b-a4b"),
    (["--scale=0"], "`scale` is 0"),
    (["--experts=2", "--top_k=3"], "`top_k` is 3 and `experts` is 2"),
  ],
)
def test_sizes_that_make_no_model(args, says, capsys):
  assert demo.main(args) == 2
  assert says in capsys.readouterr().err


@pytest.mark.parametrize("args", [["--tokens=0"], ["--backends=gpu"]])
def test_bad_flags(args, capsys):
  with pytest.raises(SystemExit) as exit_:
    demo.main(args)
  assert exit_.value.code == 2
  assert args[0].split("=")[1] in capsys.readouterr().err


def test_models_keep_their_proportions():
  for name, whole in models.MODELS.items():
    small = models.scaled(name, scale=16)
    assert small.hidden == whole.hidden // 16
    assert small.intermediate == whole.intermediate // 16
    assert small.top_k == whole.top_k <= small.experts <= whole.experts


def test_the_reference_block_by_differences():
  """A directional derivative of the float64 block, against its gradients."""
  rng = np.random.default_rng(1)
  t, h, f, e = 6, 4, 3, 3

  def normal(*shape):
    return rng.standard_normal(shape)

  weights = moe_block.Weights(
    normal(t, h), normal(h, e), normal(e, h, 2 * f), normal(e, f, h)
  )
  experts = np.argsort(weights.tokens @ weights.router, axis=1)[:, -2:]
  target = normal(t, h)
  _, gradient = moe_block.reference_gradients(weights, experts, target)
  way = moe_block.Weights(*(rng.standard_normal(w.shape) for w in weights))
  step = 1e-5

  def loss(sign):
    moved = (w + sign * step * d for w, d in zip(weights, way, strict=True))
    return moe_block.reference_gradients(
      moe_block.Weights(*moved), experts, target
    )[0]

  want = sum(np.sum(g * d) for g, d in zip(gradient, way, strict=True))
  got = (loss(1) - loss(-1)) / (2 * step)
  # The error of a central difference: step^2, and rounding over step.
  np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-8)


def test_the_benchmark_prints_a_row_for_each_size(capsys):
  bench_cpu.main(
    ["--m", "64", "--g", "2", "4", "--k", "16", "--n", "16", "--reps", "1"]
  )
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 2 + 2
  assert "ragged/ours" in lines[1]
