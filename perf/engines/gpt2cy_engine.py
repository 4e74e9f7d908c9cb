# SPDX-License-Identifier: Apache-2.0
"""gpt2cy through its public interface."""

import contextlib
import io

import gpt2cy


class Engine:
    def __init__(self, config, weights, threads):
        if threads:
            gpt2cy.set_num_threads(threads)
        self.model = gpt2cy.GPT(gpt2cy.GPTConfig(**config))
        self.model.load_state_dict(weights)

    def versions(self):
        with contextlib.redirect_stdout(io.StringIO()):
            shown = gpt2cy.show_config()
        return {name: value for name, value in shown.items() if name not in ("available_isas", "num_threads")}

    def forward(self, tokens):
        return self.model(tokens)

    def next_logits(self, tokens):
        return self.model.next_logits(tokens)

    def score(self, tokens):
        """The mean of -logprob of a sequence [1, T]."""
        return -self.model.token_logprobs(tokens[0]).mean(dtype="f8")

    def decoder(self, tokens):
        """What computes one more token after these, again and again from the same state."""
        cache = self.model.new_cache(len(tokens))
        self.model.next_logits(tokens, cache)
        past = tokens.shape[1]

        def step(token):
            logits = self.model.next_logits(token, cache)
            cache.truncate(past)
            return logits

        return step
