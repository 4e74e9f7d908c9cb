# SPDX-License-Identifier: Apache-2.0
"""The demonstration behind ``gpt2cy demo``: four sizes of model built, run, checked and timed.

From top to bottom, and `run` is the order of the page:

    build       GPT(GPTConfig.preset(name)) for each size: configuration, parameters, memory
    read_text   the tiny model reads bytes as token ids, [1, T] -> logits [1, T, V]; compared with float64,
                and with itself in a batch
    time_all    each size at 16, 64 and 256 tokens, beside the published times of another machine

What it prints as verified is verified, or CheckFailed is raised.
"""

import dataclasses
import os
import statistics
import sys
import time

import numpy as np

from gpt2cy import GPT, GPTConfig, reference, show_config

SIZES = ("tiny", "small", "medium", "gpt2-small")
SENTENCE = b"A small lamp lights the room, and the reader turns a page."
N_TOKENS = 16
LENGTHS = (16, 64, 256)

PUBLISHED_BY = "M1 Pro, 8 fast cores, Rust, batch 1"
PUBLISHED_MS = {
    "tiny": (8, 25, 150),
    "small": (15, 50, 300),
    "medium": (80, 200, 1200),
    "gpt2-small": (400, 1500, 8000),
}

_SEED = 0
_TOLERANCE = 1e-5  # on the difference from float64; the logits themselves are a few tenths
_MIB = 1 << 20


class CheckFailed(Exception):
    """A model did not do what the demonstration claims."""


class Page:
    """A text stream to print on: ✓ where its encoding has it, colour where a person looks at a terminal.

    Parameters
    ----------
    stream : text file
        Colour needs a terminal, no NO_COLOR in the environment (https://no-color.org), and TERM not "dumb".

    Examples
    --------
    >>> import sys
    >>> Page(sys.stdout).item("Input", "[1, 16]")
      Input: [1, 16]
    """

    def __init__(self, stream):
        self.stream = stream
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.colour = stream.isatty() and not plain
        try:
            "✓".encode(stream.encoding or "utf-8")
            self.mark = "✓"
        except UnicodeEncodeError:
            self.mark = "[ok]"

    def line(self, text: str = "") -> None:
        """Print a line at once, also into a pipe."""
        print(text, file=self.stream, flush=True)

    def heading(self, text: str) -> None:
        """Print an empty line and a title."""
        self.line()
        self.line(self._styled(text, "1"))

    def item(self, name: str, value: object) -> None:
        """Print a named value."""
        self.line(f"  {name}: {value}")

    def done(self, text: str) -> None:
        """Print that something has been verified."""
        self.line(f"  {self._styled(self.mark, '32')} {text}")

    def _styled(self, text, code):
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


def run(text: bytes = SENTENCE, *, up_to: str = SIZES[-1]) -> None:
    """Build, run, check and time the models, and print what happens.

    Parameters
    ----------
    text : bytes
        The tiny model reads the first 16; each byte is a token id. At least one.
    up_to : {"tiny", "small", "medium", "gpt2-small"}
        The largest size to build.

    Raises
    ------
    CheckFailed
        When a count, a shape or a result is not what it must be.
    MemoryError
        When a model does not fit.

    Examples
    --------
    >>> from gpt2cy import demo
    >>> demo.run(b"Hello", up_to="tiny")
    GPT-2 class models on the CPU...
    All tests completed successfully!
    """
    page = Page(sys.stdout)
    page.line("GPT-2 class models on the CPU")
    page.line()
    show_config()
    models = {name: build(page, name) for name in SIZES[: SIZES.index(up_to) + 1]}
    read_text(page, models["tiny"], text)
    time_all(page, models)
    page.line()
    page.line("All tests completed successfully!")


def build(page: Page, name: str) -> GPT:
    """Make a model of a preset with random weights, show its size, and count its parameters three ways."""
    page.heading(f"Model: {name}")
    config = GPTConfig.preset(name)
    fields = ("vocab_size", "n_embd", "n_heads", "n_layers", "block_size")
    page.item("Configuration", ", ".join(f"{field}={getattr(config, field)}" for field in fields))
    page.item("Parameters", f"{config.n_params:,} ({config.n_params / 1e6:.2f} M)")
    page.item("Weight memory", f"{config.memory_plan()['weights'] / _MIB:.1f} MiB")
    start = time.perf_counter()
    model = GPT(config, seed=_SEED)
    seconds = time.perf_counter() - start

    expected, counted = parameter_formula(config), sum(array.size for _, array in model.named_parameters())
    _require(
        config.n_params == counted == expected,
        f"{name}: {config.n_params:,} parameters, {counted:,} in its arrays, {expected:,} by the formula",
    )
    page.done(f"Model created ({seconds:.2f} s)")
    return model


def parameter_formula(config: GPTConfig) -> int:
    """Return the parameters of a model with an untied head, written out from the architecture.

    Examples
    --------
    >>> parameter_formula(GPTConfig.preset("gpt2-small"))
    163087441
    """
    vocab, width, positions = config.vocab_size, config.n_embd, config.block_size  # V, C, P
    embeddings = vocab * width + positions * width
    block = 12 * width * width + 13 * width  # qkv 3CC+3C, proj CC+C, MLP 4CC+4C and 4CC+C, two norms of 2C
    return embeddings + config.n_layers * block + 2 * width + (width * vocab + vocab)


def read_text(page: Page, model: GPT, text: bytes) -> None:
    """Run the tiny model on the first bytes of a text, and check the logits."""
    tokens = np.frombuffer(text[:N_TOKENS], np.uint8)[None]  # [1, T]
    batch, length = tokens.shape
    vocab = model.config.vocab_size
    page.heading(f"Forward pass: tiny reads {length} byte{'s' * (length > 1)} of text, a token id each")
    if length < N_TOKENS:
        page.line(f"  The text is shorter than {N_TOKENS} bytes: all of it is used.")
    page.item("Text", repr(tokens.tobytes())[1:])
    page.item("Token ids", " ".join(map(str, tokens[0])))
    page.item("Input", list(tokens.shape))
    logits = model(tokens)
    _check_logits("tiny", logits, (batch, length, vocab))
    page.item("Output", f"{list(logits.shape)} (logits over vocabulary)")
    page.item("Time", f"{_number(milliseconds(model, tokens)[0])} ms")
    page.done("Forward pass successful")

    truth = reference.forward(model.config, model.state_dict(), tokens)
    error = np.abs(logits - truth).max()
    _require(error <= _TOLERANCE, f"tiny: logits differ from the float64 reference by {error:.1e}")
    page.done(f"Agrees with the float64 reference (largest difference {error:.0e})")
    neighbours = np.concatenate([tokens[:, ::-1], tokens, 255 - tokens])  # [3, T]
    together = model(neighbours)[1]
    _require(np.array_equal(together, logits[0]), "tiny: a batch changes the bits of the logits")
    page.done("The same bits alone and in a batch of three")
    page.line("  The weights are random: the logits mean nothing yet.")


def time_all(page: Page, models: dict[str, GPT]) -> None:
    """Print the forward times of each model beside the published ones."""
    page.heading("Forward times in ms (batch 1, logits of every position, medians)")
    page.line(f"  {'':12}" + "".join(f"{f'{length} tokens':>20}" for length in LENGTHS))
    page.line(f"  {'':12}" + f"{'here':>10}{'published':>10}" * len(LENGTHS))
    notes, busy = [], False
    for name, model in models.items():
        cells = ""
        for length, published in zip(LENGTHS, PUBLISHED_MS[name], strict=True):
            timed, mark = model, " "
            if length > model.config.block_size:
                timed, mark = GPT(dataclasses.replace(model.config, block_size=length), seed=_SEED), "*"
                notes.append(f"* {name} has {model.config.block_size} positions; here block_size={length}")
            tokens = np.arange(length)[None]  # [1, T]
            _check_logits(name, timed(tokens), (1, length, model.config.vocab_size))
            middle, best = milliseconds(timed, tokens)
            busy = busy or middle > 2 * best
            cells += f"{_number(middle):>9}{mark}{published:>10}"
        page.line(f"  {name:12}{cells}")
    if busy:
        notes.append(
            "other programs were busy meanwhile: some of these medians are twice the best time or more"
        )
    for note in notes:
        page.line(f"  {note}")
    page.line(f"  published: measured on another machine ({PUBLISHED_BY})")


def milliseconds(model: GPT, tokens, *, seconds: float = 0.3, most: int = 30) -> tuple[float, float]:
    """Return the median and the best time of a forward pass in ms: 3 to `most` calls in about `seconds`.

    One more call goes before them, untimed.
    """
    model(tokens)
    samples: list[float] = []
    begin = time.perf_counter()
    while len(samples) < 3 or (len(samples) < most and time.perf_counter() - begin < seconds):
        start = time.perf_counter()
        model(tokens)
        samples.append(1e3 * (time.perf_counter() - start))
    return statistics.median(samples), min(samples)


def _check_logits(name, logits, shape):
    _require(logits.shape == shape, f"{name}: logits of shape {list(logits.shape)}, expected {list(shape)}")
    _require(np.isfinite(logits).all(), f"{name}: the logits are not finite")


def _require(condition, message):
    if not condition:
        raise CheckFailed(message)


def _number(value):
    """Three digits."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
