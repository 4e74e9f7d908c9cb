# SPDX-License-Identifier: Apache-2.0
"""perf/compare.py: which result is slower than another."""

import copy
import json

import pytest
from running import run


def a_result(*rows, better="less"):
    return {"bench": "gemm", "better": better, "rows": list(rows)}


def a_row(name, median, spread=0.01, **more):
    return {"layer": name, "median": median, "q1": median * (1 - spread), "q3": median * (1 + spread), **more}


@pytest.fixture
def compared(tmp_path):
    """compare.py on two results, or on text: exit code and what it said."""

    def run_it(a, b, *options):
        for name, content in (("a.json", a), ("b.json", b)):
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        done = run("compare", tmp_path / "a.json", tmp_path / "b.json", *options)
        return done.returncode, done.stdout + done.stderr

    return run_it


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (a_row("x", 1.0), a_row("x", 1.0), 0),
        (a_row("x", 1.0), a_row("x", 1.04), 0),  # within the tolerance
        (a_row("x", 1.0), a_row("x", 1.2), 1),
        (a_row("x", 1.0), a_row("x", 0.5), 0),  # faster
        (a_row("x", 1.0, 0.2), a_row("x", 1.2, 0.2), 0),  # within the spread
        (a_row("x", 1.0), {"layer": "x", "error": "gone"}, 1),
        ({"layer": "x", "error": "gone"}, a_row("x", 1.0), 0),
        # The machine was slower, the share of what it gave is the same; and the other way round.
        (a_row("x", 1.0, share=a_row("", 0.8)), a_row("x", 2.0, share=a_row("", 0.8)), 0),
        (a_row("x", 1.0, share=a_row("", 0.8)), a_row("x", 1.0, share=a_row("", 0.6)), 1),
    ],
)
def test_compare(compared, before, after, code):
    got, said = compared(a_result(before, a_row("same", 2.0)), a_result(after, a_row("same", 2.0)))
    assert got == code, said
    assert ("WORSE" in said) == bool(code)
    assert f"2 rows compared, {code} worse" in said


def test_compare_options(compared):
    slower = a_result(a_row("x", 1.0)), a_result(a_row("x", 1.2))
    assert compared(*slower, "--tolerance", "0.3")[0] == 0
    assert compared(*slower, "--tolerance", "2")[0] == 2
    more = a_result(a_row("x", 1.0), better="more"), a_result(a_row("x", 1.2), better="more")
    assert compared(*more)[0] == 0 and compared(*reversed(more))[0] == 1


def test_compare_counts_what_only_one_has(compared):
    code, said = compared(a_result(a_row("x", 1.0), a_row("y", 1.0)), a_result(a_row("x", 1.0)))
    assert code == 0
    assert "1 rows compared, 0 worse; only in A: 1, only in B: 0" in said


def broken(**changes):
    result = copy.deepcopy(a_result(a_row("x", 1.0)))
    for name, value in changes.items():
        (result if name in result else result["rows"][0])[name] = value
    return result


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("", "Expecting value"),
        ("[1]", "expected an object with a list of rows"),
        ("{}", "expected an object with a list of rows"),
        (broken(rows=3), "expected an object with a list of rows"),
        (broken(rows=[3]), "expected an object with a list of rows"),
        (broken(better="bigger"), 'expected "less" or "more", got \'bigger\''),
        (broken(median=None), "row 0: median: expected a number above 0, got None"),
        (broken(median="fast"), "got 'fast'"),
        (broken(median=-1.0), "got -1.0"),
        (broken(median=float("nan")), "got nan"),
        (broken(q1=5.0), "the median is not between the quartiles"),
        (broken(share=3), "median: expected a number above 0, got None"),
        (a_result(a_row("x", 1.0), a_row("x", 2.0)), "row 1 is there twice: layer x"),
        (a_result(a_row("other", 1.0)), "has no row in common"),
        (broken(bench="rows"), "expected a result of gemm, got one of rows"),
    ],
)
def test_compare_refuses(compared, wrong, message):
    code, said = compared(a_result(a_row("x", 1.0)), wrong)
    assert code == 2
    assert message in said
    assert "b.json" in said


def test_compare_needs_its_files(compared, tmp_path):
    done = run("compare", tmp_path / "none.json", tmp_path / "none.json")
    assert done.returncode == 2
    assert "No such file" in done.stderr
