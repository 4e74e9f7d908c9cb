# SPDX-License-Identifier: Apache-2.0
"""One engine in one process, started by harness.Worker: requests and answers are one JSON line each.

    {"do": "load", "weights": FILE.npz, "config": {...}}                   -> {"versions": {...}}
    {"do": "answer", "call": CALL, "tokens": FILE.npy, "output": FILE}     -> {}: the result is in the file
    {"do": "time", "call": CALL, "tokens": FILE.npy, "seconds": s}         -> {"ms": median}, after a warm-up
    {"do": "huge_pages"}                                                   -> {"bytes": number, or null}
    anything that fails                                                    -> {"error": "..."}

CALL is forward, next_logits, decode (the last column of tokens, after the others have been cached), score
(the mean of -logprob of one sequence), or attention. Needs NumPy and what the engine needs, not gpt2cy.
"""

import ctypes
import json
import os
import signal
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import harness
import numpy as np
import resident

# CALL -> a function without arguments of an engine and its input: what has to be ready first is done here.
CALLS = {
    "forward": lambda engine, tokens: partial(engine.forward, tokens),
    "next_logits": lambda engine, tokens: partial(engine.next_logits, tokens),
    "decode": lambda engine, tokens: partial(engine.decoder(tokens[:, :-1]), tokens[:, -1:]),
    "score": lambda engine, tokens: partial(engine.score, tokens),
    "attention": lambda engine, qkv: engine.attention(qkv),
}


class Session:
    """Answers the requests; `do` is the name of the method."""

    def __init__(self, engine, threads):
        self.name, self.threads = engine, threads

    def load(self, config, weights=None):
        engine = import_module(f"{self.name}_engine").Engine
        self.engine = engine(config, read(weights) if weights else {}, self.threads)
        return {"versions": self.engine.versions()}

    def answer(self, call, tokens, output):
        np.save(output, CALLS[call](self.engine, np.load(tokens))())
        return {}

    def time(self, call, tokens, seconds):
        return {"ms": harness.time_ms(CALLS[call](self.engine, np.load(tokens)), seconds)}

    def huge_pages(self):
        return {"bytes": resident.huge_pages()}


def read(path):
    with np.load(path) as arrays:
        return dict(arrays)


def end_with_parent():
    """On Linux, be killed when the bench is: a worker that is stopped would wait for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main():
    end_with_parent()
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
