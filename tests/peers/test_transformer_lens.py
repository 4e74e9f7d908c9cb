# SPDX-License-Identifier: Apache-2.0
"""Activations, edits and studies beside TransformerLens, on the same random weights.

Run by ``make test-peers`` in an environment that has torch and transformer_lens.
"""

import formula
import numpy as np
import pytest

import gpt2cy
from gpt2cy.inspection import replace, scale, studies, zero
from gpt2cy.inspection.studies.attention import repeated

torch = pytest.importorskip("torch")
lens = pytest.importorskip("transformer_lens")
patching = pytest.importorskip("transformer_lens.patching")

L, H, D, C, V, P = 3, 4, 8, 32, 61, 64
CONFIG = gpt2cy.GPTConfig(V, C, H, L, P)
RNG = np.random.default_rng(3)
CLEAN, OTHER = RNG.integers(0, V, (2, 11))
ANSWER, WRONG = 5, 17
ACTIVATIONS = {
    "resid.{}": "blocks.{}.hook_resid_pre",
    "h.{}.resid_mid": "blocks.{}.hook_resid_mid",
    "h.{}.resid": "blocks.{}.hook_resid_post",
    "h.{}.attn.q": "blocks.{}.attn.hook_q",
    "h.{}.attn.k": "blocks.{}.attn.hook_k",
    "h.{}.attn.v": "blocks.{}.attn.hook_v",
    "h.{}.attn.scores": "blocks.{}.attn.hook_attn_scores",
    "h.{}.attn.weights": "blocks.{}.attn.hook_pattern",
    "h.{}.attn.heads": "blocks.{}.attn.hook_z",
    "h.{}.attn.per_head": "blocks.{}.attn.hook_result",
    "h.{}.attn.out": "blocks.{}.hook_attn_out",
    "h.{}.mlp.pre": "blocks.{}.mlp.hook_pre",
    "h.{}.mlp.hidden": "blocks.{}.mlp.hook_post",
    "h.{}.mlp.out": "blocks.{}.hook_mlp_out",
}


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=5e-4, atol=5e-4)


@pytest.fixture(scope="module")
def params():
    return formula.weights(CONFIG)


@pytest.fixture(scope="module")
def ours(params):
    model = gpt2cy.GPT(CONFIG, seed=0)
    model.load_state_dict(params)
    return model


@pytest.fixture(scope="module")
def theirs(params):
    config = lens.HookedTransformerConfig(
        n_layers=L, d_model=C, n_heads=H, d_head=D, d_mlp=4 * C, n_ctx=P, d_vocab=V, act_fn="gelu_new",
        normalization_type="LN", eps=1e-5, device="cpu", seed=0, use_attn_result=True,
    )  # fmt: skip
    model = lens.HookedTransformer(config)
    state = {"embed.W_E": params["wte.weight"], "pos_embed.W_pos": params["wpe.weight"]}
    state |= {"ln_final.w": params["ln_f.weight"], "ln_final.b": params["ln_f.bias"]}
    state |= {"unembed.W_U": params["lm_head.weight"].T, "unembed.b_U": params["lm_head.bias"]}
    for i in range(L):
        at, to = f"h.{i}", f"blocks.{i}"
        for norm in ("1", "2"):
            state[f"{to}.ln{norm}.w"] = params[f"{at}.ln_{norm}.weight"]
            state[f"{to}.ln{norm}.b"] = params[f"{at}.ln_{norm}.bias"]
        weights = np.split(params[f"{at}.attn.c_attn.weight"], 3, axis=1)
        biases = np.split(params[f"{at}.attn.c_attn.bias"], 3)
        for name, weight, bias in zip("QKV", weights, biases, strict=True):
            state[f"{to}.attn.W_{name}"] = weight.reshape(C, H, D).swapaxes(0, 1)
            state[f"{to}.attn.b_{name}"] = bias.reshape(H, D)
        state[f"{to}.attn.W_O"] = params[f"{at}.attn.c_proj.weight"].reshape(H, D, C)
        state[f"{to}.attn.b_O"] = params[f"{at}.attn.c_proj.bias"]
        state[f"{to}.mlp.W_in"] = params[f"{at}.mlp.c_fc.weight"]
        state[f"{to}.mlp.b_in"] = params[f"{at}.mlp.c_fc.bias"]
        state[f"{to}.mlp.W_out"] = params[f"{at}.mlp.c_proj.weight"]
        state[f"{to}.mlp.b_out"] = params[f"{at}.mlp.c_proj.bias"]
    tensors = {name: torch.tensor(np.ascontiguousarray(array)) for name, array in state.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert unexpected == []
    assert all(name.endswith((".mask", ".IGNORE")) for name in missing)
    return model.eval()


@pytest.fixture(scope="module")
def cache(theirs):
    with torch.no_grad():
        return theirs.run_with_cache(torch.tensor(CLEAN)[None])[1]


def difference(logits):
    return logits[0, -1, ANSWER] - logits[0, -1, WRONG]


def test_every_activation(ours, theirs, cache):
    seen = ours.trace(CLEAN)
    with torch.no_grad():
        close(seen["logits"], theirs(torch.tensor(CLEAN)[None])[0])
    for i in range(L):
        for mine, other in ACTIVATIONS.items():
            expected = cache[other.format(i)][0].numpy()
            if mine.split(".")[-1] in ("q", "k", "v", "heads", "per_head"):
                expected = expected.swapaxes(0, 1)  # theirs are [T, H, ...]
            close(seen[mine.format(i)], expected)


@pytest.mark.parametrize("layer", range(L))
def test_edits_are_hooks(ours, theirs, layer):
    def hooked(name, hook):
        with torch.no_grad():
            return theirs.run_with_hooks(torch.tensor(CLEAN)[None], fwd_hooks=[(name.format(layer), hook)])[0]

    def no_head(z, hook):
        z[:, :, 2] = 0
        return z

    def half(rows, hook):
        rows[:, 3:6] *= 0.5
        return rows

    def look_back(pattern, hook):
        pattern[:, 1] = torch.eye(11).roll(-1, 0).T.tril()
        return pattern

    back = np.zeros((H, 11, 11), np.float32)
    back[1] = np.tril(np.roll(np.eye(11), -1, 0).T)
    cases = [
        ("blocks.{}.attn.hook_z", no_head, {"h.{}.attn.heads": zero(head=2)}),
        ("blocks.{}.hook_mlp_out", half, {"h.{}.mlp.out": scale(0.5, positions=range(3, 6))}),
        ("blocks.{}.attn.hook_pattern", look_back, {"h.{}.attn.weights": replace(back, head=1)}),
    ]
    for name, hook, edits in cases:
        with ours.edit({pattern.format(layer): edit for pattern, edit in edits.items()}):
            close(ours(CLEAN), hooked(name, hook))


@pytest.mark.parametrize(
    ("place", "sweep"),
    [
        ("resid_pre", "get_act_patch_resid_pre"),
        ("attn.out", "get_act_patch_attn_out"),
        ("mlp.out", "get_act_patch_mlp_out"),
        ("heads", "get_act_patch_attn_head_out_all_pos"),
    ],
)
def test_patching_sweeps(ours, theirs, cache, place, sweep):
    found = studies.patching(ours, CLEAN, OTHER, ANSWER, WRONG, place=place)
    with torch.no_grad():
        expected = getattr(patching, sweep)(theirs, torch.tensor(OTHER)[None], cache, difference)
        close(found.clean, difference(theirs(torch.tensor(CLEAN)[None])))
        close(found.corrupted, difference(theirs(torch.tensor(OTHER)[None])))
    close(found.values, expected)


def test_head_ablation(ours, theirs):
    found = studies.head_ablation(ours, CLEAN, ANSWER, WRONG)
    for layer, head in np.ndindex(L, H):

        def without(z, hook, head=head):
            z[:, :, head] = 0
            return z

        with torch.no_grad():
            hooks = [(f"blocks.{layer}.attn.hook_z", without)]
            logits = theirs.run_with_hooks(torch.tensor(CLEAN)[None], fwd_hooks=hooks)
        close(found.values[layer, head], difference(logits))


def test_direct_attribution(ours, theirs, cache):
    found = studies.direct_attribution(ours, CLEAN, ANSWER, WRONG)
    direction = theirs.W_U[:, ANSWER] - theirs.W_U[:, WRONG]

    def share(stack):
        stack = cache.apply_ln_to_stack(stack, layer=-1, pos_slice=-1)
        return stack @ (direction * theirs.ln_final.w)

    with torch.no_grad():
        heads = cache.stack_head_results(layer=-1, pos_slice=-1)  # [L H, B, C]
        close(found.heads, share(heads).reshape(L, H))
        mlps = torch.stack([cache[f"blocks.{i}.hook_mlp_out"][:, -1] for i in range(L)])
        close(found.mlp, share(mlps)[:, 0])
        close(found.embed, share(cache["blocks.0.hook_resid_pre"][None, :, -1])[0, 0])


def test_logit_lens(ours, theirs, cache):
    found = studies.logit_lens(ours, CLEAN, answer=ANSWER)
    with torch.no_grad():
        for layer in range(L):
            rows = theirs.ln_final(cache[f"blocks.{layer}.hook_resid_pre"])
            shares = theirs.unembed(rows).softmax(-1)[0].numpy()
            close(found.probabilities[layer], shares[:, ANSWER])
            close(found.top_probabilities[layer], -np.sort(-shares, axis=-1)[:, :5])


def test_induction_scores(ours, theirs):
    found = studies.induction_scores(ours, length=15, batch=2, seed=6)
    ids = repeated(np.random.default_rng(6), V, 2, 15, None)
    with torch.no_grad():
        seen = theirs.run_with_cache(torch.tensor(ids))[1]
    for layer in range(L):
        pattern = seen[f"blocks.{layer}.attn.hook_pattern"]
        stripe = pattern.diagonal(offset=1 - 15, dim1=-2, dim2=-1)[..., 1:]  # queries 15 .. 29
        close(found.induction.values[layer], stripe.mean(dim=(0, 2)))
