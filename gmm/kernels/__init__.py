"""The Pallas TPU kernels: `gmm_v2` (NN and NT) and `tgmm_v2` (TN)."""

from gmm.kernels.api import gmm_v2 as gmm_v2
from gmm.kernels.api import tgmm_v2 as tgmm_v2
from gmm.kernels.gated_api import gmm_gated_v2 as gmm_gated_v2
from gmm.kernels.gated_api import split_gmm_v2 as split_gmm_v2
from gmm.kernels.gated_api import sum_gmm_v2 as sum_gmm_v2
