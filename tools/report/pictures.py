"""The report's pictures, each with its table: roofline, shares, visits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tools.report import svg as report_svg
from tools.report.chart import Point, Roof, marker, roofline
from tools.report.markup import (
  Report,
  by_chip,
  chip_rows,
  name_of,
  products_of,
  row,
  scrolling,
  section,
  table,
)
from tools.report.svg import Part, Visit
from tools.report.values import (
  COUNT,
  MICROSECONDS,
  PERCENT,
  Path,
  Show,
  digits,
  escaped,
  main_sizes,
  number,
  number_at,
  plain,
  short_name,
  sizes_names,
)

_MODES = {
  "nn": "forward (NN)",
  "nt": "gradient of lhs (NT)",
  "tn": "gradient of rhs (TN)",
}
_SHARES = {
  "mxu": ("MXU", "mxu_seconds"),
  "dma": ("DMA", "dma_seconds"),
  "idle": ("Idle", "idle_seconds"),
}


def rooflines(report: Report) -> str:
  """Every product's estimated rate under the roof of its chip."""
  figures, rows = [], []
  for chip, products in by_chip(report):
    points = [
      point
      for i, product in products
      if (point := _point(report, i, product)) is not None
    ]
    roof = _roof(report, chip, products)
    if roof is not None:
      figures.append(
        _roofline_figure(chip, roofline(roof, points, f"Roofline of {chip}"))
      )
  if not figures:
    body = '<p class="soft">No peaks or no products to draw.</p>'
    return section("roofline", "Roofline", body)
  rows = chip_rows(report, 8, lambda i, p: _roofline_row(report, i, p))
  head = (
    "Product",
    "flop/byte",
    "Estimated Tflop/s",
    "Bound Tflop/s",
    "Share of the bound",
    "MXU µs",
    "HBM µs",
    "Bound by",
  )
  body = (
    '<p class="soft">Useful flops over bytes that must move once, against the '
    "rate the model estimates for "
    f"{escaped(_sizes_words(report))}. Both axes are logarithmic.</p>"
    f'{_mode_legend(report)}<div class="plots">{"".join(figures)}</div>'
    + table(head, rows, label="Numbers of the roofline")
  )
  return section("roofline", "Roofline", body)


def _sizes_words(report: Report) -> str:
  names = dict.fromkeys(
    main_sizes(product)
    for _, product in products_of(report)
    if product.get("estimates")
  )
  if list(names) in ([], ["equal"]):
    return "groups of equal size"
  return "group sizes “" + "”, “".join(names) + "”"


def _mode_legend(report: Report) -> str:
  modes = dict.fromkeys(str(p.get("mode")) for _, p in products_of(report))
  return _legend(
    f'<svg width="16" height="16" viewBox="-9 -9 18 18" aria-hidden="true">'
    f'<g class="point">{marker(mode)}</g></svg>'
    f"{escaped(_MODES.get(mode, mode))}"
    for mode in modes
  )


def _legend(items: Iterable[str]) -> str:
  spans = "".join(f"<span>{item}</span>" for item in items)
  return f'<div class="legend">{spans}</div>'


def _roofline_figure(chip: str, svg: str) -> str:
  return (
    f'<figure><h3>{escaped(chip)}</h3><div class="frame"><div class="y">'
    f'Tflop/s</div>{svg}<div class="x">flop/byte</div></div></figure>'
  )


def _estimate_path(i: int, product: Mapping[str, Any], last: str) -> Path:
  return ("products", i, "estimates", main_sizes(product), last)


def _rate(i: int, product: Mapping[str, Any]) -> Show:
  """How flops are shown as the rate that the estimate makes of them."""
  seconds = _estimate_path(i, product, "seconds")
  return Show(scale=1e-12, digits=1, over=seconds)


def _point(report: Report, i: int, product: Mapping[str, Any]) -> Point | None:
  flops: Path = ("products", i, "roofline", "flops")
  over_bytes = Show(over=("products", i, "roofline", "bytes"))
  intensity = number_at(report, flops, over_bytes)
  rate = number_at(report, flops, _rate(i, product))
  if not intensity or not rate or intensity < 0 or rate < 0:
    return None
  name = f"{short_name(report, product)} {product.get('mode', '')}"
  share = number_at(report, _estimate_path(i, product, "roofline_share"), COUNT)
  words = (
    f"{name}: {digits(intensity)} flop per byte, {digits(rate / 1e12)} "
    f"Tflop/s" + (f", {share:.1%} of the bound" if share is not None else "")
  )
  return Point(
    label=short_name(report, product),
    words=words,
    mode=str(product.get("mode")),
    intensity=intensity,
    rate=rate,
  )


def _roof(
  report: Report, chip: str, products: Sequence[tuple[int, Any]]
) -> Roof | None:
  """The chip's roof, and one more for each other peak that a product has."""
  bandwidth = number_at(report, ("chips", chip, "hbm_bytes_per_second"))
  peak = number_at(report, ("chips", chip, "bf16_flops"))
  if not bandwidth or not peak:
    return None
  peaks = [("bf16", peak)]
  for i, product in products:
    at: Path = ("products", i, "roofline", "flops")
    seconds: Path = ("products", i, "roofline", "compute_seconds")
    own = number_at(report, at, Show(over=seconds))
    if own and all(abs(own / known - 1) > 0.01 for _, known in peaks):
      peaks.append((str(product.get("dtype", "")), own))
  return Roof(peaks=tuple(peaks), bytes_per_second=bandwidth)


def _roofline_row(report: Report, i: int, product: Mapping[str, Any]) -> str:
  at: Path = ("products", i, "roofline")
  flops: Path = (*at, "flops")
  bound = (product.get("roofline") or {}).get("bound", "")
  names = {"compute": "MXU", "memory": "HBM"}
  cells = (
    number(report, flops, Show(digits=None, over=(*at, "bytes"))),
    number(report, flops, _rate(i, product)),
    number(report, flops, Show(scale=1e-12, digits=1, over=(*at, "seconds"))),
    number(report, _estimate_path(i, product, "roofline_share"), PERCENT),
    number(report, (*at, "compute_seconds"), MICROSECONDS),
    number(report, (*at, "memory_seconds"), MICROSECONDS),
    escaped(names.get(bound, bound)),
  )
  return row(name_of(report, product), cells)


def shares(report: Report) -> str:
  """A bar for each product: where its estimated time goes."""
  title = "Where the time goes"
  if not products_of(report):
    return section("shares", title, '<p class="soft">No products.</p>')
  heads = "".join(
    f'<th scope="col"><span class="swatch {kind}"></span>{name}</th>'
    for kind, (name, _) in _SHARES.items()
  )
  rows = chip_rows(report, 6, lambda i, p: _shares_row(report, i, p))
  body = (
    f'<p class="soft">Estimated time for {escaped(_sizes_words(report))}: the '
    "MXU at work, DMA at work while the MXU waits, and neither.</p>"
  )
  body += scrolling(
    '<table class="bars"><thead><tr><th scope="col" class="words">Product</th>'
    f'<th scope="col" class="pic"></th><th scope="col">µs</th>{heads}</tr>'
    f"</thead><tbody>{''.join(rows)}</tbody></table>",
    "Shares of the estimated time",
  )
  return section("shares", title, body)


def _shares_row(report: Report, i: int, product: Mapping[str, Any]) -> str:
  seconds = _estimate_path(i, product, "seconds")
  show = Show(scale=100, digits=1, unit="%", over=seconds)
  parts, cells = [], []
  for kind, (name, last) in _SHARES.items():
    path = _estimate_path(i, product, last)
    share = number_at(report, path, show) or 0
    words = f"{name} {plain(report, path, show)}"
    parts.append(Part(kind=kind, share=share, words=words))
    cells.append(f"<td>{number(report, path, show)}</td>")
  title = f"{short_name(report, product)} {product.get('mode', '')}"
  return (
    f'<tr><th scope="row">{name_of(report, product)}</th>'
    f'<td class="pic" style="width:100%">{report_svg.bar(parts, title)}</td>'
    f"<td>{number(report, seconds, MICROSECONDS)}</td>{''.join(cells)}</tr>"
  )


def visits(report: Report) -> str:
  """Which rows each visit of a tile reads and multiplies."""
  figures = [
    _visits_figure(report, i, product)
    for i, product in products_of(report)
    if (product.get("visits") or {}).get("visits")
  ]
  title = "Rows that the visits run over"
  waste = _waste(report)
  if not figures:
    body = waste + '<p class="soft">No visits were listed one by one.</p>'
    return section("visits", title, body)
  legend = _legend(
    f'<svg width="14" height="12" aria-hidden="true"><rect class="{kind}" '
    f'width="14" height="12" rx="2"/></svg>{words}'
    for kind, words in (
      ("useful", "rows of the visit’s group"),
      ("outside", "rows of its window that belong to other groups"),
      ("beyond", "rows that the MXU runs beyond the window"),
    )
  )
  body = (
    '<p class="soft">A tile’s window starts and ends on whole blocks of rows, '
    "groups do not. In the map all rows lie along the width, groups as "
    "alternating bands, and each visit is one step down; slivers thinner "
    f"than a pixel are drawn a pixel wide.</p>{legend}{''.join(figures)}{waste}"
  )
  return section("visits", title, body)


def _waste(report: Report) -> str:
  """A table of the rows run for each useful one, and the visits."""
  names = sizes_names([product for _, product in products_of(report)])
  if not names:
    return ""

  def one(i: int, product: Mapping[str, Any]) -> str:
    cells = []
    for name in names:
      at: Path = ("products", i, "estimates", name)
      ratio = Show(digits=3, over=(*at, "rows_useful"))
      cells.append(number(report, (*at, "rows_run"), ratio))
      cells.append(number(report, (*at, "visits")))
    return row(name_of(report, product), cells)

  head = ["Product"]
  for name in names:
    head += [escaped(name), "visits"]
  return "<h3>Rows run for each useful row, and visits</h3>" + table(
    head,
    chip_rows(report, len(head), one),
    label="Rows run for each useful row, by group sizes",
  )


def _visits_figure(report: Report, i: int, product: Mapping[str, Any]) -> str:
  data = product["visits"]
  found = [_visit(one) for one in data["visits"]]
  at: Path = ("products", i, "visits")
  chip = f", {product.get('chip')}" if len(list(by_chip(report))) > 1 else ""
  name = f"{short_name(report, product)} {product.get('mode', '')}{chip}"
  widest = max(visit.end - visit.start for visit in found)
  rows = [
    _visit_row(report, (*at, "visits", j), visit, widest)
    for j, visit in enumerate(found)
  ]
  head = (
    "Group",
    "<One visit",
    "Its rows",
    "Window from",
    "Window rows",
    "Own",
    "Others’",
    "Beyond",
  )
  return (
    f"<figure><h3>{escaped(name)}, group sizes "
    f"“{escaped(data.get('sizes_name', ''))}”</h3>"
    f"{report_svg.visits_map(found, data.get('groups') or (), name)}"
    f"<figcaption>{number(report, (*at, 'visits_shown'))} of "
    f"{number(report, (*at, 'visits_total'))} visits</figcaption>"
    + table(head, rows, label=f"Visits of {name}")
    + "</figure>"
  )


def _visit(one: Mapping[str, Any]) -> Visit:
  return Visit(
    start=one["start"],
    rows=one["rows"],
    rows_run=one.get("rows_run", one["rows"]),
    lo=one["lo"],
    hi=one["hi"],
  )


def _visit_row(report: Report, at: Path, visit: Visit, widest: int) -> str:
  cells = (
    report_svg.visit_strip(visit, widest),
    f"{number(report, (*at, 'lo'))} – {number(report, (*at, 'hi'))}",
    number(report, (*at, "start")),
    number(report, (*at, "rows")),
    digits(visit.count("useful"), 0),
    digits(visit.count("outside"), 0),
    digits(visit.count("beyond"), 0),
  )
  line = row(number(report, (*at, "group")), cells)
  return line.replace("<td>", '<td class="pic" style="width:100%">', 1)
