# SPDX-License-Identifier: Apache-2.0
"""Which files a tokenizer is read from, what beside them counts, and what is refused."""

import copy
import json
import random
import sys

import pytest

from gpt2cy import tokenizer
from gpt2cy.tokenizer.vocabulary import BYTE_OF

VOCAB = {"h": 0, "e": 1, "l": 2, "o": 3, "Ġ": 4, "he": 5, "ll": 6, "<|endoftext|>": 7}
STEP = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def added(text, i, **flags):
    defaults = dict.fromkeys(("special", "lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": text, "id": i, **defaults, **flags}


def test_the_byte_alphabet():
    assert sorted(BYTE_OF.values()) == list(range(256))
    assert (BYTE_OF["A"], BYTE_OF["Ġ"], BYTE_OF["Ċ"], BYTE_OF["ł"]) == (65, 32, 10, 160)


# ---- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [False, True])
def test_a_pair_of_files(write_pair, backend, windows):
    merges = "#version: 0.2\nh e\nl l\n"
    found = tokenizer.load(write_pair(merges=merges.replace("\n", "\r\n" if windows else "\n")), backend)
    assert found.encode("hello hell") == [5, 6, 3, 4, 5, 6]
    assert (found.vocab_size, found.eos_id) == (8, 7)


def test_the_first_names_of_the_pair(write_pair, backend):
    folder = write_pair()
    (folder / "vocab.json").rename(folder / "encoder.json")
    (folder / "merges.txt").rename(folder / "vocab.bpe")
    assert tokenizer.load(folder, backend).encode("hello") == [5, 6, 3]


def test_tokenizer_json(write_json, backend):
    """Its truncation is not heeded: nothing is cut in silence."""
    folder = write_json(name="mine.json")
    found = tokenizer.load(folder / "mine.json", backend)
    assert found.encode("hello hell") == [5, 6, 3, 4, 5, 6]
    assert (found.vocab_size, found.eos_id) == (8, 7)
    (folder / "mine.json").rename(folder / "tokenizer.json")
    assert tokenizer.load(str(folder), backend).encode("hello") == [5, 6, 3]


def test_merges_as_pairs(write_json, backend):
    found = tokenizer.load(write_json(model={"merges": [["h", "e"], ["l", "l"]]}), backend)
    assert found.encode("hello") == [5, 6, 3]


def test_a_merge_of_the_number_sign(write_pair, backend):
    vocab = {"#": 0, "##": 1, "v": 2}
    assert tokenizer.load(write_pair(vocab, "# #\n"), backend).encode("##v") == [1, 2]


def test_ids_in_any_order(write_pair, backend):
    """Ranks are the merges' places, not the ids."""
    vocab = {"a": 9, "b": 3, "c": 4, "bc": 1, "ab": 5}
    assert tokenizer.load(write_pair(vocab, "b c\na b\n"), backend).encode("abcab") == [9, 1, 5]


def test_nothing_there(tmp_path, backend):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json, or vocab.json and merges.txt"):
        tokenizer.load(tmp_path, backend)
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        tokenizer.load(tmp_path / "missing", backend)


def test_no_network(python, gpt2_folder, backend, tmp_path):
    """No socket is made, and no cache is looked at."""
    code = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("a socket")
socket.socket.__init__ = socket.create_connection = socket.getaddrinfo = refuse
import gpt2cy.tokenizer
print(gpt2cy.tokenizer.load(sys.argv[1], sys.argv[2]).encode("Hello world"))
"""
    out = python(code, gpt2_folder, backend, TIKTOKEN_CACHE_DIR=str(tmp_path), HF_HOME=str(tmp_path))
    assert out.strip() == "[15496, 995]"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_named(monkeypatch, write_pair, backend):
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(ImportError, match=rf"{backend}.* pip install 'gpt2cy\[text\]'"):
        tokenizer.load(write_pair(), backend)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((5,), TypeError, "source: expected a path, got int"),
        ((b"x",), TypeError, "source: expected a path, got bytes"),
        ((".", "spacy"), ValueError, "backend: expected one of 'tokenizers', 'tiktoken', got str 'spacy'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        tokenizer.load(*arguments)


# ---- added tokens --------------------------------------------------------------------------------------


def test_added_tokens_beside_a_pair(write_pair, backend):
    """The oldest form: ids in one file, the names of special ones in another."""
    found = tokenizer.load(
        write_pair(
            added_tokens={"<url>": 8, "<bye>": 9, "<pad>": 12},
            special_tokens_map={"eos_token": {"content": "<bye>"}, "additional_special_tokens": ["<pad>"]},
        ),
        backend,
    )
    assert (found.vocab_size, found.eos_id) == (13, 9)
    assert found.special_tokens == {"<|endoftext|>": 7, "<bye>": 9, "<pad>": 12}
    assert found.encode("he <url> he") == [5, 4, 8, 4, 5]  # no special one: always found, its spaces kept
    assert found.encode("<url><pad><bye>", allow_special=True) == [8, 12, 9]
    assert found.decode([8, 4, 12]) == "<url> <pad>"
    with pytest.raises(ValueError, match=r"ids: id 10 at \[1\] has no token"):
        found.decode([5, 10])


def test_added_tokens_of_tokenizer_config(write_pair, backend):
    decoder = {"7": added("<|endoftext|>", 0, special=True), "8": added("<mask>", 0, lstrip=True)}
    found = tokenizer.load(write_pair(tokenizer_config={"added_tokens_decoder": decoder}), backend)
    assert found.encode("he  <mask> he") == [5, 8, 4, 5]


@pytest.mark.parametrize(
    ("flags", "text", "ids"),
    [
        ({}, "he <x> he", [5, 4, 8, 4, 5]),
        ({"lstrip": True}, "he  <x> he", [5, 8, 4, 5]),
        ({"rstrip": True}, "he <x>  he", [5, 4, 8, 5]),
        ({"lstrip": True, "rstrip": True}, " <x> <x>  ", [8, 8]),
        ({"lstrip": True}, "<x>  <x>", [8, 8]),
        ({"special": True}, "<x>", None),
    ],
)
def test_spaces_round_an_added_token(write_json, backend, flags, text, ids):
    folder = write_json(added_tokens=[added("<x>", 8, **flags)])
    found = tokenizer.load(folder, backend)
    if ids is None:
        with pytest.raises(ValueError, match="no token for byte 0x3c"):
            found.encode(text)
        assert found.encode(text, allow_special=True) == [8]
    else:
        assert found.encode(text) == ids
        assert len(found.encode_with_offsets(text)[1]) == len(ids)


def test_a_single_word_and_the_longest(write_json, backend):
    tokens = [added("hell", 8, single_word=True), added("<a>", 9), added("<a><b>", 10)]
    found = tokenizer.load(write_json(added_tokens=tokens), backend)
    assert found.encode("hello hell") == [5, 6, 3, 4, 8]
    assert found.encode("<a><b><a>") == [10, 9]


def test_a_special_token_is_never_joined_from_text(write_pair, backend):
    """A special token that the vocabulary holds as a plain word: its letters stay letters."""
    vocab = {**VOCAB, "ell": 8}
    found = tokenizer.load(write_pair(vocab, special_tokens_map={"pad_token": "ell"}), backend)
    assert found.encode("ell") == [1, 6]
    assert found.encode("ell", allow_special=True) == [8]


# ---- what a tokenizer.json may say ---------------------------------------------------------------------


def test_a_normalizer(write_json):
    pytest.importorskip("tokenizers")
    vocab = {**VOCAB, "H": 8, "E": 9, "L": 10, "O": 11}
    found = tokenizer.load(write_json(model={"vocab": vocab}, normalizer={"type": "Lowercase"}))
    assert found.encode("HELLO") == [5, 6, 3]
    with pytest.raises(ValueError, match="text: this tokenizer changes text"):
        found.encode_with_offsets("HELLO")


def test_a_prefix_space(write_json, write_pair):
    pytest.importorskip("tokenizers")
    assert tokenizer.load(write_json(pre_tokenizer={**STEP, "add_prefix_space": True})).encode("he") == [4, 5]


def test_a_sequence_of_steps(write_json):
    pytest.importorskip("tokenizers")
    steps = [{"type": "Digits", "individual_digits": True}, STEP]
    found = tokenizer.load(write_json(pre_tokenizer={"type": "Sequence", "pretokenizers": steps}))
    assert found.encode("hello") == [5, 6, 3]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"normalizer": {"type": "NFC"}}, "it has a normalizer"),
        ({"pre_tokenizer": {**STEP, "add_prefix_space": True}}, "its pre_tokenizer is not GPT-2's"),
        ({"model": {"ignore_merges": True}}, "it sets ignore_merges"),
        ({"model": {"merges": ["he ll", "h e", "l l"], "vocab": {**VOCAB, "hell": 8}}}, "uses a later token"),
        ({"model": {"merges": ["h e", "l l", "h e"]}}, "makes an earlier one"),
    ],
)
def test_what_tiktoken_would_do_otherwise(write_json, parts, message):
    pytest.importorskip("tiktoken")
    folder = write_json(**parts)
    with pytest.raises(ValueError, match=rf"tokenizer.json: .*{message}.*; use backend='tokenizers'"):
        tokenizer.load(folder, "tiktoken")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"type": "WordPiece"}}, "expected a model of type 'BPE', got 'WordPiece'"),
        ({"model": {"dropout": 0.1}}, "expected no dropout, got 0.1"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "expected no end_of_word_suffix"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "expected a byte-level tokenizer"),
        ({"pre_tokenizer": None}, "expected a byte-level tokenizer"),
        ({"decoder": {"type": "WordPiece"}}, "expected decoder 'ByteLevel'"),
        ({"model": {"vocab": []}}, "expected a vocabulary"),
        ({"model": {"vocab": {"a": 1.5}}}, "token 'a': expected an id, an integer from 0 to .*, got 1.5"),
        ({"model": {"vocab": {"a": -1}}}, "token 'a': expected an id"),
        ({"model": {"vocab": {"a": 1, "b": 1}}}, "tokens 'a' and 'b' have the same id 1"),
        ({"model": {"vocab": {"a b": 1}, "merges": []}}, "token 'a b': expected characters of the"),
        ({"model": {"merges": ["h x"]}}, "merge 0: 'h' and 'x' or what they make is not in the vocabulary"),
        ({"model": {"merges": ["h e", "l"]}}, "merge 1: expected two tokens, got 'l'"),
        ({"model": {"merges": 5}}, "expected a list of merges"),
        ({"added_tokens": [{"content": "<x>"}]}, "expected an added token with 'content' and 'id'"),
        ({"added_tokens": [added("<x>", 3)]}, "added token '<x>': its id 3 disagrees"),
        ({"added_tokens": [added("he", 9)]}, "added token 'he': its id 9 disagrees"),
        ({"model": None, "name": "vocab.json"}, "found none of these"),
    ],
)
def test_refused(write_json, backend, parts, message):
    folder = write_json(**parts)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        tokenizer.load(folder, backend)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff{}", b"[" * 100_000, b'{"model": 5}', b"{}"])
def test_damaged_files(tmp_path, backend, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json: expected|expected a tokenizer\.json"):
        tokenizer.load(tmp_path, backend)
    with pytest.raises(ValueError, match=str(path)):
        tokenizer.load(path, backend)


def test_a_file_that_is_no_tokenizer(write_pair, backend):
    with pytest.raises(ValueError, match=r"found no 'model'; or give the folder"):
        tokenizer.load(write_pair() / "vocab.json", backend)


def test_merges_that_are_no_text(write_pair, backend):
    folder = write_pair()
    (folder / "merges.txt").write_bytes(b"h\xff e\n")
    with pytest.raises(ValueError, match=r"merges.txt: expected UTF-8"):
        tokenizer.load(folder, backend)


def test_a_huge_id_costs_nothing(write_json, backend):
    found = tokenizer.load(write_json(added_tokens=[added("<x>", 2**31 - 1)]), backend)
    assert found.vocab_size == 2**31
    assert found.decode([2**31 - 1]) == "<x>"


def test_a_byte_without_a_token(write_pair, backend):
    """A small vocabulary: the library would leave the byte out."""
    found = tokenizer.load(write_pair(), backend)
    with pytest.raises(ValueError, match="text: the vocabulary has no token for byte 0x78"):
        found.encode("hex")


def test_any_cut_of_a_file_is_refused(write_json, backend):
    path = write_json() / "tokenizer.json"
    whole = path.read_bytes()
    json.loads(whole)
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="expected JSON"):
            tokenizer.load(path, backend)


# ---- files that anybody may have written -------------------------------------------------------------------

STRANGE = [None, True, 5, -1, 1.5, 10**30, "", "x", "he", "\ud800", "<|endoftext|>", [], [[]], ["h", "e"], {}]


def places(node, path=()):
    """The path to every value of a JSON document."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutate(document, rng):
    """Replace a few values by strange ones."""
    for _ in range(rng.randrange(1, 4)):
        *above, last = rng.choice(list(places(document)))
        node = document
        for key in above:
            node = node[key]
        node[last] = copy.deepcopy(rng.choice(STRANGE))


@pytest.mark.parametrize("kind", ["tokenizer.json", "pair"])
def test_strange_files_are_refused_or_read(write_json, write_pair, backend, kind):
    """Whatever a file says: a ValueError that names it, or a tokenizer that gives back the text."""
    rng = random.Random(11)
    refused = 0
    for _ in range(400):
        if kind == "pair":
            decoder = {"8": added("<x>", 0, lstrip=True)}
            folder = write_pair(
                added_tokens={"<y>": 9},
                special_tokens_map={"eos_token": {"content": "<y>"}, "additional_special_tokens": ["<x>"]},
                tokenizer_config={"added_tokens_decoder": decoder, "add_prefix_space": False},
            )
            names = ("vocab", "added_tokens", "special_tokens_map", "tokenizer_config")
            path = folder / f"{rng.choice(names)}.json"
        else:
            path = write_json() / kind
        document = json.loads(path.read_text())
        mutate(document, rng)
        path.write_text(json.dumps(document))
        try:
            found = tokenizer.load(path.parent, backend)
        except ValueError as error:
            assert str(path.parent) in str(error)
            refused += 1
            continue
        try:
            ids = found.encode("hello hell")
        except ValueError as error:
            assert str(error).startswith("text: ")
        else:
            assert found.decode(ids).strip() == "hello hell"  # one setting puts a space before it
    assert 40 < refused < 400


@pytest.mark.parametrize("source", ["", "a\0b", "x" * 5000, "no/such/folder"])
def test_a_source_that_is_nowhere_is_named(source):
    """Also an empty one, which is not the current folder."""
    with pytest.raises(FileNotFoundError, match="^source: no such file or folder: "):
        tokenizer.load(source)
