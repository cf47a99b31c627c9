"""Cases of tgmm of quantised operands with their scales, and their check."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from gmm import kernels, ops
from gmm.kernels.chip import ChipSpec
from reference import oracle
from reference.error_bound import error_bound
from testing import compiling, patterns, races, tolerance

M, G, G_TOTAL = 45, 3, 5
PATTERNS = ("ragged", "empty_runs", "short", "all_ones", "one_takes_all")
F32 = float(jnp.finfo(jnp.float32).eps)
TINY = float(jnp.finfo(jnp.float32).tiny)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """One kernel.

  Attributes:
    formats: of lhs and dout.
    per: what their scales are by: "column", "tensor" or "" for none.
    k: columns of lhs.
    n: columns of dout.
    out: the result's dtype; the default's, but for the first one.
    transposed: whether the kernel writes [g, n, k].
    tiling: of the kernel.
    chip: of the kernel.
    scale_dtype: of the scales.
    interpreted: whether the interpreter runs it, too, which takes long.
  """

  formats: tuple[str, str]
  per: tuple[str, str]
  k: int = 136
  n: int = 72
  out: str = "bfloat16"
  transposed: bool = False
  tiling: tuple[int, int, int] | None = None
  chip: str = "v6e"
  scale_dtype: str = "float32"
  interpreted: bool = True

  def lacking(self, chip: ChipSpec) -> str | None:
    """The one format that a chip's matrix unit lacks, if that is multiplied."""
    lhs, dout = self.formats
    return lhs if lhs == dout and lhs not in chip.mxu_dtypes else None


PROGRAMS = {
  # Tiles of k and n, the last ones short; parts of registers.
  "e4m3": Program(
    formats=("float8_e4m3fn", "float8_e4m3fn"),
    per=("column", "column"),
    k=200,
    n=264,
    out="float32",
    tiling=(16, 128, 128),
    chip="tpu7x",
  ),
  # Two formats that the matrix unit multiplies with each other.
  "e4m3_e5m2": Program(
    formats=("float8_e4m3fn", "float8_e5m2"),
    per=("tensor", "tensor"),
    chip="tpu7x",
  ),
  "i8-transposed": Program(
    formats=("int8", "int8"),
    per=("column", "tensor"),
    k=72,
    n=300,
    transposed=True,
  ),
  "e5m2": Program(
    formats=("float8_e5m2", "float8_e5m2"),
    per=("tensor", "column"),
    scale_dtype="bfloat16",
    interpreted=False,
  ),
  "bf16_e5m2": Program(formats=("bfloat16", "float8_e5m2"), per=("", "column")),
  "i8_f32-transposed": Program(
    formats=("int8", "float32"),
    per=("column", ""),
    transposed=True,
    out="float32",
    interpreted=False,
  ),
}
# Others have their own default.
PREFERRED = {"e4m3": "float32"}


def _draw(rng, shape, dtype):
  dtype = jnp.dtype(dtype)
  if dtype.kind == "i":
    return rng.integers(-127, 128, shape).astype(dtype)
  return rng.standard_normal(shape).astype(dtype)


def _scale_of(rng, per, size, dtype):
  """Powers of two, a zero and one so small that products with it are."""
  if not per:
    return None
  scale = 2.0 ** rng.uniform(-3, 3, (1, size if per == "column" else 1))
  if scale.size > 2:
    scale[0, 1], scale[0, 2] = 0, 2e-38
  return scale.astype(dtype)


@functools.cache
def _run(name, backend):
  """The program of a table's row: of arrays to the result [g, k, n]."""
  p = PROGRAMS[name]
  kernel = functools.partial(
    kernels.tgmm_v2,
    num_groups=G,
    preferred_element_type=PREFERRED.get(name),
    tiling=p.tiling,
    transpose_out=p.transposed,
  )
  if backend == "interpret":
    interpret = races.interpret_params()
    kernel = functools.partial(kernel, chip=p.chip, interpret=interpret)
  if backend == "xla":
    kernel = functools.partial(
      ops.tgmm,
      num_groups=G,
      preferred_element_type=PREFERRED.get(name),
      config=ops.Config(backend="xla"),
    )

  def call(lhs, dout, sizes, **more):
    out = kernel(lhs, dout, sizes, **more)
    return out.swapaxes(1, 2) if out.shape[1] != p.k else out

  options = {} if backend == "pallas" else compiling.fast_options()
  return jax.jit(call, compiler_options=options)


def check_all(name: str, backend: str) -> None:
  """Runs a program of the table with rows dealt in several ways.

  Args:
    name: a key of `PROGRAMS`.
    backend: "interpret", "pallas" or "xla".

  Raises:
    AssertionError: a result is not the oracle's.
  """
  for i, pattern in enumerate(PATTERNS):
    check(name, backend, (pattern, i % 4))


def check(name: str, backend: str, groups: tuple[str, int]) -> None:
  """One pattern of rows with an offset, as in `check_all`."""
  pattern, offset = groups
  p = PROGRAMS[name]
  rng = np.random.default_rng([len(pattern), offset])
  sizes = np.array(patterns.PATTERNS[pattern](M, G_TOTAL), np.int32)
  operands = [
    _draw(rng, (M, size), dtype)
    for size, dtype in zip((p.k, p.n), p.formats, strict=True)
  ]
  scales = {
    f"{operand}_scale": _scale_of(rng, per, size, jnp.dtype(p.scale_dtype))
    for operand, per, size in zip(
      ("lhs", "dout"), p.per, (p.k, p.n), strict=True
    )
  }
  local = {"num_groups": G, "group_offset": offset}
  rows = np.zeros(M, bool)
  counts = np.zeros((G, 1, 1))
  for group, start, end in oracle.local_rows(sizes, m=M, **local):
    rows[start:end] = True
    counts[group] = end - start
  for x in operands:
    x[~rows] = 127 if x.dtype.kind == "i" else np.nan
  with races.checked():
    got = _run(name, backend)(
      *operands, sizes, group_offset=jnp.int32(offset), **scales
    )
    got = np.asarray(got)
  if got.dtype != jnp.dtype(p.out):
    raise AssertionError(f"{name} is {got.dtype}, not {p.out}")
  want = oracle.tgmm(*operands, sizes, **scales, **local)
  magnitude = oracle.tgmm(
    *(np.abs(x.astype(np.float64)) for x in operands), sizes, **scales, **local
  )
  eps = tolerance.eps_of(
    tuple(x.dtype for x in operands),
    got.dtype,
    precision=None,
    on_tpu=jax.default_backend() == "tpu",
  )
  eps["acc_eps"] = F32
  if got.dtype != np.float32:
    eps["out_eps"] = float(jnp.finfo(got.dtype).eps)
  # Sums times one scale may be flushed to zero, and then take the other.
  eps["out_floor"] += TINY * max(
    float(np.max(x)) for x in scales.values() if x is not None
  )
  bound = error_bound(want, magnitude, terms=counts + 3, **eps)
  np.testing.assert_array_less(
    np.abs(got.astype(np.float64) - want), bound + (bound == 0) * 1e-300
  )
  if np.any(got[np.broadcast_to(counts == 0, got.shape)]):
    raise AssertionError(f"{name}: groups without rows are not zero")
