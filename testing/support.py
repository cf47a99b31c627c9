"""What a backend and a chip cannot run, by the kernels' own tables.

The tests keep no list of it: a format that a chip learns, or loses, changes
what they expect of every case.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from gmm import formats
from gmm.kernels import chip as chips
from testing.case import Case
from testing.gated_cases import GatedCase

_KERNEL_BACKENDS = ("interpret", "pallas")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
  """Why a case cannot run.

  Attributes:
    what: the format, and the chip where it is the chip that lacks it.
    words: what the NotImplementedError has to say of it.
  """

  what: str
  words: tuple[str, ...]


def refusal(
  case: Case | GatedCase, backend: str, chip: str | None = None
) -> Refusal | None:
  """Why a case must raise NotImplementedError; None where it runs.

  Args:
    case: the case.
    backend: "interpret", "pallas" or "xla".
    chip: the name of the one that is attached; None for the case's own, which
      interpreted kernels are planned for.
  """
  one = case.case if isinstance(case, GatedCase) else case
  if backend not in _KERNEL_BACKENDS:
    return None
  spec = chips.resolve(chip or one.chip)
  wanted = (one.formats.lhs, one.formats.rhs, one.formats.out)
  for name in filter(None, wanted):
    if name in _NOT_ON_KERNELS:
      return Refusal(what=name, words=(name,))
    if name in spec.lacks:
      return Refusal(what=f"{name} on {spec.name}", words=(name, spec.name))
  to = one.lhs_quantization
  if to and to not in spec.mxu_dtypes:
    return Refusal(
      what=f"lhs quantised to {to} on {spec.name}", words=(to, spec.name)
    )
  return None


_NOT_ON_KERNELS = {
  row.name for row in formats.DTYPES.values() if row.refused_by_pallas
}


@contextlib.contextmanager
def raising(refused: Refusal | None) -> Iterator[None]:
  """Around what has to be refused as that says; around anything, if None.

  Raises:
    AssertionError: it ran, or was refused in other words.
  """
  if refused is None:
    yield
    return
  try:
    yield
  except NotImplementedError as error:
    missing = [word for word in refused.words if word not in str(error)]
    if not missing:
      return
    raise AssertionError(
      f"{refused.what} was refused, as it has to be, but the error does not "
      f"name {' or '.join(missing)}: {error}"
    ) from None
  raise AssertionError(f"{refused.what} has to be refused, and it ran")
