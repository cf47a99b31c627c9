"""Which fusions only move data, and how.

The texts are cut from programs that the TPU compiler wrote.
"""

import pytest

from gmm.aot import copies

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


def fused(lines, parameters=(W,)):
  heads = [f"  %p.{i} = {p} parameter({i})" for i, p in enumerate(parameters)]
  return "\n".join(["%fused (p: bf16[]) -> bf16[] {", *heads, lines, "}"])


def fusion(result, lines, parameters=(W,)):
  heads = [f"  %w.{i} = {p} parameter({i})" for i, p in enumerate(parameters)]
  operands = ", ".join(f"%w.{i}" for i in range(len(parameters)))
  call = f"  ROOT %f = {result} fusion({operands}), kind=kLoop, calls=%fused"
  return found("\n".join([*heads, call]), fused(lines, parameters))


def test_a_fusion_that_transposes():
  (copy,) = fusion(
    "bf16[8,384,256]{2,1,0:T(8,128)(2,1)}",
    "  %t = bf16[8,384,256]{2,1,0} transpose(%p.0), dimensions={0,2,1}\n"
    "  ROOT %b = bf16[8,384,256]{2,1,0} bitcast(%t)",
  )
  assert (copy.name, copy.kind, copy.moves) == ("f", "fusion", "relayout")


@pytest.mark.parametrize(
  ("result", "count"), [(W, 1), (VMEM, 0)], ids=["to_hbm", "to_vmem"]
)
def test_a_layer_cut_out_of_a_stack(result, count):
  # How the index comes about does not matter, though it is arithmetic.
  cut = fusion(
    result,
    "  %c = s32[] constant(1)\n  %i = s32[] add(%p.1, %c)\n"
    f"  %d = {LAYER} dynamic-slice(%p.0, %i, %c, %c, %c)\n"
    f"  ROOT %b = {result} bitcast(%d)",
    (STACK, "s32[]"),
  )
  assert len(cut) == count
  for copy in cut:
    assert copy.moves == "slice"
    assert copy.shape_in == "bf16[30,8,256,384]"
    assert copy.read_bytes == copy.bytes == BYTES


def test_a_gradient_written_into_a_stack():
  (copy,) = fusion(
    STACK,
    f"  %c = s32[] constant(1)\n  %b = {LAYER} bitcast(%p.0)\n"
    f"  ROOT %u = {STACK} dynamic-update-slice(%p.1, %b, %c, %c, %c, %c)",
    (W, STACK),
  )
  assert (copy.moves, copy.bytes) == ("update", BYTES)
  assert copy.shape == "bf16[1,8,256,384]"
  assert copy.shape_in == "bf16[8,256,384]"


def test_an_update_of_what_the_fusion_fills_writes_all_of_it():
  (copy,) = fusion(
    STACK,
    f"  %z = bf16[] constant(0)\n  %s = {STACK} broadcast(%z)\n"
    f"  %c = s32[] constant(1)\n  %b = {LAYER} bitcast(%p.0)\n"
    f"  ROOT %u = {STACK} dynamic-update-slice(%s, %b, %c, %c, %c, %c)",
  )
  assert (copy.moves, copy.bytes) == ("update", 30 * BYTES)
  assert copy.read_bytes == BYTES


CAST = "f32[8,256,384]{2,1,0:T(8,128)}"
CAST_T = "f32[8,256,384]{1,2,0:T(8,128)}"
WIDE = "bf16[16,256,384]{2,1,0:T(8,128)(2,1)}"


@pytest.mark.parametrize(
  ("result", "lines", "moves"),
  [
    (W, f"  ROOT %a = {W} add(%p.0, %p.0)", None),
    (CAST, f"  ROOT %c = {CAST} convert(%p.0)", None),
    (
      CAST_T,
      f"  %c = {CAST} convert(%p.0)\n  ROOT %t = {CAST_T} copy(%c)",
      "convert",
    ),
    (  # there and back again
      W_T,
      f"  %c = {CAST} convert(%p.0)\n  %t = {CAST_T} copy(%c)\n"
      f"  ROOT %r = {W_T} convert(%t)",
      "relayout",
    ),
    (  # rounds
      W,
      f"  %c = f8e5m2[8,256,384]{{2,1,0}} convert(%p.0)\n"
      f"  %t = f8e5m2[8,256,384]{{2,1,0}} copy(%c)\n"
      f"  ROOT %r = {W} convert(%t)",
      None,
    ),
    (
      WIDE,
      f"  %z = bf16[] constant(0)\n  ROOT %p = {WIDE} pad(%p.0, %z),"
      " padding=0_8x0_0x0_0",
      "pad",
    ),
    (  # as TPUs concatenate
      WIDE,
      "  %z = bf16[] constant(-inf)\n"
      f"  %a = {WIDE} pad(%p.0, %z), padding=0_8x0_0x0_0\n"
      f"  %b = {WIDE} pad(%p.0, %z), padding=8_0x0_0x0_0\n"
      f"  ROOT %m = {WIDE} maximum(%a, %b)",
      "concatenate",
    ),
    (W, f"  ROOT %m = {W} maximum(%p.0, %p.0)", None),
    (  # with zeros
      WIDE,
      f"  %z = bf16[] constant(0)\n  %b = {W} broadcast(%z)\n"
      f"  ROOT %c = {WIDE} concatenate(%p.0, %b), dimensions={{0}}",
      "concatenate",
    ),
    (  # with a copy of one group for each
      WIDE,
      "  %s = bf16[1,256,384]{2,1,0} slice(%p.0), slice={[0:1]}\n"
      f"  %b = {W} broadcast(%s), dimensions={{0,1,2}}\n"
      f"  ROOT %c = {WIDE} concatenate(%p.0, %b), dimensions={{0}}",
      None,
    ),
    (
      W,
      f"  %z = bf16[] constant(0)\n  ROOT %b = {W} broadcast(%z)",
      None,
    ),
  ],
)
def test_what_a_fusion_does(result, lines, moves):
  assert [copy.moves for copy in fusion(result, lines)] == (
    [moves] if moves else []
  )


def test_one_result_of_a_fusion_that_only_moves():
  (copy,) = fusion(
    f"({W}, {W_T})",
    f"  %a = {W} add(%p.0, %p.0)\n  %c = {W_T} copy(%p.0)\n"
    f"  ROOT %t = ({W}, {W_T}) tuple(%a, %c)",
  )
  assert copy.layout_out == (1, 2, 0)


def test_a_fusion_within_a_fusion():
  inner = f"""
%inner (q: bf16[]) -> bf16[] {{
  %q = {W} parameter(0)
  ROOT %c = {W_T} copy(%q)
}}
"""
  outer = fused(f"  ROOT %f = {W_T} fusion(%p.0), kind=kLoop, calls=%inner")
  (copy,) = found(
    f"  %w = {W} parameter(0)\n"
    f"  ROOT %f = {W_T} fusion(%w), kind=kLoop, calls=%fused",
    inner,
    outer,
  )
  assert copy.moves == "relayout"
