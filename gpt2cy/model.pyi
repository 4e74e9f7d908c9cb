# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt2cy.cache import KVCache
from gpt2cy.generation.result import Generated
from gpt2cy.generation.sampling import Sampling
from gpt2cy.generation.scoring import TokenScores
from gpt2cy.inspection.editing import Edit, Editing
from gpt2cy.inspection.profiling import Profile
from gpt2cy.transformer import Transformer

class GPT(Transformer):
    def release_memory(self) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def __call__(
        self,
        tokens: ArrayLike,
        cache: KVCache | None = None,
        *,
        check_finite: bool = False,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]: ...
    def forward(
        self,
        tokens: ArrayLike,
        cache: KVCache | None = None,
        *,
        check_finite: bool = False,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]: ...
    def next_logits(
        self,
        tokens: ArrayLike,
        cache: KVCache | None = None,
        *,
        check_finite: bool = False,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]: ...
    def forward_many(
        self,
        sequences: Sequence[ArrayLike],
        caches: Sequence[KVCache] | None = None,
        *,
        check_finite: bool = False,
    ) -> list[NDArray[np.float32]]: ...
    def next_logits_many(
        self,
        sequences: Sequence[ArrayLike],
        caches: Sequence[KVCache] | None = None,
        *,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]: ...
    def prefill(self, prompt: ArrayLike) -> KVCache: ...
    @overload
    def generate(
        self,
        prompts: Sequence[ArrayLike],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        cache: KVCache | None = None,
        details: Literal[False] = False,
        progress: Callable[[int], object] | None = None,
        **settings: object,
    ) -> list[NDArray[np.int64]]: ...
    @overload
    def generate(
        self,
        prompts: Sequence[ArrayLike],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        cache: KVCache | None = None,
        details: bool = False,
        progress: Callable[[int], object] | None = None,
        **settings: object,
    ) -> list[NDArray[np.int64]] | list[Generated]: ...
    def new_cache(self, batch_size: int = 1, capacity: int | None = None) -> KVCache: ...
    def token_logprobs(
        self, tokens: ArrayLike, *, stride: int | None = None, vocab_limit: int | None = None
    ) -> NDArray[np.float32]: ...
    def perplexity(
        self, tokens: ArrayLike, *, stride: int | None = None, vocab_limit: int | None = None
    ) -> float: ...
    def score_many(
        self,
        sequences: Sequence[ArrayLike],
        starts: Sequence[int] | None = None,
        *,
        top: int = 0,
        vocab_limit: int | None = None,
    ) -> list[TokenScores]: ...
    def trace_names(self) -> list[str]: ...
    def trace(
        self,
        tokens: ArrayLike | Sequence[ArrayLike],
        names: str | Sequence[str] = "*",
        *,
        cache: KVCache | Sequence[KVCache] | None = None,
    ) -> dict[str, Any]: ...
    def edit(
        self, edits: Mapping[str, Edit | Callable[..., Any] | Sequence[Edit | Callable[..., Any]]]
    ) -> Editing: ...
    def profile(
        self,
        tokens: ArrayLike,
        cache: KVCache | None = None,
        *,
        last_only: bool = False,
        seconds: float = 1.0,
    ) -> Profile: ...
    def named_parameters(self) -> Iterator[tuple[str, NDArray[np.float32]]]: ...
    def state_dict(self) -> dict[str, NDArray[np.float32]]: ...
    @classmethod
    def from_pretrained(
        cls,
        source: str | PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        cache_dir: str | PathLike[str] | None = None,
    ) -> Self: ...
    def load_state_dict(self, mapping: Mapping[str, ArrayLike]) -> None: ...
    def save_pretrained(self, folder: str | PathLike, *, max_shard_size: int | str = "5GB") -> None: ...
    def save(self, path: str | PathLike, format: str = "safetensors") -> None: ...
