# SPDX-License-Identifier: Apache-2.0
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from gpt2cy.config import ACTIVATIONS as ACTIVATIONS
from gpt2cy.layers.linear import Linear

KINDS: dict[str, int]

@disjoint_base
class MLP:
    def __new__(
        cls,
        n_embd: int,
        n_inner: int | None = None,
        activation: str = "gelu_tanh",
        *,
        bias: bool = True,
        seed: int | None = None,
    ) -> Self: ...
    @property
    def c_fc(self) -> Linear: ...
    @property
    def c_proj(self) -> Linear: ...
    @property
    def activation(self) -> str: ...
    def __call__(self, x: ArrayLike) -> NDArray[np.float32]: ...
