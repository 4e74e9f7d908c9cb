# SPDX-License-Identifier: Apache-2.0
"""Rows from the input through a model to where they go: what `generate` and `score` do alike."""

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from gpt2cy import GPT
from gpt2cy.cli.common import note
from gpt2cy.cli.journal import Journal, Printed, Record, json_line
from gpt2cy.cli.progress import Progress
from gpt2cy.cli.rows import Row, batches


def destination(
    args: argparse.Namespace, inputs: Iterable[str], as_json: bool, text: Callable[[Record], str]
) -> Journal | Printed:
    """Open --out, or stdout: JSON Lines, or what `text` makes of a record."""
    if args.out is None:
        return Printed(json_line if as_json else text)
    for source in inputs:
        if source != "-" and os.path.exists(args.out) and os.path.samefile(source, args.out):
            raise ValueError(f"--out: expected another file than the input, got {args.out}")
    return Journal(args.out, args.overwrite)


def model_digest(model: GPT) -> str:
    """Hex digits of one token's logits, in which nearly all weights have a share."""
    return hashlib.sha256(model.next_logits([0]).tobytes()).hexdigest()[:16]


def work(
    args: argparse.Namespace,
    rows: Sequence[Row],
    sizes: Sequence[int],
    most_tokens: int,
    out: Journal | Printed,
    do: Callable[[Sequence[Row], Progress], list[Record]],
) -> None:
    """Do the rows that are not finished, a batch at a time.

    Parameters
    ----------
    sizes : list of int
        Tokens of each row.
    most_tokens : int
        Of a batch.
    do : callable
        Some rows to their records; tells the progress of tokens.
    """
    first = len(out.done)
    if first or out.dropped:
        again = "; a line that was cut off is done again" if out.dropped else ""
        note(args, f"{args.out}: {first:,} of {len(rows):,} rows are finished{again}")
    shown = not args.quiet and (isinstance(out, Journal) or not sys.stdout.isatty())
    with Progress(len(rows) - first, shown) as progress:
        for batch in batches(sizes[first:], args.batch_size, most_tokens):
            out.append(do([rows[first + i] for i in batch], progress))
            progress.add(rows=len(batch))
    note(args, progress.summary())
