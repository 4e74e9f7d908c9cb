# SPDX-License-Identifier: Apache-2.0
"""The file of finished rows: gone on with, cut off, changed, somebody else's."""

import json
import math

import pytest

from gpt2cy.cli import journal
from gpt2cy.cli.journal import Journal
from gpt2cy.cli.rows import Row

ROWS = [Row(i, f"line {i + 1}", {"prompt": text}) for i, text in enumerate(("a", "é", "c"))]


def record(i, **more):
    return {**ROWS[i].stamp("run", seed=5), "text": "x\u2028ü\n", **more}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl"


def fill(path, n):
    with Journal(str(path)) as out:
        out.append([record(i) for i in range(n)])


def test_rows_are_gone_on_with(path):
    with Journal(str(path)) as out:
        assert out.done == [] and not out.dropped
        out.append([record(0)])
        assert path.read_text(encoding="utf-8").count("\n") == 1  # already there
        out.append([record(1)])
    with Journal(str(path)) as out:
        assert [stamp["row"] for stamp in out.done] == [0, 1] and not out.dropped
        out.check(ROWS, "run", 5)
        out.append([record(2)])
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert found == [record(i) for i in range(3)]


def test_a_line_that_is_cut_off_is_dropped(path):
    fill(path, 2)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with Journal(str(path)) as out:
            assert len(out.done) == (end >= first)
            assert out.dropped == (end not in (0, first))
            assert path.read_bytes() == whole[: first * (end >= first)]
            out.append([record(i) for i in range(len(out.done), 2)])
        assert path.read_bytes() == whole


def test_it_can_begin_anew(path):
    path.write_text("something else\n")
    with Journal(str(path), overwrite=True) as out:
        assert out.done == []
        out.append([record(0)])
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [record(0)]


@pytest.mark.parametrize(
    "lines",
    [
        "text\n",
        "[]\n",
        "{}\n",
        "3\n",
        '{"row": 0}\n',
        '{"row": 1, "input": "", "run": ""}\n',
        '{"row": 0, "input": "", "run": "", "seed": "5"}\n',
        "\n",
        "\x00\x00\n",
    ],
)
def test_what_is_not_ours_is_left_alone(path, lines):
    path.write_text(lines)
    with pytest.raises(ValueError, match="line 1: expected row 0 as this command writes it; --overwrite"):
        Journal(str(path))
    assert path.read_text() == lines


def test_rows_must_follow_each_other(path):
    with Journal(str(path)) as out:
        out.append([record(0), record(2)])
    with pytest.raises(ValueError, match="line 2: expected row 1"):
        Journal(str(path))


@pytest.mark.parametrize(
    ("rows", "run", "seed", "message"),
    [
        (ROWS, "run", 6, "row 0 was made with seed 5, not 6"),
        (ROWS, "another", 5, "row 0 was made with other settings or by another model"),
        (ROWS[:1], "run", 5, "it has 2 rows, the input has 1"),
        (
            [ROWS[0], Row(1, "f: line 9", {"prompt": "z"})],
            "run",
            5,
            "f: line 9: changed since row 1 was made of it",
        ),
        ([Row(i, f"line {i}", {}) for i in range(3)], "run", 5, "line 0 and 1 more: changed since row 0"),
    ],
)
def test_what_does_not_belong_together(path, rows, run, seed, message):
    fill(path, 2)
    before = path.read_bytes()
    with Journal(str(path)) as out, pytest.raises(ValueError) as caught:
        out.check(rows, run, seed)
    assert message in str(caught.value) and "--overwrite" in str(caught.value)
    assert path.read_bytes() == before


def test_rows_may_be_added_to_the_input(path):
    fill(path, 2)
    with Journal(str(path)) as out:
        out.check([*ROWS, Row(3, "line 4", {"prompt": "new"})], "run", 5)


@pytest.mark.skipif(journal.fcntl is None, reason="no locks")
def test_one_process_at_a_time(path, start):
    with Journal(str(path)):
        code = "import sys; from gpt2cy.cli.journal import Journal; Journal(sys.argv[1])"
        _, err = start("-c", code, path).communicate()
        assert "another process is writing to it" in err.decode()
    Journal(str(path)).__exit__()


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(OSError):
        Journal(str(tmp_path))


def test_a_lone_surrogate_of_the_input_is_an_escape(path):
    with Journal(str(path)) as out:
        out.append([record(0, id="\ud800\u00e9")])
    assert json.loads(path.read_bytes())["id"] == "\ud800\u00e9"


def test_json_has_no_infinities():
    line = journal.json_line({"a": [math.inf, {"b": -math.inf}, (math.nan, 1.5)], "c": "é"})
    assert line == '{"a": [null, {"b": null}, [null, 1.5]], "c": "é"}\n'
