"""Shapes of grouped products in published models, as one device sees them.

k and n are those of the weight [g, k, n]; m counts the rows after dispatch,
tokens times experts per token. Widths, experts and top-k are those of the
models' public configurations; m and the split over devices (ep, the number of
devices that share the experts) are this file's choice. "wi" and "wo" are the
projections into and out of an expert. pr1220 is the shape that Tokamax's pull
request 1220 was measured on.

Nothing here imports jax.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
  """One grouped product: m rows, g local groups, a weight [g, k, n]."""

  name: str
  m: int
  g: int
  k: int
  n: int


def _row(name: str, *sizes: int) -> Workload:
  m, g, k, n = sizes
  return Workload(name=name, m=m, g=g, k=k, n=n)


WORKLOADS: tuple[Workload, ...] = (
  _row("gemma4-26b/wi", 262144, 128, 2816, 704),
  _row("gemma4-26b/wo", 262144, 128, 704, 2816),
  _row("qwen3-30b-a3b/wi", 131072, 128, 2048, 768),
  _row("qwen3-30b-a3b/wo", 131072, 128, 768, 2048),
  _row("qwen3-235b-a22b/wi-ep8", 65536, 16, 4096, 1536),
  _row("qwen3-235b-a22b/wo-ep8", 65536, 16, 1536, 4096),
  _row("deepseek-v3/wi-ep8", 65536, 32, 7168, 2048),
  _row("deepseek-v3/wo-ep8", 65536, 32, 2048, 7168),
  _row("gpt-oss-20b/wi", 32768, 32, 2880, 2880),
  _row("gpt-oss-120b/wi", 32768, 128, 2880, 2880),
  _row("gpt-oss-120b/wi-ep4", 32768, 32, 2880, 2880),
  _row("mixtral-8x7b/wi", 16384, 8, 4096, 14336),
  _row("mixtral-8x7b/wo", 16384, 8, 14336, 4096),
  _row("llama4-scout/wi", 16384, 16, 5120, 8192),
  _row("llama4-maverick/wi-ep8", 16384, 16, 5120, 8192),
  _row("pr1220", 65536, 128, 3072, 2048),
  _row("decode-qwen3-30b/wi", 1024, 128, 2048, 768),
  _row("decode-qwen3-30b/wo", 1024, 128, 768, 2048),
  _row("decode-deepseek-v3/wi-ep8", 512, 32, 7168, 2048),
  _row("decode-gpt-oss-120b/wi", 512, 128, 2880, 2880),
  _row("decode-mixtral/wi", 4096, 8, 4096, 14336),
)

# Layers with experts, from the same configurations.
LAYERS: dict[str, int] = {
  "gemma4-26b": 30,
  "qwen3-30b-a3b": 48,
  "qwen3-235b-a22b": 94,
  "deepseek-v3": 58,
  "gpt-oss-20b": 24,
  "gpt-oss-120b": 36,
  "mixtral-8x7b": 32,
  "llama4-scout": 48,
  "llama4-maverick": 24,
}


def models() -> tuple[str, ...]:
  """What the rows are called before the slash."""
  return tuple(dict.fromkeys(w.name.split("/")[0] for w in WORKLOADS))


def decode() -> tuple[Workload, ...]:
  """The rows of decoding: few rows for each expert."""
  return tuple(w for w in WORKLOADS if w.name.startswith("decode-"))


def of_model(model: str) -> tuple[Workload, ...]:
  """The rows of a model.

  Raises:
    ValueError: there are none.
  """
  found = tuple(w for w in WORKLOADS if w.name.split("/")[0] == model)
  if not found:
    raise ValueError(
      f"`model` is {model!r}; known models: {', '.join(models())}"
    )
  return found
