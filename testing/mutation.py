"""What a deliberate fault is."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutation:
  """One fault.

  Attributes:
    name: what it forgets or confuses.
    file: in `gmm`.
    old: text that occurs there exactly once.
    new: what takes its place.
    cases: what must catch it, such as `out:name of a case`.
  """

  name: str
  file: str
  old: str
  new: str
  cases: tuple[str, ...]
