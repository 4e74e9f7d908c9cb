# SPDX-License-Identifier: Apache-2.0
"""Plots: Axes come back, with the tokens as labels, and nothing in a token is taken for a formula."""

import numpy as np
import pytest

import gpt2cy
from gpt2cy.inspection import plots, studies
from gpt2cy.tokenizer import ByteTokenizer

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

TEXT = "a $b$_\n^{x"


@pytest.fixture(scope="module")
def lm(build):
    return gpt2cy.LanguageModel(build(256, 36, 3, 2, 120), ByteTokenizer())


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def draw(axes):
    """The figure as pixels: labels that cannot be drawn raise here."""
    figure = np.atleast_1d(axes).ravel()[0].figure
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())


def labels(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def test_every_study_draws(lm):
    other = TEXT[:-1] + "y"
    results = [
        studies.attention_maps(lm, TEXT, layers=0, heads=1),
        studies.attention_maps(lm, TEXT, layers=1),
        studies.attention_maps(lm, TEXT),
        studies.attention_spread(lm, TEXT),
        studies.attention_spread(lm, TEXT).mean_entropy,
        studies.induction_scores(lm, length=10),
        studies.logit_lens(lm, TEXT),
        studies.residual_norms(lm, TEXT),
        studies.embedding_neighbours(lm, "$"),
        studies.direct_attribution(lm, TEXT, "a"),
        studies.direct_attribution(lm, TEXT, "a").by_head,
        studies.head_ablation(lm, TEXT, "a", "b"),
        studies.patching(lm, TEXT, other, "a", "b"),
        studies.patching(lm, TEXT, other, "a", place="heads"),
    ]
    for result in results:
        axes = result.plot()
        for one in np.atleast_1d(axes).ravel():
            assert isinstance(one, plt.Axes)
        assert len(np.unique(draw(axes))) > 10
        plt.close("all")


def test_given_axes_are_used(lm):
    figure, axes = plt.subplots(1, 3)
    maps = studies.attention_maps(lm, TEXT, layers=1)
    found = maps.plot(axes)
    assert found.shape == (1, 3)
    assert list(found[0]) == list(axes)
    one = studies.attention_maps(lm, TEXT, layers=0, heads=0).plot(axes[0])
    assert one is axes[0]
    assert plt.get_fignums() == [figure.number]
    with pytest.raises(ValueError, match="^axes: expected 3, got 1"):
        maps.plot(axes[0])


def test_tokens_are_the_labels(lm):
    axes = studies.attention_maps(lm, TEXT, layers=0, heads=0).plot()
    expected = ["a", "·", r"\$", "b", r"\$", "_", r"\n", "^", "{", "x"]
    assert labels(axes.xaxis) == labels(axes.yaxis) == expected
    image = axes.images[0].get_array()
    np.testing.assert_array_equal(image, studies.attention_maps(lm, TEXT).weights[0, 0])


def test_many_tokens_are_labelled_as_far_as_they_fit(lm):
    axes = studies.attention_maps(lm, "abcdefgh" * 15, layers=0, heads=0).plot()
    assert len(labels(axes.xaxis)) <= plots.MOST_LABELS
    draw(axes)


def test_signed_values_are_white_at_zero():
    axes = plots.heat([[0.0, 1.0], [-4.0, 0.0]], signed=True)
    image = axes.images[0]
    assert (image.norm.vmin, image.norm.vmax) == (-4, 4)
    assert min(image.cmap(image.norm(0.0))[:3]) > 0.95


def test_values_that_are_not_finite_are_left_out():
    axes = plots.heat([[np.nan, 1.0], [np.inf, 0.0]], signed=True)
    image = axes.images[0]
    assert (image.norm.vmin, image.norm.vmax) == (-1, 1)
    assert np.ma.getmaskarray(image.get_array()).tolist() == [[True, False], [True, False]]
    draw(axes)
    draw(plots.heat([[np.nan]], signed=True))


@pytest.mark.parametrize(
    ("label", "expected"),
    [(" the", "·the"), ("\n", r"\n"), ("\t", r"\t"), ("", "∅"), ("\x00", r"\x00"), ("$5", r"\$5")],
)
def test_labels_can_be_read(label, expected):
    assert plots.shown([label]) == [expected]


def test_without_matplotlib_the_message_says_what_to_install(lm, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot")
    result = studies.residual_norms(lm, TEXT)
    with pytest.raises(ImportError, match=r"pip install 'gpt2cy\[plot\]'"):
        result.plot()
