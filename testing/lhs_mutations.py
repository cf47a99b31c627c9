"""Deliberate faults in what scales and quantises lhs."""

from testing.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
  Mutation(
    name="scales_of_the_register_before",
    file="kernels/row_scales.py",
    old="jnp.where(lane == wanted - lanes, after, spread)",
    new="jnp.where(lane == wanted - lanes, row, spread)",
    cases=("lhs_out:given-many_rows-70_190_0_44",),
  ),
  Mutation(
    name="scale_of_the_first_block_of_lhs",
    file="kernels/quantizing.py",
    old="part *= self.by_row[i]",
    new="part *= self.by_row[0]",
    cases=("lhs_out:to-i8-blocks-T-ragged-plain",),
  ),
  Mutation(
    name="each_tile_of_many_blocks_starts_anew",
    file="kernels/quantizing.py",
    old="jnp.logical_and(tile.inner == 0, i == 0)",
    new="i == 0",
    cases=("lhs_out:many-e4m3-tiles-ragged-plain",),
  ),
  Mutation(
    name="blocks_after_the_loop_take_the_first_scales",
    file="kernels/scales.py",
    old="tile.row(first + i, lanes)",
    new="tile.row(i, lanes)",
    cases=("lhs_out:many-i8-T-ragged-plain",),
  ),
  Mutation(
    name="faint_rows_divided_by_nothing",
    file="quantization.py",
    old="jnp.where(faint, np.float32(0), top / amax)",
    new="top / amax",
    cases=("lhs_vjp:to-e5m2-T-ragged-faint",),
  ),
  Mutation(
    name="gradient_of_a_weight_without_the_scale_of_lhs",
    file="vjp.py",
    old="    dout = _scaled(dout, x.lhs_scale)\n",
    new="",
    cases=("lhs_vjp:given-i8_bf16-row-ragged-plain",),
  ),
)
