# SPDX-License-Identifier: Apache-2.0
"""Rows from the input through a model to where they go: what `generate` and `score` do alike."""

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpt2cy import GPT
from gpt2cy.cli.common import note
from gpt2cy.cli.journal import Journal, Printed, Record, printed_json_line
from gpt2cy.cli.progress import Progress
from gpt2cy.cli.rows import Row, batches

AnyJob = TypeVar("AnyJob", bound="Job")


def destination(
    args: argparse.Namespace, inputs: Iterable[str], as_json: bool, text: Callable[[Record], str]
) -> Journal | Printed:
    """Open --out, or stdout: JSON Lines, or what `text` makes of a record."""
    if args.out is None:
        return Printed(printed_json_line if as_json else text)
    for source in inputs:
        if source != "-" and os.path.exists(args.out) and os.path.samefile(source, args.out):
            raise ValueError(f"--out: expected another file than the input, got {args.out}")
    return Journal(args.out, args.overwrite)


def model_digest(model: GPT) -> str:
    """Hex digits of one token's logits, in which nearly all weights have a share."""
    return hashlib.sha256(model.next_logits([0]).tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Job:
    """A row, and how many tokens of memory it takes."""

    row: Row
    size: int


def work(
    args: argparse.Namespace,
    jobs: Sequence[AnyJob],
    most_tokens: int,
    out: Journal | Printed,
    do: Callable[[Sequence[AnyJob], Progress], list[Record]],
) -> str:
    """Do the rows that are not finished, a batch of at most `most_tokens` at a time.

    `do` turns some jobs into their records, and tells the progress of tokens.
    Returns how much it was and how fast.
    """
    first = len(out.done)
    if first or out.dropped:
        again = "; a line that was cut off is done again" if out.dropped else ""
        note(args, f"{args.out}: {first:,} of {len(jobs):,} rows are finished{again}")
    jobs = jobs[first:]
    shown = not args.quiet and (isinstance(out, Journal) or not sys.stdout.isatty())
    with Progress(len(jobs), shown) as progress:
        for batch in batches([job.size for job in jobs], args.batch_size, most_tokens):
            out.append(do([jobs[i] for i in batch], progress))
            progress.add(rows=len(batch))
    return progress.summary()
