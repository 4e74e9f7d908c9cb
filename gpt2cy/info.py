# SPDX-License-Identifier: Apache-2.0
"""What is in a checkpoint, without building the model: behind ``gpt2cy info``.

describe    source -> Report: plain values, the notes, and with `check` the problems
lines       Report -> text
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpt2cy import _checks
from gpt2cy.tokenizer import vocabulary
from gpt2cy.weights import Checkpoint, Tensor, open_checkpoint

_MIB = 1 << 20


@dataclass
class Report:
    """What `describe` found.

    Attributes
    ----------
    values : dict
        Plain values, ready for JSON: "config", "checkpoint", "parameters", "memory_plan", "tokenizer".
    notes : list of str
        What one should know and what does no harm.
    problems : list of str
        What is wrong.
    """

    values: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def describe(source, *, check: bool = False, **hub) -> Report:
    """Describe a checkpoint.

    Parameters
    ----------
    source : str or path
        As `GPT.from_pretrained`.
    check : bool
        Whether to read every tensor and look for numbers that are not finite.
    **hub
        revision, token, local_files_only, cache_dir.

    Raises
    ------
    ValueError, OSError, ImportError, TypeError
        As `GPT.from_pretrained`.

    Examples
    --------
    >>> import tempfile, gpt2cy
    >>> from gpt2cy import info
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gpt2cy.GPT(gpt2cy.GPTConfig(256, 32, 2, 2, 64, tie_weights=True), seed=0).save_pretrained(folder)
    ...     report = info.describe(folder, check=True)
    >>> report.values["checkpoint"]["n_params"], report.values["tokenizer"]["kind"], report.problems
    (35712, 'bytes', [])
    """
    check = _checks.flag("check", check)
    with open_checkpoint(source, **hub) as checkpoint:
        config = checkpoint.config
        report = Report(
            {
                "config": dataclasses.asdict(config),
                "checkpoint": checkpoint.describe(),
                "parameters": config.parameter_counts(),
                "memory_plan": config.memory_plan(),
            }
        )
        report.values["tokenizer"] = _tokenizer(report, checkpoint.folder, config.vocab_size)
        _note_ids_outside(report, checkpoint.folder, config.vocab_size)
        if check:
            _check(report, checkpoint)
    return report


def lines(report: Report, *, checked: bool) -> list[str]:
    """Return the report as lines of text, without its problems; `checked` says whether tensors were read."""
    config, checkpoint = report.values["config"], report.values["checkpoint"]
    parameters, plan, tokenizer = (report.values[key] for key in ("parameters", "memory_plan", "tokenizer"))
    dtypes = ", ".join(f"{dtype} ({count} tensors)" for dtype, count in checkpoint["dtypes"].items())
    blocks = [count for name, count in parameters.items() if name.startswith("h.")]
    others = ", ".join(f"{name} {count:,}" for name, count in parameters.items() if not name.startswith("h."))
    files = f"{len(checkpoint['files'])} file" + "s" * (len(checkpoint["files"]) > 1)
    described = {
        "Format": f"{checkpoint['format']}, {files}, {_mib(checkpoint['nbytes'])}",
        "Dtype": dtypes,
        "Architecture": ", ".join(f"{name}={value}" for name, value in config.items()),
        "Head": "tied to wte" if checkpoint["tied"] else "of its own (untied)",
        "Parameters": f"{checkpoint['n_params']:,} ({len(blocks)} blocks of {blocks[0]:,}, {others})",
        "Memory": ", ".join(f"{purpose} {_mib(n_bytes)}" for purpose, n_bytes in plan.items())
        + f" (one sequence of {config['block_size']} tokens)",
        "Tokenizer": _tokenizer_line(tokenizer),
    }
    text = [f"{name + ':':14}{value}" for name, value in described.items()]
    text += [f"note: {note}" for note in report.notes]
    if checked and not report.problems:
        count = sum(checkpoint["dtypes"].values())
        text.append(f"checked: {count} tensors, all finite and of the right shape")
    return text


def _mib(n_bytes):
    return f"{n_bytes / _MIB:,.1f} MiB"


# ---- tokenizer -----------------------------------------------------------------------------------------


def _tokenizer(report, folder: Path, vocab_size):
    """The tokenizer beside the weights; reading its files needs no optional library."""
    files = vocabulary.find(folder)
    if not files:
        return {"kind": "bytes" if vocab_size == 256 else None}
    try:
        found = vocabulary.read(folder)
    except ValueError as error:
        report.problems.append(f"tokenizer: {error}")
        return {"kind": None}
    if found.vocab_size > vocab_size:
        report.problems.append(
            f"tokenizer: its vocabulary of {found.vocab_size} ids is larger than the model's of {vocab_size}"
        )
    elif found.vocab_size < vocab_size:
        padding = f"{found.vocab_size} to {vocab_size - 1}"
        report.notes.append(f"ids from {padding} have no token: a padded vocabulary")
    return {
        "kind": "byte-level BPE",
        "files": [path.name for path in files],
        "vocab_size": found.vocab_size,
        "eos_id": found.eos_id,
        "special_tokens": {token.text: token.id for token in found.added if token.special},
    }


def _tokenizer_line(tokenizer):
    if tokenizer["kind"] is None:
        return "none found beside the weights"
    if tokenizer["kind"] == "bytes":
        return "bytes (256 ids)"
    names = " and ".join(tokenizer["files"])
    return f"{tokenizer['kind']} of {names}, {tokenizer['vocab_size']} ids, eos_id={tokenizer['eos_id']}"


def _note_ids_outside(report, folder: Path, vocab_size):
    """Special ids of config.json are not used; one outside the vocabulary is worth a note."""
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_bytes())
    except (OSError, ValueError):  # a format that needs no config.json; where it is needed, it has been read
        return
    for name in ("bos_token_id", "eos_token_id"):
        value = fields.get(name) if isinstance(fields, dict) else None
        if type(value) is int and not 0 <= value < vocab_size:
            outside = f"outside the vocabulary of {vocab_size}"
            report.notes.append(f"config.json: {name} {value} is {outside}: ignored")


# ---- tensors -------------------------------------------------------------------------------------------


def _check(report, checkpoint: Checkpoint):
    for tensor in checkpoint.tensors.values():
        problem = _problem(tensor)
        if problem:
            report.problems.append(f"{tensor.name}: {problem}")
    try:
        if checkpoint.head_differs():
            report.problems.append("lm_head.weight: differs from wte.weight, to which it is tied")
    except (ValueError, OSError) as error:
        report.problems.append(f"lm_head.weight: {error}")


def _problem(tensor: Tensor):
    """What is wrong with a tensor, or None; its shape has been compared when the checkpoint was opened."""
    try:
        numbers = tensor.read()
    except (ValueError, OSError) as error:
        return str(error)
    finite = np.isfinite(numbers)
    if finite.all():
        return None
    first = [int(i) for i in np.unravel_index(finite.argmin(), finite.shape)]
    return f"{finite.size - finite.sum():,} of {finite.size:,} numbers are not finite, the first at {first}"
