# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention by itself, causal, one sequence."""

import torch
import torch.nn.functional as F


class Engine:
    def __init__(self, config, weights, threads):
        torch.set_num_threads(threads)
        self.n_heads = config["n_heads"]

    def versions(self):
        return {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability()}

    def attention(self, qkv):
        """Heads are laid out apart beforehand; the result [T, C] is put together from them."""
        parts = torch.from_numpy(qkv).unflatten(-1, (3, self.n_heads, -1)).permute(1, 2, 0, 3)
        q, k, v = (part.contiguous()[None] for part in parts)  # 3 x [1, H, T, D]

        @torch.inference_mode()
        def call():
            return (
                F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1).flatten(1).numpy()
            )

        return call
