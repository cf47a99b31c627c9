"""Are the results right? Against the oracle in parts, with each other in full.

The oracle is float64 on the host, which whole models would keep busy for hours:
it gets some rows of some groups (a row of a product depends on nothing else),
and for the weight's gradient some of its columns. Two programs are compared on
every element, by a bound that needs no second product: each factor of
|lhs| @ |rhs| is at most the product of the norms of a row and of a column.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from reference import oracle
from reference.error_bound import error_bound
from testing import tolerance
from tools import bench_shapes as shapes

_GROUPS, _ROWS, _COLUMNS = 8, 6, 64
# Rows that two results are compared on at a time.
_CHUNK = 4096
# Norms are float32 sums themselves, of squares that all have one sign.
_NORM_SLACK = 1.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
  """How far a result is from what it should be.

  Attributes:
    what: such as "dlhs of nt".
    against: "oracle", or the other program.
    share: the largest error as a share of its bound; at most 1 if right.
  """

  what: str
  against: str
  share: float

  @property
  def ok(self) -> bool:
    """Whether it is right."""
    return self.share <= 1

  def __str__(self) -> str:
    """One line for people."""
    verdict = "ok" if self.ok else "WRONG"
    return (
      f"{self.what} against {self.against}: {self.share:.2g} of the bound, "
      f"{verdict}"
    )


def named_results(level: str, results: Any) -> dict[str, jax.Array]:
  """Results of a program by their names."""
  if level == "vjp":
    return dict(zip(("out", "dlhs", "drhs"), results, strict=True))
  return {"dlhs": results}


def with_oracle(
  shape: shapes.Shape,
  level: str,
  operands: tuple[jax.Array, ...],
  results: dict[str, jax.Array],
) -> dict[str, float]:
  """The largest error of each result, as a share of the oracle's bound.

  Args:
    shape: of the operands.
    level: of the program.
    operands: of the level.
    results: of `named_results`.
  """
  rng = np.random.default_rng(0)
  arrays = _by_name(level, operands)
  groups = shapes.groups(shape, level)
  shares = {}
  for name in ("out", "dlhs"):
    if name in results:
      x = arrays["lhs" if name == "out" else "dout"]
      rows = _rows(groups, rng)
      shares[name] = _rows_share(
        (x, arrays["rhs"]), results[name], rows, transpose=name == "dlhs"
      )
      outside = _outside(groups, len(x))
      if outside.size and np.any(_host(results[name][outside]) != 0):
        shares[name] = np.inf
  if "drhs" in results:
    shares["drhs"] = _drhs_share(arrays, results["drhs"], groups, rng)
  return shares


def each_other(
  shape: shapes.Shape,
  level: str,
  operands: tuple[jax.Array, ...],
  pair: tuple[dict[str, jax.Array], dict[str, jax.Array]],
) -> dict[str, float]:
  """The largest difference of two programs' results, as a share of its bound.

  Args:
    shape: of the operands.
    level: of the programs.
    operands: of the level.
    pair: of `named_results`, two of them.
  """
  arrays = _by_name(level, operands)
  groups = shapes.groups(shape, level)
  m = shape.workload.m
  shares = {}
  for name, first in pair[0].items():
    both = first, pair[1][name]
    of = comparison(name, arrays), _group_arrays(groups, m)
    shares[name] = float(_compare(name, first.dtype)(both, *of))
  return shares


def comparison(name: str, arrays: dict[str, Any]) -> tuple[Any, Any]:
  """The two operands of a result."""
  return {
    "out": lambda: (arrays["lhs"], arrays["rhs"]),
    "dlhs": lambda: (arrays["dout"], arrays["rhs"]),
    "drhs": lambda: (arrays["lhs"], arrays["dout"]),
  }[name]()


@functools.cache
def _compare(name: str, dtype: Any) -> Any:
  on_tpu = jax.default_backend() == "tpu"
  return jax.jit(
    functools.partial(compared, name=name, dtype=dtype, on_tpu=on_tpu)
  )


def compared(pair, operands, groups, *, name, dtype, on_tpu):
  """The largest |a - b| / bound; infinite where there is a NaN.

  Args:
    pair: two results.
    operands: of both, two of them.
    groups: of `group_of_row`, and int32 [g], the rows of the local groups.
    name: "out", "dlhs" or "drhs".
    dtype: of the results.
    on_tpu: whether float32 is multiplied in bfloat16.
  """
  (a, b), (x, y), (group_of_row, sizes) = pair, operands, groups
  eps = _eps(dtype, on_tpu)
  f32 = jnp.float32
  if name == "drhs":
    count = len(sizes)
    left, right = (_norms_of_groups(z, group_of_row, count) for z in (x, y))
    terms = sizes.astype(f32)[:, None, None]

    def group(i):
      size = left[i][:, None] * right[i][None, :]
      return _share(eps, (a[i], b[i]), size, terms[i])

    return jnp.max(lax.map(group, jnp.arange(count)))
  axis = 2 if name == "dlhs" else 1
  terms = x.shape[1]
  # One more group has the rows of no group: its weight is zero.
  columns = jnp.sqrt(jnp.sum(jnp.square(y.astype(f32)), axis=axis))
  columns = jnp.pad(columns, ((0, 1), (0, 0)))
  norm = jnp.sqrt(jnp.sum(jnp.square(x.astype(f32)), axis=1))
  norm = jnp.where(group_of_row < len(sizes), norm, 0)
  m = len(a)
  chunk = min(_CHUNK, m)

  def rows(i):
    # The last chunk starts earlier, and meets some rows once more.
    start = jnp.minimum(i * chunk, m - chunk)

    def cut(z):
      return lax.dynamic_slice_in_dim(z, start, chunk)

    size = cut(norm)[:, None] * columns[cut(group_of_row)]
    return _share(eps, (cut(a), cut(b)), size, terms)

  return jnp.max(lax.map(rows, jnp.arange(-(-m // chunk))))


def _norms_of_groups(x, group_of_row, count):
  """[count, columns]: norms over the rows of each group, a chunk at a time."""
  chunk = min(_CHUNK, len(x))

  def add(i, sums):
    start = jnp.minimum(i * chunk, len(x) - chunk)
    groups = lax.dynamic_slice_in_dim(group_of_row, start, chunk)
    # Not what the chunk before had already.
    groups = jnp.where(start + jnp.arange(chunk) < i * chunk, count, groups)
    part = lax.dynamic_slice_in_dim(x, start, chunk).astype(jnp.float32)
    part = jnp.where((groups < count)[:, None], jnp.square(part), 0)
    member = jax.nn.one_hot(groups, count, dtype=jnp.float32)
    return sums + jnp.matmul(member.T, part, precision="highest")

  zeros = jnp.zeros((count, x.shape[1]), jnp.float32)
  return jnp.sqrt(lax.fori_loop(0, -(-len(x) // chunk), add, zeros))


def _share(eps, pair, size, terms):
  """Twice the bound of `error_bound`, with |expected| from the results."""
  a, b = (z.astype(jnp.float32) for z in pair)
  relative = terms * eps["acc_eps"] + eps["operand_eps"]
  bound = 2 * _NORM_SLACK * relative * size
  bound += eps["out_eps"] * (jnp.abs(a) + jnp.abs(b))
  bound = jnp.where(size > 0, bound + 2 * eps["out_floor"], 0)
  error = jnp.abs(a - b)
  share = jnp.where(error > 0, error / bound, 0)
  # A NaN is neither larger nor smaller.
  return jnp.max(jnp.where(jnp.isnan(error), jnp.inf, share))


def _eps(dtype: Any, on_tpu: bool) -> dict[str, float]:
  dtype = jnp.dtype(dtype)
  return tolerance.eps_of((dtype, dtype), dtype, precision=None, on_tpu=on_tpu)


def _by_name(level: str, operands: tuple[Any, ...]) -> dict[str, Any]:
  names = ("lhs", "rhs", "dout") if level == "vjp" else ("dout", "rhs")
  return dict(zip(names, operands[: len(names)], strict=True))


def _group_arrays(groups: shapes.Groups, m: int) -> tuple[jax.Array, jax.Array]:
  return jnp.asarray(group_of_row(groups, m)), jnp.asarray(groups.local)


def group_of_row(groups: shapes.Groups, m: int) -> np.ndarray:
  """[m] int32: the local group of each row; g, the number of them, for none."""
  found = np.full(m, len(groups.local), np.int32)
  local = np.repeat(np.arange(len(groups.local)), groups.local)
  found[groups.first_row : groups.first_row + len(local)] = local
  return found


def _rows(groups: shapes.Groups, rng: np.random.Generator) -> list[tuple]:
  """(local group, its rows to look at), of some groups: their ends and more."""
  ends = groups.first_row + np.cumsum(groups.local)
  nonempty = np.flatnonzero(groups.local)
  chosen = {int(nonempty[0]), int(nonempty[-1]), int(groups.local.argmax())}
  more = rng.permutation(nonempty)[: _GROUPS - len(chosen)]
  picked = []
  for group in sorted(chosen | set(map(int, more))):
    start, end = int(ends[group] - groups.local[group]), int(ends[group])
    rows = {start, end - 1, *map(int, rng.integers(start, end, _ROWS))}
    picked.append((group, np.array(sorted(rows))))
  return picked


def _outside(groups: shapes.Groups, m: int) -> np.ndarray:
  """Some rows of no local group: those at its ends, and others."""
  found = np.flatnonzero(group_of_row(groups, m) == len(groups.local))
  if len(found) <= 2 * _COLUMNS:
    return found
  first, last = groups.first_row, groups.first_row + groups.rows
  near = {0, first - 1, last, m - 1} & set(map(int, found))
  evenly = found[:: len(found) // _COLUMNS]
  return np.array(sorted(near | set(map(int, evenly))))


def _rows_share(
  operands: tuple[jax.Array, jax.Array],
  result: jax.Array,
  rows: list[tuple],
  *,
  transpose: bool,
) -> float:
  picked = np.concatenate([r for _, r in rows])
  sizes = [len(r) for _, r in rows]
  x = _host(operands[0][picked])
  w = _host(operands[1][np.array([group for group, _ in rows])])
  flags = {"transpose_rhs": transpose}
  want = oracle.gmm(x, w, sizes, **flags)
  size = oracle.gmm(np.abs(x), np.abs(w), sizes, **flags)
  got = _host(result[picked])
  return _worst(got, want, size, (x.shape[1], result.dtype))


def _drhs_share(
  arrays: dict[str, jax.Array],
  result: jax.Array,
  groups: shapes.Groups,
  rng: np.random.Generator,
) -> float:
  lhs, dout = arrays["lhs"], arrays["dout"]
  ks, ns = (
    np.sort(rng.permutation(z.shape[1])[:_COLUMNS]) for z in (lhs, dout)
  )
  x, y = _host(lhs[:, ks]), _host(dout[:, ns])
  g = len(groups.local)
  want = oracle.tgmm(x, y, groups.sizes, num_groups=g)
  size = oracle.tgmm(np.abs(x), np.abs(y), groups.sizes, num_groups=g)
  got = _host(result[:, ks][:, :, ns])
  terms = groups.local[:, None, None]
  return _worst(got, want, size, (terms, result.dtype))


def _worst(
  got: np.ndarray, want: np.ndarray, size: np.ndarray, scale: tuple[Any, Any]
) -> float:
  terms, dtype = scale
  eps = _eps(dtype, jax.default_backend() == "tpu")
  bound = error_bound(want, size, terms=terms, **eps)
  error = np.abs(got - want)
  if np.any(np.isnan(error)) or np.any(error[bound == 0] > 0):
    return float("inf")
  share = np.divide(error, bound, out=np.zeros_like(error), where=bound > 0)
  return float(share.max(initial=0))


def _host(x: jax.Array) -> np.ndarray:
  return np.asarray(x).astype(np.float64)
