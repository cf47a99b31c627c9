"""The compile report as its users run it; its page has tests of its own."""

import json
import os

import numpy as np
import pytest

from gmm import aot
from testing import peers, workloads
from tools import aot_report
from tools.report import collect, values

OWN = ["--m", "512", "--g", "4", "--k", "256", "--n", "128"]


def run(capsys, *flags):
  """Exit status, stdout and stderr of one run."""
  try:
    status = aot_report.main(flags)
  except SystemExit as error:
    status = error.code
  said = capsys.readouterr()
  return status, said.out, said.err


def test_a_shape_of_your_own(capsys, tmp_path):
  sizes = np.array([500, 0, 5, 7])
  np.save(tmp_path / "sizes.npy", sizes)
  flags = [*OWN, "--out", str(tmp_path), "--chip", "v5e"]
  status, out, err = run(
    capsys, *flags, "--group_sizes", str(tmp_path / "sizes.npy")
  )
  assert status == 0, err
  assert "[1/3] compiling v5e own nn" in err
  report = json.loads((tmp_path / "report.json").read_text())
  assert [p["mode"] for p in report["products"]] == ["nn", "nt", "tn"]
  assert collect.finite(report)
  for product in report["products"]:
    assert product["error"] is None
    assert list(product["estimates"])[0] == "given"
    assert product["estimates"]["given"]["rows_useful"] == 512
    assert product["vmem"]["reported"] <= product["vmem"]["claimed"]
    assert product["kernel"] in (tmp_path / "report.html").read_text()
    assert f"{product['bundles']:,}" in out
  groups = report["products"][0]["visits"]["groups"]
  assert groups == [[0, 500], [500, 505], [505, 512]]
  # One weight, row-major: the explicit transpose copies it.
  (copy,) = report["copies"]["explicit"]["copies"]
  assert copy["bytes"] == 4 * 256 * 128 * 2
  assert report["copies"]["in_place"]["copies"] == []


def test_a_weight_of_its_own_format(capsys, tmp_path):
  flags = ["--rhs_dtype", "int8", "--scale_block", "128", "--chip", "v6e"]
  status, out, err = run(capsys, *OWN, *flags, "--out", str(tmp_path))
  assert status == 0, err
  report = json.loads((tmp_path / "report.json").read_text())
  assert [p["mode"] for p in report["products"]] == ["nn", "nt"]
  assert report["copies"] is None
  for product in report["products"]:
    assert product["error"] is None
    assert (product["rhs_dtype"], product["scale_block"]) == ("int8", 128)
    assert not product["peers"]
    moved = 512 * 256 * 2 + 512 * 128 * 2 + 4 * 256 * 128 + 4 * 2 * 128 * 4
    assert product["roofline"]["bytes"] == moved
    assert 0 < product["estimates"]["equal"]["dma_share"] <= 1
    assert f"{product['mode']} bfloat16 x int8 / 128" in out
  assert "bfloat16 x int8 / 128" in (tmp_path / "report.html").read_text()


def test_an_lhs_that_is_quantised(capsys, tmp_path):
  flags = ["--rhs_dtype", "int8", "--lhs_quantization", "int8"]
  status, out, err = run(capsys, *OWN, *flags, "--out", str(tmp_path))
  assert status == 0, err
  report = json.loads((tmp_path / "report.json").read_text())
  (product,) = report["products"]
  assert (product["mode"], product["lhs_quantization"]) == ("nn", "int8")
  assert not product["peers"]
  assert report["copies"] is None
  moved = 512 * 256 * 2 + 512 * 128 * 2 + 4 * 256 * 128 + 4 * 128 * 4
  assert product["roofline"]["bytes"] == moved
  assert product["estimates"]["equal"]["mxu_seconds"] > 0
  assert {arm["vmatmuls"] > 0 for arm in product["arms"]} == {True}
  said = "bfloat16 as int8 x int8 / 256"
  assert f"nn {said}" in out
  assert said in (tmp_path / "report.html").read_text()


def test_what_is_added_to_a_product(capsys, tmp_path):
  flags = ["--bias", "--existing_out", "--mode", "nn"]
  status, out, err = run(capsys, *OWN, *flags, "--out", str(tmp_path))
  assert status == 0, err
  report = json.loads((tmp_path / "report.json").read_text())
  (product,) = report["products"]
  assert (product["bias"], product["existing_out"]) == (True, True)
  assert not product["peers"]
  assert report["copies"] is None
  moved = 2 * (512 * 256 + 2 * 512 * 128 + 4 * 256 * 128) + 4 * 128 * 4
  assert product["roofline"]["bytes"] == moved
  assert "nn bfloat16 + bias + existing" in out
  assert "bfloat16 + bias + existing" in (tmp_path / "report.html").read_text()


def test_two_products_in_one_kernel(capsys, tmp_path):
  flags = ["--fused", "gated", "--rhs_dtype", "int8", "--out", str(tmp_path)]
  status, out, err = run(capsys, *OWN, *flags)
  assert status == 0, err
  report = json.loads((tmp_path / "report.json").read_text())
  (product,) = report["products"]
  assert (product["mode"], product["fused"]) == ("nn", "gated")
  assert report["copies"] is None
  flops = 2 * 2 * 512 * 256 * 128
  assert product["roofline"]["flops"] == flops
  assert {arm["k_pieces"] for arm in product["arms"]} == {1}
  assert product["estimates"]["equal"]["seconds"] > 0
  assert "nn gated bfloat16 x int8 / 256" in out
  page = (tmp_path / "report.html").read_text()
  assert "gated bfloat16 x int8 / 256" in page


@pytest.mark.parametrize(
  ("flags", "modes", "said"),
  [
    (["--lhs_scale", "row"], ("nn", "nt"), "int8 / row x int8"),
    (["--lhs_scale", "tensor"], ("nn", "nt", "tn"), "int8 / tensor x int8"),
    (["--lhs_scale", "channel"], ("tn",), "int8 / channel x int8"),
    (["--dout_scale", "tensor"], ("tn",), "int8 x int8 / tensor"),
    (
      ["--lhs_scale", "row", "--rhs_dtype", "int4", "--mode", "nt"],
      ("nt",),
      "int8 / row x int4 / 256",
    ),
    (
      ["--dout_scale", "channel", "--rhs_dtype", "float8_e5m2"],
      ("tn",),
      "int8 x float8_e5m2 / channel",
    ),
  ],
)
def test_scales_of_the_operands(
  flags, modes, said, capsys, tmp_path, monkeypatch
):
  asked = []
  monkeypatch.setattr(aot_report, "_products", lambda r: asked.extend(r) or [])
  flags = [*OWN, "--dtype", "int8", *flags, "--out", str(tmp_path)]
  status, _, err = run(capsys, *flags)
  assert status == 0, err
  assert tuple(r.mode for r in asked) == modes
  for r in asked:
    assert values.formats(r.operands) == said
    assert not r.is_plain


def test_all_of_a_decode_step(capsys, tmp_path, monkeypatch):
  asked = []
  monkeypatch.setattr(aot_report, "_products", lambda r: asked.extend(r) or [])
  flags = ["--model", "decode", "--rhs_dtype", "float8_e4m3fn"]
  status, _, err = run(capsys, *flags, "--out", str(tmp_path))
  assert status == 0, err
  names = [w.name for w in workloads.WORKLOADS if "decode" in w.name]
  assert len(names) == 5
  assert [(r.workload.name, r.mode) for r in asked] == [
    (name, mode) for name in names for mode in ("nn", "nt")
  ]
  assert {r.operands["scale_block"] - r.workload.k for r in asked} == {0}


def test_the_compared_have_other_times(capsys, tmp_path, monkeypatch):
  asked = []
  monkeypatch.setattr(aot_report, "_products", lambda r: asked.extend(r) or [])
  flags = ["--model", "compared", "--no_copies", "--out", str(tmp_path)]
  status, _, err = run(capsys, *flags, "--chip", "v6e")
  assert status == 0, err
  assert len(asked) == 24
  for r in asked:
    assert peers.seconds("v6e", r.workload.name, r.mode)


def test_the_headline(capsys, tmp_path, monkeypatch):
  # The copies are of the model's own size; only its products are left out.
  monkeypatch.setattr(aot_report, "_products", lambda requests: [])
  status, out, _ = run(
    capsys, "--model", "gemma4-26b", "--chip", "v6e", "--out", str(tmp_path)
  )
  assert status == 0
  copies = json.loads((tmp_path / "report.json").read_text())["copies"]
  assert len(copies["explicit"]["copies"]) == 3
  assert {c["times"] for c in copies["explicit"]["copies"]} == {30}
  assert 79 < copies["explicit"]["milliseconds_per_step"] < 87
  assert copies["in_place"]["milliseconds_per_step"] == 0
  assert copies["measured_milliseconds"] == 87
  assert f"{copies['explicit']['milliseconds_per_step']:.1f} ms" in out


def test_every_model_has_its_layers():
  assert set(workloads.LAYERS) <= set(workloads.models())


def test_what_the_compiler_refuses_is_one_line(capsys, tmp_path, monkeypatch):
  def refuse(*args, **options):
    raise aot.CompileError("RESOURCE_EXHAUSTED: vmem\nand a long story")

  monkeypatch.setattr(collect, "plan_for", refuse)
  flags = [*OWN, "--mode", "nn", "--no_copies", "--out", str(tmp_path)]
  status, out, err = run(capsys, *flags)
  assert status == 1
  assert "error: v6e own nn: RESOURCE_EXHAUSTED: vmem\n" in err
  assert "long story" not in out + err
  assert "RESOURCE_EXHAUSTED" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
  ("flags", "said"),
  [
    (["--chip", "h100"], "`chip` is 'h100'; known chips: v4, v5e"),
    (["--model", "gpt-9"], "`model` is 'gpt-9'; known models: gemma4-26b"),
    (["--m", "64"], "takes --m --k --n --g: give --k, --n, --g too"),
    ([*OWN, "--model", "pr1220"], "drop --model"),
    ([*OWN[:-1], "0"], "`n` is 0; want 1 or more"),
    ([*OWN, "--group_sizes", "/nowhere.npy"], "/nowhere.npy' cannot be read"),
    (["--rhs_dtype", "float99"], "`rhs_dtype` is 'float99', which is no dtype"),
    (["--rhs_dtype", "bfloat16"], "`rhs_dtype` is 'bfloat16'; want one of"),
    (["--scale_block", "8"], "--scale_block and --scale_axis go with"),
    (["--rhs_dtype", "int8", "--scale_block", "x"], "`scale_block` is 'x'"),
    (["--lhs_quantization", "int8"], "`rhs` is bfloat16, and no matrix unit"),
    (["--lhs_scale", "row"], "`lhs_scale` is given but `lhs` is bfloat16"),
    (["--dout_scale", "tensor"], "`dout_scale` is given but `dout` is b"),
    (
      ["--dtype", "int8", "--lhs_scale", "row", "--mode", "tn"],
      "`lhs_scale` is 'row' in mode 'tn'; want None or one of tensor, channel",
    ),
    (
      ["--lhs_scale", "row", "--dout_scale", "tensor"],
      "`dout_scale` is 'tensor' but mode 'nn' takes none",
    ),
    (
      [
        *("--rhs_dtype", "int8", "--lhs_quantization", "int8"),
        *("--mode", "nt"),
      ],
      "`lhs_quantization` with backward=True",
    ),
    (["--bias", "--mode", "tn"], "`bias` is True but mode 'tn' takes none"),
    (["--fused", "split", "--mode", "nt"], "`fused` is 'split' in mode 'nt'"),
    (["--fused", "split", "--existing_out"], "`existing_out` is True but `fu"),
    ([*OWN, "--out", "/proc/nowhere"], "/proc/nowhere' cannot be written to"),
  ],
)
def test_bad_input_is_one_line(flags, said, capsys, tmp_path):
  if "--out" not in flags:
    flags = [*flags, "--out", str(tmp_path)]
  status, out, err = run(capsys, *flags)
  assert status == 1
  assert said in err
  assert err.startswith("error: ")
  assert len(err.splitlines()) == 1
  assert not out


def test_group_sizes_of_another_length(capsys, tmp_path):
  np.save(tmp_path / "sizes.npy", np.ones(3, np.int32))
  flags = [*OWN, "--group_sizes", str(tmp_path / "sizes.npy")]
  status, _, err = run(capsys, *flags, "--out", str(tmp_path))
  assert status == 1
  assert "`group_sizes`" in err


def test_a_dtype_that_is_none(capsys, tmp_path):
  flags = [*OWN, "--dtype", "float99", "--out", str(tmp_path), "--no_copies"]
  status, _, err = run(capsys, *flags)
  assert status == 1
  assert "float99" in err


def test_paths_are_the_callers_own(capsys, tmp_path, monkeypatch):
  monkeypatch.setattr(aot_report, "_products", lambda requests: [])
  monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path))
  status, _, _ = run(capsys, *OWN, "--no_copies", "--out", "here")
  assert status == 0
  assert sorted(os.listdir(tmp_path / "here")) == ["report.html", "report.json"]


def test_published(capsys):
  status, out, _ = run(capsys, "--published")
  assert status == 0
  assert "copy of 1.61 GB" in out
  assert "its schedule" in out
