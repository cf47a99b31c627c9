"""Reading HLO text: what it may look like, and what is refused."""

import jax
import jax.numpy as jnp
import pytest

from gmm.aot import hlo, shapes

MODULE = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={()->f32[]}

FileNames
1 "src/train.py"
2 "src/model.py"

FunctionNames
1 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=38 end_line=38 column=4}
2 {file_name_id=2 function_name_id=1 line=12 end_line=12 column=4}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}


%fused (p.0: bf16[8,4]) -> bf16[8,4] {
  %p.0 = bf16[8,4]{0,1:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %copy.1 = bf16[8,4]{1,0:T(8,128)(2,1)} copy(%p.0)
}

ENTRY %main.8 (w.5: bf16[8,4], s.1: s32[]) -> (bf16[8,4], /*index=1*/s32[]) {
  %s.1 = s32[]{:T(128)} parameter(1), metadata={op_name="state[\\'step\\']"}
  %w.5 = bf16[8,4]{0,1:T(8,128)(2,1)} parameter(0)
  %gmm_v2-nn-g_8.17 = bf16[8,4]{1,0:T(8,128)(2,1)} custom-call(%w.5, \
/*index=1*/%s.1), custom_call_target="tpu_custom_call", \
frontend_attributes={kernel_metadata={
"tiles.tile_k":"256",
"tiles.tile_n":"calls=%nothing, (((("
}}, metadata={op_name="jit(f)/gmm" stack_frame_id=2}, backend_config={}
  %fusion.1 = bf16[8,4]{1,0} fusion(%w.5), kind=kLoop, calls=%fused, \
metadata={op_name="old" source_file="/a/b.py" source_line=7}
  ROOT %tuple.6 = (bf16[8,4]{1,0:T(8,128)(2,1)}, /*index=1*/s32[]{:T(128)}) \
tuple(%gmm_v2-nn-g_8.17, %s.1)
}
"""


@pytest.fixture
def module():
  (module,) = hlo.parse(MODULE)
  return module


def test_computations_and_their_instructions(module):
  assert module.name == "jit_f"
  assert list(module.computations) == ["fused", "main.8"]
  assert module.entry is module.computations["main.8"]
  assert module.entry.root.opcode == "tuple"
  assert [i.name for i in module.entry.operands(module.entry.root)] == [
    "gmm_v2-nn-g_8.17",
    "s.1",
  ]
  fusion = module.entry.instructions["fusion.1"]
  assert fusion.attribute("calls") == "fused"
  assert fusion.attribute("dimensions") is None


def test_an_instruction_may_span_lines(module):
  kernel = module.entry.instructions["gmm_v2-nn-g_8.17"]
  assert kernel.operands == ("w.5", "s.1")
  assert kernel.attribute("calls") is None
  assert kernel.op_name == "jit(f)/gmm"


@pytest.mark.parametrize(
  ("name", "source"),
  [
    ("gmm_v2-nn-g_8.17", "src/model.py:12"),
    ("fusion.1", "/a/b.py:7"),
    ("w.5", None),
  ],
)
def test_source_lines_in_both_forms(module, name, source):
  assert module.source(module.entry.instructions[name]) == source


def test_text_without_percent_signs(module):
  (plain,) = hlo.parse(MODULE.replace("%", ""))
  root = plain.entry.root
  assert root.operands == module.entry.root.operands
  assert plain.entry.instructions["fusion.1"].attribute("calls") == "fused"


def test_entry_layouts(module):
  weight, step = hlo.entry_layouts(MODULE)
  assert weight == hlo.EntryLayout(
    name="w.5", dtype="bf16", dims=(8, 4), minor_to_major=(0, 1)
  )
  assert (step.name, step.dims) == ("state['step']", ())


def test_a_compiled_program():
  def f(weights):
    return weights["up"] @ weights["down"]

  spec = {
    "up": jax.ShapeDtypeStruct((8, 4), jnp.float32),
    "down": jax.ShapeDtypeStruct((4, 2), jnp.float32),
  }
  compiled = jax.jit(f).lower(spec).compile()
  down, up = hlo.entry_layouts(compiled)
  assert (down.name, down.dims) == ("weights['down']", (4, 2))
  assert (up.name, up.dtype, up.dims) == ("weights['up']", "f32", (8, 4))
  assert hlo.entry_layouts(compiled.as_text()) == (down, up)


def test_several_modules_in_one_text():
  assert len(hlo.parse(MODULE + "\n" + MODULE)) == 2


@pytest.mark.parametrize(
  ("text", "bytes_", "padded"),
  [
    ("bf16[8,704,100]{2,1,0:T(8,128)(2,1)}", 1126400, 8 * 704 * 128 * 2),
    ("bf16[100,8,704]{0,2,1:T(8,128)(2,1)}", 1126400, 8 * 704 * 128 * 2),
    ("bf16[3,5]{1,0:T(8,128)(2,1)S(1)}", 30, 8 * 128 * 2),
    ("s8[1000]{0:T(1024)(128)(4,1)}", 1000, 1024),
    ("s4[64,128]{1,0:T(64,128)(8,1)E(4)}", 4096, 4096),
    ("f32[7,9]{1,0}", 252, 252),
    ("pred[]{:T(512)}", 1, 512),
    ("f8e4m3fn[<=16,128]{1,0}", 2048, 2048),
    ("token[]", 0, 0),
  ],
)
def test_bytes_with_and_without_padding(text, bytes_, padded):
  shape, end = shapes.parse(text, 0)
  assert end == len(text)
  assert (shape.bytes, shape.padded_bytes) == (bytes_, padded)


def test_shapes():
  text = "((s8[16]{0:T(1024)}), bf16[2,3]{0,1:T(8,128)(2,1)S(1)}, u32[]{:S(2)})"
  (inputs, result, context), end = shapes.parse(text, 0)
  assert end == len(text)
  assert inputs[0].dims == (16,)
  assert result == shapes.Shape(
    dtype="bf16",
    dims=(2, 3),
    minor_to_major=(0, 1),
    tiles=((8, 128), (2, 1)),
    memory_space=1,
    element_bits=16,
  )
  assert str(result) == "bf16[2,3]"
  assert (context.dims, context.memory_space) == ((), 2)


UNSCHEDULED = MODULE.replace(" is_scheduled=true,", "")
MLIR = "module @jit_f attributes {mhlo.num_partitions = 1 : i32} {\n}"


@pytest.mark.parametrize(
  ("text", "says"),
  [
    ("", "`program` is empty"),
    (" \n", "`program` is empty"),
    ("hello\nworld", "not HLO text: it starts with 'hello"),
    (MLIR, "MLIR text"),
    (UNSCHEDULED, "jit_f is not scheduled"),
    (MODULE.replace("ENTRY ", ""), "no ENTRY computation"),
    (MODULE[: MODULE.index("  ROOT %tuple.6")], "ends within .* main.8"),
    (MODULE.replace("%p.0 =", "%q ="), "fused lacks 'p.0'"),
    (
      MODULE.replace("copy.1 = bf16", "copy.1 = ("),
      "instruction: .*; no shape",
    ),
    (MODULE.replace(" copy(%p.0)", " copy"), "no HLO instruction: 'ROOT %copy"),
    (
      "HloModule f, is_scheduled=true\n\nENTRY %m {\n}\n",
      "no instruction in m",
    ),
  ],
)
def test_what_is_not_scheduled_hlo_is_refused(text, says):
  with pytest.raises(ValueError, match=says):
    hlo.parse(text)


def test_stablehlo_of_a_lowered_program_is_refused():
  lowered = jax.jit(jnp.sin).lower(1.0)
  with pytest.raises(ValueError, match=r"MLIR .*compiled.as_text\(\)"):
    hlo.parse(lowered.as_text())
  with pytest.raises(ValueError, match=r"not scheduled.*compile\(\)"):
    hlo.parse(lowered.as_text("hlo"))
  with pytest.raises(TypeError, match=r"`program` is a Lowered; want"):
    hlo.parse(lowered)


@pytest.mark.parametrize("program", [None, 3, b"HloModule"])
def test_what_is_no_program_is_refused(program):
  with pytest.raises(TypeError, match=f"is a {type(program).__name__}"):
    hlo.parse(program)


def test_a_computation_that_is_not_there():
  (module,) = hlo.parse(MODULE)
  with pytest.raises(ValueError, match="calls 'gone' but does not hold it"):
    module.computation("gone")
