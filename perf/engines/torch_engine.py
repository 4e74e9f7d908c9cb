# SPDX-License-Identifier: Apache-2.0
"""GPT-2 as a plain PyTorch module: nn.Linear, nn.LayerNorm, scaled_dot_product_attention; eager.

The cache is static: tensors of the full length, allocated once and written in place.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, inner, n_heads, eps):
        super().__init__()
        self.n_heads = n_heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, inner), "c_proj": nn.Linear(inner, width)})

    def forward(self, x, cache=None, past=0):
        qkv = self.attn["c_attn"](self.ln_1(x))  # [B, T, 3C]
        q, k, v = qkv.unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)  # 3 x [B, H, T, D]
        if cache is not None:
            end = past + k.shape[2]
            cache[0, :, :, past:end], cache[1, :, :, past:end] = k, v
            k, v = cache[:, :, :, :end]
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=past == 0)  # past > 0: one token at a time
        x = x + self.attn["c_proj"](heads.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class GPT2(nn.Module):
    def __init__(self, config, head_bias):
        super().__init__()
        vocab, width, eps = config["vocab_size"], config["n_embd"], config["layer_norm_eps"]
        inner = config["n_inner"] or 4 * width
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(config["block_size"], width)
        self.h = nn.ModuleList(Block(width, inner, config["n_heads"], eps) for _ in range(config["n_layers"]))
        self.ln_f = nn.LayerNorm(width, eps)
        self.lm_head = nn.Linear(width, vocab, bias=head_bias)

    def forward(self, tokens, last=False, caches=None, past=0):
        x = self.wte(tokens) + self.wpe.weight[past : past + tokens.shape[1]]
        for i, block in enumerate(self.h):
            x = block(x, caches and caches[i], past)
        return self.lm_head(self.ln_f(x[:, -1] if last else x))


class Engine:
    def __init__(self, config, weights, threads):
        torch.set_num_threads(threads)
        weights.setdefault("lm_head.weight", weights["wte.weight"])
        with torch.device("meta"):
            model = GPT2(config, "lm_head.bias" in weights)
        state = {}
        for name, array in weights.items():
            tensor = torch.from_numpy(array)
            in_block = name.startswith("h.") and array.ndim == 2
            state[name] = tensor.T.contiguous() if in_block else tensor  # [in, out], but nn.Linear [out, in]
        model.load_state_dict(state, assign=True)
        self.model = model.eval().requires_grad_(False)

    def versions(self):
        return {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability()}

    @torch.inference_mode()
    def forward(self, tokens):
        return self.model(torch.from_numpy(tokens)).numpy()

    @torch.inference_mode()
    def next_logits(self, tokens):
        return self.model(torch.from_numpy(tokens), last=True).numpy()

    @torch.inference_mode()
    def decoder(self, tokens):
        batch, past = tokens.shape
        n_heads = self.model.h[0].n_heads
        head_dim = self.model.wte.embedding_dim // n_heads
        caches = [torch.zeros(2, batch, n_heads, past + 1, head_dim) for _ in self.model.h]
        self.model(torch.from_numpy(tokens), last=True, caches=caches)

        @torch.inference_mode()
        def step(token):
            return self.model(torch.from_numpy(token), last=True, caches=caches, past=past).numpy()

        return step
