# SPDX-License-Identifier: Apache-2.0
"""gpt2cy through its public interface."""

import contextlib
import io

import gpt2cy


class Engine:
    def __init__(self, config, weights, threads):
        gpt2cy.set_num_threads(threads)
        self.model = gpt2cy.GPT(gpt2cy.GPTConfig(**config))
        self.model.load_state_dict(weights)

    def versions(self):
        with contextlib.redirect_stdout(io.StringIO()):
            shown = gpt2cy.show_config()
        return {name: value for name, value in shown.items() if name not in ("available_isas", "num_threads")}

    def forward(self, tokens):
        return self.model(tokens)
