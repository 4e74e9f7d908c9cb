# SPDX-License-Identifier: Apache-2.0
# The drivers are for Cython only: see logits.pxd.
import numpy as np

STATISTICS_DTYPE: np.dtype[np.void]
