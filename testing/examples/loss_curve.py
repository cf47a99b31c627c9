"""A loss curve as an SVG file that any browser shows, light or dark."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterable, Mapping, Sequence

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 56, 56
_STYLE = """
svg { --page: #ffffff; --ink: #1b2027; --soft: #57606b; --grid: #dfe3e8;
  --c0: #1f6fb4; --c1: #c97800;
  font: 13px system-ui, "Liberation Sans", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { svg { --page: #101317; --ink: #e8eaed;
  --soft: #a7afb9; --grid: #2d333b; --c0: #5aa6e6; --c1: #eda43a; } }
.page { fill: var(--page); } text { fill: var(--soft); }
.title { fill: var(--ink); font-size: 16px; }
.grid { stroke: var(--grid); } .axis { stroke: var(--soft); }
.level { stroke: var(--soft); stroke-dasharray: 5 4; }
polyline { fill: none; stroke-linejoin: round; }
.series0 { stroke: var(--c0); stroke-width: 1.5; }
.series1 { stroke: var(--c1); stroke-width: 1.5; }
circle.series1 { fill: var(--page); stroke-width: 2; }
.name { stroke: var(--page); stroke-width: 4; paint-order: stroke; }
"""

Points = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
  """Where numbers lie along an axis.

  Attributes:
    low: the least number.
    high: the greatest.
    start: the pixel of `low`.
    end: the pixel of `high`.
  """

  low: float
  high: float
  start: float
  end: float

  def __call__(self, number: float) -> float:
    """Returns the pixel of a number."""
    share = (number - self.low) / (self.high - self.low)
    return self.start + share * (self.end - self.start)

  def ticks(self) -> list[float]:
    """Round numbers within the scale, five or so."""
    rough = (self.high - self.low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = min((1, 2, 5, 10), key=lambda f: abs(f * power - rough)) * power
    first, last = math.ceil(self.low / step), math.floor(self.high / step)
    return [round(i * step, 10) for i in range(first, last + 1)]


def render(
  series: Mapping[str, Points], levels: Mapping[str, float], title: str
) -> str:
  """Draws losses over steps.

  Args:
    series: one or two names, each with points (step, loss); those of the
      second are marked.
    levels: losses to compare with, drawn as dashed lines.
    title: stands above.

  Returns:
    An SVG document.

  Raises:
    ValueError: nothing to draw, or a loss that is no finite number.
  """
  points = [point for line in series.values() for point in line]
  numbers = [y for _, y in points] + list(levels.values())
  if not points or not all(map(math.isfinite, numbers)):
    raise ValueError("`series` and `levels` want finite losses, at least one")
  x = Scale(
    low=0,
    high=max(max(x for x, _ in points), 1),
    start=_LEFT,
    end=_WIDTH - _RIGHT,
  )
  y = Scale(
    low=0,
    high=1.05 * max(*numbers, 1e-9),
    start=_HEIGHT - _BOTTOM,
    end=_TOP,
  )
  body = [
    *_axes(x, y),
    *_levels(levels, x, y),
    *_lines(series, x, y),
    *_legend(series),
  ]
  title = html.escape(title)
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    f' role="img" aria-label="{title}">\n<title>{title}</title>\n'
    f"<style>{_STYLE}</style>\n"
    f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>\n'
    + _text((_LEFT, 24), title, "title", "start")
    + "\n"
    + "\n".join(body)
    + "\n</svg>\n"
  )


def _axes(x: Scale, y: Scale) -> Iterable[str]:
  for tick in y.ticks():
    at = y(tick)
    yield _line("grid", (x.start, at), (x.end, at))
    yield _text((x.start - 8, at + 4), f"{tick:g}", "tick-y", "end")
  for tick in x.ticks():
    at = x(tick)
    yield _line("axis", (at, y.start), (at, y.start + 5))
    yield _text((at, y.start + 20), f"{tick:g}", "tick-x", "middle")
  yield _line("axis", (x.start, y.start), (x.end, y.start))
  yield _text(((x.start + x.end) / 2, y.start + 42), "step", "label", "middle")
  middle = (y.start + y.end) / 2
  yield (
    f'<g transform="rotate(-90 18 {middle:.1f})">'
    + _text((18, middle), "nats a character", "label", "middle")
    + "</g>"
  )


def _levels(levels: Mapping[str, float], x: Scale, y: Scale) -> Iterable[str]:
  for name, level in levels.items():
    at = y(level)
    yield _line("level", (x.start, at), (x.end, at))
    words = html.escape(f"{name} {level:.2f}")
    # Curves fall from the upper left: low labels stand below their line.
    shift = 14 if level < y.high / 2 else -5
    yield _text((x.end, at + shift), words, "name", "end")


def _lines(series: Mapping[str, Points], x: Scale, y: Scale) -> Iterable[str]:
  for i, points in enumerate(series.values()):
    places = " ".join(f"{x(a):.2f},{y(b):.2f}" for a, b in points)
    yield f'<polyline class="series{i}" points="{places}"/>'
    if i:
      for a, b in points:
        yield (
          f'<circle class="series{i}" cx="{x(a):.2f}" cy="{y(b):.2f}" r="3.5"/>'
        )


def _legend(series: Mapping[str, Points]) -> Iterable[str]:
  for i, name in enumerate(series):
    left = _LEFT + 150 * i
    yield _line(f"series{i}", (left, 42), (left + 24, 42))
    yield _text((left + 30, 46), html.escape(name), "name", "start")


def _line(kind: str, a: tuple[float, float], b: tuple[float, float]) -> str:
  return (
    f'<line class="{kind}" x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" '
    f'y2="{b[1]:.1f}"/>'
  )


def _text(at: tuple[float, float], words: str, kind: str, anchor: str) -> str:
  return (
    f'<text class="{kind}" x="{at[0]:.1f}" y="{at[1]:.1f}" '
    f'text-anchor="{anchor}">{words}</text>'
  )
