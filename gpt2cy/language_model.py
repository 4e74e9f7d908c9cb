# SPDX-License-Identifier: Apache-2.0
"""A model and its tokenizer together: text in, text out.

load(source)
  weights.open_checkpoint    configuration, and the folder that the tokenizer is looked for in
  find_tokenizer             its files beside the weights, or bytes
  GPT.from_pretrained        the weights
  LanguageModel              vocabularies compared
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from gpt2cy import _checks
from gpt2cy import tokenizer as tokenizers
from gpt2cy.layers.functional import softmax
from gpt2cy.model import GPT
from gpt2cy.tokenizer import ByteTokenizer, Tokenizer, vocabulary

if TYPE_CHECKING:
    from gpt2cy.cache import KVCache
    from gpt2cy.generation.comparison import Comparison
    from gpt2cy.generation.result import Generated
    from gpt2cy.generation.sampling import Sampling
    from gpt2cy.generation.scored_text import Score
    from gpt2cy.generation.text import Stream


class NextToken(NamedTuple):
    """A token that may come next: its text, its id, and its probability."""

    text: str
    id: int
    probability: float


class LanguageModel:
    """A model with its tokenizer; `gpt2cy.load` makes one from files.

    Parameters
    ----------
    model : GPT
    tokenizer : Tokenizer
        Its vocabulary may be smaller than the model's, which is then padded: ids without a token never come
        out, and have no share of `next_tokens`' probabilities; `score` and `compare` take a `vocab_limit`.

    Raises
    ------
    TypeError
        When an argument is of another kind.
    ValueError
        When the tokenizer has ids that the model has not.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.tokenizer import ByteTokenizer
    >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
    >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
    >>> lm.encode("Hi"), lm.decode([72, 105])
    ([72, 105], 'Hi')
    >>> [(len(token.text), token.probability > 0) for token in lm.next_tokens("To be", k=2)]
    [(1, True), (1, True)]
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer):
        if not isinstance(model, GPT):
            raise TypeError(f"model: expected a GPT, got {type(model).__name__}")
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(f"tokenizer: expected a Tokenizer, got {type(tokenizer).__name__}")
        require_fit(tokenizer.vocab_size, model.wte.num_embeddings)
        self._model = model
        self._tokenizer = tokenizer
        self._known = np.array([i for i in range(tokenizer.vocab_size) if tokenizer.has_token(i)])

    @property
    def model(self) -> GPT:
        """The model."""
        return self._model

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self._tokenizer

    def __repr__(self):
        config = self.model.config
        sizes = ", ".join(f"{name}={getattr(config, name)}" for name in ("n_layers", "n_embd", "vocab_size"))
        return f"LanguageModel(GPT({sizes}), {self.tokenizer!r})"

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """The same as `encode` of the tokenizer: ids of a text, nothing stripped, added or cut."""
        return self.tokenizer.encode(text, allow_special=allow_special)

    def decode(self, ids) -> str:
        """The same as `decode` of the tokenizer: the text of ids, bytes that are no UTF-8 as U+FFFD."""
        return self.tokenizer.decode(ids)

    def next_tokens(self, text: str, k: int = 10, *, allow_special: bool = False) -> list[NextToken]:
        """Return the k tokens that most probably follow a text, the likeliest first.

        Parameters
        ----------
        text : str
            The beginning. With an empty one the model stands at the beginning of a document: behind the
            token that ends the one before, where the tokenizer has such a token.
        k : int
            How many, from 1 to the number of tokens.
        allow_special : bool
            Whether special tokens in the text are taken as such; see `Tokenizer.encode`.

        Returns
        -------
        list of NextToken
            (text, id, probability); of equal ones the smaller id comes first. Probabilities are float32 and
            those of all tokens add up to 1.

        Raises
        ------
        TypeError
            When an argument is of the wrong kind.
        ValueError
            When the text has more tokens than the model has positions (nothing is cut), when it is empty and
            there is no token to begin from, when `k` is out of range, or when the logits are not finite.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
        >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
        >>> text, token, probability = lm.next_tokens("To be", k=1)[0]
        >>> lm.encode(text) == [token] or text == "\ufffd"
        True
        """
        k = _checks.integer("k", k, 1, len(self._known))
        ids = self.encode(text, allow_special=allow_special) or self.beginning()
        _checks.length_fits("text", len(ids), 0, self.model.wpe.num_embeddings)
        logits = self.model.next_logits(ids)[self._known]  # [V without padding]
        if not np.isfinite(logits).all():
            from gpt2cy.generation import trouble

            began = trouble.began(self.model, ids)
            raise ValueError(f"text: the model's logits for it are not finite{began}")
        probabilities = softmax(logits)
        likeliest = np.argsort(-logits, kind="stable")[:k]
        found = ((int(self._known[i]), float(probabilities[i])) for i in likeliest)
        return [NextToken(self.tokenizer.token_text(token), token, share) for token, share in found]

    @overload
    def generate(
        self,
        text: str,
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        cache: KVCache | None = None,
        progress: Callable[[int], object] | None = None,
        allow_special: bool = False,
        **settings,
    ) -> Generated: ...
    @overload
    def generate(
        self,
        text: Sequence[str],
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        cache: KVCache | None = None,
        progress: Callable[[int], object] | None = None,
        allow_special: bool = False,
        **settings,
    ) -> list[Generated]: ...
    def generate(self, text, sampling=None, *, cache=None, progress=None, allow_special=False, **settings):
        """Continue a text or several, all in one batch.

        Parameters
        ----------
        text : str or list of str
            Nothing is stripped or added, and none is cut. An empty one begins a document: behind the token
            that ends the one before, where the tokenizer has such a token.
        sampling : Sampling, or a list of one a text, optional
            The settings; `Sampling` describes them.
        cache : KVCache, optional
            What `GPT.prefill` has read: every text continues it, and may then be empty.
        progress : function, optional
            Called with the number of new ids after each step.
        allow_special : bool
            Whether special tokens in a text are taken as such; see `Tokenizer.encode`.
        **settings
            Any setting of `Sampling`, one value for all texts or a list of one a text; see `GPT.generate`.
            ``stop`` is a string or several that end a text and are no part of it. Unless `stop_ids` are
            given, a text ends at the tokenizer's end of text. Unless `vocab_limit` is given, ids without a
            token do not come.

        Returns
        -------
        Generated, or list of Generated
            For one text its one continuation; else a list, the samples of a text following each other.

        Raises
        ------
        TypeError, ValueError, FloatingPointError, RuntimeError
            As `GPT.generate`.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
        >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
        >>> result = lm.generate("To be", max_new_tokens=5, seed=1)
        >>> len(result.tokens), result.finish_reason, result.text == lm.decode(result.tokens)
        (5, 'length', True)
        >>> results = lm.generate(["To be", "or not"], max_new_tokens=[3, 4], top_p=0.9)
        >>> [len(result.tokens) for result in results]
        [3, 4]
        """
        from gpt2cy.generation import text as texts

        return texts.generate(self, text, sampling, cache, progress, allow_special, settings)

    def stream(
        self,
        text: str,
        sampling: Sampling | Sequence[Sampling] | None = None,
        *,
        cache: KVCache | None = None,
        allow_special: bool = False,
        **settings,
    ) -> Stream:
        """Continue a text, and yield what comes as it comes.

        Parameters and errors are those of `generate`, for one text and one sample.

        Returns
        -------
        Stream
            An iterator of str, none empty; joined they are the text that `generate` returns. A piece is held
            back while it may be part of a character or of a stop string. `seed` is known at once, `result` at
            the end.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
        >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
        >>> stream = lm.stream("To be", max_new_tokens=5, seed=1)
        >>> text = "".join(stream)
        >>> text == stream.result.text == lm.generate("To be", max_new_tokens=5, seed=1).text
        True
        """
        from gpt2cy.generation import text as texts

        return texts.stream(self, text, sampling, cache, allow_special, settings)

    @overload
    def score(
        self,
        text: str,
        *,
        top: int = 0,
        stride: int | None = None,
        bos: bool = False,
        vocab_limit: int | None = None,
        allow_special: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Score: ...
    @overload
    def score(
        self,
        text: list[str] | tuple[str, ...],
        *,
        top: int = 0,
        stride: int | None = None,
        bos: bool = False,
        vocab_limit: int | None = None,
        allow_special: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> list[Score]: ...
    def score(
        self, text, *, top=0, stride=None, bos=False, vocab_limit=None, allow_special=False, progress=None
    ):
        """Return how likely the model finds each token of a text, knowing the text before it.

        Parameters
        ----------
        text : str or list of str
            Of any length: one longer than the model sees at once is scored through windows.
        top : int
            How many of the likeliest tokens to name in each place.
        stride : int, optional
            How far the windows are apart; see `GPT.token_logprobs`.
        bos : bool
            Whether the token that ends a document is put before the text, so that the first token has
            something before it and is scored too. False scores each token after the first.
        vocab_limit : int, optional
            Only ids below it have a share of the probability. None means all of the model's, also rows that
            pad its vocabulary, as transformers counts them; ``tokenizer.vocab_size`` leaves those out.
        allow_special : bool
            Whether special tokens in the text are taken as such; see `Tokenizer.encode`.
        progress : function, optional
            Called now and then with the number of tokens that have been scored since.

        Returns
        -------
        Score, or a list of them for a list of texts
            The same bits for a text alone and among others.

        Raises
        ------
        TypeError, ValueError
            When an argument is of the wrong kind or out of range, a text is empty, a list has none, or there
            is no token for `bos`.
        FloatingPointError
            When logits are not finite.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
        >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
        >>> lm.score("To be, or not to be")
        Score(19 tokens, ... bits, ... bits per byte, perplexity ...)
        """
        from gpt2cy.generation import scored_text

        if not isinstance(text, Sequence) or isinstance(text, (bytes, bytearray, memoryview)):
            raise TypeError(f"text: expected text (str) or a list of texts, got {type(text).__name__}")
        one = isinstance(text, str)
        texts = {"text": text} if one else {f"text[{i}]": item for i, item in enumerate(text)}
        scores = scored_text.score_texts(
            self.model, self.tokenizer, texts, top, stride, bos, vocab_limit, allow_special, progress
        )
        return scores[0] if one else scores

    def compare(
        self,
        prompt: str,
        answers: Sequence[str],
        *,
        by: str = "logprob",
        vocab_limit: int | None = None,
        allow_special: bool = False,
    ) -> Comparison:
        """Return how likely the model finds each of several answers behind a prompt, which is computed once.

        Parameters
        ----------
        prompt : str
            Whitespace at its end belongs to the answers. With an empty one the answers begin a document.
        answers : list of str
            None of them empty. A token that holds characters of both belongs to the answer.
        by : {"logprob", "per_token", "per_character"}
            What makes an answer the best: the probability of all its tokens, or its logarithm over their
            number, or over the number of characters.
        vocab_limit, allow_special
            As `score`.

        Returns
        -------
        Comparison

        Raises
        ------
        TypeError, ValueError
            When an argument is of the wrong kind or out of range, an answer is empty or has more tokens than
            the model has positions, or the prompt is empty and there is no token to begin from.
        FloatingPointError
            When logits are not finite.

        Warns
        -----
        UserWarning
            When prompt and answer do not fit, and tokens at the beginning of the prompt are left out; each
            answer says how many.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
        >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
        >>> found = lm.compare("To be, or", [" not to be", " to be"], by="per_token")
        >>> found.best in found.answers, found.answers[1].logprob < 0
        (True, True)
        """
        from gpt2cy.generation import comparison

        return comparison.compare(self.model, self.tokenizer, prompt, answers, by, vocab_limit, allow_special)

    def beginning(self) -> list[int]:
        """Return the ids that a document begins behind: of the token that ends the one before.

        Raises
        ------
        ValueError
            Where the tokenizer has no such token.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
        >>> gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer()).beginning()
        Traceback (most recent call last):
        ValueError: text: expected at least one character; the tokenizer has no eos to begin from
        """
        return self._beginning("text")

    def _beginning(self, name: str) -> list[int]:
        """The same for the argument `name`, which is empty."""
        if self.tokenizer.eos_id is None:
            raise ValueError(
                f"{name}: expected at least one character; the tokenizer has no eos to begin from"
            )
        return [self.tokenizer.eos_id]

    def _gaps(self) -> list[int]:
        """The ids below the tokenizer's `vocab_size` that have no token."""
        return np.setdiff1d(np.arange(self.tokenizer.vocab_size), self._known).tolist()


def load(
    source: str | os.PathLike,
    *,
    tokenizer: Tokenizer | str | os.PathLike | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    cache_dir: str | os.PathLike | None = None,
) -> LanguageModel:
    """Load a model and its tokenizer.

    Parameters
    ----------
    source : str or path
        A folder, a file, or a hub id; as `GPT.from_pretrained`.
    tokenizer : Tokenizer, str or path, optional
        A tokenizer, or where its files are (`gpt2cy.tokenizer.load`). None means those beside the weights:
        tokenizer.json, else vocab.json and merges.txt; where there are none, a model of 256 ids reads bytes.
    revision, token, local_files_only, cache_dir
        For the hub, as huggingface_hub takes them.

    Raises
    ------
    FileNotFoundError
        When there is no tokenizer; the message says which files were looked for, and where.
    ValueError
        When the tokenizer has ids that the model has not; also as `GPT.from_pretrained`.
    TypeError, OSError, ImportError, MemoryError
        As `GPT.from_pretrained` and `gpt2cy.tokenizer.load`.

    Examples
    --------
    >>> import tempfile, gpt2cy
    >>> config = gpt2cy.GPTConfig(256, 32, 2, 2, 64, tie_weights=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gpt2cy.GPT(config, seed=0).save_pretrained(folder)
    ...     lm = gpt2cy.load(folder)
    >>> lm.tokenizer
    ByteTokenizer(vocab_size=256, eos_id=None)
    """
    from gpt2cy import weights  # files are opened only when this is asked for

    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        tokenizer = tokenizer_at(tokenizer)
    hub = {"revision": revision, "token": token, "local_files_only": local_files_only, "cache_dir": cache_dir}
    with weights.open_checkpoint(source, **hub) as checkpoint:
        folder, vocab_size = checkpoint.folder, checkpoint.config.vocab_size
    # Before the weights, which take longest to read.
    if tokenizer is None:
        tokenizer = find_tokenizer(folder, vocab_size)
    require_fit(tokenizer.vocab_size, vocab_size)
    return LanguageModel(GPT.from_pretrained(on_disk(source, folder)), tokenizer)


def tokenizer_at(place: str | os.PathLike) -> Tokenizer:
    """Return the tokenizer whose files are at the place that the argument `tokenizer` names."""
    if not isinstance(place, (str, os.PathLike)):
        raise TypeError(f"tokenizer: expected a Tokenizer or a path, got {type(place).__name__}")
    if not os.path.exists(place):
        raise FileNotFoundError(f"tokenizer: no such file or folder: {str(place)[:200]!r}")
    return tokenizers.load(place)


def on_disk(source: str | os.PathLike, folder: Path) -> str | os.PathLike:
    """Return where an opened source lies: what a hub id names is in the cache's folder by now."""
    return source if Path(source).exists() else folder


def find_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """Return the tokenizer that lies in a folder, else the one of bytes for 256 ids, else raise."""
    if vocabulary.find(folder):
        return tokenizers.load(folder)
    if vocab_size == 256:
        return ByteTokenizer()
    raise FileNotFoundError(
        f"{folder}: no tokenizer: looked for {vocabulary.looked_for()}; tokenizer= takes one, or its folder"
    )


def require_fit(tokenizer_size: int, model_size: int) -> None:
    """Raise ValueError when a tokenizer has ids that the model has not."""
    if tokenizer_size > model_size:
        raise ValueError(
            f"tokenizer: expected a vocabulary of at most the model's {model_size} ids, got {tokenizer_size}"
        )
