# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE vocabularies from a folder's files, checked, for any back end.

Three sets of files hold the same things: tokenizer.json; vocab.json and merges.txt; encoder.json and
vocab.bpe, the names of GPT-2's first release. Tokens in them are written in GPT-2's byte alphabet: each byte
is one printable character, so that a space is "Ġ". Only files on disk are read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt2cy import _checks
from gpt2cy.tokenizer.added import AddedToken

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_JSON = "tokenizer.json"
PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

_LARGEST_ID = 2**31 - 1  # far beyond any vocabulary, and within what the libraries count with


def _byte_alphabet():
    """Character -> byte: what prints in Latin-1 stands for itself, other bytes for 256, 257, ... in order."""
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()


@dataclass(frozen=True)
class Vocabulary:
    """What a back end is built from.

    Attributes
    ----------
    path : Path
        The file that it is from, for messages.
    tokens : dict
        Token in the byte alphabet -> id, without the added tokens.
    merges : list
        Pairs of tokens in the order in which BPE joins them.
    added : tuple of AddedToken
        Tokens beside the trained ones.
    eos : str or None
        The added token that ends a document.
    normalizer, pre_tokenizer, options
        Those parts of tokenizer.json, the last its model's without vocabulary and merges.
    """

    path: Path
    tokens: dict[str, int]
    merges: list[tuple[str, str]]
    added: tuple[AddedToken, ...]
    eos: str | None
    normalizer: Any
    pre_tokenizer: Any
    options: dict[str, Any]

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return 1 + max([*self.tokens.values(), *(token.id for token in self.added)])

    @property
    def eos_id(self) -> int | None:
        """Id of the token that ends a document."""
        return next((token.id for token in self.added if token.text == self.eos and token.special), None)

    def token_bytes(self) -> dict[int, bytes]:
        """Return the bytes of each id."""
        trained = {i: bytes(map(BYTE_OF.__getitem__, token)) for token, i in self.tokens.items()}
        return trained | {token.id: token.text.encode() for token in self.added}


def find(folder: Path) -> tuple[Path, ...]:
    """Return the files of the first set that a folder holds whole: one path or two, or none."""
    for names in ((TOKENIZER_JSON,), *PAIRS):
        paths = tuple(folder / name for name in names)
        if all(path.is_file() for path in paths):
            return paths
    return ()


def read(source: Path) -> Vocabulary:
    """Read the vocabulary of a folder, or a tokenizer.json of any name.

    Raises
    ------
    FileNotFoundError
        When there is no such file, or the folder holds no whole set; the message says which were looked for.
    ValueError
        When a file is not what it should be; the message begins with its path.
    """
    if source.is_file():
        paths: tuple[Path, ...] = (source,)
    elif source.is_dir():
        paths = find(source)
    else:
        raise FileNotFoundError(f"{source}: no such file or folder")
    if not paths:
        raise FileNotFoundError(f"{source}: expected {looked_for()}, found none of these")
    special_names, eos, settings = _beside(paths[0].parent)
    document = _json(paths[0])
    if len(paths) == 1:
        if not isinstance(document.get("model"), dict):
            raise ValueError(f"{source}: expected a tokenizer.json, found no 'model'; or give the folder")
        model = document["model"]
        _require_byte_level(paths[0], document)
        listed = document.get("added_tokens") or []
    else:
        model = {"type": "BPE", "vocab": document, "merges": _merge_lines(paths[1])}
        spaced = settings.get("add_prefix_space", False)
        cut = {"type": "ByteLevel", "add_prefix_space": spaced, "trim_offsets": False, "use_regex": True}
        document = {"pre_tokenizer": cut}
        listed = _added_beside(paths[0].parent, settings, special_names)
    try:
        tokens = _tokens(model.get("vocab"))
        added = _added(listed, tokens, {*special_names, END_OF_TEXT})
        tokens = {text: i for text, i in tokens.items() if text not in {token.text for token in added}}
        merges = _merges(model.get("merges"), tokens)
    except ValueError as error:
        raise ValueError(f"{paths[0]}: {error}") from None
    return Vocabulary(
        path=paths[0],
        tokens=tokens,
        merges=merges,
        added=added,
        eos=eos or END_OF_TEXT,
        normalizer=document.get("normalizer"),
        pre_tokenizer=document["pre_tokenizer"],
        options={key: value for key, value in model.items() if key not in ("vocab", "merges")},
    )


def looked_for() -> str:
    """The sets of files, as a message lists them."""
    return ", or ".join([TOKENIZER_JSON, *(" and ".join(pair) for pair in PAIRS)])


# ---- files ---------------------------------------------------------------------------------------------


def _json(path):
    """The object that a JSON file holds."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON in UTF-8: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(found).__name__}")
    return found


def _merge_lines(path):
    """The merges of a text file, a pair a line; its first line may name a version."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # tokens may hold other ends of lines
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8: {error}") from None
    first = 1 if lines[0].startswith("#version") else 0
    return [line.rstrip("\r") for line in lines[first:] if line.rstrip("\r")]


def _beside(folder):
    """Names of special tokens, the eos token, and tokenizer_config.json: of the files in a folder."""
    special, eos, settings = set(), None, {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings = _json(folder / name)
            for key, value in settings.items():
                if key.endswith("_token") or key == "additional_special_tokens":
                    special |= set(_texts(value))
            eos = next(iter(_texts(settings.get("eos_token"))), eos)
    return special, eos, settings


def _texts(value):
    """The texts of a token, written as text or as an object, or of a list of them."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict):
        yield from _texts(value.get("content"))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _added_beside(folder, settings, special_names):
    """Added tokens that vocab.json does not have, in the form of tokenizer.json."""
    path = folder / "added_tokens.json"
    old = _json(path) if path.is_file() else {}
    listed = {text: {"content": text, "id": i, "special": text in special_names} for text, i in old.items()}
    decoder = settings.get("added_tokens_decoder")
    for key, value in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(value, dict) and key.isdecimal():
            listed[str(value.get("content"))] = {**value, "id": int(key)}
    return list(listed.values())


# ---- checks --------------------------------------------------------------------------------------------


def _require_byte_level(path, document):
    """Refuse a tokenizer.json whose tokens do not stand for fixed bytes."""
    model = document["model"]
    if model.get("type", "BPE") != "BPE":
        raise ValueError(f"{path}: expected a model of type 'BPE', got {model['type']!r}")
    if "ByteLevel" not in _types(document.get("pre_tokenizer")):
        raise ValueError(f"{path}: expected a byte-level tokenizer (pre_tokenizer 'ByteLevel')")
    if not set(_types(document.get("decoder"))) <= {"ByteLevel"}:
        raise ValueError(f"{path}: expected decoder 'ByteLevel', got {_types(document['decoder'])}")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise ValueError(f"{path}: expected no {option}, got {model[option]!r}")


def _types(step):
    """The types of a step of tokenizer.json, of all its parts when it is a sequence."""
    if not isinstance(step, dict):
        return []
    parts = step.get("pretokenizers") or step.get("decoders")
    if isinstance(parts, list):
        return [kind for part in parts for kind in _types(part)]
    return [str(step.get("type"))]


def _is_id(value):
    return type(value) is int and 0 <= value <= _LARGEST_ID


def _tokens(vocab):
    if not isinstance(vocab, dict) or not vocab:
        raise ValueError("expected a vocabulary, an object of tokens and ids")
    seen = {}
    for text, i in vocab.items():
        if not _is_id(i):
            raise ValueError(f"token {text!r}: expected an id, an integer from 0 to {_LARGEST_ID}, got {i!r}")
        if i in seen:
            raise ValueError(f"tokens {seen[i]!r} and {text!r} have the same id {i}")
        seen[i] = text
    return dict(vocab)


def _added(listed, tokens, special_names):
    """The added tokens: those listed, and special ones that the vocabulary itself holds."""
    if not isinstance(listed, list):
        raise ValueError("expected a list of added tokens")
    found = {}
    for item in listed:
        text, i = (item.get("content"), item.get("id")) if isinstance(item, dict) else (None, None)
        if not (isinstance(text, str) and text and _is_id(i)):
            raise ValueError(f"expected an added token with 'content' and 'id', got {item!r}")
        _checks.unicode_text("added token", text)
        flags = {key: item.get(key) is True for key in ("special", "lstrip", "rstrip", "single_word")}
        found[text] = AddedToken(text, i, **flags)
    for text in special_names:
        if text in found:
            found[text] = found[text]._replace(special=True)
        elif text in tokens:
            found[text] = AddedToken(text, tokens[text], special=True)
    _require_own_ids(found, tokens)
    stray = next((text for text in tokens if text not in found and not set(text) <= BYTE_OF.keys()), None)
    if stray is not None:
        raise ValueError(f"token {stray!r}: expected characters of the byte alphabet")
    return tuple(sorted(found.values(), key=lambda token: token.id))


def _require_own_ids(added: Mapping[str, AddedToken], tokens):
    text_of = {i: text for text, i in tokens.items()}
    for text, token in added.items():
        other = text_of.setdefault(token.id, text)
        if other != text or tokens.get(text, token.id) != token.id:
            raise ValueError(f"added token {text!r}: its id {token.id} disagrees with the vocabulary's")


def _merges(listed, tokens):
    """Pairs of tokens whose join is a token too; each is written "a b" or ["a", "b"]."""
    if not isinstance(listed, list):
        raise ValueError("expected a list of merges")
    merges = []
    for i, item in enumerate(listed):
        pair = item.split(" ") if isinstance(item, str) else item
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise ValueError(f"merge {i}: expected two tokens, got {item!r}")
        left, right = pair
        if not (left in tokens and right in tokens and left + right in tokens):
            raise ValueError(f"merge {i}: {left!r} and {right!r} or what they make is not in the vocabulary")
        merges.append((left, right))
    return merges
