"""Checks of the products in pairs, on top of those of one product."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gmm import checks
from gmm.config import Problem


def whole_problem(
  lhs: Any, rhs_gate_up: Any, group_sizes: Any, **options: Any
) -> Problem:
  """The product of gate and up together, with n twice that of the result.

  Raises:
    ValueError, TypeError, NotImplementedError: as `checks.gmm_problem`.
  """
  return _named(("rhs_gate_up",), lhs, rhs_gate_up, group_sizes, **options)


def gated_problem(
  lhs: Any, rhs_gate_up: Any, group_sizes: Any, **options: Any
) -> Problem:
  """Checks the operands of `gmm_gated` and describes the product.

  Args:
    lhs: [m, k].
    rhs_gate_up: [g, k, 2n], or [g, 2n, k] with transpose_rhs.
    group_sizes: integers [g_total], g_total >= g.
    **options: of `checks.gmm_problem`.

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
    **options: of `checks.gmm_problem`.

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
  lhs: Any, rhs: tuple[Any, Any], group_sizes: Any, **options: Any
) -> tuple[Problem, Problem]:
  """Checks the operands of `split_gmm`, whose weights may differ in n.

  Args:
    lhs: [m, k].
    rhs: gate and up, [g, k, n] or [g, n, k] each.
    group_sizes: integers [g_total], g_total >= g.
    **options: of `checks.gmm_problem`.

  Returns:
    The Problem of each product.

  Raises:
    ValueError: shapes disagree.
    TypeError: a dtype that no backend takes, or weights of two dtypes.
    NotImplementedError: a valid request that is not supported yet.
  """
  gate, up = (
    _named((name,), lhs, weight, group_sizes, **options)
    for name, weight in zip(("rhs_gate", "rhs_up"), rhs, strict=True)
  )
  if gate.rhs_dtype != up.rhs_dtype:
    raise TypeError(
      f"`rhs_gate` is {gate.rhs_dtype} and `rhs_up` is {up.rhs_dtype}; want "
      "the same"
    )
  if gate.g != up.g:
    raise ValueError(
      f"`rhs_gate` has g = {gate.g} groups and `rhs_up` has {up.g}; want the "
      "same"
    )
  return gate, up


def sum_problem(
  lhs: tuple[Any, Any],
  rhs: tuple[Any, Any],
  group_sizes: Any,
  **options: Any,
) -> Problem:
  """Checks the operands of `lhs[0] @ rhs[0] + lhs[1] @ rhs[1]`.

  Args:
    lhs: two of [m, k].
    rhs: two of [g, k, n], or [g, n, k] with transpose_rhs.
    group_sizes: integers [g_total], g_total >= g.
    **options: of `checks.gmm_problem`.

  Returns:
    The Problem.

  Raises:
    ValueError: shapes disagree.
    TypeError: a dtype that no backend takes, or operands of two dtypes.
    NotImplementedError: a valid request that is not supported yet.
  """
  first, second = (
    _named((f"rhs[{i}]", f"lhs[{i}]"), x, weight, group_sizes, **options)
    for i, (x, weight) in enumerate(zip(lhs, rhs, strict=True))
  )
  if first != second:
    raise (TypeError if _shapes(first) == _shapes(second) else ValueError)(
      f"`lhs` and `rhs` hold two products that differ: {first} and {second}; "
      "want the same shapes and dtypes in both"
    )
  return dataclasses.replace(first, pair="sum")


def _shapes(problem: Problem) -> tuple[int, ...]:
  return problem.m, problem.k, problem.n, problem.g


def _named(
  names: tuple[str, ...], lhs: Any, rhs: Any, group_sizes: Any, **options: Any
) -> Problem:
  """`checks.gmm_problem`, whose errors give the operands these names."""
  try:
    problem = checks.gmm_problem(lhs, rhs, group_sizes, **options)
    if problem.packed_axis:
      raise NotImplementedError(
        f"`rhs` is {rhs.dtype}, packed int4: not for products in pairs yet; "
        "use `ops.gmm`"
      )
    return problem
  except (TypeError, ValueError, NotImplementedError) as error:
    said = str(error)
    for own, name in zip(("rhs", "lhs"), names, strict=False):
      said = said.replace(f"`{own}`", f"`{name}`")
    raise type(error)(said) from None
