# SPDX-License-Identifier: Apache-2.0
"""JSON Lines in, and which rows are done together."""

from itertools import pairwise

import pytest

from gpt2cy.cli.rows import Row, batches, read_rows, read_text


def test_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n\n  \n{"id": 7, "text": "\\u00e9\xc3\xa9\xe2\x80\xa8"}')
    rows = read_rows(str(path), "text", first=3)
    assert rows == [
        Row(3, f"{path}: line 1", {"text": "a"}),
        Row(4, f"{path}: line 4", {"id": 7, "text": "éé\u2028"}),  # the last is no end of a line in JSON
    ]


def test_an_empty_file_has_no_rows(tmp_path):
    (tmp_path / "empty").touch()
    assert read_rows(str(tmp_path / "empty"), "text") == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: expected a JSON object: "),
        ("[1]", "line 2: expected a JSON object, got list"),
        ('"text"', "line 2: expected a JSON object, got str"),
        ("{}", 'line 2: expected a text under "text", got none'),
        ('{"txt": "a", "id": 1}', 'line 2: expected a text under "text", got only "id", "txt"'),
        ('{"text": 5}', 'line 2: expected a text under "text", got int'),
        ('{"text": null}', 'line 2: expected a text under "text", got NoneType'),
    ],
)
def test_what_is_no_row(tmp_path, line, message):
    path = tmp_path / "rows"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError) as caught:
        read_rows(str(path), "text")
    assert str(caught.value).startswith(f"{path}: {message}")


def test_what_is_no_text(tmp_path):
    (tmp_path / "bytes").write_bytes(b"abc\xff")
    with pytest.raises(ValueError, match="bytes: expected UTF-8, got byte 0xff at 3"):
        read_text(str(tmp_path / "bytes"))


def test_a_text_is_read_exactly(tmp_path):
    (tmp_path / "text").write_bytes("a\r\nb\r ü\n\n".encode())
    assert read_text(str(tmp_path / "text")) == "a\r\nb\r ü\n\n"


def test_a_digest_is_of_what_is_said():
    digests = [Row(0, "", fields).digest() for fields in ({"a": 1}, {"a": 2}, {"a": "1"}, {"b": 1}, {})]
    assert len(set(digests)) == 5
    assert Row(0, "", {"a": 1, "b": 2}).digest() == Row(9, "elsewhere", {"b": 2, "a": 1}).digest()


def test_a_stamp_has_the_id_if_there_is_one():
    assert Row(3, "", {"id": "x"}).stamp("run", seed=1) == {
        "row": 3, "id": "x", "input": Row(0, "", {"id": "x"}).digest(), "run": "run", "seed": 1,
    }  # fmt: skip
    assert "id" not in Row(3, "", {}).stamp("run")


@pytest.mark.parametrize("most_rows", [1, 2, 3, 100])
@pytest.mark.parametrize("most_tokens", [1, 10, 25, 1000])
def test_batches(most_rows, most_tokens):
    sizes = [5, 9, 1, 30, 2, 2, 2, 2, 11, 40, 3]
    found = list(batches(sizes, most_rows, most_tokens))
    assert [i for batch in found for i in batch] == list(range(len(sizes)))
    total = [sum(sizes[i] for i in batch) for batch in found]
    for batch, tokens in zip(found, total, strict=True):
        assert len(batch) == 1 or (len(batch) <= most_rows and tokens <= most_tokens)
    for i, (batch, after) in enumerate(pairwise(found)):  # none could be larger
        assert len(batch) == most_rows or total[i] + sizes[after[0]] > most_tokens


def test_no_rows_no_batches():
    assert list(batches([], 3, 100)) == []
