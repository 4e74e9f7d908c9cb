# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of GPT-2 models, read without torch.

source: file, folder, hub id
  sources          which files; the format from their first bytes
  hub              fetches them first
  readers/         one a format: what tensors lie where          -> Contents
  hf_config names  sizes and names, checked against each other   -> Checkpoint
  load             numbers, a block at a time, as float32 (dtypes), into a model
"""

from gpt2cy.weights.checkpoint import Checkpoint, Tensor

__all__ = ["Checkpoint", "Tensor", "load_into", "open_checkpoint"]


def open_checkpoint(
    source, *, revision=None, token=None, local_files_only=False, cache_dir=None
) -> Checkpoint:
    """Open a model that lies in a file, in a folder or on the hub; its numbers are not read yet.

    Parameters
    ----------
    source : str or Path
        A file, a folder, or an id on the hub such as "openai-community/gpt2" where there is no such path.
        Formats: docs/checkpoints.md.
    revision, token, local_files_only, cache_dir
        For the hub, as huggingface_hub takes them.

    Returns
    -------
    Checkpoint
        A context manager: it closes the files.

    Raises
    ------
    ValueError
        If a file is of no known format, damaged, refused, or does not fit its configuration. The message
        names the file, what was found and expected, and everything that is wrong with its tensors.
    OSError
        If a file is missing or cannot be read, or the hub does not answer.
    TypeError
        If source is neither text nor path.
    ImportError
        If the format or the hub needs a package that is not installed; the message says which.

    Examples
    --------
    >>> import tempfile, gpt2cy
    >>> from gpt2cy.weights import open_checkpoint
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     open_checkpoint(folder)
    Traceback (most recent call last):
    FileNotFoundError: ...: no model: looked for model.safetensors, ...
    """
    from gpt2cy.weights.sources import open_source

    return open_source(
        source, revision=revision, token=token, local_files_only=local_files_only, cache_dir=cache_dir
    )


def load_into(checkpoint: Checkpoint, put) -> None:
    """Read every tensor and hand it on, block by block.

    Parameters
    ----------
    checkpoint : Checkpoint
    put : function
        Called as put(name, rows, first, transposed) with float32 [r, last axis]; see Tensor.blocks.

    Raises
    ------
    TypeError
        If an argument is of another kind.
    """
    if not isinstance(checkpoint, Checkpoint):
        raise TypeError(f"checkpoint: expected a Checkpoint, got {type(checkpoint).__name__}")
    if not callable(put):
        raise TypeError(f"put: expected a function, got {type(put).__name__}")
    from gpt2cy.weights.load import load

    load(checkpoint, put)
