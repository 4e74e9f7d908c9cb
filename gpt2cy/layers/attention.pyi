# SPDX-License-Identifier: Apache-2.0
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from gpt2cy.layers.linear import Linear

@disjoint_base
class Attention:
    def __new__(
        cls,
        n_embd: int,
        n_heads: int,
        *,
        bias: bool = True,
        scale_attn_weights: bool = True,
        scale_attn_by_inverse_layer_idx: bool = False,
        layer_idx: int = 0,
        seed: int | None = None,
    ) -> Self: ...
    @property
    def c_attn(self) -> Linear: ...
    @property
    def c_proj(self) -> Linear: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def scale(self) -> float: ...
    def __call__(self, x: ArrayLike) -> NDArray[np.float32]: ...
