"""A short training: its loss, what it prints, its curve, and bad flags."""

import contextlib
import io
import math
import re
import xml.etree.ElementTree as ET

import pytest

from testing.examples import corpus, loss_curve, train

_STEPS = 80
# What an untrained model costs is log(27) = 3.3 or more, and what the best
# guess from the frequencies of characters costs is 2.9.
_FALLS_BELOW = 2.3
_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory):
  """The file, and what is printed until it is written."""
  path = tmp_path_factory.mktemp("train") / "loss.svg"
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    status = train.main([f"--steps={_STEPS}", "--batch=8", f"--out={path}"])
  assert status == 0
  return path, printed.getvalue()


def _table(printed):
  """Step, loss and held-out loss of each line of progress."""
  row = re.compile(r"^ *(\d+) +(\d\.\d+) +(\d\.\d+) +\d+\.\d$", re.MULTILINE)
  return [(int(r[1]), float(r[2]), float(r[3])) for r in row.finditer(printed)]


def test_the_loss_falls(run):
  _, printed = run
  rows = _table(printed)
  assert [step for step, *_ in rows] == [1, *range(8, _STEPS + 1, 8)]
  _, first, first_held_out = rows[0]
  _, last, last_held_out = rows[-1]
  characters = corpus.text(0, 4000)
  for untrained in (first, first_held_out):
    assert untrained > math.log(len(corpus.alphabet())) - 0.1 > _FALLS_BELOW
  assert corpus.unigram(characters) > _FALLS_BELOW + 0.5
  for trained in (last, last_held_out):
    assert corpus.floor() < trained < _FALLS_BELOW


def test_it_prints_what_to_compare_with_and_a_sample(run):
  path, printed = run
  for name, level in (
    ("frequencies alone", corpus.unigram(corpus.text(0, 4000))),
    ("chance", corpus.floor()),
  ):
    assert f"{name}: {level:.3f} nats a character" in printed
  sample = printed.partition("\nit writes:\n\n")[2][:200]
  assert set(sample) <= set(corpus.alphabet())
  assert printed.endswith(f"\nwrote {path}\n")


def test_the_curve_holds_the_points(run):
  path, printed = run
  root = ET.parse(path).getroot()
  assert root.tag == f"{_SVG}svg"
  trained, held_out = (_points(root, f"series{i}") for i in range(2))
  assert [round(step) for step, _ in trained] == list(range(1, _STEPS + 1))
  rows = _table(printed)
  near = {"abs": 0.002}  # a hundredth of a pixel, and half of the last digit
  for (step, loss, held), (at, drawn) in zip(rows, held_out, strict=True):
    assert at == pytest.approx(step, abs=0.01)
    assert drawn == pytest.approx(held, **near)
    assert trained[step - 1][1] == pytest.approx(loss, **near)


def _points(root, kind):
  """A polyline in the units of the axes, by their own ticks."""
  (line,) = (e for e in root.iter(f"{_SVG}polyline") if e.get("class") == kind)
  pairs = [pair.split(",") for pair in line.get("points").split()]
  x, y = _axis(root, "x"), _axis(root, "y")
  return [(x(float(a)), y(float(b))) for a, b in pairs]


def _axis(root, name):
  """From a pixel to the number there: through the first and the last tick."""
  # The text of a tick of y stands 4 pixels below it.
  lower = 4 if name == "y" else 0
  ticks = [
    (float(e.get(name)) - lower, float(e.text))
    for e in root.iter(f"{_SVG}text")
    if e.get("class") == f"tick-{name}"
  ]
  (a, low), (b, high) = ticks[0], ticks[-1]
  assert len(ticks) > 2
  return lambda pixel: low + (pixel - a) / (b - a) * (high - low)


def test_a_curve_is_drawn_for_light_and_dark_and_says_what_it_is():
  series = {"a < b": [(1, 2.0), (2, 1.0)]}
  text = loss_curve.render(series, {"level & more": 1.5}, "<title>")
  root = ET.fromstring(text)
  assert "prefers-color-scheme: dark" in root.find(f"{_SVG}style").text
  assert root.get("aria-label") == root.find(f"{_SVG}title").text == "<title>"
  words = {e.text for e in root.iter(f"{_SVG}text")}
  assert {"step", "nats a character", "a < b", "level & more 1.50"} <= words


def test_a_curve_of_one_step():
  root = ET.fromstring(loss_curve.render({"a": [(1, 3.0)]}, {}, "t"))
  ((step, loss),) = _points(root, "series0")
  assert (step, loss) == pytest.approx((1, 3), abs=1e-3)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_cannot_be_drawn(loss):
  with pytest.raises(ValueError, match="want finite losses"):
    loss_curve.render({"a": [(1, loss)]}, {}, "t")
  with pytest.raises(ValueError, match="at least one"):
    loss_curve.render({"a": []}, {}, "t")


@pytest.mark.parametrize(
  "flags",
  [
    ["--steps=0"],
    ["--steps=many"],
    ["--steps=99999999999"],
    ["--batch=-1"],
    ["--seed=-2"],
    ["--seed=1.5"],
    ["--backend=gpu"],
    ["--stpes=3"],
  ],
)
def test_bad_flags(flags, capsys):
  with pytest.raises(SystemExit) as exit_:
    train.main(flags)
  assert exit_.value.code == 2
  (line,) = capsys.readouterr().err.splitlines()
  name, _, value = flags[0].partition("=")
  assert line.startswith("train: ")
  assert name in line and value in line


def test_a_file_that_cannot_be_written(tmp_path, capsys):
  assert train.main([f"--out={tmp_path}/none/loss.svg"]) == 1
  printed = capsys.readouterr()
  (line,) = printed.err.splitlines()
  assert "cannot be written to: No such file or directory" in line
  assert not printed.out  # nothing was trained first


def test_a_folder_is_no_file_for_a_curve(tmp_path, capsys):
  assert train.main([f"--out={tmp_path}"]) == 1
  assert "cannot be written to: Is a directory" in capsys.readouterr().err


def test_the_backend_reaches_the_products(tmp_path, capsys):
  """The kernels themselves do not run where there is no TPU, and say so."""
  out = tmp_path / "loss.svg"
  assert train.main(["--backend=pallas", f"--out={out}"]) == 1
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("train: backend='pallas' needs a program for TPU")
  assert not out.exists()  # nor is half of a curve left
