# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from gpt2cy.cache import KVCache
from gpt2cy.inspection.editing import Edit
from gpt2cy.inspection.names import Name
from gpt2cy.layers.tap import Observer
from gpt2cy.model import GPT

AT: dict[int, tuple[str, ...]]
POINT_OF: dict[str, int]

@disjoint_base
class Watch(Observer):
    def __init__(
        self,
        model: GPT,
        edits: dict[str, list[Edit]],
        check: bool = False,
        asked: dict[str, Name] | None = None,
    ) -> None: ...

def for_pass(model: GPT, check_finite: bool) -> Watch | None: ...
def trace(
    model: GPT, tokens: ArrayLike, patterns: str | Iterable[str], cache: KVCache | list[KVCache] | None
) -> dict[str, NDArray[np.float32]] | dict[str, list[NDArray[np.float32]]]: ...
