# SPDX-License-Identifier: Apache-2.0
"""Python threads, forks and signals: what an embedder and a server do."""

import contextlib
import os
import sys
import threading

import formula
import numpy as np
import pytest

import gpt2cy

CONFIG = gpt2cy.GPTConfig(61, 20, 5, 2, 150)
exhaustive = [pytest.mark.slow, pytest.mark.exhaustive]
posix = pytest.mark.skipif(os.name != "posix", reason="fork and signals as POSIX has them")


def model_of(seed):
    model = gpt2cy.GPT(CONFIG, seed=seed)
    model.load_state_dict(formula.weights(CONFIG))
    model.wte.weight = model.wte.weight * np.float32(1 + seed / 8)
    return model


def in_threads(works):
    """Run the functions at once; raise the first error."""
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("n_models", [1, 8])
def test_eight_threads(n_models, same_bits):
    """THR-02: on one model and on several, results are those of serial calls."""
    models = [model_of(seed) for seed in range(n_models)]
    rows = formula.tokens(CONFIG, 8, 100)
    expected = [models[i % n_models](rows[i]) for i in range(8)]

    def work(i):
        model = models[i % n_models]
        cache = model.new_cache()
        for call in range(1000):
            cut = 1 + call % 99
            cache.reset()
            same_bits(model(rows[i, :cut], cache), expected[i][:cut])
            same_bits(model.next_logits(rows[i, cut:], cache), expected[i][-1])

    in_threads([lambda i=i: work(i) for i in range(8)])


def test_assigning_while_others_compute(same_bits):
    """Weights are assigned between calls or not at all: RuntimeError, never a mixture within a layer."""
    model = model_of(0)
    row = formula.tokens(CONFIG, 1, 100)[0]
    weights = [model.blocks[0].mlp.c_fc.weight * np.float32(scale) for scale in (1, 2)]
    expected = []
    for weight in weights:
        model.blocks[0].mlp.c_fc.weight = weight
        expected.append(model(row).tobytes())
    refused, done = [], threading.Event()

    def assign():
        try:
            for i in range(300):
                try:
                    model.blocks[0].mlp.c_fc.weight = weights[i % 2]
                except RuntimeError as error:
                    refused.append(str(error))
        finally:
            done.set()

    def compute():
        while not done.is_set():
            try:
                assert model(row).tobytes() in expected
            except RuntimeError as error:
                assert "being assigned" in str(error)

    in_threads([assign, compute, compute])
    assert set(refused) <= {"weights cannot be assigned while a call is using them"}


def test_reading_while_others_assign():
    """What is read is what was there before an assignment or after it, or RuntimeError: never a mixture."""
    model = gpt2cy.GPT(gpt2cy.GPTConfig(64, 384, 4, 1, 32), seed=0)
    layers = model.blocks[0].mlp.c_fc, model.wte, model.blocks[0].ln_1
    done, seen = threading.Event(), []

    def assign():
        try:
            for i in range(300):
                for layer, name in zip(layers, ("weight", "weight", "gamma"), strict=True):
                    shape = getattr(layer, name).shape
                    with contextlib.suppress(RuntimeError):
                        setattr(layer, name, np.full(shape, i, np.float32))
        finally:
            done.set()

    def read():
        while not done.is_set():
            for get in (
                lambda: layers[0].weight,
                lambda: layers[1].weight,
                lambda: layers[2].gamma,
                lambda: model.state_dict()["h.0.mlp.c_fc.weight"],
            ):
                try:
                    array = get()
                except RuntimeError as error:
                    assert "being assigned" in str(error)
                else:
                    seen.append(np.ptp(array) == 0)

    for layer, name in zip(layers, ("weight", "weight", "gamma"), strict=True):
        setattr(layer, name, np.zeros(getattr(layer, name).shape, np.float32))
    in_threads([assign, read, read])
    assert len(seen) > 10 and all(seen)


def test_a_cache_has_one_call_at_a_time(same_bits):
    model = gpt2cy.GPT(gpt2cy.GPTConfig(307, 64, 4, 4, 256), seed=0)
    row = np.arange(200) % 307
    cache = model.new_cache()
    outcomes = []

    def work():
        for _ in range(20):
            try:
                model.next_logits(row[:5], cache)
                outcomes.append("done")
            except RuntimeError as error:
                assert "in use" in str(error)
            except ValueError:
                return

    in_threads([work] * 4)
    assert cache.lengths == [5 * len(outcomes)]


@posix
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("repeats", [3, pytest.param(200, marks=exhaustive)])
def test_pools_after_use(python, tmp_path, method, repeats):
    """THR-01: the parent has used its team; the children give the same bits, and none hangs."""
    script = tmp_path / "pool.py"
    script.write_text(f"""
import hashlib, multiprocessing, numpy as np, gpt2cy
config = gpt2cy.GPTConfig(307, 96, 4, 2, 200)
ids = np.arange(200) % 307
def digest(_):
    return hashlib.sha256(gpt2cy.GPT(config, seed=3)(ids).tobytes()).hexdigest()
if __name__ == "__main__":
    gpt2cy.set_num_threads(2)
    expected = digest(0)
    context = multiprocessing.get_context("{method}")
    for _ in range({repeats if method == "fork" else max(1, repeats // 20)}):
        with context.Pool(2) as pool:
            assert pool.map_async(digest, range(4)).get(60) == [expected] * 4
        assert digest(0) == expected
    print("same")
""")
    run = f"import subprocess, sys; subprocess.run([sys.executable, {str(script)!r}], check=True)"
    assert python(run, timeout=60 + 10 * repeats).split() == ["same"]


@posix
def test_a_child_has_a_team_where_the_parent_had_no_other_thread(python):
    """Of any library: one that had used the same OpenMP before would leave the child waiting for ever."""
    code = """
import os, gpt2cy
gpt2cy.set_num_threads(2)
if os.fork() == 0:
    model = gpt2cy.GPT(gpt2cy.GPTConfig(307, 96, 4, 2, 200), seed=3)
    model([[1] * 200] * 2)
    os._exit(gpt2cy.get_num_threads())
print(os.waitstatus_to_exitcode(os.wait()[1]))
model = gpt2cy.GPT(gpt2cy.GPTConfig(307, 96, 4, 2, 200), seed=3)
model([[1] * 200] * 2)
if os.fork() == 0:
    model([[1] * 200] * 2)
    os._exit(gpt2cy.get_num_threads())
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    from gpt2cy.kernels import threads

    team = "2" if threads.openmp_version() else "1"
    assert python(code, OPENBLAS_NUM_THREADS="1").split() == [team, "1"]


@posix
def test_a_fork_by_c_code_is_noticed(python):
    """No hook of Python's runs then: the process id tells."""
    code = """
import ctypes, os, gpt2cy
gpt2cy.set_num_threads(2)
model = gpt2cy.GPT(gpt2cy.GPTConfig(307, 96, 4, 2, 200), seed=3)
expected = model([[1] * 200] * 2)
if ctypes.CDLL(None).fork() == 0:
    os._exit(int((model([[1] * 200] * 2) == expected).all()))
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert python(code, timeout=60).split() == ["1"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the module has another name")
def test_sub_interpreters_do_not_matter(python):
    """Before 3.12 PyGILState_Check is wrong once there has been one, and Cython's parallel loops ask it."""
    code = """
import _xxsubinterpreters, gpt2cy
gpt2cy.set_num_threads(2)
_xxsubinterpreters.destroy(_xxsubinterpreters.create())
model = gpt2cy.GPT(gpt2cy.GPTConfig(307, 96, 4, 2, 200), seed=3)
print(model([[1] * 200] * 2).shape)
"""
    assert python(code).split() == ["(2,", "200,", "307)"]


@posix
@pytest.mark.parametrize("attempt", range(5))
def test_an_interpreter_may_end_while_threads_compute(python, attempt):
    code = """
import threading, time, gpt2cy
gpt2cy.set_num_threads(2)
model = gpt2cy.GPT(gpt2cy.GPTConfig(307, 96, 4, 2, 200), seed=3)
def work():
    while True: model([[1] * 200] * 2)
for _ in range(3): threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
print("ends")
"""
    assert python(code).split() == ["ends"]


@posix
@pytest.mark.alone
def test_control_c_ends_a_forward_within_a_block(python):
    """GEN-17: KeyboardInterrupt comes between two blocks, and everything goes on as before."""
    code = """
import signal, time, numpy as np, gpt2cy
signal.signal(signal.SIGALRM, signal.default_int_handler)  # what Ctrl-C does, at a time of our choice
config = gpt2cy.GPTConfig(64, 512, 8, 24, 1024)
model = gpt2cy.GPT(config, seed=0)
ids = np.arange(1000) % 64
cache = model.new_cache()
model(ids[:10], cache)
start = time.perf_counter(); expected = model(ids); whole = time.perf_counter() - start
for call in (lambda: model(ids), lambda: model(ids[:900], cache), lambda: model.forward_many([ids, ids[:5]])):
    for attempt in range(20):
        delay = whole / 8 / 1.5**attempt  # the first call may have been a slow one
        start = time.perf_counter()
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            call()
            signal.setitimer(signal.ITIMER_REAL, 0)
            cache.truncate(10)
        except KeyboardInterrupt:
            late = time.perf_counter() - start - delay
            print("interrupted" if late < whole / 2 else f"late: {late} of {whole}")
            break
    assert cache.lengths == [10]
print(np.array_equal(model(ids), expected))
"""
    assert python(code).split() == ["interrupted"] * 3 + ["True"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_threads_that_end_take_their_team_along(python):
    """100 short-lived callers do not leave 100 teams behind."""
    code = """
import os, threading, gpt2cy, numpy as np
gpt2cy.set_num_threads(2)
model = gpt2cy.GPT(gpt2cy.GPTConfig(307, 96, 4, 2, 200), seed=3)
ids = np.zeros((1, 200), int)
model(ids)
before = len(os.listdir("/proc/self/task"))
for _ in range(100):
    thread = threading.Thread(target=model, args=(ids,)); thread.start(); thread.join()
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert int(python(code)) <= 2
