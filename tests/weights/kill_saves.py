# SPDX-License-Identifier: Apache-2.0
"""Save over a folder, be killed, and look: the checkpoint is the old one or the new one, whole.

    kill_saves.py FOLDER random ROUNDS     children are killed at random moments of saves one after the other
    kill_saves.py FOLDER each              a child is killed before the n-th call of the system, for every n

The models differ in the number of heads, so in config.json but not in a single shape: an old configuration
with new weights would load everywhere without a word.
"""

import itertools
import json
import mmap
import os
import random
import signal
import sys
import time
import traceback

import numpy as np
from safetensors.numpy import load_file

import gpt2cy
from gpt2cy.weights import atomic

SIZES = {"vocab_size": 61, "n_embd": 12, "n_layers": 2, "block_size": 29, "tie_weights": True}
SHARD_SIZES = ["5GB", 6000, "5GB", 6000, 9000]
STEPS = ("open", "replace", "unlink", "fsync")

folder, mode, *rest = sys.argv[1:]


def model_of(number):
    """Model `number`: number + 1 heads, and weights that all contain the number."""
    model = gpt2cy.GPT(gpt2cy.GPTConfig(n_heads=[1, 2, 3, 4, 6][number], **SIZES), seed=0)
    model.load_state_dict({name: array + np.float32(number) for name, array in model.state_dict().items()})
    return model


MODELS = [model_of(number) for number in range(len(SHARD_SIZES))]


def save(number):
    MODELS[number].save_pretrained(folder, max_shard_size=SHARD_SIZES[number])


def parsed(name):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


def present():
    """The model that the folder holds, or None; model.safetensors comes first, as for transformers."""
    names = set(os.listdir(folder))
    if "config.json" not in names:
        return None
    config = parsed("config.json")
    found = {}
    if "model.safetensors" in names:
        found = load_file(os.path.join(folder, "model.safetensors"))
    else:
        places = parsed("model.safetensors.index.json")["weight_map"]
        shards = {name: load_file(os.path.join(folder, name)) for name in set(places.values())}
        assert sum(map(len, shards.values())) == len(places)
        found = {name: shards[shard][name] for name, shard in places.items()}
    for number, model in enumerate(MODELS):
        if config["n_head"] == model.config.n_heads:
            expected = model.state_dict()
            assert len(found) == len(expected)
            for name, array in expected.items():
                assert np.array_equal(found["transformer." + name], array), f"{name} is not of model {number}"
            return number
    raise AssertionError(f"{config['n_head']} heads")


def in_child(work):
    """Fork, and do the work there; the child's id."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


def judge(old, new):
    """What other readers see, and what ours do, once they have finished the save."""
    seen = present()
    committed = atomic.finish(folder)
    assert seen in (old, new) or (seen is None and committed), (seen, old, new, os.listdir(folder))
    found = present()
    assert found in (old, new), (found, old, new, os.listdir(folder))
    assert not committed or found == new
    return found


def clean(number):
    """After a save that was let alone nothing is left of those that were killed."""
    save(number)
    assert present() == number
    count = {"5GB": 2}.get(SHARD_SIZES[number])
    names = sorted(os.listdir(folder))
    assert not any(name.startswith(".") for name in names), names
    assert count is None or len(names) == count, names


def random_kills(rounds):
    rng = random.Random(rounds)
    progress = mmap.mmap(-1, 2)  # what the child is replacing, and by what
    save(0)
    begin = time.perf_counter()
    save(1)
    length = time.perf_counter() - begin
    current = 1
    kinds = dict.fromkeys(("old", "new", "temporary", "record"), 0)

    def keep_saving():
        for i in itertools.count():
            progress[1] = (current + 1 + i) % len(MODELS)
            save(progress[1])
            progress[0] = progress[1]

    for _ in range(rounds):
        progress[0] = progress[1] = current
        child = in_child(keep_saving)
        time.sleep(rng.uniform(0, 4 * length))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        names = os.listdir(folder)
        kinds["temporary"] += any(name.endswith(".tmp") for name in names)
        kinds["record"] += atomic.RECORD in names
        current = judge(progress[0], progress[1])
        kinds["new" if current == progress[1] else "old"] += 1
    clean(current)
    print(rounds, "killed;", kinds)


def each_step(old, new):
    """Returns the number of steps at which a child was killed."""
    for n in itertools.count():
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        if old is not None:
            save(old)
        child = in_child(lambda n=n: killed_before(n, new))
        status = os.waitpid(child, 0)[1]
        judge(old, new)
        if status == 0:
            assert present() == new
            return n
        assert os.WIFSIGNALED(status), "the child failed"
        clean(new)


def killed_before(n, new):
    calls = itertools.count()

    def stepped(call):
        def step(*arguments, **options):
            if next(calls) == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return step

    for name in STEPS:
        setattr(os, name, stepped(getattr(os, name)))
    save(new)


if mode == "random":
    random_kills(int(rest[0]))
else:
    for old, new in ((0, 2), (0, 1), (1, 0), (1, 3), (1, 4), (None, 0), (None, 1)):
        print(old, "->", new, "steps:", each_step(old, new))
