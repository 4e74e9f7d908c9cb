# SPDX-License-Identifier: Apache-2.0
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from gpt2cy.config import GPTConfig
from gpt2cy.layers.attention import Attention
from gpt2cy.layers.layernorm import LayerNorm
from gpt2cy.layers.mlp import MLP

@disjoint_base
class Block:
    def __new__(cls, config: GPTConfig, layer_idx: int = 0, *, seed: int | None = None) -> Self: ...
    @property
    def ln_1(self) -> LayerNorm: ...
    @property
    def attn(self) -> Attention: ...
    @property
    def ln_2(self) -> LayerNorm: ...
    @property
    def mlp(self) -> MLP: ...
    @property
    def layer_idx(self) -> int: ...
    def __call__(self, x: ArrayLike) -> NDArray[np.float32]: ...
