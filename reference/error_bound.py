"""How far a correct implementation may be from the oracle.

    bound = (terms * acc_eps + operand_eps) * magnitude
            + out_eps * |expected| + out_floor

`magnitude` is the same product of absolute values, `|lhs| @ |rhs|` (plus
`|existing_out|`). The caller passes every eps, as NumPy does not know the
narrow formats. Nothing here is tuned. With u = eps / 2 for one rounding to
nearest:

1. A sum of `terms` products, each rounded, in any order and any tree, is off by
   at most ((1 + u)^terms - 1) * magnitude [Higham, Accuracy and Stability of
   Numerical Algorithms, 3.1], under 1.01 * terms * u * magnitude while
   terms * u < 0.01. `existing_out` is one more term.
2. Operands rounded before the multiplication (float32 that the MXU takes as
   bfloat16 at default precision) move a product by 2u + u^2 in relative terms;
   `operand_eps` is the sum of the eps of the two, 0 where widening is exact.
   Widening is: bfloat16 holds int8 and both float8, float32 holds bfloat16.
3. One rounding of what was computed, at most u_out * (|expected| + the error
   so far), and half the distance of subnormals, `out_floor`, near zero (all of
   the smallest normal number where subnormals are flushed).

The formula takes eps where u would do. The factor of two pays for the second
order terms, for step 3's rounding of the error itself (u_out <= 1/8 even for
float8_e5m2), and for hardware that truncates; it is not a margin for mistakes.
Integers that are accumulated exactly have acc_eps = 0: the bound is then zero,
or one rounding of the result.

Where `magnitude` is zero nothing is added up, and the bound is zero: rows of no
group and gradients of empty groups are exact.
"""

import numpy as np
from numpy.typing import ArrayLike


def error_bound(
  expected: ArrayLike,
  magnitude: ArrayLike,
  *,
  terms: ArrayLike,
  acc_eps: float,
  out_eps: float,
  operand_eps: float = 0.0,
  out_floor: float = 0.0,
) -> np.ndarray:
  """Returns the largest error of a correct result, element by element.

  Args:
    expected: the oracle's result.
    magnitude: the oracle's result on absolute values; same shape.
    terms: how many numbers are added up for an element; broadcasts.
    acc_eps: machine epsilon of the accumulator, 0 for exact integers.
    out_eps: machine epsilon of the result, 0 where it is the accumulator.
    operand_eps: eps of the rounding of lhs plus that of rhs, 0 for none.
    out_floor: error of the result's format near zero.

  Returns:
    float64, in the shape of `expected`.
  """
  expected = np.asarray(expected, np.float64)
  magnitude = np.asarray(magnitude, np.float64)
  relative = np.asarray(terms, np.float64) * acc_eps + operand_eps
  rounding = out_eps * np.abs(expected) + out_floor
  return np.where(magnitude > 0, relative * magnitude + rounding, 0.0)
