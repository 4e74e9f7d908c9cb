# SPDX-License-Identifier: Apache-2.0
"""What the commands share: arguments, errors in one line, output that any terminal can show."""

import argparse
import functools
import sys


def add_source(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Add SOURCE, which may be optional, --json and the options of the hub."""
    about, count = "a folder, a file or a hub id", "?" if optional else None
    parser.add_argument("source", metavar="SOURCE", type=path, nargs=count, help=about)
    parser.add_argument("--json", action="store_true", help="print JSON")
    hub = parser.add_argument_group("for a hub id")
    hub.add_argument("--revision", help="branch, tag or commit")
    hub.add_argument("--local-files-only", action="store_true", help="use the cache and no network")
    hub.add_argument("--cache-dir", metavar="DIR", help="the hub's cache")


def add_rows(parser: argparse.ArgumentParser, batch_size: int) -> None:
    """Add what commands share that work through rows."""
    rows = parser.add_argument_group("many rows")
    rows.add_argument(
        "--out",
        metavar="FILE",
        type=path,
        help="write JSON Lines to FILE; what is finished there is not redone",
    )
    rows.add_argument("--overwrite", action="store_true", help="begin --out anew, whatever it holds")
    rows.add_argument(
        "--batch-size",
        type=positive,
        default=batch_size,
        metavar="N",
        help="rows done together at most; changes no result (default: %(default)s)",
    )
    rows.add_argument("--quiet", action="store_true", help="neither progress nor summary on stderr")


def positive(argument: str) -> int:
    """An argument that is an integer of at least 1."""
    try:
        value = int(argument)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {argument!r}")
    return value


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
        except (FloatingPointError, ImportError, MemoryError, OSError, RecursionError, ValueError) as error:
            print(f"gpt2cy {args.name}: error: {one_line(error)}", file=sys.stderr)
            return 2

    return run


def one_line(error: BaseException) -> str:
    """An error's message, and what was noted about it, without line ends."""
    message = " ".join(str(error).split()) or type(error).__name__
    return " ".join([message, *(f"({note})" for note in getattr(error, "__notes__", ()))])


def note(args: argparse.Namespace, text: str) -> None:
    """Tell the user something on stderr, unless told to be quiet."""
    if not args.quiet:
        print(f"gpt2cy {args.name}: {text}", file=sys.stderr)
