# SPDX-License-Identifier: Apache-2.0
"""``gpt2cy verify``: a check on this machine that a model computes what it must."""

import json

from gpt2cy import verify
from gpt2cy.cli.common import add_source, files_may_fail, hub_options


def add(commands) -> None:
    about = "check on this machine that a model computes what it must"
    parser = commands.add_parser(
        "verify",
        help=about,
        description=f"{about.capitalize()}: cached, in chunks, in a batch, by more threads and on every "
        "instruction set; beside float64, and beside transformers where it is installed.",
        epilog="Exits with 1 if anything differs by more than is allowed.",
    )
    add_source(parser)
    parser.add_argument("--text", help="what it reads (default: a text of our own)")
    parser.set_defaults(run=_verify, name="verify")


@files_may_fail
def _verify(args):
    report = verify.verify(args.source, args.text, **hub_options(args))
    print(json.dumps(report.values(), indent=2) if args.json else "\n".join(verify.lines(report)))
    return 0 if report.passed else 1
