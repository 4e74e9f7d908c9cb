# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE by the ``tokenizers`` package: whatever a byte-level tokenizer.json may say."""

import json

from gpt2cy.tokenizer.base import Tokenizer
from gpt2cy.tokenizer.vocabulary import Vocabulary


class HFTokenizer(Tokenizer):
    """The tokenizer of a vocabulary, by ``tokenizers``; see `gpt2cy.tokenizer.load`."""

    def __init__(self, vocabulary: Vocabulary):
        from tokenizers import Tokenizer as Library  # optional: needed when one is made

        super().__init__(vocabulary.token_bytes(), vocabulary.added, vocabulary.eos)
        # Added tokens, post-processors, truncation and padding stay out: they change ids behind one's back.
        document = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": vocabulary.normalizer,
            "pre_tokenizer": vocabulary.pre_tokenizer,
            "post_processor": None,
            "decoder": None,
            "model": {
                **vocabulary.options,
                "type": "BPE",
                "vocab": vocabulary.tokens,
                "merges": vocabulary.merges,
                "unk_token": None,
            },
        }
        try:
            self._library = Library.from_str(json.dumps(document))
        except Exception as error:  # the library has no narrower one
            raise ValueError(f"{vocabulary.path}: tokenizers cannot use it: {error}") from None

    def _encode_plain(self, text):
        return self._library.encode(text, add_special_tokens=False).ids
