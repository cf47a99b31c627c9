"""The report's flags that say what the operands of a product are."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from gmm import config, quantization
from gmm.aot import calls, operands
from tools.report import request


def add(parser: argparse.ArgumentParser) -> None:
  """Adds them, but for --mode."""
  flag = parser.add_argument
  flag("--dtype", default="bfloat16", help="of the operands")
  flag(
    "--rhs_dtype",
    help="of the weight alone, int8 for one (int32: eight int4 along "
    "--scale_axis): products nn and nt, no step's copies; of dout in tn",
  )
  flag(
    "--scale_block",
    metavar="N",
    help="elements of such a weight that share a scale; default: all that are "
    "contracted",
  )
  flag(
    "--scale_axis",
    choices=operands.AXES,
    default="k",
    help="of the weight [g, k, n], that it is quantised along; k: nn is the "
    "forward product, n: nt is",
  )
  flag(
    "--lhs_quantization",
    choices=quantization.OPERANDS,
    help="the kernel quantises lhs to it; goes with --rhs_dtype, and with the "
    "forward product",
  )
  flag(
    "--lhs_scale",
    choices=("tensor", "row", "channel"),
    help="the scales that lhs comes with, where --dtype is int8 or float8; row "
    "in nn and nt, channel (a column) in tn",
  )
  flag(
    "--dout_scale",
    choices=calls.DOUT_SCALES,
    help="those of dout: product tn",
  )
  flag(
    "--bias", action="store_true", help="a bias is added: products nn and nt"
  )
  flag(
    "--existing_out",
    action="store_true",
    help="the product is added to what there is: nn and nt",
  )
  flag(
    "--fused",
    choices=calls.FUSED,
    help="gate and up, weights of k x n each, in one kernel: product nn",
  )


def operands_of(arguments: argparse.Namespace) -> dict[str, Any]:
  """What the flags say of the operands, as `request.Request` takes it.

  Raises:
    ValueError: what makes no operands.
  """
  check_dtype("dtype", arguments.dtype)
  found = {
    "dtype": arguments.dtype,
    "lhs_quantization": arguments.lhs_quantization,
    "lhs_scale": arguments.lhs_scale,
    "dout_scale": arguments.dout_scale,
    "bias": arguments.bias,
    "existing_out": arguments.existing_out,
    "fused": arguments.fused,
  }
  return found | _weight(arguments)


def modes_of(
  arguments: argparse.Namespace, found: Mapping[str, Any]
) -> tuple[str, ...]:
  """The products that --mode asks for, or those that the operands have.

  Args:
    arguments: the flags.
    found: from `operands_of`.

  Raises:
    ValueError, TypeError, NotImplementedError: operands that do not go
      together, or with --mode, whatever the shape.
  """
  if arguments.mode:
    modes = tuple(dict.fromkeys(arguments.mode))
  elif found["lhs_quantization"]:
    modes = ("nn",) if found["scale_axis"] == "k" else ("nt",)
  else:
    modes = tuple(mode for mode in request.MODES if _has(mode, found))
  for mode in modes or request.MODES:
    _problem(mode, found)
  return modes


def check_dtype(argument: str, name: str) -> None:
  """Raises ValueError for a flag that names no dtype."""
  try:
    jnp.dtype(name)
  except TypeError:
    raise ValueError(
      f"`{argument}` is {name!r}, which is no dtype; bfloat16 is one"
    ) from None


def _weight(arguments: argparse.Namespace) -> dict[str, Any]:
  """What the flags say of a weight of its own format."""
  rhs_dtype, block = arguments.rhs_dtype, arguments.scale_block
  axis = {"scale_axis": arguments.scale_axis}
  if rhs_dtype is None:
    if block is not None or arguments.scale_axis != "k":
      raise ValueError("--scale_block and --scale_axis go with --rhs_dtype")
    return axis
  check_dtype("rhs_dtype", rhs_dtype)
  known = (*config.QUANTIZED, "int32")
  if rhs_dtype not in known:
    raise ValueError(
      f"`rhs_dtype` is {rhs_dtype!r}; want one of {', '.join(known)}"
    )
  if block is not None:
    if not block.isdigit() or not int(block):
      raise ValueError(f"`scale_block` is {block!r}; want a positive integer")
    block = int(block)
  elif arguments.dout_scale is None and arguments.lhs_scale != "channel":
    block = request.CHANNEL  # of a weight, that is
  return axis | {"rhs_dtype": rhs_dtype, "scale_block": block}


def _has(mode: str, found: Mapping[str, Any]) -> bool:
  try:
    calls.Operands(**found).check(mode)
  except ValueError:
    return False
  return True


def _problem(mode: str, found: Mapping[str, Any]) -> None:
  """Checks all but the shape."""
  block = found.get("scale_block")
  size = 8 * block if isinstance(block, int) else 8
  if block == request.CHANNEL:
    found = {**found, "scale_block": size}
  shape = {"m": 8, "g": 1, "k": size, "n": size}
  calls.call(mode, shape, calls.Operands(**found)).problem()
