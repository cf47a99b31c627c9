"""Deliberate faults in what computes gate and up."""

from testing.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
  Mutation(
    name="gate_and_up_swapped",
    file="kernels/gated_kernel.py",
    old="activations.apply(self.activation, *sums)",
    new="activations.apply(self.activation, *sums[::-1])",
    cases=("gated:aligned-ragged-middle-nan",),
  ),
  Mutation(
    name="up_read_where_gate_is",
    file="kernels/gated_memory.py",
    old="    start = old.start + size\n",
    new="    start = old.start\n",
    cases=("gated:aligned-ragged-middle-nan",),
  ),
  Mutation(
    name="up_cut_off_where_gate_is",
    file="kernels/gated_kernel.py",
    old="up = self.buf.acc[pl.ds(*at), pl.ds(size + n.start, n.size)]",
    new="up = self.buf.acc[pl.ds(*at), pl.ds(n.start, n.size)]",
    cases=("gated:wide_rows-ragged-middle-nan",),
  ),
  Mutation(
    name="second_k_tile_of_up_not_added",
    file="kernels/gated_kernel.py",
    old="        self.buf.acc[columns] = before + value\n",
    new="        self.buf.acc[columns] = before + (value if i == 0 else 0)\n",
    cases=("gated:split_k_tiles-ragged-middle-nan",),
  ),
  Mutation(
    name="activation_of_rows_of_no_group",
    file="xla_gated.py",
    old="    mask = mask[:, None] & columns[None, :]\n",
    new="    mask = (mask | True)[:, None] & columns[None, :]\n",
    cases=("gated_vjp:wide_rows-short-last-huge",),
  ),
  Mutation(
    name="half_of_a_sum",
    file="kernels/gated_kernel.py",
    old="      fn(n, (first + second,))\n",
    new="      fn(n, (first,))\n",
    cases=("gated:split_k_tiles-ragged-middle-nan",),
  ),
  Mutation(
    name="second_result_not_zeroed",
    file="kernels/gated_kernel.py",
    old="return _Fills(super().fill(out), super().fill(second))",
    new="return _Fills(super().fill(out), super().fill(out))",
    cases=("gated:split_k_tiles-ragged-middle-nan",),
  ),
  Mutation(
    name="gradient_of_up_is_that_of_gate",
    file="split.py",
    old="(0, d), p) for d in douts)",
    new="(0, douts[0]), p) for _ in douts)",
    cases=("gated_vjp:split_k_tiles-ragged-middle-nan",),
  ),
  Mutation(
    name="up_scaled_as_gate_is",
    file="kernels/gated_kernel.py",
    old="      half, lanes = self.rows_at(i, n)\n",
    new="      half, lanes = self.rows_at(0, n)\n",
    cases=("gated:channel-ragged-middle-nan",),
  ),
  Mutation(
    name="bias_of_up_where_that_of_gate_is",
    file="kernels/gated_kernel.py",
    old="pl.ds(i * self.plan.problem.n + n.start, n.size)",
    new="pl.ds(n.start, n.size)",
    cases=("gated:wide_bias-ragged-middle-nan",),
  ),
  Mutation(
    name="cotangent_of_up_scaled_as_that_of_gate",
    file="kernels/scales.py",
    old="_product_of(tile, (one, lhs), k, n)",
    new="_product_of(tile, (one, scaled[0]), k, n)",
    cases=("gated:split_blocks-ragged-middle-nan",),
  ),
  Mutation(
    name="bias_gradient_of_up_is_that_of_gate",
    file="split.py",
    old="zip(bias, douts, strict=False)",
    new="zip(bias, douts[:1] * 2, strict=False)",
    cases=("gated_vjp:split_blocks-ragged-middle-nan",),
  ),
)
