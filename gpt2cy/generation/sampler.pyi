# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from gpt2cy.generation.sampling import Sampling

def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]: ...
def uniform(seed: int, row: int, sample: int, step: int) -> float: ...

@disjoint_base
class Sampler:
    settings: Sampling
    seed: int
    vocab_size: int
    n_prompt: int
    row: int
    sample: int
    def __init__(
        self, settings: Sampling, vocab_size: int, seed: int, row: int, sample: int, prompt: ArrayLike
    ) -> None: ...
    @property
    def ids(self) -> NDArray[np.int64]: ...
    @property
    def step(self) -> int: ...
    def accept(self, token: int) -> None: ...
    def fork(self, sample: int) -> Sampler: ...
    def edit(self, scores: NDArray[np.float32]) -> None: ...

def choose(
    samplers: list[Sampler], logits: NDArray[np.float32], model_logprobs: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.float32], list[list[tuple[int, float]] | None]]: ...
