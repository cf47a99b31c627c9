"""Pieces of HTML that the sections of the compile report share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tools.report.values import escaped, short_name

Report = Mapping[str, Any]


def section(name: str, title: str, body: str) -> str:
  """A section; `name` is its id."""
  return (
    f'<section id="{name}" aria-labelledby="{name}-title">'
    f'<h2 id="{name}-title">{escaped(title)}</h2>\n{body}</section>\n'
  )


def scrolling(body: str, label: str) -> str:
  """Something wide that scrolls by itself, also by keyboard."""
  return (
    f'<div class="scroll" role="region" tabindex="0" '
    f'aria-label="{escaped(label)}">{body}</div>\n'
  )


def table(
  head: Sequence[str],
  rows: Sequence[str],
  *,
  label: str,
  foot: str = "",
  kind: str = "plain",
) -> str:
  """A table that scrolls by itself.

  Args:
    head: HTML of its column heads; a `<` in front puts one to the left.
    rows: HTML of its `tr` elements.
    label: what it holds, for who does not see it.
    foot: HTML of the `tr` elements at its end.
    kind: the table's class.
  """
  heads = "".join(
    f'<th scope="col" class="words">{one[1:]}</th>'
    if one.startswith("<")
    else f'<th scope="col">{one}</th>'
    for one in head
  )
  end = f"<tfoot>{foot}</tfoot>" if foot else ""
  return scrolling(
    f'<table class="{kind}"><thead><tr>{heads}</tr></thead>'
    f"<tbody>{''.join(rows)}</tbody>"
    f"{end}</table>",
    label,
  )


def row(head: str, cells: Sequence[str]) -> str:
  """A table row; the head and the cells are HTML."""
  return (
    f'<tr><th scope="row">{head}</th>'
    + "".join(f"<td>{cell}</td>" for cell in cells)
    + "</tr>"
  )


def name_of(report: Report, product: Mapping[str, Any]) -> str:
  """A product's name as HTML: its workload and its mode."""
  return (
    f"{escaped(short_name(report, product))} "
    f'<span class="mode">{escaped(product.get("mode", ""))}</span>'
  )


def products_of(report: Report) -> list[tuple[int, Mapping[str, Any]]]:
  """All products, each with its index in the report."""
  return list(enumerate(report.get("products") or ()))


def by_chip(
  report: Report,
) -> Iterator[tuple[str, list[tuple[int, Mapping[str, Any]]]]]:
  """Each chip that has products, and them."""
  products = products_of(report)
  for chip in dict.fromkeys(str(p.get("chip", "")) for _, p in products):
    yield chip, [(i, p) for i, p in products if str(p.get("chip", "")) == chip]


def chip_rows(
  report: Report, columns: int, one: Callable[[int, Mapping[str, Any]], str]
) -> list[str]:
  """Table rows of all products, under a row for each chip if several.

  Args:
    report: the report.
    columns: how many columns the table has.
    one: called with a product's index and the product; returns its row.
  """
  groups = list(by_chip(report))
  rows = []
  for chip, products in groups:
    if len(groups) > 1:
      rows.append(
        f'<tr class="chip"><th class="whole" scope="rowgroup" '
        f'colspan="{columns}">{escaped(chip)}</th></tr>'
      )
    for i, product in products:
      if product.get("error"):
        rows.append(
          f'<tr><th scope="row">{name_of(report, product)}</th>'
          f'<td class="wrap words bad whole" colspan="{columns - 1}">'
          f"Did not compile: {escaped(product['error'])}</td></tr>"
        )
      else:
        rows.append(one(i, product))
  return rows
