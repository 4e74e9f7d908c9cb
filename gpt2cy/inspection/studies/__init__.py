# SPDX-License-Identifier: Apache-2.0
"""Ready-made studies: each a function of a model and a text that returns arrays, and can draw them.

    attention   attention_maps, attention_spread, induction_scores      where heads look
    residual    logit_lens, residual_norms, embedding_neighbours        what the stream says and how it grows
    effects     direct_attribution, head_ablation, patching             what matters for an answer

A model is a GPT with ids, or a LanguageModel with text, whose tokens are then the labels. `plot()` of a
result needs matplotlib (the extra `plot`) and returns its Axes.
"""

from gpt2cy.inspection.studies.attention import (
    AttentionMaps,
    AttentionSpread,
    HeadPatterns,
    HeadTable,
    attention_maps,
    attention_spread,
    induction_scores,
)
from gpt2cy.inspection.studies.effects import (
    Ablation,
    Attribution,
    Patching,
    direct_attribution,
    head_ablation,
    patching,
)
from gpt2cy.inspection.studies.residual import (
    LogitLens,
    Neighbours,
    ResidualNorms,
    embedding_neighbours,
    logit_lens,
    residual_norms,
)

__all__ = [
    "Ablation",
    "AttentionMaps",
    "AttentionSpread",
    "Attribution",
    "HeadPatterns",
    "HeadTable",
    "LogitLens",
    "Neighbours",
    "Patching",
    "ResidualNorms",
    "attention_maps",
    "attention_spread",
    "direct_attribution",
    "embedding_neighbours",
    "head_ablation",
    "induction_scores",
    "logit_lens",
    "patching",
    "residual_norms",
]
