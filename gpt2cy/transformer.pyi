# SPDX-License-Identifier: Apache-2.0
from typing import Self

from typing_extensions import disjoint_base

from gpt2cy.config import GPTConfig
from gpt2cy.layers.block import Block
from gpt2cy.layers.embedding import Embedding
from gpt2cy.layers.layernorm import LayerNorm
from gpt2cy.layers.linear import Linear

@disjoint_base
class Transformer:
    def __new__(cls, config: GPTConfig, *, seed: int | None = None, init_std: float = 0.02) -> Self: ...
    @property
    def config(self) -> GPTConfig: ...
    @property
    def wte(self) -> Embedding: ...
    @property
    def wpe(self) -> Embedding: ...
    @property
    def blocks(self) -> tuple[Block, ...]: ...
    @property
    def ln_f(self) -> LayerNorm: ...
    @property
    def lm_head(self) -> Linear: ...
