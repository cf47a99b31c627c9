"""One product, fully described: frozen and hashable, a static argument."""

from __future__ import annotations

import dataclasses

import numpy as np
from jax import lax


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """One product, fully described, in the terms of the call itself.

  kind "gmm":  lhs [m, k], rhs [g, k, n] or [g, n, k] -> [m, n]
  kind "tgmm": lhs [m, k], dout [m, n]                -> [g, k, n] or [g, n, k]

  Attributes:
    kind: "gmm" or "tgmm".
    m: rows of lhs.
    k: columns of lhs.
    n: columns of the result (gmm) or of dout (tgmm).
    g: local groups, those that have a weight here.
    g_total: length of group_sizes.
    lhs_dtype: dtype of lhs.
    rhs_dtype: dtype of rhs, or of dout.
    out_dtype: dtype of the result.
    acc_dtype: float32, or int32 for integer operands.
    compute_dtype: both operands are widened to this one.
    precision: hand this to every dot; the ambient default is already in it.
    transpose_rhs: gmm only, rhs is [g, n, k].
    transpose_out: tgmm only, the result is [g, n, k].
    has_existing: gmm only, existing_out is added to the product.
    scale_block: gmm only, how many elements along `scale_axis` share one scale
      of the weight; 0 for none.
    scale_axis: "k" or "n". The scale is [g, k blocks, n], or [g, n blocks, k]
      as in dlhs, where the call's k and n are the forward product's n and k.
    scale_dtype: dtype of the scale; None for none.
    lhs_scales: gmm only, how many float32 scales lhs comes with: 0 for none, 1
      for all of it, m for one of each row.
    lhs_quantization: gmm only, lhs is quantised to this format as it is
      multiplied; None for no.
    lhs_block: then how many elements along k share a scale of a row.
    has_bias: gmm only, a bias [g, n] is added to rows of local groups.
    packed_axis: gmm only, "k" or "n" for int4 weights of which an int32 holds
      eight along that axis, the first one in the low bits; "" for others.
    pair: gmm only, two products of weights that have one shape in one kernel:
      "gated": rhs [g, k, 2n] or [g, 2n, k] is gate and up; -> act(gate) * up
      "split": lhs times each of two weights; -> both results
      "sum": each of two lhs times its own weight; -> their sum
  """

  kind: str
  m: int
  k: int
  n: int
  g: int
  g_total: int
  lhs_dtype: np.dtype
  rhs_dtype: np.dtype
  out_dtype: np.dtype
  acc_dtype: np.dtype
  compute_dtype: np.dtype
  precision: lax.Precision | None = None
  transpose_rhs: bool = False
  transpose_out: bool = False
  has_existing: bool = False
  scale_block: int = 0
  scale_axis: str = "k"
  scale_dtype: np.dtype | None = None
  lhs_scales: int = 0
  lhs_quantization: np.dtype | None = None
  lhs_block: int = 0
  has_bias: bool = False
  packed_axis: str = ""
  pair: str | None = None

  @property
  def scale_shape(self) -> tuple[int, ...] | None:
    """Shape of the weight's scale."""
    if not self.scale_block:
      return None
    blocked, other = self.k, self.n
    if self.pair == "gated":
      other *= 2
    if self.scale_axis == "n":
      blocked, other = other, blocked
    return (self.g, -(-blocked // self.scale_block), other)

  @property
  def packs_rows(self) -> bool:
    """Whether the weight is packed along the axis before its last one."""
    return bool(self.packed_axis) and (
      (self.packed_axis == "k") != self.transpose_rhs
    )

  @property
  def packs_lanes(self) -> bool:
    """Whether it is packed along its last axis."""
    return bool(self.packed_axis) and not self.packs_rows

  @property
  def contracts_lanes(self) -> bool:
    """Whether the product contracts the lanes of the weight's tiles.

    What is packed along lanes is turned round before (kernels/carriers.py).
    """
    return self.transpose_rhs != self.packs_lanes

  @property
  def out_shape(self) -> tuple[int, ...]:
    """Shape of the result."""
    if self.kind == "gmm":
      return (self.m, self.n)
    if self.transpose_out:
      return (self.g, self.n, self.k)
    return (self.g, self.k, self.n)

  @property
  def weight_shape(self) -> tuple[int, ...]:
    """Shape of the weight: what gmm reads, what tgmm returns."""
    if self.kind == "tgmm":
      return self.out_shape
    n = 2 * self.n if self.pair == "gated" else self.n
    if self.transpose_rhs:
      return (self.g, n, self.k)
    return (self.g, self.k, n)

  @property
  def weight_dtype(self) -> np.dtype:
    """Dtype of the weight."""
    return self.out_dtype if self.kind == "tgmm" else self.rhs_dtype

  @property
  def is_empty(self) -> bool:
    """True when there is nothing to add up: the product is zeros."""
    if 0 in (self.m, self.n, self.g):
      return True
    return self.k == 0 and not self.has_bias
