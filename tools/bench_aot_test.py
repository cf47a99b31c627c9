"""All that the bench runs on a chip compiles for it, here, without one."""

import re

import pytest

from tools import bench

SHAPE = ["--m", "64", "--g", "4", "--k", "256", "--n", "128"]
WEIGHT = 4 * 256 * 128 * 2


@pytest.mark.parametrize("chip", ["v6e", "tpu7x"])
def test_every_program_compiles(capsys, chip):
  assert bench.main([*SHAPE, "--compile_for", chip]) == 0
  said = capsys.readouterr().err
  line = rf"^{chip} own (\w+) (.+): compiled in [^,]*, (?:copies (\d+)|whose)"
  found = {
    (level, name): copied
    for level, name, copied in re.findall(line, said, re.MULTILINE)
  }
  for level in ("kernel", "offset", "vjp"):
    assert found[level, "nt"] == "0"
    # The copy that the two are timed for.
    assert found[level, "transpose"] == str(WEIGHT)
    assert (level, "draw") in found
    assert (level, "compare dlhs") in found
  assert {("vjp", "compare out"), ("vjp", "compare drhs")} <= set(found)
  assert "refused" not in said


def test_an_unknown_chip(capsys):
  assert bench.main(["--compile_for", "v9"]) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("error: `chip` is 'v9'; known chips: v4")
