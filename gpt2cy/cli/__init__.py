# SPDX-License-Identifier: Apache-2.0
"""The ``gpt2cy`` command: reads the command line, calls the package, turns failures into exit codes.

    main              demo and show-config are here
      checkpoints     info and convert
      plan, verify    before a model is built, and whether it is right
      generate        text from prompts;  options: a flag for every field of Sampling
      score           numbers about texts
      look            a page about one text
        work          rows through a model, for both
          rows        JSON Lines in, and which rows are done together
          journal     JSON Lines out, to go on from where a run was killed
          progress    rows done and tokens a second, on stderr

Exit codes: 0 success, 1 failure of what was asked for, 2 a command line that makes no sense or files that
cannot be read or written, 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from gpt2cy import __version__, demo, show_config
from gpt2cy.cli import checkpoints, generate, look, plan, score, verify


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
    generate.add(commands)
    score.add(commands)
    look.add(commands)
    checkpoints.add_info(commands)
    checkpoints.add_convert(commands)
    plan.add(commands)
    verify.add(commands)
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
