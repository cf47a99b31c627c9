"""Where the arrays of a program are, and how they lie, on devices of a chip."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import (
  Mesh,
  NamedSharding,
  PartitionSpec,
  SingleDeviceSharding,
)

from gmm.aot import topology


def mesh(
  chip: str, shape: Sequence[int], axis_names: Sequence[str], **options: Any
) -> Mesh:
  """A mesh of TPUs that are not there, for shardings and for shard_map.

  Args:
    chip: "v6e" for one.
    shape: devices along each axis, such as (4,).
    axis_names: of the axes, such as ("x",).
    **options: of `jax.sharding.Mesh`.

  Raises:
    ValueError: an unknown chip, or more devices than 8.
    TypeError: `shape` or `axis_names` is no sequence.
    ImportError: libtpu is not installed.
  """
  if isinstance(shape, int) or isinstance(axis_names, str):
    raise TypeError(
      f"`shape` is {shape!r} and `axis_names` {axis_names!r}; want a sequence "
      "of each, such as (4,) and ('x',)"
    )
  shape = tuple(shape)
  found = topology.devices(chip, int(np.prod(shape)))
  return Mesh(np.array(found).reshape(shape), tuple(axis_names), **options)


class Place:
  """The devices of a program, and what its specs mean on them."""

  def __init__(
    self, chip: str, devices: int, shardings: Any, row_major: bool
  ) -> None:
    """Finds the mesh.

    Args:
      chip: of the devices.
      devices: how many, where no sharding has a mesh.
      shardings: pytree; those of its leaves that are NamedShardings, or have
        one, must agree in their mesh.
      row_major: whether arrays lie row-major unless they say otherwise.

    Raises:
      ValueError: several meshes, or one that has not `devices` devices.
    """
    self.chip, self.row_major = chip, row_major
    found = {}
    for leaf in jax.tree.leaves(shardings):
      given = getattr(leaf, "sharding", leaf)
      if isinstance(given, NamedSharding):
        found[tuple(given.mesh.shape.items())] = given.mesh
    if len(found) > 1:
      said = " and ".join(str(dict(shape)) for shape in found)
      raise ValueError(
        f"`specs` and `out_shardings` have several meshes, {said}; want one"
      )
    self.mesh = None
    count = len(topology.devices(chip, devices))
    if found:
      ((shape, like),) = found.items()
      sizes = [size for _, size in shape]
      if devices not in (1, int(np.prod(sizes))):
        raise ValueError(
          f"`devices` is {devices}, and the shardings have a mesh "
          f"{dict(shape)}; leave one of the two out"
        )
      self.mesh = mesh(
        chip, sizes, [name for name, _ in shape], axis_types=like.axis_types
      )
    elif count > 1:
      self.mesh = mesh(chip, (devices,), ("devices",))
    self.device = topology.devices(chip)[0]

  def argument(self, leaf: Any) -> jax.ShapeDtypeStruct:
    """A spec with a place and a layout."""
    is_spec = isinstance(leaf, jax.ShapeDtypeStruct)
    aval = leaf if hasattr(leaf, "weak_type") else jax.typeof(leaf)
    given = getattr(leaf, "sharding", None)
    # An array's own layout is that of the machine it is on.
    layout = leaf.format.layout if is_spec else None
    where = self.format(len(aval.shape), given, layout)
    return jax.ShapeDtypeStruct(
      aval.shape, aval.dtype, sharding=where, weak_type=aval.weak_type
    )

  def results(self, fn: Callable[..., Any], specs: Any, given: Any) -> Any:
    """`out_shardings` for jit."""
    if given is None and self.mesh is not None:
      # Their shardings are the compiler's to find, and so their layouts.
      return Format(Layout.AUTO, None) if self.row_major else None
    if given is None and not self.row_major:
      return None
    shapes = jax.eval_shape(fn, *specs)
    return _map_prefix(
      lambda sharding, leaf: self.format(len(leaf.shape), sharding),
      given,
      shapes,
    )

  def format(self, rank: int, given: Any, layout: Any = None) -> Any:
    """Sharding and layout of an array."""
    if isinstance(given, Format):
      given, layout = given.sharding, given.layout
    sharding = self._sharding(given)
    if layout is not None:
      return Format(layout, sharding)
    if not self.row_major:
      return sharding
    return Format(Layout(tuple(range(rank))), sharding)

  def _sharding(self, given: Any) -> Any:
    """`given` on the chip's devices."""
    kind = getattr(given, "memory_kind", None)
    if isinstance(given, NamedSharding):
      given = given.spec
    if self.mesh is None:
      if isinstance(given, PartitionSpec) and any(given):
        raise ValueError(
          f"`out_shardings` has {given} for one device; give `devices`, or "
          "specs with a mesh"
        )
      return SingleDeviceSharding(self.device)
    if not isinstance(given, PartitionSpec):
      return NamedSharding(self.mesh, PartitionSpec())
    # Other kinds than a TPU's own are those of the machine it came from.
    is_tpu_kind = kind in ("device", "pinned_host")
    return NamedSharding(
      self.mesh, given, memory_kind=kind if is_tpu_kind else None
    )


def _map_prefix(fn: Callable[..., Any], prefix: Any, tree: Any) -> Any:
  """Maps fn over `tree`, with the leaf of `prefix` that stands above each."""

  def is_leaf(x: Any) -> bool:
    return x is None or isinstance(x, (PartitionSpec, Format))

  return jax.tree.map(
    lambda above, below: jax.tree.map(functools.partial(fn, above), below),
    prefix,
    tree,
    is_leaf=is_leaf,
  )
