"""The compile report as a table for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tools.report.values import (
  MEBIBYTES,
  MICROSECONDS,
  MISSING,
  PERCENT,
  Path,
  Show,
  formats,
  main_sizes,
  number_at,
  plain,
  sizes_names,
)

_WORDS = 3  # leading columns that hold words, not numbers


def text_table(report: Mapping[str, Any]) -> str:
  """One line for each product, columns aligned, and one for the copies.

  Args:
    report: what `page.render` takes.

  Returns:
    Lines without one at the end. Times are in µs for each of the report's
    group sizes; VMEM is in MiB, what the compiler reports.
  """
  products = list(report.get("products") or ())
  names = sizes_names(products)
  peers = _with_peers(products)
  head = [
    *("workload", "mode", "chip", "tiles mxkxn"),
    *(f"{name} µs" for name in names),
    *(f"{name}/other" for name in peers),
    *("of bound", "of DMA", "MXU busy", "XLU xpose", "VMEM MiB", "bundles"),
  ]
  rows = [
    _failed(product)
    if product.get("error")
    else _row(report, i, (names, peers))
    for i, product in enumerate(products)
  ]
  lines = _aligned([head, *rows], len(head)) if rows else ["no products"]
  for chip in dict.fromkeys(product["chip"] for product in products):
    ratios = _ratios(report, chip, peers)
    if ratios:
      mean, worst = statistics.geometric_mean(ratios), max(ratios)
      lines += [
        "",
        f"{chip}: {mean:.3f} times the best other kernel, by the same model "
        f"(geometric mean of {len(ratios)}; the worst {worst:.2f})",
      ]
  if report.get("copies"):
    lines += ["", _copies(report)]
  return "\n".join(lines)


def _with_peers(products: Sequence[Mapping[str, Any]]) -> list[str]:
  """The group sizes for which a product has another kernel's time."""
  found: dict[str, None] = {}
  for product in products:
    found |= dict.fromkeys(product.get("peers") or ())
  return list(found)


def _beside(i: int, name: str) -> tuple[Path, Show]:
  """Where a product's time is, and that it is shown over another kernel's."""
  peer = ("products", i, "peers", name)
  seconds = ("products", i, "estimates", name, "seconds")
  return seconds, Show(digits=2, over=peer)


def _ratios(
  report: Mapping[str, Any], chip: str, peers: Sequence[str]
) -> list[float]:
  ratios = [
    number_at(report, *_beside(i, name))
    for i, product in enumerate(report["products"])
    if product["chip"] == chip
    for name in peers
  ]
  return [ratio for ratio in ratios if ratio is not None]


def _row(
  report: Mapping[str, Any],
  i: int,
  columns: tuple[Sequence[str], Sequence[str]],
) -> list[str]:
  (names, peers), product = columns, report["products"][i]
  at: Path = ("products", i)
  estimates: Path = (*at, "estimates")
  main: Path = (*estimates, main_sizes(product))
  arms = product.get("arms") or ()
  largest = max(
    range(len(arms)), key=lambda j: arms[j].get("rows") or 0, default=0
  )
  return [
    *_names(product),
    "x".join(
      str((product.get("tiles") or {}).get(f"tile_{axis}", MISSING))
      for axis in "mkn"
    ),
    *(
      plain(report, (*estimates, name, "seconds"), MICROSECONDS)
      for name in names
    ),
    *(plain(report, *_beside(i, name)) for name in peers),
    plain(report, (*main, "roofline_share"), PERCENT),
    plain(report, (*main, "dma_share"), PERCENT),
    plain(report, (*at, "arms", largest, "mxu_busy"), PERCENT),
    f"{sum(arm.get('xlu_transposes') or 0 for arm in arms):,}"
    if arms
    else MISSING,
    plain(report, (*at, "vmem", "reported"), MEBIBYTES),
    plain(report, (*at, "bundles")),
  ]


def _names(product: Mapping[str, Any]) -> list[str]:
  workload, mode, chip = (
    str(product.get(key, MISSING)) for key in ("workload", "mode", "chip")
  )
  if formats(product) != str(product.get("dtype", MISSING)):
    mode = f"{mode} {formats(product)}"
  return [workload, mode, chip]


def _failed(product: Mapping[str, Any]) -> list[str]:
  return [*_names(product), f"did not compile: {product['error']}"]


def _aligned(rows: Sequence[Sequence[str]], columns: int) -> list[str]:
  """Words to the left, numbers right; the last cell of a short row runs on."""
  whole = [row for row in rows if len(row) == columns]
  widths = [max(len(row[c]) for row in whole) for c in range(columns)]
  for c in range(_WORDS):
    widths[c] = max(len(row[c]) for row in rows)
  lines = []
  for row in rows:
    cells = [
      cell.ljust(widths[c])
      if c < _WORDS or len(row) < columns
      else cell.rjust(widths[c])
      for c, cell in enumerate(row)
    ]
    lines.append("  ".join(cells).rstrip())
  return lines


def _copies(report: Mapping[str, Any]) -> str:
  copies = report["copies"]
  parts = []
  for key, words in (
    ("explicit", "with the explicit transpose"),
    ("in_place", "in place"),
  ):
    if copies.get(key):
      ms = copies[key].get("milliseconds_per_step")
      parts.append(f"{MISSING if ms is None else format(ms, '.1f')} ms {words}")
  if copies.get("measured_milliseconds") is not None:
    parts.append(f"{copies['measured_milliseconds']:g} ms measured elsewhere")
  layers = copies.get("layers")
  where = f"{f'{layers} layers of ' if layers else ''}{copies.get('model', '')}"
  return (
    f"weight copies per training step, {where} on {copies.get('chip', '')}: "
    + ", ".join(parts or ["none compiled"])
  )
