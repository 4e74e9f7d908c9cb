# SPDX-License-Identifier: Apache-2.0
"""config.json of Hugging Face's GPT-2, to and from GPTConfig.

Every field that changes the mathematics is honoured or refused by name; absent ones take the defaults of
GPT2Config. The rest (dropout, ids of special tokens, what training used) changes no logit and is not read.
"""

import re

from gpt2cy.config import GPTConfig

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu_erf",
    "relu": "relu",
}
_WRITTEN = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}  # the first of each

# GPTConfig's name, the names a file may use (GPT2Config takes the second ones too), GPT2Config's default
_FIELDS = {
    "vocab_size": (("vocab_size",), 50257),
    "n_embd": (("n_embd", "hidden_size"), 768),
    "n_heads": (("n_head", "num_attention_heads"), 12),
    "n_layers": (("n_layer", "num_hidden_layers"), 12),
    "block_size": (("n_positions", "max_position_embeddings"), 1024),
    "n_inner": (("n_inner",), None),
    "layer_norm_eps": (("layer_norm_epsilon",), 1e-5),
    "tie_weights": (("tie_word_embeddings",), True),
    "scale_attn_weights": (("scale_attn_weights",), True),
    "scale_attn_by_inverse_layer_idx": (("scale_attn_by_inverse_layer_idx",), False),
}

# Fields that make another model of it, and the values with which they do not.
_REFUSED = {
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": ({}, None),
}


def from_hf(fields: dict, where: str = "config.json") -> GPTConfig:
    """Return the GPTConfig that a config.json means.

    Parameters
    ----------
    fields : dict
        What the file holds.
    where : str
        The file, for messages.

    Raises
    ------
    ValueError
        Naming every field that is wrong or that no GPT-2 of ours can honour.

    Examples
    --------
    >>> from gpt2cy.weights.hf_config import from_hf
    >>> config = from_hf({"model_type": "gpt2", "n_layer": 6})
    >>> config.n_layers, config.tie_weights, config.n_params
    (6, True, 81912576)
    """
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: expected an object of fields, got {type(fields).__name__}")
    problems = []
    if fields.get("model_type", "gpt2") != "gpt2":
        problems.append(f'model_type: expected "gpt2", got {_short(fields["model_type"])}')
    for name, harmless in _REFUSED.items():
        if fields.get(name) not in harmless:
            problems.append(f"{name}: expected none, got {_short(fields[name])}: this is not plain GPT-2")
    activation = fields.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        problems.append(f"activation_function: expected one of {known}, got {_short(activation)}")
    values = {ours: _value(fields, names, default, problems) for ours, (names, default) in _FIELDS.items()}
    if "n_ctx" in fields and not any(name in fields for name in _FIELDS["block_size"][0]):
        values["block_size"] = fields["n_ctx"]
    if not problems:
        try:
            return GPTConfig(**values, activation=ACTIVATIONS[activation], lm_head_bias=False)
        except (TypeError, ValueError) as error:
            problems.append(_in_their_words(str(error)))
    raise ValueError(f"{where}: " + "\n  ".join(problems))


def to_hf(config: GPTConfig) -> dict:
    """Return the fields of a config.json for a model, as transformers reads them.

    It has no words for `bias` and a bias of the head: those are the weights' matter.

    Examples
    --------
    >>> from gpt2cy import GPTConfig
    >>> from gpt2cy.weights.hf_config import from_hf, to_hf
    >>> config = GPTConfig.preset("distilgpt2")
    >>> from_hf(to_hf(config)) == config
    True
    """
    fields = {names[0]: getattr(config, ours) for ours, (names, _) in _FIELDS.items()}
    fields |= {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": _WRITTEN[config.activation],
        "dtype": "float32",
    }
    if config.vocab_size <= 50256:  # GPT2Config's default of both would lie outside the vocabulary
        fields |= {"bos_token_id": None, "eos_token_id": None}
    return dict(sorted(fields.items()))


def _value(fields, names, default, problems):
    """The field under the one name that the file uses."""
    given = {name: fields[name] for name in names if name in fields}
    if len(given) > 1 and len({repr(value) for value in given.values()}) > 1:
        problems.append("; ".join(f"{name} is {_short(value)}" for name, value in given.items()) + ": which?")
    return next(iter(given.values()), default)


def _in_their_words(message):
    """A message of GPTConfig's with the names that the file uses."""
    for ours, (names, _) in _FIELDS.items():
        message = re.sub(rf"\b{ours}\b", names[0], message)
    return message


def _short(value):
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
