"""Dimension numbers of a ragged dot: which axis is what, and whether it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

_FORMS = (
  "a ragged dimension of lhs that is not contracted, with one group dimension "
  "of rhs; one that is contracted, or one of the batch dimensions, with none"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axes:
  """What each axis of one operand is.

  Attributes:
    batch: batch axes.
    outer: those of the ragged axis's kind that come before it.
    ragged: the ragged axis; of rhs, the one that it is contracted with.
    inner: those of its kind that come after it.
    contract: contracted axes, where the ragged one is not among them.
    group: the axis of the groups.
    free: axes that are neither of a batch nor contracted nor any of these.
  """

  batch: tuple[int, ...]
  outer: tuple[int, ...] = ()
  ragged: tuple[int, ...] = ()
  inner: tuple[int, ...] = ()
  contract: tuple[int, ...] = ()
  group: tuple[int, ...] = ()
  free: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dims:
  """What each axis of both operands is.

  Attributes:
    form: what the ragged dimension is: "noncontracting", "contracting" or
      "batch".
    shape: of lhs.
    lhs: its axes.
    rhs: its axes.
  """

  form: str
  shape: tuple[int, ...]
  lhs: Axes
  rhs: Axes

  @property
  def rows(self) -> int:
    """Of the ragged axis."""
    return self.shape[self.lhs.ragged[0]]

  @property
  def inner(self) -> int:
    """Rows of the joined axis for each of the ragged one."""
    return int(np.prod([self.shape[i] for i in self.lhs.inner], initial=1))


def parse(lhs: Any, rhs: Any, group_sizes: Any, numbers: Any) -> Dims:
  """Checks dimension numbers against the shapes.

  Args:
    lhs: has a shape.
    rhs: has a shape.
    group_sizes: integers [g] or [.., g].
    numbers: a `lax.RaggedDotDimensionNumbers`.

  Returns:
    The Dims.

  Raises:
    TypeError: `numbers` is something else, or an operand no array, or sizes
      that are no integers.
    ValueError: `numbers` is none of the three forms, or does not fit the
      shapes.
  """
  if not isinstance(numbers, lax.RaggedDotDimensionNumbers):
    raise TypeError(
      f"`ragged_dot_dimension_numbers` is a {type(numbers).__name__}; want a "
      "jax.lax.RaggedDotDimensionNumbers"
    )
  arrays = {"lhs": lhs, "rhs": rhs, "group_sizes": group_sizes}
  for name, x in arrays.items():
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
      raise TypeError(f"`{name}` is a {type(x).__name__}; want an array")
  if not jnp.issubdtype(group_sizes.dtype, jnp.integer):
    raise TypeError(f"`group_sizes` is {group_sizes.dtype}; want integers")
  lhs_axes, rhs_axes = _checked_dot(lhs.shape, rhs.shape, numbers)
  form, lhs_axes, rhs_axes = _split(numbers, (lhs_axes, rhs_axes), rhs.shape)
  dims = Dims(form=form, shape=tuple(lhs.shape), lhs=lhs_axes, rhs=rhs_axes)
  _check_sizes(dims, tuple(group_sizes.shape))
  return dims


def _checked_dot(
  lhs: Sequence[int], rhs: Sequence[int], numbers: Any
) -> tuple[Axes, Axes]:
  """The batch, contracted and other axes of both."""
  contract, batch = numbers.dot_dimension_numbers
  operands = []
  for i, (name, shape) in enumerate((("lhs", lhs), ("rhs", rhs))):
    used = (*batch[i], *contract[i])
    if any(not 0 <= a < len(shape) for a in used):
      _refuse(f"names axes {list(used)} of `{name}` {list(shape)}")
    if len(set(used)) < len(used):
      _refuse(f"names an axis of `{name}` twice, in {list(used)}")
    free = tuple(a for a in range(len(shape)) if a not in used)
    operands.append(Axes(batch=batch[i], contract=contract[i], free=free))
  for kind, (a, b) in (("contracted", contract), ("batch", batch)):
    sizes = [lhs[i] for i in a], [rhs[i] for i in b]
    if sizes[0] != sizes[1]:
      _refuse(
        f"has {kind} axes of sizes {sizes[0]} in `lhs`, {sizes[1]} in `rhs`"
      )
  return operands[0], operands[1]


def _split(
  numbers: Any, axes: tuple[Axes, Axes], rhs_shape: Sequence[int]
) -> tuple[str, Axes, Axes]:
  """The form, and the axes of both with the ragged one and the groups'."""
  x, w = axes
  ragged = tuple(numbers.lhs_ragged_dimensions)
  group = tuple(numbers.rhs_group_dimensions)
  if len(ragged) != 1:
    _refuse(f"has {len(ragged)} ragged dimensions of `lhs`")
  rank = sum(map(len, (x.batch, x.contract, x.free)))
  if not 0 <= ragged[0] < rank:
    _refuse(f"has the ragged dimension {ragged[0]} of `lhs` of rank {rank}")
  kinds = {"noncontracting": x.free, "contracting": x.contract}
  form = next((k for k, v in kinds.items() if ragged[0] in v), "batch")
  if len(group) != (form == "noncontracting"):
    _refuse(
      f"has {len(group)} group dimensions of `rhs` beside a {form} "
      "ragged dimension"
    )
  if form == "batch":
    return form, dataclasses.replace(x, ragged=ragged), w
  at = kinds[form].index(ragged[0])
  if form == "contracting":
    return (
      form,
      *(
        dataclasses.replace(
          d,
          contract=(),
          outer=d.contract[:at],
          ragged=d.contract[at : at + 1],
          inner=d.contract[at + 1 :],
        )
        for d in axes
      ),
    )
  if group[0] not in w.free:
    _refuse(
      f"has the group dimension {group[0]} of `rhs` {list(rhs_shape)}, "
      "which is not there, or a batch or contracted axis"
    )
  free = tuple(a for a in w.free if a != group[0])
  outer, inner = x.free[:at], x.free[at + 1 :]
  x = dataclasses.replace(x, outer=outer, ragged=ragged, inner=inner, free=())
  return form, x, dataclasses.replace(w, group=group, free=free)


def _check_sizes(dims: Dims, got: tuple[int, ...]) -> None:
  """[g], or with the axes that come before the ragged one."""
  x = dims.lhs
  before = (*x.batch, *x.outer)
  if dims.form == "batch":
    before = x.batch[: x.batch.index(x.ragged[0])]
  wanted = tuple(dims.shape[i] for i in before)
  if len(got) != 1 and got[:-1] != wanted or not got:
    axes = [str(n) for n in (*wanted, "g")]
    raise ValueError(
      f"`group_sizes` has shape {list(got)}; want [g] or [{', '.join(axes)}]"
    )


def _refuse(what: str) -> None:
  raise ValueError(
    f"`ragged_dot_dimension_numbers` {what}; want one of the three forms: "
    f"{_FORMS}"
  )
