"""Problem and Config to product: the only place that reads backend flags.

A product is one call of gmm or tgmm on one backend, with no gradient. It is
jitted with everything static in one argument, so that calls outside jit compile
once as well, and it has its own rule for vmap.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import mlir

from gmm import (
  checks,
  kernels,
  layouts,
  meshes,
  varying,
  xla_backend,
  xla_gated,
)
from gmm.activations import Activation
from gmm.config import Config, Problem, Tiling
from gmm.kernels import chip as chips
from gmm.kernels import gated_api
from gmm.pair_operands import PairOperands


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
  """One product on one backend.

  Attributes:
    problem: what to compute, in the call's own terms.
    backend: "auto", "pallas", "interpret" or "xla".
    chip: the chip to choose tiles for, or None.
    tiling: (tile_m, tile_k, tile_n) in the call's own terms, or None.
    swapped: the last two axes of the weight lie in memory in the other order.
    activation: of a gated product.
  """

  problem: Problem
  backend: str
  chip: str | None
  tiling: Tiling | None
  swapped: bool = False
  activation: Activation | None = None


def product(problem: Problem, config: Config, *, flipped: bool) -> Product:
  """Chooses how to compute `problem`.

  Args:
    problem: what to compute.
    config: the caller's choices.
    flipped: the call's k and n are the weight's n and k, as in dlhs.

  Returns:
    The Product, for `run`.

  Raises:
    NotImplementedError: the chosen backend cannot serve the problem.
    ValueError: `config.tiling` does not fit.
  """
  tiles = config.tiles
  if problem.kind == "tgmm":
    tiling = tiles.drhs
  else:
    tiling = tiles.dlhs if flipped else tiles.fwd
  if tiling is not None and flipped:
    tiling = (tiling[0], tiling[2], tiling[1])
  backend = config.effective_backend
  if backend in ("pallas", "interpret"):
    checks.check_pallas_dtypes(problem, chips.resolve(config.chip))
  elif backend == "auto":
    refusal = checks.pallas_refusal(problem, chips.resolve(config.chip))
    if refusal is not None:
      backend = "xla"  # "auto" serves what one of the backends can
  transposed = problem.transpose_rhs or problem.transpose_out
  return Product(
    problem=problem,
    backend=backend,
    chip=config.chip,
    tiling=tiling,
    # What is packed is so along the axis that comes first.
    swapped=not problem.packed_axis
    and layouts.lies_swapped(
      config.rhs_layout,
      problem.weight_shape,
      problem.weight_dtype,
      k_axis=2 if transposed != flipped else 1,
    ),
  )


@functools.partial(jax.jit, static_argnums=(0,))
def run(static: Product, operands: tuple[jax.Array, ...]) -> jax.Array:
  """Computes a product.

  Args:
    static: from `product`.
    operands: lhs, rhs or dout, canonical sizes, canonical offset and, each if
      the problem has one, rhs_scale, lhs_scale, rhs_bias and existing_out. Of
      a pair `PairOperands.flat`.

  Returns:
    The result, of `problem.out_shape` and `problem.out_dtype`; two of them, if
    the problem is "split".
  """
  operands = varying.vary_alike(*operands)
  problem = static.problem
  # Biases alone, of a pair, are for XLA, too.
  if problem.is_empty or (problem.pair is not None and problem.k == 0):
    return _empty(static, *operands)
  return _batchable(static)(*operands)


def _batchable(static: Product) -> Any:
  """The backend's function, with a vmap rule: one product after the other.

  Neither a kernel over whole arrays nor a loop of run-time length can take a
  batch of some of its operands.
  """

  @jax.custom_batching.custom_vmap
  def call(*operands: jax.Array) -> jax.Array:
    backend = functools.partial(_BACKENDS[static.backend], static)
    return meshes.on_every_device(backend)(*operands)

  @call.def_vmap
  def _(
    axis_size: int, in_batched: list[bool], *operands: jax.Array
  ) -> tuple[jax.Array, bool]:
    del axis_size

    def one(batched: list[jax.Array]) -> jax.Array:
      items = iter(batched)
      return call(
        *(
          next(items) if is_batched else x
          for x, is_batched in zip(operands, in_batched, strict=True)
        )
      )

    batched = [
      x
      for x, is_batched in zip(operands, in_batched, strict=True)
      if is_batched
    ]
    meshes.check_batch(batched)
    out = lax.map(one, batched)
    return out, jax.tree.map(lambda _: True, out)

  return call


def _empty(static: Product, *operands: jax.Array) -> jax.Array:
  """The result where there is nothing to multiply."""
  if static.problem.pair is not None:
    return _xla(static, *operands)  # an activation may not be zero there
  if static.problem.has_existing:
    return operands[-1]
  zeros = jnp.zeros(static.problem.out_shape, static.problem.out_dtype)
  return varying.vary_like(zeros, *operands)


# ---- backends


def _xla(static: Product, *operands: jax.Array) -> Any:
  if static.problem.pair is not None:
    x = PairOperands.of(static.problem, operands)
    return xla_gated.run(static.problem, x, static.activation)
  if static.problem.kind == "tgmm":
    return xla_backend.tgmm(*operands, problem=static.problem)
  lhs, rhs, sizes, offset, *more = operands
  return xla_backend.gmm(
    lhs,
    rhs,
    sizes,
    offset,
    **_extras(static.problem, more),
    problem=static.problem,
  )


def _extras(
  problem: Problem, operands: Sequence[jax.Array]
) -> dict[str, jax.Array | None]:
  """The operands of gmm that a problem may do without, by name."""
  left = iter(operands)
  return {
    name: next(left) if there else None
    for name, there in (
      ("rhs_scale", problem.scale_block),
      ("lhs_scale", problem.lhs_scales),
      ("rhs_bias", problem.has_bias),
      ("existing_out", problem.has_existing),
    )
  }


def _kernel(
  static: Product, *operands: jax.Array, interpret: bool
) -> jax.Array:
  """Runs a kernel on the view of the weight that is row-major in memory."""
  problem, swapped = static.problem, static.swapped
  if problem.pair is not None:
    return _pair(static, *operands, interpret=interpret)
  lhs, rhs, sizes, offset, *more = operands
  options = {
    "group_offset": offset,
    "preferred_element_type": problem.out_dtype,
    "precision": problem.precision,
    "tiling": static.tiling,
    "chip": static.chip,
    "interpret": interpret,
  }
  if problem.kind == "tgmm":
    out = kernels.tgmm_v2(
      lhs,
      rhs,
      sizes,
      num_groups=problem.g,
      transpose_out=problem.transpose_out != swapped,
      **options,
    )
    return out.swapaxes(1, 2) if swapped else out
  return kernels.gmm_v2(
    lhs,
    rhs.swapaxes(1, 2) if swapped else rhs,
    sizes,
    **_extras(problem, more),
    lhs_quantization=problem.lhs_quantization,
    backward="n" in (problem.scale_axis, problem.packed_axis),
    transpose_rhs=problem.transpose_rhs != swapped,
    **options,
  )


def _pair(static: Product, *operands: jax.Array, interpret: bool) -> Any:
  """As `_kernel`, for two products in one."""
  problem, swapped = static.problem, static.swapped
  transposed = problem.transpose_rhs != swapped
  x = PairOperands.of(problem, operands)
  if swapped:
    x = x._replace(rhs=tuple(weight.swapaxes(1, 2) for weight in x.rhs))
  return gated_api.run(
    dataclasses.replace(problem, transpose_rhs=transposed),
    x,
    activation=static.activation,
    tiling=static.tiling,
    chip=static.chip,
    interpret=interpret,
  )


def _interpret(static: Product, *operands: jax.Array) -> jax.Array:
  return _kernel(static, *operands, interpret=True)


def _pallas(static: Product, *operands: jax.Array) -> jax.Array:
  lhs, rhs, sizes, offset, *more = operands
  offset = _on_tpu_p.bind(offset, assumed_chip=chips.is_default(static.chip))
  return _kernel(static, lhs, rhs, sizes, offset, *more, interpret=False)


def _auto(static: Product, *operands: jax.Array) -> jax.Array:
  return lax.platform_dependent(
    *operands,
    tpu=functools.partial(_pallas, static),
    default=functools.partial(_xla, static),
  )


_BACKENDS = {
  "auto": _auto,
  "pallas": _pallas,
  "interpret": _interpret,
  "xla": _xla,
}


# ---- an identity that knows which platform it is lowered for
#
# Only lowering knows: people cross-compile for TPU from a CPU host, and each
# branch of platform_dependent is traced, whether or not it is lowered.

_on_tpu_p = core.Primitive("gmm_on_tpu")
_on_tpu_p.def_impl(lambda x, **_: x)
_on_tpu_p.def_abstract_eval(lambda x, **_: x)


def _lower_on_tpu(ctx: Any, x: Any, *, assumed_chip: bool) -> list[Any]:
  _check_one_platform(ctx.module_context.platforms)
  if assumed_chip:
    warnings.warn(
      f"gmm: no `chip` is named and no TPU is attached, so tiles were chosen "
      f"for {chips.DEFAULT}; name one with Config(chip=...): "
      f"{', '.join(chips.CHIPS)}",
      stacklevel=2,
    )
  return [x]


def _lower_elsewhere(ctx: Any, x: Any, *, assumed_chip: bool) -> list[Any]:
  del assumed_chip
  platforms = ctx.module_context.platforms
  _check_one_platform(platforms)
  raise NotImplementedError(
    f"backend='pallas' needs a program for TPU, but this one is lowered for "
    f"{platforms[0]}; use backend='auto', 'xla' or 'interpret'"
  )


def _check_one_platform(platforms: Sequence[str]) -> None:
  """A program for several platforms holds every branch for each of them."""
  if len(platforms) > 1:
    raise NotImplementedError(
      f"a program for several platforms at once ({', '.join(platforms)}) "
      "cannot hold a TPU kernel; export it for each of them alone, or use "
      "backend='xla'"
    )


mlir.register_lowering(_on_tpu_p, _lower_elsewhere)
mlir.register_lowering(_on_tpu_p, _lower_on_tpu, platform="tpu")
