"""The report's tables: products, arms of their loops, copies of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.report import svg as report_svg
from tools.report.markup import (
  Report,
  chip_rows,
  name_of,
  products_of,
  row,
  section,
  table,
)
from tools.report.svg import Part
from tools.report.values import (
  COUNT,
  MEBIBYTES,
  MEGABYTES,
  MICROSECONDS,
  MISSING,
  PERCENT,
  Path,
  Show,
  escaped,
  formats,
  main_sizes,
  number,
  number_at,
  short_name,
  sizes_names,
)

_OPEN_DETAILS = 12  # more products than this start folded
_ARM_COLUMNS = {
  "bundles": "Bundles",
  "mxu_cycles": "MXU cycles",
  "vmatmuls": "vmatmuls",
  "k_pieces": "K pieces",
  "matpushes": "Pushes",
  "transposing_pushes": "of which transposing",
  "xlu_transposes": "XLU transposes",
  "spills": "Spills",
  "fills": "Fills",
}
_DEPTHS = {1: "grid step", 2: "product", 3: "part of a product"}


def products(report: Report) -> str:
  """Times, code, memory and arms of every product."""
  if not products_of(report):
    body = '<p class="soft">No products were compiled.</p>'
    return section("products", "Products", body)
  body = (
    f"<h3>Estimated µs by group sizes</h3>{_times(report)}"
    f"<h3>Code and memory</h3>{_memory(report)}"
    "<h3>Arms of the hot loop</h3>"
    '<p class="soft">An arm is a stretch of the loop without a jump; which '
    "one runs depends on the rows of the visit. A bundle is a cycle.</p>"
    + "".join(
      _arms(report, i, product)
      for i, product in products_of(report)
      if product.get("arms")
    )
  )
  return section("products", "Products", body)


def _times(report: Report) -> str:
  names = sizes_names([product for _, product in products_of(report)])
  head = [
    "Product",
    *(escaped(name) for name in names),
    "Bound",
    "Share of it",
    "of the DMA’s",
    "Tile m × k × n",
    "m",
    "k",
    "n",
    "Groups",
    "dtype",
  ]

  def one(i: int, product: Mapping[str, Any]) -> str:
    at: Path = ("products", i)
    tiles = [number(report, (*at, "tiles", f"tile_{axis}")) for axis in "mkn"]
    shares = (*at, "estimates", main_sizes(product))
    cells = [
      *(
        number(report, (*at, "estimates", name, "seconds"), MICROSECONDS)
        for name in names
      ),
      number(report, (*at, "roofline", "seconds"), MICROSECONDS),
      number(report, (*shares, "roofline_share"), PERCENT),
      number(report, (*shares, "dma_share"), PERCENT),
      " × ".join(tiles),
      *(number(report, (*at, size)) for size in "mkng"),
      escaped(formats(product)),
    ]
    return row(name_of(report, product), cells)

  rows = chip_rows(report, len(head), one)
  return table(head, rows, label="Products, their tiles and times")


def _memory(report: Report) -> str:
  head = (
    "Product",
    "<VMEM",
    "used MiB",
    "claimed MiB",
    "of MiB",
    "Code kB",
    "Bundles",
    "Step bundles",
    "HBM temporary MB",
    "Compiled in s",
  )

  def one(i: int, product: Mapping[str, Any]) -> str:
    at: Path = ("products", i)
    vmem = (*at, "vmem")
    cells = [
      _vmem_bar(report, i, product),
      *(
        number(report, (*vmem, key), MEBIBYTES)
        for key in ("reported", "claimed", "capacity")
      ),
      number(report, (*at, "code_bytes"), Show(scale=1e-3, digits=0)),
      number(report, (*at, "bundles")),
      number(report, (*at, "step_bundles")),
      number(report, (*at, "temp_bytes"), MEGABYTES),
      number(report, (*at, "compile_seconds"), Show(digits=1)),
    ]
    line = row(name_of(report, product), cells)
    return line.replace("<td>", '<td class="pic">', 1)

  rows = chip_rows(report, len(head), one)
  return table(head, rows, label="Code size and memory of the products") + (
    '<p class="soft">The bar is the chip’s VMEM; filled is what the compiler '
    "reports in use, the tick what the tiling claims.</p>"
  )


def _vmem_bar(report: Report, i: int, product: Mapping[str, Any]) -> str:
  vmem: Path = ("products", i, "vmem")
  share = Show(over=(*vmem, "capacity"))
  used = number_at(report, (*vmem, "reported"), share)
  claimed = number_at(report, (*vmem, "claimed"), share)
  if used is None:
    return MISSING
  name = f"{short_name(report, product)} {product.get('mode', '')}"
  return report_svg.memory_bar(used, claimed, f"VMEM of {name}")


def _arms(report: Report, i: int, product: Mapping[str, Any]) -> str:
  head = (
    "Rows",
    "<Once per",
    "MXU busy",
    "",
    "Cycles",
    *_ARM_COLUMNS.values(),
  )
  rows = [
    _arm(report, ("products", i, "arms", j), arm)
    for j, arm in enumerate(product["arms"])
  ]
  fold = "" if len(products_of(report)) > _OPEN_DETAILS else " open"
  chip = escaped(product.get("chip", ""))
  return (
    f"<details{fold}><summary>{name_of(report, product)} "
    f'<span class="mode">{chip}</span> <span class="kernel">'
    f"{escaped(product.get('kernel', ''))}</span></summary>"
    + table(
      head, rows, label=f"Arms of {short_name(report, product)}", kind="tight"
    )
    + "</details>"
  )


def _arm(report: Report, at: Path, arm: Mapping[str, Any]) -> str:
  busy = number_at(report, (*at, "mxu_busy"), COUNT) or 0
  words = f"MXU busy {busy:.1%}"
  depth = arm.get("depth")
  cells = [
    f'<td class="words">{escaped(_DEPTHS.get(depth, depth))}</td>',
    f"<td>{number(report, (*at, 'mxu_busy'), PERCENT)}</td>",
    '<td class="pic" style="min-width:70px">'
    + report_svg.bar(
      [Part(kind="mxu", share=busy, words=words)], "Arm", height=10
    )
    + "</td>",
    f"<td>{number(report, (*at, 'cycles'))}</td>",
    *(f"<td>{number(report, (*at, key))}</td>" for key in _ARM_COLUMNS),
  ]
  rows = number(report, (*at, "rows"))
  return f'<tr><th scope="row">{rows}</th>{"".join(cells)}</tr>'


def copies(report: Report) -> str:
  """The copies of a training step, with the transpose and in place."""
  title = "The copies, one by one"
  if not report.get("copies"):
    body = '<p class="soft">No training step was compiled for this report.</p>'
    return section("copies", title, body)
  body = _copies_of(report, "explicit", "With the explicit transpose")
  body += _copies_of(report, "in_place", "Weight read in place")
  return section("copies", title, body)


def _copies_of(report: Report, key: str, title: str) -> str:
  at: Path = ("copies", key)
  data = report["copies"].get(key)
  if not data:
    return f'<h3>{title}</h3><p class="soft">Not compiled.</p>'
  found = data.get("copies") or ()
  temp = ""
  if data.get("temp_bytes") is not None:
    temp = f"{number(report, (*at, 'temp_bytes'), MEGABYTES)} MB temporary. "
  if not found:
    per_step = number(report, (*at, "milliseconds_per_step"), Show(digits=None))
    return (
      f"<h3>{title}</h3><p>No copy of a weight in the compiled step: "
      f"{per_step} ms. {temp}</p>"
    )
  rows = [
    _copy(report, (*at, "copies", i), copy) for i, copy in enumerate(found)
  ]
  head = (
    "Operation",
    "ms a step",
    "ms each",
    "Times",
    "MB",
    "<Shape",
    "<Layout",
  )
  total = number(report, (*at, "milliseconds_per_step"), Show(digits=None))
  foot = (
    f'<tr><th scope="row">All of them</th><td>{total}</td>'
    '<td colspan="5"></td></tr>'
  )
  label = f"Copies: {title}"
  return f"<h3>{title}</h3>{table(head, rows, label=label, foot=foot)}" + (
    f'<p class="soft">{temp}</p>' if temp else ""
  )


def _copy(report: Report, at: Path, copy: Mapping[str, Any]) -> str:
  each = Show(scale=1e3, digits=None)
  per_step = Show(scale=1e3, digits=None, times=(*at, "times"))
  where = " · ".join(
    escaped(copy[key]) for key in ("op_name", "source") if copy.get(key)
  )
  cells = [
    f"<td>{number(report, (*at, 'seconds'), per_step)}</td>",
    f"<td>{number(report, (*at, 'seconds'), each)}</td>",
    f"<td>{number(report, (*at, 'times'))}</td>",
    f"<td>{number(report, (*at, 'bytes'), MEGABYTES)}</td>",
    f'<td class="words"><code>{escaped(copy.get("shape", ""))}</code></td>',
    f'<td class="words"><code>{escaped(copy.get("layout_in", ""))} → '
    f"{escaped(copy.get('layout_out', ''))}</code></td>",
  ]
  return (
    f'<tr><td class="wrap words"><strong>{escaped(copy.get("name", ""))}'
    f'</strong><br><span class="soft">{where}</span></td>{"".join(cells)}</tr>'
  )
