"""A compile report with plausible numbers, for the tests of its page.

None of them was measured; they have the sizes and the shapes of real ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CHIPS = {
  "v6e": {
    "bf16_flops": 9.18e14,
    "hbm_bytes_per_second": 1.6384e12,
    "vmem_bytes": 134217728,
    "clock_hz": 1.75e9,
    "source": "the vendor's page of the chip",
  },
  "v5e": {
    "bf16_flops": 1.97e14,
    "hbm_bytes_per_second": 8.19e11,
    "vmem_bytes": 134217728,
    "clock_hz": 1.5e9,
    "source": "the vendor's page of the chip",
  },
}
SIZES = {"equal": 1.0, "mean+-1": 1.031, "skew": 1.083, "zipf": 1.21}
_WIDTHS = {"wi": (2816, 704), "wo": (704, 2816)}


def report(chips: tuple[str, ...] = ("v6e",)) -> dict[str, Any]:
  """A report over both weights of a model and all modes, on some chips."""
  products = [
    product(chip, workload, mode)
    for chip in chips
    for workload in _WIDTHS
    for mode in ("nn", "nt", "tn")
  ]
  products[0]["visits"] = visits()
  return {
    "version": 1,
    "jax": "0.10.2",
    "libtpu": "0.0.52",
    "title": "gemma4-26b",
    "chips": {chip: dict(CHIPS[chip]) for chip in chips},
    "products": products,
    "copies": copies(chips[0]),
    "notes": [
      "DMA issue and its latency at the start and the end of a kernel.",
      "HBM pages, refresh, and other traffic of the program.",
      "Clock changes under load.",
    ],
  }


def spread(chips: tuple[str, ...] = ("v6e",)) -> dict[str, Any]:
  """A report whose products lie all over the roofline, with long names."""
  products = []
  for chip in chips:
    for m in (1 << power for power in range(9, 20)):
      for mode in ("nn", "nt", "tn"):
        one = product(chip, "wi", mode, m=m)
        one["workload"] = f"a-rather-long-name-{m}/wi"
        products.append(one)
  return report(chips) | {"products": products}


def product(
  chip: str, workload: str, mode: str, *, m: int = 262144
) -> dict[str, Any]:
  """One compiled product with its schedule and its estimates."""
  k, n = _WIDTHS[workload]
  g = 128
  flops = 2.0 * m * k * n
  moved = 2.0 * (m * k + m * n + g * k * n)
  peaks = CHIPS[chip]
  compute = flops / peaks["bf16_flops"]
  memory = moved / peaks["hbm_bytes_per_second"]
  bound = max(compute, memory)
  slow = {"nn": 1.08, "nt": 1.07, "tn": 1.16}[mode]
  estimates = {
    name: _estimate(bound * slow * factor, compute, bound)
    for name, factor in SIZES.items()
  }
  return {
    "chip": chip,
    "workload": f"gemma4-26b/{workload}",
    "mode": mode,
    "m": m,
    "g": g,
    "k": k,
    "n": n,
    "dtype": "bfloat16",
    "kernel": f"gmm_v2-{mode}-g_{g}-m_{m}-k_{k}-n_{n}-tm_2064-tk_{k}-tn_{n}",
    "tiles": {"tile_m": 2064, "tile_k": k, "tile_n": n},
    "error": None,
    "bundles": 5365,
    "code_bytes": 1900000,
    "compile_seconds": 6.7,
    "temp_bytes": 0,
    "vmem": {"claimed": 4.31e7, "reported": 4.02e7, "capacity": 134217728},
    "arms": [_arm(rows, mode) for rows in (256, 128, 64, 16)],
    "step_bundles": 236,
    "roofline": {
      "flops": flops,
      "bytes": moved,
      "compute_seconds": compute,
      "memory_seconds": memory,
      "bound": "compute" if compute > memory else "memory",
      "seconds": bound,
    },
    "estimates": estimates,
    "visits": None,
  }


def _estimate(seconds: float, compute: float, bound: float) -> dict[str, Any]:
  mxu = min(compute * 1.02, seconds)
  dma = (seconds - mxu) * 0.6
  return {
    "seconds": seconds,
    "mxu_seconds": mxu,
    "dma_seconds": dma,
    "idle_seconds": seconds - mxu - dma,
    "rows_useful": 262144,
    "rows_run": 264192,
    "visits": 256,
    "roofline_share": bound / seconds,
    "dma_share": 0.9 * bound / seconds,
  }


def _arm(rows: int, mode: str) -> dict[str, Any]:
  mxu = rows * 33 // 4
  bundles = mxu + 176
  return {
    "rows": rows,
    "depth": 2,
    "bundles": bundles,
    "cycles": bundles,
    "mxu_cycles": mxu,
    "mxu_busy": mxu / bundles,
    "vmatmuls": rows * 2,
    "k_pieces": 11,
    "matpushes": 1056,
    "transposing_pushes": 1056 if mode == "nt" else 0,
    "xlu_transposes": 44 if mode == "tn" else 0,
    "spills": 12,
    "fills": 17,
  }


def visits() -> dict[str, Any]:
  """Visits of groups near and far below a tile's rows; none fits exactly."""
  sizes = [2049, 2047, 2048, 1300, 5, 700, 2048, 4100, 2049]
  groups, found, lo = [], [], 0
  for group, size in enumerate(sizes):
    hi = lo + size
    groups.append([lo, hi])
    start = lo // 16 * 16
    while start < hi:
      rows = min(2064, -(-(hi - start) // 16) * 16)
      found.append(
        {
          "group": group,
          "start": start,
          "rows": rows,
          "lo": lo,
          "hi": hi,
          "rows_run": -(-rows // 256) * 256 if rows < 2064 else rows,
        }
      )
      start += rows
    lo = hi
  return {
    "sizes_name": "mean+-1",
    "visits_total": 256,
    "visits_shown": len(found),
    "groups": groups,
    "visits": found,
  }


def copies(chip: str) -> dict[str, Any]:
  """Three copies a layer with the explicit transpose, and none in place."""
  weight = 2.0 * 128 * 2816 * 704
  seconds = 2 * weight / (0.7 * CHIPS[chip]["hbm_bytes_per_second"])
  found = [_copy(name, weight, seconds) for name in ("wi_0", "wi_1", "wo")]
  return {
    "chip": chip,
    "layers": 30,
    "model": "gemma4-26b",
    "explicit": {
      "milliseconds_per_step": 90e3 * seconds,
      "temp_bytes": int(weight),
      "copies": found,
    },
    "in_place": {"milliseconds_per_step": 0, "copies": []},
    "measured_milliseconds": 87,
    "measured_source": "a public pull request's profile",
  }


def _copy(name: str, weight: float, seconds: float) -> dict[str, Any]:
  return {
    "name": f"copy.{name}",
    "op_name": f"jit(step)/while/body/transpose(jvp({name}))/transpose",
    "source": "train.py:31",
    "shape": "bf16[128,2816,704]",
    "layout_in": "{2,1,0}",
    "layout_out": "{1,2,0}",
    "bytes": weight,
    "times": 30,
    "seconds": seconds,
  }


def without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
  """A copy that lacks some keys."""
  return {key: value for key, value in mapping.items() if key not in keys}
