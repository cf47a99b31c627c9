"""Grouped matmuls from their definition, in NumPy and float64.

Slow and obvious on purpose: this file is the meaning of `ops.gmm` and of its
gradients, and every backend is compared with it. It never imports jax.

    out[r] = lhs[r] @ rhs[group(r) - group_offset]    rows of local groups
    out[r] = 0                                        every other row

where `lhs` is what `lhs_scale` or a quantisation (quantizing.py) makes of it;
then `rhs_bias` of the row's group is added to rows of local groups, and
`existing_out` to all rows. Rows belong to groups in order: the first
`group_sizes[0]` rows to group 0, and so on. Counts that misbehave mean what
they mean everywhere in this project: a negative size counts as 0, groups are
cut off at row m, and an offset outside `[0, g_total)` finds no rows. A local
weight whose group would lie past the last one finds no rows either.

The bias belongs to a group as its weight does, so a row of no local group gets
none. That is what keeps expert parallelism right: each shard adds the bias of
its own experts, and the sum over shards has every bias once.

Nothing outside the rows and weights that a result needs is read, so NaN there
stays there.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from reference import quantizing

# Columns of lhs that share a scale where no block of the weight says how many.
LHS_BLOCK = 4096


class Gradients(NamedTuple):
  """What `gmm_vjp` returns; None stands for an operand not given."""

  dlhs: np.ndarray
  drhs: np.ndarray
  dexisting_out: np.ndarray | None
  drhs_scale: np.ndarray | None
  drhs_bias: np.ndarray | None


def local_rows(
  group_sizes: ArrayLike,
  *,
  num_groups: int,
  m: int,
  group_offset: ArrayLike | None = None,
) -> Iterator[tuple[int, int, int]]:
  """Yields (local group, first row, one past the last row), none empty."""
  offset = _scalar(group_offset)
  # Python integers, so that no sum of sizes wraps around.
  sizes = [max(0, int(size)) for size in np.asarray(group_sizes)]
  if not 0 <= offset < len(sizes):
    return
  start = 0
  for group, size in enumerate(sizes):
    end = min(start + size, m)
    local = group - offset
    if 0 <= local < num_groups and start < end:
      yield local, start, end
    start = end


def gmm(
  lhs: ArrayLike,
  rhs: ArrayLike,
  group_sizes: ArrayLike,
  *,
  group_offset: ArrayLike | None = None,
  transpose_rhs: bool = False,
  existing_out: ArrayLike | None = None,
  rhs_scale: ArrayLike | None = None,
  rhs_bias: ArrayLike | None = None,
  lhs_scale: ArrayLike | None = None,
  lhs_quantization: str | None = None,
) -> np.ndarray:
  """Multiplies each group of rows by that group's matrix.

  Args:
    lhs: [m, k].
    rhs: [g, k, n], or [g, n, k] if `transpose_rhs`.
    group_sizes: integers [g_total].
    group_offset: which of the g_total groups `rhs[0]` belongs to; None is 0.
    transpose_rhs: whether `rhs` is [g, n, k].
    existing_out: [m, n], added to every row.
    rhs_scale: [g, k_blocks, n], k_blocks divides k: the weight in use is
      `rhs[i, j, c] * rhs_scale[i, j // (k / k_blocks), c]`, the indices those
      of [g, k, n] in both weight layouts.
    rhs_bias: [g, n].
    lhs_scale: [1, 1] or [m, 1]: what is multiplied is `lhs * lhs_scale`.
    lhs_quantization: None, or a key of `quantizing.FORMATS`, to which each row
      of `lhs` is quantised, by blocks along k: those of `rhs_scale`, or of
      `LHS_BLOCK`.

  Returns:
    [m, n] float64.
  """
  lhs = lhs_in_use(lhs, lhs_scale, lhs_quantization, rhs_scale)
  weights = _weights(rhs, rhs_scale, transpose_rhs)
  m, g, n = lhs.shape[0], weights.shape[0], weights.shape[2]
  out = np.zeros((m, n))
  rows = local_rows(group_sizes, num_groups=g, m=m, group_offset=group_offset)
  for group, start, end in rows:
    out[start:end] = lhs[start:end] @ weights[group]
    if rhs_bias is not None:
      out[start:end] += _float64(rhs_bias)[group]
  if existing_out is not None:
    out += _float64(existing_out)
  return out


def tgmm(
  lhs: ArrayLike,
  dout: ArrayLike,
  group_sizes: ArrayLike,
  *,
  num_groups: int,
  group_offset: ArrayLike | None = None,
  lhs_scale: ArrayLike | None = None,
  dout_scale: ArrayLike | None = None,
) -> np.ndarray:
  """Multiplies `lhs` transposed by `dout`, over each local group's rows.

  Args:
    lhs: [m, k].
    dout: [m, n].
    group_sizes: integers [g_total].
    num_groups: g, how many of the groups are local.
    group_offset: the first local group; None is 0.
    lhs_scale: [1, 1] or [1, k]: what is multiplied is `lhs * lhs_scale`.
    dout_scale: [1, 1] or [1, n]: the same for `dout`.

  Returns:
    [g, k, n] float64, exactly zero for groups without rows.
  """
  lhs, dout = lhs_in_use(lhs, lhs_scale), lhs_in_use(dout, dout_scale)
  m, k, n = lhs.shape[0], lhs.shape[1], dout.shape[1]
  out = np.zeros((num_groups, k, n))
  rows = local_rows(
    group_sizes, num_groups=num_groups, m=m, group_offset=group_offset
  )
  for group, start, end in rows:
    out[group] = lhs[start:end].T @ dout[start:end]
  return out


def gmm_vjp(
  lhs: ArrayLike,
  rhs: ArrayLike,
  group_sizes: ArrayLike,
  dout: ArrayLike,
  *,
  group_offset: ArrayLike | None = None,
  transpose_rhs: bool = False,
  existing_out: ArrayLike | None = None,
  rhs_scale: ArrayLike | None = None,
  rhs_bias: ArrayLike | None = None,
  lhs_scale: ArrayLike | None = None,
) -> Gradients:
  """Pulls `dout` [m, n] back through `gmm`.

      dlhs[r] = dout[r] @ weight[group(r)].T    rows of local groups, else 0
      drhs[i] = lhs_i.T @ dout_i                in the layout of `rhs`
      dexisting_out = dout                      every row

  An `lhs` that is quantised on the way is taken as it was before.

  Args:
    lhs: As in `gmm`.
    rhs: As in `gmm`.
    group_sizes: As in `gmm`.
    dout: [m, n], the cotangent of the result.
    group_offset: As in `gmm`.
    transpose_rhs: As in `gmm`.
    existing_out: As in `gmm`; only whether it is given matters.
    rhs_scale: As in `gmm`. `drhs` is the gradient of `rhs` before the scale.
    rhs_bias: As in `gmm`; only whether it is given matters.
    lhs_scale: As in `gmm`. `dlhs` is the gradient of `lhs` times the scale.

  Returns:
    Gradients in float64, each in the shape of its operand.
  """
  dout = _float64(dout)
  g = np.shape(rhs)[0]
  dlhs = gmm(
    dout,
    _weights(rhs, rhs_scale, transpose_rhs).swapaxes(1, 2),
    group_sizes,
    group_offset=group_offset,
  )
  local = {"num_groups": g, "group_offset": group_offset}
  lhs = lhs_in_use(lhs, lhs_scale)
  drhs = tgmm(lhs, dout, group_sizes, **local)  # [g, k, n]
  dscale = None
  if rhs_scale is not None:
    dscale = _sum_of_blocks(
      drhs, _weights(rhs, None, transpose_rhs), _float64(rhs_scale)
    )
    drhs = drhs * _spread(rhs_scale, drhs.shape[1])
  dbias = None
  if rhs_bias is not None:
    dbias = np.zeros((g, dout.shape[1]))
    for group, start, end in local_rows(group_sizes, m=len(dout), **local):
      dbias[group] = dout[start:end].sum(axis=0)
  return Gradients(
    dlhs=dlhs,
    drhs=drhs.swapaxes(1, 2) if transpose_rhs else drhs,
    dexisting_out=None if existing_out is None else dout.copy(),
    drhs_scale=dscale,
    drhs_bias=dbias,
  )


def lhs_in_use(
  lhs: ArrayLike,
  lhs_scale: ArrayLike | None = None,
  lhs_quantization: str | None = None,
  rhs_scale: ArrayLike | None = None,
) -> np.ndarray:
  """What `gmm` multiplies, [m, k]; arguments as there."""
  if lhs_quantization is not None:
    block = lhs_block(np.shape(lhs)[1], rhs_scale)
    value, scale = quantizing.quantize(
      lhs, lhs_quantization, axis=1, block=block
    )
    with np.errstate(invalid="ignore"):
      return value * scale
  if lhs_scale is not None:
    return _float64(lhs) * _float64(lhs_scale)
  return _float64(lhs)


def lhs_block(k: int, rhs_scale: ArrayLike | None) -> int:
  """How many columns of `lhs` share a scale."""
  blocks = 1 if rhs_scale is None else np.shape(rhs_scale)[1]
  return k // blocks if blocks > 1 else LHS_BLOCK


def _weights(
  rhs: ArrayLike, rhs_scale: ArrayLike | None, transpose_rhs: bool
) -> np.ndarray:
  """The weights in use, [g, k, n] whatever the layout of `rhs`."""
  weights = _float64(rhs)
  if transpose_rhs:
    weights = weights.swapaxes(1, 2)
  if rhs_scale is not None:
    weights = weights * _spread(rhs_scale, weights.shape[1])
  return weights


def _spread(rhs_scale: ArrayLike, k: int) -> np.ndarray:
  """[g, k_blocks, n] repeated to [g, k, n]."""
  scale = _float64(rhs_scale)
  blocks = scale.shape[1]
  if blocks == 0 or k % blocks:
    raise ValueError(
      f"`rhs_scale` has {blocks} k_blocks; k = {k} needs some that divide it"
    )
  return np.repeat(scale, k // blocks, axis=1)


def _sum_of_blocks(
  dweights: np.ndarray, weights: np.ndarray, scale: np.ndarray
) -> np.ndarray:
  """The gradient of `scale`: sums of dweights * weights over each k block."""
  g, blocks, n = scale.shape
  dscale = np.zeros((g, blocks, n))
  # Groups without rows have dweights of zero, and weights nobody vouches for.
  for group in np.flatnonzero(np.any(dweights != 0, axis=(1, 2))):
    products = dweights[group] * weights[group]
    dscale[group] = products.reshape(blocks, -1, n).sum(axis=1)
  return dscale


def _float64(x: ArrayLike) -> np.ndarray:
  return np.asarray(x).astype(np.float64)


def _scalar(group_offset: ArrayLike | None) -> int:
  """An int, a scalar array or a [1] array, as an int."""
  if group_offset is None:
    return 0
  return int(np.asarray(group_offset).reshape(()))
