"""A roofline as inline SVG: products under the limits of a chip.

Both axes are logarithmic. As in `svg`, x is a share of the width and y
is in pixels. Points that lie close together share a label, which keeps clear
of all else at the width of a phone and at that of a desk.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from tools.report.svg import picture
from tools.report.values import digits, escaped

_WIDTHS = (270, 900)  # of plots, in pixels, for which labels are laid out
_LINE = 18  # pixels from one label to the next
_LETTER = 7.2  # pixels of a label's letter, rather too many
_LONGEST = 21  # letters of a label
_APART = 0.04  # of the width, from which on points are told apart

# Each is to be seen where all lie on one another: two are hollow.
_MARKERS = {
  "nn": '<circle class="hollow" r="6"/>',
  "nt": '<rect x="-3.5" y="-3.5" width="7" height="7"/>',
  "tn": '<path class="hollow" d="M0 -8 8 0 0 8 -8 0Z"/>',
}
_OTHER_MARKER = '<path d="M0 -6.5 6.5 5 -6.5 5Z"/>'

_Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
  """A product on a roofline.

  Attributes:
    label: short name beside it; products of one name need only one label.
    words: said of it on hover and aloud.
    mode: nn, nt or tn: its marker.
    intensity: flops per byte.
    rate: flop/s.
  """

  label: str
  words: str
  mode: str
  intensity: float
  rate: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roof:
  """A chip's limits: flop/s and what they are for; bytes per second of HBM."""

  peaks: tuple[tuple[str, float], ...]
  bytes_per_second: float


def marker(mode: str) -> str:
  """The shape that stands for a mode, around the origin."""
  return _MARKERS.get(mode, _OTHER_MARKER)


def roofline(roof: Roof, points: Sequence[Point], title: str) -> str:
  """Flops per byte against flop/s, both logarithmic, under the chip's roof."""
  plot = _Plot.around(roof, points)
  described = "; ".join(point.words for point in points) or "no products"
  body = [
    *_axes(plot),
    *_roofs(plot, roof),
    *_labels(plot, roof, points),
    *_markers(plot, points),
  ]
  return picture(
    "".join(body), height=plot.height, words=(title, described), kind="plot"
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plot:
  """Limits of a plot: x in flops per byte, y in flop/s, height in pixels."""

  x: tuple[float, float]
  y: tuple[float, float]
  height: int

  @classmethod
  def around(cls, roof: Roof, points: Sequence[Point]) -> _Plot:
    """Room for all of it, and for labels below the lowest point."""
    peaks = [peak for _, peak in roof.peaks]
    ridges = [peak / roof.bytes_per_second for peak in peaks]
    xs = [point.intensity for point in points] + ridges
    rates = [point.rate for point in points] + peaks
    top = max(rates) * 1.45
    names = len({point.label for point in points})
    return cls(
      x=(
        2.0 ** math.floor(math.log2(min(xs) / 3)),
        2.0 ** math.ceil(math.log2(max(xs) * 3)),
      ),
      y=(min(min(rates) / 3, top / 8), top),
      height=min(600, 320 + 10 * names),
    )

  def across(self, x: float) -> float:
    """Share of the width in [0, 1]."""
    lo, hi = self.x
    return math.log(x / lo) / math.log(hi / lo)

  def down(self, y: float) -> float:
    """Pixels from the top."""
    lo, hi = self.y
    return self.height * (1 - math.log(y / lo) / math.log(hi / lo))


def _axes(plot: _Plot) -> Iterable[str]:
  for rate in _round_numbers(*plot.y):
    y = f"{plot.down(rate):.1f}"
    yield (
      f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
      f'<text class="axis" x="0" y="{y}" dx="-8" dy="4" '
      f'text-anchor="end">{_tera(rate)}</text>'
    )
  lo, hi = (round(math.log2(x)) for x in plot.x)
  # No more than six, so that they stand apart on a phone.
  for power in range(lo, hi + 1, -(-(hi - lo) // 5)):
    x = f"{plot.across(2.0**power):.3%}"
    yield (
      f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{plot.height}"/>'
      f'<text class="axis" x="{x}" y="{plot.height}" dy="18" '
      f'text-anchor="middle">{2.0**power:,g}</text>'
    )


def _roofs(plot: _Plot, roof: Roof) -> Iterable[str]:
  foot, ridge = _slope(plot, roof)
  speed = roof.bytes_per_second
  yield _line(plot, (foot, foot * speed), (ridge, ridge * speed))
  for name, peak in roof.peaks:
    yield _line(plot, (peak / speed, peak), (plot.x[1], peak))
    yield (
      f'<text class="roof-label" x="100%" y="{plot.down(peak):.1f}" dx="-4" '
      f'dy="-7" text-anchor="end">{_tera(peak)} Tflop/s {escaped(name)}</text>'
    )
  x, y = _speed_place(plot, roof)
  yield (
    f'<text class="roof-label" x="{x:.3%}" y="{y:.1f}" dx="-10" dy="-8" '
    f'text-anchor="end">{digits(speed / 1e9, 0)} GB/s</text>'
  )


def _slope(plot: _Plot, roof: Roof) -> tuple[float, float]:
  """Flops per byte where the sloping roof enters the plot, and its ridge."""
  foot = max(plot.x[0], plot.y[0] / roof.bytes_per_second)
  return foot, max(peak for _, peak in roof.peaks) / roof.bytes_per_second


def _speed_place(plot: _Plot, roof: Roof) -> tuple[float, float]:
  """A place on the slope whose upper side is free: no point can be there."""
  foot, ridge = _slope(plot, roof)
  at = foot * (ridge / foot) ** 0.55
  return plot.across(at), plot.down(at * roof.bytes_per_second)


def _line(
  plot: _Plot, begin: tuple[float, float], end: tuple[float, float]
) -> str:
  return (
    f'<line class="roof" x1="{plot.across(begin[0]):.3%}" '
    f'y1="{plot.down(begin[1]):.1f}" x2="{plot.across(end[0]):.3%}" '
    f'y2="{plot.down(end[1]):.1f}"/>'
  )


def _markers(plot: _Plot, points: Sequence[Point]) -> Iterable[str]:
  for point in points:
    yield (
      f'<svg class="open" x="{plot.across(point.intensity):.3%}" '
      f'y="{plot.down(point.rate):.1f}" width="1" height="1">'
      f'<g class="point">{marker(point.mode)}'
      f"<title>{escaped(point.words)}</title></g></svg>"
    )


def _labels(plot: _Plot, roof: Roof, points: Sequence[Point]) -> Iterable[str]:
  """A label for each cluster of points, below it, with a line to it.

  It stands to the left in the right half and to the right in the left, and
  moves down until it is clear of markers and of other text.
  """
  taken = [_obstacles(plot, roof, points, width) for width in _WIDTHS]
  for cluster in _clusters(plot, points):
    lowest = min(cluster, key=lambda point: point.rate)
    share, y = plot.across(lowest.intensity), plot.down(lowest.rate)
    text = _joined([point.label for point in cluster])
    sign = -1 if share > 0.5 else 1
    label = y + 20
    while label < plot.height - 12 and any(
      _meets(_label_box(share * width, label, sign * len(text)), boxes)
      for width, boxes in zip(_WIDTHS, taken, strict=True)
    ):
      label += 3
    for width, boxes in zip(_WIDTHS, taken, strict=True):
      boxes.append(_label_box(share * width, label, sign * len(text)))
    anchor = "end" if sign < 0 else "start"
    yield (
      f'<svg class="open" x="{share:.3%}" y="{y:.1f}" width="1" height="1">'
      f'<path class="leader" d="M0 0 L{sign * 10} {label - y:.1f} '
      f'h{sign * 4}"/><text class="point-label" x="{sign * 18}" '
      f'y="{label - y:.1f}" dy="4" text-anchor="{anchor}">'
      f"{escaped(text)}</text></svg>"
    )


def _clusters(plot: _Plot, points: Sequence[Point]) -> list[list[Point]]:
  """Points that are close to each other's first, the highest first."""
  clusters: list[list[Point]] = []
  for point in sorted(points, key=lambda one: -one.rate):
    x, y = plot.across(point.intensity), plot.down(point.rate)
    for cluster in clusters:
      first = cluster[0]
      if (
        abs(plot.across(first.intensity) - x) < _APART
        and abs(plot.down(first.rate) - y) < 3 * _LINE
      ):
        cluster.append(point)
        break
    else:
      clusters.append([point])
  return clusters


def _joined(labels: Sequence[str]) -> str:
  """As many different labels as fit, and how many more there are."""
  names = sorted(set(labels))
  for count in range(len(names), 0, -1):
    more = f" +{len(names) - count}" if count < len(names) else ""
    text = ", ".join(names[:count]) + more
    if len(text) <= _LONGEST:
      return text
  more = f" +{len(names) - 1}" if len(names) > 1 else ""
  half = (_LONGEST - 1 - len(more)) // 2
  return f"{names[0][:half]}…{names[0][-half:]}{more}"


def _obstacles(
  plot: _Plot, roof: Roof, points: Sequence[Point], width: int
) -> list[_Box]:
  """What labels keep clear of, in pixels of a plot of that width."""
  boxes = []
  for point in points:
    x = plot.across(point.intensity) * width
    y = plot.down(point.rate)
    boxes.append((x - 8, y - 8, x + 8, y + 8))
  for name, peak in roof.peaks:
    letters = len(f"{_tera(peak)} Tflop/s {name}")
    y = plot.down(peak)
    boxes.append((width - _LETTER * letters, y - 20, width, y + 2))
  x, y = _speed_place(plot, roof)
  right = x * width - 10
  boxes.append((right - 11 * _LETTER, y - 20, right, y - 4))
  return boxes


def _label_box(x: float, y: float, letters: int) -> _Box:
  """Of a label at a point; with fewer than no letters, to its left."""
  near = x + math.copysign(14, letters)
  far = near + letters * _LETTER
  half = _LINE / 2
  return min(near, far), y - half, max(near, far), y + half


def _meets(box: _Box, others: Iterable[_Box]) -> bool:
  return any(
    box[0] < other[2]
    and other[0] < box[2]
    and box[1] < other[3]
    and other[1] < box[3]
    for other in others
  )


def _round_numbers(lo: float, hi: float) -> list[float]:
  decades = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
  marks = (1, 2, 5) if hi / lo < 300 else (1,)
  every = [m * 10.0**d for d, m in itertools.product(decades, marks)]
  return [x for x in every if lo * 1.02 <= x <= hi]


def _tera(rate: float) -> str:
  return f"{rate / 1e12:,.4g}"
