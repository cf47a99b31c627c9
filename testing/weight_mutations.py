"""Deliberate faults in what scales of weights and biases do."""

from testing.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
  Mutation(
    name="scale_of_another_group",
    file="kernels/gmm_memory.py",
    old="source.at[weights.id, :, old]",
    new="source.at[0, :, old]",
    cases=("out:C14-spans-N-plain-ragged",),
  ),
  Mutation(
    name="scale_of_another_block",
    file="kernels/scales.py",
    old="part *= row(i)",
    new="part *= row(0)",
    cases=("out:C14-spans-N-steep-ragged",),
  ),
  Mutation(
    name="scale_of_another_k_tile",
    file="kernels/scales.py",
    old="return index * (axis.tile // plan.problem.scale_block)",
    new="return 0 * index",
    cases=("out:blocks_in_tiles-N-steep-ragged",),
  ),
  Mutation(
    name="blocks_that_share_lanes_not_told_apart",
    file="kernels/scales.py",
    old="lhs = jnp.where(inside, lhs, jnp.zeros_like(lhs))",
    new="lhs = lhs",
    cases=("out:blocks_in_tiles-T-steep-ragged",),
  ),
  Mutation(
    name="dlhs_scaled_by_the_first_block",
    file="kernels/scales.py",
    old="part = tile.dot(scaled(i), rhs)",
    new="part = tile.dot(scaled(0), rhs)",
    cases=("dlhs:C14-spans-T-steep-ragged",),
  ),
  Mutation(
    name="small_blocks_scaled_by_the_first",
    file="kernels/small_blocks.py",
    old="scale[:whole, None, :]",
    new="scale[:1, None, :]",
    cases=("out:small_blocks-wide-ragged", "dlhs:small_blocks-long-ragged"),
  ),
  Mutation(
    name="every_turn_with_the_first_scales",
    file="kernels/scales.py",
    old="small_blocks.rows_of(tile, turn * count, count, lanes)",
    new="small_blocks.rows_of(tile, turn * 0, count, lanes)",
    cases=("out:small_blocks-T-ragged", "dlhs:small_blocks-T-ragged"),
  ),
  Mutation(
    name="words_of_the_weight_before",
    file="kernels/carriers.py",
    old="buf.turned[...] = buf.rhs[slot].T",
    new="buf.turned[...] = buf.rhs[0].T",
    cases=("out:packed-blocks-T-ragged",),
  ),
  Mutation(
    name="bias_on_rows_of_no_group",
    file="kernels/api.py",
    old="return gmm_call.gmm(plan, operands, extras, interpret)",
    new="return gmm_call.gmm(\n"
    "    plan, operands, extras, interpret\n"
    "  ) + (0 if rhs_bias is None else rhs_bias[0])",
    cases=("out:bias-f32-T-new-short",),
  ),
  Mutation(
    name="bias_added_again_with_existing_out",
    file="kernels/gmm_kernel.py",
    old="value.astype(np.float32) + self.buf.bias[step.rhs_slot, :, n]",
    new="value.astype(np.float32) + self.buf.bias[step.rhs_slot, :, n] * (\n"
    "        2 if self.has_existing else 1\n"
    "      )",
    cases=("out:bias-bf16-N-add-ragged",),
  ),
  Mutation(
    name="bias_gradient_of_another_group",
    file="vjp.py",
    old="return sums[:, 0]",
    new="return sums[::-1, 0]",
    cases=("vjp:bias-bf16-N-new-ragged",),
  ),
)
