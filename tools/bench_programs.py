"""The programs that the bench times against each other, and their operands.

All take the weight row-major, [g, k, n], as a training state holds it. At the
levels "kernel" and "offset" they are dlhs = dout @ rhs^T, of (dout, rhs, sizes)
and, for the latter, the offset; at "vjp" the forward product and both
gradients, of (lhs, rhs, dout, sizes).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding

from gmm import kernels, ops
from gmm.kernels import chip as chips
from testing import compiling
from testing.workloads import Workload

OURS, EXPLICIT = "nt", "transpose"
# Those of Tokamax are its two kernels for TPUs, asked for by name: left to
# itself it takes XLA's product without a word where it cannot run its own.
_TOKAMAX = {"tokamax": "mosaic", "tokamax_v2": "mosaic_tpu_v2"}
PEERS = (*_TOKAMAX, "megablox", "ragged_dot")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """One contestant.

  Attributes:
    name: "nt", "transpose" or a peer's.
    level: one of `shapes.LEVELS`.
    fn: of the level's operands.
  """

  name: str
  level: str
  fn: Callable[..., Any]

  @property
  def module(self) -> str:
    """What XLA calls it, and with it a profile."""
    return f"jit_{self.fn.__name__}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
  """What the programs are made for.

  Attributes:
    backend: "pallas" or "interpret".
    chip: name of the chip that tiles are chosen for.
    dtype: of all operands and results.
  """

  backend: str
  chip: str
  dtype: str

  @property
  def interpret(self) -> bool:
    """Whether kernels are interpreted."""
    return self.backend == "interpret"


def ours(level: str, target: Target) -> tuple[Program, Program]:
  """The NT kernel, and the forward kernel on the transposed weight."""
  make = _step if level == "vjp" else _kernel
  return tuple(
    _named(name, level, make(in_place=name == OURS, target=target))
    for name in (OURS, EXPLICIT)
  )


def importable_peers() -> tuple[str, ...]:
  """Those of `PEERS` that this environment has."""
  packages = dict.fromkeys(_TOKAMAX, "tokamax") | {"megablox": _MEGABLOX}
  return tuple(p for p in PEERS if p not in packages or _has(packages[p]))


def peers(level: str, names: Sequence[str], target: Target) -> list[Program]:
  """Programs of others for the same product; none take a group_offset.

  Args:
    level: "kernel" has some, each through its own VJP, as its users call it.
    names: some of `PEERS`.
    target: what to run on.
  """
  if level != "kernel":
    return []
  calls = {
    **{name: _tokamax(which, target) for name, which in _TOKAMAX.items()},
    "megablox": _megablox(target),
    "ragged_dot": lax.ragged_dot,
  }
  return [_named(name, level, _peer_dlhs(calls[name])) for name in names]


def as_if_attached(program: Program, chip: str) -> Callable[..., Any]:
  """A peer's function for compiling without the chip.

  What others wrote asks for the chip while it is traced.

  Args:
    program: of `peers`.
    chip: name of the chip.
  """
  spec = chips.resolve(chip)
  device = AbstractDevice(
    device_kind=spec.device_kinds[0], num_cores=spec.num_cores, platform="tpu"
  )

  def call(*operands):
    with contextlib.ExitStack() as stack:
      mesh = AbstractMesh((), (), abstract_device=device)
      stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
      if program.name in _TOKAMAX:
        config = importlib.import_module("tokamax").config
        stack.enter_context(config.cross_compile(True))
      return program.fn(*operands)

  return call


def specs(
  workload: Workload, level: str, dtype: str
) -> tuple[jax.ShapeDtypeStruct, ...]:
  """Shapes and dtypes of a level's operands."""
  m, g, k, n = workload.m, workload.g, workload.k, workload.n
  spec = jax.ShapeDtypeStruct
  dout, rhs = spec((m, n), dtype), spec((g, k, n), dtype)
  sizes = spec((g,), jnp.int32)
  if level == "vjp":
    return spec((m, k), dtype), rhs, dout, sizes
  if level == "offset":
    return dout, rhs, spec((2 * g,), jnp.int32), spec((), jnp.int32)
  return dout, rhs, sizes


def row_major(spec: Any, device: jax.Device) -> Format:
  """A format for `jax.jit`: on the device, the last axis in the lanes."""
  layout = Layout(tuple(range(len(spec.shape))))
  return Format(layout, SingleDeviceSharding(device))


def compile_on(
  fn: Callable[..., Any],
  specs: Sequence[Any],
  device: jax.Device,
  *,
  interpret: bool,
) -> Callable[..., Any]:
  """Compiles for an attached device, operands and results row-major."""
  results = jax.eval_shape(fn, *specs)
  jitted = jax.jit(
    fn,
    in_shardings=tuple(row_major(s, device) for s in specs),
    out_shardings=jax.tree.map(lambda s: row_major(s, device), results),
    compiler_options=compiling.fast_options() if interpret else {},
  )
  return jitted.lower(*specs).compile()


def _named(name: str, level: str, fn: Callable[..., Any]) -> Program:
  fn.__name__ = fn.__qualname__ = f"bench_{level}_{name}"
  return Program(name=name, level=level, fn=fn)


def _has(module: str) -> bool:
  try:
    return importlib.util.find_spec(module) is not None
  except ImportError:  # of what it is a part of
    return False


def _kernel(*, in_place: bool, target: Target) -> Callable[..., jax.Array]:
  def dlhs(dout, rhs, sizes, offset=None):
    return kernels.gmm_v2(
      dout,
      rhs if in_place else rhs.swapaxes(1, 2),
      sizes,
      group_offset=offset,
      transpose_rhs=in_place,
      chip=target.chip,
      interpret=target.interpret,
    )

  return dlhs


def _step(*, in_place: bool, target: Target) -> Callable[..., Any]:
  config = ops.Config(
    backend=target.backend,
    chip=target.chip,
    rhs_layout="gkn",
    use_gmm_v2_transposed_rhs_dlhs=in_place,
  )

  def step(lhs, rhs, dout, sizes):
    out, vjp = jax.vjp(
      lambda lhs, rhs: ops.gmm(lhs, rhs, sizes, config=config), lhs, rhs
    )
    return out, *vjp(dout)

  return step


def _peer_dlhs(call: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
  def dlhs(dout, rhs, sizes):
    # The forward product is dead code, and no value of lhs is read.
    lhs = jnp.zeros((dout.shape[0], rhs.shape[1]), dout.dtype)
    _, vjp = jax.vjp(lambda lhs: call(lhs, rhs, sizes), lhs)
    return vjp(dout)[0]

  return dlhs


def _tokamax(which: str, target: Target) -> Callable[..., jax.Array]:
  # Its kernels have no interpreter that users can ask for.
  which = "xla" if target.interpret else which

  def call(lhs, rhs, sizes):
    return importlib.import_module("tokamax").ragged_dot(
      lhs,
      rhs,
      sizes,
      preferred_element_type=lhs.dtype,
      implementation=which,
    )

  return call


_MEGABLOX = "jax.experimental.pallas.ops.tpu.megablox"


def _megablox(target: Target) -> Callable[..., jax.Array]:
  def call(lhs, rhs, sizes):
    megablox = importlib.import_module(_MEGABLOX)
    # Rows have to be whole tiles; the other two are cut to the operands.
    tile_m = next(
      t for t in (512, 256, 128, 64, 32, 16, 8, 1) if not (lhs.shape[0] % t)
    )
    tiling = tile_m, 1024, 1024
    return megablox.gmm(
      lhs, rhs, sizes, lhs.dtype, tiling, interpret=target.interpret
    )

  return call
