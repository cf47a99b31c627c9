"""Compiles JAX programs for a TPU generation, on a machine without one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gmm.aot import calls, placing


class CompileError(RuntimeError):
  """The TPU compiler refused a program; the message is its reason, one line."""


class Product(NamedTuple):
  """One product to compile: a function and the specs of its arguments."""

  fn: Callable[..., Any]
  specs: tuple[jax.ShapeDtypeStruct, ...]


def compile_for(
  fn: Callable[..., Any],
  *specs: Any,
  chip: str = "v6e",
  devices: int = 1,
  row_major: bool = True,
  out_shardings: Any = None,
  donate_argnums: int | Sequence[int] = (),
) -> jax.stages.Compiled:
  """Compiles `fn` for a chip, with the whole TPU compiler and without the chip.

  What the kernels' compiler refuses, or what does not fit, fails here. The
  result cannot run, but tells what it would be: `as_text()` is the scheduled
  HLO (see `weight_copies`), `memory_analysis()` the bytes of temporaries.

  Args:
    fn: any function that can be jitted; not yet jitted, or what its jit donates
      is lost. Meshes within it are the chip's (`aot.mesh`) or abstract. Static
      arguments are `functools.partial`'s.
    *specs: its arguments: pytrees of arrays or `jax.ShapeDtypeStruct`. A
      `NamedSharding` on any mesh means the same mesh of the chip's devices;
      everything else is on all of them. A spec's own `Format` is kept.
    chip: "v4", "v5e", "v5p", "v6e" or "tpu7x".
    devices: how many, where no spec has a mesh: 1 to 8.
    row_major: whether arguments and results lie row-major, as most training
      states do. False leaves entry layouts to the compiler.
    out_shardings: as in `jax.jit`: on several devices results are row-major
      only where it says how they are sharded.
    donate_argnums: as in `jax.jit`.

  Returns:
    The compiled program.

  Raises:
    CompileError: the compiler refuses the program.
    ValueError: an unknown chip, devices that there are not, or shardings that
      contradict each other.
    ImportError: libtpu is not installed.
  """
  shardings = (specs, out_shardings)
  place = placing.Place(chip, devices, shardings, row_major)
  jitted = jax.jit(
    fn,
    out_shardings=place.results(fn, specs, out_shardings),
    donate_argnums=donate_argnums,
  )
  lowered = jitted.lower(*jax.tree.map(place.argument, specs))
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    raise CompileError(reason(error)) from error


def reason(error: BaseException) -> str:
  """The first line of a compiler's message that says something."""
  lines = [line.strip() for line in str(error).splitlines()]
  told = [line for line in lines if line]
  if not told:
    return type(error).__name__
  # Mosaic's first line names the kernel only; what is wrong comes after it.
  if told[0].startswith("INTERNAL: Mosaic failed") and len(told) > 1:
    causes = [line for line in told[1:] if "error" in line.lower()]
    return f"{told[0]} {(causes or told[1:])[0]}"
  return told[0]


def spec(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
  """An array's shape and dtype, without the array."""
  return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))


def product(
  mode: str,
  *,
  m: int,
  g: int,
  k: int,
  n: int,
  dtype: Any = "bfloat16",
  rhs_dtype: Any = None,
  scale_block: int | None = None,
  scale_axis: str = "k",
  lhs_quantization: Any = None,
  lhs_scale: str | None = None,
  dout_scale: str | None = None,
  bias: bool = False,
  existing_out: bool = False,
  fused: str | None = None,
  chip: str = "v6e",
  **options: Any,
) -> Product:
  """One product of a weight [g, k, n], for `compile_for` and `schedule`.

  Args:
    mode: "nn": lhs [m, k] times the weight; "nt": dout [m, n] times its
      transpose; "tn": lhs^T times dout, [g, k, n]; "tn_t": the same, written
      as [g, n, k].
    m: rows.
    g: groups.
    k: the weight's rows, in every mode.
    n: the weight's columns, in every mode.
    dtype: of the first operand.
    rhs_dtype: of the second one; as the first by default. int32 for a weight
      of eight int4 each, along `scale_axis`: [g, k / 8, n] or [g, k, n / 8].
    scale_block: elements of the weight along `scale_axis` that share a scale,
      all of them for one scale per channel; None for no scales.
    scale_axis: "k" or "n", of the weight: "k" for a forward nn and its
      gradient nt; "n" for a forward nt, whose weight is stored transposed, and
      its gradient nn.
    lhs_quantization: nn and nt: the format that the kernel quantises the first
      operand to: "int8", "float8_e4m3fn" or "float8_e5m2", as the weight's.
    lhs_scale: scales that a first operand of such a format comes with: "tensor"
      for one; nn and nt: "row" for [m, 1]; tn: "channel" for [1, k].
    dout_scale: tn: those of the second one: "tensor", or "channel" for [1, n].
    bias: nn and nt: whether a bias is added, float32 [g, columns].
    existing_out: nn and nt: whether the product is added to what there is, of
      the result's shape and dtype. Donate it, or XLA copies it first.
    fused: nn: "gated" or "split" for `gmm_gated_v2` or `split_gmm_v2`, of gate
      and up, weights of [g, k, n] each: gated takes [g, k, 2n], split two.
    chip: the TPU to choose tiles for.
    **options: of the kernel: `kernels.gmm_v2` or `kernels.tgmm_v2` for one.

  Returns:
    The function and its specs: both operands, group_sizes int32 [g] and, where
    there are some, the scales float32 (the weight's, lhs's, dout's), the bias,
    and what exists.

  Raises:
    ValueError: an unknown mode or axis, a `scale_block` that does not divide
      the weight, or what the mode does not have.
    TypeError: formats that do not go together, or an argument of a wrong type.
    NotImplementedError: a valid request that no kernel serves.
  """
  operands = calls.Operands(
    dtype=dtype,
    rhs_dtype=rhs_dtype,
    scale_block=scale_block,
    scale_axis=scale_axis,
    lhs_quantization=lhs_quantization,
    lhs_scale=lhs_scale,
    dout_scale=dout_scale,
    bias=bias,
    existing_out=existing_out,
    fused=fused,
  )
  shape = {"m": m, "g": g, "k": k, "n": n}
  names = ("preferred_element_type", "precision")
  results = {name: options[name] for name in names if name in options}
  call = calls.call(mode, shape, operands, **results)
  call.problem(**results)
  names = tuple(call.arrays)
  fn = functools.partial(
    _named, call.kernel, names, **call.options, chip=chip, **options
  )
  return Product(fn, tuple(call.arrays.values()))


def _named(
  kernel: Callable[..., Any],
  names: tuple[str, ...],
  *arrays: jax.Array,
  **options: Any,
) -> Any:
  """Calls a kernel with arrays in the order of their names."""
  return kernel(**dict(zip(names, arrays, strict=True)), **options)
