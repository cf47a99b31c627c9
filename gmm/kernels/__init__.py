"""The Pallas TPU kernels: `gmm_v2` (NN and NT) and `tgmm_v2` (TN)."""

from gmm.kernels.api import gmm_v2 as gmm_v2
from gmm.kernels.api import tgmm_v2 as tgmm_v2
