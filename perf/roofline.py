# SPDX-License-Identifier: Apache-2.0
"""The least time that a computation can take: all formulas in one place.

    roofline = max(bytes / bandwidth, flops / peak)

flops   2 for each multiply-add of a matrix product or of attention; nothing else counts (norms, GELU and
        softmax are a few per cent, and no bound needs them).
bytes   each weight once, and the cached keys and values once. Not the token embeddings that are looked up,
        not activations, not the logits that are written: they are small, or can stay in a cache.

A product with the head is counted for each row of logits that is asked for, whether its matrix is tied to the
token embedding or not: tying saves memory, not work. The lookup of an embedding counts as nothing.

Letters as in ARCHITECTURE.md: C width, I inner width, V vocabulary, L blocks, T tokens, B sequences.
"""

from dataclasses import dataclass

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
    rows = sum(lengths)
    flops = 2 * rows * (config.n_layers * _block_matrices(config) + _head(config))
    seen = [attention(config.n_embd, length, past) for length in lengths]
    flops += config.n_layers * sum(work.flops for work in seen)
    cache = config.n_layers * sum(work.bytes for work in seen)
    return Work(flops, weight_bytes(config) + cache)


def next_logits(config, lengths):
    """The logits of the last position of each sequence, nothing cached.

    The last block has to make keys and values of all rows, but its queries, its attention, its projection and
    its MLP only of the last ones; then the head.
    """
    rows, width = sum(lengths), config.n_embd
    keys_and_values = 2 * width * width
    flops = 2 * rows * ((config.n_layers - 1) * _block_matrices(config) + keys_and_values)
    flops += 2 * len(lengths) * (_block_matrices(config) - keys_and_values + _head(config))
    flops += (config.n_layers - 1) * sum(attention(width, length).flops for length in lengths)
    flops += sum(attention(width, 1, length - 1).flops for length in lengths)
    return Work(flops, weight_bytes(config))


def decode(config, batch, past):
    """One token of each of `batch` sequences, each after `past` cached ones."""
    return forward(config, [1] * batch, past)


def weight_bytes(config):
    """The bytes of every weight that a forward pass reads: all but the two tables that are looked up."""
    counts = config.parameter_counts()
    blocks = sum(count for name, count in counts.items() if name.startswith("h."))
    head = _head(config) + (config.vocab_size if config.has_lm_head_bias else 0)
    return FLOAT_BYTES * (blocks + counts["ln_f"] + head)


def _block_matrices(config):
    """Matrix parameters of a block: c_attn, c_proj, c_fc, c_proj."""
    return 4 * config.n_embd**2 + 2 * config.n_embd * config.inner


def _head(config):
    return config.n_embd * config.vocab_size
