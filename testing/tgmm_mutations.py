"""Deliberate faults in the gradient of the weights."""

from testing.mutation import Mutation

# A boundary inside a block, an offset, rows of other shards, several tiles.
_DRHS = ("drhs:C20-offset-N-3", "drhs:C11-tile_m-200by128-off_block")

MUTATIONS: tuple[Mutation, ...] = (
  Mutation(
    name="drhs_rows_after_the_group_not_masked",
    file="kernels/tgmm_kernel.py",
    old="jnp.where(rows < window.hi, last, jnp.zeros_like(last))",
    new="last",
    cases=_DRHS,
  ),
  Mutation(
    name="drhs_rows_before_the_group_not_masked",
    file="kernels/tgmm_kernel.py",
    old="      self.clear_head(window, slot)\n",
    new="      pass\n",
    cases=_DRHS,
  ),
  Mutation(
    name="drhs_windows_not_added_up",
    file="kernels/tgmm_kernel.py",
    old="          value = before + value\n",
    new="          pass\n",
    cases=("drhs:existing-all",),
  ),
  Mutation(
    name="drhs_adds_to_the_group_before",
    file="kernels/tgmm_kernel.py",
    old="before = jnp.where(begin, jnp.zeros_like(value), self.buf.acc[k, n])",
    new="before = self.buf.acc[k, n]",
    cases=_DRHS,
  ),
  Mutation(
    name="drhs_written_to_another_group",
    file="kernels/tgmm_kernel.py",
    old='self.out_copy(out_slot, now.outer, now.id, "start")',
    new='self.out_copy(out_slot, now.outer, now.group, "start")',
    cases=("drhs:C03-empty-first",),
  ),
)
