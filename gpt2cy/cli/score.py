# SPDX-License-Identifier: Apache-2.0
"""``gpt2cy score``: how likely a model finds texts."""

import io
import math
import sys
from pathlib import Path

import gpt2cy
from gpt2cy.cli.common import add_rows, add_source, files_may_fail, hub_options, note, positive
from gpt2cy.cli.journal import say
from gpt2cy.cli.rows import Row, digest, name, read_rows, read_text
from gpt2cy.cli.work import Job, destination, model_digest, work
from gpt2cy.generation.scoring import perplexity_of
from gpt2cy.inspection.scores import wants_colour

MOST_TOKENS = 8192  # of a batch
LINES = (".jsonl", ".ndjson")
NUMBERS = ("n_bytes", "n_scored", "logprob", "bits", "bits_per_byte", "perplexity")
OPTIONS = ("stride", "bos", "vocab_limit", "allow_special", "top")


def add(commands) -> None:
    """Add the command."""
    about = "say how likely a model finds texts"
    parser = commands.add_parser(
        "score",
        help=about,
        description=f"{about.capitalize()}: log probability (natural), perplexity, bits per byte.",
        epilog='A row of JSON Lines: {"text": "...", "id": ...}; only the text must be there.',
    )
    add_source(parser)
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help=f"a text, or JSON Lines ({', '.join(LINES)}); - is stdin"
    )
    parser.add_argument("--jsonl", action="store_true", help="all FILEs are JSON Lines, whatever their names")
    parser.add_argument(
        "--stride", type=positive, metavar="N", help="how far windows are apart (default: as far as can be)"
    )
    parser.add_argument("--bos", action="store_true", help="put the end-of-text token before each text")
    parser.add_argument(
        "--vocab-limit", type=positive, metavar="N", help="only ids below N count: for a padded vocabulary"
    )
    parser.add_argument("--allow-special", action="store_true", help="let texts hold special tokens")
    parser.add_argument("--tokens", action="store_true", help="also each token's numbers; implies --json")
    parser.add_argument(
        "--top", type=positive, default=0, metavar="K", help="the K likeliest in each place; implies --tokens"
    )
    parser.add_argument("--show", action="store_true", help="print the texts, the surprising parts coloured")
    add_rows(parser, batch_size=32)
    parser.set_defaults(run=_score, name="score")


@files_may_fail
def _score(args):
    rows = _rows(args)
    tokens = args.tokens or args.top > 0
    as_json = args.json or tokens
    if args.show and (as_json or args.out):
        raise ValueError("--show: expected no --json, --tokens, --top or --out beside it")
    total = Total()
    with destination(args, args.files, as_json, _line) as out:
        lm = gpt2cy.load(args.source, **hub_options(args))
        options = {key: getattr(args, key) for key in OPTIONS}
        run = digest({"model": model_digest(lm.model), "tokens": tokens, **options})
        out.check(rows, run)
        jobs = [_job(lm, row, args) for row in rows]

        def do(batch, progress):
            texts = [job.row.fields["text"] for job in batch]
            scores = lm.score(texts, progress=lambda count: progress.add(tokens=count), **options)
            progress.add(tokens=sum(len(score) - score.n_scored for score in scores))
            found = [_numbers(score, tokens, args.show) for score in scores]
            total.add(found)
            return [{**job.row.stamp(run), **numbers} for job, numbers in zip(batch, found, strict=True)]

        note(args, work(args, jobs, MOST_TOKENS, out, do))
    if len(rows) > 1 and not (as_json or args.out):
        say(_line(total.numbers()))
    return 0


def _rows(args) -> list[Row]:
    """A row for each text; those of a file of JSON Lines, one after the other."""
    if args.files.count("-") > 1:
        raise ValueError("stdin can be read only once: expected one -, got more")
    rows: list[Row] = []
    for path in args.files:
        if args.jsonl or Path(path).suffix in LINES:
            rows += read_rows(path, "text", len(rows))
        else:
            rows.append(Row(len(rows), name(path), {"text": read_text(path), "id": name(path)}))
    return rows


def _job(lm, row, args):
    """A row and its tokens; what cannot be scored is found here, before anything has been."""
    try:
        ids = lm.encode(row.fields["text"], allow_special=args.allow_special)
        if not ids:
            raise ValueError("expected at least one character, got an empty text")
        limit = args.vocab_limit
        largest = max(ids if args.bos else ids[1:], default=0)
        if limit is not None and largest >= limit:
            raise ValueError(f"id {largest} is outside the vocab_limit of {limit}")
    except ValueError as error:
        raise row.error(error) from None
    return Job(row, len(ids))


def _numbers(score, tokens, show):
    """What a record says of a text."""
    found = {"n_tokens": len(score), **{key: getattr(score, key) for key in NUMBERS}}
    if tokens:
        found["tokens"] = score.to_dict()["tokens"]
    if show:
        shown = io.StringIO()
        score.show(shown, colour=wants_colour(sys.stdout))
        found["shown"] = shown.getvalue()
    return found


class Total:
    """The same numbers of all texts together; each token counts the same."""

    def __init__(self):
        self.sums = dict.fromkeys(("n_tokens", "n_bytes", "n_scored", "logprob", "bits"), 0)

    def add(self, records) -> None:
        """Count in some texts."""
        for record in records:
            for number in self.sums:
                self.sums[number] += record[number]

    def numbers(self):
        """A record, called total."""
        sums = self.sums
        return {
            **sums,
            "id": "total",
            "perplexity": perplexity_of(sums["logprob"], sums["n_scored"]),
            "bits_per_byte": sums["bits"] / sums["n_bytes"] if sums["n_bytes"] else math.nan,
        }


def _line(record):
    """A row of the table, below the text if that is wanted."""
    numbers = f"{record['n_tokens']:>10,} tokens  logprob {record['logprob']:>14,.3f}"
    numbers += f"  perplexity {record['perplexity']:>12,.3f}  bits/byte {record['bits_per_byte']:>7.3f}"
    return f"{record.get('shown', '')}{numbers}  {record.get('id', record.get('row'))}\n"
