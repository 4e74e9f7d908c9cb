# SPDX-License-Identifier: Apache-2.0
"""``gpt2cy look``: one text through a model, as a page for a browser."""

import json

import gpt2cy
from gpt2cy.cli.common import add_source, files_may_fail, hub_options, path
from gpt2cy.inspection import report


def add(commands) -> None:
    """Add the command."""
    about = "show what a model does with a text: attention, logit lens, surprisal, times"
    parser = commands.add_parser("look", help=about, description=f"{about.capitalize()}, as one HTML page.")
    add_source(parser)
    parser.add_argument("text", metavar="TEXT", help="two tokens to a full block")
    parser.add_argument("--out", metavar="FOLDER", type=path, required=True, help="where to write index.html")
    parser.set_defaults(run=_look, name="look")


@files_may_fail
def _look(args):
    lm = gpt2cy.load(args.source, **hub_options(args))
    found = report.look(lm, args.text)
    page = found.write(args.out)
    if args.json:
        print(json.dumps({"page": str(page), "tokens": found.n_tokens, "bytes": page.stat().st_size}))
    else:
        print(f"{page}: {found.n_tokens} tokens, {page.stat().st_size:,} bytes")
    return 0
