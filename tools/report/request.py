"""One product that the report compiles."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from gmm.timing import visits
from testing.workloads import Workload

MODES = ("nn", "nt", "tn")
# One scale for all that a product contracts.
CHANNEL = "channel"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """One product to compile.

  Attributes:
    chip: for which.
    workload: its shape.
    mode: "nn", "nt" or "tn".
    group_sizes: the caller's own, besides the named ones; or None.
    dtype: of both operands, or of lhs.
    rhs_dtype: of the weight, where it has another; of dout in "tn".
    scale_block: elements of the weight that share a scale, CHANNEL for those
      that are contracted all together, or None.
    scale_axis: the axis of the weight along which they do, "k" or "n".
    lhs_quantization: what the kernel quantises lhs to, or None.
    lhs_scale: the scales that lhs comes with, as in `aot.product`.
    dout_scale: those of dout.
    bias: whether a bias is added.
    existing_out: whether the product is added to what there is.
    fused: "gated" or "split", with the workload's weight once for gate and once
      for up; or None.
  """

  chip: str
  workload: Workload
  mode: str
  group_sizes: np.ndarray | None = None
  dtype: str = "bfloat16"
  rhs_dtype: str | None = None
  scale_block: int | str | None = None
  scale_axis: str = "k"
  lhs_quantization: str | None = None
  lhs_scale: str | None = None
  dout_scale: str | None = None
  bias: bool = False
  existing_out: bool = False
  fused: str | None = None

  @property
  def shape(self) -> dict[str, int]:
    """m, g, k and n."""
    w = self.workload
    return {"m": w.m, "g": w.g, "k": w.k, "n": w.n}

  @property
  def operands(self) -> dict[str, Any]:
    """What the operands are, as `aot.product` takes it."""
    block = self.scale_block
    if block == CHANNEL:
      block = self.shape[self.scale_axis]
    return {
      "dtype": self.dtype,
      "rhs_dtype": self.rhs_dtype,
      "scale_block": block,
      "scale_axis": self.scale_axis,
      "lhs_quantization": self.lhs_quantization,
      "lhs_scale": self.lhs_scale,
      "dout_scale": self.dout_scale,
      "bias": self.bias,
      "existing_out": self.existing_out,
      "fused": self.fused,
    }

  @property
  def is_plain(self) -> bool:
    """Whether it is a product of bfloat16, as other kernels compute it."""
    plain = Request(chip=self.chip, workload=self.workload, mode=self.mode)
    return self.operands == plain.operands

  @property
  def patterns(self) -> dict[str, Any]:
    """The group sizes to estimate for."""
    named = {name: name for name in visits.PATTERNS}
    return (
      named
      if self.group_sizes is None
      else {"given": self.group_sizes, **named}
    )
