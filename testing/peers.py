"""The best of the kernels that people use today, beside ours.

Nobody timed these: they are a model's, on compiled schedules, as ours are. Each
is the least of Tokamax 0.0.17, MaxText 0.2.5 and jax's megablox (tiles 512,
1024, 1024), with their default tilings, compiled by libtpu 0.0.52: bfloat16,
row-major operands. A copy of the weight that a kernel needs counts; a kernel
that does not compile does not. "skew" is the mean times U(0.5, 1.5) and "zipf"
1/rank in random order, like ours, but of other draws.

Nothing here imports jax.
"""

from collections.abc import Mapping

PATTERNS = ("equal", "skew", "zipf")

# Microseconds for each of these sizes, by chip, workload and mode. On v5p half
# of a time where both cores have work.
_TIMES: Mapping[str, Mapping[tuple[str, str], tuple[int, int, int]]] = {
  "v6e": {
    ("decode-qwen3-30b/wi", "nn"): (280, 284, 284),
    ("decode-qwen3-30b/wi", "nt"): (281, 284, 284),
    ("decode-qwen3-30b/wi", "tn"): (281, 284, 284),
    ("deepseek-v3/wi-ep8", "nn"): (2651, 2733, 2737),
    ("deepseek-v3/wi-ep8", "nt"): (2450, 2601, 2599),
    ("deepseek-v3/wi-ep8", "tn"): (2598, 2814, 2731),
    ("gemma4-26b/wi", "nn"): (1654, 1681, 1701),
    ("gemma4-26b/wi", "nt"): (1752, 1998, 1979),
    ("gemma4-26b/wi", "tn"): (1711, 1924, 1820),
    ("gemma4-26b/wo", "nn"): (1856, 2087, 2061),
    ("gemma4-26b/wo", "nt"): (1655, 1667, 1661),
    ("gemma4-26b/wo", "tn"): (2578, 2793, 2681),
    ("gpt-oss-20b/wi", "nn"): (765, 836, 896),
    ("gpt-oss-20b/wi", "nt"): (760, 859, 871),
    ("gpt-oss-20b/wi", "tn"): (1400, 1741, 1809),
    ("mixtral-8x7b/wi", "nn"): (2162, 2275, 2233),
    ("mixtral-8x7b/wi", "nt"): (3915, 4389, 4372),
    ("mixtral-8x7b/wi", "tn"): (2799, 2945, 2872),
    ("pr1220", "nn"): (1555, 1560, 1749),
    ("pr1220", "nt"): (1558, 1560, 1715),
    ("pr1220", "tn"): (1553, 1567, 1844),
    ("qwen3-30b-a3b/wi", "nn"): (777, 785, 784),
    ("qwen3-30b-a3b/wi", "nt"): (777, 786, 789),
    ("qwen3-30b-a3b/wi", "tn"): (778, 858, 846),
  },
  "tpu7x": {
    ("decode-qwen3-30b/wi", "nn"): (128, 130, 130),
    ("decode-qwen3-30b/wi", "nt"): (135, 135, 135),
    ("decode-qwen3-30b/wi", "tn"): (184, 184, 184),
    ("deepseek-v3/wi-ep8", "nn"): (2482, 2563, 2558),
    ("deepseek-v3/wi-ep8", "nt"): (2461, 2653, 2634),
    ("deepseek-v3/wi-ep8", "tn"): (2759, 2965, 2944),
    ("gemma4-26b/wi", "nn"): (1451, 1508, 1509),
    ("gemma4-26b/wi", "nt"): (1926, 2068, 2055),
    ("gemma4-26b/wi", "tn"): (1452, 1584, 1568),
    ("gemma4-26b/wo", "nn"): (1899, 2010, 2011),
    ("gemma4-26b/wo", "nt"): (1452, 1548, 1541),
    ("gemma4-26b/wo", "tn"): (1844, 1966, 1949),
    ("gpt-oss-20b/wi", "nn"): (802, 924, 917),
    ("gpt-oss-20b/wi", "nt"): (899, 1332, 1327),
    ("gpt-oss-20b/wi", "tn"): (1172, 1283, 1279),
    ("mixtral-8x7b/wi", "nn"): (2462, 2539, 2520),
    ("mixtral-8x7b/wi", "nt"): (2750, 3314, 3295),
    ("mixtral-8x7b/wi", "tn"): (2710, 2876, 2793),
    ("pr1220", "nn"): (1060, 1211, 1217),
    ("pr1220", "nt"): (1060, 1335, 1309),
    ("pr1220", "tn"): (1058, 1338, 1359),
    ("qwen3-30b-a3b/wi", "nn"): (531, 573, 570),
    ("qwen3-30b-a3b/wi", "nt"): (531, 611, 598),
    ("qwen3-30b-a3b/wi", "tn"): (531, 636, 643),
  },
  "v5e": {
    ("deepseek-v3/wi-ep8", "nn"): (9985, 10347, 10366),
    ("deepseek-v3/wi-ep8", "nt"): (9816, 10502, 10501),
    ("deepseek-v3/wi-ep8", "tn"): (10347, 11045, 11045),
    ("gemma4-26b/wi", "nn"): (5769, 5963, 5966),
    ("gemma4-26b/wi", "nt"): (6734, 7201, 7156),
    ("gemma4-26b/wi", "tn"): (5774, 6283, 6220),
    ("gemma4-26b/wo", "nn"): (6729, 6975, 6978),
    ("gemma4-26b/wo", "nt"): (5774, 6144, 6122),
    ("gemma4-26b/wo", "tn"): (7543, 8052, 7990),
    ("gpt-oss-20b/wi", "nn"): (3043, 3264, 3253),
    ("gpt-oss-20b/wi", "nt"): (3051, 3445, 3445),
    ("gpt-oss-20b/wi", "tn"): (3473, 5151, 5151),
    ("mixtral-8x7b/wi", "nn"): (9821, 10121, 10048),
    ("mixtral-8x7b/wi", "nt"): (9805, 11942, 11942),
    ("mixtral-8x7b/wi", "tn"): (10288, 10915, 10601),
    ("pr1220", "nn"): (4213, 4776, 4969),
    ("pr1220", "nt"): (4284, 5308, 5204),
    ("pr1220", "tn"): (4608, 5804, 5660),
    ("qwen3-30b-a3b/wi", "nn"): (2104, 2240, 2262),
    ("qwen3-30b-a3b/wi", "nt"): (2108, 2444, 2386),
    ("qwen3-30b-a3b/wi", "tn"): (2108, 2504, 2528),
  },
  "v5p": {
    ("deepseek-v3/wi-ep8", "nn"): (4202, 4358, 4366),
    ("deepseek-v3/wi-ep8", "nt"): (4203, 4497, 4497),
    ("deepseek-v3/wi-ep8", "tn"): (4327, 4621, 4621),
    ("gemma4-26b/wi", "nn"): (4951, 5117, 5120),
    ("gemma4-26b/wi", "nt"): (5777, 6145, 6124),
    ("gemma4-26b/wi", "tn"): (4954, 5330, 5276),
    ("gemma4-26b/wo", "nn"): (5774, 5967, 5971),
    ("gemma4-26b/wo", "nt"): (4954, 5271, 5252),
    ("gemma4-26b/wo", "tn"): (6133, 6509, 6457),
    ("gpt-oss-20b/wi", "nn"): (2603, 2794, 2784),
    ("gpt-oss-20b/wi", "nt"): (2702, 4007, 4007),
    ("gpt-oss-20b/wi", "tn"): (2588, 2767, 2767),
    ("mixtral-8x7b/wi", "nn"): (4408, 5371, 5371),
    ("mixtral-8x7b/wi", "nt"): (4197, 5114, 5114),
    ("mixtral-8x7b/wi", "tn"): (4574, 4860, 4717),
    ("pr1220", "nn"): (3609, 4086, 4080),
    ("pr1220", "nt"): (3612, 4538, 4451),
    ("pr1220", "tn"): (1804, 2277, 2310),
    ("qwen3-30b-a3b/wi", "nn"): (1805, 1922, 1920),
    ("qwen3-30b-a3b/wi", "nt"): (1202, 1792, 1796),
    ("qwen3-30b-a3b/wi", "tn"): (1808, 2091, 2087),
  },
}


def seconds(chip: str, workload: str, mode: str) -> dict[str, float]:
  """Returns the best time of a product by group sizes; {} where none is known.

  Args:
    chip: such as "v6e".
    workload: a name of `workloads.WORKLOADS`.
    mode: "nn", "nt" or "tn".
  """
  times = _TIMES.get(chip, {}).get((workload, mode))
  if times is None:
    return {}
  return {name: time * 1e-6 for name, time in zip(PATTERNS, times, strict=True)}


def known() -> frozenset[str]:
  """The workloads of which a time is known, on any chip."""
  return frozenset(name for times in _TIMES.values() for name, _ in times)
