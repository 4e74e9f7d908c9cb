# SPDX-License-Identifier: Apache-2.0
"""One reader a format: what tensors a file holds and where they lie in it; their numbers are read later."""

from dataclasses import dataclass

from gpt2cy.config import GPTConfig
from gpt2cy.weights.checkpoint import Stored


@dataclass
class Contents:
    """What a file holds.

    Attributes
    ----------
    format : str
        As in Checkpoint.
    tensors : dict of str to Stored
    config : GPTConfig or None
        Where the file itself has one; else a config.json lies beside it.
    linear_transposed : bool
        Whether linear weights of the blocks are [out, in].
    """

    format: str
    tensors: dict[str, Stored]
    config: GPTConfig | None = None
    linear_transposed: bool = False
