"""Checks of the products in pairs, on top of those of one product."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from gmm import checks
from gmm.config import Problem

# What the operands of one product are called in pairs.
GATED = (
  ("`rhs`", "`rhs_gate_up`"),
  ("n = ", "2n = "),
  ("k_blocks, n]", "k_blocks, 2n]"),
  ("[g, n]", "[g, 2n]"),
)
SPLIT = tuple(
  tuple((f"`rhs{of}`", f"`rhs_{half}{of}`") for of in ("", "_scale", "_bias"))
  for half in ("gate", "up")
)


@contextlib.contextmanager
def named(names: tuple[tuple[str, str], ...]) -> Iterator[None]:
  """Errors that are raised within say the second of each two, not the first."""
  try:
    yield
  except (TypeError, ValueError, NotImplementedError) as error:
    said = str(error)
    for old, new in names:
      said = said.replace(old, new)
    raise type(error)(said) from None


def whole_problem(
  lhs: Any, rhs_gate_up: Any, group_sizes: Any, **options: Any
) -> Problem:
  """The product of gate and up together, with n twice that of the result.

  Raises:
    ValueError, TypeError, NotImplementedError: as `checks.gmm_problem`.
  """
  with named(GATED):
    return checks.gmm_problem(lhs, rhs_gate_up, group_sizes, **options)


def gated_problem(
  lhs: Any, rhs_gate_up: Any, group_sizes: Any, **options: Any
) -> Problem:
  """Checks the operands of `gmm_gated` and describes the product.

  Args:
    lhs: [m, k].
    rhs_gate_up: [g, k, 2n], or [g, 2n, k] with transpose_rhs.
    group_sizes: integers [g_total], g_total >= g.
    **options: of `checks.gmm_problem`; rhs_scale is [g, k_blocks, 2n] and
      rhs_bias [g, 2n].

  Returns:
    The Problem, whose n is that of the result.

  Raises:
    ValueError: shapes disagree, an odd number of columns, or a precision that
      has no meaning.
    TypeError: a dtype that no backend takes.
    NotImplementedError: integers times integers.
  """
  whole = whole_problem(lhs, rhs_gate_up, group_sizes, **options)
  if whole.n % 2:
    names = "[g, 2n, k]" if whole.transpose_rhs else "[g, k, 2n]"
    raise ValueError(
      f"`rhs_gate_up` is {names} = {list(rhs_gate_up.shape)}: {whole.n} "
      "columns; want an even number, n of gate and n of up"
    )
  _check_float(whole, "`rhs_gate_up`")
  if whole.acc_dtype != np.float32:
    raise NotImplementedError(
      f"`lhs` is {whole.lhs_dtype} and `rhs_gate_up` is {whole.rhs_dtype}: an "
      "activation of integer sums without their scales; use a floating-point "
      "`lhs`"
    )
  return dataclasses.replace(whole, n=whole.n // 2, pair="gated")


def split_problem(
  lhs: Any, rhs: tuple[Any, Any], group_sizes: Any, **options: Any
) -> Problem:
  """Checks the operands of `split_gmm` with weights of one shape.

  Args:
    lhs: [m, k].
    rhs: gate and up, [g, k, n] or [g, n, k] each.
    group_sizes: integers [g_total], g_total >= g.
    **options: of `split_problems`.

  Returns:
    The Problem, whose n is that of each result.

  Raises:
    ValueError, TypeError: as `split_problems`; or two shapes.
    NotImplementedError: as `checks.gmm_problem`.
  """
  gate, up = split_problems(lhs, rhs, group_sizes, **options)
  if gate.n != up.n:
    raise ValueError(
      f"`rhs_gate` has n = {gate.n} columns and `rhs_up` has {up.n}; want the "
      "same, or `ops.split_gmm`, which computes two products then"
    )
  return dataclasses.replace(gate, pair="split")


def split_problems(
  lhs: Any,
  rhs: tuple[Any, Any],
  group_sizes: Any,
  *,
  rhs_scale: tuple[Any, Any] = (None, None),
  rhs_bias: tuple[Any, Any] = (None, None),
  **options: Any,
) -> tuple[Problem, Problem]:
  """Checks the operands of `split_gmm`, whose weights may differ in n.

  Args:
    lhs: [m, k].
    rhs: gate and up, [g, k, n] or [g, n, k] each.
    group_sizes: integers [g_total], g_total >= g.
    rhs_scale: of each, [g, k_blocks, n] or None.
    rhs_bias: of each, [g, n] or None.
    **options: of `checks.gmm_problem`.

  Returns:
    The Problem of each product.

  Raises:
    ValueError: shapes disagree, or one of two has what the other lacks.
    TypeError: a dtype that no backend takes, or weights of two dtypes.
    NotImplementedError: a valid request that is not supported yet.
  """
  _check_both("scale", rhs_scale)
  _check_both("bias", rhs_bias)
  found = []
  for names, *own in zip(SPLIT, rhs, rhs_scale, rhs_bias, strict=True):
    weight, scale, bias = own
    with named(names):
      more = {"rhs_scale": scale, "rhs_bias": bias}
      found.append(
        checks.gmm_problem(lhs, weight, group_sizes, **more, **options)
      )
  gate, up = found
  _check_float(gate, "`rhs_gate`")
  if (gate.rhs_dtype, gate.packed_axis) != (up.rhs_dtype, up.packed_axis):
    raise TypeError(
      f"`rhs_gate` is {rhs[0].dtype} and `rhs_up` is {rhs[1].dtype}; want "
      "the same"
    )
  if gate.g != up.g:
    raise ValueError(
      f"`rhs_gate` has g = {gate.g} groups and `rhs_up` has {up.g}; want the "
      "same"
    )
  if gate.scale_dtype != up.scale_dtype:
    raise TypeError(
      f"`rhs_gate_scale` is {gate.scale_dtype} and `rhs_up_scale` is "
      f"{up.scale_dtype}; want the same"
    )
  if gate.scale_block != up.scale_block:
    blocks = [p.scale_shape[1] for p in found]
    raise ValueError(
      f"`rhs_gate_scale` has k_blocks = {blocks[0]} and `rhs_up_scale` has "
      f"{blocks[1]}; want the same"
    )
  return gate, up


def _check_float(problem: Problem, weight: str) -> None:
  """Refuses integers times a weight with scales, in pairs."""
  lhs = problem.lhs_dtype
  if problem.scale_block and lhs.kind == "i":
    raise NotImplementedError(
      f"`lhs` is {lhs} and {weight} has scales: two products of integers are "
      "not scaled; pass a float `lhs`, or use `ops.gmm`"
    )


def _check_both(what: str, two: tuple[Any, Any]) -> None:
  gate, up = (f"`rhs_{half}_{what}`" for half in ("gate", "up"))
  if (two[0] is None) != (two[1] is None):
    given, lacking = (up, gate) if two[0] is None else (gate, up)
    raise ValueError(f"{given} is given and {lacking} is None; want both")


def sum_problem(
  lhs: tuple[Any, Any],
  rhs: tuple[Any, Any],
  group_sizes: Any,
  *,
  rhs_scale: tuple[Any, Any] = (None, None),
  **options: Any,
) -> Problem:
  """Checks the operands of `lhs[0] @ rhs[0] + lhs[1] @ rhs[1]`.

  Args:
    lhs: two of [m, k].
    rhs: two of [g, k, n], or [g, n, k] with transpose_rhs.
    group_sizes: integers [g_total], g_total >= g.
    rhs_scale: of each rhs, [g, n_blocks, k] or None.
    **options: of `checks.gmm_problem`.

  Returns:
    The Problem.

  Raises:
    ValueError: shapes disagree.
    TypeError: a dtype that no backend takes, or operands of two dtypes.
    NotImplementedError: a valid request that is not supported yet.
  """
  found = []
  for i in range(2):
    names = ("rhs", "lhs", "rhs_scale")
    with named(tuple((f"`{name}`", f"`{name}[{i}]`") for name in names)):
      found.append(
        checks.gmm_problem(
          lhs[i],
          rhs[i],
          group_sizes,
          rhs_scale=rhs_scale[i],
          backward=True,
          **options,
        )
      )
  first, second = found
  if first != second:
    raise (TypeError if _shapes(first) == _shapes(second) else ValueError)(
      f"`lhs` and `rhs` hold two products that differ: {first} and {second}; "
      "want the same shapes and dtypes in both"
    )
  return dataclasses.replace(first, pair="sum")


def _shapes(problem: Problem) -> tuple[int, ...]:
  return problem.m, problem.k, problem.n, problem.g
