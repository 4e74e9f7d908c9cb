# SPDX-License-Identifier: Apache-2.0
"""A little of everything, small, for valgrind: make test-valgrind. Every instruction set it can emulate."""

import numpy as np

import gpt2cy
from gpt2cy.kernels import dispatch

ids = np.arange(70) % 61
gpt2cy.set_num_threads(2)
for isa in dispatch.available():
    dispatch.use(isa)
    for options in ({}, {"tie_weights": True, "activation": "gelu_erf"}):
        model = gpt2cy.GPT(gpt2cy.GPTConfig(61, 20, 5, 2, 80, **options), seed=0)
        whole = model(ids)
        cache = model.new_cache()
        model(ids[:65], cache)
        branch = cache.copy()
        for position in range(65, 70):
            assert (model.next_logits(ids[position : position + 1], cache) == whole[position]).all()
        assert (model(ids[65:], branch) == whole[65:]).all()
        assert all((logits == whole[: len(logits)]).all() for logits in model.forward_many([ids, ids[:3]]))
        model.load_state_dict(model.state_dict())
    print(isa, "done", flush=True)
