# SPDX-License-Identifier: Apache-2.0
"""The six layers.  Each holds its weights, runs inside a model on raw buffers, and works alone on arrays.

    Embedding   LayerNorm   Linear
                    \\        /
              Attention    MLP
                    \\     /
                     Block          x + attn(ln_1(x)), then x + mlp(ln_2(x))

``run`` is the way in from a layer above (raw pointers, no checks); calling a layer is the way in from Python.
"""

from gpt2cy.layers.attention import Attention
from gpt2cy.layers.block import Block
from gpt2cy.layers.embedding import Embedding
from gpt2cy.layers.layernorm import LayerNorm
from gpt2cy.layers.linear import Linear
from gpt2cy.layers.mlp import MLP

__all__ = ["MLP", "Attention", "Block", "Embedding", "LayerNorm", "Linear"]
