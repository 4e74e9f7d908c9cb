# SPDX-License-Identifier: Apache-2.0
"""``gpt2cy generate``: text from prompts.

One prompt on the command line: its text as it comes. Several, or JSON Lines: a batch at a time, each row with
the random numbers of its own place in the input, so that it comes out the same in every batch.
"""

import dataclasses
import secrets

import gpt2cy
from gpt2cy.cli import options
from gpt2cy.cli.common import add_rows, add_source, files_may_fail, hub_options, note
from gpt2cy.cli.journal import Printed, say
from gpt2cy.cli.progress import Progress
from gpt2cy.cli.rows import Row, digest, read_rows, read_text
from gpt2cy.cli.work import destination, model_digest, work
from gpt2cy.generation.sampling import Sampling

MOST_TOKENS = 16384  # of a batch, in its caches: about 1.2 GB for the smallest GPT-2


def add(commands) -> None:
    """Add the command."""
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
    as_json = bool(args.json or args.file)
    with destination(args, [args.file or "-"], as_json, _shown(args, rows, settings)) as out:
        seed = args.seed
        if seed is None:
            seed = out.done[0]["seed"] if out.done else secrets.randbits(63)
        lm = gpt2cy.load(args.source, **hub_options(args))
        chosen = {"settings": dataclasses.asdict(common), "allow_special": args.allow_special}
        run = digest({"model": model_digest(lm.model), **chosen})
        out.check(rows, run, seed)
        ...
    return 0
