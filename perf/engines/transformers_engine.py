# SPDX-License-Identifier: Apache-2.0
"""transformers' GPT2LMHeadModel, float32, eager."""

import torch
import transformers

ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}


class Engine:
    def __init__(self, config, weights, threads):
        if threads:
            torch.set_num_threads(threads)
        tied = "lm_head.weight" not in weights
        hf_config = transformers.GPT2Config(
            vocab_size=config["vocab_size"],
            n_positions=config["block_size"],
            n_embd=config["n_embd"],
            n_layer=config["n_layers"],
            n_head=config["n_heads"],
            n_inner=config["n_inner"],
            activation_function=ACTIVATIONS[config["activation"]],
            layer_norm_epsilon=config["layer_norm_eps"],
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.model = transformers.GPT2LMHeadModel(hf_config).eval().requires_grad_(False)
        if "lm_head.bias" in weights:
            bias = torch.empty(config["vocab_size"])
            self.model.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
        state = {
            name if name.startswith("lm_head.") else f"transformer.{name}": torch.from_numpy(array)
            for name, array in weights.items()
        }
        if tied:
            state["lm_head.weight"] = state["transformer.wte.weight"]
        self.model.load_state_dict(state)

    def versions(self):
        return {"transformers": transformers.__version__, "torch": torch.__version__}

    @torch.inference_mode()
    def forward(self, tokens):
        return self.model(torch.from_numpy(tokens), use_cache=False).logits.numpy()

    @torch.inference_mode()
    def score(self, tokens):
        """The mean of -logprob of a sequence [1, T]: its own loss."""
        ids = torch.from_numpy(tokens)
        return self.model(ids, labels=ids, use_cache=False).loss.numpy()
