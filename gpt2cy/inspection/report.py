# SPDX-License-Identifier: Apache-2.0
"""look: one text through a model, as a page that needs nothing but a browser.

look(lm, text) -> Report
  surprisal     scores.html_fragment        each token's surprisal as a colour
  attention     every head's weights, a byte each, for the script of page.py to draw
  lens          studies.logit_lens          a table
  times         GPT.profile                 by layer
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from gpt2cy import _checks
from gpt2cy.inspection import page, plots, scores, studies
from gpt2cy.inspection.studies import subject

MOST_BYTES = 64 << 20  # of attention weights: more would be no page


class Report:
    """A page about one text; `look` makes it.

    Attributes
    ----------
    html : str
        The page: complete, with its data and script in it.
    n_tokens : int
        Of the text.
    """

    def __init__(self, html: str, n_tokens: int):
        self.html = html
        self.n_tokens = n_tokens

    def __repr__(self):
        return f"Report({self.n_tokens} tokens, {len(self.html):,} characters)"

    def write(self, folder) -> Path:
        """Write the page as index.html.

        Parameters
        ----------
        folder : path-like
            Made if it is not there. A page of that name is replaced at once, when the new one is complete.

        Returns
        -------
        Path
            Of the page.

        Raises
        ------
        OSError
            If it cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> from gpt2cy.inspection import Report
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Report("<p>Hello</p>", 1).write(folder).name
        'index.html'
        """
        folder = Path(folder)
        page = folder / "index.html"
        if os.path.lexists(folder) and not folder.is_dir():
            raise NotADirectoryError(f"folder: expected a folder, found something else: {folder}")
        if page.is_dir():
            raise IsADirectoryError(f"folder: expected room for a file, found a folder: {page}")
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".html")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(self.html)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, page)
        except BaseException:
            os.unlink(name)
            raise
        return page


def _umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def look(lm, text: str, *, seconds: float = 0.5) -> Report:
    """Make a page about one text: its surprisal, every head's attention, the logit lens, times by layer.

    Parameters
    ----------
    lm : LanguageModel
    text : str
        Of 2 tokens to a full block.
    seconds : float
        How long to measure times, about; as long again measures the machine.

    Returns
    -------
    Report
        `html`, `write(folder)`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, or the text has too few tokens, too many for the model, or so
        many that the heads' weights exceed 64 MiB.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import look
    >>> from gpt2cy.tokenizer import ByteTokenizer
    >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
    >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
    >>> look(lm, "To be, or not to be", seconds=0.01)
    Report(19 tokens, ... characters)
    """
    if not isinstance(text, str):
        raise TypeError(f"text: expected text (str), got {type(text).__name__}")
    _checks.real("seconds", seconds, positive=True)
    if subject.split(lm, "lm")[1] is None:
        raise TypeError("lm: expected a LanguageModel, got GPT")
    about = subject.of(lm, text, "text", 2)
    n, heads = len(about.tokens), about.model.blocks[0].attn.n_heads
    size = len(about.model.blocks) * heads * n * (n + 1) // 2
    if size > MOST_BYTES:
        raise ValueError(
            f"text: expected few enough tokens for {MOST_BYTES >> 20} MiB of attention weights, "
            f"got {n} of {size >> 20} MiB"
        )
    return Report(_page(lm, text, about, seconds), n)


def _page(lm, text, about, seconds):
    labels = [plots.readable(label) for label in about.labels]
    data = {
        "tokens": labels,
        "layers": len(about.model.blocks),
        "heads": about.model.blocks[0].attn.n_heads,
        "weights": base64.b64encode(_weights(about)).decode(),
    }
    return page.FRAME.format(
        digest=base64.b64encode(hashlib.sha256(("\n" + page.SCRIPT).encode()).digest()).decode(),
        style=page.STYLE,
        about=html.escape(f"{about.model!r}, {len(labels)} tokens."),
        surprisal=scores.html_fragment(lm.score(text, top=5)),
        lens=_lens(studies.logit_lens(lm, about.tokens, top=1), labels),
        times=_times(about.model.profile(about.tokens, seconds=seconds)),
        data=json.dumps(data).replace("<", "\\u003c"),
        script=page.SCRIPT,
    )


def _weights(about):
    """All weights as bytes: of each head the rows up to the diagonal, one after the other; 255 is 1."""
    below = np.tril_indices(len(about.tokens))

    def packed(weights):
        return np.rint(255 * weights[:, below[0], below[1]]).astype(np.uint8)

    return subject.reduced(about.model, about.tokens, "attn.weights", packed).tobytes()


def _lens(lens, labels):
    """A table: a row for the embedding and each block, a column for each token."""
    shares = lens.top_probabilities[:, :, 0]
    rows = []
    for layer, row in enumerate(shares):
        name = "embed" if layer == 0 else f"after block {layer - 1}"
        cells = []
        for position, share in enumerate(row):
            said = html.escape(plots.readable(lens.top_labels[layer][position][0]))
            at = f"after {html.escape(labels[position])}: {100 * share:.1f} %"
            style = f"background: rgb(0 90 160 / {share:.2f}); color: {'#fff' if share > 0.5 else '#111'}"
            cells.append(f'<td title="{at}" style="{style}">{said}</td>')
        rows.append(f"<tr><th>{name}</th>{''.join(cells)}</tr>")
    head = "".join(f"<th>{html.escape(label)}</th>" for label in labels)
    table = f"<thead><tr><th>after token</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<table class="lens">{table}</table>'


def _times(profile):
    layers = profile.by_layer()
    longest = max(layer.seconds for layer in layers)
    rows = [
        f"<tr><th>{html.escape(layer.work.operation)}</th><td>{1e3 * layer.seconds:.2f} ms</td>"
        f'<td style="width: 30rem"><span class="bar" style="width: {100 * layer.seconds / longest:.1f}%">'
        "</span></td></tr>"
        for layer in layers
    ]
    total = f"<tr><th>together</th><td>{1e3 * profile.seconds:.2f} ms</td><td></td></tr>"
    return f'<table class="times">{"".join(rows)}{total}</table>'
