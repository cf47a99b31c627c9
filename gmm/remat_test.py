"""Names of results: what policies of `jax.checkpoint` save and compute again.

Products are counted in jaxprs: each is one call of the jitted `dispatch.run`.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm import names, ops
from gmm.compat import megablox
from testing import compiling, toy
from testing.toy import SIZES, XLA, G, K, M, N, equations, normal

ONLY = jax.checkpoint_policies.save_only_these_names
NOTHING = jax.checkpoint_policies.nothing_saveable

NAMES = {
  "GMM_OUT": "gmm_out",
  "TGMM_OUT": "tgmm_out",
  "GMM_GATED_OUT": "gmm_gated_out",
  "GMM_GATED_GATE_UP": "gmm_gated_gate_up",
  "SPLIT_GMM_OUT": "split_gmm_out",
}

SIZED = np.array(SIZES, np.int32)
X = normal(0, M, K), normal(1, G, K, 2 * N)


def gmm(lhs, weight):
  return ops.gmm(lhs, weight, SIZED, config=XLA)


def tgmm(lhs, weight):
  # Of lhs and a product of the weight's, which is no call of ours.
  dout = jnp.tile(weight[0, :1], (M, 1))
  return ops.tgmm(lhs, dout, SIZED, num_groups=G, config=XLA)


def gated(lhs, weight, recompute=True):
  return ops.gmm_gated(lhs, weight, SIZED, recompute=recompute, config=XLA)


def split(lhs, weight, columns=N):
  halves = jnp.split(weight, [columns], axis=2)
  return jnp.concatenate(ops.split_gmm(lhs, *halves, SIZED, config=XLA), axis=1)


# A function, its products in forward and backward pass, those of the forward
# pass, and the names that keep them from being computed again.
CALLS = {
  "gmm": (gmm, 3, 1, [ops.GMM_OUT]),
  "tgmm": (tgmm, 3, 1, [ops.TGMM_OUT]),
  "gated": (gated, 4, 1, [ops.GMM_GATED_OUT]),
  "kept": (
    functools.partial(gated, recompute=False),
    3,
    1,
    [ops.GMM_GATED_OUT, ops.GMM_GATED_GATE_UP],
  ),
  "split": (split, 4, 1, [ops.SPLIT_GMM_OUT]),
  "two_kernels": (
    functools.partial(split, columns=N + 2),
    6,
    2,
    [ops.SPLIT_GMM_OUT],
  ),
}


def gradients(function, policy="none"):
  def loss(lhs, weight):
    # Its gradient needs the result.
    return jnp.sum(jnp.sin(function(lhs, weight)))

  if policy != "none":
    loss = jax.checkpoint(loss, policy=policy)
  # With the value, or XLA could do without the forward pass.
  return jax.value_and_grad(loss, (0, 1))


def products(function, policy="none"):
  jaxpr = jax.make_jaxpr(gradients(function, policy))(*X).jaxpr
  return sum(e.params.get("name") == "run" for e in equations(jaxpr))


def test_names_are_stable():
  for constant, name in NAMES.items():
    assert getattr(ops, constant) == getattr(names, constant) == name


@pytest.mark.parametrize("name", CALLS)
def test_what_is_saved_is_not_computed_again(name):
  function, all_of_it, forward, saved = CALLS[name]
  assert products(function) == all_of_it
  assert products(function, ONLY(*saved)) == all_of_it
  assert products(function, NOTHING) == all_of_it + forward
  others = set(NAMES.values()) - set(saved)
  assert products(function, ONLY(*others)) == all_of_it + forward
  for one in saved[1:]:
    assert products(function, ONLY(one)) == all_of_it + forward


def test_adapters_have_the_names():
  def overwriting(lhs, weight):
    return megablox.gmm(lhs, weight, SIZED, existing_out=jnp.ones((M, 2 * N)))

  def ragged(lhs, weight):
    return ops.ragged_dot(lhs, weight, SIZED)

  for function in (overwriting, ragged):
    assert products(function, ONLY(ops.GMM_OUT)) == 3
    assert products(function, NOTHING) == 4


def test_kernels_on_tpu_are_not_run_again():
  def kernels(policy):
    grad = gradients(
      lambda lhs, weight: ops.gmm(lhs, weight, SIZED, config=toy.V6E), policy
    )
    lowered = jax.jit(grad).trace(*X).lower(lowering_platforms=("tpu",))
    text = lowered.as_text()
    bodies = dict(
      part.split("(", 1) for part in re.split(r"func\.func \w+ @", text)[1:]
    )

    def runs(name):
      if name == "tpu_custom_call":
        return 1
      return sum(map(runs, re.findall(r"call @(\w+)\(", bodies[name])))

    return runs("main")

  assert kernels(ONLY(ops.GMM_OUT)) == 3
  assert kernels(NOTHING) == 4


def test_gradients_are_the_same():
  @functools.partial(jax.jit, compiler_options=compiling.fast_options())
  def all_of_them(*x):
    return [
      [
        gradients(function, policy)(*x)
        for policy in ("none", ONLY(*saved), ONLY(saved[-1]))
      ]
      for function, *_, saved in (CALLS["gmm"], CALLS["kept"])
    ]

  for plain, *others in all_of_them(*X):
    for other in others:
      toy.assert_close(other, plain)


def test_a_name_costs_nothing(monkeypatch):
  def text():
    def everything(*x):
      return [gradients(call[0])(*x) for call in CALLS.values()]

    return jax.jit(everything).lower(*X).as_text()

  with_names = text()
  monkeypatch.setattr(names, "named", lambda x, name: x)
  assert text() == with_names
