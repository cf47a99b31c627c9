"""The harness passes what is right and says where something is wrong."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from testing import cases, harness, inputs, races, tolerance
from testing.case import Case

CASE = Case(
  name="for_harness_test",
  m=20,
  k=24,
  n=16,
  group_sizes=(3, 6, 0, 4),
  num_groups=2,
  group_offset=1,
  dtypes="bf16",
)
LOCAL, OUTSIDE, EMPTY = 5, 15, 1


def _correct(case: Case) -> dict[str, np.ndarray]:
  """The oracle's results in the dtypes that a backend returns."""
  x = inputs.make(case)
  want = tolerance.expected(case, x, on_tpu=False)
  dtypes = {
    "out": inputs.out_dtype(case),
    "dlhs": inputs.gradient_dtype(case, "lhs"),
    "drhs": inputs.gradient_dtype(case, "rhs"),
    "drhs_bias": jnp.dtype(case.scale_dtype),
  }
  results = {name: want[name].value.astype(dtypes[name]) for name in want}
  if x.existing_out is not None:
    results["dexisting_out"] = x.dout.astype(results["out"].dtype)
  return results


@pytest.mark.parametrize("case", cases.CASES[::7], ids=lambda c: c.name)
def test_what_the_oracle_says_passes(case):
  harness.check(case, _correct(case))


def _fail(name: str, index: tuple, value: float, case: Case = CASE) -> str:
  results = _correct(case)
  results[name][index] = value
  with pytest.raises(AssertionError) as failure:
    harness.check(case, results)
  return str(failure.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e-3, -3e38])
@pytest.mark.parametrize(
  "name, index",
  [("out", (OUTSIDE, 3)), ("dlhs", (OUTSIDE, 3)), ("drhs", (EMPTY, 2, 3))],
)
def test_anything_but_zero_outside_fails(name, index, value):
  where = ", ".join(map(str, index))
  message = _fail(name, index, value)
  assert "1 of " in message
  assert f"[{where}]" in message
  assert "for_harness_test" in message


@pytest.mark.parametrize("name", ["out", "dlhs", "drhs"])
@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_a_wrong_element_inside_fails(name, value):
  index = (0, 2, 3) if name == "drhs" else (LOCAL, 3)
  message = _fail(name, index, value)
  assert "local group 0" in message
  assert re.search(r"got .*, expected .* \+- ", message)


def test_one_unit_in_the_last_place_of_existing_out_fails():
  case = dataclasses.replace(CASE, existing_out=True)
  ulp = 1 + float(jnp.finfo(jnp.bfloat16).eps)
  changed = float(_correct(case)["out"][OUTSIDE, 3]) * ulp
  message = _fail("out", (OUTSIDE, 3), changed, case)
  assert "changed" in message


def test_a_changed_cotangent_of_existing_out_fails():
  case = dataclasses.replace(CASE, existing_out=True)
  assert "dexisting_out" in _fail("dexisting_out", (LOCAL, 0), 0.0, case)
  # Rows of no group included, whatever they hold.
  assert "dexisting_out" in _fail("dexisting_out", (OUTSIDE, 0), 0.0, case)


@pytest.mark.parametrize("name", ["out", "dlhs", "drhs"])
def test_another_dtype_or_shape_fails(name):
  results = _correct(CASE)
  wide = results | {name: results[name].astype(np.float32)}
  with pytest.raises(AssertionError, match="float32"):
    harness.check(CASE, wide)
  cut = results | {name: results[name][:1]}
  with pytest.raises(AssertionError, match="expected"):
    harness.check(CASE, cut)


@pytest.mark.parametrize("case", cases.CASES[::11], ids=lambda c: c.name)
def test_everything_outside_is_poisoned_and_nothing_else(case):
  x = inputs.make(case)
  rows, groups = inputs.local_rows_and_groups(case)
  # Of what is drawn; poisoned integers and narrow floats are at the ends.
  arrays = [(x.lhs, rows), (x.dout, rows), (x.rhs, groups)]
  for of_groups in (x.rhs_scale, x.rhs_bias):
    if of_groups is not None:
      outside = of_groups[~groups].astype(np.float64)
      assert np.all(~(np.abs(outside) < 1e37))
      assert np.all(np.isfinite(of_groups[groups].astype(np.float64)))
  for array, inside in arrays:
    wide = np.nan_to_num(np.abs(array.astype(np.float64)), nan=np.inf)
    if inputs.is_integer(array.dtype):
      small = min(127, jnp.iinfo(array.dtype).max)
    else:
      small = min(10, float(jnp.finfo(array.dtype).max))
    assert np.all(wide[inside] <= small)
    assert np.all(wide[~inside] >= small)


def test_operands_do_not_share_a_random_stream():
  case = Case(name="x", m=16, k=16, n=16, group_sizes=(16,), existing_out=True)
  x = inputs.make(case)
  arrays = (x.lhs, x.rhs[0], x.dout, x.existing_out)
  flat = np.stack([a.ravel() for a in arrays])
  assert np.max(np.abs(np.corrcoef(flat) - np.eye(4))) < 0.3


def _copy_kernel(wait_before_use: bool):
  def body(x_ref, out_ref, scratch, sems):
    fetch = pltpu.make_async_copy(x_ref, scratch, sems.at[0])
    fetch.start()
    if wait_before_use:
      fetch.wait()
    store = pltpu.make_async_copy(scratch, out_ref, sems.at[1])
    store.start()
    if not wait_before_use:
      fetch.wait()
    store.wait()

  x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
  return pl.pallas_call(
    body,
    out_shape=x,
    in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
    out_specs=pl.BlockSpec(memory_space=pl.ANY),
    scratch_shapes=[
      pltpu.VMEM(x.shape, x.dtype),
      pltpu.SemaphoreType.DMA((2,)),
    ],
    interpret=races.interpret_params(),
  )


def test_a_race_fails_and_does_not_spoil_the_next_run():
  x = np.ones((8, 128), np.float32)
  good, racy = _copy_kernel(True), _copy_kernel(False)
  # The racy kernel comes first: its report must outlive the kernel after it.
  with pytest.raises(Exception, match=r"(?i)race"):
    with races.checked():
      jax.block_until_ready(jax.jit(lambda x: good(racy(x)))(x))
  with races.checked():
    out = jax.block_until_ready(jax.jit(good)(x))
  np.testing.assert_array_equal(out, x)
