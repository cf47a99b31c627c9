"""The compile report as one HTML page that needs nothing else.

The page opens from a file: its style and its pictures are inside, it runs no
script and fetches nothing, which a content security policy enforces. All its
numbers stand as `tools.report.values` describes, and the report itself is
embedded as JSON in the element with the id `report`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tools.report import pictures as report_pictures
from tools.report import svg as report_svg
from tools.report import tables as report_tables
from tools.report.markup import Report, products_of, row, section, table
from tools.report.style import CSS
from tools.report.svg import Part
from tools.report.values import (
  Path,
  Show,
  digits,
  escaped,
  number,
  number_at,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_AS_IS = Show(digits=None)


def render(report: Report) -> str:
  """The page of a compile report.

  Args:
    report: what `aot_report` writes as JSON, version 1. Seconds are in s,
      memory in bytes. Parts that are missing are left out or shown as a dash.

  Returns:
    A whole HTML document.

  Raises:
    TypeError: the report holds what JSON cannot.
    ValueError: the report holds a number that is not finite.
  """
  sections = (
    _headline(report),
    report_pictures.rooflines(report),
    report_pictures.shares(report),
    report_tables.products(report),
    report_pictures.visits(report),
    report_tables.copies(report),
    _model(report),
  )
  title = escaped(_title(report))
  return (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f'<title>{title}</title><link rel="icon" href="data:,">\n'
    f"<style>{CSS}</style></head>\n<body>{report_svg.PATTERNS}"
    f"<main>{_intro(report)}{''.join(sections)}</main>\n"
    f'<script type="application/json" id="report">{embedded(report)}'
    "</script></body></html>\n"
  )


def embedded(report: Report) -> str:
  """JSON that cannot end the script element which holds it.

  Raises:
    TypeError: the report holds what JSON cannot.
    ValueError: the report holds a number that is not finite.
  """
  text = json.dumps(report, allow_nan=False)
  for character in "<>&":
    text = text.replace(character, f"\\u{ord(character):04x}")
  return text


def _chips(report: Report) -> list[str]:
  chips = dict.fromkeys(str(chip) for chip in report.get("chips") or {})
  chips.update(
    dict.fromkeys(str(p.get("chip", "")) for _, p in products_of(report))
  )
  return [chip for chip in chips if chip]


def _title(report: Report) -> str:
  name = str(report.get("title") or "Grouped matmul")
  chips = ", ".join(_chips(report))
  return f"{name} on {chips}" if chips else name


def _intro(report: Report) -> str:
  chips = _chips(report)
  names = " and ".join(
    filter(None, (", ".join(chips[:-1]), chips[-1] if chips else ""))
  )
  products = products_of(report)
  refused = sum(1 for _, product in products if product.get("error"))
  facts = [
    f"jax {escaped(report.get('jax', 'unknown'))}",
    f"{len(products)} product{'s' * (len(products) != 1)}",
  ]
  if refused:
    facts.append(f'<span class="bad">{refused} did not compile</span>')
  return (
    f"<header><h1>{escaped(_title(report))}</h1>"
    f'<p class="lead">Compiled for {escaped(names or "no chip")} by the TPU '
    f"compiler (libtpu {escaped(report.get('libtpu', 'unknown'))}) on a CPU. "
    "Nothing here ran on a TPU: times are a model’s.</p>"
    f'<p class="facts">{" · ".join(facts)}</p></header>\n'
  )


def _headline(report: Report) -> str:
  title = "Copies of weights in a training step"
  copies = report.get("copies")
  if not copies:
    body = '<p class="soft">No training step was compiled for this report.</p>'
    return section("headline", title, body)
  cards = [
    ("explicit", "With the explicit transpose", "milliseconds_per_step"),
    ("in_place", "Weight read in place", "milliseconds_per_step"),
  ]
  found = [
    (name, ("copies", key, last), "dma" if key == "explicit" else "mxu")
    for key, name, last in cards
  ]
  if copies.get("measured_milliseconds") is not None:
    found.append(
      (
        "Measured on hardware elsewhere",
        ("copies", "measured_milliseconds"),
        "idle",
      )
    )
  longest = max((number_at(report, path) or 0) for _, path, _ in found) or 1
  body = (
    f'<p class="soft">{_step_words(copies)}</p><div class="cards">'
    + "".join(_card(report, card, longest) for card in found)
    + "</div>"
  )
  if copies.get("measured_source"):
    body += (
      '<p class="soft source">Measured elsewhere: '
      f"{escaped(copies['measured_source'])}</p>"
    )
  return section("headline", title, body)


def _step_words(copies: Mapping[str, Any]) -> str:
  layers = copies.get("layers")
  count = f"{layers} layers of " if layers else ""
  return (
    f"{escaped(count)}{escaped(copies.get('model', 'a model'))} on "
    f"{escaped(copies.get('chip', 'a chip'))}: milliseconds per step that go "
    "into copying weights."
  )


def _card(report: Report, card: tuple[str, Path, str], longest: float) -> str:
  name, path, kind = card
  value = number_at(report, path) or 0
  part = Part(
    kind=kind, share=value / longest, words=f"{digits(value)} milliseconds"
  )
  return (
    f'<div class="card"><div class="name">{name}</div><div class="big">'
    f"{number(report, path, _AS_IS)} <small>ms</small></div>"
    f"{report_svg.bar([part], name, height=8)}</div>"
  )


def _model(report: Report) -> str:
  notes = report.get("notes") or ()
  body = ""
  if notes:
    items = "".join(f"<li>{escaped(note)}</li>" for note in notes)
    body = f"<p>The times leave out:</p><ul>{items}</ul>"
  rows = [_peaks(report, chip) for chip in report.get("chips") or {}]
  if rows:
    head = (
      "Chip",
      "bf16 Tflop/s",
      "HBM GB/s",
      "VMEM MiB",
      "Clock GHz",
      "<Source",
    )
    body += "<h3>Peaks of the chips</h3>"
    body += table(head, rows, label="Peaks of the chips and their sources")
  return section("model", "What the model leaves out, and its peaks", body)


def _peaks(report: Report, chip: str) -> str:
  at = ("chips", chip)
  source = (report["chips"][chip] or {}).get("source", "")
  cells = (
    number(report, (*at, "bf16_flops"), Show(scale=1e-12, digits=1)),
    number(report, (*at, "hbm_bytes_per_second"), Show(scale=1e-9, digits=0)),
    number(report, (*at, "vmem_bytes"), Show(scale=2**-20, digits=0)),
    number(report, (*at, "clock_hz"), Show(scale=1e-9, digits=3)),
  )
  line = row(escaped(chip), cells)
  return line.replace(
    "</tr>", f'<td class="wrap words">{escaped(source)}</td></tr>'
  )
