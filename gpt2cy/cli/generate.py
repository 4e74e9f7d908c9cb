# SPDX-License-Identifier: Apache-2.0
"""``gpt2cy generate``: text from prompts.

One prompt on the command line: its text as it comes. Several, or JSON Lines: a batch at a time, each row with
the random numbers of its own place in the input, so that it comes out the same in every batch.
"""

import dataclasses
import secrets

import numpy as np

import gpt2cy
from gpt2cy import _checks
from gpt2cy.cli import options
from gpt2cy.cli.common import add_rows, add_source, files_may_fail, hub_options, note, path
from gpt2cy.cli.journal import Record, say
from gpt2cy.cli.progress import Progress
from gpt2cy.cli.rows import Row, digest, read_rows, read_text
from gpt2cy.cli.work import Job, destination, model_digest, work
from gpt2cy.generation import generate
from gpt2cy.generation.sampling import Sampling
from gpt2cy.generation.settings import require_fit
from gpt2cy.generation.text import fitted

MOST_TOKENS = 16384  # of a batch, in its caches: about 1.2 GB for the smallest GPT-2


@dataclasses.dataclass(frozen=True)
class Prompt(Job):
    """A row made ready for the model."""

    prompt: np.ndarray
    settings: Sampling


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
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="what to continue; - is stdin")
    parser.add_argument(
        "--file", metavar="FILE", type=path, help="JSON Lines of prompts (- is stdin); implies --json"
    )
    parser.add_argument("--echo", action="store_true", help="print the prompt before its text")
    parser.add_argument("--allow-special", action="store_true", help="let prompts hold special tokens")
    parser.add_argument("--seed", type=int, metavar="N", help="of what is random (default: drawn, and told)")
    add_rows(parser, batch_size=16)
    options.add_sampling(parser)
    parser.set_defaults(run=_generate, name="generate")


@files_may_fail
def _generate(args):
    rows = _rows(args)
    common = Sampling(**options.chosen(args))
    settings = [_merged(common, row) for row in rows]
    as_json = bool(args.json or args.file)
    alone = len(rows) == 1 and settings[0].num_return_sequences == 1
    with destination(args, [args.file or "-"], as_json, Shown(args.echo, alone)) as out:
        lm = gpt2cy.load(args.source, **hub_options(args))
        jobs = [_job(lm, row, own, args.allow_special) for row, own in zip(rows, settings, strict=True)]
        seed = args.seed
        if seed is None:
            seed = out.done[0]["seed"] if out.done else secrets.randbits(63)
        if alone and settings[0].num_beams == 1 and not as_json and not args.out:
            _stream(lm, args, jobs[0], seed)
        else:
            run = digest([model_digest(lm.model), dataclasses.asdict(common), args.allow_special])
            out.check(rows, run, seed)

            def do(batch, progress):
                return _continue(lm, batch, seed, run, progress)

            note(args, f"{work(args, jobs, MOST_TOKENS, out, do)}, seed {seed}")
    return 0


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
    elif not rows:
        raise ValueError("expected a PROMPT or --file FILE, got neither")
    return rows


def _merged(common: Sampling, row: Row) -> Sampling:
    """The settings of the command line with those of a row put over them."""
    own = row.fields.get("sampling", {})
    try:
        if not isinstance(own, dict):
            raise TypeError(f"sampling: expected an object, got {type(own).__name__}")
        if isinstance(own.get("logit_bias"), dict):  # JSON's keys are texts
            own = {**own, "logit_bias": {_id(key): value for key, value in own["logit_bias"].items()}}
        return common.merged(**own)
    except (TypeError, ValueError) as error:
        raise row.error(error) from None


def _id(key):
    """An id that is the key of an object."""
    try:
        return int(key)
    except ValueError:
        raise ValueError(f"logit_bias: expected ids as keys, got {key!r}") from None


def _job(lm, row, settings, allow_special) -> Prompt:
    """A row made ready; what cannot be done is found here, before anything has been."""
    vocab_size, block_size = lm.model.wte.num_embeddings, lm.model.wpe.num_embeddings
    try:
        prompt = lm.encode(row.fields["prompt"], allow_special=allow_special) or lm._beginning("prompt")
        _checks.length_fits("prompt", len(prompt), 0, block_size)
        settings = fitted(lm, settings)
        require_fit([settings], vocab_size, block_size)
    except ValueError as error:
        raise row.error(error) from None
    most = block_size if settings.max_new_tokens is None else settings.max_new_tokens
    beams = max(settings.num_beams, settings.num_return_sequences)
    return Prompt(row, min(len(prompt) + most, block_size) * beams, np.array(prompt), settings)


def _continue(lm, jobs, seed, run, progress) -> list[Record]:
    """Some rows in one batch, and their records."""
    keys = [(seed, job.row.index) if job.settings.seed is None else (job.settings.seed, 0) for job in jobs]
    results = generate.run(
        lm.model,
        [job.prompt for job in jobs],
        [job.settings for job in jobs],
        keys,
        progress=lambda count: progress.add(tokens=count),
        tokenizer=lm.tokenizer,
    )
    rows = [job.row for job in jobs]
    records = [
        {**row.stamp(run, seed=seed), "prompt": row.fields["prompt"], "completions": []} for row in rows
    ]
    for result in results:
        completion = result.to_dict()
        del completion["prompt"]  # which of the batch: nobody's business
        records[result.prompt]["completions"].append(completion)
    return records


def _stream(lm, args, job, seed):
    """The text of one prompt as it comes."""
    stream = lm.stream(
        job.row.fields["prompt"], job.settings.merged(seed=seed), allow_special=args.allow_special
    )
    with Progress(1, shown=False) as progress:
        if args.echo:
            say(job.row.fields["prompt"])
        for piece in stream:
            say(piece)
        say("\n")
        progress.add(1, len(stream.result.tokens))
    note(args, f"{progress.summary()}, ended by {stream.result.finish_reason}, seed {seed}")


@dataclasses.dataclass(frozen=True)
class Shown:
    """Records to what a reader sees: texts, below a line that says which where there are several."""

    echo: bool
    alone: bool

    def __call__(self, record: Record) -> str:
        shown = ""
        for completion in record["completions"]:
            if not self.alone:
                sample = f", sample {completion['sample'] + 1}" if len(record["completions"]) > 1 else ""
                shown += f"==> prompt {record['row'] + 1}{sample} <==\n"
            shown += (record["prompt"] if self.echo else "") + completion["text"] + "\n"
        return shown
