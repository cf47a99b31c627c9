"""Compiles JAX programs for a TPU generation, on a machine without one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import (
  Mesh,
  NamedSharding,
  PartitionSpec,
  SingleDeviceSharding,
)

from gmm import kernels
from gmm.aot import topology

MODES = ("nn", "nt", "tn", "tn_t")


class CompileError(RuntimeError):
  """The TPU compiler refused a program; the message is its reason, one line."""


class Product(NamedTuple):
  """One product to compile: a function and the specs of its arguments."""

  fn: Callable[..., jax.Array]
  specs: tuple[jax.ShapeDtypeStruct, ...]


def mesh(
  chip: str, shape: Sequence[int], axis_names: Sequence[str], **options: Any
) -> Mesh:
  """A mesh of TPUs that are not there, for shardings and for shard_map.

  Args:
    chip: "v6e" for one.
    shape: devices along each axis.
    axis_names: of the axes.
    **options: of `jax.sharding.Mesh`.

  Raises:
    ValueError: an unknown chip, or more devices than 8.
    ImportError: libtpu is not installed.
  """
  shape = tuple(shape)
  found = topology.devices(chip, int(np.prod(shape)))
  return Mesh(np.array(found).reshape(shape), tuple(axis_names), **options)


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
    fn: any function that can be jitted.
    *specs: its arguments: pytrees of arrays or `jax.ShapeDtypeStruct`. A
      `NamedSharding` on any mesh means the same mesh of the chip's devices;
      everything else is on all of them.
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
    ValueError: an unknown chip, or devices that there are not.
    ImportError: libtpu is not installed.
  """
  place = _Place(chip, devices, specs, row_major)
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


class _Place:
  """Where a program's arrays are, and how they lie."""

  def __init__(
    self, chip: str, devices: int, specs: Any, row_major: bool
  ) -> None:
    self.chip, self.row_major = chip, row_major
    meshes = [
      leaf.sharding.mesh
      for leaf in jax.tree.leaves(specs)
      if isinstance(getattr(leaf, "sharding", None), NamedSharding)
    ]
    self.mesh = None
    if meshes:
      self.mesh = self.on_chip(meshes[0])
    elif len(topology.devices(chip, devices)) > 1:
      self.mesh = mesh(chip, (devices,), ("devices",))
    self.device = topology.devices(chip)[0]

  def on_chip(self, like: Any) -> Mesh:
    """The same mesh, of the chip's devices."""
    shape = dict(like.shape)
    return mesh(
      self.chip, shape.values(), shape.keys(), axis_types=like.axis_types
    )

  def sharding(self, given: Any) -> Any:
    """`given` on the chip's devices."""
    if isinstance(given, NamedSharding):
      given = given.spec
    if self.mesh is None:
      return SingleDeviceSharding(self.device)
    if not isinstance(given, PartitionSpec):
      given = PartitionSpec()
    return NamedSharding(self.mesh, given)

  def argument(self, leaf: Any) -> jax.ShapeDtypeStruct:
    """A spec with a place and a layout."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
      leaf = np.asarray(leaf)
    where = self.format(len(leaf.shape), getattr(leaf, "sharding", None))
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

  def format(self, rank: int, given: Any) -> Any:
    """Sharding and layout of an array."""
    sharding = self.sharding(given)
    if not self.row_major:
      return sharding
    return Format(Layout(tuple(range(rank))), sharding)

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


def _map_prefix(fn: Callable[..., Any], prefix: Any, tree: Any) -> Any:
  """Maps fn over `tree`, with the leaf of `prefix` that stands above each."""

  def is_leaf(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec)

  return jax.tree.map(
    lambda above, below: jax.tree.map(functools.partial(fn, above), below),
    prefix,
    tree,
    is_leaf=is_leaf,
  )


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
    rhs_dtype: of the second one; as the first by default.
    chip: the TPU to choose tiles for.
    **options: of `kernels.gmm_v2` or `kernels.tgmm_v2`.

  Returns:
    The function and its specs, group_sizes int32 [g] last.

  Raises:
    ValueError: an unknown mode.
  """
  if mode not in MODES:
    raise ValueError(f"`mode` is {mode!r}; want one of {MODES}")
  options = {"chip": chip, **options}

  rhs_dtype = dtype if rhs_dtype is None else rhs_dtype
  sizes = spec((g,), jnp.int32)
  if mode in ("nn", "nt"):
    fn = functools.partial(
      kernels.gmm_v2, transpose_rhs=mode == "nt", **options
    )
    columns = k if mode == "nn" else n
    return Product(
      fn, (spec((m, columns), dtype), spec((g, k, n), rhs_dtype), sizes)
    )
  fn = functools.partial(
    kernels.tgmm_v2, num_groups=g, transpose_out=mode == "tn_t", **options
  )
  return Product(fn, (spec((m, k), dtype), spec((m, n), rhs_dtype), sizes))
