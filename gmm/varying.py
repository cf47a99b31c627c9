"""What shard_map's checks want: operands that vary over the same mesh axes."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax


def vary_like(x: jax.Array, *others: jax.Array) -> jax.Array:
  """Lets `x` vary over every manual mesh axis that one of `others` varies over.

  Outside shard_map, and with its checks off, nothing varies and `x` is returned
  as it is. Differentiating this sums the cotangent over the added axes.
  """
  axes = frozenset().union(
    *(jax.typeof(o).manual_axis_type.varying for o in others)
  )
  missing = axes - jax.typeof(x).manual_axis_type.varying
  return lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x


def vary_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
  """Lets all arrays vary over every axis that one of them varies over."""
  return tuple(vary_like(x, *arrays) for x in arrays)


def tree_alike(tree: Any) -> Any:
  """A tree of arrays, with all of them varying alike."""
  leaves, structure = jax.tree.flatten(tree)
  return structure.unflatten(vary_alike(*leaves))
