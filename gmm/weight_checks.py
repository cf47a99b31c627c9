"""Rules for what a weight may come with: its scale, its bias, its packing."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from gmm import check_pieces
from gmm import config as config_lib


def check_bias(bias: Any, shape: tuple[int, int], out: np.dtype) -> None:
  """Checks rhs_bias [g, n] against the product and its result."""
  g, n = check_pieces.shape_of("rhs_bias", bias, "[g, n]")
  if (g, n) != shape:
    raise ValueError(
      f"`rhs_bias` is [g, n] = [{g}, {n}] but the product has g = {shape[0]} "
      f"groups and n = {shape[1]} columns"
    )
  known = [r.name for r in config_lib.DTYPES.values() if r.kind == "float"]
  if (
    not check_pieces.is_numpy(bias.dtype)
    or np.dtype(bias.dtype).name not in known
  ):
    raise TypeError(
      f"`rhs_bias` is {bias.dtype}; want one of {check_pieces.names_of(known)}"
    )
  if out.kind == "i":
    raise TypeError(
      f"`rhs_bias` is {bias.dtype} but the result is {out}; set "
      "preferred_element_type to a float"
    )


def check_scale_formats(scale: Any, rhs: np.dtype) -> None:
  """Checks the dtypes of rhs_scale and of what it scales."""
  check_pieces.shape_of("rhs_scale", scale, "[g, k_blocks, n]")
  if (
    not check_pieces.is_numpy(scale.dtype)
    or np.dtype(scale.dtype).name not in config_lib.SCALES
  ):
    raise TypeError(
      f"`rhs_scale` is {scale.dtype}; want one of "
      f"{check_pieces.names_of(config_lib.SCALES)}"
    )
  if rhs.name not in config_lib.QUANTIZED:
    raise TypeError(
      f"`rhs_scale` is given but `rhs` is {rhs}, which is not quantised; want "
      f"one of {check_pieces.names_of(config_lib.QUANTIZED)}, or rhs_scale=None"
    )


def scale_fields(
  scale: Any, sizes: tuple[int, int, int], transposed: bool
) -> dict[str, Any]:
  """The fields of a Problem that follow from `rhs_scale`."""
  g, k, n = sizes
  names, axis, size, other = "[g, k_blocks, n]", "k", k, n
  if transposed:
    names, axis, size, other = "[g, n_blocks, k]", "n", n, k
  scale_g, blocks, scale_other = scale.shape
  got = f"`rhs_scale` is {names} = {list(scale.shape)}"
  if (scale_g, scale_other) != (g, other):
    raise ValueError(
      f"{got} but the product has g = {g}, k = {k}, n = {n}; want "
      f"[{g}, {axis}_blocks, {other}]"
    )
  if blocks < 1 or size % blocks:
    raise ValueError(
      f"{got} but {axis} = {size}; want {axis}_blocks that divide {axis}"
    )
  return {
    "scale_block": max(size // blocks, 1),
    "scale_axis": axis,
    "scale_dtype": jnp.dtype(scale.dtype),
  }


def is_packed(rhs: Any) -> bool:
  """Whether rhs holds eight 4-bit values in each int32."""
  return check_pieces.is_numpy(rhs.dtype) and np.dtype(rhs.dtype) == np.int32
