"""Cases of what ops.gmm quantises on the way, and their check.

The oracle quantises by the same rule, in float64. What is left is what sums
round, and values so near to a tie that float32 may take the other neighbour.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from gmm import ops
from gmm.kernels.chip import ChipSpec
from reference import oracle, quantizing
from reference.error_bound import error_bound
from testing import compiling, patterns, races, tolerance

M, G, G_TOTAL = 44, 3, 5
CASES = (
  ("ragged", "plain", np.nan),
  ("empty_runs", "faint", np.inf),
  ("short", "zeros", np.nan),
  ("one_takes_all", "plain", 3e38),
  ("all_empty", "plain", np.nan),
)
F32 = float(jnp.finfo(jnp.float32).eps)
BF16 = float(jnp.finfo(jnp.bfloat16).eps)
TINY = float(jnp.finfo(jnp.float32).tiny)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """One call.

  Attributes:
    lhs: lhs_quantization.
    rhs: rhs_quantization.
    dout: dout_quantization.
    dtype: of lhs, rhs and dout.
    k: columns of lhs.
    n: columns of dout.
    transposed: whether the weight is [g, n, k].
    chip: that the kernels are planned for.
    interpreted: whether the interpreter runs it, too, which takes long.
  """

  lhs: str | None = None
  rhs: ops.Quantization | None = None
  dout: ops.Quantization | None = None
  dtype: str = "float32"
  k: int = 96
  n: int = 72
  transposed: bool = False
  chip: str = "v6e"
  interpreted: bool = False

  def lacking(self, chip: ChipSpec) -> str | None:
    """The format that a chip lacks, if any."""
    if self.rhs is not None and self.rhs.dtype in chip.lacks:
      return self.rhs.dtype
    # With lhs, all three are multiplied as they are.
    return None if self.lhs in (None, *chip.mxu_dtypes) else self.lhs


HOW = ops.Quantization
PROGRAMS = {
  "e4m3-i8_channel-T": Program(
    rhs=HOW(dtype="float8_e4m3fn", block=32),
    dout=HOW(dtype="int8", per="channel"),
    dtype="bfloat16",
    transposed=True,
    interpreted=True,
  ),
  "e5m2": Program(dout=HOW(dtype="float8_e5m2"), dtype="bfloat16"),
  "all_i8": Program(
    lhs="int8", rhs=HOW(dtype="int8", block=48), dout=HOW(dtype="int8")
  ),
  "i8": Program(rhs=HOW(dtype="int8")),
  "i4-e4m3_channel": Program(
    rhs=HOW(dtype="int4", block=48),
    dout=HOW(dtype="float8_e4m3fn", per="channel"),
  ),
  "f4-i8": Program(
    rhs=HOW(dtype="float4_e2m1fn"), dout=HOW(dtype="int8"), chip="tpu7x"
  ),
}


@functools.cache
def _run(name, backend):
  """The program of a table's row: of operands to out, dlhs and drhs."""
  p = PROGRAMS[name]
  config = ops.Config(
    backend=backend,
    chip=None if backend == "pallas" else p.chip,
    rhs_layout="gnk" if p.transposed else "gkn",
  )

  def call(operands, sizes, offset):
    lhs, rhs, dout = operands
    out, vjp = jax.vjp(
      lambda lhs, rhs: ops.gmm(
        lhs,
        rhs,
        sizes,
        group_offset=offset,
        transpose_rhs=p.transposed,
        lhs_quantization=p.lhs,
        rhs_quantization=p.rhs,
        dout_quantization=p.dout,
        config=config,
      ),
      lhs,
      rhs,
    )
    return out, *vjp(dout)

  options = {} if backend == "pallas" else compiling.fast_options()
  return jax.jit(call, compiler_options=options)


def check_all(name: str, backend: str) -> None:
  """Runs a program of the table with several kinds of rows and values.

  Args:
    name: a key of `PROGRAMS`.
    backend: "interpret", "pallas" or "xla".

  Raises:
    AssertionError: a result is not the oracle's.
  """
  for i, case in enumerate(CASES):
    check(name, backend, (case, i % 4))


@dataclasses.dataclass(frozen=True)
class _Value:
  """An operand as it is multiplied, and how sure that is, in float64.

  Attributes:
    value: what it is.
    near: how far off its neighbours are that are as good.
    moved: how far quantising may have moved it.
    real: what it was.
  """

  value: np.ndarray
  near: np.ndarray
  moved: np.ndarray
  real: np.ndarray


def _in_use(x, dtype, **blocks):
  """An operand, quantised unless `dtype` is None."""
  real = x.astype(np.float64)
  if dtype is None:
    return _Value(real, np.zeros_like(real), np.zeros_like(real), real)
  value, scale = quantizing.quantize(x, dtype, **blocks)
  more = (
    f(x, dtype, **blocks) for f in (quantizing.near_ties, quantizing.half_steps)
  )
  return _Value(value * scale, *more, real)


def _rows_in_use(dout, how, rows, axis):
  """The cotangent: rows of no local group are zero."""
  local = dout[rows]
  if how is None:
    found = _in_use(local, None)
  elif how.per == "channel":
    found = _in_use(local, how.dtype, axis=axis)
  else:
    found = _in_use(local.reshape(1, -1), how.dtype, axis=1)
  spread = []
  for part in dataclasses.astuple(found):
    whole = np.zeros(dout.shape)
    whole[rows] = part.reshape(local.shape)
    spread.append(whole)
  return _Value(*spread)


def _operands(p, case, offset):
  """Arrays, with poison in what may not be read; and which rows are local."""
  pattern, values, poison = case
  rng = np.random.default_rng([len(pattern), offset])
  sizes = np.array(patterns.PATTERNS[pattern](M, G_TOTAL), np.int32)
  weight = (G, p.n, p.k) if p.transposed else (G, p.k, p.n)
  lhs, rhs, dout = (
    rng.standard_normal(shape).astype(np.float32)
    for shape in ((M, p.k), weight, (M, p.n))
  )
  if values == "zeros":
    rhs[0, 3], rhs[:, :, 5], dout[::7], dout[:, 4] = 0, 0, 0, 0
  elif values == "faint":
    powers = np.resize([1e-30, 1e-37, 1e-41, 1.0], M)[:, None]
    dout, lhs = dout * powers.astype(np.float32), lhs * 1e-3
    rhs[:, 2], rhs[:, :, 7] = rhs[:, 2] * 1e-40, rhs[:, :, 7] * 1e-39
  rows, groups = np.zeros(M, bool), np.zeros(G, bool)
  for group, start, end in oracle.local_rows(
    sizes, num_groups=G, m=M, group_offset=offset
  ):
    rows[start:end] = groups[group] = True
  lhs[~rows] = dout[~rows] = rhs[~groups] = poison
  dtype = jnp.dtype(p.dtype)
  return [x.astype(dtype) for x in (lhs, rhs, dout)], sizes, rows


def check(name: str, backend: str, which: tuple) -> None:
  """One of `CASES` with an offset, as in `check_all`."""
  case, offset = which
  p = PROGRAMS[name]
  (lhs, rhs, dout), sizes, rows = _operands(p, case, offset)
  with races.checked():
    results = jax.block_until_ready(
      _run(name, backend)((lhs, rhs, dout), sizes, jnp.int32(offset))
    )
  with np.errstate(invalid="ignore", over="ignore"):
    _compare(name, (lhs, rhs, dout, sizes, offset, rows), results)


def _compare(name, given, results):
  lhs, rhs, dout, sizes, offset, rows = given
  p = PROGRAMS[name]
  axis = 2 if p.transposed else 1
  weight = (
    _in_use(rhs, p.rhs and p.rhs.dtype, axis=axis, block=p.rhs and p.rhs.block)
    if p.rhs
    else _in_use(rhs, None)
  )
  by_row, by_column = (_rows_in_use(dout, p.dout, rows, a) for a in (1, 0))
  x = by_k = _in_use(lhs, None)
  if p.lhs is not None:
    x = _in_use(lhs, p.lhs, axis=1, block=p.rhs.block)
    by_k = _rows_in_use(lhs, HOW(dtype=p.lhs, per=p.dout.per), rows, 0)
  local = {"group_offset": offset}
  into = functools.partial(
    oracle.gmm, group_sizes=sizes, transpose_rhs=p.transposed, **local
  )
  back = functools.partial(
    oracle.gmm, group_sizes=sizes, transpose_rhs=not p.transposed, **local
  )

  def over(lhs, dout):
    out = oracle.tgmm(lhs, dout, sizes, num_groups=G, **local)
    return out.swapaxes(1, 2) if p.transposed else out

  on_tpu = jax.default_backend() == "tpu"
  for what, got, product, (left, right), terms in (
    ("out", results[0], into, (x, weight), p.k),
    ("dlhs", results[1], back, (by_row, weight), p.n),
    ("drhs", results[2], over, (by_k, by_column), M),
  ):
    if got.dtype != jnp.dtype(p.dtype):
      raise AssertionError(f"{what} of {name} is {got.dtype}, not {p.dtype}")
    got = np.asarray(got).astype(np.float64)
    size = [np.abs(v.value) for v in (left, right)]
    want, magnitude = product(left.value, right.value), product(*size)
    near = product(left.near, size[1]) + product(size[0], right.near)
    dtypes = (jnp.dtype(p.dtype),) * 2
    eps = tolerance.eps_of(dtypes, dtypes[0], precision=None, on_tpu=on_tpu)
    if p.rhs and what != "drhs":
      eps["operand_eps"] += _scaling_eps(p, what) + on_tpu * 2 * BF16
    # What is flushed to zero on the way is less than that, times the other.
    flushed = product(np.full_like(size[0], TINY), 1 + size[1])
    flushed += product(1 + size[0], np.full_like(size[1], TINY))
    bound = error_bound(want, magnitude, terms=terms + 12, **eps)
    bound += near + flushed * (magnitude > 0)
    _expect(f"{what} of {name}", got, want, bound)
    # And what would have been without: off by what rounding moved.
    plain = product(left.real, right.real)
    moved = product(left.moved, size[1]) + product(
      np.abs(left.real), right.moved
    )
    _expect(f"{what} of {name}, unquantised", got, plain, bound + moved)


def _scaling_eps(p: Program, what: str) -> float:
  """What dout loses that takes the weight's scales, or a weight that does."""
  small = p.rhs.block is not None and p.rhs.block < 128
  return BF16 if p.dtype == "bfloat16" and (small or what == "dlhs") else 0.0


def _expect(what, got, want, bound):
  wrong = ~(np.abs(got - want) <= bound)
  if wrong.any():
    at = tuple(np.argwhere(wrong)[0])
    raise AssertionError(
      f"{what}: {wrong.sum()} of {wrong.size} are off, the first at {at}: "
      f"{got[at]!r}, expected {want[at]!r} +- {bound[at]:.3g}"
    )
