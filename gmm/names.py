"""Names of results, for the policies of `jax.checkpoint`.

`save_only_these_names(ops.GMM_OUT)` keeps the results of `ops.gmm` for the
backward pass, so that they are not computed again there. The strings are part
of the interface, and a name costs nothing elsewhere.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

GMM_OUT = "gmm_out"
TGMM_OUT = "tgmm_out"
GMM_GATED_OUT = "gmm_gated_out"
# What `gmm_gated(..., recompute=False)` keeps for its gradients.
GMM_GATED_GATE_UP = "gmm_gated_gate_up"
SPLIT_GMM_OUT = "split_gmm_out"  # both results


def named(x: Any, name: str) -> Any:
  """The same arrays, with a name."""
  return jax.tree.map(lambda leaf: checkpoint_name(leaf, name), x)
