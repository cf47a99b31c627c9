"""The programs of docs/sharding.md, so that the page cannot go stale."""

import pathlib
import re
from typing import Any

_PAGE = pathlib.Path(__file__).absolute().parent.parent / "docs" / "sharding.md"


def load() -> dict[str, Any]:
  """Runs the page's Python blocks, in order; returns what they define."""
  text = _PAGE.read_text()
  blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
  names: dict[str, Any] = {}
  # Lines keep their numbers, for tracebacks.
  for block in blocks:
    before = text[: text.index(block)].count("\n")
    exec(compile("\n" * before + block, str(_PAGE), "exec"), names)
  return names
