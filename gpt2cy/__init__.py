# SPDX-License-Identifier: Apache-2.0
"""GPT-2 class models on the CPU, with the machine's full speed and the same bits everywhere.

>>> import gpt2cy
>>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
>>> model([[72, 101, 108, 108, 111]]).shape
(1, 5, 512)
"""

import importlib

from gpt2cy._build_info import show_config
from gpt2cy._version import __version__
from gpt2cy.cache import KVCache
from gpt2cy.config import GPTConfig
from gpt2cy.kernels.threads import get_num_threads, set_num_threads
from gpt2cy.language_model import LanguageModel, load
from gpt2cy.layers import MLP, Attention, Block, Embedding, LayerNorm, Linear
from gpt2cy.layers.functional import gelu, gelu_erf, relu, softmax
from gpt2cy.model import GPT

__all__ = [
    "GPT",
    "MLP",
    "Attention",
    "Block",
    "Embedding",
    "GPTConfig",
    "KVCache",
    "LanguageModel",
    "LayerNorm",
    "Linear",
    "__version__",
    "gelu",
    "gelu_erf",
    "get_num_threads",
    "load",
    "relu",
    "set_num_threads",
    "show_config",
    "softmax",
]


def __getattr__(name):
    """``gpt2cy.reference``, ``inspection`` and ``weights``, imported when they are first asked for."""
    if name in ("reference", "inspection", "weights"):
        return importlib.import_module(f"gpt2cy.{name}")
    raise AttributeError(f"module 'gpt2cy' has no attribute {name!r}")
