# SPDX-License-Identifier: Apache-2.0
"""What every tokenizer does: the checks, added tokens, decoding and offsets.

A back end says only how a stretch of plain text becomes ids. Decoding needs no back end: in byte-level
tokenizers each id stands for fixed bytes, and a text's bytes are those of its ids, one after the other. So
nothing is cleaned up, no space is added or lost, and all back ends agree.
"""

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from gpt2cy import _checks
from gpt2cy.tokenizer.added import AddedToken, Splitter


class Tokenizer(ABC):
    """Text to ids and back. `gpt2cy.tokenizer.load` makes one; a subclass implements `_encode_plain`.

    Parameters
    ----------
    token_bytes : mapping of int to bytes
        The bytes of each id, added tokens included. Ids may have gaps.
    added : iterable of AddedToken
        Tokens that text is cut at. Special ones are found only with ``allow_special=True``.
    eos : str, optional
        The added token that ends a document.

    Examples
    --------
    >>> from gpt2cy.tokenizer import ByteTokenizer
    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.encode("né")
    [110, 195, 169]
    >>> tokenizer.decode([110, 195, 169]), tokenizer.decode([195]), tokenizer.decode_bytes([195])
    ('né', '\ufffd', b'\xc3')
    """

    def __init__(
        self, token_bytes: Mapping[int, bytes], added: Iterable[AddedToken] = (), eos: str | None = None
    ):
        added = tuple(added)
        self._bytes = dict(token_bytes)
        self._vocab_size = max(self._bytes, default=-1) + 1
        written = {token[0] for token in self._bytes.values() if len(token) == 1}
        self._unwritable = frozenset(range(256)) - written
        self._splitter = Splitter(added)
        self._special = {token.text: token.id for token in added if token.special}
        self._eos_id = None if eos is None else self._special.get(eos)

    @abstractmethod
    def _encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text that holds no added token to be found; it is never empty."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self._vocab_size

    @property
    def eos_id(self) -> int | None:
        """Id of the token that ends a document, or None where there is none."""
        return self._eos_id

    @property
    def special_tokens(self) -> dict[str, int]:
        """A new dict of the special tokens' texts and ids."""
        return dict(self._special)

    def __repr__(self):
        return f"{type(self).__name__}(vocab_size={self.vocab_size}, eos_id={self.eos_id})"

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Return the ids of a text; nothing is stripped, added or cut.

        Parameters
        ----------
        text : str
            Any length, also empty.
        allow_special : bool
            Whether special tokens such as ``<|endoftext|>`` become their ids. By default they are plain text:
            a text from elsewhere must not be able to end a document.

        Raises
        ------
        TypeError
            When the text is no str.
        ValueError
            When the text has a lone surrogate, which UTF-8 cannot express, or a byte without a token.
        """
        return [token for piece, _, _ in self._pieces(text, allow_special) for token in piece]

    def encode_with_offsets(
        self, text: str, *, allow_special: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids, and the half-open range of characters that each comes from.

        Tokens that share a character, since they hold only some of its bytes, all have it in their ranges.

        Raises
        ------
        TypeError, ValueError
            As `encode`; also ValueError when the tokenizer has changed the text before it cut it.

        Examples
        --------
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> ByteTokenizer().encode_with_offsets("né")
        ([110, 195, 169], [(0, 1), (1, 2), (1, 2)])
        """
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for piece, start, end in self._pieces(text, allow_special):
            ids += piece
            if len(piece) == 1:
                offsets.append((start, end))
            else:
                offsets += self._offsets(piece, text[start:end], start)
        return ids, offsets

    def decode(self, ids) -> str:
        """Return the text of the ids; bytes that are no UTF-8 become U+FFFD.

        Parameters
        ----------
        ids : sequence of int
            Of any integer kind, one-dimensional; may be empty.

        Raises
        ------
        TypeError
            When they are not a sequence of integers.
        ValueError
            When an id is outside the vocabulary or has no token; the message names the id.
        """
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids) -> bytes:
        """Return the bytes of the ids, exactly. Raises as `decode`."""
        return b"".join(self._bytes_of(_checks.id_sequence("ids", ids, self.vocab_size)))

    def token_text(self, token: int) -> str:
        """Return one token's text; the bytes of part of a character become U+FFFD. Raises as `decode`."""
        token = _checks.integer("token", token, 0, self.vocab_size - 1)
        if token not in self._bytes:
            raise ValueError(f"token: id {token} has no token")
        return self._bytes[token].decode("utf-8", "replace")

    def has_token(self, token: int) -> bool:
        """Whether an id stands for anything: ids may have gaps, and a model's vocabulary may be padded."""
        if type(token) is not int:  # it is asked of every id of a vocabulary
            token = _checks.integer("token", token)
        return token in self._bytes

    def stream_decoder(self) -> "StreamDecoder":
        """Return a decoder for ids that come one after the other.

        Examples
        --------
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> decoder = ByteTokenizer().stream_decoder()
        >>> [decoder.feed([110]), decoder.feed([195]), decoder.feed([169]), decoder.finish()]
        ['n', '', 'é', '']
        """
        return StreamDecoder(self)

    def _pieces(self, text, allow_special):
        """Yield (ids, start, end) of each added token and of the text between them."""
        text = _checks.unicode_text("text", text)
        allow_special = _checks.flag("allow_special", allow_special)
        for start, end, token in self._splitter.split(text, allow_special):
            yield (self._plain(text[start:end]) if token is None else [token]), start, end

    def _plain(self, text):
        """Ids of plain text; the libraries would drop a byte that has no token in silence."""
        if self._unwritable:
            data = text.encode()
            missing = next((byte for byte in data if byte in self._unwritable), None)
            if missing is not None:
                raise ValueError(f"text: the vocabulary has no token for byte {missing:#04x}")
        return self._encode_plain(text)

    def _offsets(self, ids, text, start):
        """Character ranges of the ids of a piece of text that begins at `start`."""
        data = text.encode()
        if b"".join(self._bytes_of(ids)) != data:
            raise ValueError("text: this tokenizer changes text: its tokens have no place in the original")
        character = [start + i for i, c in enumerate(text) for _ in range(len(c.encode()))]  # of each byte
        ranges, done = [], 0
        for token in ids:
            size = len(self._bytes[token])
            ranges.append((character[done], character[done + size - 1] + 1))
            done += size
        return ranges

    def _bytes_of(self, ids):
        found = [self._bytes.get(token) for token in ids]
        if None in found:
            position = found.index(None)
            raise ValueError(f"ids: id {ids[position]} at [{position}] has no token")
        return found


class StreamDecoder:
    """Text of ids that come one after the other; what it returns, joined, is `decode` of all of them.

    Bytes that may be the beginning of a character are held back until it is complete or cannot be any more.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids) -> str:
        """Take more ids and return the text that they complete. Raises as `decode`, taking nothing."""
        return self._utf8.decode(self._tokenizer.decode_bytes(ids))

    def finish(self) -> str:
        """Return U+FFFD for a character left incomplete, else nothing; the decoder can then begin anew."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text
