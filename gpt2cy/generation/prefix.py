# SPDX-License-Identifier: Apache-2.0
"""Prompts of one batch share what they begin with: each common beginning is computed once.

    [1 2 3 4 5 6]            1 2 3 ---- 4 5 6         level 0: [1 2 3] in a cache of its own
    [1 2 3 4 5 7]   ->         |  `---- 4 5 7         level 1: the rest of each, in copies of that cache,
    [1 2 3 8]                  `------- 8                      which share its blocks

A compressed trie of the prompts. Each level is one ragged pass (in pieces, if it is large), so a level more
costs the reading of all weights: a beginning is shared where it saves enough rows. Equal prompts always are
one. The logits are the same bits either way, since a row depends on the tokens before it alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpt2cy.kernels import host

LEAST_SAVED = 16  # rows; so many take about as long as the weights take to be read
ROW_BYTES = 4096  # of what is kept of a row beside its logits and its cache: 2 to 3 KB were measured
MOST_ROWS = 2048  # of a pass: they bound the workspace, and more of them are no faster


@dataclass(eq=False)
class Node:
    """A stretch of ids that one or more prompts have in common, behind that of its parent."""

    ids: np.ndarray
    parent: Node | None
    prompts: list[int] = field(default_factory=list)  # that end here
    cache: Any = None


def levels(prompts: list[np.ndarray], least_saved: int = LEAST_SAVED) -> list[list[Node]]:
    """Return the nodes of the trie of some prompts, none of them empty, by level: parents before children.

    Examples
    --------
    >>> import numpy as np
    >>> prompts = [np.array(ids) for ids in ([1, 2, 3, 4], [1, 2, 3, 5], [7], [7])]
    >>> [[(node.ids.tolist(), node.prompts) for node in level] for level in levels(prompts, 2)]
    [[([1, 2, 3], []), ([7], [2, 3])], [([4], [0]), ([5], [1])]]
    """
    found: list[list[Node]] = []
    # Bytes of equal beginnings stand beside one another when sorted.
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].tobytes())
    todo: list[tuple[list[int], Node | None, int, int, int]] = [(order, None, 0, 0, 0)]
    while todo:
        group, parent, depth, start, known = todo.pop()  # equal up to `known`; the parent ends at `start`
        for part in parts(prompts, group, known):
            first, last = prompts[part[0]], prompts[part[-1]]
            end = common(first, last)
            alike = end == len(last)
            if not alike and (len(part) - 1) * (end - start) < least_saved:
                todo.append((part, parent, depth, start, end))
                continue
            node = Node(first[start:end], parent)
            node.prompts = sorted(i for i in part if len(prompts[i]) == end)
            if depth == len(found):
                found.append([])
            found[depth].append(node)
            rest = [i for i in part if len(prompts[i]) > end]
            if rest:
                todo.append((rest, node, depth + 1, end, end))
    return found


def parts(prompts: list[np.ndarray], group: list[int], known: int):
    """Cut a sorted group into runs whose id at `known` is the same; prompts that end there are one run."""
    runs: dict[int | None, list[int]] = {}
    for i in group:
        key = int(prompts[i][known]) if len(prompts[i]) > known else None
        runs.setdefault(key, []).append(i)
    return runs.values()


def common(a: np.ndarray, b: np.ndarray) -> int:
    """How many ids two prompts have in common from the beginning on."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def compute(model, prompts: list[np.ndarray], new_cache) -> tuple[np.ndarray, list[int], list]:
    """Compute some prompts, each common beginning once.

    Parameters
    ----------
    model : GPT
    prompts : list of int64 arrays
    new_cache : function
        Gives the single-slot cache that a prompt begins in.

    Returns
    -------
    logits : ndarray of float32, [m, V]
        Of the last position of each different prompt.
    rows : list of int
        Of each prompt, its row of the logits.
    caches : list of KVCache
        Of each prompt; equal prompts have the same one.
    """
    plan = levels(prompts)
    ending = sum(bool(node.prompts) for level in plan for node in level)
    require_memory(model, ending)
    logits = np.empty((ending, model.lm_head.out_features), np.float32)
    rows, caches, done = [0] * len(prompts), [None] * len(prompts), 0
    for level in plan:
        level.sort(key=lambda node: not node.prompts)  # those that logits are wanted of come first
        for node in level:
            node.cache = node.parent.cache.copy() if node.parent else new_cache()
        for piece in pieces([len(node.ids) for node in level]):
            nodes = level[piece]
            wanted = sum(bool(node.prompts) for node in nodes)
            out = logits[done : done + wanted]
            model.next_logits_many([node.ids for node in nodes], [node.cache for node in nodes], out=out)
            for row, node in enumerate(nodes[:wanted], done):
                for i in node.prompts:
                    rows[i], caches[i] = row, node.cache
            done += wanted
    return logits, rows, caches


def require_memory(model, n_rows: int) -> None:
    """Raise MemoryError if so many rows and their logits do not fit."""
    plan = {"logits": 4 * n_rows * model.lm_head.out_features, "rows": ROW_BYTES * n_rows}
    host.require_memory("prompts", plan, "the number of prompts or of their samples or beams")


def base(model, cache, prompts: list[np.ndarray]) -> tuple:
    """Return (maker of the caches that prompts begin in, positions that those hold).

    A prompt that adds nothing to the given cache needs its last logits: they are computed again.
    """
    if cache is None:
        return model.new_cache, 0
    past = min(cache.lengths[0], min(map(len, prompts)) - 1)
    begun = cache.copy()
    begun.truncate(past)
    return begun.copy, past


def pieces(lengths: list[int]):
    """Yield slices of sequences, each of at most MOST_ROWS rows or of one sequence."""
    begin = total = 0
    for i, length in enumerate(lengths):
        if i > begin and total + length > MOST_ROWS:
            yield slice(begin, i)
            begin, total = i, 0
        total += length
    yield slice(begin, len(lengths))
