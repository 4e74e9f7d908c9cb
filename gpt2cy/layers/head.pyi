# SPDX-License-Identifier: Apache-2.0
from typing import Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

STATISTICS_DTYPE: np.dtype[np.void]

@disjoint_base
class Scores:
    def __new__(cls, firsts: list[int], targets: NDArray[np.int64], limit: int, top: int) -> Self: ...
    @property
    def firsts(self) -> list[int]: ...
    @property
    def n(self) -> int: ...
    @property
    def table(self) -> NDArray[np.void]: ...
    @property
    def top_ids(self) -> NDArray[np.int64]: ...
    @property
    def top_logits(self) -> NDArray[np.float32]: ...
