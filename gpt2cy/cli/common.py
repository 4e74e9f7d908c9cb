# SPDX-License-Identifier: Apache-2.0
"""What the commands share: where a model comes from, errors in one line, output that any terminal can show."""

import argparse
import functools
import sys


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add SOURCE, --json and the options of the hub."""
    parser.add_argument("source", metavar="SOURCE", type=path, help="a folder, a file or a hub id")
    parser.add_argument("--json", action="store_true", help="print JSON")
    hub = parser.add_argument_group("for a hub id")
    hub.add_argument("--revision", help="branch, tag or commit")
    hub.add_argument("--local-files-only", action="store_true", help="use the cache and no network")
    hub.add_argument("--cache-dir", metavar="DIR", help="the hub's cache")


def hub_options(args: argparse.Namespace) -> dict:
    """The options of the hub, as `gpt2cy.load` takes them."""
    return {name: getattr(args, name) for name in ("revision", "local_files_only", "cache_dir")}


def path(argument: str) -> str:
    """An argument that names a file or a folder."""
    if not argument:
        raise argparse.ArgumentTypeError("expected a path, got an empty text")
    return argument


def files_may_fail(command):
    """Make a command end with one line and code 2 where input, files, the network or memory fail it."""

    @functools.wraps(command)
    def run(args):
        try:
            return command(args)
        except BrokenPipeError:
            raise
        except (ArithmeticError, ImportError, MemoryError, OSError, TypeError, ValueError) as error:
            print(f"gpt2cy {args.name}: error: {one_line(error)}", file=sys.stderr)
            return 2

    return run


def one_line(error: BaseException) -> str:
    """An error's message without line ends."""
    return " ".join(str(error).split()) or type(error).__name__


def say(text: str) -> None:
    """Write to stdout, now; what its encoding cannot express becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()
