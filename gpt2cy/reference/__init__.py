# SPDX-License-Identifier: Apache-2.0
"""GPT-2 in float64 NumPy: what the compiled layers compute, written for reading.

Every function is its formula and nothing else: no cache, no tiles, no threads, no hidden state. Weights come
in as arrays and all arithmetic is float64: this is the truth that the fast code is measured against. Read it
from the bottom of the stack to the top::

    functions.py    embedding  linear  layernorm  gelu_tanh  gelu_erf  relu  softmax
    layers.py       attention  mlp  block
    model.py        trace  forward
    sampling.py     token_probabilities

    tokens -> embedding -> block 0 -> ... -> block L-1 -> layernorm -> linear head -> logits

    block:  x --+--> layernorm --> attention --(+)--+--> layernorm --> mlp --(+)--> x
                |                               ^   |                         ^
                +-------------------------------+   +-------------------------+

Shape letters: B batch, T time (positions), C width (n_embd), H heads, D = C / H head width, F hidden width of
the MLP (n_inner), V vocabulary, P positions (block_size). ``...`` is any number of leading dimensions.
"""

from .functions import embedding, gelu_erf, gelu_tanh, layernorm, linear, relu, softmax
from .layers import attention, block, mlp
from .model import forward, trace
from .sampling import token_probabilities

__all__ = [
    "attention",
    "block",
    "embedding",
    "forward",
    "gelu_erf",
    "gelu_tanh",
    "layernorm",
    "linear",
    "mlp",
    "relu",
    "softmax",
    "token_probabilities",
    "trace",
]
