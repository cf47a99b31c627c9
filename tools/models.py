"""Published mixture-of-experts models: the sizes of their expert layers.

From the models' public configuration files: hidden size, the experts'
intermediate size, number of routed experts, and experts per token.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
  """One model's expert layer.

  Attributes:
    hidden: width of a token.
    intermediate: width inside an expert.
    experts: how many there are.
    top_k: how many of them a token visits.
  """

  hidden: int
  intermediate: int
  experts: int
  top_k: int


MODELS: dict[str, Model] = {
  "gemma4-26b-a4b": Model(hidden=2816, intermediate=704, experts=128, top_k=8),
  "qwen3-30b-a3b": Model(hidden=2048, intermediate=768, experts=128, top_k=8),
  "qwen3-235b-a22b": Model(
    hidden=4096, intermediate=1536, experts=128, top_k=8
  ),
  "deepseek-v3": Model(hidden=7168, intermediate=2048, experts=256, top_k=8),
  "gpt-oss-20b": Model(hidden=2880, intermediate=2880, experts=32, top_k=4),
  "gpt-oss-120b": Model(hidden=2880, intermediate=2880, experts=128, top_k=4),
  "mixtral-8x7b": Model(hidden=4096, intermediate=14336, experts=8, top_k=2),
  "llama4-scout": Model(hidden=5120, intermediate=8192, experts=16, top_k=1),
}


def scaled(
  name: str,
  *,
  scale: int,
  experts: int | None = None,
  top_k: int | None = None,
) -> Model:
  """A model with its proportions, small enough for a CPU.

  Args:
    name: a key of `MODELS`.
    scale: divides the widths; and the experts, to no fewer than twice top_k.
    experts: overrides their number.
    top_k: overrides how many a token visits.

  Raises:
    ValueError: an unknown model, or sizes that make no model.
  """
  if name not in MODELS:
    raise ValueError(f"`model` is {name!r}; known models: {', '.join(MODELS)}")
  if scale < 1:
    raise ValueError(f"`scale` is {scale}; want 1 or more")
  whole = MODELS[name]
  top_k = whole.top_k if top_k is None else top_k
  if experts is None:
    experts = max(whole.experts // scale, min(2 * top_k, whole.experts))
  if not 1 <= top_k <= experts:
    raise ValueError(
      f"`top_k` is {top_k} and `experts` is {experts}; want 1 <= top_k <= "
      "experts"
    )
  return Model(
    hidden=max(whole.hidden // scale, 1),
    intermediate=max(whole.intermediate // scale, 1),
    experts=experts,
    top_k=top_k,
  )
