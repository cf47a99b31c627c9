"""The report's page in a real Chromium: what it shows, and what it asks for."""

import math

import pytest

from testing import chromium
from tools.report import page as report_page
from tools.report import sample as report_sample

_WIDTHS = (390, 1280)

_NUMBERS = """
[...document.querySelectorAll("data")].map(one => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const at = path => path.split(".").reduce((here, key) =>
    here[key.replaceAll("~1", ".").replaceAll("~0", "~")], report);
  const set = one.dataset;
  return [set.path, Number(one.value), at(set.path)
    * (set.times ? at(set.times) : 1) / (set.over ? at(set.over) : 1),
    one.innerText, Number(set.scale || 1)];
})
"""
_BOXES = """
[...document.querySelectorAll("svg[role=img]")].map(one => {
  const box = one.getBoundingClientRect();
  return [one.getAttribute("aria-label"), box.width, box.height,
    one.children.length];
})
"""
# The text of a plot that leaves the window or lies on another text of it.
_COLLISIONS = """
[...document.querySelectorAll("svg.plot")].flatMap(plot => {
  const all = [...plot.querySelectorAll("text")].map(one =>
    [one.textContent, one.getBoundingClientRect()]);
  const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 ||
    a.bottom <= b.top + 4 || b.bottom <= a.top + 4;
  return all.filter(([, box], i) => box.left < 0 || box.right > innerWidth ||
    all.some(([, other], j) => j > i && !apart(box, other))
  ).map(([text]) => text);
})
"""


@pytest.fixture(scope="module")
def browser():
  with chromium.Browser() as found:
    yield found


@pytest.fixture(scope="module")
def report():
  found = report_sample.report(("v6e", "v5e"))
  found["products"][3] = {
    "chip": "v6e",
    "workload": "gemma4-26b/wo",
    "mode": "nn",
    "error": "RESOURCE_EXHAUSTED: " + "memory_that_is_not_there_" * 8,
  }
  return found


@pytest.fixture(scope="module")
def url(report, tmp_path_factory):
  file = tmp_path_factory.mktemp("page") / "report.html"
  file.write_text(report_page.render(report), encoding="utf-8")
  return file.as_uri()


@pytest.fixture(scope="module", params=_WIDTHS)
def tab(browser, url, request):
  return browser.open(url, width=request.param)


def test_nothing_goes_wrong_and_nothing_is_fetched(tab, url):
  assert tab.problems == []
  assert tab.requests == [url]


def test_numbers_of_the_page_are_those_of_its_json(tab):
  numbers = tab.evaluate(_NUMBERS)
  assert len(numbers) > 500
  for path, value, expected, text, scale in numbers:
    assert math.isclose(value, expected, rel_tol=1e-12), path
    step = 10.0 ** -len(text.partition(".")[2])
    shown = float(text.replace(",", ""))
    assert abs(shown - expected * scale) <= 0.5000001 * step, path


def test_the_embedded_json_is_the_report(tab, report):
  found = tab.evaluate(
    "JSON.parse(document.getElementById('report').textContent)"
  )
  assert found == report


def test_every_picture_has_a_size(tab):
  boxes = tab.evaluate(_BOXES)
  assert len(boxes) > 50
  for label, width, height, children in boxes:
    assert width > 30 and height > 5 and children > 2, label


def test_the_page_is_no_wider_than_the_window(tab):
  widths = tab.evaluate(
    "[document.documentElement.scrollWidth, document.body.scrollWidth,"
    " innerWidth]"
  )
  assert max(widths[:2]) <= widths[2]


def test_text_of_plots_is_legible(tab):
  assert tab.evaluate(_COLLISIONS) == []


@pytest.mark.parametrize("width", _WIDTHS)
def test_many_products_with_long_names_fit(browser, tmp_path, width):
  file = tmp_path / "spread.html"
  page = report_page.render(report_sample.spread(("v6e", "v5e")))
  file.write_text(page, encoding="utf-8")
  tab = browser.open(file.as_uri(), width=width)
  assert tab.evaluate(_COLLISIONS) == []
  assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(browser, url, dark):
  tab = browser.open(url, dark=dark)
  color = tab.evaluate("getComputedStyle(document.body).backgroundColor")
  red = int(color.removeprefix("rgb(").split(",")[0])
  assert (red < 64) if dark else (red > 192)


def test_a_broken_page_would_be_noticed(browser, tmp_path):
  file = tmp_path / "broken.html"
  file.write_text(
    '<body><img src="missing.png"><script>console.log(1); nothing()</script>'
    '<div style="width:3000px">wide</div>'
  )
  tab = browser.open(file.as_uri(), width=390)
  assert tab.evaluate("document.documentElement.scrollWidth") > 390
  assert len(tab.requests) == 2
  assert any("console" in problem for problem in tab.problems)
  assert any("exception" in problem for problem in tab.problems)


def test_without_a_chromium_it_says_what_to_install(monkeypatch):
  monkeypatch.setenv("PATH", "/nowhere")
  with pytest.raises(FileNotFoundError, match="apt-get install chromium"):
    chromium.Browser()
