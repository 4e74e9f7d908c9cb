# SPDX-License-Identifier: Apache-2.0
"""gpt2cy score: texts, JSON Lines, tables, runs that are gone on with, and what goes wrong."""

import io
import json
import math
import sys

import pytest

from gpt2cy import cli

TEXTS = ["To be, or not to be, that is the question:", "x", "né " * 50, "Whether 'tis nobler in the mind"]


@pytest.fixture
def files(tmp_path):
    """The texts, each in a file."""
    paths = [tmp_path / f"{i}.txt" for i in range(len(TEXTS))]
    for path, text in zip(paths, TEXTS, strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


@pytest.fixture
def lines(tmp_path, write_lines):
    return write_lines(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS])


def test_one_text(folder, lm, files, run):
    expected = lm.score(TEXTS[0])
    code, out, err = run("score", folder, files[0])
    assert code == 0 and out.count("\n") == 1
    assert out.split()[:2] == ["42", "tokens"] and out.endswith(f"  {files[0]}\n")
    assert f"logprob {expected.logprob:>14,.3f}  perplexity {expected.perplexity:>12,.3f}" in out
    assert f"bits/byte {expected.bits_per_byte:>7.3f}" in out
    assert err.startswith("gpt2cy score: 1 row, 42 tokens in ") and err.count("\n") == 1
    assert run("score", folder, files[0], "--quiet") == (0, out, "")


def test_a_table_has_a_total_in_which_tokens_count_the_same(folder, lm, files, run):
    scores = [lm.score(text) for text in TEXTS]
    _, out, _ = run("score", folder, *files)
    table = out.splitlines()
    assert len(table) == 5 and table[4].endswith("  total")
    logprob = sum(score.logprob for score in scores)
    perplexity = math.exp(-logprob / sum(score.n_scored for score in scores))
    bits_per_byte = -logprob / math.log(2) / (sum(len(text.encode()) for text in TEXTS) - len(TEXTS))
    assert f"{sum(len(score) for score in scores)} tokens  logprob {logprob:>14,.3f}" in table[4]
    assert f"perplexity {perplexity:>12,.3f}  bits/byte {bits_per_byte:>7.3f}" in table[4]
    assert "nan" in table[1]  # one token, which has nothing before it


@pytest.mark.parametrize(("logprob", "perplexity"), [(-math.inf, math.inf), (-1e5, math.inf), (-2.0, math.e)])
def test_a_total_of_what_is_impossible(logprob, perplexity):
    """Texts of no probability, or of next to none, leave the others' bytes and the total as they are."""
    total, bits = cli.score.Total(), -logprob / math.log(2)
    total.add([{"n_tokens": 3, "n_bytes": 2, "n_scored": 2, "logprob": logprob, "bits": bits}])
    total.add([{"n_tokens": 1, "n_bytes": 0, "n_scored": 0, "logprob": 0.0, "bits": 0.0}])
    found = total.numbers()
    assert (found["n_tokens"], found["perplexity"], found["bits_per_byte"]) == (4, perplexity, bits / 2)


def test_json(folder, lm, files, run, read_lines):
    code, out, _ = run("score", folder, *files, "--json")
    found = read_lines(out)
    assert code == 0 and [record["id"] for record in found] == [str(path) for path in files]
    for record, text in zip(found, TEXTS, strict=True):
        expected = lm.score(text).to_dict()
        assert record["n_tokens"] == len(text.encode())
        for name in ("n_bytes", "n_scored", "logprob", "bits", "perplexity", "bits_per_byte"):
            assert record[name] == expected[name]
        assert "tokens" not in record and "text" not in record


def test_tokens(folder, lm, files, run, read_lines):
    _, out, _ = run("score", folder, files[0], "--top", 2)
    (found,) = read_lines(out)
    assert found["tokens"] == json.loads(json.dumps(lm.score(TEXTS[0], top=2).to_dict()["tokens"]))
    _, out, _ = run("score", folder, files[0], "--tokens")
    assert [token["top"] for token in read_lines(out)[0]["tokens"]] == [[]] * 42


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_json_lines_in_batches(folder, lm, lines, run, read_lines, batch_size):
    _, out, _ = run("score", folder, lines, "--json", "--batch-size", batch_size)
    expected = [lm.score(text) for text in TEXTS]
    assert [record["logprob"] for record in read_lines(out)] == [score.logprob for score in expected]


def test_options_reach_the_model(folder, lm, files, run, read_lines):
    (found,) = read_lines(run("score", folder, files[2], "--json", "--stride", 8, "--vocab-limit", 200)[1])
    expected = lm.score(TEXTS[2], stride=8, vocab_limit=200).logprob
    assert found["logprob"] == expected != lm.score(TEXTS[2], stride=8).logprob


def test_the_text_itself_may_be_shown(folder, lm, files, run, monkeypatch):
    _, out, _ = run("score", folder, files[0], "--show")
    shown = io.StringIO()
    lm.score(TEXTS[0]).show(shown)
    assert out == shown.getvalue() + run("score", folder, files[0])[1] and TEXTS[0] in out
    monkeypatch.setattr(cli.score, "wants_colour", lambda stream: True)
    assert "\x1b[48;5;" in run("score", folder, files[0], "--show")[1]


def test_stdin(folder, files, run, monkeypatch):
    def stdin(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    stdin(TEXTS[0])
    code, out, _ = run("score", folder, "-")
    assert code == 0 and out == run("score", folder, files[0])[1].replace(str(files[0]), "stdin")
    stdin(json.dumps({"text": TEXTS[0], "id": 5}))
    assert run("score", folder, "-", "--jsonl")[1] == out.replace("stdin", "5")


def test_files_of_both_kinds(folder, lines, files, run, read_lines):
    _, out, _ = run("score", folder, files[0], lines, "--json")
    found = read_lines(out)
    assert [record["row"] for record in found] == list(range(5))
    assert found[0]["logprob"] == found[1]["logprob"] and found[0]["input"] != found[1]["input"]


def test_finished_rows_are_not_done_again(folder, lines, tmp_path, run, lm, monkeypatch):
    scored, score = [], type(lm).score
    monkeypatch.setattr(
        type(lm), "score", lambda self, texts, **more: (scored.append(texts), score(self, texts, **more))[1]
    )
    out = tmp_path / "out"
    arguments = ["score", folder, lines, "--out", out, "--batch-size", 3]
    assert run(*arguments)[:2] == (0, "")
    whole = out.read_bytes()
    assert scored == [TEXTS[:3], TEXTS[3:]] and whole.decode() == run("score", folder, lines, "--json")[1]
    for end in (0, 30, whole.index(b"\n") + 1, len(whole) - 1, len(whole)):
        out.write_bytes(whole[:end])
        scored.clear()
        assert run(*arguments)[0] == 0 and out.read_bytes() == whole
        assert [text for batch in scored for text in batch] == TEXTS[whole[:end].count(b"\n") :]


def test_other_settings_are_noticed(folder, lines, tmp_path, run, assert_one_line):
    arguments = ["score", folder, lines, "--out", tmp_path / "out"]
    run(*arguments)
    code, _, err = run(*arguments, "--stride", 5)
    assert code == 2
    assert_one_line("score", err, "row 0 was made with other settings")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}/missing"], "missing"),
        (["{tmp}"], "directory"),
        (["{tmp}/0.txt", "{tmp}/empty"], "empty: expected at least one character, got an empty text"),
        (["{tmp}/bytes"], "bytes: expected UTF-8, got byte 0xff at 1"),
        (["{tmp}/0.txt", "--jsonl"], "0.txt: line 1: expected a JSON object"),
        (["{tmp}/bad.jsonl"], 'bad.jsonl: line 1: expected a text under "text"'),
        (["{tmp}/0.txt", "--stride", 64], "stride: "),
        (["{tmp}/0.txt", "--bos"], "bos: "),
        (["{tmp}/0.txt", "--top", 257], "top: "),
        (["{tmp}/0.txt", "--vocab-limit", 257], "vocab_limit: "),
        (["{tmp}/0.txt", "--vocab-limit", 9], "0.txt: id 117 is outside the vocab_limit of 9"),
        (["{tmp}/0.txt", "--show", "--json"], "--show: expected no --json"),
        (["-", "-"], "stdin can be read only once"),
        (["{tmp}/0.txt", "--out", "{tmp}/0.txt"], "--out: expected another file than the input"),
    ],
)
def test_errors_are_one_line(folder, files, tmp_path, run, assert_one_line, arguments, message):
    (tmp_path / "empty").touch()
    (tmp_path / "bytes").write_bytes(b"a\xff")
    (tmp_path / "bad.jsonl").write_text("{}\n")
    code, out, err = run("score", folder, *(str(part).format(tmp=tmp_path) for part in arguments))
    assert (code, out) == (2, "")
    assert_one_line("score", err, message)


def test_no_file(folder, capsys):
    with pytest.raises(SystemExit) as leaving:
        cli.main(["score", str(folder)])
    assert leaving.value.code == 2
    assert "the following arguments are required: FILE" in capsys.readouterr().err
