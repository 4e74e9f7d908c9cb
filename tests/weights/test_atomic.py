# SPDX-License-Identifier: Apache-2.0
"""FILE-03, FILE-04: a save that ends early, in whatever way, leaves the old files or the new ones, no others.

kill_saves.py, run from here, is the part that dies.
"""

import itertools
import json
import os
import threading
from pathlib import Path

import formula
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from gpt2cy.weights import atomic, writers

SIZES = (61, 12, 2, 3, 29)
KILL_SAVES = Path(__file__).with_name("kill_saves.py").read_text()
posix = pytest.mark.skipif(os.name != "posix", reason="signals, limits and forks as POSIX has them")


@pytest.fixture
def models(build):
    """Two models of one shape, the second with twice the heads: another config.json."""
    return [build(*SIZES[:2], heads, *SIZES[3:], scale=heads, tie_weights=True) for heads in (2, 4)]


def contents(folder):
    """Every file's bytes, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- killed ----------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("rounds", [8, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.exhaustive])])
def test_killed_at_random_moments(tmp_path, python, rounds):
    out = python(KILL_SAVES, tmp_path, "random", rounds, timeout=600)
    assert out.startswith(f"{rounds} killed; ")


@posix
def test_killed_before_each_step(tmp_path, python):
    """Of a save over: one file, shards by shards, one file by shards and back, an empty folder."""
    lines = python(KILL_SAVES, tmp_path, "each", timeout=600).splitlines()
    steps = [int(line.rpartition(" ")[2]) for line in lines]
    assert len(steps) == 7
    assert min(steps) > 10


# ---- exceptions ------------------------------------------------------------------------------------------


class Failing(dict):
    """Parameters of which the n-th that is asked for raises."""

    def __init__(self, parameters, n, error):
        super().__init__(parameters)
        self.countdown = itertools.count(n, -1)
        self.error = error

    def __getitem__(self, name):
        if next(self.countdown) == 0:
            raise self.error
        return super().__getitem__(name)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError, OSError("a text")], ids=repr)
@pytest.mark.parametrize("form", writers.FORMATS)
def test_an_exception_at_any_tensor(tmp_path, models, form, error):
    if form == "gguf":
        pytest.importorskip("gguf")
    path = tmp_path if form == "safetensors" else tmp_path / "model"
    models[0].save(path, format=form)
    before = contents(tmp_path)
    config, parameters = models[1].config, models[1].state_dict()
    for n in range(len(parameters)):
        with pytest.raises(error if isinstance(error, type) else OSError):
            writers.save(config, Failing(parameters, n, error), path, form)
        assert contents(tmp_path) == before
    writers.save(config, Failing(parameters, n + 1, error), path, form)
    assert contents(tmp_path) != before


def test_an_exception_removes_the_folders_that_were_made(tmp_path, models):
    parameters = Failing(models[0].state_dict(), 3, ValueError)
    with pytest.raises(ValueError):
        writers.save(models[0].config, parameters, tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == []


def test_an_array_of_another_shape(tmp_path, models):
    parameters = models[0].state_dict() | {"h.1.ln_1.bias": np.zeros(3)}
    with pytest.raises(ValueError, match=r"ln_1.bias: expected shape \[12\], got shape \[3\]"):
        writers.save(models[0].config, parameters, tmp_path)
    assert os.listdir(tmp_path) == []


def test_hostile_paths(tmp_path, models):
    class Raises(os.PathLike):
        def __fspath__(self):
            raise error

    models[0].save_pretrained(tmp_path)
    before = contents(tmp_path)
    for error in (ValueError("no"), KeyboardInterrupt(), RecursionError(), OSError("no")):
        with pytest.raises(type(error)):
            models[1].save_pretrained(Raises())
    assert contents(tmp_path) == before
    models[0].wte.weight = np.zeros((61, 12))  # the model is free again


@pytest.mark.parametrize("step", ["replace", "unlink", "fsync"])
def test_an_interrupt_at_any_step_of_the_commit(tmp_path, models, monkeypatch, step):
    """Before the record is in place the old files stay; after, the new ones come. The exception goes on."""
    call = getattr(os, step)
    outcomes = set()
    for n in itertools.count():
        models[0].save_pretrained(tmp_path)
        old, countdown = contents(tmp_path), itertools.count(n, -1)

        def interrupted(*arguments, countdown=countdown):
            if next(countdown) == 0:
                raise KeyboardInterrupt
            return call(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, step, interrupted)
            try:
                models[1].save_pretrained(tmp_path, max_shard_size=6000)
            except KeyboardInterrupt:
                outcomes.add("old" if contents(tmp_path) == old else "new")
            else:
                break
        if contents(tmp_path) != old:
            assert len(load_shards(tmp_path)) == len(models[1].state_dict())
            assert json.loads((tmp_path / "config.json").read_text())["n_head"] == 4
        assert not any(name.startswith(".") for name in os.listdir(tmp_path))
    assert outcomes == {"replace": {"old", "new"}, "unlink": {"new"}, "fsync": {"old", "new"}}[step]


def load_shards(folder):
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    assert {"config.json", "model.safetensors.index.json", *places.values()} == set(os.listdir(folder))
    return {name: load_file(folder / shard)[name] for name, shard in places.items()}


# ---- disks -----------------------------------------------------------------------------------------------

FULL_DISK = """if True:
    import os, resource, signal, sys
    import gpt2cy
    folder, form, new = sys.argv[1:]
    sizes = gpt2cy.GPTConfig(61, 128, 2, 3, 29, tie_weights=True)
    old, model = gpt2cy.GPT(sizes, seed=0), gpt2cy.GPT(sizes, seed=1)
    path = folder if form == "safetensors" else os.path.join(folder, "model")
    if new == "over":
        old.save(path, form)
    before = {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}
    target = path if new == "over" else path + "/a/b" if form == "safetensors" else path + "2"
    for limit in (0, 1, 5000, 300_000, 1_500_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            model.save(target, form)
        except OSError as error:
            assert folder in str(error) and error.errno, error
        else:
            raise AssertionError("saved")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        after = {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}
        assert after == before, (limit, list(after))
    model.save(target, form)
    print("done")
"""


@posix
@pytest.mark.parametrize("new", ["new", "over"])
@pytest.mark.parametrize("form", writers.FORMATS)
def test_a_full_disk(tmp_path, python, form, new):
    if form == "gguf":
        pytest.importorskip("gguf")
    assert python(FULL_DISK, tmp_path, form, new).strip() == "done"


READ_ONLY = """if True:
    import os, stat, sys, tempfile
    import gpt2cy
    from gpt2cy.weights import atomic
    model = gpt2cy.GPT(gpt2cy.GPTConfig(61, 12, 2, 3, 29, tie_weights=True), seed=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for unfinished in (False, True):
            if unfinished:
                names = {"config.json": ".gpt2cy-0123456789abcdef.tmp"}
                open(os.path.join(folder, names["config.json"]), "w").close()
                with open(os.path.join(folder, atomic.RECORD), "w") as file:
                    file.write('{"files": {"config.json": ".gpt2cy-0123456789abcdef.tmp"}, "removed": []}')
            before = sorted(os.listdir(folder))
            os.chmod(folder, 0o555)
            user = os.geteuid()
            if user == 0:  # whom permissions do not hold back
                os.seteuid(65534)
            try:
                atomic.finish(folder) if unfinished else model.save_pretrained(folder)
            except PermissionError as error:
                print(error)
            assert sorted(os.listdir(folder)) == before
            os.seteuid(user)
            os.chmod(folder, 0o755)
        assert atomic.finish(folder)
        assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
"""


@posix
def test_a_read_only_folder(python):
    save, finish = python(READ_ONLY).splitlines()
    assert "Permission denied" in save
    assert "a save was interrupted when its files were complete" in finish
    assert "with permission to change it" in finish


# ---- what is there already -------------------------------------------------------------------------------


def test_saving_over_files_that_others_have_open(tmp_path, models, same_bits):
    """FILE-04: whoever has mapped the old file keeps it; the new one is another file."""
    models[0].save_pretrained(tmp_path)
    old = models[0].state_dict()
    with safe_open(tmp_path / "model.safetensors", "numpy") as mapped:
        tokens = formula.tokens(models[1].config, 1, 29)
        logits = models[1](tokens)
        models[1].save_pretrained(tmp_path)
        same_bits(models[1](tokens), logits)
        for name, array in old.items():
            same_bits(mapped.get_tensor("transformer." + name), array)
    new = load_file(tmp_path / "model.safetensors")
    for name, array in models[1].state_dict().items():
        same_bits(new["transformer." + name], array)


def test_files_of_others_stay(tmp_path, models):
    mine = {
        "tokenizer.json": b"{}",
        "model.bin": b"1",
        "mine.safetensors": b"2",
        ".gpt2cy-not-ours.tmp": b"3",
        "pytorch_model.bin": b"4",
        "model-of-mine.safetensors": b"5",
    }
    for name, data in mine.items():
        (tmp_path / name).write_bytes(data)
    for size in (6000, 7000, "5GB", 6000):
        models[0].save_pretrained(tmp_path, max_shard_size=size)
        models[0].save(tmp_path / "other.bin", format="llm.c")
    assert contents(tmp_path).items() >= mine.items()


def test_old_shards_go_and_new_ones_have_new_names(tmp_path, models):
    models[0].save_pretrained(tmp_path, max_shard_size=6000)
    first = set(load_shards(tmp_path)) and set(os.listdir(tmp_path))
    models[1].save_pretrained(tmp_path, max_shard_size=6000)
    second = set(load_shards(tmp_path)) and set(os.listdir(tmp_path))
    assert first & second == {"config.json", "model.safetensors.index.json"}
    models[1].save_pretrained(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    "index",
    [b"", b"\xff", b"[]", b'{"weight_map": []}', b'{"weight_map": {"a": 5}}', b"[" * 100_000,
     b'{"weight_map": {"a": "../mine", "b": "tokenizer.json", "c": "a/model-1.safetensors"}}'],
    ids=range(7),
)  # fmt: skip
def test_an_old_index_that_makes_no_sense(tmp_path, models, index):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "mine").touch()
    (folder / "tokenizer.json").touch()
    (folder / "model.safetensors.index.json").write_bytes(index)
    models[0].save_pretrained(folder)
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (tmp_path / "mine").exists()


def test_what_killed_saves_left_is_swept_up(tmp_path, models):
    stale = tmp_path / ".gpt2cy-0123456789abcdef.tmp"
    for path, form in ((tmp_path, "safetensors"), (tmp_path / "model.bin", "llm.c")):
        stale.write_bytes(b"half of it")
        models[0].save(path, format=form)
        assert not stale.exists()


def test_an_unchanged_configuration_is_left_alone(tmp_path, models):
    """Then one file changes, by one rename: there is no moment without config.json."""
    models[0].save_pretrained(tmp_path)
    before = os.stat(tmp_path / "config.json")
    models[0].wte.weight = np.zeros((61, 12))
    models[0].save_pretrained(tmp_path)
    after = os.stat(tmp_path / "config.json")
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert not load_file(tmp_path / "model.safetensors")["transformer.wte.weight"].any()


# ---- records ---------------------------------------------------------------------------------------------

TEMPORARY = ".gpt2cy-0123456789abcdef.tmp"
RECORDS = [
    {"files": {"../config.json": TEMPORARY}, "removed": []},
    {"files": {"/config.json": TEMPORARY}, "removed": []},
    {"files": {"tokenizer.json": TEMPORARY}, "removed": []},
    {"files": {"config.json": "../victim"}, "removed": []},
    {"files": {"config.json": "victim"}, "removed": []},
    {"files": {"config.json": TEMPORARY + "\n"}, "removed": []},
    {"files": {}, "removed": ["../victim"]},
    {"files": {}, "removed": ["victim"]},
    {"files": {}, "removed": ["model.safetensors\n"]},
    {"files": {}, "removed": ["model/../../victim.safetensors"]},
    {"files": {"config.json": TEMPORARY}, "removed": ["config.json"]},
    {"files": {"config.json": 5}, "removed": []},
    {"files": {}, "removed": [5]},
    {"files": [], "removed": None},
    {"files": {}},
    [],
]


RECORDS = [*map(json.dumps, RECORDS), "", "{", "[" * 100_000, "\0", "1e999"]


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
def test_a_record_reaches_nothing_but_the_checkpoint(tmp_path, models, record):
    """It may come with a folder from anywhere."""
    folder = tmp_path / "folder"
    models[0].save_pretrained(folder)
    for place in (folder, tmp_path):
        (place / "victim").touch()
        (place / "victim.safetensors").touch()
    (folder / TEMPORARY).touch()
    (folder / atomic.RECORD).write_text(record)
    before = contents(folder), sorted(os.listdir(tmp_path))
    for call in (atomic.finish, models[1].save_pretrained):
        with pytest.raises(ValueError, match="gpt2cy-save.json: expected the record of an interrupted save"):
            call(folder)
    assert (contents(folder), sorted(os.listdir(tmp_path))) == before
    os.unlink(folder / atomic.RECORD)
    models[1].save_pretrained(folder)


def test_only_a_checkpoints_files_can_be_committed_together(tmp_path):
    with pytest.raises(ValueError, match="expected the record"), atomic.replacing(str(tmp_path)) as changes:
        changes.create("a")
        changes.create("b")
    assert os.listdir(tmp_path) == []


def test_nothing_to_finish(tmp_path):
    assert atomic.finish(tmp_path) is False
    assert atomic.finish(tmp_path / "not there") is False


# ---- several at once -------------------------------------------------------------------------------------


@posix
def test_one_at_a_time(tmp_path, models):
    """A second save to the folder waits for the first, and so cannot take its files for leftovers."""
    inside, leave, order = threading.Event(), threading.Event(), []

    class Slow(dict):
        def __getitem__(self, name):
            inside.set()
            assert leave.wait(60)
            return super().__getitem__(name)

    def first():
        writers.save(models[0].config, Slow(models[0].state_dict()), tmp_path)
        order.append(0)

    def second():
        models[1].save_pretrained(tmp_path)
        order.append(1)

    threads = [threading.Thread(target=work) for work in (first, second)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".tmp")]) == 1
    leave.set()
    for thread in threads:
        thread.join(60)
    assert order == [0, 1]
    assert json.loads((tmp_path / "config.json").read_text())["n_head"] == 4
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]


def test_a_save_inside_a_save(tmp_path, models):
    """As from a signal handler: it would wait for itself."""
    already = pytest.raises(RuntimeError, match="this thread is saving to this folder already")
    with already, atomic.replacing(str(tmp_path)):
        models[0].save_pretrained(tmp_path)
    models[0].save_pretrained(tmp_path)


@posix
def test_a_fork_during_a_save_does_not_keep_the_lock(tmp_path, models):
    read, write = os.pipe()
    with atomic.replacing(str(tmp_path)):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # lives until the parent has saved
            os._exit(0)
    saving = threading.Thread(target=models[0].save_pretrained, args=(tmp_path,), daemon=True)
    saving.start()
    saving.join(30)
    kept = saving.is_alive()
    os.close(write)
    os.waitpid(child, 0)
    os.close(read)
    saving.join(30)
    assert not kept


def test_folders_that_cannot_be_locked(tmp_path, models, monkeypatch):
    """Then nobody knows whose temporary files are whose: they stay."""
    if atomic.fcntl is None:
        pytest.skip("no locks here at all")

    def refuse(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(atomic.fcntl, "flock", refuse)
    (tmp_path / TEMPORARY).touch()
    models[0].save_pretrained(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [TEMPORARY, "config.json", "model.safetensors"]
