# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

def normal_rows(
    rng: np.random.Generator, n: int, width: int, std: float
) -> Iterator[tuple[int, NDArray[np.float32]]]: ...

@disjoint_base
class Linear:
    def __new__(
        cls, in_features: int, out_features: int, bias: bool = True, *, seed: int | None = None
    ) -> Self: ...
    @property
    def in_features(self) -> int: ...
    @property
    def out_features(self) -> int: ...
    @property
    def weight(self) -> NDArray[np.float32]: ...
    @weight.setter
    def weight(self, value: ArrayLike) -> None: ...
    @property
    def bias(self) -> NDArray[np.float32] | None: ...
    @bias.setter
    def bias(self, value: ArrayLike) -> None: ...
    def __call__(self, x: ArrayLike) -> NDArray[np.float32]: ...
