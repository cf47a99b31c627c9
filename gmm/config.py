"""Static descriptions: how to compute, and what (formats.py, problem.py).

Everything here is frozen and hashable, so that it can be a static argument of
a traced function. Nothing here runs an operation or looks at a device.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from gmm import layouts
from gmm.formats import DTYPES as DTYPES
from gmm.formats import PACKED as PACKED
from gmm.formats import QUANTIZED as QUANTIZED
from gmm.formats import SCALES as SCALES
from gmm.formats import acc_dtype as acc_dtype
from gmm.formats import bits as bits
from gmm.formats import compute_dtype as compute_dtype
from gmm.formats import default_result_dtype as default_result_dtype
from gmm.formats import result_dtypes as result_dtypes
from gmm.problem import Problem as Problem

BACKENDS = ("auto", "pallas", "interpret", "xla")

# (tile_m, tile_k, tile_n) in the terms of the weight: tile_k tiles the weight's
# k axis and tile_n its n axis, whichever product is computed.
Tiling = tuple[int, int, int]


def checked_tiling(name: str, tiling: Any) -> Tiling | None:
  """Returns `tiling` as three positive ints, or None; raises naming `name`."""
  wanted = "(tile_m, tile_k, tile_n), three positive ints"
  if tiling is None:
    return None
  if not isinstance(tiling, (tuple, list)):
    raise TypeError(f"`{name}` is {tiling!r}; want None or {wanted}")
  if len(tiling) != 3:
    raise ValueError(
      f"`{name}` = {tiling!r} has {len(tiling)} entries; want {wanted}"
    )
  sizes = []
  for tile in tiling:
    try:
      if isinstance(tile, (bool, np.bool_)):
        raise TypeError
      sizes.append(operator.index(tile))
    except TypeError:
      raise TypeError(
        f"`{name}` = {tiling!r} holds {tile!r}; want {wanted}"
      ) from None
  if min(sizes) < 1:
    raise ValueError(f"`{name}` = {tiling!r}; want {wanted}")
  return (sizes[0], sizes[1], sizes[2])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
  """Tile sizes for each of the three products; None means "choose".

  Each is (tile_m, tile_k, tile_n) in the weight's terms: tile_k tiles the
  weight's k axis and tile_n its n axis, also in dlhs, which contracts n.

  Attributes:
    fwd: for the forward product.
    dlhs: for the gradient of lhs.
    drhs: for the gradient of rhs.
  """

  fwd: Tiling | None = None
  dlhs: Tiling | None = None
  drhs: Tiling | None = None

  def __post_init__(self) -> None:
    """Checks each tiling."""
    for field in dataclasses.fields(self):
      checked = checked_tiling(
        f"tiling.{field.name}", getattr(self, field.name)
      )
      object.__setattr__(self, field.name, checked)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """How to compute: flags choose an implementation, never another result.

  Attributes:
    backend: "auto" (the Pallas kernels where the program is lowered for TPU,
      XLA elsewhere), "pallas", "interpret" (the same kernels, interpreted on
      any machine) or "xla".
    chip: the TPU generation that tiles are chosen for, such as "v6e". None:
      the abstract mesh's, else the attached one, else v6e.
    use_gmm_v2: False means the XLA backend, on every platform.
    use_gmm_v2_transposed_rhs_dlhs: True computes dlhs from the weight in place;
      False from an explicit transposed copy of a [g, k, n] weight; None is as
      `use_gmm_v2`. (A [g, n, k] weight needs no transpose either way.)
    tiling: None, one (tile_m, tile_k, tile_n) for all products, or `Tiles`.
    rhs_layout: how the weight lies in a TPU's memory: "gkn" with n in the
      lanes, "gnk" with k. The kernels read and write it as it lies, so that
      nothing is copied: for "gnk" all three products are the mirror image.
      "auto" is what XLA does with an entry parameter (or a weight in a stack of
      them) of that shape: row-major unless the other order pads less. Name it
      where yours lies otherwise, as behind an all-gather of shards that have
      another shape. Of no effect on the XLA backend.

  Raises:
    ValueError: an unknown backend, chip or layout, or keys that contradict each
      other.
    TypeError: a value of the wrong type.
  """

  backend: str = "auto"
  chip: str | None = None
  use_gmm_v2: bool = True
  use_gmm_v2_transposed_rhs_dlhs: bool | None = None
  tiling: Tiling | Tiles | None = None
  rhs_layout: str = "auto"

  def __post_init__(self) -> None:
    """Checks each key, and that they do not contradict each other."""
    if self.backend not in BACKENDS:
      raise ValueError(f"`backend` is {self.backend!r}; want one of {BACKENDS}")
    _check_flag("use_gmm_v2", self.use_gmm_v2)
    if self.use_gmm_v2_transposed_rhs_dlhs is not None:
      _check_flag(
        "use_gmm_v2_transposed_rhs_dlhs", self.use_gmm_v2_transposed_rhs_dlhs
      )
    if self.use_gmm_v2_transposed_rhs_dlhs and not self.use_gmm_v2:
      raise ValueError(
        "use_gmm_v2_transposed_rhs_dlhs=True contradicts use_gmm_v2=False: "
        "only gmm_v2 reads the weight in place; drop one of the two"
      )
    if not self.use_gmm_v2 and self.backend in ("pallas", "interpret"):
      raise ValueError(
        f"backend={self.backend!r} contradicts use_gmm_v2=False, which means "
        "backend='xla'; drop one of the two"
      )
    if self.rhs_layout not in layouts.RHS_LAYOUTS:
      raise ValueError(
        f"`rhs_layout` is {self.rhs_layout!r}; want one of "
        f"{layouts.RHS_LAYOUTS}"
      )
    if not isinstance(self.tiling, Tiles):
      object.__setattr__(self, "tiling", checked_tiling("tiling", self.tiling))
    if self.chip is not None:
      # Imported here because the kernels import this module.
      from gmm.kernels import chip as chips

      chips.resolve(self.chip)

  @property
  def effective_backend(self) -> str:
    """The backend, with `use_gmm_v2` taken into account."""
    return self.backend if self.use_gmm_v2 else "xla"

  @property
  def dlhs_in_place(self) -> bool:
    """Whether dlhs reads a [g, k, n] weight without transposing it."""
    if self.use_gmm_v2_transposed_rhs_dlhs is None:
      return self.use_gmm_v2
    return self.use_gmm_v2_transposed_rhs_dlhs

  @property
  def tiles(self) -> Tiles:
    """The tiling of each product, in the weight's terms."""
    if isinstance(self.tiling, Tiles):
      return self.tiling
    return Tiles(fwd=self.tiling, dlhs=self.tiling, drhs=self.tiling)

  @classmethod
  def from_keys(cls, keys: Mapping[str, Any]) -> Config:
    """Reads a trainer's keys; keys that are not ours are ignored.

    Args:
      keys: may hold `use_gmm_v2`, `use_gmm_v2_transposed_rhs_dlhs`,
        `moe_gmm_v2_dlhs_transpose_rhs` (another name for the same) and
        `quantization`. Flags are bools, None (the default), or the strings
        "true", "false", "" and "none" in any case, as command lines give them.

    Returns:
      The Config. Use `dataclasses.replace` for what trainers have no key for.

    Raises:
      ValueError: keys contradict each other, or a string is no flag.
      TypeError: `keys` is no mapping, or a flag neither a bool nor a string.
      NotImplementedError: `quantization` asks for quantised weights.
    """
    if not isinstance(keys, Mapping):
      raise TypeError(
        f"`keys` is a {type(keys).__name__}; want a mapping of a trainer's "
        "keys, a dict for one"
      )
    _refuse_quantization(keys.get("quantization"))
    use = _flag_of_key(keys, "use_gmm_v2")
    names = (
      "use_gmm_v2_transposed_rhs_dlhs",
      "moe_gmm_v2_dlhs_transpose_rhs",
    )
    given = {n: f for n in names if (f := _flag_of_key(keys, n)) is not None}
    if len(set(given.values())) > 1:
      said = " and ".join(f"{n}={f}" for n, f in given.items())
      raise ValueError(
        f"{said} contradict each other: they are two names of "
        "one flag; drop one of the two"
      )
    in_place = next(iter(given.values()), None)
    if in_place and use is False:
      said = " and ".join(f"{n}=True" for n in given)
      raise ValueError(
        f"{said} contradicts use_gmm_v2=False: only gmm_v2 "
        "reads the weight in place; drop one of the two"
      )
    return cls(
      use_gmm_v2=True if use is None else use,
      use_gmm_v2_transposed_rhs_dlhs=in_place,
    )


def _check_flag(name: str, value: Any) -> None:
  if not isinstance(value, bool):
    raise TypeError(f"`{name}` is {value!r}; want True or False")


def _flag_of_key(keys: Mapping[str, Any], name: str) -> bool | None:
  value = keys.get(name)
  if isinstance(value, str):
    words = {"true": True, "false": False, "": None, "none": None}
    if value.lower() not in words:
      raise ValueError(f"`{name}` is {value!r}; want true or false")
    return words[value.lower()]
  if value is not None:
    _check_flag(name, value)
  return value


def _refuse_quantization(value: Any) -> None:
  if value is None or value is False:
    return
  if isinstance(value, str) and value.lower() in ("", "none", "false"):
    return
  raise NotImplementedError(
    f"`quantization` is {value!r}, but a Config does not say what is "
    "quantised: ops.gmm does, by its lhs_quantization, rhs_quantization and "
    "dout_quantization; leave the key out, or set it to None or '' (weights "
    "that are quantised already go with `rhs_scale`)"
  )
