# SPDX-License-Identifier: Apache-2.0
"""Sizes of a model: what they are, which are valid, and what follows from them.

`GPTConfig` is plain arithmetic on Python ints and allocates nothing. `GPTConfig.parameter_shapes` is the one
list of the parameters' names and shapes; counts and memory are derived from the same list.

The memory plan follows the layout of the compiled code: a weight matrix [K, N] is packed into panels of 32
columns, each tensor starts at a multiple of 64 bytes, keys and values are cached in blocks of 64 positions.
"""

import math
from dataclasses import KW_ONLY, dataclass, fields

from . import _checks

ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu")

LESS_WEIGHTS = "n_layers, n_embd, n_inner, vocab_size or block_size"  # what to reduce, for messages

_FLOAT_BYTES = 4
_PANEL_COLUMNS = 32
_ALIGNMENT = 64
_CACHE_BLOCK = 64

_RELEASED = {"tie_weights": True, "lm_head_bias": False}
_PRESETS = {
    "tiny": {"vocab_size": 512, "n_embd": 128, "n_heads": 4, "n_layers": 3, "block_size": 128},
    "small": {"vocab_size": 512, "n_embd": 256, "n_heads": 4, "n_layers": 4, "block_size": 256},
    "medium": {"vocab_size": 512, "n_embd": 384, "n_heads": 6, "n_layers": 6, "block_size": 256},
    "gpt2-small": {"n_embd": 768, "n_heads": 12, "n_layers": 12},
    "gpt2": {"n_embd": 768, "n_heads": 12, "n_layers": 12, **_RELEASED},
    "gpt2-medium": {"n_embd": 1024, "n_heads": 16, "n_layers": 24, **_RELEASED},
    "gpt2-large": {"n_embd": 1280, "n_heads": 20, "n_layers": 36, **_RELEASED},
    "gpt2-xl": {"n_embd": 1600, "n_heads": 25, "n_layers": 48, **_RELEASED},
    "distilgpt2": {"n_embd": 768, "n_heads": 12, "n_layers": 6, **_RELEASED},
}
PRESETS = tuple(_PRESETS)


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and options of a GPT-2 class model, checked at construction and immutable afterwards.

    Parameters
    ----------
    vocab_size : int
        Number of token ids, V.
    n_embd : int
        Width of a token's vector, C.
    n_heads : int
        Number of attention heads, H. Must divide `n_embd` into heads of at most 256.
    n_layers : int
        Number of blocks, L.
    block_size : int
        Number of positions, P: the longest sequence, cached tokens included.
    n_inner : int, optional
        Width inside the MLP. None means 4 * `n_embd`; `inner` is the resolved number.
    activation : {"gelu_tanh", "gelu_erf", "relu"}
        Activation of the MLP.
    layer_norm_eps : float
        Epsilon inside the root of every LayerNorm, positive.
    bias : bool
        Whether linear layers have a bias and LayerNorms a beta.
    tie_weights : bool
        Whether the head uses the token embedding as its weight.
    lm_head_bias : bool, optional
        Whether the head has a bias. None means `bias`, unless the weights are tied: then no;
        `has_lm_head_bias` is the resolved value. True is allowed with tied weights and with `bias=False`
        too: the bias [V] is a parameter of its own.
    scale_attn_weights : bool
        Whether attention scores are divided by the root of the head width.
    scale_attn_by_inverse_layer_idx : bool
        Whether attention scores of block i are also divided by i + 1.

    Raises
    ------
    TypeError
        When an argument is of the wrong kind (a bool or a float is not a size).
    ValueError
        When a value is out of range, `n_heads` does not divide `n_embd`, or the model's size in bytes exceeds
        63 bits.

    Examples
    --------
    >>> from gpt2cy import GPTConfig
    >>> config = GPTConfig(vocab_size=512, n_embd=128, n_heads=4, n_layers=3, block_size=128)
    >>> config.head_dim, config.inner, config.n_params
    (32, 512, 743040)
    >>> GPTConfig.preset("gpt2").n_params
    124439808
    """

    vocab_size: int = 50257
    n_embd: int = 768
    n_heads: int = 12
    n_layers: int = 12
    block_size: int = 1024
    _: KW_ONLY
    n_inner: int | None = None
    activation: str = "gelu_tanh"
    layer_norm_eps: float = 1e-5
    bias: bool = True
    tie_weights: bool = False
    lm_head_bias: bool | None = None
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        for name in ("n_embd", "n_heads"):
            put(name, _checks.integer(name, getattr(self, name)))
        _checks.heads(self.n_embd, self.n_heads)
        for name in ("vocab_size", "n_layers", "block_size", "n_inner"):
            if name != "n_inner" or self.n_inner is not None:
                put(name, _checks.integer(name, getattr(self, name), 1))
                _checks.integer(name, getattr(self, name), high=_checks.MAX_BYTES)
        put("activation", _checks.choice("activation", self.activation, ACTIVATIONS))
        put("layer_norm_eps", _checks.epsilon("layer_norm_eps", self.layer_norm_eps))
        for name in ("bias", "tie_weights", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"):
            put(name, _checks.flag(name, getattr(self, name)))
        if self.lm_head_bias is not None:
            put("lm_head_bias", _checks.flag("lm_head_bias", self.lm_head_bias))
        n_bytes = self.memory_plan()["total"]
        if n_bytes > _checks.MAX_BYTES:
            raise ValueError(
                f"vocab_size={self.vocab_size}, n_embd={self.n_embd}, n_layers={self.n_layers}, "
                f"block_size={self.block_size}, n_inner={self.inner}: expected a model of at most "
                f"{_checks.MAX_BYTES} bytes, got {n_bytes}"
            )

    @classmethod
    def preset(cls, name: str, **overrides) -> "GPTConfig":
        """Return a configuration by name, with any field replaced.

        Parameters
        ----------
        name : str
            "tiny", "small", "medium" or "gpt2-small" (head not tied, with a bias), or one of the released
            shapes "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl" or "distilgpt2" (head tied, no bias).
        **overrides
            Fields of `GPTConfig` that replace those of the preset.

        Raises
        ------
        ValueError
            When there is no such preset; the message lists those that exist.

        Examples
        --------
        >>> from gpt2cy import GPTConfig
        >>> GPTConfig.preset("tiny", block_size=64).block_size
        64
        """
        fields = _PRESETS[_checks.choice("name", name, tuple(_PRESETS))]
        return cls(**{**fields, **overrides})

    def __reduce__(self):
        """Pickled as its fields, so that what comes back has been validated too."""
        return _from_fields, (type(self), {name: getattr(self, name) for name in _FIELDS})

    @property
    def head_dim(self) -> int:
        """Width of one attention head, D."""
        return self.n_embd // self.n_heads

    @property
    def inner(self) -> int:
        """Width inside the MLP: `n_inner`, or 4 * `n_embd`."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @property
    def has_lm_head_bias(self) -> bool:
        """Whether the head has a bias: `lm_head_bias`, or `bias` unless the weights are tied."""
        return self.bias and not self.tie_weights if self.lm_head_bias is None else self.lm_head_bias

    @property
    def n_params(self) -> int:
        """Number of parameters; a tied weight counts once."""
        embeddings, block, tail = self._counts()
        return sum(embeddings.values()) + self.n_layers * block + sum(tail.values())

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of each part, in model order.

        Returns
        -------
        dict
            Keys "wte", "wpe", "h.0" and so on, "ln_f", "lm_head". The head is always there: it counts what it
            adds, so 0 when it is tied and has no bias, and the values add up to `n_params`.

        Examples
        --------
        >>> from gpt2cy import GPTConfig
        >>> GPTConfig.preset("small", n_layers=1).parameter_counts()
        {'wte': 131072, 'wpe': 65536, 'h.0': 789760, 'ln_f': 512, 'lm_head': 131584}
        """
        embeddings, block, tail = self._counts()
        return {**embeddings, **{f"h.{i}": block for i in range(self.n_layers)}, **tail}

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter under its Hugging Face name, in model order.

        Weights of the blocks are [in, out]; `lm_head.weight` is [V, C], and absent when tied.

        Examples
        --------
        >>> from gpt2cy import GPTConfig
        >>> shapes = GPTConfig.preset("tiny").parameter_shapes()
        >>> shapes["h.0.attn.c_attn.weight"], shapes["lm_head.weight"]
        ((128, 384), (512, 128))
        """
        block = self._block_shapes()
        blocks = {f"h.{i}.{name}": shape for i in range(self.n_layers) for name, shape in block.items()}
        return {**self._embedding_shapes(), **blocks, **self._tail_shapes()}

    def memory_plan(self, batch: int = 1, seq_len: int | None = None) -> dict[str, int]:
        """Return how many bytes a model and one call of it take, by purpose.

        Parameters
        ----------
        batch : int
            Number of sequences.
        seq_len : int, optional
            Number of tokens in each; None means `block_size`.

        Returns
        -------
        dict
            "weights", "cache" (keys and values of all sequences), "workspace" (scratch memory of one call),
            "logits" (its result) and "total".

        Raises
        ------
        ValueError
            When `batch` or `seq_len` is below 1 or `seq_len` exceeds `block_size`.

        Examples
        --------
        >>> from gpt2cy import GPTConfig
        >>> plan = GPTConfig.preset("gpt2").memory_plan(batch=2, seq_len=100)
        >>> plan["cache"], plan["logits"]
        (18874368, 40205600)
        """
        batch = _checks.integer("batch", batch, 1)
        seq_len = self.block_size if seq_len is None else _checks.integer("seq_len", seq_len, 1)
        _checks.length_fits("seq_len", seq_len, 0, self.block_size)
        plan = {
            "weights": self._weight_bytes(),
            "cache": self.n_layers * _key_value_bytes(self, batch, seq_len),
            "workspace": workspace_bytes(self, batch, seq_len),
            "logits": _FLOAT_BYTES * batch * seq_len * self.vocab_size,
        }
        plan["total"] = sum(plan.values())
        return plan

    def _embedding_shapes(self):
        return {"wte.weight": (self.vocab_size, self.n_embd), "wpe.weight": (self.block_size, self.n_embd)}

    def _block_shapes(self):
        width, inner = self.n_embd, self.inner
        return {
            **self._layer_shapes("ln_1", (width,)),
            **self._layer_shapes("attn.c_attn", (width, 3 * width)),
            **self._layer_shapes("attn.c_proj", (width, width)),
            **self._layer_shapes("ln_2", (width,)),
            **self._layer_shapes("mlp.c_fc", (width, inner)),
            **self._layer_shapes("mlp.c_proj", (inner, width)),
        }

    def _tail_shapes(self):
        shapes = self._layer_shapes("ln_f", (self.n_embd,))
        if not self.tie_weights:
            shapes["lm_head.weight"] = (self.vocab_size, self.n_embd)
        if self.has_lm_head_bias:
            shapes["lm_head.bias"] = (self.vocab_size,)
        return shapes

    def _layer_shapes(self, layer, weight_shape):
        """Shapes of a LayerNorm or linear layer; its bias (or beta) is as long as the last axis."""
        shapes = {f"{layer}.weight": weight_shape}
        if self.bias:
            shapes[f"{layer}.bias"] = weight_shape[-1:]
        return shapes

    def _counts(self):
        """Parameter counts before the blocks, of one block, and after the blocks."""
        rows = self._embedding_shapes()
        embeddings = {name.split(".")[0]: math.prod(shape) for name, shape in rows.items()}
        block = sum(math.prod(shape) for shape in self._block_shapes().values())
        tail = {"ln_f": 0, "lm_head": 0}
        for name, shape in self._tail_shapes().items():
            tail[name.split(".")[0]] += math.prod(shape)
        return embeddings, block, tail

    def _weight_bytes(self):
        """Bytes of the weights as the layers hold them: matrices packed, embeddings as plain rows."""
        vocab_size, width = self.vocab_size, self.n_embd
        total = _aligned(_FLOAT_BYTES * self.block_size * width) + _packed_bytes(width, vocab_size)
        if not self.tie_weights:
            total += _aligned(_FLOAT_BYTES * vocab_size * width)
        total += self.n_layers * sum(_tensor_bytes(shape) for shape in self._block_shapes().values())
        for name, shape in self._tail_shapes().items():
            if name != "lm_head.weight":
                total += _tensor_bytes(shape)
        return total


def exact(config: GPTConfig) -> GPTConfig:
    """Return a plain, validated copy: whatever a subclass or a later change of the original would say.

    Raises
    ------
    TypeError
        When it is not a GPTConfig.
    """
    if not isinstance(config, GPTConfig):
        raise TypeError(f"config: expected a GPTConfig, got {type(config).__name__}")
    return _from_fields(GPTConfig, {name: getattr(config, name) for name in _FIELDS})


def _from_fields(cls, values):
    return cls(**values)


_FIELDS = tuple(field.name for field in fields(GPTConfig))


def workspace_bytes(config: GPTConfig, batch: int, seq_len: int) -> int:
    """Return the bytes of scratch memory that one forward call takes for batch sequences of seq_len tokens.

    A row holds the residual stream and its normalised copy, the wider of qkv and the MLP's inner row, and the
    left side of a product, repacked into slivers. Without a cache each call also holds the keys and values of
    one layer.
    """
    width, inner = config.n_embd, config.inner
    row = width + width + max(3 * width, inner) + max(width, inner)
    return _FLOAT_BYTES * batch * seq_len * row + _key_value_bytes(config, batch, seq_len)


def _key_value_bytes(config, batch, seq_len):
    """Bytes of one layer's keys and values in whole blocks of positions."""
    return batch * _round_up(seq_len, _CACHE_BLOCK) * 2 * config.n_embd * _FLOAT_BYTES


def _tensor_bytes(shape):
    return _packed_bytes(*shape) if len(shape) == 2 else _aligned(_FLOAT_BYTES * shape[0])


def _packed_bytes(n_rows, n_columns):
    return _aligned(_FLOAT_BYTES * n_rows * _round_up(n_columns, _PANEL_COLUMNS))


def _aligned(n_bytes):
    return _round_up(n_bytes, _ALIGNMENT)


def _round_up(number, multiple):
    return -(-number // multiple) * multiple
