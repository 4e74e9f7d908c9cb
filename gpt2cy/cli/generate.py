# SPDX-License-Identifier: Apache-2.0
"""``gpt2cy generate``: text from prompts.

One prompt on the command line: its text as it comes. Several, or JSON Lines: a batch at a time, each row with
the random numbers of its own place in the input, so that it comes out the same in every batch.
"""

import argparse
import secrets
import sys

import gpt2cy
from gpt2cy.cli import options
from gpt2cy.cli.common import add_rows, add_source, files_may_fail, hub_options, say
from gpt2cy.cli.journal import model_digest, open_journal
from gpt2cy.cli.progress import Progress
from gpt2cy.cli.rows import Row, batches, digest, read_rows, read_text
from gpt2cy.generation.sampling import Sampling

MOST_TOKENS = 16384  # of a batch, in its caches: about 1.2 GB for the smallest GPT-2


def add(commands) -> None:
    about = "continue texts"
    parser = commands.add_parser(
        "generate",
        help=about,
        description=f"{about.capitalize()}. New text goes to stdout, all else to stderr.",
        epilog='A row of JSON Lines: {"prompt": "...", "id": ..., "sampling": {"temperature": 0, ...}}; '
        "only the prompt must be there.",
    )
    add_source(parser)
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="what to continue; - reads it from stdin")
    parser.add_argument("--file", metavar="FILE", help="JSON Lines of prompts (- for stdin); implies --json")
    parser.add_argument("--echo", action="store_true", help="print the prompt before its text")
    parser.add_argument("--allow-special", action="store_true", help="take special tokens in prompts as such")
    parser.add_argument("--seed", type=int, metavar="N", help="of the random numbers (default: drawn, and told)")
    add_rows(parser, batch_size=16)
    options.add_sampling(parser)
    parser.set_defaults(run=_generate, name="generate")


@files_may_fail
def _generate(args):
    rows = _rows(args)
    common = Sampling(**options.chosen(args))
    settings = [_merged(common, row) for row in rows]
    as_json = bool(args.json or args.file or args.out)
    with open_journal(args.out, args.overwrite, [args.file] if args.file else ()) as out:
        seed = args.seed
        if seed is None:
            seed = out.done[0]["seed"] if out.done else secrets.randbits(63)
        lm = gpt2cy.load(args.source, **hub_options(args))
        ...


def _rows(args) -> list[Row]:
    """The prompts of the command line, and those of the file after them."""
    if args.prompts.count("-") + (args.file == "-") > 1:
        raise ValueError("stdin can be read only once: expected one -, got more")
    rows = [
        Row(i, f"prompt {i + 1}", {"prompt": read_text("-") if prompt == "-" else prompt})
        for i, prompt in enumerate(args.prompts)
    ]
    if args.file:
        rows += read_rows(args.file, "prompt", len(rows))
    if not rows and not args.file:
        raise ValueError("expected a PROMPT or --file FILE, got neither")
    return rows


def _merged(common: Sampling, row: Row) -> Sampling:
    """The settings of the command line with those of a row put over them."""
    own = row.fields.get("sampling", {})
    try:
        if not isinstance(own, dict):
            raise TypeError(f'"sampling": expected an object, got {type(own).__name__}')
        if isinstance(own.get("logit_bias"), dict):  # JSON's keys are texts
            own = {**own, "logit_bias": {int(key): value for key, value in own["logit_bias"].items()}}
        return common.merged(**own)
    except (TypeError, ValueError) as error:
        raise row.error(error) from None
