# SPDX-License-Identifier: Apache-2.0
"""Write golden logits ``hf_*.npz`` and ``scores.npz`` beside this file, from transformers' GPT2LMHeadModel.

Run by hand, in an environment of its own::

    pip install torch==2.13.0 transformers==5.24.0
    python tests/golden/make_golden.py

A file of logits holds ``config`` (JSON of GPTConfig's arguments), ``scale`` (of the weights, see
``formula.weights``), ``tokens`` [B, T], float64 ``logits`` [B, T, V] and ``versions`` (JSON). The weights are
not in it: ``formula.py`` makes them again, of standard deviation 0.5 * sqrt(12 / n_embd). With weights that
large transformers' own float32 misses atol 1e-5 with rtol 1e-4 here and there, so it computes in float64.

``scores.npz`` holds ``config``, ``scale``, ``tokens`` [T] and ``versions`` likewise and, for each stride of
``STRIDES``, the natural log of the probability of every token after the first, ``logprobs_STRIDE`` [T - 1],
and their perplexity, ``perplexity_STRIDE``: by the loop of transformers' page "Perplexity of fixed-length
models", weighted by tokens.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import formula
import numpy as np
import torch
import transformers

FOLDER = Path(__file__).parent

HF_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}

# No two of vocabulary, positions, C, 3C, 4C, n_inner, heads, head width, layers, B and T are equal: a swapped
# axis raises.
PLAIN = {
    "vocab_size": 61,
    "n_embd": 12,
    "n_heads": 2,
    "n_layers": 3,
    "block_size": 29,
    "n_inner": None,
    "activation": "gelu_tanh",
    "layer_norm_eps": 1e-5,
    "bias": True,
    "tie_weights": True,
    "lm_head_bias": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}
BATCH, TIME = 5, 7

HALF = 0.5 / formula.STD  # the scale at which matrices have a deviation of 0.5 * sqrt(12 / n_embd)

# name: (what differs from PLAIN, scale of the weights, B, T)
CASES = {
    "plain": ({}, HALF, BATCH, TIME),
    "full_context": ({}, HALF, BATCH, 29),
    "one_token": ({}, HALF, BATCH, 1),
    "untied": ({"tie_weights": False}, HALF, BATCH, TIME),
    "n_inner": ({"n_inner": 20}, HALF, BATCH, TIME),
    "inverse_layer": ({"scale_attn_by_inverse_layer_idx": True}, HALF, BATCH, TIME),
    "unscaled": ({"scale_attn_weights": False}, HALF, BATCH, TIME),
    "unscaled_inverse_layer": (
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
        HALF,
        BATCH,
        TIME,
    ),
    "gelu_erf": ({"activation": "gelu_erf"}, HALF, BATCH, TIME),
    "relu": ({"activation": "relu"}, HALF, BATCH, TIME),
    "head_dim_1": ({"n_heads": 12}, HALF, BATCH, TIME),
    "one_head": ({"n_heads": 1}, HALF, BATCH, TIME),
    # Rows of variance near 1e-6: what eps is, and that it is inside the root, decides the result.
    "eps_1e-5_small": ({"tie_weights": False}, 3e-3, BATCH, TIME),
    "eps_1e-3_small": ({"tie_weights": False, "layer_norm_eps": 1e-3}, 3e-3, BATCH, TIME),
    "eps_1e-12_small": ({"tie_weights": False, "layer_norm_eps": 1e-12}, 3e-3, BATCH, TIME),
    # More than one block of 64 keys, and widths that are multiples of no vector's.
    "long": (
        {"vocab_size": 97, "n_embd": 35, "n_heads": 5, "n_layers": 2, "block_size": 150},
        HALF,
        3,
        131,
    ),
}

SCORED = {"vocab_size": 97, "n_embd": 35, "n_heads": 5, "n_layers": 2, "block_size": 128}
SCORED_TIME = 2000
STRIDES = (127, 64, 1)


def hf_model(config, params):
    """Build a float64 ``GPT2LMHeadModel`` in eval mode from a configuration and weights under our names."""
    hf_config = transformers.GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.block_size,
        n_embd=config.n_embd,
        n_layer=config.n_layers,
        n_head=config.n_heads,
        n_inner=config.n_inner,
        activation_function=HF_ACTIVATIONS[config.activation],
        layer_norm_epsilon=config.layer_norm_eps,
        scale_attn_weights=config.scale_attn_weights,
        scale_attn_by_inverse_layer_idx=config.scale_attn_by_inverse_layer_idx,
        tie_word_embeddings=config.tie_weights,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.GPT2LMHeadModel(hf_config)
    if "lm_head.bias" in params:
        model.lm_head.bias = torch.nn.Parameter(torch.empty(config.vocab_size))
    state = {
        name if name.startswith("lm_head.") else f"transformer.{name}": torch.tensor(np.asarray(values))
        for name, values in params.items()
    }
    if config.tie_weights:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    model.load_state_dict(state)
    return model.double().eval()


def hf_logits(model, tokens):
    """Return the float64 logits [B, T, V] of all positions."""
    with torch.no_grad():
        return model(torch.tensor(tokens), use_cache=False).logits.numpy()


def hf_logprobs(model, tokens, max_length, stride):
    """Return float64 logprobs [T - 1] of a text [T] longer than the model sees at once."""
    found = []
    previous_end = 1  # the first token has nothing before it
    for begin in range(0, len(tokens), stride):
        end = min(begin + max_length, len(tokens))
        rows = torch.log_softmax(torch.tensor(hf_logits(model, tokens[None, begin:end])[0]), -1)
        for position in range(previous_end, end):
            found.append(rows[position - 1 - begin, tokens[position]].item())
        previous_end = end
        if end == len(tokens):
            return np.array(found)


def write_scores(versions):
    """Write scores.npz."""
    config = SimpleNamespace(**PLAIN | SCORED)
    model = hf_model(config, formula.weights(config, HALF))
    tokens = formula.tokens(config, 1, SCORED_TIME)[0]
    found = {"config": json.dumps(vars(config)), "scale": HALF, "tokens": tokens}
    for stride in STRIDES:
        logprobs = hf_logprobs(model, tokens, config.block_size, stride)
        found |= {f"logprobs_{stride}": logprobs, f"perplexity_{stride}": np.exp(-logprobs.mean())}
    path = FOLDER / "scores.npz"
    np.savez_compressed(path, **found, versions=json.dumps(versions))
    print(f"{path.name:32} {path.stat().st_size:8,} bytes")


def main():
    """Write every case and report the sizes."""
    versions = {package.__name__: package.__version__ for package in (torch, transformers, np)}
    for name, (changes, scale, batch, time) in CASES.items():
        config = SimpleNamespace(**PLAIN | changes)
        tokens = formula.tokens(config, batch, time)
        logits = hf_logits(hf_model(config, formula.weights(config, scale)), tokens)
        path = FOLDER / f"hf_{name}.npz"
        np.savez_compressed(
            path,
            config=json.dumps(vars(config)),
            scale=scale,
            tokens=tokens,
            logits=logits,
            versions=json.dumps(versions),
        )
        print(f"{path.name:32} logits {logits.shape!s:14} {path.stat().st_size:8,} bytes")
    write_scores(versions)


if __name__ == "__main__":
    main()
