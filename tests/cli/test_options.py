# SPDX-License-Identifier: Apache-2.0
"""A flag for every field of Sampling, made from the fields."""

import argparse
import dataclasses
import math

import pytest

from gpt2cy.cli import options
from gpt2cy.generation.sampling import Sampling

WITHOUT = {"constrain", "seed"}  # a function has no flag; the seed's is the command's own


@pytest.fixture(scope="module")
def parser():
    made = argparse.ArgumentParser()
    options.add_sampling(made)
    return made


def sampling(parser, *arguments):
    return Sampling(**options.chosen(parser.parse_args(arguments)))


def test_every_field_has_a_flag_and_a_help(parser):
    flags = {action.option_strings[-1]: action for action in parser._actions if action.dest != "help"}
    names = {field.name for field in dataclasses.fields(Sampling)} - WITHOUT
    assert set(flags) == {"--" + name.replace("_", "-") for name in names}
    for flag, action in flags.items():
        assert len(action.help) > 10, flag
    parser.format_help()


def test_without_flags_there_is_nothing(parser):
    assert options.chosen(parser.parse_args([])) == {}
    assert sampling(parser) == Sampling()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--max-new-tokens", "7"], {"max_new_tokens": 7}),
        (["--temperature", "0.5"], {"temperature": 0.5}),
        (["--top-k", "40", "--top-p", "0.9"], {"top_k": 40, "top_p": 0.9}),
        (["--presence-penalty", "-0.5"], {"presence_penalty": -0.5}),
        (["--stop", "a", "--stop", "\n\n"], {"stop": ["a", "\n\n"]}),
        (["--stop-ids", "3", "--stop-ids", "5"], {"stop_ids": [3, 5]}),
        (["--logit-bias", "3=-inf", "--logit-bias", "5=1.5"], {"logit_bias": {3: -math.inf, 5: 1.5}}),
        (["--early-stopping", "true"], {"early_stopping": True}),
        (["--early-stopping", "False"], {"early_stopping": False}),
        (["--early-stopping", "never"], {"early_stopping": "never"}),
        (["--on-full", "slide", "--slide-to", "9"], {"on_full": "slide", "slide_to": 9}),
        (["--logprobs", "0"], {"logprobs": 0}),
        (["-n", "3"], {"num_return_sequences": 3}),
        (["--n", "3"], {"num_return_sequences": 3}),
    ],
)
def test_values(parser, arguments, expected):
    assert sampling(parser, *arguments) == Sampling(**expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--top-k", "2.5"], "argument --top-k: invalid int value: '2.5'"),
        (["--temperature", "hot"], "argument --temperature: invalid float value: 'hot'"),
        (["--early-stopping", "maybe"], "got 'maybe'"),
        (["--on-full", "burst"], "argument --on-full: expected stop or slide, got 'burst'"),
        (["--logit-bias", "5"], "argument --logit-bias: expected ID=NUMBER, got '5'"),
        (["--logit-bias", "a=1"], "argument --logit-bias: expected ID=NUMBER, got 'a=1'"),
    ],
)
def test_what_is_no_value(parser, arguments, message, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)
    assert message in capsys.readouterr().err
