# SPDX-License-Identifier: Apache-2.0
"""GPT-2 class models on the CPU, with the machine's full speed and the same bits everywhere.

>>> import gpt2cy
>>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
>>> model([[72, 101, 108, 108, 111]]).shape
(1, 5, 512)
"""

import importlib
from typing import TYPE_CHECKING

from gpt2cy._build_info import show_config
from gpt2cy._version import __version__
from gpt2cy.cache import KVCache
from gpt2cy.config import GPTConfig
from gpt2cy.kernels.threads import get_num_threads, set_num_threads
from gpt2cy.layers import MLP, Attention, Block, Embedding, LayerNorm, Linear
from gpt2cy.layers.functional import gelu, gelu_erf, relu, softmax
from gpt2cy.model import GPT

if TYPE_CHECKING:
    from gpt2cy.generation.sampling import Sampling
    from gpt2cy.language_model import LanguageModel, load

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
    "Sampling",
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


_LATER = {
    name: f"gpt2cy.{name}" for name in ("generation", "inspection", "reference", "tokenizer", "weights")
}


def __getattr__(name):
    """Packages, and what reads text: imported when they are first asked for, since not everyone does."""
    if name in _LATER:
        return importlib.import_module(_LATER[name])
    if name == "Sampling":
        return importlib.import_module("gpt2cy.generation.sampling").Sampling
    if name in ("LanguageModel", "load"):
        return getattr(importlib.import_module("gpt2cy.language_model"), name)
    raise AttributeError(f"module 'gpt2cy' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *_LATER})
