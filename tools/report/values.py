"""Numbers of a compile report as text and as HTML, each with its place.

Every number that a page shows stands in a `data` element which carries the
unrounded value and says where in the report it comes from:

    <data value="0.00088" data-path="copies.explicit.copies.0.seconds"
        data-scale="1000">0.880</data>

so a program can hold the page against the report. Where a number is a quotient
or a product of two of the report, `data-over` or `data-times` names the other.
The text is `value * data-scale`, rounded.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

MISSING = "–"

Path = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Show:
  """How a number is written.

  Attributes:
    scale: what it is multiplied by first, to come to its unit.
    digits: digits after the point; None keeps about three that count.
    over: path of the report's number that it is divided by.
    times: path of the report's number that it is multiplied by.
    unit: written behind it.
  """

  scale: float = 1
  digits: int | None = None
  over: Path | None = None
  times: Path | None = None
  unit: str = ""


COUNT = Show(digits=0)
MICROSECONDS = Show(scale=1e6)
MILLISECONDS = Show(scale=1e3)
PERCENT = Show(scale=100, digits=1, unit="%")
MEBIBYTES = Show(scale=2**-20, digits=1)
MEGABYTES = Show(scale=1e-6, digits=1)


def escaped(text: object) -> str:
  """Any text, safe between tags and inside a quoted attribute."""
  return html.escape(str(text), quote=True)


def dotted(path: Path) -> str:
  """A path as one word; a dot within a key is `~1`, and a tilde `~0`."""
  keys = (str(key).replace("~", "~0").replace(".", "~1") for key in path)
  return ".".join(keys)


def value_at(report: Any, path: Path) -> Any:
  """What stands at a path of the report; None where nothing does."""
  here = report
  for key in path:
    if isinstance(here, Mapping):
      here = here.get(key)
    elif isinstance(here, Sequence) and isinstance(key, int):
      here = here[key] if key < len(here) else None
    else:
      return None
  return here


def number_at(report: Any, path: Path, show: Show = COUNT) -> float | None:
  """The number at a path, as `show` multiplies and divides it, or None."""
  value = _finite(value_at(report, path))
  for other, power in ((show.times, 1), (show.over, -1)):
    if other is None or value is None:
      continue
    factor = _finite(value_at(report, other))
    if factor is None or (power < 0 and factor == 0):
      return None
    value = value * factor if power > 0 else value / factor
  return value


def number(report: Any, path: Path, show: Show = COUNT) -> str:
  """The `data` element of one number, or a dash where there is none."""
  value = number_at(report, path, show)
  if value is None:
    return MISSING
  attributes = [f'value="{value!r}"', f'data-path="{escaped(dotted(path))}"']
  if show.scale != 1:
    attributes.append(f'data-scale="{show.scale!r}"')
  for name, other in (("over", show.over), ("times", show.times)):
    if other is not None:
      attributes.append(f'data-{name}="{escaped(dotted(other))}"')
  text = digits(value * show.scale, show.digits)
  return f"<data {' '.join(attributes)}>{text}</data>{escaped(show.unit)}"


def plain(report: Any, path: Path, show: Show = COUNT) -> str:
  """The same number as text without markup."""
  value = number_at(report, path, show)
  if value is None:
    return MISSING
  return digits(value * show.scale, show.digits) + show.unit


def digits(value: float, after_point: int | None = None) -> str:
  """A number with thousands separated.

  Args:
    value: any finite number.
    after_point: digits after the point; None: as many as make three that
      count, so 1,234 and 12.3 and 0.0123, and a plain 0.
  """
  if after_point is None:
    size = abs(value)
    if size == 0:
      return "0"
    after_point = min(9, max(0, 2 - math.floor(math.log10(size))))
  return f"{value:,.{after_point}f}"


def main_sizes(product: Mapping[str, Any]) -> str:
  """The group sizes whose estimate stands for a product: equal ones.

  Where there is no such estimate, the first; without any, still "equal".
  """
  estimates = product.get("estimates") or {}
  return "equal" if "equal" in estimates else next(iter(estimates), "equal")


def sizes_names(products: Sequence[Mapping[str, Any]]) -> list[str]:
  """Every name of group sizes that any product has, in order of appearance."""
  names: dict[str, None] = {}
  for product in products:
    names.update(dict.fromkeys(product.get("estimates") or {}))
  return list(names)


def formats(product: Mapping[str, Any]) -> str:
  """The operands' formats, and how many values share a scale.

  "bfloat16 x int8 / 128"; "bfloat16 as int8 x int8 / 2816" for an lhs that the
  kernel quantises; "int8 / row x int8 / 2816" for one that comes with scales;
  "bfloat16 + bias + existing" for what is added; "gated bfloat16" for two
  products in one kernel.
  """
  lhs, rhs = str(product.get("dtype", MISSING)), product.get("rhs_dtype")
  if product.get("lhs_quantization"):
    lhs += f" as {product['lhs_quantization']}"
  blocks = product.get("lhs_scale"), product.get("scale_block")
  blocks = [
    "" if block is None else f" / {block}"
    for block in (blocks[0], blocks[1] or product.get("dout_scale"))
  ]
  if rhs is not None or any(blocks):
    lhs += f"{blocks[0]} x {rhs or product.get('dtype')}{blocks[1]}"
  added = {"bias": product.get("bias"), "existing": product.get("existing_out")}
  if product.get("fused"):
    lhs = f"{product['fused']} {lhs}"
  return " + ".join([lhs, *(name for name, is_so in added.items() if is_so)])


def short_name(report: Mapping[str, Any], product: Mapping[str, Any]) -> str:
  """A product's workload, without the part that the report's title says."""
  workload = str(product.get("workload", ""))
  return workload.removeprefix(f"{report.get('title', '')}/") or "product"


def _finite(value: Any) -> float | None:
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return None
  return value if math.isfinite(value) else None
