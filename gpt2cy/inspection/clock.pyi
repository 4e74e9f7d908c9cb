# SPDX-License-Identifier: Apache-2.0
import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from gpt2cy.cache import KVCache
from gpt2cy.layers.tap import Observer
from gpt2cy.model import GPT

ENDS: dict[int, str]

@disjoint_base
class Clock(Observer):
    def __init__(self, n_layers: int) -> None: ...

def clocked(
    model: GPT, tokens: ArrayLike, cache: KVCache | None = None, last_only: bool = False
) -> tuple[dict[str, float], NDArray[np.float32]]: ...
