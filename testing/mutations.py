"""Deliberate faults in the kernels, each of which the matrix must catch.

A test suite that passes says little unless it fails for a wrong kernel. Each
mutation changes one expression of a copy of the package and runs a few cases of
the table in a process of its own; `mutations_test` asks for a failure. Text
that is not found exactly once is an error, so that no mutation goes stale
unseen.

This file is the process, too: `python mutations.py FOLDER CASE...` runs cases
with the package in FOLDER. `out:name`, `dlhs:name` and `drhs:name` are one
interpreted product of a case of the table; `vjp:name` is `ops.gmm` with XLA.
`gated:name` and `gated_vjp:name` are the same of the table of gate and up,
`lhs_out:name` and `lhs_vjp:name` of that of a quantised lhs.
`tgmm:name` is an interpreted product of `tgmm_scales`, and `way:name` one of
`quantised_way` with XLA.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from testing import (
  gated_mutations,
  lhs_mutations,
  quantised_mutations,
  tgmm_mutations,
  weight_mutations,
)
from testing.mutation import Mutation

_ROOT = pathlib.Path(__file__).parent.parent
_PASSED, _CAUGHT = 10, 11
_TIMEOUT_S = 120

# What most mutations need: results with a boundary inside a block, an offset,
# empty groups, rows of other shards, several tiles.
_OUT = ("out:C20-offset-N-3", "out:existing-ragged")


MUTATIONS: tuple[Mutation, ...] = (
  # ---- which rows belong to which group
  Mutation(
    name="weights_of_the_first_shard",
    file="kernels/grid.py",
    old="table.ids[groups] = i - offset",
    new="table.ids[groups] = i",
    cases=("drhs:C20-offset-N-3",),
  ),
  Mutation(
    name="rows_of_the_first_shard",
    file="kernels/grid.py",
    old="first = lax.fori_loop(0, offset, before, np.int32(0))",
    new="first = np.int32(0)",
    cases=_OUT,
  ),
  Mutation(
    name="one_shard_takes_the_next_groups",
    file="kernels/grid.py",
    old="end_group = jnp.minimum(offset + self.g, self.g_total)",
    new="end_group = self.g_total",
    cases=_OUT,
  ),
  Mutation(
    name="groups_not_clipped_at_m",
    file="kernels/grid.py",
    old="end = row + jnp.minimum(sizes_ref[i], self.m - row)",
    new="end = row + sizes_ref[i]",
    cases=("out:counts-too_many",),
  ),
  Mutation(
    name="window_of_a_straddling_group_lost",
    file="kernels/grid.py",
    old="span = self.ceil(end) - self.floor(start) - self.block",
    new="span = end - start - self.block",
    cases=("out:straddle-one_more",),
  ),
  Mutation(
    name="window_starts_at_the_group",
    file="kernels/grid.py",
    old="visit.tile * visit.stride\n    start = pl.multiple_of",
    new="visit.tile * visit.stride + self.block\n    start = pl.multiple_of",
    cases=_OUT,
  ),
  Mutation(
    name="next_group_after_each_window",
    file="kernels/grid.py",
    old="group = jnp.where(end_group, 0, visit.group + step(end_tile))",
    new="group = jnp.where(end_group, 0, visit.group + step(end_inner))",
    cases=("out:existing-all",),
  ),
  # ---- products of a window
  Mutation(
    name="whole_chunks_rounded_down",
    file="kernels/products.py",
    old="lax.div(left + (chunk - 1), chunk)",
    new="lax.div(left, chunk)",
    cases=("out:long-N-40x72-short_ends",),
  ),
  Mutation(
    name="end_that_is_just_long_enough_left_out",
    file="kernels/products.py",
    old="lax.cond, left <= most, shorter, call",
    new="lax.cond, left >= most, shorter, call",
    cases=("out:long-N-40x72-short_ends",),
  ),
  Mutation(
    name="chunks_after_a_run_start_over",
    file="kernels/products.py",
    old="  return start + count * rows\n",
    new="  return start\n",
    cases=("out:long-N-40x72-whole",),
  ),
  # ---- tiles
  Mutation(
    name="last_tile_read_from_the_start",
    file="kernels/grid.py",
    old="fn(pl.ds(final * self.tile, last), pl.ds(0, last))",
    new="fn(pl.ds(0, last), pl.ds(0, last))",
    cases=("out:existing-ragged",),
  ),
  Mutation(
    name="k_and_n_tiles_swapped",
    file="kernels/tgmm_kernel.py",
    old="return lax.rem(outer, count), lax.div(outer, count)",
    new="return lax.div(outer, count), lax.rem(outer, count)",
    cases=("drhs:C01-k_tail-320",),
  ),
  Mutation(
    name="k_tail_multiplied_as_a_whole_tile",
    file="kernels/gmm_kernel.py",
    old="functools.partial(self.part_of_k, step, k.size)",
    new="functools.partial(self.part_of_k, step, self.plan.tile_k)",
    cases=("out:existing-ragged",),
  ),
  Mutation(
    name="k_tiles_not_added_up",
    file="kernels/gmm_kernel.py",
    old="self.buf.acc[pl.ds(*at), n] = before + value",
    new="self.buf.acc[pl.ds(*at), n] = value",
    cases=("out:existing-ragged",),
  ),
  Mutation(
    name="first_k_tile_adds_to_scratch",
    file="kernels/gmm_kernel.py",
    old="step.now.inner == 0, jnp.zeros_like(value)",
    new="step.now.inner < 0, jnp.zeros_like(value)",
    cases=("out:existing-ragged",),
  ),
  Mutation(
    name="weight_of_another_group",
    file="kernels/gmm_kernel.py",
    old="Weights(self.buf.table.ids[group], outer, 0, slot)",
    new="Weights(group, outer, 0, slot)",
    cases=("out:C03-empty-first",),
  ),
  Mutation(
    name="weight_ahead_into_the_buffer_in_use",
    file="kernels/gmm_kernel.py",
    old="outer, group, slot = step.ahead\n",
    new="outer, group, slot = step.ahead\n    slot = step.rhs_slot\n",
    cases=_OUT,
  ),
  Mutation(
    name="window_without_its_slack",
    file="kernels/grid.py",
    old="<= visit.stride + self.block",
    new="<= visit.stride",
    cases=("out:straddle-two_chunks",),
  ),
  # ---- edges of groups
  Mutation(
    name="rows_after_the_group_not_masked",
    file="kernels/gmm_kernel.py",
    old="mended = jnp.where(inside, buf.out[at], self.unowned(slot, first))",
    new="mended = buf.out[at]",
    cases=("out:C06-past_the_sum-f32-N-nan",),
  ),
  Mutation(
    name="rows_before_the_group_not_kept",
    file="kernels/gmm_kernel.py",
    old="buf.out[at] = jnp.where(before, buf.carry[...], buf.out[at])",
    new="buf.out[at] = buf.out[at]",
    cases=_OUT,
  ),
  Mutation(
    name="shared_block_not_carried_on",
    file="kernels/gmm_kernel.py",
    old="      buf.carry[...] = mended\n",
    new="",
    cases=("out:C09-few_rows-inside",),
  ),
  Mutation(
    name="carry_of_the_first_group_not_set",
    file="kernels/gmm_kernel.py",
    old="        buf.carry[...] = self.unowned(slot, 0)\n",
    new="        pass\n",
    cases=_OUT,
  ),
  Mutation(
    name="last_block_not_written",
    file="kernels/gmm_kernel.py",
    old="jnp.where(is_last, window.rows, jnp.minimum(whole, window.rows))",
    new="jnp.minimum(whole, window.rows)",
    cases=_OUT,
  ),
  Mutation(
    name="one_row_too_many_before_the_group",
    file="kernels/gmm_kernel.py",
    old="before = grid.block_rows(block, window.start) < window.lo",
    new="before = grid.block_rows(block, window.start) <= window.lo",
    cases=_OUT,
  ),
  Mutation(
    name="existing_out_not_added",
    file="kernels/gmm_kernel.py",
    old="value = value.astype(wide) + existing",
    new="value = value.astype(wide)",
    cases=("out:existing-ragged",),
  ),
  Mutation(
    name="existing_out_lost_outside",
    file="kernels/gmm_kernel.py",
    old="    if self.has_existing:\n      return self.buf.existing",
    new="    if False:\n      return self.buf.existing",
    cases=("out:existing-ragged",),
  ),
  # ---- zeros
  Mutation(
    name="rows_before_the_shard_not_zeroed",
    file="kernels/zeros.py",
    old="    self._region(np.int32(0), before, num_cores, act)\n",
    new="",
    cases=_OUT,
  ),
  Mutation(
    name="rows_after_the_shard_not_zeroed",
    file="kernels/zeros.py",
    old="    self._region(after, np.int32(self.rows.m), num_cores, act)\n",
    new="",
    cases=_OUT,
  ),
  Mutation(
    name="empty_groups_not_zeroed",
    file="kernels/zeros.py",
    old="return lax.fori_loop(first, end, fill, filled)",
    new="return filled",
    cases=("drhs:C03-empty-between",),
  ),
  Mutation(
    name="last_empty_groups_not_zeroed",
    file="kernels/zeros.py",
    old="return lax.fori_loop(0, self.groups + 1, gap, np.int32(0))",
    new="return lax.fori_loop(0, self.groups, gap, np.int32(0))",
    cases=("drhs:C03-empty-between",),
  ),
  # ---- copies that nobody waits for
  Mutation(
    name="operands_not_waited_for",
    file="kernels/gmm_memory.py",
    old='    self.copy_lhs(step, "wait")\n',
    new="",
    cases=("out:C09-few_rows-inside",),
  ),
  Mutation(
    name="out_buffer_used_again_too_early",
    file="kernels/gmm_kernel.py",
    old="    self.memory.wait_sent(step.pending, step.out_slot)\n",
    new="    pass\n",
    cases=("out:C11-tile_m-256by96-ragged",),
  ),
  # ---- gradients
  Mutation(
    name="gradients_of_the_first_shard",
    file="vjp.py",
    old="return (_tgmm if is_tgmm else _gmm)(plan, x)",
    new="x = dataclasses.replace(x, offset=jnp.zeros_like(x.offset))\n"
    "  return (_tgmm if is_tgmm else _gmm)(plan, x)",
    cases=("vjp:C20-offset-T-3",),
  ),
  Mutation(
    name="existing_out_has_no_gradient",
    file="vjp.py",
    old="existing = dout if p.has_existing else None",
    new="existing = jnp.zeros_like(dout) if p.has_existing else None",
    cases=("vjp:existing-ragged",),
  ),
  *tgmm_mutations.MUTATIONS,
  *weight_mutations.MUTATIONS,
  *gated_mutations.MUTATIONS,
  *lhs_mutations.MUTATIONS,
  *quantised_mutations.MUTATIONS,
)


def apply(mutation: Mutation, package: pathlib.Path) -> None:
  """Changes a copied `gmm`; ValueError if the text is not there once."""
  path = package / mutation.file
  text = path.read_text()
  found = text.count(mutation.old)
  if found != 1:
    raise ValueError(
      f"mutation {mutation.name} is stale: its text is {found} times in "
      f"{mutation.file}, not once: {mutation.old!r}"
    )
  path.write_text(text.replace(mutation.old, mutation.new))


def copy_package(folder: pathlib.Path) -> pathlib.Path:
  """Copies the sources of `gmm` into a folder; returns the copy."""
  package = folder / "gmm"
  ignored = shutil.ignore_patterns("*_test.py", "__pycache__", "BUILD")
  # Bazel's sources are links: a copy must not lead back to them.
  shutil.copytree(_ROOT / "gmm", package, ignore=ignored, symlinks=False)
  return package


def catches(
  folder: pathlib.Path, cases: tuple[str, ...], timeout_s: int = _TIMEOUT_S
) -> tuple[bool, str]:
  """Runs cases (see `Mutation`) with the package `gmm` in a folder.

  Args:
    folder: that holds `gmm`.
    cases: to run, one after the other.
    timeout_s: seconds for all of them; more is a failure, too.

  Returns:
    Whether one failed, and what the process printed.

  Raises:
    RuntimeError: the cases could not be run: neither passed nor failed.
  """
  # The folder comes first, so that `gmm` is the copy and the rest is not.
  paths = [str(folder), str(_ROOT), *filter(None, sys.path)]
  env = os.environ | {
    "PYTHONPATH": os.pathsep.join(paths),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONSAFEPATH": "1",
    "JAX_PLATFORMS": "cpu",
  }
  command = [sys.executable, __file__, str(folder), *cases]
  try:
    done = subprocess.run(
      command,
      env=env,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=timeout_s,
      check=False,
    )
  except subprocess.TimeoutExpired:
    return True, f"did not end within {timeout_s} s"
  if done.returncode not in (_PASSED, _CAUGHT):
    raise RuntimeError(f"exit status {done.returncode}:\n{done.stdout}")
  return done.returncode == _CAUGHT, done.stdout


def _run_cases(folder: str, wanted: list[str]) -> int:
  import jax

  import gmm
  from testing import (
    cases,
    gated_cases,
    gated_harness,
    harness,
    lhs_cases,
    quantised_way,
    tgmm_scales,
  )

  if not pathlib.Path(gmm.__file__).is_relative_to(folder):
    raise RuntimeError(f"gmm is {gmm.__file__}, not the one in {folder}")
  by_name = {case.name: case for case in cases.CASES}
  by_name |= {case.name: case for case in gated_cases.CASES}
  by_name |= {case.name: case for case in lhs_cases.CASES}
  quantised = {
    "tgmm": lambda name: tgmm_scales.check_all(name, "interpret"),
    "way": lambda name: quantised_way.check_all(name, "xla"),
  }
  for one in wanted:
    result, name = one.removeprefix("lhs_").split(":")
    case = by_name.get(name)
    try:
      if result in quantised:
        quantised[result](name)
        print(f"{one}: passed")
        continue
      if result == "gated":
        results = gated_harness.run_kernels(case, "interpret")
      elif result == "gated_vjp":
        results = gated_harness.run_vjp(case, "xla")
      elif result == "vjp":
        results = harness.run_vjp(case, "xla")
      else:
        results = harness.run_products(case, "interpret", names=(result,))
      (gated_harness if "gated" in result else harness).check(case, results)
    except (AssertionError, jax.errors.JaxRuntimeError) as error:
      print(f"{one}: {type(error).__name__}: {str(error)[:600]}")
      return _CAUGHT
    print(f"{one}: passed")
  return _PASSED


if __name__ == "__main__":
  sys.exit(_run_cases(sys.argv[1], sys.argv[2:]))
