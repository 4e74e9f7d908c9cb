# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

from gpt2cy.kernels.memory import Arena

NORMS: dict[str, str]

@disjoint_base
class Parameters:
    def __new__(
        cls, shapes: dict[str, tuple[int, ...]], layers: dict[str, Any], tied: bool, arena: Arena
    ) -> Self: ...
    def put(self, name: str, rows: NDArray[np.float32], first: int, transposed: bool) -> None: ...
    def __getitem__(self, key: str, /) -> NDArray[np.float32]: ...
    def __iter__(self) -> Iterator[str]: ...
