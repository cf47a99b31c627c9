"""The report's page and table as text: well formed, faithful, and safe."""

import copy
import html.parser
import json
import math
import re

import pytest

from testing import peers, workloads
from tools.report import page as report_page
from tools.report import sample as report_sample
from tools.report import svg as report_svg
from tools.report import terminal as report_table
from tools.report.values import digits

_VOID = {"meta", "link", "br"}
_HOSTILE = "</script><script>alert(1)</script><!-- \" ' & <b>"


class Page(html.parser.HTMLParser):
  """Elements that close in order, the numbers, and the text of each kind."""

  def __init__(self, text):
    super().__init__()
    self.open, self.tags, self.numbers, self.ids = [], [], [], []
    self.text = ""
    self.embedded = ""
    self.feed(text)
    self.close()
    assert not self.open

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if "id" in dict(attrs):
      self.ids.append(dict(attrs)["id"])
    if tag not in _VOID:
      self.open.append(tag)
    if tag == "data":
      self.numbers.append([dict(attrs), ""])

  def handle_startendtag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_endtag(self, tag):
    assert self.open.pop() == tag, f"</{tag}> closes another"

  def handle_data(self, text):
    if "data" in self.open:
      self.numbers[-1][1] += text
    if "script" in self.open:
      self.embedded += text
    elif "style" not in self.open:
      self.text += text


def _at(report, dotted):
  here = report
  for key in dotted.split("."):
    key = key.replace("~1", ".").replace("~0", "~")
    here = here[int(key)] if isinstance(here, list) else here[key]
  return here


def _check_number(report, attributes, text):
  expected = _at(report, attributes["data-path"])
  if "data-times" in attributes:
    expected *= _at(report, attributes["data-times"])
  if "data-over" in attributes:
    expected /= _at(report, attributes["data-over"])
  value = float(attributes["value"])
  assert math.isclose(value, expected, rel_tol=1e-12), attributes
  shown = float(text.replace(",", ""))
  scaled = expected * float(attributes.get("data-scale", 1))
  after_point = len(text.partition(".")[2])
  assert abs(shown - scaled) <= 0.5000001 * 10.0**-after_point, attributes
  assert shown != 0 or abs(scaled) < 0.05, f"{attributes} shown as {text}"


def _numbers_below(value, path=()):
  if isinstance(value, dict):
    for key, one in value.items():
      yield from _numbers_below(one, (*path, key))
  elif isinstance(value, list):
    for i, one in enumerate(value):
      yield from _numbers_below(one, (*path, i))
  elif isinstance(value, (int, float)) and not isinstance(value, bool):
    yield ".".join(map(str, path))


@pytest.mark.parametrize("chips", [("v6e",), ("v6e", "v5e")])
def test_every_number_on_the_page_is_the_reports(chips):
  report = report_sample.report(chips)
  page = Page(report_page.render(report))
  for attributes, text in page.numbers:
    _check_number(report, attributes, text)
  assert json.loads(page.embedded) == report
  assert len(page.ids) == len(set(page.ids))


def test_every_number_of_the_report_is_on_the_page():
  report = report_sample.report()
  shown = set()
  for attributes, _ in Page(report_page.render(report)).numbers:
    keys = ("data-path", "data-over", "data-times")
    shown |= {attributes[key] for key in keys if key in attributes}
  # Said in words, or only as a picture with its counts beside it.
  elsewhere = re.compile(
    r"version|copies\.layers|.*\.(depth|visits\.groups\.\d+\.\d"
    r"|visits\.visits\.\d+\.rows_run)"
    r"|products\.\d+\.estimates\.(skew|zipf|mean\+-1)"
    r"\.(mxu_seconds|dma_seconds|idle_seconds|(roofline|dma)_share)"
  )
  missing = {
    path
    for path in _numbers_below(report)
    if path not in shown and not elsewhere.fullmatch(path)
  }
  assert not missing
  for name in report_sample.SIZES:
    assert f"products.0.estimates.{name}.seconds" in shown


def test_a_wrong_number_would_be_found():
  report = report_sample.report()
  page = Page(report_page.render(report))
  report["products"][0]["bundles"] += 1
  with pytest.raises(AssertionError):
    for attributes, text in page.numbers:
      _check_number(report, attributes, text)


def _hostile(value):
  """The report with hostile text for each text that is not a chip or mode."""
  if isinstance(value, dict):
    return {
      key: one if key in ("chip", "mode", "bound") else _hostile(one)
      for key, one in value.items()
    }
  if isinstance(value, list):
    return [_hostile(one) for one in value]
  return _HOSTILE if isinstance(value, str) else value


def test_hostile_names_stay_text():
  report = _hostile(report_sample.report())
  report["products"][1]["error"] = _HOSTILE
  report["products"][2]["mode"] = _HOSTILE
  report["products"][2]["estimates"][_HOSTILE + ".npy"] = {"seconds": 1e-3}
  text = report_page.render(report)
  page = Page(text)
  assert [tag for tag, _ in page.tags].count("script") == 1
  assert "b" not in [tag for tag, _ in page.tags]
  assert "<!--" not in text
  assert json.loads(page.embedded) == report
  assert _HOSTILE in page.text
  for attributes, shown in page.numbers:
    _check_number(report, attributes, shown)


def test_hostile_chips_stay_text():
  report = report_sample.report()
  report["chips"][_HOSTILE] = report["chips"].pop("v6e")
  for product in report["products"]:
    product["chip"] = _HOSTILE
  report["copies"]["chip"] = _HOSTILE
  page = Page(report_page.render(report))
  assert [tag for tag, _ in page.tags].count("script") == 1
  assert _HOSTILE in page.text


def test_the_page_asks_for_nothing_and_runs_nothing():
  page = Page(report_page.render(report_sample.report(("v6e", "v5e"))))
  for tag, attributes in page.tags:
    assert not any(name.startswith("on") for name in attributes)
    assert "src" not in attributes
    assert attributes.get("href", "data:,") == "data:,"
    if tag == "script":
      assert attributes["type"] == "application/json"


def test_pictures_say_what_they_show():
  text = report_page.render(report_sample.report())
  found = re.findall(r'<svg [^>]*role="img".*?<title>.+?</title>', text)
  assert len(found) == text.count('role="img"') > 20
  assert text.count("<desc>") == len(found)


@pytest.mark.parametrize(
  "drop", ["title", "jax", "libtpu", "chips", "products", "copies", "notes"]
)
def test_a_part_may_be_missing(drop):
  report = report_sample.without(report_sample.report(), drop)
  Page(report_page.render(report))
  report_table.text_table(report)


@pytest.mark.parametrize(
  "drop",
  [
    "roofline",
    "estimates",
    "vmem",
    "arms",
    "tiles",
    "kernel",
    "workload",
    "mode",
    "visits",
    "dtype",
    "bundles",
  ],
)
def test_a_part_of_a_product_may_be_missing(drop):
  report = report_sample.report()
  for part in (None, {}):
    bare = copy.deepcopy(report)
    bare["products"][0] = report_sample.without(report["products"][0], drop)
    if part is None:
      bare["products"][0][drop] = None
    for attributes, text in Page(report_page.render(bare)).numbers:
      _check_number(bare, attributes, text)
    report_table.text_table(bare)


def test_reports_of_nothing_and_of_refusals():
  Page(report_page.render({}))
  report = report_sample.report()
  keys = ("chip", "workload", "mode")
  report["products"] = [
    {key: product[key] for key in keys} | {"error": "VMEM: 3 < 4"}
    for product in report["products"]
  ]
  report["copies"] = None
  text = Page(report_page.render(report)).text
  assert "6 did not compile" in text
  assert "VMEM: 3 < 4" in text
  assert "did not compile: VMEM: 3 < 4" in report_table.text_table(report)


def test_other_kernels_stand_beside_ours():
  report = report_sample.report()
  assert "/other" not in report_table.text_table(report)
  one, two = report["products"][:2]
  one["peers"] = {"equal": one["estimates"]["equal"]["seconds"] * 2}
  two["peers"] = {"equal": two["estimates"]["equal"]["seconds"] / 2}
  text = report_table.text_table(report)
  head, first, second, third, *_ = text.splitlines()
  assert "equal/other" in head
  assert "0.50" in first
  assert "2.00" in second
  assert report_table.MISSING in third
  assert (
    f"{one['chip']}: 1.000 times the best other kernel, by the same model "
    "(geometric mean of 2; the worst 2.00)"
  ) in text


def test_every_peer_is_of_a_known_shape():
  names = {w.name for w in workloads.WORKLOADS}
  for chip in ("v6e", "tpu7x", "v5e", "v5p"):
    known = [w for w in names if peers.seconds(chip, w, "nt")]
    assert len(known) >= 7, chip
  assert peers.seconds("v6e", "nobody", "nt") == {}
  assert peers.seconds("v4", "pr1220", "nt") == {}
  assert peers.seconds("v6e", "pr1220", "nt")["equal"] == 1558e-6


def test_copies_may_be_half():
  report = report_sample.report()
  report["copies"]["explicit"] = None
  assert "Not compiled" in Page(report_page.render(report)).text
  report["copies"] = report_sample.without(
    report["copies"], "explicit", "in_place", "layers"
  )
  Page(report_page.render(report))


def test_numbers_that_are_not_finite_are_refused():
  report = report_sample.report()
  report["products"][0]["bundles"] = math.nan
  with pytest.raises(ValueError, match="JSON compliant"):
    report_page.render(report)


def test_visits_count_their_rows():
  visit = report_svg.Visit(start=48, rows=32, rows_run=64, lo=50, hi=75)
  assert visit.spans() == [
    ("outside", 48, 50),
    ("useful", 50, 75),
    ("outside", 75, 80),
    ("beyond", 80, 112),
  ]
  assert [visit.count(kind) for kind in ("useful", "outside", "beyond")] == [
    25,
    7,
    32,
  ]
  whole = report_svg.Visit(start=0, rows=8, rows_run=8, lo=0, hi=64)
  assert whole.spans() == [("useful", 0, 8)]


def test_other_peaks_get_a_roof_of_their_own():
  report = report_sample.report()
  product = report["products"][1]
  product["dtype"] = "int8"
  product["roofline"]["compute_seconds"] /= 2
  text = Page(report_page.render(report)).text
  assert "918 Tflop/s bf16" in text
  assert "1,836 Tflop/s int8" in text


@pytest.mark.parametrize(
  "value,text",
  [
    (0, "0"),
    (1234.5, "1,234"),
    (87, "87.0"),
    (1.234, "1.23"),
    (0.01234, "0.0123"),
    (-0.5, "-0.500"),
  ],
)
def test_digits_that_count(value, text):
  assert digits(value) == text


def test_text_table_is_aligned():
  lines = report_table.text_table(report_sample.report()).splitlines()
  assert len({len(line) for line in lines[:7]}) == 1
  assert lines[1].split()[:4] == ["gemma4-26b/wi", "nn", "v6e", "2064x2816x704"]
  assert "79.7 ms with the explicit transpose, 0.0 ms in place" in lines[-1]
