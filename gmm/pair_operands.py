"""The arrays of two products in one (see `config.Problem.pair`), in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gmm.config import Problem


class PairOperands(NamedTuple):
  """What is an array; sizes and offset are canonical.

  Attributes:
    lhs: one, or two in "sum".
    rhs: gate and up, or one that holds both in "gated".
    sizes: int32 [g_total].
    offset: int32 [1].
    scale: of each rhs, or none.
    bias: of each rhs, or none.
  """

  lhs: tuple[Any, ...]
  rhs: tuple[Any, ...]
  sizes: Any
  offset: Any
  scale: tuple[Any, ...] = ()
  bias: tuple[Any, ...] = ()

  def flat(self) -> tuple[Any, ...]:
    """All of them, in the order of one product where that has them, too."""
    first = self.lhs[0], self.rhs[0], self.sizes, self.offset
    return (*first, *self.lhs[1:], *self.rhs[1:], *self.scale, *self.bias)

  @classmethod
  def of(cls, problem: Problem, flat: Sequence[Any]) -> PairOperands:
    """Undoes `flat`, for the operands of a problem."""
    lhs, rhs, sizes, offset, *more = flat
    left = iter(more)
    weights = 1 if problem.pair == "gated" else 2

    def take(count: int) -> tuple[Any, ...]:
      return tuple(next(left) for _ in range(count))

    return cls(
      lhs=(lhs, *take(int(problem.pair == "sum"))),
      rhs=(rhs, *take(weights - 1)),
      sizes=sizes,
      offset=offset,
      scale=take(weights if problem.scale_block else 0),
      bias=take(weights if problem.has_bias else 0),
    )
