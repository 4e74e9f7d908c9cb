# SPDX-License-Identifier: Apache-2.0
import numpy as np
from numpy.typing import NDArray

from gpt2cy.cache import KVCache
from gpt2cy.model import GPT

def score_rows(
    model: GPT,
    sequences: list[NDArray[np.int64]],
    caches: list[KVCache] | None,
    firsts: list[int],
    targets: NDArray[np.int64],
    limit: int,
    top: int,
) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.float32]]: ...
