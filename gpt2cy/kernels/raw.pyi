# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable, Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from gpt2cy.kernels.packed import PackedMatrix

ACTIVATIONS: dict[str | None, int]

def pack(weight: NDArray[np.float32]) -> PackedMatrix: ...
def gemm(
    a: NDArray[np.float32],
    w: PackedMatrix,
    bias: NDArray[np.float32] | None = None,
    activation: Literal["gelu_tanh", "gelu_erf", "relu"] | None = None,
    residual: NDArray[np.float32] | None = None,
    isa: str | None = None,
    n_threads: int = 1,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]: ...

@disjoint_base
class Attention:
    out: NDArray[np.float32]

    def __new__(
        cls,
        qkv: NDArray[np.float32],
        n_heads: int,
        scale: float,
        isa: str | None = None,
        n_threads: int = 1,
        fill: float = 0.0,
    ) -> Self: ...
    def rows(self, first: int, end: int) -> None: ...
    def append(self) -> None: ...
    def may_append(self) -> bool: ...
    def attend(self, appends: bool = False) -> None: ...

def attention(
    qkv: NDArray[np.float32],
    n_heads: int,
    scale: float,
    cuts: Iterable[int] = (),
    isa: str | None = None,
    n_threads: int = 1,
    fill: float = 0.0,
    appends: bool = False,
) -> NDArray[np.float32]: ...
def layernorm(
    x: NDArray[np.float32],
    gamma: NDArray[np.float32],
    beta: NDArray[np.float32] | None = None,
    eps: float = 1e-5,
    isa: str | None = None,
    n_threads: int = 1,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]: ...
def softmax(
    x: NDArray[np.float32],
    isa: str | None = None,
    n_threads: int = 1,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]: ...
def activation(
    x: NDArray[np.float32],
    kind: Literal["gelu_tanh", "gelu_erf", "relu", "exp"] | None,
    isa: str | None = None,
    n_threads: int = 1,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]: ...

STATISTICS: np.dtype[np.void]

def statistics(
    x: NDArray[np.float32],
    targets: ArrayLike | None = None,
    isa: str | None = None,
    n_threads: int = 1,
) -> NDArray[np.void]: ...
def top(
    x: NDArray[np.float32], k: int, isa: str | None = None, n_threads: int = 1
) -> list[NDArray[np.int64]]: ...
def select(
    x: NDArray[np.float32],
    inverse_temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
    isa: str | None = None,
    draws: Sequence[float] = (),
) -> tuple[NDArray[np.float32], NDArray[np.int64]]: ...
