# SPDX-License-Identifier: Apache-2.0
"""GPT-2 as a plain PyTorch module: nn.Linear, nn.LayerNorm, scaled_dot_product_attention; eager."""

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

    def forward(self, x):
        qkv = self.attn["c_attn"](self.ln_1(x))  # [B, T, 3C]
        q, k, v = qkv.unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)  # 3 x [B, H, T, D]
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
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

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


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
