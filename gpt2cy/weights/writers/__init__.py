# SPDX-License-Identifier: Apache-2.0
"""Models into files: the formats that are written, and the one way to write them.

A writer has `check`, which raises before anything is touched, and `write`.
"""

import contextlib
import os
from collections.abc import Mapping

from numpy.typing import NDArray

from gpt2cy import _checks
from gpt2cy.config import GPTConfig
from gpt2cy.weights.atomic import replacing
from gpt2cy.weights.writers import gguf, llmc, safetensors

FORMATS = ("safetensors", "llm.c", "gguf")
_FILE_WRITERS = {"llm.c": llmc, "gguf": gguf}


def save(
    config: GPTConfig,
    parameters: Mapping[str, NDArray],
    path: str | os.PathLike,
    format: str = "safetensors",
    *,
    max_shard_size: int | str = "5GB",
) -> None:
    """Write a model, whole or not at all.

    Parameters
    ----------
    config : GPTConfig
    parameters : mapping of str to ndarray of float32
        The names and shapes of `config.parameter_shapes()`. Each is asked for when it is written, so no more
        than one need exist at a time.
    path : path-like
        A folder for "safetensors", made if it is not there; a file in an existing folder for the others. What
        is there is replaced when the new files are complete. A symbolic link to a file is replaced, not
        followed.
    format : {"safetensors", "llm.c", "gguf"}
    max_shard_size : int or str
        Bytes of a file of "safetensors", also as "5GB" or "200MiB"; above that there are several and an
        index.

    Raises
    ------
    ValueError
        If the format cannot express the model, naming what; nothing has been written then.
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    OSError
        If the files cannot be written; what was there before is unharmed.
    ImportError
        If the format needs a package that is missing.

    Examples
    --------
    >>> import os, tempfile, gpt2cy
    >>> from gpt2cy.weights import writers
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writers.save(model.config, model.state_dict(), folder)
    ...     sorted(os.listdir(folder))
    ['config.json', 'model.safetensors']
    """
    form = _checks.choice("format", format, FORMATS)
    if form == "safetensors":
        target = _checked_path("folder", path)
        safetensors.check(config, parameters, max_shard_size)
        with _folder(target):
            safetensors.write(config, parameters, target, max_shard_size)
        return
    target = _checked_path("path", path)
    _FILE_WRITERS[form].check(config, parameters)
    if os.path.isdir(target) or not os.path.basename(target):
        raise IsADirectoryError(f"path: expected a file's name for format {form!r}, got a folder: {target}")
    folder = os.path.dirname(target) or os.curdir
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"path: expected a file in a folder that exists, got {target}")
    with replacing(folder) as changes:
        _FILE_WRITERS[form].write(config, parameters, changes.create(os.path.basename(target)))


def _checked_path(name, path):
    """The path as text, asked for once: it may answer differently the next time."""
    if not isinstance(path, (str, os.PathLike)):  # as those that are read: bytes are none
        raise TypeError(f"{name}: expected a path, got {type(path).__name__}")
    path = os.fsdecode(path)
    if not path or "\0" in path:
        raise ValueError(f"{name}: expected a path, got {path[:40]!r}")
    return path


@contextlib.contextmanager
def _folder(path):
    """The folder is there inside; if it was made for this and the save fails, it goes again."""
    made = []
    missing = os.path.abspath(path)
    while not os.path.lexists(missing):
        made.append(missing)
        missing = os.path.dirname(missing)
    try:
        try:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(f"folder: expected a folder, got a file: {path}") from None
        yield
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        raise
