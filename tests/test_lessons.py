# SPDX-License-Identifier: Apache-2.0
"""The lessons of perf/lessons: right for any size, the package's bits where they say so; and their pages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt2cy.kernels import dispatch

sys.path.append(str(Path(__file__).parents[1] / "perf/lessons"))
import page
import run

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "perf/lessons"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the lessons are compiled by cc -fopenmp"
)
VECTORS = [isa for isa in dispatch.available() if isa != "ref"]
SIZES = [(1, 1, 1), (2, 3, 31), (5, 40, 33), (13, 769, 70), (15, 385, 96), (29, 9, 32), (43, 390, 129)]
LENGTHS = [(1, 1), (2, 3), (63, 16), (64, 33), (65, 64), (150, 40)]


@pytest.fixture(scope="module", params=VECTORS)
def isa(request):
    return request.param


@pytest.fixture(scope="module")
def library(isa, tmp_path_factory):
    return run.build(isa, tmp_path_factory.mktemp(isa), optimisation=("-O1", "-Werror"))


@pytest.mark.parametrize("step", run.steps("product"))
@pytest.mark.parametrize("n_threads", [1, 3])
def test_product(step, n_threads, isa, library):
    for m, k, n in SIZES:
        task = run.ProductTask(m, k, n, n_threads)
        assert run.judge(task, step, library[step], isa) is None, (m, k, n)
        if dispatch.fused(isa):
            assert np.array_equal(task.answer(library[step]), task.package(step, "ref"))


@pytest.mark.parametrize("step", run.steps("attention"))
def test_attention(step, isa, library):
    for t, d in LENGTHS:
        task = run.AttentionTask(t, d)
        assert run.judge(task, step, library[step], isa) is None, (t, d)
        if dispatch.fused(isa) and step not in run.OTHER_BITS:
            assert np.array_equal(task.answer(library[step]), task.package(step, "ref").reshape(t, d))


def test_memory_grows_with_the_square_only_in_the_first_lesson(library):
    used = {
        step: [run.AttentionTask(t, 16).bytes_used(library[step]) for t in (128, 256)]
        for step in run.steps("attention")
    }
    assert used.pop("square") == [4 * 128**2, 4 * 256**2]
    assert all(short == long < 4 * 128**2 for short, long in used.values()), used


def test_scratch_is_not_written_behind_its_end(library):
    """What a lesson says it needs is what it gets here, with a mark behind it."""
    for step in run.steps("product"):
        task = run.ProductTask(17, 33, 70, 2)
        marks = []
        for name in ("c", "slivers", "tiles"):
            array = getattr(task, name)
            longer = np.append(array.ravel(), np.float32(7))
            setattr(task.given[0], name, run.floats(longer))
            marks.append(longer)
        library[step](run.ctypes.byref(task.given[0]))
        assert [mark[-1] for mark in marks] == [7, 7, 7], step


MISTAKES = {
    "blocks": ("product/06_blocks.c", "k > 0,", "0,"),
    "registers": ("product/03_registers.c", "rest = j;", "rest = j + 1;"),
    "online": ("attention/02_online.c", "least(i + 1 - start", "least(i + 2 - start"),
    "tiles": ("attention/05_tiles.c", "key - all + 1", "key - all"),
}


def test_wrong_lessons_are_found(tmp_path, monkeypatch):
    shutil.copytree(LESSONS, tmp_path / "lessons")
    for file, right, wrong in MISTAKES.values():
        source = tmp_path / "lessons" / file
        text = source.read_text()
        assert right in text
        source.write_text(text.replace(right, wrong))
    monkeypatch.setattr(run, "HERE", tmp_path / "lessons")
    isa = VECTORS[-1]
    library = run.build(isa, tmp_path, optimisation=("-O1",))
    product, attention = run.ProductTask(15, 769, 70, 1), run.AttentionTask(150, 16)
    tasks = dict.fromkeys(run.steps("product"), product) | dict.fromkeys(run.steps("attention"), attention)
    found = {step for step, task in tasks.items() if run.judge(task, step, library[step], isa)}
    assert found == set(MISTAKES)


def test_run_from_the_command_line():
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, LESSONS / "run.py", "--check"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    count = len(run.steps("product")) + len(run.steps("attention"))
    assert done.stdout == f"{count} lessons give the right answer ({VECTORS[-1]})\n", done.stderr


def test_the_pages_show_the_results():
    assert page.main(["--check"]) == 0, "run python perf/lessons/page.py"


def test_every_lesson_is_explained():
    for folder, name in page.PAGES.items():
        text = (ROOT / "docs" / name).read_text()
        for path in sorted((LESSONS / folder).glob("*.c")):
            assert f"../perf/lessons/{folder}/{path.name}" in text
