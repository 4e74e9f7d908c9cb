# SPDX-License-Identifier: Apache-2.0
"""Write ``hf_beams.json`` beside this file: beam searches of transformers' ``GPT2LMHeadModel`` in float64.

Run by hand, in the environment that `make_golden.py` names; that file has the configuration and says where
the weights come from. A case has the settings, and what came: new ids and score of each sequence.
"""

import json
from types import SimpleNamespace

import formula
import torch
import transformers
from make_golden import FOLDER, PLAIN, hf_model

SCALE = 0.1 / formula.STD  # flatter than the others, so that beams of different beginnings compete
MODEL = {**PLAIN, "vocab_size": 23, "block_size": 40}
PROMPT = [3, 1, 4, 1, 5]
CASES = [
    {"num_beams": 2},
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 3, "num_return_sequences": 3, "stop_ids": [2]},
    {"num_beams": 4, "num_return_sequences": 2, "stop_ids": [2, 17], "length_penalty": 2.0},
    {"num_beams": 4, "num_return_sequences": 4, "stop_ids": [2, 17], "length_penalty": 0.0},
    {"num_beams": 4, "num_return_sequences": 4, "stop_ids": [7, 17, 2, 5], "length_penalty": -1.0},
    {"num_beams": 3, "num_return_sequences": 3, "stop_ids": [2, 17], "early_stopping": True},
    {"num_beams": 4, "num_return_sequences": 4, "stop_ids": [2], "early_stopping": True},
    {"num_beams": 5, "num_return_sequences": 5, "stop_ids": [2, 15], "early_stopping": "never"},
    {
        "num_beams": 3,
        "num_return_sequences": 3,
        "stop_ids": [17],
        "early_stopping": "never",
        "length_penalty": 0.3,
    },
    {"num_beams": 3, "num_return_sequences": 3, "no_repeat_ngram_size": 2, "stop_ids": [7]},
    {"num_beams": 3, "num_return_sequences": 3, "repetition_penalty": 1.3, "stop_ids": [7]},
    {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 1, "stop_ids": [11]},
    {"num_beams": 20, "num_return_sequences": 20, "max_new_tokens": 4, "stop_ids": [11]},
]


def hf_beams(model, prompt, settings):
    """[(new ids, score)] of transformers; a setting's name is ours, which is theirs but for the stop ids."""
    given = {"max_new_tokens": 12, "do_sample": False, **settings}
    stop_ids = given.pop("stop_ids", [])
    with torch.no_grad():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            eos_token_id=stop_ids or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **given,
        )
    beams = []
    used = (found.beam_indices >= 0).sum(dim=1).tolist()  # what follows is padding
    for ids, n, score in zip(found.sequences.tolist(), used, found.sequences_scores.tolist(), strict=True):
        beams.append((ids[len(prompt) : len(prompt) + n], score))
    return beams


def main():
    config = SimpleNamespace(**MODEL)
    model = hf_model(config, formula.weights(config, SCALE))
    cases = [{"settings": case, "beams": hf_beams(model, PROMPT, case)} for case in CASES]
    made = {
        "config": MODEL,
        "scale": SCALE,
        "prompt": PROMPT,
        "versions": {package.__name__: package.__version__ for package in (torch, transformers)},
        "cases": cases,
    }
    path = FOLDER / "hf_beams.json"
    path.write_text(json.dumps(made) + "\n")
    print(path.name, path.stat().st_size, "bytes")
    for case in cases:
        print(case["settings"], [len(ids) for ids, _ in case["beams"]])


if __name__ == "__main__":
    main()
