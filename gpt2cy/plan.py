# SPDX-License-Identifier: Apache-2.0
"""What a model will take before it is built, memory and time: behind ``gpt2cy plan``.

    describe    sizes -> Plan: bytes by purpose, whether they fit, and with `measured` the expected times
    expect      the times, from a slice of the model: some of its blocks, and some columns of its head

The slice is as much of the model as no cache holds, at the real width and length, and is timed operation by
operation (inspection/profiling.py). A block of the model takes what a block of the slice takes; a head takes
time in proportion to its columns.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from gpt2cy import _checks
from gpt2cy.config import LESS_WEIGHTS, GPTConfig, exact
from gpt2cy.inspection import machine as machines
from gpt2cy.inspection import profiling, work
from gpt2cy.inspection.machine import Machine
from gpt2cy.kernels import host
from gpt2cy.model import GPT

_MIB = 1 << 20
_MOST_ROWS = 2048  # tokens that the slice is run on; more of them take time in proportion
_HEAD_BYTES = (
    64 * _MIB
)  # of a slice's head, and of its logits: beyond what the C library keeps from call to call


@dataclass(frozen=True)
class Expected:
    """The time of one kind of pass.

    Attributes
    ----------
    seconds : float
        Of one pass.
    n_tokens : int
        That it reads, of all sequences.
    flops, bytes : int
        That it takes at least (inspection/work.py).
    """

    seconds: float
    n_tokens: int
    flops: int
    bytes: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens that are read in a second."""
        return self.n_tokens / self.seconds


@dataclass(frozen=True)
class Plan:
    """What `describe` found.

    Attributes
    ----------
    config : GPTConfig
    batch, seq_len : int
    memory : dict of str to int
        Bytes by purpose, as `GPTConfig.memory_plan`.
    available : int or None
        Bytes that this process can still allocate, limits of its control groups included; None if unknown.
    machine : Machine or None
        What was measured, if it was.
    forward : Expected or None
        Of the logits of all positions, nothing cached.
    decode : Expected or None
        Of one more token after `seq_len` - 1 cached ones, for as many sequences as `n_tokens` says.
    note : str or None
        Why there are no times, if they were asked for.
    """

    config: GPTConfig
    batch: int
    seq_len: int
    memory: dict[str, int]
    available: int | None
    machine: Machine | None = None
    forward: Expected | None = None
    decode: Expected | None = None
    note: str | None = None

    @property
    def fits(self) -> bool:
        """Whether all of it fits the memory that is available; True where that is not known."""
        return self.available is None or self.memory["total"] <= self.available

    def advice(self) -> str:
        """Return what to reduce where it does not fit; nothing where it does."""
        if self.available is None or self.fits:
            return ""
        if self.memory["weights"] > self.available:
            return f"the weights alone do not fit: reduce {LESS_WEIGHTS}"
        fits, too_many = 0, self.batch
        while too_many - fits > 1:
            batch = (fits + too_many) // 2
            if self.config.memory_plan(batch, self.seq_len)["total"] <= self.available:
                fits = batch
            else:
                too_many = batch
        if fits:
            return f"batch {fits} fits"
        rest = self.memory["total"] - self.memory["logits"]
        if rest <= self.available:
            return "the logits of all positions do not fit: next_logits makes those of the last one"
        return "reduce seq_len"


def describe(config: GPTConfig, batch: int = 1, seq_len: int | None = None, *, measured: bool = True) -> Plan:
    """Plan a model and one call of it; nothing of its size is built.

    Parameters
    ----------
    config : GPTConfig
    batch : int
        Number of sequences.
    seq_len : int, optional
        Number of tokens in each; None means `block_size`.
    measured : bool
        Whether to measure, which takes three seconds, and expect times.

    Raises
    ------
    TypeError, ValueError
        As `GPTConfig.memory_plan`.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy import plan
    >>> found = plan.describe(gpt2cy.GPTConfig.preset("gpt2"), batch=2, seq_len=100, measured=False)
    >>> found.memory["logits"], found.fits
    (40205600, True)
    """
    config, measured = exact(config), _checks.flag("measured", measured)
    memory = config.memory_plan(batch, seq_len)
    batch, seq_len = int(batch), config.block_size if seq_len is None else int(seq_len)
    plan = Plan(config, batch, seq_len, memory, host.available_memory())
    if not measured:
        return plan
    try:
        forward, decode = expect(config, batch, seq_len)
        return dataclasses.replace(plan, machine=machines.measure(0.4), forward=forward, decode=decode)
    except MemoryError as error:
        return dataclasses.replace(plan, note=f"no times: the memory left is too little to measure ({error})")


def lines(plan: Plan) -> list[str]:
    """Return the plan as lines of text."""
    config, fields = plan.config, ("vocab_size", "n_embd", "n_heads", "n_layers", "block_size")
    parts = ", ".join(f"{purpose} {_mib(n_bytes)}" for purpose, n_bytes in plan.memory.items())
    described = {
        "Model": f"{config.n_params:,} parameters: "
        + ", ".join(f"{name}={getattr(config, name)}" for name in fields),
        "Call": f"{plan.batch} x {plan.seq_len} tokens",
        "Memory": parts,
        "Fits": _fits(plan),
    }
    if plan.machine and plan.forward and plan.decode:
        threads = f"{plan.machine.n_threads} thread" + "s" * (plan.machine.n_threads > 1)
        speed = f"{plan.machine.peak:.0f} GFLOP/s, {plan.machine.bandwidth:.1f} GB/s"
        described["Machine"] = f"{threads}, {plan.machine.isa}: {speed}, as measured"
        described["Forward"] = _speed(plan.forward, plan.machine)
        several = f" of {plan.decode.n_tokens} sequences" if plan.decode.n_tokens > 1 else ""
        described["Next token"] = _speed(plan.decode, plan.machine)
        described["Next token"] += f", after {plan.seq_len - 1} cached ones{several}"
    text = [f"{name + ':':14}{value}" for name, value in described.items()]
    return [*text, f"note: {plan.note}"] if plan.note else text


def values(plan: Plan) -> dict:
    """Return the plan as plain values, ready for JSON."""
    found = {**dataclasses.asdict(plan), "n_params": plan.config.n_params, "fits": plan.fits}
    for name in ("forward", "decode"):
        if found[name] is not None:
            found[name]["tokens_per_second"] = getattr(plan, name).tokens_per_second
    return found


def _fits(plan):
    if plan.available is None:
        return "unknown: the system does not say how much memory is left"
    left = f"{_mib(plan.available)} available"
    return f"yes: {left}" if plan.fits else f"NO: {left}; {plan.advice()}"


def _speed(expected, machine):
    least = machine.seconds(expected.flops, expected.bytes)
    if expected.seconds < least:
        why = f"from a cache: {1e3 * least:.3g} ms at the memory's speed"
    else:
        why = f"{machine.bound(expected.flops, expected.bytes)}-bound; at least {1e3 * least:.3g} ms"
    speed = f"{expected.tokens_per_second:,.0f} tokens/s"
    return f"{1e3 * expected.seconds:.3g} ms expected, {speed} ({why})"


def _mib(n_bytes):
    return f"{n_bytes / _MIB:,.1f} MiB"


# ---- time ----------------------------------------------------------------------------------------------


def expect(config: GPTConfig, batch: int, seq_len: int, seconds: float = 0.7) -> tuple[Expected, Expected]:
    """Return the times of a forward pass and of one more token.

    Parameters
    ----------
    config : GPTConfig
    batch, seq_len : int
        One more token is timed for at most 2048 / `seq_len` sequences at once.
    seconds : float
        How long each of the two is repeated, about; three times at least. Longer than the 0.64 s that a call
        may leave the team of threads alone after another program took one of its processors.

    Raises
    ------
    MemoryError
        When not even the slice fits.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy import plan
    >>> forward, decode = plan.expect(gpt2cy.GPTConfig.preset("tiny"), 4, 16, seconds=0.01)
    >>> forward.n_tokens, decode.n_tokens
    (64, 4)
    """
    together = min(batch, max(1, _MOST_ROWS // seq_len))
    model = _slice(config, together, seq_len)
    tokens = np.zeros((together, seq_len), int)
    cache = model.new_cache(together)
    model.next_logits(tokens, cache)
    cache.truncate(seq_len - 1)
    forward = _whole(config, model, tokens, None, seconds) * batch / together
    decode = _whole(config, model, tokens[:, :1], cache, seconds)
    return (
        Expected(forward, batch * seq_len, *_least(config, batch, seq_len, 0)),
        Expected(decode, together, *_least(config, together, 1, seq_len - 1)),
    )


def _least(config, batch, length, past):
    """Flops and bytes of a pass, however many sequences and blocks: both grow evenly with either."""
    small = dataclasses.replace(config, n_layers=1)
    (flops, n_bytes), (flops_2, bytes_2) = (
        [
            sum(getattr(one, kind) * (1 if one.layer is None else config.n_layers) for one in todo)
            for kind in ("flops", "bytes")
        ]
        for todo in (work.of_pass(small, [length] * n, [past] * n) for n in (1, 2))
    )
    return flops + (batch - 1) * (flops_2 - flops), n_bytes + (batch - 1) * (bytes_2 - n_bytes)


def _slice(config, batch, seq_len):
    """A model of this width with as many blocks, positions and columns of its head as timing takes."""
    block = 4 * dataclasses.replace(config, n_layers=1).parameter_counts()["h.0"]
    column = 4 * min(config.n_embd, batch * seq_len)
    sizes = {
        "n_layers": min(config.n_layers, math.ceil(machines.beyond_caches() / block)),
        "vocab_size": min(config.vocab_size, math.ceil(_HEAD_BYTES / column)),
        "block_size": seq_len,
        "tie_weights": True,
        "lm_head_bias": config.has_lm_head_bias,
    }
    small = dataclasses.replace(config, **sizes)
    model = GPT.__new__(GPT, small, _blank=True)
    number = np.float32(0.01)  # any that is normal: how long arithmetic takes does not depend on it
    model.load_state_dict(
        {name: np.broadcast_to(number, shape) for name, shape in small.parameter_shapes().items()}
    )
    return model


def _whole(config, model, tokens, cache, seconds):
    """Seconds of a pass through the whole model, from the slice's."""
    rows, _ = profiling.timed(model, tokens, cache, False, seconds, profiling.fastest_quarter)
    blocks = sum(row.seconds for row in rows if row.work.layer is not None)
    head = rows[-1].seconds
    return (
        sum(row.seconds for row in rows)
        + blocks * (config.n_layers / model.config.n_layers - 1)
        + head * (config.vocab_size / model.config.vocab_size - 1)
    )
