"""The attached TPU: found, unknown, not the expected one, not there."""

import os
import types

import jax
import pytest

from testing import chip_at_hand


def fake_tpu(monkeypatch, kind):
  device = types.SimpleNamespace(device_kind=kind, platform="tpu")

  def devices(platform=None):
    os.write(2, b"a library's own words\n")
    if kind is None:
      raise RuntimeError("Unknown backend:\n tpu")
    return [device]

  monkeypatch.setattr(jax, "devices", devices)


@pytest.mark.parametrize(
  ("kind", "expected", "said"),
  [
    ("TPU v9", None, "'TPU v9', which has no row"),
    ("TPU v6 lite", "v66", "expected is 'v66'; known chips: v4"),
  ],
)
def test_chips_that_nobody_knows(monkeypatch, kind, expected, said):
  fake_tpu(monkeypatch, kind)
  with pytest.raises(chip_at_hand.WrongTpuError, match=said):
    chip_at_hand.find(expected)


def test_the_chip_at_hand(monkeypatch):
  fake_tpu(monkeypatch, "TPU7x")
  assert chip_at_hand.find() == chip_at_hand.find("tpu7x") == "tpu7x"
  assert chip_at_hand.expected({}) is None
  assert chip_at_hand.expected({"GMM_EXPECT_CHIP": "v4"}) == "v4"


def test_no_tpu_is_one_line(monkeypatch, capfd):
  fake_tpu(monkeypatch, None)
  with pytest.raises(chip_at_hand.NoTpuError) as caught:
    chip_at_hand.find("v6e")
  said = "attached TPU, and jax finds none: Unknown backend: tpu"
  assert str(caught.value).endswith(said)
  assert not any(capfd.readouterr())


def test_what_a_library_says_of_a_tpu_is_kept(monkeypatch, capfd):
  fake_tpu(monkeypatch, "TPU v4")
  chip_at_hand.find()
  os.write(2, b"after it\n")
  assert capfd.readouterr().err == "a library's own words\nafter it\n"
