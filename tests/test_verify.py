# SPDX-License-Identifier: Apache-2.0
"""gpt2cy verify: agrees where all is well, and every check can fail."""

import json

import numpy as np
import pytest

import gpt2cy
from gpt2cy import cli, reference, verify
from gpt2cy.kernels import dispatch, threads

SIZES = (61, 36, 3, 2, 80)
TRUTH = "reference, float64"


@pytest.fixture
def folder(build, tmp_path):
    build(*SIZES, tie_weights=True).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def no_processes(monkeypatch):
    """Leave the other instruction sets out: they take a second each."""
    monkeypatch.setattr(dispatch, "available", lambda: [dispatch.isa()])


@pytest.fixture
def run(capsys):
    """Run the command: exit code, stdout, stderr."""

    def call(*arguments):
        code = cli.main(["verify", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


def failed(report):
    return {check.name for check in report.checks if check.passed is False}


def test_all_is_well(folder, run):
    code, out, err = run(folder)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{folder}: 80 ids all over the vocabulary"
    assert lines[1].split() == ["check", "against", "difference", "allowed", "verdict"]
    assert lines[-1] == "everything that was compared agrees"
    starts = [line.split("  ")[0] for line in lines[2:-1]]
    others = [isa for isa in dispatch.available() if isa != dispatch.isa()]
    assert starts[:5] == ["cached", "in chunks", "last only", "in a batch", "batch of lengths"]
    assert starts[-len(others) - 2 :] == ["gpt2cy", "gpt2cy", *others]
    found = json.loads(run(folder, "--json")[1])
    assert found["passed"] is True and found["read"] == "80 ids all over the vocabulary"
    for check in found["checks"]:
        assert check["passed"] in (True, None)
        if check["name"] in others and dispatch.fused(check["name"]) and dispatch.fused(dispatch.isa()):
            assert (check["difference"], check["allowed"]) == (0, 0)


def test_each_process_has_the_instruction_set_that_is_asked_for(folder):
    tokens = np.arange(9)
    for isa in dispatch.available():
        found, problem = verify._in_a_process(isa, folder, tokens)
        assert problem is None
        dispatch.use(isa)
        np.testing.assert_array_equal(found, gpt2cy.GPT.from_pretrained(folder)(tokens))


def test_a_process_that_fails_is_a_failure(folder, monkeypatch):
    found, problem = verify._in_a_process("nonsense", folder, np.arange(3))
    assert found is None
    assert problem.startswith("its process ended with 1: ValueError: GPT2CY_ISA: isa: expected one of ")
    monkeypatch.setattr(dispatch, "available", lambda: ["nonsense", dispatch.isa()])
    report = verify.verify(folder)
    assert failed(report) == {"nonsense"} and not report.passed


def test_another_instruction_set_with_other_bits(folder, monkeypatch):
    real = verify._in_a_process
    monkeypatch.setattr(dispatch, "available", lambda: ["ref", dispatch.isa()])
    monkeypatch.setattr(verify, "_in_a_process", lambda *given: (real(*given)[0] + np.float32(1e-3), None))
    assert failed(verify.verify(folder)) == {"ref"} - {dispatch.isa()}


def test_a_wrong_reference(folder, run, no_processes, monkeypatch):
    real = reference.forward
    monkeypatch.setattr(reference, "forward", lambda *given: real(*given) + np.eye(80, 61))
    code, out, _ = run(folder)
    assert code == 1
    assert out.splitlines()[-1] == "FAILED: gpt2cy"
    line = next(line for line in out.splitlines() if TRUTH in line)
    assert line.split()[3] == "1.0e+00" and line.endswith("FAILED")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("cache", {"cached", "in chunks"}),
        ("last", {"last only"}),
        ("batch", {"in a batch"}),
        ("many", {"batch of lengths"}),
        ("threads", {"1 thread", "3 threads"}),
        ("shape", {"last only"}),
    ],
)
def test_each_way_can_fail(fault, expected, folder, no_processes, monkeypatch):
    class Spoiled(gpt2cy.GPT):
        def forward(self, tokens, cache=None):
            logits = super().forward(tokens, cache)
            wrong = {
                "cache": cache is not None,
                "batch": np.ndim(tokens) == 2,
                "threads": gpt2cy.get_num_threads() != 2,
            }
            return np.nextafter(logits, np.float32(9)) if wrong.get(fault) else logits

        def next_logits(self, tokens, cache=None):
            logits = super().next_logits(tokens, cache)
            return logits[1:] if fault == "shape" else logits + np.float32(fault == "last")

        def forward_many(self, sequences, caches=None):
            return [
                logits + np.float32(fault == "many") for logits in super().forward_many(sequences, caches)
            ]

    gpt2cy.set_num_threads(2)
    if fault == "threads":
        expected = {"1 thread"}  # 2 is the number in use, and so what 1 is compared with
    monkeypatch.setattr(verify, "GPT", Spoiled)
    report = verify.verify(folder)
    assert failed(report) == expected
    assert gpt2cy.get_num_threads() == 2


@pytest.mark.parametrize("chosen", [None, 3])
def test_the_choice_of_threads_is_given_back(build, tmp_path, no_processes, chosen):
    """Also that there was none: the number goes on following affinity and OpenMP's limit."""
    build(*SIZES, tie_weights=True).save_pretrained(tmp_path)
    gpt2cy.set_num_threads(chosen)
    verify.verify(tmp_path)
    assert threads.chosen_num_threads() == chosen


def test_numbers_that_are_not_finite(build, tmp_path, no_processes):
    model = build(*SIZES, tie_weights=True)
    weight = model.blocks[1].mlp.c_fc.weight.copy()
    weight[3, 5] = np.nan
    model.blocks[1].mlp.c_fc.weight = weight
    model.save_pretrained(tmp_path)
    report = verify.verify(tmp_path)
    assert failed(report) == {"gpt2cy"}  # NaN in every way, but close to nothing
    text = verify.lines(report)
    assert "FAILED: gpt2cy" in text[-1]
    where = "FAILED: the first number that is not finite: h.1.mlp.pre: nan at position 0 of sequence 0"
    assert sum(where in line for line in text) == 1
    values = report.values()
    json.dumps(values, allow_nan=False)
    assert [check["difference"] for check in values["checks"] if check["name"] == "gpt2cy"] == [None, None]


def test_the_loader_is_verified_too(folder, no_processes, monkeypatch):
    class Misread(gpt2cy.GPT):
        @classmethod
        def from_pretrained(cls, source):
            model = gpt2cy.GPT.from_pretrained(source)
            model.wpe.weight = model.wpe.weight[::-1]
            return model

    monkeypatch.setattr(verify, "GPT", Misread)
    assert failed(verify.verify(folder)) == {"gpt2cy"}


def test_text_of_bytes(build, tmp_path, run, no_processes):
    build(256, 36, 3, 2, 20, tie_weights=True).save_pretrained(tmp_path)
    assert run(tmp_path, "--text", "café")[1].startswith(f"{tmp_path}: 5 tokens of text\n")
    assert run(tmp_path)[1].startswith(f"{tmp_path}: 20 tokens of text\n")
    assert run(tmp_path, "--text", "x")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such/folder"], "source: no file or folder 'no/such/folder'"),
        (["{bytes}", "--text", ""], "text: expected at least one character"),
        (["{bytes}", "--text", "x" * 21], "text"),
        (["{ids}", "--text", "x"], "no tokenizer"),
    ],
)
def test_what_cannot_be_read(arguments, message, folder, build, tmp_path, run):
    build(256, 36, 3, 2, 20, tie_weights=True).save_pretrained(tmp_path / "bytes")
    code, out, err = run(*(word.format(bytes=tmp_path / "bytes", ids=folder) for word in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("gpt2cy verify: error: ") and message in err and err.count("\n") == 1
