# SPDX-License-Identifier: Apache-2.0
"""``gpt2cy info`` and ``gpt2cy convert``: a checkpoint described, and written in another format."""

import json
import shutil
import sys
from pathlib import Path

from gpt2cy import GPT, info
from gpt2cy.cli.common import add_source, files_may_fail, hub_options, one_line, path
from gpt2cy.language_model import on_disk
from gpt2cy.tokenizer import vocabulary
from gpt2cy.weights import open_checkpoint

FORMATS = ("safetensors", "llm.c", "gguf")


def add_info(commands) -> None:
    about = "describe a model's files: architecture, sizes, dtype, tokenizer, memory"
    parser = commands.add_parser(
        "info",
        help=about,
        description=f"{about.capitalize()}. The model is not built.",
        epilog="Exits with 1 if something is wrong with what the files hold.",
    )
    add_source(parser)
    parser.add_argument("--check", action="store_true", help="read every tensor; all must be finite")
    parser.set_defaults(run=_info, name="info")


def add_convert(commands) -> None:
    about = "write a model in another format"
    parser = commands.add_parser(
        "convert",
        help=about,
        description=f"{about.capitalize()}, with float32 weights.",
        epilog="Beside safetensors go the files of the tokenizer, if there are any.",
    )
    add_source(parser)
    parser.add_argument(
        "destination", metavar="DEST", type=path, help="a folder for safetensors, else a file"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="what to write (default: %(default)s)"
    )
    parser.set_defaults(run=_convert, name="convert")


@files_may_fail
def _info(args):
    try:
        report = info.describe(args.source, check=args.check, **hub_options(args))
    except ValueError as error:
        if not args.check:
            raise
        report = info.Report({}, problems=[one_line(error)])  # files that do not fit are what was looked for
    if args.json:
        print(json.dumps({**report.values, "notes": report.notes, "problems": report.problems}, indent=2))
    elif report.values:
        print("\n".join(info.lines(report, checked=args.check)))
    for problem in report.problems:
        print(f"gpt2cy info: PROBLEM: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


@files_may_fail
def _convert(args):
    with open_checkpoint(args.source, **hub_options(args)) as checkpoint:
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


def _copy_tokenizer(source, destination):
    """Copy the files of a tokenizer from folder to folder; their names."""
    found = vocabulary.find(source)
    if not found or source.resolve() == destination.resolve():
        return []
    beside = (source / name for name in vocabulary.BESIDE)
    files = [*found, *(file for file in beside if file.is_file())]
    for file in files:
        shutil.copyfile(file, destination / file.name)
    return [file.name for file in files]
