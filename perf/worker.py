# SPDX-License-Identifier: Apache-2.0
"""One engine in one process, started by harness.Worker: requests and answers are one JSON line each.

    {"do": "load", "weights": FILE.npz, "config": {...}}     -> {"versions": {...}}
    {"do": "forward", "tokens": FILE.npy, "output": FILE}    -> {}; the logits are in the output file
    {"do": "time", "batch": B, "length": T, "seconds": s}    -> {"ms": [...]}: one call to warm up, then calls
                                                                until s seconds have passed, at least one
    anything that fails                                      -> {"error": "..."}

Needs NumPy and what the engine needs, not gpt2cy.
"""

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np


class Session:
    """Answers the requests; `do` is the name of the method."""

    def __init__(self, engine, threads):
        self.name, self.threads = engine, threads

    def load(self, weights, config):
        engine = import_module(f"{self.name}_engine").Engine
        with np.load(weights) as arrays:
            self.engine = engine(config, dict(arrays), self.threads)
        self.vocab_size = config["vocab_size"]
        return {"versions": self.engine.versions()}

    def forward(self, tokens, output):
        np.save(output, self.engine.forward(np.load(tokens)))
        return {}

    def time(self, batch, length, seconds):
        tokens = np.random.default_rng(length).integers(0, self.vocab_size, (batch, length))
        self.engine.forward(tokens)
        samples = []
        begin = time.perf_counter()
        while not samples or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            self.engine.forward(tokens)
            samples.append(1e3 * (time.perf_counter() - start))
        return {"ms": samples}


def main():
    engine, threads = sys.argv[1], int(sys.argv[2])
    sys.path.append(str(Path(__file__).resolve().parent / "engines"))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints must not mix with the answers
    session = Session(engine, threads)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(session, request.pop("do"))(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
