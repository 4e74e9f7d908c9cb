# SPDX-License-Identifier: Apache-2.0
"""gpt2cy generate: texts as they come, JSON Lines, batches, runs that are cut off, and what goes wrong."""

import io
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import gpt2cy
from gpt2cy import cli
from gpt2cy.generation import generate

PROMPTS = ["To be", "or", "not to be, that is", "the", "question:", "whether 'tis nobler", "in"]
SHORT = ["--max-new-tokens", 8, "--seed", 7]


@pytest.fixture
def lines(tmp_path, write_lines):
    """A file of prompts."""
    return write_lines(tmp_path / "in.jsonl", [{"prompt": prompt} for prompt in PROMPTS])


@pytest.fixture
def counted(monkeypatch):
    """How many prompts each batch had."""
    counts, run = [], generate.run

    def count(model, prompts, *args, **options):
        counts.append(len(prompts))
        return run(model, prompts, *args, **options)

    monkeypatch.setattr(generate, "run", count)
    return counts


def completions(text):
    return [json.loads(line)["completions"] for line in text.splitlines()]


# ---- text ------------------------------------------------------------------------------------------------


def test_one_prompt(folder, lm, run):
    expected = lm.generate("To be", max_new_tokens=8, seed=7).text
    code, out, err = run("generate", folder, "To be", *SHORT)
    assert (code, out) == (0, expected + "\n")
    assert err.startswith("gpt2cy generate: 1 row, 8 tokens in ") and err.count("\n") == 1
    assert err.endswith(" tokens/s, ended by length, seed 7\n")
    assert run("generate", folder, "To be", *SHORT, "--echo", "--quiet") == (0, f"To be{expected}\n", "")


def test_it_streams(folder, lm, run, monkeypatch):
    """What has come is on the terminal before the next token is computed."""
    seen = []
    step = generate.Batch.step
    monkeypatch.setattr(
        generate.Batch, "step", lambda self: (seen.append(sys.stdout.getvalue()), step(self))[1]
    )
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert cli.main(["generate", str(folder), "To be", *map(str, SHORT)]) == 0
    assert len(seen) == 8 and len(set(seen)) > 4
    assert sys.stdout.getvalue() == lm.generate("To be", max_new_tokens=8, seed=7).text + "\n"


def test_a_seed_is_drawn_and_told(folder, run):
    _, out, err = run("generate", folder, "To be", "--max-new-tokens", 8)
    seed = err.split()[-1]
    assert run("generate", folder, "To be", "--max-new-tokens", 8, "--seed", seed)[1] == out
    assert run("generate", folder, "To be", "--max-new-tokens", 8)[2].split()[-1] != seed


def test_several_prompts(folder, lm, run):
    found = lm.generate(PROMPTS[:2], max_new_tokens=8, seed=7)
    code, out, err = run("generate", folder, *PROMPTS[:2], *SHORT)
    assert code == 0
    assert out == "".join(f"==> prompt {i + 1} <==\n{result.text}\n" for i, result in enumerate(found))
    assert err.startswith("gpt2cy generate: 2 rows, 16 tokens in ") and err.endswith(", seed 7\n")


def test_several_samples(folder, lm, run):
    found = lm.generate("To be", max_new_tokens=8, seed=7, n=2)
    _, out, _ = run("generate", folder, "To be", *SHORT, "--num-return-sequences", 2)
    assert out == "".join(
        f"==> prompt 1, sample {i + 1} <==\n{result.text}\n" for i, result in enumerate(found)
    )


def test_beams(folder, lm, run):
    expected = lm.generate("To be", max_new_tokens=5, num_beams=3, temperature=0).text
    arguments = ["--max-new-tokens", 5, "--num-beams", 3, "--temperature", 0]
    assert run("generate", folder, "To be", *arguments)[1] == expected + "\n"


def test_every_option_reaches_the_model(folder, lm, run):
    settings = {"top_k": 5, "temperature": 1.5, "logit_bias": {65: 3.0}, "repetition_penalty": 1.3}
    arguments = ["--top-k", 5, "--temperature", 1.5, "--logit-bias", "65=3", "--repetition-penalty", 1.3]
    expected = lm.generate("To be", max_new_tokens=8, seed=7, **settings).text
    assert run("generate", folder, "To be", *SHORT, *arguments)[1] == expected + "\n"


def test_stdin(folder, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"To be")))
    assert run("generate", folder, "-", *SHORT)[1] == run("generate", folder, "To be", *SHORT)[1]


SPACED = ["To be ", "To be  ", "To be\n", " \t", " To be"]


@pytest.mark.parametrize("prompt", SPACED)
def test_spaces_of_a_prompt_are_kept(folder, lm, run, monkeypatch, prompt):
    """Those at its end too, also from stdin."""
    ids = lm.model.generate([list(prompt.encode())], max_new_tokens=8, seed=7)[0]
    expected = lm.decode(ids) + "\n"
    assert run("generate", folder, prompt, *SHORT, "--quiet") == (0, expected, "")
    assert run("generate", folder, prompt, *SHORT, "--quiet", "--echo")[1] == prompt + expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(prompt.encode())))
    assert run("generate", folder, "-", *SHORT, "--quiet")[1] == expected


def test_spaces_of_json_lines_are_kept(folder, lm, tmp_path, run, write_lines, read_lines):
    path = write_lines(tmp_path / "in.jsonl", [{"prompt": prompt} for prompt in SPACED])
    found = read_lines(run("generate", folder, "--file", path, *SHORT)[1])
    assert [record["prompt"] for record in found] == SPACED
    ids = lm.model.generate([list(prompt.encode()) for prompt in SPACED], max_new_tokens=8, seed=7)
    assert [record["completions"][0]["tokens"] for record in found] == [one.tolist() for one in ids]


@pytest.fixture(scope="module")
def special_folder(build, tmp_path_factory):
    """A saved model whose tokenizer has letters and an end of text."""
    pytest.importorskip("tokenizers")
    target = tmp_path_factory.mktemp("special")
    vocab = {chr(code): i for i, code in enumerate(range(33, 127))} | {"<|endoftext|>": 94}
    build(95, 32, 2, 2, 64, tie_weights=True, lm_head_bias=False, scale=8.0).save_pretrained(target)
    (target / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (target / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    return target


@pytest.mark.parametrize("special", [False, True])
def test_special_tokens_are_plain_text_unless_asked_for(
    special_folder, tmp_path, run, write_lines, read_lines, special
):
    """A prompt from elsewhere cannot end a document, as an argument or in a file."""
    lm, prompt = gpt2cy.load(special_folder), "a<|endoftext|>"
    ids = [[64, 94], [ord(letter) - 33 for letter in prompt]]
    both = lm.model.generate(ids, max_new_tokens=8, seed=[7, 7])
    assert both[0].tolist() != both[1].tolist()
    ids = ids[not special]
    expected = lm.model.generate([ids, ids], max_new_tokens=8, seed=7, stop_ids=[94], details=True)
    options = [*SHORT, "--quiet", *["--allow-special"] * special]
    shown = expected[0].tokens[: -1 if expected[0].finish_reason == "stop_id" else None]
    assert run("generate", special_folder, prompt, *options)[1] == lm.decode(shown) + "\n"
    path = write_lines(tmp_path / "in.jsonl", [{"prompt": prompt}] * 2)
    found = read_lines(run("generate", special_folder, "--file", path, *options)[1])
    tokens = [record["completions"][0]["tokens"] for record in found]
    assert tokens == [result.tokens.tolist() for result in expected]


def test_stop_strings_do_not_come_out(folder, lm, run):
    text = lm.generate("To be", max_new_tokens=8, seed=7).text
    stop = text[3:5]
    _, out, err = run("generate", folder, "To be", *SHORT, "--stop", stop)
    assert out == text[: text.index(stop)] + "\n" and "ended by stop_string" in err


# ---- JSON Lines ------------------------------------------------------------------------------------------


def test_json_lines(folder, lm, lines, run, read_lines):
    code, out, _ = run("generate", folder, "--file", lines, *SHORT, "--logprobs", 2)
    assert code == 0
    found = read_lines(out)
    expected = lm.generate(PROMPTS, max_new_tokens=8, seed=7, logprobs=2)
    assert [record["row"] for record in found] == list(range(len(PROMPTS)))
    for record, prompt, result in zip(found, PROMPTS, expected, strict=True):
        assert record["prompt"] == prompt and record["seed"] == 7
        (completion,) = record["completions"]
        assert completion["text"] == result.text and completion["tokens"] == result.tokens.tolist()
        assert completion["finish_reason"] == "length"
        assert np.array_equal(np.float32(completion["logprobs"]), result.logprobs)
        assert [len(top) for top in completion["top_logprobs"]] == [2] * 8
    assert [record["input"] for record in found] == [record["input"] for record in read_lines(out)]


def test_prompts_of_the_command_line_come_first(folder, lines, run, read_lines):
    _, out, _ = run("generate", folder, "first", "--file", lines, *SHORT)
    assert [record["prompt"] for record in read_lines(out)] == ["first", *PROMPTS]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_batches_change_nothing(folder, lm, lines, run, counted, batch_size):
    _, out, _ = run("generate", folder, "--file", lines, *SHORT, "--batch-size", batch_size)
    assert max(counted) == min(batch_size, len(PROMPTS)) and sum(counted) == len(PROMPTS)
    expected = lm.generate(PROMPTS, max_new_tokens=8, seed=7)
    assert [one["text"] for (one,) in completions(out)] == [result.text for result in expected]


def test_long_rows_make_small_batches(folder, lines, run, counted, monkeypatch):
    monkeypatch.setattr(cli.generate, "MOST_TOKENS", 30)
    whole = run("generate", folder, "--file", lines, *SHORT)[1]
    assert counted == [2, 1, 2, 1, 1]
    monkeypatch.undo()
    assert run("generate", folder, "--file", lines, *SHORT)[1] == whole


def test_rows_with_ids_and_settings(folder, lm, tmp_path, run, write_lines, read_lines):
    rows = [
        {"prompt": "To be", "id": {"my": 1}, "sampling": {"temperature": 0, "max_new_tokens": 3}},
        {"prompt": "To be", "sampling": {"seed": 11, "logit_bias": {"65": 2.5}}},
        {"prompt": "To be", "id": None},
    ]
    path = write_lines(tmp_path / "in", rows)
    found = read_lines(run("generate", folder, "--file", path, *SHORT)[1])
    texts = [record["completions"][0]["text"] for record in found]
    assert texts[0] == lm.generate("To be", max_new_tokens=3, temperature=0).text
    assert texts[1] == lm.generate(["To be"], max_new_tokens=8, seed=[11], logit_bias={65: 2.5})[0].text
    assert texts[2] == lm.generate(["To be"] * 3, max_new_tokens=8, seed=7)[2].text
    assert found[0]["id"] == {"my": 1} and "id" not in found[1] and found[2]["id"] is None
    assert found[1]["completions"][0]["seed"] == 11


def test_an_empty_file(folder, tmp_path, run):
    (tmp_path / "empty").touch()
    code, out, err = run("generate", folder, "--file", tmp_path / "empty")
    assert (code, out) == (0, "") and "0 rows, 0 tokens" in err


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_text_of_any_language_on_any_terminal(folder, start, encoding):
    """What the terminal cannot express is escaped; JSON of the command remains JSON."""
    command = ["-m", "gpt2cy", "generate", folder, "né", *SHORT, "--quiet"]
    plain, as_json = (
        start(*command, *more, PYTHONIOENCODING=encoding).communicate() for more in (["--echo"], ["--json"])
    )
    assert plain[0].startswith("né".encode(encoding, "backslashreplace")) and not plain[1]
    assert json.loads(as_json[0].decode(encoding))["prompt"] == "né" and not as_json[1]


# ---- out -------------------------------------------------------------------------------------------------


def test_finished_rows_are_not_done_again(folder, lines, tmp_path, run, counted):
    out = tmp_path / "out.jsonl"
    arguments = ["generate", folder, "--file", lines, "--batch-size", 2, "--max-new-tokens", 8, "--out", out]
    code, printed, err = run(*arguments, "--seed", 7)
    assert (code, printed) == (0, "") and "7 rows, 56 tokens" in err
    whole = out.read_bytes()
    assert whole.decode() == run("generate", folder, "--file", lines, *SHORT)[1]
    counted.clear()

    code, _, err = run(*arguments)
    assert code == 0 and counted == [] and out.read_bytes() == whole
    assert f"gpt2cy generate: {out}: 7 of 7 rows are finished\n" in err

    for end in (0, 1, 40, len(whole) // 2, len(whole) - 1):
        out.write_bytes(whole[:end])
        finished = whole[:end].count(b"\n")
        counted.clear()
        code, _, err = run(
            *arguments, *([] if finished else ["--seed", 7])
        )  # the seed is known from the rows
        assert code == 0 and out.read_bytes() == whole and sum(counted) == 7 - finished
        assert ("a line that was cut off is done again" in err) == (end > 0)


def test_rows_added_to_the_input_are_done(folder, tmp_path, run, write_lines, counted):
    path, out = tmp_path / "in", tmp_path / "out"
    rows = [{"prompt": prompt} for prompt in PROMPTS]
    run("generate", folder, "--file", write_lines(path, rows[:3]), *SHORT, "--out", out)
    run("generate", folder, "--file", write_lines(path, rows), *SHORT, "--out", out)
    assert counted == [3, 4]
    assert out.read_text() == run("generate", folder, "--file", path, *SHORT)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", 8], "row 0 was made with seed 7, not 8"),
        (["--seed", 7, "--top-k", 3], "row 0 was made with other settings or by another model"),
    ],
)
def test_other_settings_are_noticed(folder, lines, tmp_path, run, assert_one_line, arguments, message):
    out = tmp_path / "out"
    command = ["generate", folder, "--file", lines, "--max-new-tokens", 8, "--out", out]
    run(*command, "--seed", 7)
    before = out.read_bytes()
    code, _, err = run(*command, *arguments)
    assert code == 2 and out.read_bytes() == before
    assert_one_line("generate", err, out, message)
    assert run(*command, *arguments, "--overwrite")[0] == 0
    assert out.read_bytes() != before


def test_another_model_is_noticed(folder, lines, tmp_path, run, build):
    out = tmp_path / "out"
    run("generate", folder, "--file", lines, *SHORT, "--out", out)
    build(256, 32, 2, 2, 64, tie_weights=True, scale=1.01).save_pretrained(tmp_path / "other")
    code, _, err = run("generate", tmp_path / "other", "--file", lines, *SHORT, "--out", out)
    assert code == 2 and "by another model" in err


def test_changed_rows_are_noticed(folder, tmp_path, run, write_lines, assert_one_line):
    path, out = tmp_path / "in", tmp_path / "out"
    rows = [{"prompt": prompt} for prompt in PROMPTS]
    run("generate", folder, "--file", write_lines(path, rows), *SHORT, "--out", out)
    rows[2]["prompt"] += "!"
    rows[4]["id"] = 5
    code, _, err = run("generate", folder, "--file", write_lines(path, rows), *SHORT, "--out", out)
    assert code == 2
    assert_one_line("generate", err, f"{path}: line 3 and 1 more: changed since row 2 was made of it")


def test_out_is_not_the_input(folder, lines, run, assert_one_line):
    before = lines.read_bytes()
    code, _, err = run("generate", folder, "--file", lines, "--out", lines, "--overwrite")
    assert code == 2 and lines.read_bytes() == before
    assert_one_line("generate", err, "--out: expected another file than the input")


MAIN = """
import signal, sys
from gpt2cy import cli
signal.signal(signal.SIGINT, signal.default_int_handler)    # whatever the tests were started by
sys.exit(cli.main(sys.argv[1:]))
"""
SLOW = (
    """
import time
from gpt2cy.generation import generate
run = generate.run
def slow(*args, **options):
    results = run(*args, **options)
    print("computed", flush=True)
    time.sleep(0.05)
    return results
generate.run = slow
"""
    + MAIN
)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_killed_run_loses_at_most_one_batch(folder, tmp_path, run, write_lines, start, counted, after):
    path = write_lines(tmp_path / "in", [{"prompt": f"prompt {i}"} for i in range(16)])
    out = tmp_path / "out"
    arguments = ["generate", folder, "--file", path, "--batch-size", 2, *SHORT, "--out", out]
    process = start("-c", SLOW, *arguments)
    for _ in range(after):
        assert process.stdout.readline() == b"computed\n"
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    kept = out.read_bytes().count(b"\n")
    assert 2 * (after - 1) <= kept < 16
    assert run(*arguments)[0] == 0 and sum(counted) == 16 - kept
    assert out.read_text() == run("generate", folder, "--file", path, *SHORT)[1]


# ---- how it ends -----------------------------------------------------------------------------------------

ENDLESS = ["--on-full", "slide", "--max-new-tokens", 10**7, "--seed", 1]


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("several", [False, True])
def test_ctrl_c_is_quiet(folder, lines, tmp_path, start, several):
    arguments = ["--file", lines, "--out", tmp_path / "out", "--batch-size", 1] if several else ["To be"]
    end = ["--max-new-tokens", 60] if several else ENDLESS
    process = start("-c", SLOW if several else MAIN, "generate", folder, *arguments, *end)
    process.stdout.read(1)  # it is under way
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


def test_a_reader_that_goes_away(folder, start):
    """`gpt2cy generate ... | head -c 1` ends without a word."""
    process = start("-m", "gpt2cy", "generate", folder, "To be", *ENDLESS)
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_in_a_process(folder, lm, start):
    process = start("-m", "gpt2cy", "generate", folder, "-", *SHORT, stdin=subprocess.PIPE)
    out, err = process.communicate(b"To be")
    assert process.returncode == 0 and b"Traceback" not in err
    assert out.decode() == lm.generate("To be", max_new_tokens=8, seed=7).text + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a PROMPT or --file FILE, got neither"),
        ([""], "prompt 1: prompt: expected at least one character"),
        (["a", ""], "prompt 2: prompt: expected at least one character"),
        (["x" * 65], "prompt 1: prompt: 65 tokens do not fit the block_size of 64"),
        (["-", "-"], "stdin can be read only once"),
        (["a", "--temperature", -1], "temperature: "),
        (["a", "--top-p", 1.5], "top_p: "),
        (["a", "--stop", ""], "stop[0]: "),
        (["a", "--stop-ids", 256], "prompt 1: stop_ids: "),
        (["a", "--vocab-limit", 257], "prompt 1: vocab_limit: expected an integer from 1 to 256, got 257"),
        (["a", "--logprobs", 257], "prompt 1: logprobs: expected an integer from 0 to 256, got 257"),
        (["--file", "{tmp}/many"], "many: line 2: logprobs: expected an integer from 0 to 256, got 1000"),
        (["--file", "{tmp}/missing"], "missing"),
        (["--file", "{tmp}"], "directory"),
        (["--file", "{tmp}/bad"], "bad: line 2: expected a JSON object"),
        (["--file", "{tmp}/typo"], 'typo: line 1: expected a text under "prompt", got only "promt"'),
        (["--file", "{tmp}/setting"], "setting: line 1: "),
        (["--file", "{tmp}/value"], "value: line 1: top_k: "),
        (["--file", "{tmp}/bias"], "bias: line 2: logit_bias: id 256 at [0] is outside the vocabulary"),
        (["--file", "{tmp}/key"], "key: line 1: logit_bias: expected ids as keys, got 'x'"),
        (["--file", "{tmp}/beams"], "beams: line 2: top_p: expected None where num_beams > 1"),
        (["--file", "{tmp}/deep"], "deep: line 1: expected a JSON object: maximum recursion depth"),
        (["a", "--out", "/dev/full"], "/dev/full: expected a file to go on with, got a device"),
        (["--file", "{tmp}/list"], "list: line 1: sampling: expected an object, got list"),
        (["--file", "{tmp}/long"], "long: line 2: prompt: 65 tokens do not fit"),
        (["a", "--out", "{tmp}/bad"], "line 1: expected row 0 as this command writes it"),
        (["a", "--out", "{tmp}/no/where"], "No such file"),
    ],
)
def test_errors_are_one_line(folder, tmp_path, run, assert_one_line, counted, arguments, message):
    for name, text in {
        "bad": '{"prompt": "a"}\n{\n',
        "typo": '{"promt": "a"}\n',
        "setting": '{"prompt": "a", "sampling": {"tempreature": 1}}\n',
        "value": '{"prompt": "a", "sampling": {"top_k": -1}}\n',
        "list": '{"prompt": "a", "sampling": [1]}\n',
        "bias": '{"prompt": "a"}\n{"prompt": "a", "sampling": {"logit_bias": {"256": 1}}}\n',
        "key": '{"prompt": "a", "sampling": {"logit_bias": {"x": 1}}}\n',
        "beams": '{"prompt": "a"}\n{"prompt": "a", "sampling": {"num_beams": 2, "top_p": 0.5}}\n',
        "many": '{"prompt": "a"}\n{"prompt": "a", "sampling": {"logprobs": 1000}}\n',
        "deep": "[" * 100_000,
        "long": '{"prompt": "a"}\n' + json.dumps({"prompt": "x" * 65}),
    }.items():
        (tmp_path / name).write_text(text)
    code, out, err = run("generate", folder, *(str(part).format(tmp=tmp_path) for part in arguments))
    assert (code, out) == (2, "") and counted == []
    assert_one_line("generate", err, message)


def test_a_model_that_is_not_there(tmp_path, run, assert_one_line):
    code, out, err = run("generate", tmp_path / "nowhere", "a")
    assert (code, out) == (2, "")
    assert_one_line("generate", err, tmp_path / "nowhere")


def test_weights_that_are_not_finite(tmp_path, run, build, assert_one_line):
    model = build(256, 32, 2, 2, 64, tie_weights=True)
    gamma = np.array(model.ln_f.gamma)
    gamma[3] = np.nan
    model.ln_f.gamma = gamma
    model.save_pretrained(tmp_path / "model")
    code, _, err = run("generate", tmp_path / "model", "a", "--max-new-tokens", 3)
    assert code == 2
    assert_one_line("generate", err, "finite")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "argument --batch-size: expected an integer >= 1, got '0'"),
        (["--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["--tempreature", "1"], "unrecognized arguments: --tempreature"),
    ],
)
def test_bad_arguments(folder, arguments, message, capsys):
    with pytest.raises(SystemExit) as leaving:
        cli.main(["generate", str(folder), "a", *arguments])
    assert leaving.value.code == 2
    assert message in capsys.readouterr().err
