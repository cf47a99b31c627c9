"""Which instructions only move data, and what is said of them.

The texts are cut from programs that the TPU compiler wrote.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmm.aot import copies
from gmm.kernels import chip as chips

W = "bf16[8,256,384]{2,1,0:T(8,128)(2,1)}"
W_T = "bf16[8,256,384]{1,2,0:T(8,128)(2,1)}"
BYTES = 8 * 256 * 384 * 2
VMEM = "bf16[8,256,384]{2,1,0:T(8,128)(2,1)S(1)}"
STACK = "bf16[30,8,256,384]{3,2,1,0:T(8,128)(2,1)}"
LAYER = "bf16[1,8,256,384]{3,2,1,0:T(8,128)(2,1)}"


def program(entry, *others):
  """A scheduled module around the lines of its entry computation."""
  lines = ["HloModule jit_f, is_scheduled=true", ""]
  for other in others:
    lines += [*other.strip().splitlines(), ""]
  lines += ["ENTRY %main (w: bf16[]) -> bf16[] {", *entry.splitlines(), "}"]
  return "\n".join(lines)


def found(entry, *others, **options):
  return copies.weight_copies(program(entry, *others), **options)


def one(entry, *others, **options):
  (copy,) = found(entry, *others, **options)
  return copy


def entry(instruction, before=W):
  return f"  %w = {before} parameter(0)\n  ROOT {instruction}"


# ---- plain instructions


def test_a_transposing_copy():
  text = entry(
    f"%copy.2 = {W_T} copy(%w), metadata={{op_name="
    '"jit(f)/transpose" source_file="/me/train.py" source_line=12}, '
    'backend_config={"window_config":{"estimated_cycles":"7760"}}'
  )
  copy = one(text, chip="v6e")
  assert copy == copies.Copy(
    name="copy.2",
    kind="copy",
    moves="relayout",
    computation="main",
    op_name="jit(f)/transpose",
    source="/me/train.py:12",
    shape="bf16[8,256,384]",
    shape_in="bf16[8,256,384]",
    layout_in=(2, 1, 0),
    layout_out=(1, 2, 0),
    memory_in=0,
    memory_out=0,
    bytes=BYTES,
    padded_bytes=BYTES,
    read_bytes=BYTES,
    times=1,
    conditional=False,
    seconds=copy.seconds,
    estimated_cycles=7760,
  )
  assert copy.seconds == pytest.approx(2 * BYTES / (0.7 * 1.64e12))
  assert copy.total_seconds == copy.seconds


T_BITCAST = "%t = bf16[8,384,256]{1,2,0:T(8,128)(2,1)}"
RETILED = "bf16[8,256,384]{2,1,0:T(16,128)(2,1)}"


@pytest.mark.parametrize(
  ("instruction", "moves"),
  [
    (f"%copy = {W} copy(%w)", "copy"),
    (f"%copy = {RETILED} copy(%w)", "relayout"),
    (f"{T_BITCAST} transpose(%w), dimensions={{0,2,1}}", "copy"),
    (
      "%t = bf16[8,384,256]{2,1,0:T(8,128)(2,1)} transpose(%w),"
      " dimensions={0,2,1}",
      "relayout",
    ),
    ("%r = bf16[2048,384]{1,0:T(8,128)(2,1)} reshape(%w)", "reshape"),
    (f"%r = {W} reverse(%w), dimensions={{0}}", "reverse"),
    (
      "%s = bf16[4,256,384]{2,1,0:T(8,128)(2,1)} slice(%w),"
      " slice={[0:4], [0:256], [0:384]}",
      "slice",
    ),
    (
      "%c = bf16[16,256,384]{2,1,0:T(8,128)(2,1)} concatenate(%w, %w),"
      " dimensions={0}",
      "concatenate",
    ),
    ("%c = f32[8,256,384]{1,2,0:T(8,128)} convert(%w)", "convert"),
  ],
)
def test_what_moves_data(instruction, moves):
  copy = one(entry(instruction), min_bytes=BYTES // 2)
  assert copy.moves == moves
  assert copy.kind == instruction.split("(%w")[0].split()[-1]


@pytest.mark.parametrize(
  "instruction",
  [
    f"{T_BITCAST} bitcast(%w)",
    "%c = f32[8,256,384]{2,1,0:T(8,128)} convert(%w)",
    f"%a = {W} add(%w, %w)",
    f'%k = {W_T} custom-call(%w), custom_call_target="tpu_custom_call"',
    f"%g = {W} all-gather(%w), dimensions={{0}}",
    f"%g = ({W}, {W}) all-gather-start(%w), dimensions={{0}}",
    f"%s = {VMEM} copy(%w)",
    f"%s = ({VMEM}, {W}, u32[]{{:S(2)}}) copy-start(%w)",
    f"%s = (({W}), {VMEM}, s32[]{{:S(2)}}) slice-start(%w), slice={{[0:8]}}",
  ],
)
def test_what_works_or_is_free(instruction):
  assert not found(entry(instruction), min_bytes=0)


def test_a_relayout_between_memories_counts():
  copy = one(entry("%c = bf16[8,256,384]{1,2,0:T(8,128)(2,1)S(1)} copy(%w)"))
  assert (copy.memory_in, copy.memory_out, copy.moves) == (0, 1, "relayout")


def test_an_asynchronous_copy_counts_once():
  copy = one(
    f"  %w = {W} parameter(0)\n"
    f"  %s = ({W}, {W}, u32[]{{:S(2)}}) copy-start(%w)\n"
    f"  ROOT %d = {W} copy-done(%s)"
  )
  assert (copy.name, copy.kind, copy.moves) == ("s", "copy-start", "copy")


def test_a_wrapped_asynchronous_copy_counts_once():
  wrapped = f"""
%wrapped (p: bf16[]) -> bf16[] {{
  %p = {W} parameter(0)
  ROOT %copy.9 = {W_T} copy(%p)
}}
"""
  copy = one(
    f"  %w = {W} parameter(0)\n"
    f"  %s = (({W}), {W_T}, s32[]) async-start(%w), calls=%wrapped\n"
    f"  ROOT %d = {W_T} async-done(%s), calls=%wrapped",
    wrapped,
  )
  assert (copy.name, copy.computation) == ("copy.9", "wrapped")


def test_an_update_in_place_counts_the_update():
  copy = one(
    f"  %stack = {STACK} parameter(0)\n  %new = {LAYER} parameter(1)\n"
    "  %i = s32[] parameter(2)\n"
    f"  ROOT %u = {STACK} dynamic-update-slice(%stack, %new, %i, %i, %i, %i)",
  )
  assert (copy.moves, copy.bytes) == ("update", BYTES)
  assert copy.read_bytes == copy.padded_bytes == BYTES


def test_a_small_update_of_a_large_array_is_small():
  text = (
    f"  %stack = {STACK} parameter(0)\n  %new = {LAYER} parameter(1)\n"
    "  %i = s32[] parameter(2)\n"
    f"  ROOT %u = {STACK} dynamic-update-slice(%stack, %new, %i, %i, %i, %i)"
  )
  assert not found(text, min_bytes=BYTES + 1)


@pytest.mark.parametrize(
  "instruction",
  [
    "%c = bf16[1,1024,1024]{2,0,1:T(8,128)(2,1)} copy(%w)",
    "%t = bf16[1024,1,1024]{2,0,1:T(8,128)(2,1)} transpose(%w),"
    " dimensions={1,0,2}",
  ],
)
def test_a_dimension_of_size_one_lies_anywhere(instruction):
  before = "bf16[1,1024,1024]{2,1,0:T(8,128)(2,1)}"
  assert one(entry(instruction, before)).moves == "copy"


def test_a_slice_in_the_order_of_its_stack():
  layer = "bf16[1,8,256,384]{0,3,2,1:T(8,128)(2,1)}"
  text = entry(f"%s = {layer} slice(%w), slice={{[0:1]}}", STACK)
  assert one(text).moves == "slice"


def test_an_update_in_the_order_of_its_stack():
  layer = "bf16[1,8,256,384]{0,3,2,1:T(8,128)(2,1)}"
  text = (
    f"  %stack = {STACK} parameter(0)\n  %new = {layer} parameter(1)\n"
    "  %i = s32[] parameter(2)\n"
    f"  ROOT %u = {STACK} dynamic-update-slice(%stack, %new, %i, %i, %i, %i)"
  )
  assert one(text).moves == "update"


def test_padding_is_paid_for():
  narrow = "bf16[8,256,100]{2,1,0:T(8,128)(2,1)}"
  copy = one(
    entry("%c = bf16[8,256,100]{1,2,0:T(8,128)(2,1)} copy(%w)", narrow),
    min_bytes=8 * 256 * 100 * 2,
    chip="v5p",
  )
  assert copy.bytes == 8 * 256 * 100 * 2
  assert copy.read_bytes == 8 * 256 * 128 * 2
  assert copy.padded_bytes == 8 * 256 * 104 * 2  # 13 whole tiles of 8 rows
  # A v5p device is two cores that share a memory.
  bandwidth = 2 * chips.CHIPS["v5p"].hbm_bytes_per_second
  assert copy.seconds == pytest.approx(8 * 256 * 232 * 2 / (0.7 * bandwidth))


def test_min_bytes_is_the_least_that_counts():
  text = entry(f"%copy = {W_T} copy(%w)")
  assert found(text, min_bytes=BYTES)
  assert not found(text, min_bytes=BYTES + 1)
  assert found(text, min_bytes=np.int64(0))


# ---- the arguments, and a program of one's own


@pytest.mark.parametrize("chip", [None, "v6e"])
def test_times_need_a_chip(chip):
  copy = one(entry(f"%copy = {W_T} copy(%w)"), chip=chip)
  assert (copy.seconds is None) == (chip is None)
  assert (copy.total_seconds is None) == (chip is None)


@pytest.mark.parametrize(
  ("options", "error", "says"),
  [
    ({"min_bytes": -1}, ValueError, "`min_bytes` is -1; want 0 or more"),
    ({"min_bytes": 1.5}, TypeError, "`min_bytes` is 1.5; want a whole"),
    ({"min_bytes": True}, TypeError, "`min_bytes` is True"),
    ({"chip": "v9"}, ValueError, "`chip` is 'v9'; known chips: v4"),
    ({"chip": 6}, TypeError, "`chip` is 6"),
  ],
)
def test_arguments_are_checked(options, error, says):
  with pytest.raises(error, match=says):
    copies.weight_copies(program(entry(f"%c = {W_T} copy(%w)")), **options)


def test_a_compiled_program_of_any_backend():
  def f(stack, x):
    def layer(x, w):
      return jnp.sin(w.T), x.sum()

    return jax.lax.scan(layer, x, stack)

  specs = (
    jax.ShapeDtypeStruct((5, 64, 64), jnp.float32),
    jax.ShapeDtypeStruct((64, 64), jnp.float32),
  )
  compiled = jax.jit(f).lower(*specs).compile()
  listed = copies.weight_copies(compiled, min_bytes=64 * 64 * 4)
  assert listed == copies.weight_copies(
    compiled.as_text(), min_bytes=64 * 64 * 4
  )
  # What the compiler for CPUs copies there is its own affair.
  assert all(copy.seconds is None for copy in listed)
  assert {copy.times for copy in listed} <= {1, 5}
