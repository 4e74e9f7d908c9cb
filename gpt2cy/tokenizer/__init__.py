# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back.

    load(folder)
      vocabulary.read        tokenizer.json, or vocab.json and merges.txt -> Vocabulary, checked
      hf, tiktoken           one optional library each: plain text -> ids, from the same Vocabulary
    Tokenizer                base: checks, added tokens (added), decoding, offsets, for every back end alike
    ByteTokenizer            bytes: for models that read bytes

An optional library is imported when its back end is asked for: ``pip install 'gpt2cy[text]'``.
"""

import os
from pathlib import Path

from gpt2cy import _checks
from gpt2cy.tokenizer import vocabulary
from gpt2cy.tokenizer.base import StreamDecoder, Tokenizer
from gpt2cy.tokenizer.bytes import ByteTokenizer
from gpt2cy.tokenizer.hf import HFTokenizer
from gpt2cy.tokenizer.tiktoken import TiktokenTokenizer

__all__ = ["BACKENDS", "ByteTokenizer", "StreamDecoder", "Tokenizer", "load"]

BACKENDS = {"tokenizers": HFTokenizer, "tiktoken": TiktokenTokenizer}


def load(source: str | os.PathLike, backend: str = "tokenizers") -> Tokenizer:
    """Read the tokenizer of a folder; no network is used.

    Parameters
    ----------
    source : str or path
        A folder with tokenizer.json, or vocab.json and merges.txt (or encoder.json and vocab.bpe, their
        first names); or one file in the format of tokenizer.json. Of the files beside it,
        tokenizer_config.json, special_tokens_map.json and added_tokens.json are heeded.
    backend : {"tokenizers", "tiktoken"}
        The library that does the work. Both give the same ids; tiktoken is faster, and refuses
        vocabularies that are not trained and cut as GPT-2's is.

    Raises
    ------
    FileNotFoundError
        When the files are not there; the message says which were looked for.
    ValueError
        When they are damaged, or say what cannot be done here (a tokenizer that is not byte-level BPE).
    ImportError
        When the back end's library is not installed.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> import gpt2cy.tokenizer
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> vocab = {"h": 0, "e": 1, "l": 2, "o": 3, "\u0120": 4, "he": 5, "ll": 6, "<|endoftext|>": 7}
    >>> _ = (folder / "vocab.json").write_text(json.dumps(vocab))
    >>> _ = (folder / "merges.txt").write_text("h e\\nl l\\n")
    >>> tokenizer = gpt2cy.tokenizer.load(folder, backend="tiktoken")
    >>> tokenizer.encode("hello hello")
    [5, 6, 3, 4, 5, 6, 3]
    >>> tokenizer.eos_id, tokenizer.encode("he<|endoftext|>", allow_special=True)
    (7, [5, 7])
    """
    backend = _checks.choice("backend", backend, tuple(BACKENDS))
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source: expected a path, got {type(source).__name__}")
    if not os.path.exists(source):  # an empty name is none; Path would make the current folder of it
        raise FileNotFoundError(f"source: no such file or folder: {str(source)[:200]!r}")
    found = vocabulary.read(Path(source))
    try:
        return BACKENDS[backend](found)
    except ModuleNotFoundError as error:
        raise ImportError(f"backend {backend!r} needs {error.name}: pip install 'gpt2cy[text]'") from error
