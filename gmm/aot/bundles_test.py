"""The reader of the TPU compiler's bundles, on a kernel of a few of them.

What a real dump holds is asked for in aot_test, which has a compiler.
"""

import pytest

from gmm.aot import bundles

# Two loops, the inner one with MXU work; one delay slot after a jump. The step
# loop is [2, 12], the chunk loop within it [4, 6].
TEXT = """
= control target key start
LB: loop body
= control target key end

     0   :  { %s1 = inlined_call_operand.hbm [shape: bf16[8,128]] /* operand 0 */ }
   0x1   :  { %s2 = smov.u32 0 }
   0x2 LB: > { %p1 = scmp.lt.s32 %s1, %s2  ;;  %9 = sbr.rel (%p1) target = $region7 } /* Start region 3 :: Start region 4
hlo: name.1
 */ }
   0x3   : > { %s3 = sadd.s32 1, %s2 }
   0x4 LB: >> { %v1 = vld [vmem:[%s1] sm:$0xff]  ;;  %10 = vmatpush1.bf16.xpose.msra.mxu0 %v1 } /* Start region 5 */
   0x5   : >> { %11 = vmatmul.mubr.bf16.gmra.mxu0 %v1  ;;  %12 = vst [vmem:[#allocation9_spill] sm:$0xff] /*vst_source=*/%v1  ;;  %13 = sbr.rel (!%p1) target = $region5 }
   0x6   : >> { %v2 = vld [vmem:[#allocation9_spill] sm:$0xff]  ;;  %14 = sst [smem:[#allocation8_spill]] %s2 }
   0x7 PF: > { %15 = vmatmul.mubr.bf16.gmra.mxu1 %v2 } /* Start/End empty region 7 */
   0x8   : > { %16 = sbr.rel (%p1) target = $region8 }
   0x9   : > { %s4 = sadd.s32 1, %s3 }
   0xa   : > { %s5 = sadd.s32 1, %s4  ;;  %v9 = vxpose.xlu0.c.b16.start %v2 }
   0xb PF: > { %17 = sbr.rel (!%p2) target = $region3 } /* Start/End empty region 8 */
   0xc   : > {}
   0xd PF:  { %18 = vsyncmov [#allocation11] }
"""  # noqa: E501


@pytest.fixture(scope="module")
def code():
  return bundles.Code(bundles.parse(TEXT))


def test_bundles(code):
  assert len(code.bundles) == 14
  third = code.bundles[2]
  assert third.label == "LB"
  assert third.target == 7
  assert third.regions == (3, 4)
  assert not third.always
  assert code.bundles[4].ops == ("vld", "vmatpush1.bf16.xpose.msra.mxu0")
  assert [b.spills for b in code.bundles[4:8]] == [0, 1, 0, 0]
  # A scalar spill is none of the vector registers'.
  assert [b.fills for b in code.bundles[4:8]] == [0, 0, 1, 0]


def test_loops_and_delay_slots(code):
  assert code.delay == 1
  found = [(loop.start, loop.end) for loop in code.loops]
  assert sorted(found) == [(2, 13), (4, 7)]


def test_the_hot_loop_holds_every_vmatmul(code):
  assert (code.hot_loop.start, code.hot_loop.end) == (2, 13)


@pytest.mark.parametrize(
  ("op", "start"), [("dma.done.wait [#allocation3]", 2), ("vpop %v2", 4)]
)
def test_the_hot_loop_waits_for_copies(op, start):
  # All that is multiplied is in the inner loop, which is the product's own.
  text = TEXT.replace("vmatmul.mubr.bf16.gmra.mxu1 %v2", op)
  assert bundles.Code(bundles.parse(text)).hot_loop.start == start


def test_blocks_and_their_depth(code):
  working = [b for b in code.blocks if code.holds_mxu_work(b)]
  assert [(b.start, b.end, code.depth(b)) for b in working] == [
    (4, 7, 2),
    (7, 10, 1),
  ]


def test_the_longest_way_outside_some_blocks(code):
  working = [b for b in code.blocks if code.holds_mxu_work(b)]
  everything = code.hot_loop.bundles
  assert code.longest_way(code.hot_loop, ()) == everything
  # Without the two that work: 2 bundles before, 1 skipped at best, 2 after.
  assert code.longest_way(code.hot_loop, working) == 2 + 1 + 2


def test_a_jump_that_is_always_taken_has_one_way_on():
  text = TEXT.replace(
    "sbr.rel (%p1) target = $region8", "sbr.rel target = $region8"
  )
  code = bundles.Code(bundles.parse(text))
  assert code.longest_way(code.hot_loop, ()) == code.hot_loop.bundles - 1


LISTING = """
  #allocation2 [shape = 'u32[9]{0}', space=smem, size = 0x12000, scoped, tag = 'internal scratch']
  #allocation6 [shape = 'bf16[2,64]{1,0:T(8,128)(2,1)}', space=vmem, size = 0x1000, offset = 0, scoped, tag = 'scratch operand']
    #allocation7 [shape = 'u8[4096]{0}', space=vmem, size = 0x800, offset = 0x1000, scoped, tag = 'spilled vreg/vmreg']
    #allocation8 [shape = 'u8[4096]{0}', space=vmem, size = 0x400, offset = 0x1000, scoped, tag = 'scoped memory for x']
"""  # noqa: E501


def test_vmem_counts_what_overlaps_once():
  found = bundles.vmem(LISTING)
  assert found == bundles.Vmem(total=0x1800, spills=0x800)


# ---- a format that has changed is named, not misread


def test_no_bundles():
  with pytest.raises(bundles.FormatError, match="no bundles"):
    bundles.parse("cycle 0: nop")


def test_a_cut_dump():
  lines = [line for line in TEXT.splitlines() if "0x3 " not in line]
  with pytest.raises(bundles.FormatError, match="0x4 stands where 0x3 belongs"):
    bundles.parse("\n".join(lines))


@pytest.mark.parametrize(
  ("old", "new", "said"),
  [
    ("Start/End empty region 8", "Landing 8", "region 8, which starts nowhere"),
    ("vmatmul", "vdot", "no vmatmul"),
    ("(!%p2) target = $region3", "(!%p2) target = $region8", "no loop holds"),
  ],
)
def test_other_words(old, new, said):
  with pytest.raises(bundles.FormatError, match=said):
    assert bundles.Code(bundles.parse(TEXT.replace(old, new))).hot_loop


def test_no_vmem_in_a_listing():
  with pytest.raises(bundles.FormatError, match="no VMEM"):
    bundles.vmem("#allocation6 4096 bytes of vmem")
