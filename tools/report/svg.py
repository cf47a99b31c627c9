"""Pictures of a compile report: inline SVG that keeps its text size.

Positions along x are percentages of the picture's own width and those along y
are pixels, so that a picture fills a phone as it fills a desk and no letter is
ever scaled. Colours come from the classes that `style` defines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tools.report.values import digits, escaped

PATTERNS = """<svg class="patterns" width="1" height="1" aria-hidden="true">
<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect class="outside" width="5" height="5"/>
<rect class="stripe" width="1.6" height="5"/></pattern></svg>
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
  """A piece of a bar: its class, its share in [0, 1], and words for it."""

  kind: str
  share: float
  words: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visit:
  """What one visit of a tile runs over, all of it in rows.

  Attributes:
    start: first row of its window.
    rows: rows of its window.
    rows_run: rows that the MXU multiplies, from `start` on.
    lo: first row of the visit's group.
    hi: row after the group's last.
  """

  start: int
  rows: int
  rows_run: int
  lo: int
  hi: int

  @property
  def end(self) -> int:
    """Row after the last one that is read or multiplied."""
    return self.start + max(self.rows, self.rows_run)

  def spans(self) -> list[tuple[str, int, int]]:
    """Its rows, cut where their use changes: (class, from, to)."""
    window = self.start + self.rows
    lo = min(max(self.lo, self.start), window)
    hi = min(max(self.hi, lo), window)
    spans = [
      ("outside", self.start, lo),
      ("useful", lo, hi),
      ("outside", hi, window),
      ("beyond", window, self.end),
    ]
    return [span for span in spans if span[2] > span[1]]

  def count(self, kind: str) -> int:
    """Rows of one class."""
    return sum(end - begin for name, begin, end in self.spans() if name == kind)


def picture(
  body: str, *, height: int, words: tuple[str, str], kind: str
) -> str:
  """An SVG as wide as its place.

  Args:
    body: the SVG's content.
    height: pixels.
    words: title and description, for who does not see it.
    kind: its class.
  """
  title, description = words
  return (
    f'<svg class="{kind}" width="100%" height="{height}" role="img" '
    f'aria-label="{escaped(title)}. {escaped(description)}">'
    f"<title>{escaped(title)}</title><desc>{escaped(description)}</desc>"
    f"{body}</svg>"
  )


def bar(parts: Sequence[Part], title: str, *, height: int = 16) -> str:
  """Shares side by side on a track that stands for all of it."""
  body = [f'<rect class="track" width="100%" height="{height}" rx="2"/>']
  begin = 0.0
  for part in parts:
    width = min(max(part.share, 0), 1 - begin)
    if width > 0:
      body.append(
        f'<rect class="{part.kind}" x="{begin:.3%}" width="{width:.3%}" '
        f'height="{height}"><title>{escaped(part.words)}</title></rect>'
      )
      begin += width
      if begin < 0.999:
        body.append(_rule(begin, height))
  words = ", ".join(part.words for part in parts)
  return picture("".join(body), height=height, words=(title, words), kind="bar")


def memory_bar(used: float, claimed: float | None, title: str) -> str:
  """VMEM in use over the chip's, both shares of it; a tick at the claim."""
  body = '<rect class="track" width="100%" height="12" y="2" rx="2"/>'
  body += (
    f'<rect class="mxu" width="{min(used, 1):.3%}" height="12" y="2" rx="2"/>'
  )
  words = f"{used:.1%} of VMEM in use"
  if claimed is not None:
    x = f"{min(claimed, 1):.3%}"
    body += f'<line class="tick" x1="{x}" x2="{x}" y1="0" y2="16"/>'
    words += f", {claimed:.1%} claimed"
  return picture(body, height=16, words=(title, words), kind="bar")


def visit_strip(visit: Visit, widest: int) -> str:
  """One visit from its own first row on; `widest` rows fill the width."""
  body = ['<rect class="track" width="100%" height="14" rx="2"/>']
  for kind, begin, end in visit.spans():
    body.append(_span(kind, (begin - visit.start, end - visit.start), widest))
  words = (
    f"{digits(visit.count('useful'), 0)} rows of the group, "
    f"{digits(visit.count('outside'), 0)} of others, "
    f"{digits(visit.count('beyond'), 0)} beyond the window"
  )
  return picture(
    "".join(body), height=14, words=("One visit", words), kind="bar"
  )


def visits_map(
  visits: Sequence[Visit], groups: Sequence[Sequence[int]], title: str
) -> str:
  """Where visits lie among all rows shown: a step down for each visit."""
  first = min(visit.start for visit in visits)
  last = max(visit.end for visit in visits)
  step = max(5, min(12, 240 // len(visits)))
  height = step * len(visits) + 8
  body = []
  for i, (lo, hi) in enumerate(groups):
    lo, hi = max(lo, first), min(hi, last)
    if hi > lo:
      x, width = (lo - first) / (last - first), (hi - lo) / (last - first)
      body.append(
        f'<rect class="band{i % 2}" x="{x:.4%}" width="{width:.4%}" '
        f'height="{height}"><title>group {i}</title></rect>'
      )
  for i, visit in enumerate(visits):
    body.append(f'<svg y="{4 + i * step}" height="{step}" width="100%">')
    for kind, begin, end in visit.spans():
      rows = (begin - first, end - first)
      body.append(_span(kind, rows, last - first, height=step - 2))
    body.append("</svg>")
  words = (
    f"{len(visits)} visits over rows {digits(first, 0)} to {digits(last, 0)}; "
    "the table below has each one's rows"
  )
  return picture("".join(body), height=height, words=(title, words), kind="map")


def _span(
  kind: str, rows: tuple[int, int], all_rows: int, height: int = 14
) -> str:
  x, width = rows[0] / all_rows, (rows[1] - rows[0]) / all_rows
  return (
    f'<rect class="{kind} sliver" x="{x:.4%}" width="{width:.4%}" '
    f'height="{height}"><title>{digits(rows[1] - rows[0], 0)} rows, {kind}'
    "</title></rect>"
  )


def _rule(x: float, height: int) -> str:
  return f'<line class="rule" x1="{x:.3%}" x2="{x:.3%}" y1="0" y2="{height}"/>'
