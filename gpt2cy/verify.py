# SPDX-License-Identifier: Apache-2.0
"""Does a model compute what it must on this machine? Behind ``gpt2cy verify``.

verify       source -> Report: one Check a line
  _ways      the same logits however they are asked for: cached, in chunks, in a batch, by more threads
  _truths    close to gpt2cy.reference (float64, from the numbers in the files), and to transformers
  _isas      the same logits from every instruction set, each in a process of its own with GPT2CY_ISA
lines        Report -> text

python -m gpt2cy.verify PATH TOKENS OUT      such a process: logits of the ids of one .npy file into another
"""

import dataclasses
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import gpt2cy
from gpt2cy import _checks, reference
from gpt2cy.config import GPTConfig
from gpt2cy.inspection import first_nonfinite
from gpt2cy.kernels import dispatch
from gpt2cy.kernels.threads import chosen_num_threads
from gpt2cy.language_model import find_tokenizer, on_disk
from gpt2cy.model import GPT
from gpt2cy.tokenizer import vocabulary
from gpt2cy.weights import open_checkpoint

TEXT = (
    "The lamp was lit before the reader came. She turned a page, and then another; in 1815 the tide had "
    "reached the third step of the stairs, café and all, and nobody had thought to write down the hour. "
    '"Is it far?" asked the boy. It was not: two miles by the road, or one across the field.'
)
TOLERANCE = 1e-4  # of a float32 engine, in standard deviations of the logits; ours stay below a fifth of it
_MOST_TOKENS = 80  # of our own text: more than one block of keys and values
_SLOW_FLOPS = 4e9  # of the scalar instruction set: some three seconds


@dataclass(frozen=True)
class Check:
    """One comparison of logits.

    Attributes
    ----------
    name, against : str
        What was compared with what.
    difference : float or None
        The largest; None where nothing could be compared.
    allowed : float
        0 asks for equality to the bit.
    passed : bool or None
        None: left out, and `note` says why.
    note : str
    """

    name: str
    against: str
    difference: float | None
    allowed: float
    passed: bool | None
    note: str = ""


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    Attributes
    ----------
    source : str
    read : str
        What the model was given to read.
    checks : list of Check
    """

    source: str
    read: str
    checks: list[Check]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(check.passed is not False for check in self.checks)

    def values(self) -> dict:
        """Return plain values, ready for JSON: None for what is not finite."""
        found = {**asdict(self), "passed": self.passed}
        for check in found["checks"]:
            check |= {name: None for name, value in check.items() if value != value or value == math.inf}
        return found


def verify(source, text: str | None = None, **hub) -> Report:
    """Compare a model with itself, with the reference and with transformers.

    Parameters
    ----------
    source : str or path
        As `GPT.from_pretrained`.
    text : str, optional
        What to read, all of it. None means 80 tokens of our own, or 80 ids where there is no tokenizer.
    **hub
        revision, token, local_files_only, cache_dir.

    Raises
    ------
    ValueError
        When the text has no token, or more than the model has positions.
    ValueError, OSError, ImportError, TypeError, MemoryError
        As `gpt2cy.load`.

    Examples
    --------
    >>> import tempfile, gpt2cy
    >>> from gpt2cy.verify import verify
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gpt2cy.GPT(gpt2cy.GPTConfig(256, 32, 2, 2, 64, tie_weights=True), seed=0).save_pretrained(folder)
    ...     report = verify(folder, "To be, or not to be")
    >>> report.passed, report.checks[0].name, report.checks[0].difference
    (True, 'cached', 0.0)
    """
    with open_checkpoint(source, **hub) as checkpoint:
        path = on_disk(source, checkpoint.folder)
        tokens, read = _tokens(text, checkpoint.folder, checkpoint.config)
        model = GPT.from_pretrained(path)
        logits = model.forward(tokens)
        where = None if np.isfinite(logits).all() else first_nonfinite(model, tokens)
        note = f"the first number that is not finite: {where}" if where else ""
        checks = [*_ways(model, tokens, logits), *_truths(checkpoint, path, tokens, logits, note)]
    config = model.config
    del model  # each process of another instruction set has its own
    checks += _isas(path, config, tokens, logits)
    return Report(str(source), read, checks)


def lines(report: Report) -> list[str]:
    """Return the report as a table with a verdict a line, and one for all."""
    rows = [("check", "against", "difference", "allowed", "verdict"), *map(_cells, report.checks)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = [f"{report.source}: {report.read}"]
    for name, against, difference, allowed, verdict in rows:
        start = f"{name:{widths[0]}}  {against:{widths[1]}}"
        text.append(f"{start}  {difference:>{widths[2]}}  {allowed:>{widths[3]}}  {verdict}")
    failed = [check.name for check in report.checks if check.passed is False]
    return [*text, f"FAILED: {', '.join(failed)}" if failed else "everything that was compared agrees"]


def _cells(check):
    verdict = {True: "ok", False: "FAILED", None: "left out"}[check.passed]
    return (
        check.name,
        check.against,
        "-" if check.difference is None else f"{check.difference:.1e}" if check.difference else "0",
        f"{check.allowed:.1e}" if check.allowed else "0",
        f"{verdict}: {check.note}" if check.note else verdict,
    )


# ---- what to read --------------------------------------------------------------------------------------


def _tokens(text, folder, config: GPTConfig):
    """Ids [T], and what they are."""
    most = config.block_size
    if text is None and config.vocab_size != 256 and not (folder and vocabulary.find(folder)):
        ids = (
            np.arange(min(_MOST_TOKENS, most)) * 7919 % config.vocab_size
        )  # a prime: all over the vocabulary
        return ids, f"{len(ids)} ids all over the vocabulary"
    read = find_tokenizer(folder, config.vocab_size).encode(TEXT if text is None else text)
    if text is None:
        read = read[: min(_MOST_TOKENS, most)]
    if not read:
        raise ValueError("text: expected at least one character")
    _checks.length_fits("text", len(read), 0, most)
    return np.array(read), f"{len(read)} tokens of text"


# ---- against itself ------------------------------------------------------------------------------------


def _ways(model: GPT, tokens, logits) -> Iterator[Check]:
    """Other ways to the same bits; `logits` [T, V] are those of one plain forward."""
    length = len(tokens)
    alone = list(range(max(1, length - 8), length))
    yield _equal("cached", "uncached", _in_pieces(model, tokens, alone), logits)
    cuts = sorted({cut for cut in (1, 4, length // 3, length // 2, 63, 64) if 0 < cut < length})
    yield _equal("in chunks", "whole", _in_pieces(model, tokens, cuts), logits)
    yield _equal("last only", "all positions", model.next_logits(tokens), logits[-1])
    neighbours = np.stack([tokens[::-1], tokens, np.roll(tokens, 1)])  # [3, T]
    yield _equal("in a batch", "alone", model.forward(neighbours)[1], logits)
    ragged = [tokens[: length // 2 + 1], tokens, tokens[:1]]
    yield _equal("batch of lengths", "alone", model.forward_many(ragged)[1], logits)
    threads, chosen = gpt2cy.get_num_threads(), chosen_num_threads()
    try:
        for count in sorted({1, 2, threads} - {threads}):
            gpt2cy.set_num_threads(count)
            name = f"{count} thread" + "s" * (count > 1)
            yield _equal(name, f"{threads}", model.forward(tokens), logits)
    finally:
        gpt2cy.set_num_threads(chosen)


def _in_pieces(model, tokens, cuts):
    """Logits [T, V] of the tokens, fed to a cache in pieces that end at the cuts."""
    cache = model.new_cache()
    return np.concatenate([model.forward(piece, cache) for piece in np.split(tokens, cuts)])


def _equal(name, against, found, logits):
    """To the bit; any NaN equals any, as its sign and payload are not promised."""
    same = found.shape == logits.shape
    if same:
        equal = found.view(np.uint32) == logits.view(np.uint32)
        same = np.all(equal | (np.isnan(found) & np.isnan(logits)))
    return Check(name, against, _difference(found, logits), 0.0, bool(same))


def _close(name, against, found, logits, truth):
    """Within the tolerance of float32; NaN is close to nothing."""
    allowed = TOLERANCE * float(np.std(truth))
    difference = _difference(found, logits)
    return Check(name, against, difference, allowed, bool(difference <= allowed))


def _difference(a, b):
    if a.shape != b.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(a.astype(np.float64) - b)))


# ---- against others ------------------------------------------------------------------------------------


class _Numbers(Mapping):
    """The tensors of a checkpoint, each read when it is asked for: not by our loader, and not all at once."""

    def __init__(self, tensors):
        self._tensors = tensors

    def __getitem__(self, name):
        return self._tensors[name].read()

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)


def _truths(checkpoint, path, tokens, logits, note) -> Iterator[Check]:
    truth = reference.forward(checkpoint.config, _Numbers(checkpoint.tensors), tokens)
    yield dataclasses.replace(_close("gpt2cy", "reference, float64", logits, truth, truth), note=note)
    reason = _why_no_transformers(checkpoint, path)
    if reason:
        yield Check("gpt2cy", "transformers", None, TOLERANCE * float(np.std(truth)), None, reason)
    else:
        yield _close("gpt2cy", "transformers", logits, _transformers(path, tokens), truth)


def _why_no_transformers(checkpoint, path):
    for library in ("transformers", "torch"):
        if importlib.util.find_spec(library) is None:
            return f"{library} is not installed"
    if checkpoint.format not in ("safetensors", "pytorch") or not (Path(path) / "config.json").is_file():
        return "only a folder as transformers writes it"
    return None


def _transformers(path, tokens):
    """Logits [T, V] by transformers, in float32."""
    import torch  # type: ignore  # as transformers, may not be installed
    import transformers  # type: ignore

    model = transformers.GPT2LMHeadModel.from_pretrained(path, local_files_only=True).float().eval()
    with torch.no_grad():
        return model(torch.from_numpy(tokens)[None]).logits[0].numpy()


# ---- against other instruction sets --------------------------------------------------------------------


def _isas(path, config, tokens, logits) -> Iterator[Check]:
    own = dispatch.isa()
    for isa in dispatch.available():
        if isa == own:
            continue
        most = len(tokens)
        if isa == "ref":  # scalar: readable, and a hundred times slower
            most = max(1, min(most, int(_SLOW_FLOPS / (2 * config.n_params))))
        found, problem = _in_a_process(isa, path, tokens[:most])
        if problem:
            yield Check(isa, own, None, 0.0, False, problem)
        elif dispatch.fused(isa) and dispatch.fused(own):
            yield _equal(isa, own, found, logits[:most])
        else:  # without a fused multiply-add each product is rounded: other bits
            yield _close(isa, own, found, logits[:most], logits)


def _in_a_process(isa, path, tokens):
    """Logits by another instruction set, or None and what went wrong."""
    parent = str(Path(gpt2cy.__file__).parents[1])
    paths = [parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "GPT2CY_ISA": isa, "PYTHONPATH": os.pathsep.join(paths)}
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "tokens.npy", Path(folder) / "logits.npy"
        np.save(given, tokens)
        command = [sys.executable, "-m", "gpt2cy.verify", path, given, out]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            return None, f"its process ended with {done.returncode}: {said[-1]}"
        return np.load(out), None


def _child(path, given, out):
    """What runs in such a process."""
    np.save(out, GPT.from_pretrained(path).forward(np.load(given)))


if __name__ == "__main__":
    _child(*sys.argv[1:])
