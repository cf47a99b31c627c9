"""What passes the bench and what does not, with programs and times made up."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reference import oracle
from tools import bench, bench_clock, bench_report
from tools import bench_programs as programs


def row(program, seconds, **more):
  base = {
    "shape": "s",
    "level": "kernel",
    "program": program,
    "seconds": seconds,
    "clock": "wall",
    "spread": 0.01,
    "refused": None,
    "checks": [],
  }
  return base | more


@pytest.mark.parametrize(
  ("transpose", "gate", "passes"),
  [(2.0, 1.0, True), (0.9, 1.0, False), (0.9, None, True), (1.2, 1.3, False)],
)
def test_the_gate(transpose, gate, passes):
  rows = [row("nt", 1.0), row("transpose", transpose), row("megablox", 0.1)]
  found = bench_report.failures(rows, gate, times_count=True)
  assert (not found) == passes
  assert not bench_report.failures(rows, gate, times_count=False)
  if not passes:
    assert f"takes {transpose:.3f} times as long as NT" in found[0]


@pytest.mark.parametrize(
  ("transpose", "spreads", "passes"),
  [
    (1.2, (0.2, 0.2), True),
    (1.2, (0.3, 0.0), False),
    (1.2, (0.0, 0.3), False),
    (3.0, (0.3, 0.4), True),  # slow of the one beats fast of the other
    (0.9, (0.0, 0.9), False),
  ],
)
def test_times_that_are_spread_too_far_for_the_gate(transpose, spreads, passes):
  rows = [
    row("nt", 1.0, spread=spreads[0]),
    row("transpose", transpose, spread=spreads[1]),
  ]
  found = bench_report.failures(rows, 1.0, times_count=True)
  assert len(found) == (not passes)
  if transpose == 1.2 and not passes:
    assert "spread by 30% of their median, too much to tell" in found[0]
  assert not bench_report.failures(rows, None, times_count=True)


def test_wrong_results_fail_without_a_gate():
  wrong = ["dlhs of nt against oracle: 3 of the bound, WRONG"]
  ours = row("nt", 1.0, checks=wrong)
  peer = row("megablox", 1.0, checks=wrong, refused="refused: no")
  (line,) = bench_report.failures([ours, peer], None, times_count=False)
  assert line.endswith("WRONG")
  refused = row("transpose", None, refused="refused: out of memory")
  (line,) = bench_report.failures([refused], None, times_count=False)
  assert "transpose did not run: refused: out of memory" in line


# ---- the whole program, as on a chip

RIGHT = {"nt": 0, "transpose": 0}
TIMES = {"nt": [1.0, 1.0, 1.1], "transpose": [2.0, 2.1, 2.0]}


@pytest.fixture(name="run")
def _run(monkeypatch, capsys):
  """Runs with errors added to results and with times: (status, lines)."""

  def run(*flags, errors=RIGHT, times=TIMES):
    def ours(level, target):
      return tuple(
        programs.Program(name=name, level=level, fn=off_by(error))
        for name, error in errors.items()
      )

    def clock(ready, sets, method):
      del sets, method
      found = {
        one.name: bench_clock.Timing(clock="profile", seconds=times[one.name])
        for one in ready
      }
      return found, None

    kind = types.SimpleNamespace(device_kind="TPU v6 lite", platform="tpu")
    devices = jax.devices
    monkeypatch.setattr(
      jax,
      "devices",
      lambda platform=None: [kind] if platform == "tpu" else devices(platform),
    )
    monkeypatch.setattr(programs, "ours", ours)
    monkeypatch.setattr(programs, "compile_on", lambda fn, *_, **__: fn)
    monkeypatch.setattr(bench_clock, "times", clock)
    shape = ["--m", "24", "--g", "2", "--k", "16", "--n", "8", "--peers"]
    few = ["--level", "kernel", "--estimate", "model"]
    status = bench.main([*shape, *few, *flags])
    return status, capsys.readouterr().out.splitlines()

  return run


def off_by(error):
  """The product, with an error in one element."""

  def dlhs(dout, rhs, sizes):
    arrays = (np.asarray(x, np.float64) for x in (dout, rhs))
    out = oracle.gmm(*arrays, np.asarray(sizes), transpose_rhs=True)
    out[0, 3] += error
    return jnp.asarray(out, dout.dtype)

  return dlhs


def failures(lines):
  return [line for line in lines if line.startswith("FAIL: ")]


def test_what_is_right_and_fast_passes(run):
  status, lines = run("--gate", "1.0")
  assert (status, lines[-1]) == (0, "PASS")
  assert any("transpose / nt    2.000" in line for line in lines)


@pytest.mark.parametrize(
  ("flags", "status"), [([], 0), (["--gate", "0.8"], 0), (["--gate", "1"], 1)]
)
def test_what_is_slow_does_not_pass_the_gate(run, flags, status):
  times = {"nt": [2.0] * 3, "transpose": [1.8] * 3}
  got, lines = run(*flags, times=times)
  assert got == status
  assert lines[-1] == ("FAIL" if status else "PASS")
  assert len(failures(lines)) == status
  for line in failures(lines):
    assert "takes 0.900 times as long as NT; the gate wants 1.0" in line


@pytest.mark.parametrize("error", [1.0, np.nan])
@pytest.mark.parametrize(
  ("wrong", "against"),
  [
    (["nt"], ["nt against oracle", "nt against transpose"]),
    (["transpose"], ["nt against transpose", "transpose against oracle"]),
    (["nt", "transpose"], ["nt against oracle", "transpose against oracle"]),
  ],
)
def test_wrong_results_do_not_pass_however_fast(run, error, wrong, against):
  errors = {name: error if name in wrong else 0 for name in RIGHT}
  for flags in ([], ["--gate", "1.0"]):
    status, lines = run(*flags, errors=errors)
    assert (status, lines[-1]) == (1, "FAIL")
    said = failures(lines)
    for words in against:
      assert any(f"dlhs of {words}: " in line for line in said), said
    if error == 1 and len(wrong) == 2:
      # Alike, so that only the oracle knows.
      assert not any("nt against transpose" in line for line in said)


def test_a_number_that_is_too_wide_has_a_space_before_it(run):
  _, lines = run(times={"nt": [1e9] * 3, "transpose": [1e9] * 3})
  (nt,) = [line for line in lines if " nt " in line and "profile" in line]
  assert len(nt.split()) == 13
