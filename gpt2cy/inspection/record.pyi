# SPDX-License-Identifier: Apache-2.0
import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from gpt2cy.model import GPT

IN_BLOCK: dict[int, str]
OUTSIDE: dict[int, str]

@disjoint_base
class Recorder: ...

def record(model: GPT, tokens: ArrayLike) -> dict[str, NDArray[np.float32]]: ...
