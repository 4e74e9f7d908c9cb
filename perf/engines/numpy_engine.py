# SPDX-License-Identifier: Apache-2.0
"""GPT-2 written in NumPy with care for speed: float32, in place, one product for all rows of a batch."""

import math

import numpy as np


class Engine:
    def __init__(self, config, weights, threads):  # its BLAS takes the number of threads from the environment
        self.n_heads, self.n_layers = config["n_heads"], config["n_layers"]
        self.eps = np.float32(config["layer_norm_eps"])
        self.weights = weights
        self.head = np.ascontiguousarray(weights.get("lm_head.weight", weights["wte.weight"]).T)  # [C, V]

    def versions(self):
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return {"numpy": np.__version__, "blas": f"{blas['name']} {blas['version']}"}

    def forward(self, tokens):
        return self.logits(self.blocks(tokens), tokens.shape)

    def next_logits(self, tokens):
        batch, length = tokens.shape
        return self.logits(self.blocks(tokens)[length - 1 :: length], (batch,))

    def decoder(self, tokens):
        batch, past = tokens.shape
        width = self.weights["wte.weight"].shape[1]
        shape = (2, batch, self.n_heads, past + 1, width // self.n_heads)
        caches = [np.zeros(shape, np.float32) for _ in range(self.n_layers)]
        self.blocks(tokens, caches)
        return lambda token: self.logits(self.blocks(token, caches, past), (batch,))

    def blocks(self, tokens, caches=None, past=0):
        """The residual stream [n, C] after all blocks; keys and values are kept in `caches`."""
        batch, length = tokens.shape
        weights = self.weights
        x = weights["wte.weight"][tokens] + weights["wpe.weight"][past : past + length]
        x = x.reshape(batch * length, -1)  # [n, C]
        future = np.triu(np.full((length, past + length), -np.inf, np.float32), past + 1)
        for i in range(self.n_layers):
            qkv = self.linear(f"h.{i}.attn.c_attn", self.layernorm(f"h.{i}.ln_1", x))
            heads = self.attention(qkv, future, caches and caches[i], past)
            x += self.linear(f"h.{i}.attn.c_proj", heads)
            hidden = gelu(self.linear(f"h.{i}.mlp.c_fc", self.layernorm(f"h.{i}.ln_2", x)))
            x += self.linear(f"h.{i}.mlp.c_proj", hidden)
        return x

    def logits(self, x, shape):
        logits = self.layernorm("ln_f", x) @ self.head
        if "lm_head.bias" in self.weights:
            logits += self.weights["lm_head.bias"]
        return logits.reshape(*shape, -1)

    def linear(self, name, x):
        y = x @ self.weights[f"{name}.weight"]
        y += self.weights[f"{name}.bias"]
        return y

    def layernorm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(-1, keepdims=True) + self.eps)
        x *= self.weights[f"{name}.weight"]
        x += self.weights[f"{name}.bias"]
        return x

    def attention(self, qkv, future, cache=None, past=0):
        length, width = len(future), qkv.shape[1] // 3
        qkv = qkv.reshape(-1, length, 3, self.n_heads, width // self.n_heads)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)  # 3 x [B, H, T, D]
        if cache is not None:
            end = past + length
            cache[:, :, :, past:end] = k, v
            k, v = cache[:, :, :, :end]
        scores = q @ k.swapaxes(-1, -2)  # [B, H, T, T]
        scores *= np.float32(1 / math.sqrt(q.shape[-1]))
        scores += future
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ v).swapaxes(1, 2).reshape(-1, width)  # [n, C]


def gelu(x):
    inner = x * x
    inner *= np.float32(0.044715)
    inner += np.float32(1)
    inner *= x
    inner *= np.float32(math.sqrt(2 / math.pi))
    np.tanh(inner, out=inner)
    inner += np.float32(1)
    inner *= x
    inner *= np.float32(0.5)
    return inner
