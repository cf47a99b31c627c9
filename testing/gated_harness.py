"""Runs a gated or split case on a backend, and compares it with the oracle.

As harness.py does for one product: `run_kernels` calls the kernels themselves
with race detection, `run_vjp` calls `ops` under `jax.vjp`, and each keeps one
program for all cases that can share it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from gmm import kernels, ops
from testing import compiling, gated_tolerance, harness, inputs, races
from testing.gated_cases import GatedCase

Results = Mapping[str, np.ndarray]


def shifted(gate: jax.Array, up: jax.Array) -> jax.Array:
  """A caller's activation, which is not zero where both sums are."""
  return (gate + 1) * (up + 2)


def activation_of(case: GatedCase) -> Any:
  """What `ops.gmm_gated` takes."""
  return shifted if case.activation == "shifted" else case.activation


def run_kernels(case: GatedCase, backend: str) -> Results:
  """The kernels of a fused case, called one by one.

  Args:
    case: The case.
    backend: "interpret" or "pallas".

  Returns:
    "out", or "gate", "up" and "dlhs".
  """
  return _run(_kernels_program(case.program, backend), case, backend)


def run_vjp(
  case: GatedCase, backend: str, *, recompute: bool = True, **flags: Any
) -> Results:
  """The operation and its vjp.

  Args:
    case: The case.
    backend: of `ops.Config`.
    recompute: of `ops.gmm_gated`.
    **flags: more of `ops.Config`.

  Returns:
    "out", or "gate" and "up", and the gradients of what has some.
  """
  options = {
    "backend": backend,
    "tiling": case.case.tiling,
    "chip": case.case.chip if backend == "interpret" else None,
    "rhs_layout": "gnk" if case.case.transpose_rhs else "gkn",
  }
  config = ops.Config(**(options | flags))
  program = _vjp_program(case.program, config, recompute=recompute)
  return _run(program, case, backend)


def check(case: GatedCase, results: Results, **flags: Any) -> None:
  """Compares results with the oracle.

  Args:
    case: The case.
    results: what came out.
    **flags: what else to mention.

  Raises:
    AssertionError: a shape, a dtype or an element is wrong.
  """
  x = gated_tolerance.make(case)
  want = gated_tolerance.expected(
    case, x, on_tpu=jax.default_backend() == "tpu"
  )
  rows, groups = inputs.local_rows_and_groups(case.case)
  for name, got in results.items():
    where = f"{name} of {case}, {flags or 'default flags'}"
    dtype = inputs.out_dtype(case.case)
    if name.endswith("_bias"):
      dtype = np.dtype(x.one.rhs_bias.dtype)
    elif name.startswith("d"):
      operand = "lhs" if name == "dlhs" else "rhs"
      dtype = inputs.gradient_dtype(case.case, operand)
    if got.dtype != dtype or got.shape != want[name].value.shape:
      raise AssertionError(
        f"{where}: {got.dtype}{got.shape}, expected "
        f"{dtype}{want[name].value.shape}"
      )
    wide = got.astype(np.float64)
    harness.check_elements(where, case.case, wide, want[name])
    outside = ~groups if name.startswith("drhs") else ~rows
    if np.any(wide[outside] != 0):
      raise AssertionError(f"{where}: not zero outside the local groups")


def _run(program: Callable, case: GatedCase, backend: str) -> Results:
  x = gated_tolerance.make(case)
  if case.case.packed:
    axis = 2 if case.case.transpose_rhs else 1
    weights = tuple(inputs.packed(weight, axis) for weight in x.weights)
    x = dataclasses.replace(x, weights=weights)
  arrays = {
    "lhs": x.one.lhs,
    "weights": x.weights,
    "scales": x.scales,
    "biases": x.biases,
    "douts": x.douts,
    "sizes": x.one.group_sizes,
    "offset": x.one.group_offset,
  }
  if backend == "interpret":
    with races.checked():
      results = jax.block_until_ready(program(arrays))
  else:
    results = program(arrays)
  return {name: np.asarray(result) for name, result in results.items()}


def _named(program: GatedCase, x: dict[str, Any]) -> dict[str, Any]:
  """Scales and biases, by the names of the operation."""
  halves = ("rhs",) if program.op == "gated" else ("rhs_gate", "rhs_up")
  return {
    f"{half}_{what}": array
    for what in ("scale", "bias")
    for half, array in zip(halves, x[_KINDS[what]], strict=True)
  }


_KINDS = {"scale": "scales", "bias": "biases"}


@functools.cache
def _kernels_program(program: GatedCase, backend: str) -> Callable:
  case = program.case
  options: dict[str, Any] = {"tiling": case.tiling}
  if backend == "interpret":
    options |= {"chip": case.chip, "interpret": races.interpret_params()}
  transposed = case.tiling
  if transposed is not None:
    transposed = transposed[0], transposed[2], transposed[1]
  compiler = compiling.fast_options() if backend == "interpret" else {}

  @functools.partial(jax.jit, compiler_options=compiler)
  def run(x: dict[str, Any]) -> dict[str, jax.Array]:
    shared = {
      "group_offset": x["offset"],
      "precision": case.formats.precision,
    }
    forward = {
      "preferred_element_type": case.formats.out,
      "transpose_rhs": case.transpose_rhs,
    }
    operands = x["lhs"], *x["weights"], x["sizes"]
    if program.op == "gated":
      out = kernels.gmm_gated_v2(
        *operands,
        activation=activation_of(program),
        **_named(program, x),
        **(shared | forward | options),
      )
      return {"out": out}
    gate, up = kernels.split_gmm_v2(
      *operands, **_named(program, x), **(shared | forward | options)
    )
    dlhs = kernels.sum_gmm_v2(
      x["douts"],
      x["weights"],
      x["sizes"],
      transpose_rhs=not case.transpose_rhs,
      preferred_element_type=inputs.gradient_dtype(case, "lhs"),
      rhs_scale=x["scales"],
      **(shared | options | {"tiling": transposed}),
    )
    return {"gate": gate, "up": up, "dlhs": dlhs}

  return run


@functools.cache
def _vjp_program(
  program: GatedCase, config: ops.Config, *, recompute: bool
) -> Callable:
  case = program.case
  compiler = (
    compiling.fast_options() if config.backend in ("interpret", "xla") else {}
  )

  def forward(x: dict[str, Any]) -> Any:
    shared = {
      "group_offset": x["offset"],
      "transpose_rhs": case.transpose_rhs,
      "preferred_element_type": case.formats.out,
      "precision": case.formats.precision,
      "config": config,
      **_named(program, x),
    }
    operands = x["lhs"], *x["weights"], x["sizes"]
    if program.op == "split":
      return ops.split_gmm(*operands, **shared)
    out = ops.gmm_gated(
      *operands,
      activation=activation_of(program),
      recompute=recompute,
      **shared,
    )
    return (out,)

  halves = ("",) if program.op == "gated" else ("_gate", "_up")
  names = [half[1:] or "out" for half in halves]

  @functools.partial(jax.jit, compiler_options=compiler)
  def run(x: dict[str, Any]) -> dict[str, jax.Array]:
    operands = {name: x[name] for name in ("lhs", "weights", "biases")}
    if not (case.has_drhs or inputs.is_integer(x["weights"][0].dtype)):
      del operands["weights"]
    outs, vjp = jax.vjp(lambda operands: forward(x | operands), operands)
    results = dict(zip(names, outs, strict=True))
    if inputs.is_integer(outs[0].dtype):
      return results
    (grads,) = vjp(tuple(d.astype(outs[0].dtype) for d in x["douts"]))
    results["dlhs"] = grads["lhs"]
    for i, half in enumerate(halves):
      if "weights" in grads:
        results[f"drhs{half}"] = grads["weights"][i]
      if case.bias:
        results[f"drhs{half}_bias"] = grads["biases"][i]
    return {
      name: x for name, x in results.items() if x.dtype != jax.dtypes.float0
    }

  return run
