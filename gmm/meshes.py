"""Operands on a mesh with explicit axes, whose types say how they are sharded.

Inside `jax.shard_map` there is nothing to do: operations work on one shard.
Outside, operands that every device has whole are multiplied on every device.
Others are refused: which rows, groups or partial sums a device would hold is
the caller's to say. Axes of type Auto are no part of a type; XLA sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from gmm.config import Problem


def check_whole(problem: Problem, **operands: Any) -> None:
  """Checks that no operand's type says that it is sharded.

  Args:
    problem: the product.
    **operands: arrays, or None, by the names that the caller knows them by.

  Raises:
    NotImplementedError: one is sharded over an explicit axis of a mesh, or a
      part of a sum.
  """
  for name, x in operands.items():
    spec = PartitionSpec() if x is None else jax.typeof(x).sharding.spec
    axes = _axes(spec)
    if not axes:
      continue
    why = "which rows and groups each device would multiply is not known"
    how = f"wrap the call in jax.shard_map over {', '.join(map(repr, axes))}"
    summed = _summed_axis(problem, name, len(spec.partitions))
    if spec.unreduced:
      why = "each device has a part of the sum that it is"
      how = "let jax.reshard add the parts up"
    elif summed is not None and spec.partitions[summed] is not None:
      letter = "m" if problem.kind == "tgmm" else "k"
      why = f"that splits {letter}, so that each device has a part of the sum"
      how += (
        f", with jax.lax.psum(..., {spec.partitions[summed]!r}) of the products"
      )
    raise NotImplementedError(
      f"`{name}` is sharded as {spec} over explicit mesh axes, and {why}; "
      f"{how}. Or give every device the whole of it, jax.reshard(..., jax.P()),"
      " or leave it to XLA: jax.sharding.auto_axes, with Config(backend='xla')"
    )


def check_batch(operands: Sequence[jax.Array]) -> None:
  """Checks that vmap's axis, the first of `operands`, is not sharded.

  Raises:
    NotImplementedError: it is, over an explicit axis of a mesh.
  """
  for x in operands:
    axes = jax.typeof(x).sharding.spec.partitions[0]
    if axes is not None:
      raise NotImplementedError(
        f"vmap over a batch that is sharded over the explicit mesh axis "
        f"{axes!r}, outside jax.shard_map; call vmap inside jax.shard_map, or "
        "give every device the whole batch, jax.reshard(..., jax.P())"
      )


def on_every_device(function: Callable[..., Any]) -> Callable[..., Any]:
  """Makes `function` of whole arrays run on each device of an explicit mesh.

  A kernel can only run where all mesh axes are manual, and it makes arrays of
  its own, which are on no mesh. Without explicit axes this is `function`.
  """

  def call(*operands: jax.Array) -> Any:
    mesh = _mesh(operands)
    axes = {
      name
      for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
      if kind == AxisType.Explicit
    }
    if not axes:
      return function(*operands)
    everywhere = jax.shard_map(
      function,
      mesh=mesh,
      # All axes are the default, which leaves out what vmap maps over.
      **({} if len(axes) == len(mesh.axis_names) else {"axis_names": axes}),
      in_specs=PartitionSpec(),
      out_specs=PartitionSpec(),
    )
    return everywhere(*operands)

  return call


def _mesh(operands: tuple[jax.Array, ...]) -> Any:
  """The operands' abstract mesh, or that of the context."""
  for x in operands:
    mesh = jax.typeof(x).sharding.mesh
    if not mesh.empty:
      return mesh
  return jax.sharding.get_abstract_mesh()


def _summed_axis(problem: Problem, name: str, rank: int) -> int | None:
  """Which axis of an operand the product sums over."""
  if problem.kind == "tgmm":
    return 0 if rank == 2 else None
  if name == "lhs":
    return 1
  if rank == 3:  # a weight, or its scale
    return 2 if problem.transpose_rhs and not name.endswith("_scale") else 1
  return None


def _axes(spec: PartitionSpec) -> list[str]:
  """The mesh axes that a spec names."""
  names = {*spec.unreduced, *spec.reduced}
  for along in spec.partitions:
    names |= set(along) if isinstance(along, tuple) else {along}
  return sorted(names - {None})
