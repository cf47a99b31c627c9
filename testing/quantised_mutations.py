"""Deliberate faults in what is quantised for gradients."""

from testing.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
  Mutation(
    name="scales_of_the_first_lhs_tile",
    file="kernels/tgmm_kernel.py",
    old="tgmm_scales.spread(self.buf.scales, self.plan.k.start(k_tile))",
    new="tgmm_scales.spread(self.buf.scales, 0)",
    cases=("tgmm:e4m3",),
  ),
  Mutation(
    name="scales_of_the_first_dout_tile",
    file="kernels/tgmm_kernel.py",
    old="columns = pl.ds(self.plan.n.start(n_tile) + n.start, n.size)",
    new="columns = pl.ds(n.start, n.size)",
    cases=("tgmm:e4m3",),
  ),
  Mutation(
    name="scales_not_exchanged_with_their_operands",
    file="kernels/api.py",
    old="    scales.reverse()\n",
    new="    pass\n",
    cases=("tgmm:i8-transposed",),
  ),
  Mutation(
    name="rows_of_no_group_have_a_say_in_scales",
    file="straight_through.py",
    old="jnp.where(local, rows.astype(jnp.float32), 0)",
    new="jnp.where(local | True, rows.astype(jnp.float32), 0)",
    cases=("way:e5m2",),
  ),
  Mutation(
    name="rows_of_the_first_shard_have_a_say_in_scales",
    file="straight_through.py",
    old="(row >= bounds[offset[0]])",
    new="(row >= 0)",
    cases=("way:e5m2",),
  ),
  Mutation(
    name="dlhs_without_the_cotangent_s_scale",
    file="vjp.py",
    old="x, lhs=quantised, lhs_scale=scale, lhs_real=dout)",
    new="x, lhs=quantised, lhs_real=dout)",
    cases=("way:i4-e4m3_channel",),
  ),
  Mutation(
    name="lhs_not_quantised_for_drhs",
    file="straight_through.py",
    old='if own is None or (own.kind == "i") != (dout.dtype == "int8"):',
    new="if True:",
    cases=("way:all_i8",),
  ),
  Mutation(
    name="blocks_of_a_weight_not_asked_for",
    file="quantization.py",
    old="  blocks = k // how.block if how.block and k else 1\n",
    new="  blocks = 1\n",
    cases=("way:i4-e4m3_channel",),
  ),
)
