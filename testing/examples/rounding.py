"""How far a program may be off, of which only the grouped products round.

A program in float64 whose products take a narrower dtype is compared with the
same program in float64 throughout. There, each number that a product computes
has an error of its own, `size * noise`, with its size from
reference/error_bound.py and |noise| <= 1. With J the derivative of all results
in all noise, the results are off by at most the sum of |J| over the noise, to
first order. The terms of second order are smaller by another rounding error,
and error_bound's factor of two pays for them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gmm import activations
from testing import compiling, toy

# Operations of an activation or a derivative, in units in the last place of
# (1 + |gate|) (2 + |up|), as in testing/gated_tolerance.py.
_OPERATIONS = 16
_F32_EPS = float(jnp.finfo(jnp.float32).eps)


def bounded(program: Callable[..., Any]) -> Callable[..., Any]:
  """Makes a function that finds exact results and the bounds of their errors.

  Args:
    program: a function of something with the `gmm` and the `gmm_gated` of
      `gmm.ops`, and of operands; returns a tree of float64 arrays.

  Returns:
    A function of a dtype, what the products take in the program that is
    compared, and of the operands. It returns the leaves of the tree, and a
    bound for each of their elements. It is compiled once for all dtypes.
  """

  def leaves(noise: Any, eps: _Eps, operands: Any) -> tuple[list, int]:
    products = _Products(eps=eps, noise=noise)
    return jax.tree.leaves(program(products, *operands)), products.used

  def size(eps: _Eps, operands: Any) -> int:
    used = []
    jax.eval_shape(lambda: used.append(leaves(None, eps, operands)[1]))
    return used[0]

  @functools.partial(
    jax.jit, static_argnums=0, compiler_options=compiling.fast_options()
  )
  def both(size: int, eps: _Eps, operands: Any) -> tuple[list, list]:
    def noisy(noise: jax.Array) -> tuple[list, list]:
      results, _ = leaves(noise, eps, operands)
      return results, results

    parts, results = jax.jacfwd(noisy, has_aux=True)(jnp.zeros(size))
    return results, [jnp.abs(part).sum(axis=-1) for part in parts]

  def run(dtype: Any, *operands: Any) -> tuple[list, list]:
    eps = _Eps.of(jnp.dtype(dtype))
    return both(size(eps, operands), eps, operands)

  return run


class _Eps(NamedTuple):
  """Machine epsilon of an operand, and of a result beyond its float32 sum."""

  operand: float
  out: float

  @classmethod
  def of(cls, dtype: np.dtype) -> _Eps:
    own = float(jnp.finfo(dtype).eps)
    return cls(own, own if own > _F32_EPS else 0.0)


@dataclasses.dataclass(kw_only=True)
class _Products:
  """Dense float64 forms of the products, with noise in all they compute.

  Attributes:
    eps: of what the noise stands for.
    noise: a flat array, cut up call by call; None is none.
    used: how much of it, so far.
  """

  eps: _Eps
  noise: jax.Array | None
  used: int = 0

  def gmm(
    self, lhs: jax.Array, rhs: jax.Array, sizes: jax.Array, *, config: Any
  ) -> jax.Array:
    """`ops.gmm`."""
    del config
    shapes = (len(lhs), rhs.shape[2]), lhs.shape, rhs.shape
    noise = tuple(self._take(shape) for shape in shapes)
    return _product(self.eps, (lhs, rhs), _owners(sizes, lhs, rhs), noise)

  def gmm_gated(
    self,
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    *,
    activation: str,
    config: Any,
  ) -> jax.Array:
    """`ops.gmm_gated`."""
    del config
    both = len(lhs), rhs.shape[2]
    half = len(lhs), rhs.shape[2] // 2
    shapes = both, half, both, both, lhs.shape, rhs.shape
    noise = tuple(self._take(shape) for shape in shapes)
    static = self.eps, activations.resolve(activation)
    return _gated(static, (lhs, rhs), _owners(sizes, lhs, rhs), noise)

  def _take(self, shape: tuple[int, ...]) -> jax.Array:
    size = int(np.prod(shape))
    start, self.used = self.used, self.used + size
    if self.noise is None:
      return jnp.zeros(shape)
    return self.noise[start : self.used].reshape(shape)


def _owners(sizes: jax.Array, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
  return toy.owners(sizes, len(lhs), len(rhs), 0).astype(lhs.dtype)


def _noisy(exact: jax.Array, size: jax.Array, noise: jax.Array) -> jax.Array:
  return exact + jax.lax.stop_gradient(size) * noise


def _sum_of_products(
  spec: str, arrays: tuple[jax.Array, ...], terms: Any, eps: _Eps
) -> tuple[jax.Array, jax.Array]:
  """A product and the bound of its error.

  Every operand may be rounded on its way in, unless that has happened before.
  """
  exact = jnp.einsum(spec, *arrays)
  magnitude = jnp.einsum(spec, *(jnp.abs(x) for x in arrays))
  relative = terms * _F32_EPS + 2 * eps.operand
  return exact, relative * magnitude + eps.out * jnp.abs(exact)


def _gradients(
  eps: _Eps, x: tuple[jax.Array, ...], noise: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
  """Noisy dlhs and drhs, for lhs, rhs, owners and dout."""
  lhs, rhs, owners, dout = x
  columns = rhs.shape[2]
  dlhs = _sum_of_products("mg,mn,gkn->mk", (owners, dout, rhs), columns, eps)
  rows = owners.sum(axis=0)[:, None, None]
  drhs = _sum_of_products("mg,mk,mn->gkn", (owners, lhs, dout), rows, eps)
  return _noisy(*dlhs, noise[0]), _noisy(*drhs, noise[1])


def _product(
  eps: _Eps,
  operands: tuple[jax.Array, jax.Array],
  owners: jax.Array,
  noise: tuple[jax.Array, ...],
) -> jax.Array:
  def product(operands: Any, owners: jax.Array, noise: Any) -> jax.Array:
    arrays = owners, *operands
    terms = operands[0].shape[1]
    pair = _sum_of_products("mg,mk,gkn->mn", arrays, terms, eps)
    return _noisy(*pair, noise[0])

  def fwd(*x: Any) -> Any:
    return product(*x), x

  def bwd(x: Any, dout: jax.Array) -> Any:
    operands, owners, noise = x
    grads = _gradients(eps, (*operands, owners, dout), noise[1:])
    return grads, None, None

  return _custom(product, fwd, bwd)(operands, owners, noise)


def _gated(
  static: tuple[_Eps, Any],
  operands: tuple[jax.Array, jax.Array],
  owners: jax.Array,
  noise: tuple[jax.Array, ...],
) -> jax.Array:
  """Sums, their activation; for the gradients sums again and its derivative."""
  eps, activation = static

  def value(both: jax.Array) -> jax.Array:
    return activation(*jnp.split(both, 2, axis=1))

  def sums(x: Any, eps: _Eps, noise: jax.Array) -> jax.Array:
    terms = x[0].shape[1]
    return _noisy(*_sum_of_products("mk,gkn,mg->mn", x, terms, eps), noise)

  def evaluation(both: jax.Array) -> jax.Array:
    gate, up = jnp.split(jnp.abs(both), 2, axis=1)
    return _OPERATIONS * _F32_EPS * (1 + gate) * (2 + up)

  def gated(operands: Any, owners: jax.Array, noise: Any) -> jax.Array:
    both = sums((*operands, owners), eps._replace(out=0.0), noise[0])
    exact = value(both)
    size = evaluation(both) + eps.out * jnp.abs(exact)
    return _noisy(exact, size, noise[1])

  def fwd(*x: Any) -> Any:
    return gated(*x), x

  def bwd(x: Any, dout: jax.Array) -> Any:
    operands, owners, noise = x
    both = sums((*operands, owners), eps, noise[2])
    _, vjp = jax.vjp(value, both)
    (exact,) = vjp(dout)
    size = jnp.abs(dout) * evaluation(both)
    size = jnp.concatenate([size, size], axis=1) + eps.out * jnp.abs(exact)
    dboth = _noisy(exact, size, noise[3])
    grads = _gradients(eps, (*operands, owners, dboth), noise[4:])
    return grads, None, None

  return _custom(gated, fwd, bwd)(operands, owners, noise)


def _custom(
  function: Callable[..., jax.Array],
  fwd: Callable[..., Any],
  bwd: Callable[..., Any],
) -> Callable[..., jax.Array]:
  # `fwd` has to call the plain function, for which jax knows forward mode.
  custom = jax.custom_vjp(function)
  custom.defvjp(fwd, bwd)
  return custom
