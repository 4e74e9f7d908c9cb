# SPDX-License-Identifier: Apache-2.0
"""The numbers of a file as float32.

    name    bytes   float32
    F32     4       itself
    F16     2       exact
    BF16    2       exact: its bits are the upper half of the float32's
    F64     8       exact where float32 has the number, else the nearest; too large a one is refused

Names are those of safetensors. A quantised type of GGUF brings its own `Format`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """How `values` numbers lie in `nbytes` bytes, and how rows of them become float32.

    `decode` takes uint8 [r, bytes of a row] and returns float32 [r, values of a row], which may be a view.
    """

    values: int
    nbytes: int
    decode: Callable[[np.ndarray], np.ndarray]


def _float32(rows):
    return rows.view("<f4").astype(np.float32, copy=False)


def _float16(rows):
    return rows.view("<f2").astype(np.float32)


def _bfloat16(rows):
    return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _float64(rows):
    numbers = rows.view("<f8")
    with np.errstate(over="ignore", invalid="ignore"):
        result = numbers.astype(np.float32)
    lost = np.isinf(result) & np.isfinite(numbers)
    if lost.any():
        raise ValueError(f"expected numbers within float32, found {numbers[lost][0]}")
    return result


FLOATS = {
    "F32": Format(1, 4, _float32),
    "F16": Format(1, 2, _float16),
    "BF16": Format(1, 2, _bfloat16),
    "F64": Format(1, 8, _float64),
}
