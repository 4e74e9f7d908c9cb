# SPDX-License-Identifier: Apache-2.0
from typing import Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from gpt2cy.kernels.memory import Arena

@disjoint_base
class PackedMatrix:
    def __new__(cls, k: int, n: int, arena: Arena | None = None) -> Self: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nbytes(self) -> int: ...
    def to_array(self, transposed: bool = False) -> NDArray[np.float32]: ...
