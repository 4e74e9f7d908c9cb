# SPDX-License-Identifier: Apache-2.0
"""The least time that a computation can take.

    roofline = max(bytes / bandwidth, flops / peak)

What a pass through a model has to do is counted by gpt2cy/inspection/work.py, operation by operation, as the
profile and the plan have it; here are the sums, and the parts that benches of single kernels ask for.

A product with the head is counted for each row of logits that is asked for, whether its matrix is tied to the
token embedding or not: tying saves memory, not work. The lookup of an embedding counts as nothing.
"""

from dataclasses import dataclass

from gpt2cy.inspection.work import of_pass

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Work:
    """What has to be done: floating-point operations, and bytes that have to come from memory."""

    flops: float
    bytes: float

    def seconds(self, peak, bandwidth):
        """The least time, given GFLOP/s and GB/s."""
        return max(self.flops / peak, self.bytes / bandwidth) / 1e9

    def bound(self, peak, bandwidth):
        """Which of the two it is."""
        return "compute" if self.flops / peak >= self.bytes / bandwidth else "memory"


def product(m, k, n):
    """A matrix product [m, K] by [K, N]."""
    return Work(2 * m * k * n, FLOAT_BYTES * k * n)


def attention(width, length, past=0):
    """One layer's causal attention of `length` queries that also see `past` cached keys, all heads.

    Query i sees past + i + 1 keys: a multiply-add for each of the C numbers of a key and again of a value.
    """
    pairs = length * past + length * (length + 1) // 2
    return Work(4 * width * pairs, 2 * FLOAT_BYTES * width * past)


def forward(config, lengths, past=0):
    """The logits of every position of sequences of these lengths, each after `past` cached tokens."""
    return _sum(of_pass(config, lengths, [past] * len(lengths)))


def next_logits(config, lengths):
    """The logits of the last position of each sequence, nothing cached."""
    return _sum(of_pass(config, lengths, [0] * len(lengths), last_only=True))


def decode(config, batch, past):
    """One token of each of `batch` sequences, each after `past` cached ones."""
    return forward(config, [1] * batch, past)


def weight_bytes(config):
    """The bytes of every weight that a forward pass reads: all but the two tables that are looked up."""
    return forward(config, [1]).bytes


def _sum(operations):
    return Work(sum(one.flops for one in operations), sum(one.bytes for one in operations))
