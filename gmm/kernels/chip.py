"""What the kernels need to know of each TPU generation, as one table.

The figures come from jax's own chip facts; a row adds what those leave out.
Nothing here touches a device unless `resolve` is asked to find one.
"""

from __future__ import annotations

import dataclasses

import jax
from jax.experimental.pallas import tpu as pltpu

DEFAULT = "v6e"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChipSpec:
  """One TPU generation, as one JAX device sees it.

  Attributes:
    name: "v4", "v5e", "v5p", "v6e" or "tpu7x".
    device_kinds: what `jax.Device.device_kind` says on such a chip.
    num_cores: TensorCores that share one device's memory (2: megacore).
    vmem_bytes: VMEM of one core.
    mxu_size: rows and columns of a weight tile that one MXU holds.
    mxu_dtypes: operand formats that the MXU multiplies as they are; the others
      are widened to bfloat16 in VMEM.
    mxu_pairs: two formats that it multiplies with each other.
    beside_bfloat16: formats of float8 of which it takes a weight beside an
      operand in bfloat16, as it is.
    lacks: formats that it cannot even widen in VMEM.
    hbm_bytes_per_second: peak bandwidth of one core.
    bf16_flops: peak rate of one core.
  """

  name: str
  device_kinds: tuple[str, ...]
  num_cores: int
  vmem_bytes: int
  mxu_size: int
  mxu_dtypes: frozenset[str]
  mxu_pairs: frozenset[frozenset[str]]
  beside_bfloat16: frozenset[str]
  lacks: frozenset[str]
  hbm_bytes_per_second: float
  bf16_flops: float

  @property
  def vmem_budget(self) -> int:
    """Bytes that one kernel may plan with; the compiler keeps the rest."""
    return self.vmem_bytes * 9 // 10


_FORMATS = ("bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2")

_PAIRS = (("float8_e4m3fn", "float8_e5m2"),)


def _spec(
  name: str,
  version: pltpu.ChipVersion,
  *device_kinds: str,
  num_cores: int = 1,
  beside_bfloat16: tuple[str, ...] = (),
  lacks: frozenset[str] = frozenset({"float4_e2m1fn"}),
) -> ChipSpec:
  info = pltpu.get_tpu_info_for_chip(version, num_cores)
  return ChipSpec(
    name=name,
    device_kinds=device_kinds,
    num_cores=num_cores,
    vmem_bytes=info.vmem_capacity_bytes,
    mxu_size=info.mxu_column_size,
    mxu_dtypes=frozenset(f for f in _FORMATS if info.is_matmul_supported(f, f)),
    mxu_pairs=frozenset(
      frozenset(p) for p in _PAIRS if info.is_matmul_supported(*p)
    ),
    beside_bfloat16=frozenset(beside_bfloat16),
    lacks=lacks,
    hbm_bytes_per_second=info.mem_bw_bytes_per_second,
    bf16_flops=info.bf16_ops_per_second,
  )


_VERSIONS = pltpu.ChipVersion
CHIPS: dict[str, ChipSpec] = {
  spec.name: spec
  for spec in (
    _spec("v4", _VERSIONS.TPU_V4, "TPU v4", num_cores=2),
    _spec("v5e", _VERSIONS.TPU_V5E, "TPU v5 lite", "TPU v5e"),
    _spec("v5p", _VERSIONS.TPU_V5P, "TPU v5", "TPU v5p", num_cores=2),
    _spec(
      "v6e",
      _VERSIONS.TPU_V6E,
      "TPU v6 lite",
      "TPU v6e",
      beside_bfloat16=("float8_e4m3b11fnuz", "float8_e5m2"),
    ),
    _spec(
      "tpu7x",
      _VERSIONS.TPU_7X,
      "TPU7x",
      beside_bfloat16=("float8_e4m3fn", "float8_e5m2"),
      lacks=frozenset(),
    ),
  )
}


def resolve(name: str | None = None) -> ChipSpec:
  """Returns the chip to choose tiles for.

  Args:
    name: a key of `CHIPS`; None asks the abstract mesh, then the attached TPU,
      and takes v6e where neither names one.

  Raises:
    TypeError: `name` is neither a string nor None.
    ValueError: `name` is no known chip, or the attached TPU is of no known
      kind.
  """
  if name is None:
    kind = _device_kind()
    return CHIPS[DEFAULT] if kind is None else _by_device_kind(kind)
  if not isinstance(name, str):
    raise TypeError(
      f"`chip` is {name!r}; want a name out of {_known()}, or None"
    )
  if name not in CHIPS:
    raise ValueError(f"`chip` is {name!r}; known chips: {_known()}")
  return CHIPS[name]


def is_default(name: str | None = None) -> bool:
  """True when no chip is named or attached, so that v6e was assumed."""
  return name is None and _device_kind() is None


def _known() -> str:
  return ", ".join(CHIPS)


def _device_kind() -> str | None:
  device = jax.sharding.get_abstract_mesh().abstract_device
  if device is not None and device.device_kind.startswith("TPU"):
    return device.device_kind
  if jax.default_backend() == "tpu":
    return jax.devices()[0].device_kind
  return None


def _by_device_kind(kind: str) -> ChipSpec:
  for spec in CHIPS.values():
    if kind in spec.device_kinds:
      return spec
  raise ValueError(
    f"the TPU at hand is a {kind!r}, which has no row in the "
    f"chip table; name the nearest one with `chip`: {_known()}"
  )
