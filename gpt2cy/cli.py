# SPDX-License-Identifier: Apache-2.0
"""The ``gpt2cy`` command: reads the command line, calls the package, turns failures into exit codes.

Exit codes: 0 success, 1 failure of what was asked for, 2 a command line that makes no sense or a model that
cannot be read or written, 130 interrupted.
"""

import argparse
import functools
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gpt2cy import GPT, GPTConfig, __version__, demo, info, show_config
from gpt2cy import plan as plans
from gpt2cy import verify as verifier
from gpt2cy.config import PRESETS
from gpt2cy.language_model import on_disk
from gpt2cy.tokenizer import vocabulary
from gpt2cy.weights import open_checkpoint

FORMATS = ("safetensors", "llm.c", "gguf")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``gpt2cy`` command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; None means those of the process.

    Returns
    -------
    int
        The exit code.

    Raises
    ------
    SystemExit
        From argparse: with 0 after ``--help`` and ``--version``, with 2 after bad arguments.

    Examples
    --------
    >>> from gpt2cy.cli import main
    >>> main(["show-config"])
    gpt2cy ...
    0
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if args.run is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        code = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone: say nothing more, also not at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser():
    parser = argparse.ArgumentParser(prog="gpt2cy", description="GPT-2 class models on the CPU.")
    parser.add_argument("--version", action="version", version=f"gpt2cy {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_demo(commands)
    _add_info(commands)
    _add_convert(commands)
    _add_plan(commands)
    _add_verify(commands)
    _add_show_config(commands)
    return parser


def _add_demo(commands):
    about = "build models of four sizes, run one on text, check it, and time them all"
    parser = commands.add_parser(
        "demo",
        help=about,
        description=f"{about.capitalize()}. The weights are random. Takes less than a minute on two cores.",
        epilog="Exits with 0 only if every check passed.",
    )
    text = parser.add_mutually_exclusive_group()
    reads = f"the tiny model reads the first {demo.N_TOKENS} bytes of"
    text.add_argument("--text", type=_text, help=f"{reads} this text (default: a sentence)")
    text.add_argument("--file", dest="text", metavar="PATH", type=_file, help=f"{reads} this file")
    parser.add_argument(
        "--up-to",
        metavar="SIZE",
        choices=demo.SIZES,
        default=demo.SIZES[-1],
        help=f"the largest model to build, of {', '.join(demo.SIZES)} (default: %(default)s)",
    )
    parser.set_defaults(run=_demo, text=demo.SENTENCE)


def _add_show_config(commands):
    about = "print the build, the instruction set and the threads in use"
    parser = commands.add_parser("show-config", help=about, description=f"{about.capitalize()}.")
    parser.set_defaults(run=_show_config)


def _add_info(commands):
    about = "describe a model's files: architecture, sizes, dtype, tokenizer, memory"
    parser = commands.add_parser(
        "info",
        help=about,
        description=f"{about.capitalize()}. The model is not built.",
        epilog="Exits with 1 if something is wrong with what the files hold.",
    )
    _add_source(parser)
    parser.add_argument("--check", action="store_true", help="read every tensor; all must be finite")
    parser.set_defaults(run=_info, name="info")


def _add_convert(commands):
    about = "write a model in another format"
    parser = commands.add_parser(
        "convert",
        help=about,
        description=f"{about.capitalize()}, with float32 weights.",
        epilog="Beside safetensors go the files of the tokenizer, if there are any.",
    )
    _add_source(parser)
    parser.add_argument(
        "destination", metavar="DEST", type=_path, help="a folder for safetensors, else a file"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="what to write (default: %(default)s)"
    )
    parser.set_defaults(run=_convert, name="convert")


def _add_plan(commands):
    about = "say what a model will take before it is built: memory by purpose, and time"
    parser = commands.add_parser(
        "plan",
        help=about,
        description=f"{about.capitalize()}. Measures this machine for two or three seconds.",
        epilog="Exits with 1 if it does not fit the memory that is available.",
    )
    _add_source(parser, optional=True)
    parser.add_argument("--preset", choices=PRESETS, help="instead of SOURCE: one of %(choices)s")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences (default: %(default)s)")
    parser.add_argument("--seq-len", type=int, metavar="N", help="tokens in each (default: all positions)")
    parser.add_argument("--no-measure", action="store_true", help="memory only: expect no times")
    parser.set_defaults(run=_plan, name="plan")


def _add_verify(commands):
    about = "check on this machine that a model computes what it must"
    parser = commands.add_parser(
        "verify",
        help=about,
        description=f"{about.capitalize()}: cached, in chunks, in a batch, by more threads and on every "
        "instruction set; beside float64, and beside transformers where it is installed.",
        epilog="Exits with 1 if anything differs by more than is allowed.",
    )
    _add_source(parser)
    parser.add_argument("--text", help="what it reads (default: a text of our own)")
    parser.set_defaults(run=_verify, name="verify")


def _add_source(parser, optional=False):
    parser.add_argument(
        "source",
        metavar="SOURCE",
        type=_path,
        nargs="?" if optional else None,
        help="a folder, a file or a hub id",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    hub = parser.add_argument_group("for a hub id")
    hub.add_argument("--revision", help="branch, tag or commit")
    hub.add_argument("--local-files-only", action="store_true", help="use the cache and no network")
    hub.add_argument("--cache-dir", metavar="DIR", help="the hub's cache")


def _hub_options(args):
    return {name: getattr(args, name) for name in ("revision", "local_files_only", "cache_dir")}


def _files_may_fail(command):
    """Make a command end with one line and code 2 where files, the network or memory fail it."""

    @functools.wraps(command)
    def run(args):
        try:
            return command(args)
        except BrokenPipeError:
            raise
        except (ImportError, MemoryError, OSError, ValueError) as error:
            print(f"gpt2cy {args.name}: error: {_one_line(error)}", file=sys.stderr)
            return 2

    return run


@_files_may_fail
def _info(args):
    try:
        report = info.describe(args.source, check=args.check, **_hub_options(args))
    except ValueError as error:
        if not args.check:
            raise
        report = info.Report({}, problems=[_one_line(error)])  # files that do not fit are what was looked for
    if args.json:
        print(json.dumps({**report.values, "notes": report.notes, "problems": report.problems}, indent=2))
    elif report.values:
        print("\n".join(info.lines(report, checked=args.check)))
    for problem in report.problems:
        print(f"gpt2cy info: PROBLEM: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


@_files_may_fail
def _convert(args):
    with open_checkpoint(args.source, **_hub_options(args)) as checkpoint:
        folder = checkpoint.folder
    model = GPT.from_pretrained(on_disk(args.source, folder))
    model.save(args.destination, format=args.format)
    copied = _copy_tokenizer(folder, Path(args.destination)) if args.format == "safetensors" else []
    done = {
        "destination": args.destination,
        "format": args.format,
        "n_params": model.config.n_params,
        "tokenizer_files": copied,
    }
    if args.json:
        print(json.dumps(done, indent=2))
    else:
        beside = f" with {', '.join(copied)}" if copied else ""
        print(f"{args.destination}: {args.format}, {model.config.n_params:,} parameters{beside}")
    return 0


@_files_may_fail
def _plan(args):
    if (args.source is None) == (args.preset is None):
        raise ValueError("expected SOURCE or --preset, one of them")
    if args.preset is not None:
        config = GPTConfig.preset(args.preset)
    else:
        with open_checkpoint(args.source, **_hub_options(args)) as checkpoint:
            config = checkpoint.config
    found = plans.describe(config, args.batch, args.seq_len, measured=not args.no_measure)
    print(json.dumps(plans.values(found), indent=2) if args.json else "\n".join(plans.lines(found)))
    return 0 if found.fits else 1


@_files_may_fail
def _verify(args):
    report = verifier.verify(args.source, args.text, **_hub_options(args))
    print(json.dumps(report.values(), indent=2) if args.json else "\n".join(verifier.lines(report)))
    return 0 if report.passed else 1


def _copy_tokenizer(source, destination):
    """Copy the files of a tokenizer from folder to folder; their names."""
    found = vocabulary.find(source)
    if not found or source.resolve() == destination.resolve():
        return []
    beside = (source / name for name in vocabulary.BESIDE)
    paths = [*found, *(path for path in beside if path.is_file())]
    for path in paths:
        shutil.copyfile(path, destination / path.name)
    return [path.name for path in paths]


def _demo(args):
    try:
        demo.run(args.text, up_to=args.up_to)
    except demo.CheckFailed as failure:
        print(f"gpt2cy demo: FAILED: {failure}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f"gpt2cy demo: FAILED: {error} (a smaller --up-to needs less memory)", file=sys.stderr)
        return 1
    return 0


def _show_config(args):
    show_config()
    return 0


def _one_line(error):
    """An error's message without line ends."""
    return " ".join(str(error).split()) or type(error).__name__


def _path(argument):
    if not argument:
        raise argparse.ArgumentTypeError("expected a path, got an empty text")
    return argument


def _text(argument):
    if not argument:
        raise argparse.ArgumentTypeError("expected at least one character, got an empty text")
    return os.fsencode(argument)


def _file(path):
    try:
        with open(path, "rb") as file:
            start = file.read(demo.N_TOKENS)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot read {path!r}: {error.strerror}") from None
    if not start:
        raise argparse.ArgumentTypeError(f"expected at least one byte, but {path!r} is empty")
    return start
