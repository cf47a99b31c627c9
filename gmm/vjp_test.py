"""`ops.gmm` under autodiff: what reaches which product, and what comes back.

XLA and TPUs meet the whole table. Interpreted kernels do so in `forward_test`,
and here what shows that operands, layouts and offsets reach them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import ops
from testing import cases, harness, parametrize
from testing.case import Case


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
  parametrize.by_backend(
    metafunc,
    {
      "interpret": cases.FEW_CASES,
      "pallas": cases.CASES,
      "xla": cases.CASES,
    },
  )


def test_vjp(case, backend, unless_refused):
  with unless_refused(case):
    harness.check(case, harness.run_vjp(case, backend))


@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
def test_a_masked_loss_has_finite_gradients(poison, backend):
  # C06: a weight of zero does not help against NaN, so rows past the last
  # group must be zeros before they are weighted.
  sizes = np.array([7, 0, 12], np.int32)
  owned = int(sizes.sum())
  rng = np.random.default_rng(0)
  lhs = rng.standard_normal((48, 24)).astype(np.float32)
  lhs[owned:] = poison
  rhs = rng.standard_normal((3, 24, 16)).astype(np.float32)
  mask = (np.arange(48) < owned).astype(np.float32)

  @jax.jit
  @jax.value_and_grad
  def loss_and_grads(operands):
    lhs, rhs, mask = operands
    out = ops.gmm(lhs, rhs, sizes, config=ops.Config(backend=backend))
    return jnp.sum(mask[:, None] * out**2)

  loss, grads = loss_and_grads((lhs, rhs, mask))
  assert np.isfinite(loss)
  assert loss > 0
  for grad in grads:
    assert np.all(np.isfinite(grad))
  assert np.all(np.asarray(grads[0])[owned:] == 0)
  assert np.all(np.asarray(grads[1])[1] == 0)
  assert np.all(np.asarray(grads[2])[owned:] == 0)


def _transposed_sizes(jaxpr: Any) -> list[int]:
  """Sizes of what is transposed anywhere in a jaxpr."""
  found = []
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == "transpose":
      found.append(eqn.invars[0].aval.size)
    for value in jax.tree.leaves(
      eqn.params, is_leaf=lambda v: hasattr(v, "eqns")
    ):
      if hasattr(value, "eqns"):
        found += _transposed_sizes(value)
  return found


@pytest.mark.parametrize("rhs_layout", ["gkn", "gnk"])
@pytest.mark.parametrize("transpose_rhs", [False, True])
@pytest.mark.parametrize("in_place", [True, False])
def test_transposes_of_weights(in_place, transpose_rhs, rhs_layout):
  # C42: the copy that this project is there to avoid. Where the weight lies
  # the other way each product takes its swapped view, which copies nothing.
  case = Case(
    name="",
    m=48,
    k=200,
    n=72,
    group_sizes=(11, 0, 37),
    transpose_rhs=transpose_rhs,
  )
  config = ops.Config(
    backend="pallas",
    chip="v6e",
    use_gmm_v2_transposed_rhs_dlhs=in_place,
    rhs_layout=rhs_layout,
  )
  jaxpr = harness.vjp_jaxpr(case, config)
  count = _transposed_sizes(jaxpr).count(case.g * case.k * case.n)
  explicit = not in_place and not transpose_rhs
  if transpose_rhs == (rhs_layout == "gnk"):
    assert count == explicit
  else:
    assert count == 3
