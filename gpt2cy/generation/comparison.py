# SPDX-License-Identifier: Apache-2.0
"""Which answer a model finds likeliest behind a prompt.

The text of prompt and answer is encoded once, as a whole, and split by character offsets: tokens that hold
a character of the answer are the answer's.  Whitespace at the end of a prompt belongs to the answer, since
GPT-2's tokens have it before a word.
"""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gpt2cy import _checks
from gpt2cy.generation import scoring

MEASURES = ("logprob", "per_token", "per_character")


@dataclass(frozen=True)
class Answer:
    """An answer, and how likely it is behind the prompt.

    Attributes
    ----------
    text : str
        As it was given.
    logprob : float
        Natural logarithm of the probability of all its tokens.
    per_token, per_character : float
        logprob over the number of its tokens, and over the number of characters of `text`.
    is_greedy : bool
        Whether each of its tokens was the likeliest: greedy generation would have written it.
    tokens : tuple of int
        Whitespace at the end of the prompt is in there.
    token_logprobs : tuple of float
    dropped : int
        Tokens at the beginning of the prompt that the model did not see, since they did not fit.
    """

    text: str
    logprob: float
    per_token: float
    per_character: float
    is_greedy: bool
    tokens: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    dropped: int


@dataclass(frozen=True)
class Comparison:
    """Answers to one prompt, in the order in which they were given.

    Attributes
    ----------
    prompt : str
    answers : tuple of Answer
    by : {"logprob", "per_token", "per_character"}
        What `best` goes by.
    """

    prompt: str
    answers: tuple[Answer, ...]
    by: str

    @property
    def best(self) -> Answer:
        """The answer of the highest number; of equal ones the first."""
        return max(self.answers, key=lambda answer: getattr(answer, self.by))

    def ranking(self) -> list[Answer]:
        """Return the answers, best first."""
        return sorted(self.answers, key=lambda answer: -getattr(answer, self.by))

    def to_dict(self) -> dict:
        """Return everything as dicts, lists, strings and numbers, with the position of the best answer."""
        best = self.answers.index(self.best)
        answers = [asdict(answer) for answer in self.answers]
        for answer in answers:
            answer |= {name: list(answer[name]) for name in ("tokens", "token_logprobs")}
        return {"prompt": self.prompt, "by": self.by, "best": best, "answers": answers}


def split(tokenizer, prompt: str, answer: str, allow_special: bool) -> tuple[list[int], int]:
    """Return the ids of prompt and answer, and how many of them are the prompt's.

    Where the prompt has none, the token that ends a document stands for it.
    """
    ids, offsets = tokenizer.encode_with_offsets(prompt + answer, allow_special=allow_special)
    border = len(prompt.rstrip())
    start = sum(end <= border for _, end in offsets)
    if start == 0:
        if tokenizer.eos_id is None:
            raise ValueError("prompt: expected at least one token; the tokenizer has no eos to begin from")
        return [tokenizer.eos_id, *ids], 1
    return ids, start


def compare(model, tokenizer, prompt, answers, by, vocab_limit, allow_special) -> Comparison:
    """See `LanguageModel.compare`."""
    by = _checks.choice("by", by, MEASURES)
    prompt = _checks.unicode_text("prompt", prompt)
    if isinstance(answers, (str, bytes, bytearray, memoryview)) or not isinstance(answers, Sequence):
        raise TypeError(f"answers: expected a list of texts, got {type(answers).__name__}")
    if not answers:
        raise ValueError("answers: expected at least one, got none")
    answers = [_checks.unicode_text(f"answers[{i}]", answer) for i, answer in enumerate(answers)]
    block_size = model.wpe.num_embeddings
    limit, _ = scoring.checked_columns(model, vocab_limit, 0)
    sequences, starts, dropped = [], [], []
    for i, answer in enumerate(answers):
        if not answer:
            raise ValueError(f"answers[{i}]: expected at least one character, got none")
        ids, start = split(tokenizer, prompt, answer, allow_special)
        _checks.length_fits(f"answers[{i}]", len(ids) - start, 0, block_size)
        over = max(0, len(ids) - 1 - block_size)  # the last token is not run
        sequences.append(ids[over:])
        starts.append(start - over)
        dropped.append(over)
    if any(dropped):
        warnings.warn(
            f"prompt: its first {max(dropped)} tokens are left out: with the answers it does not fit the "
            f"block_size of {block_size}",
            stacklevel=3,
        )
    arrays = _checks.token_sequences(sequences, model.wte.num_embeddings, "answers")
    pieces = [  # whose messages count from the answer's first token
        scoring.Piece(ids, start, f"answers[{i}]", -start)
        for i, (ids, start) in enumerate(zip(arrays, starts, strict=True))
    ]
    scores = scoring.score_pieces(model, pieces, 0, limit)
    found = []
    for text, score, over in zip(answers, scores, dropped, strict=True):
        logprob = score.logprob
        found.append(
            Answer(
                text,
                logprob,
                logprob / len(score),
                logprob / len(text),
                score.is_greedy,
                tuple(score.tokens.tolist()),
                tuple(score.logprobs.tolist()),
                over,
            )
        )
    return Comparison(prompt, tuple(found), by)
