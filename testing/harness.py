"""Runs a case on a backend and compares every result with the oracle.

Two ways in. `run_products` calls the three products one by one: the kernels
themselves, interpreted with race detection or on a TPU, or the XLA backend.
`run_vjp` calls `ops.gmm` under `jax.vjp`. Each compiles one program for all
cases that can share it (`Case.program`) and keeps it for the process.

`check` raises an AssertionError that says which element of which result is
wrong, in which group, and by how much.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmm import config as config_lib
from gmm import kernels, ops
from reference import oracle
from testing import compiling, inputs, races, tolerance
from testing.case import Case

Results = Mapping[str, np.ndarray]

RESULTS = ("out", "dlhs", "drhs")

_OPERANDS = ("lhs", "rhs")
_MORE_OPERANDS = ("rhs_bias", "existing_out")


def run_products(
  case: Case,
  backend: str,
  *,
  x: inputs.Inputs | None = None,
  cores: int = 1,
  names: tuple[str, ...] = RESULTS,
) -> Results:
  """The forward product and those of its gradients, called one by one.

  Args:
    case: The case.
    backend: "interpret", "pallas" or "xla".
    x: operands, None for those of `inputs.make`.
    cores: that the interpreter runs side by side where the case's chip has
      several; with 1 they take turns. Several make every run compile anew.
    names: which of the results; a quantised weight has no "drhs".

  Returns:
    "out", "dlhs" and "drhs", each in the layout of its operand.
  """
  names = tuple(name for name in names if name in case.products)
  program = _products_program(case.program, backend, cores=cores, names=names)
  x = inputs.make(case) if x is None else x
  return _run(program, _arrays(case, x), backend)


def run_vjp(case: Case, backend: str, **flags: Any) -> Results:
  """`ops.gmm` and its vjp.

  Args:
    case: The case.
    backend: of `ops.Config`.
    **flags: more of `ops.Config`.

  Returns:
    "out", and for operands that have gradients "dlhs", "drhs", "drhs_bias" and
    "dexisting_out".
  """
  options = {
    "backend": backend,
    "tiling": case.tiling,
    "chip": case.chip if backend == "interpret" else None,
    # As the array has it, so that the products are those of `run_products`.
    "rhs_layout": "gnk" if case.transpose_rhs else "gkn",
  }
  config = ops.Config(**(options | flags))
  arrays = _arrays(case, inputs.make(case))
  return _run(_vjp_program(case.program, config), arrays, backend)


def vjp_jaxpr(case: Case, config: ops.Config) -> Any:
  """What `run_vjp` traces, on any machine."""
  arrays = _arrays(case, inputs.make(case))
  return jax.make_jaxpr(_vjp_program(case.program, config))(arrays)


def check(case: Case, results: Results, **flags: bool) -> None:
  """Compares results of `run_products` or `run_vjp` with the oracle.

  Args:
    case: The case.
    results: what came out.
    **flags: what else to mention.

  Raises:
    AssertionError: a shape, a dtype or an element is wrong.
  """
  x = inputs.make(case)
  want = tolerance.expected(case, x, on_tpu=jax.default_backend() == "tpu")
  dtypes = {"out": inputs.out_dtype(case)}
  for operand in _OPERANDS:
    dtypes[f"d{operand}"] = inputs.gradient_dtype(case, operand)
  dtypes["drhs_bias"] = jnp.dtype(case.scale_dtype)
  for name, got in results.items():
    where = f"{name} of {case}, {flags or 'default flags'}"
    if name == "dexisting_out":
      _check_same(where, got, x.dout.astype(got.dtype))
      continue
    if got.dtype != dtypes[name] or got.shape != want[name].value.shape:
      raise AssertionError(
        f"{where}: {got.dtype}{got.shape}, expected "
        f"{dtypes[name]}{want[name].value.shape}"
      )
    check_elements(where, case, got.astype(np.float64), want[name])
  _check_exact_zeros(case, x, results)


def _run(
  program: Callable, arrays: dict[str, np.ndarray | None], backend: str
) -> Results:
  if backend == "interpret":
    with races.checked():
      results = jax.block_until_ready(program(arrays))
  else:
    results = program(arrays)
  return {name: np.asarray(result) for name, result in results.items()}


def _arrays(case: Case, x: inputs.Inputs) -> dict[str, np.ndarray | None]:
  arrays = dataclasses.asdict(x)
  if case.packed:
    arrays["rhs"] = inputs.packed(x.rhs, 2 if case.transpose_rhs else 1)
  if isinstance(x.group_offset, int):
    arrays["group_offset"] = None  # the program has it
  return arrays


@functools.cache
def _products_program(
  program: Case, backend: str, *, cores: int, names: tuple[str, ...]
) -> Callable:
  product, transposed = (
    _xla_products()
    if backend == "xla"
    else _kernel_products(program, backend, cores)
  )
  out_of = {name: inputs.gradient_dtype(program, name) for name in _OPERANDS}
  # The tiling is in the weight's terms; a product's is in its call's.
  tiling = transposed_tiling = program.tiling
  if tiling is not None:
    transposed_tiling = (tiling[0], tiling[2], tiling[1])

  # The XLA backend is compiled here as its users do.
  options = compiling.fast_options() if backend == "interpret" else {}

  @functools.partial(jax.jit, compiler_options=options)
  def run(x: dict[str, jax.Array | None]) -> dict[str, jax.Array]:
    lhs, rhs, dout, sizes = x["lhs"], x["rhs"], x["dout"], x["group_sizes"]
    shared = {
      "group_offset": _offset(program, x["group_offset"]),
      "precision": program.formats.precision,
    }
    results = {}
    if "out" in names:
      results["out"] = product(
        lhs,
        rhs,
        sizes,
        transpose_rhs=program.transpose_rhs,
        preferred_element_type=program.formats.out,
        existing_out=x["existing_out"],
        rhs_scale=x["rhs_scale"],
        rhs_bias=x["rhs_bias"],
        tiling=tiling,
        **_of_lhs(program, x),
        **shared,
      )
    if "dlhs" in names:
      results["dlhs"] = product(
        dout,
        rhs,
        sizes,
        transpose_rhs=not program.transpose_rhs,
        preferred_element_type=out_of["lhs"],
        rhs_scale=x["rhs_scale"],
        backward=True,
        tiling=transposed_tiling,
        **shared,
      )
    if "drhs" in names:
      results["drhs"] = transposed(
        lhs,
        dout,
        sizes,
        num_groups=program.g,
        transpose_out=program.transpose_rhs,
        preferred_element_type=out_of["rhs"],
        tiling=tiling,
        **shared,
      )
    return results

  return run


def _kernel_products(
  program: Case, backend: str, cores: int
) -> tuple[Callable, Callable]:
  options = {}
  if backend == "interpret":
    options["chip"] = program.chip
    options["interpret"] = races.interpret_params(cores)
  return (
    functools.partial(kernels.gmm_v2, **options),
    functools.partial(kernels.tgmm_v2, **options),
  )


def _xla_products() -> tuple[Callable, Callable]:
  config = ops.Config(backend="xla")

  def product(x, rhs, *operands, tiling, backward=False, **options):
    del tiling  # has none
    call = functools.partial(ops.gmm, config=config)
    is_packed = rhs.dtype == jnp.int32
    if not backward or (options["rhs_scale"] is None and not is_packed):
      return call(x, rhs, *operands, **options)
    # What lies along the columns is not for users to give, but for gradients.
    options["transpose_rhs"] = not options["transpose_rhs"]
    k = rhs.shape[2 if options["transpose_rhs"] else 1]
    k *= config_lib.PACKED if is_packed else 1
    like = jnp.zeros((x.shape[0], k), options.pop("preferred_element_type"))
    _, vjp = jax.vjp(
      lambda lhs: call(
        lhs, rhs, *operands, preferred_element_type=x.dtype, **options
      ),
      like,
    )
    return vjp(x)[0]

  def transposed(*operands, tiling, transpose_out, **options):
    del tiling
    out = ops.tgmm(*operands, config=config, **options)
    return out.swapaxes(1, 2) if transpose_out else out

  return product, transposed


@functools.cache
def _vjp_program(program: Case, config: ops.Config) -> Callable:
  def gmm(x: dict[str, jax.Array | None]) -> jax.Array:
    return ops.gmm(
      x["lhs"],
      x["rhs"],
      x["group_sizes"],
      group_offset=_offset(program, x["group_offset"]),
      transpose_rhs=program.transpose_rhs,
      preferred_element_type=program.formats.out,
      existing_out=x["existing_out"],
      rhs_scale=x["rhs_scale"],
      rhs_bias=x["rhs_bias"],
      **_of_lhs(program, x),
      precision=program.formats.precision,
      config=config,
    )

  # For the XLA backend `run_products` compiles without these.
  options = (
    compiling.fast_options() if config.backend in ("interpret", "xla") else {}
  )

  @functools.partial(jax.jit, compiler_options=options)
  def run(x: dict[str, jax.Array | None]) -> dict[str, jax.Array]:
    operands = {name: x[name] for name in (*_OPERANDS, *_MORE_OPERANDS)}
    if not (program.has_drhs or inputs.is_integer(x["rhs"].dtype)):
      del operands["rhs"]
    if program.lhs_scale and not inputs.is_integer(x["lhs"].dtype):
      del operands["lhs"]
    out, vjp = jax.vjp(lambda operands: gmm(x | operands), operands)
    if inputs.is_integer(out.dtype):
      return {"out": out}
    (grads,) = vjp(x["dout"].astype(out.dtype))
    for name in set(_OPERANDS) & set(operands):
      has_gradient = grads[name].dtype != jax.dtypes.float0
      if has_gradient == inputs.is_integer(x[name].dtype):
        raise AssertionError(
          f"d{name} is {grads[name].dtype} and {name} is {x[name].dtype}"
        )
    return {"out": out} | {
      f"d{name}": grad
      for name, grad in grads.items()
      if grad is not None and grad.dtype != jax.dtypes.float0
    }

  return run


def _of_lhs(program: Case, x: dict[str, jax.Array | None]) -> dict[str, Any]:
  """How lhs is quantised, where it is."""
  return {
    "lhs_scale": x["lhs_scale"],
    "lhs_quantization": program.lhs_quantization,
  }


def _offset(program: Case, traced: jax.Array | None) -> jax.Array | int | None:
  """The offset as the case wants it given."""
  if not program.offset_is_static:
    return traced
  if program.offset_form == "int":
    return program.group_offset
  return jnp.asarray(program.group_offset, jnp.int32)


def _check_same(where: str, got: np.ndarray, want: np.ndarray) -> None:
  # NumPy's own comparison does not take a bfloat16 NaN for a NaN.
  wide = (got.astype(np.float64), want.astype(np.float64))
  if not np.array_equal(*wide, equal_nan=True):
    raise AssertionError(f"{where}: not the cotangent of the result")


def check_elements(
  where: str, case: Case, got: np.ndarray, want: tolerance.Expected
) -> None:
  """Raises an AssertionError for elements that are off by more than allowed."""
  name = where.split()[0]
  # A NaN is not close to anything, so it must not hide behind a comparison.
  error = np.abs(got - want.value)
  wrong = ~(error <= want.bound)
  if not wrong.any():
    return
  excess = np.where(np.isnan(error), np.inf, error - want.bound)
  worst = np.unravel_index(np.argmax(np.where(wrong, excess, -1)), got.shape)
  raise AssertionError(
    f"{where}: {wrong.sum()} of {wrong.size} elements are off; the worst is "
    f"[{', '.join(map(str, worst))}] of {_group_of(name, case, worst)}: got "
    f"{got[worst]!r}, expected {want.value[worst]!r} +- {want.bound[worst]:.3g}"
  )


def _check_exact_zeros(case: Case, x: inputs.Inputs, results: Results) -> None:
  """Holds also where `existing_out` gives the comparison room."""
  rows, groups = inputs.local_rows_and_groups(case)
  existing = x.existing_out
  nothing = 0 if existing is None else existing[~rows]
  for name, got, want in (
    ("out", lambda r: r[~rows], nothing),
    ("dlhs", lambda r: r[~rows], 0),
    ("drhs", lambda r: r[~groups], 0),
    ("drhs_bias", lambda r: r[~groups], 0),
  ):
    if name in results and not np.all(got(results[name]) == want):
      raise AssertionError(
        f"{name} of {case}: rows or weights outside the local groups changed"
      )


def _group_of(name: str, case: Case, index: tuple[np.intp, ...]) -> str:
  if name.startswith("drhs"):
    return f"local group {index[0]}"
  rows = oracle.local_rows(
    case.group_sizes,
    num_groups=case.g,
    m=case.m,
    group_offset=case.group_offset,
  )
  for group, start, end in rows:
    if start <= index[0] < end:
      return f"local group {group}, rows [{start}, {end})"
  return "no local group"
