# SPDX-License-Identifier: Apache-2.0
"""The tensors of a GPT-2 file, one at a time, and what a format cannot say.

The files that we write know neither a model without biases nor a head with one. The first is written with
biases of zero, which computes the same; the second is refused unless the head's bias is zero.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt2cy.config import GPTConfig

HEAD_BIAS = "lm_head.bias"


class Tensor(NamedTuple):
    """A tensor that is made when it is written: a name, a shape, and a function that returns the array."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], NDArray[np.float32]]

    @property
    def nbytes(self) -> int:
        """Bytes as float32."""
        return 4 * int(np.prod(self.shape, dtype=object))

    def array(self) -> NDArray[np.float32]:
        """The numbers as a file has them: float32, little-endian, C order."""
        array = np.ascontiguousarray(self.read(), "<f4")
        if array.shape != self.shape:
            raise ValueError(f"{self.name}: expected shape {list(self.shape)}, got shape {list(array.shape)}")
        return array

    def transposed(self) -> "Tensor":
        """The same matrix as [out, in]."""
        return self._replace(shape=self.shape[::-1], read=lambda: self.read().T)


def tensors(config: GPTConfig, parameters: Mapping[str, NDArray]) -> Iterator[Tensor]:
    """Yield GPT-2's tensors in model order, under Hugging Face's names and in its layouts.

    Parameters
    ----------
    config : GPTConfig
    parameters : mapping of str to ndarray of float32
        The names of `config.parameter_shapes()`; asked for one at a time.
    """
    for name, shape in dataclasses.replace(config, bias=True, lm_head_bias=False).parameter_shapes().items():
        if name.endswith(".bias") and not config.bias:
            yield Tensor(name, shape, partial(_zeros, shape))
        else:
            yield Tensor(name, shape, partial(parameters.__getitem__, name))


def _zeros(shape) -> NDArray[np.float32]:
    return np.zeros(shape, np.float32)


def require(form: str, config: GPTConfig, parameters: Mapping[str, NDArray], **expected) -> None:
    """Refuse what the format cannot express: fields of the config of other values, a head with a bias.

    Raises
    ------
    ValueError
        Naming all of it.
    """
    problems = [
        f"{field}: expected {value!r}, got {getattr(config, field)!r}"
        for field, value in expected.items()
        if getattr(config, field) != value
    ]
    if config.has_lm_head_bias and np.any(parameters[HEAD_BIAS]):
        problems.append(f"{HEAD_BIAS}: expected none, or zeros, got other numbers")
    if problems:
        raise ValueError(f"format {form!r} cannot express this model:\n  " + "\n  ".join(problems))
