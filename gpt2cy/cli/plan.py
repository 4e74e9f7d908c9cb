# SPDX-License-Identifier: Apache-2.0
"""``gpt2cy plan``: what a model will take, before it is built."""

import json

from gpt2cy import GPTConfig, plan
from gpt2cy.cli.common import add_source, files_may_fail, hub_options
from gpt2cy.config import PRESETS
from gpt2cy.weights import open_checkpoint


def add(commands) -> None:
    about = "say what a model will take before it is built: memory by purpose, and time"
    parser = commands.add_parser(
        "plan",
        help=about,
        description=f"{about.capitalize()}. Measures this machine for three seconds.",
        epilog="Exits with 1 if it does not fit the memory that is available.",
    )
    add_source(parser, optional=True)
    parser.add_argument("--preset", choices=PRESETS, help="instead of SOURCE: one of %(choices)s")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences (default: %(default)s)")
    parser.add_argument("--seq-len", type=int, metavar="N", help="tokens in each (default: all positions)")
    parser.add_argument("--no-measure", action="store_true", help="memory only: expect no times")
    parser.set_defaults(run=_plan, name="plan")


@files_may_fail
def _plan(args):
    if (args.source is None) == (args.preset is None):
        raise ValueError("expected SOURCE or --preset, one of them")
    if args.preset is not None:
        config = GPTConfig.preset(args.preset)
    else:
        with open_checkpoint(args.source, **hub_options(args)) as checkpoint:
            config = checkpoint.config
    found = plan.describe(config, args.batch, args.seq_len, measured=not args.no_measure)
    print(json.dumps(plan.values(found), indent=2) if args.json else "\n".join(plan.lines(found)))
    return 0 if found.fits else 1
