# SPDX-License-Identifier: Apache-2.0
"""look: a page that is complete and right, lets no text become a script, and works in a browser."""

import base64
import hashlib
import html.parser
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import gpt2cy
from gpt2cy.cli import main
from gpt2cy.inspection import look, studies
from gpt2cy.tokenizer import ByteTokenizer

TEXT = 'To be: </script><img src=x onerror="alert(1)"> & "$x$\n\té{data}'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def lm(build):
    return gpt2cy.LanguageModel(build(256, 36, 3, 2, 120), ByteTokenizer())


@pytest.fixture(scope="module")
def report(lm):
    return look(lm, TEXT, seconds=0.01)


class Elements(html.parser.HTMLParser):
    """Every tag with its attributes, and what stands in it."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.found, self.texts = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self.texts.append("")

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data

    def of(self, tag):
        pairs = zip(self.found, self.texts, strict=True)
        return [(attributes, text) for (name, attributes), text in pairs if name == tag]


@pytest.fixture(scope="module")
def elements(report):
    return Elements(report.html)


def data_of(elements):
    return next(json.loads(text) for attributes, text in elements.of("script") if attributes)


def test_no_text_becomes_an_element(elements):
    tags = {tag for tag, _ in elements.found}
    assert "img" not in tags
    assert len(elements.of("script")) == 2
    for _, attributes in elements.found:
        assert not {"src", "href", "onerror", "onclick", "onload"} & attributes.keys()


def test_a_token_may_be_anything(build):
    class Hostile(ByteTokenizer):
        def decode_bytes(self, ids):
            return b"</script><script>alert(1)</script><!--<script>"

    lm = gpt2cy.LanguageModel(build(256, 36, 3, 2, 120), Hostile())
    elements = Elements(look(lm, "ab", seconds=0.01).html)
    assert len(elements.of("script")) == 2
    assert data_of(elements)["tokens"] == ["</script><script>alert(1)</script><!--<script>"] * 2


def test_nothing_is_loaded_and_only_its_own_script_runs(report, elements):
    policy = next(text["content"] for text, _ in elements.of("meta") if "http-equiv" in text)
    script = re.search("<script>(.*?)</script>", report.html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert re.findall(r"https?://|url\(|@import", report.html) == []


def test_the_weights_are_all_there(lm, elements):
    data = data_of(elements)
    n = len(TEXT.encode())
    assert (data["layers"], data["heads"], len(data["tokens"])) == (2, 3, n)
    assert data["tokens"][2:4] == ["·", "b"]
    packed = np.frombuffer(base64.b64decode(data["weights"]), np.uint8)
    shares = np.zeros((2, 3, n, n))
    shares[:, :, *np.tril_indices(n)] = packed.reshape(2, 3, -1) / 255
    np.testing.assert_allclose(shares, studies.attention_maps(lm, TEXT).weights, atol=0.5 / 255 + 1e-6)


def test_the_lens_is_that_of_the_study(lm, elements):
    lens = studies.logit_lens(lm, TEXT, top=1)
    cells = [attributes["title"] for attributes, _ in elements.of("td") if "title" in attributes]
    assert len(cells) == 3 * len(TEXT.encode())
    shares = [float(cell.rpartition(": ")[2].removesuffix(" %")) for cell in cells]
    np.testing.assert_allclose(shares, 100 * lens.top_probabilities[:, :, 0].ravel(), atol=0.051)


def test_times_and_surprisal_are_there(report):
    for name in ("embed", "h.0", "h.1", "lm_head", "together"):
        assert f"<th>{name}</th>" in report.html
    assert "gpt2cy-score" in report.html


def test_it_is_written_at_once(report, tmp_path):
    folder = tmp_path / "a" / "b"
    page = report.write(folder)
    assert page == folder / "index.html"
    assert page.read_text(encoding="utf-8") == report.html
    report.write(str(folder))
    assert [path.name for path in folder.iterdir()] == ["index.html"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="^folder: expected a folder, found something else: .*file$"):
        report.write(tmp_path / "file")
    with pytest.raises(OSError):
        report.write(tmp_path / "file" / "below")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(OSError, match="^folder: expected a folder, found something else: .*link$"):
        report.write(tmp_path / "link")
    (tmp_path / "taken" / "index.html").mkdir(parents=True)
    with pytest.raises(OSError, match=r"^folder: expected room for a file, .*index\.html$"):
        report.write(tmp_path / "taken")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["index.html"]


def test_bad_input_is_named(lm):
    with pytest.raises(TypeError, match="^text: expected text"):
        look(lm, [1, 2])
    with pytest.raises(TypeError, match="^lm: expected a LanguageModel, got GPT"):
        look(lm.model, "text")
    for wrong in ("gpt2", None):
        with pytest.raises(TypeError, match="^lm: expected a LanguageModel, got (str|NoneType)$"):
            look(wrong, "text")
    for text in ("", "a", "a" * 121):
        with pytest.raises(ValueError, match="^text: "):
            look(lm, text)
    with pytest.raises(ValueError, match="^seconds: "):
        look(lm, "text", seconds=0)


def test_a_page_that_would_be_too_large_is_refused(lm, monkeypatch):
    monkeypatch.setattr("gpt2cy.inspection.report.MOST_BYTES", 1 << 10)
    with pytest.raises(ValueError, match="^text: expected few enough tokens"):
        look(lm, "a" * 30)


def test_the_command(tmp_path, capsys):
    config = gpt2cy.GPTConfig(256, 36, 3, 2, 120)
    gpt2cy.GPT(config, seed=0).save_pretrained(tmp_path / "model")
    out = tmp_path / "page"
    assert main(["look", str(tmp_path / "model"), "To be", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out / 'index.html'}: 5 tokens, ")
    assert main(["look", str(tmp_path / "model"), "To be", "--out", str(out), "--json"]) == 0
    size = (out / "index.html").stat().st_size
    said = json.loads(capsys.readouterr().out)
    assert said == {"page": str(out / "index.html"), "tokens": 5, "bytes": size}
    assert main(["look", str(tmp_path / "model"), "a", "--out", str(out)]) == 2
    assert "text: expected at least 2 tokens" in capsys.readouterr().err
    assert main(["look", str(tmp_path / "none"), "To be", "--out", str(out)]) == 2


# ---- in a browser


@pytest.fixture(scope="module")
def browser(report, tmp_path_factory):
    """Open the page with a hash, and return what stands in it when its script has run."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    folder = tmp_path_factory.mktemp("page")

    def opened(state, report=report):
        page = report.write(folder)
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"]
        command += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"{page.as_uri()}#{state}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return Elements(done.stdout)

    return opened


def tokens_of(elements):
    """Of the viewer's tokens, the shares that they show, and which are marked as chosen."""
    spans = [attributes for attributes, _ in elements.of("span") if "tabindex" in attributes]
    shares = [float(attributes["title"].removesuffix(" %")) for attributes in spans]
    return shares, [i for i, attributes in enumerate(spans) if "chosen" in attributes.get("class", "")]


@pytest.mark.parametrize(("layer", "head", "token"), [(0, 0, 5), (1, 2, 40)])
def test_the_viewer_shows_where_a_token_looks(lm, browser, layer, head, token):
    elements = browser(f"layer={layer}&head={head}&token={token}")
    shares, chosen = tokens_of(elements)
    weights = studies.attention_maps(lm, TEXT).weights[layer, head, token]
    np.testing.assert_allclose(shares, 100 * weights, atol=0.3)
    assert chosen == [token]
    buttons = {attributes["title"]: attributes["aria-pressed"] for attributes, _ in elements.of("button")}
    pressed = [title for title, state in buttons.items() if state == "true"]
    assert pressed == [f"layer {layer}, head {head}"]
    assert len(elements.of("canvas")) == 6
    assert "img" not in {tag for tag, _ in elements.found}


def test_the_viewer_shows_who_looks_at_a_token(lm, browser):
    shares, _ = tokens_of(browser("layer=1&head=1&token=7&direction=from"))
    np.testing.assert_allclose(shares, 100 * studies.attention_maps(lm, TEXT).weights[1, 1, :, 7], atol=0.3)


@pytest.mark.parametrize("text", ["ab", "\n\r\n\t\x00\x1b[1m", "👩‍👧 e\u0301 \u202ertl\u2028", "x" * 120])
def test_other_texts_in_a_browser(lm, browser, text):
    page = look(lm, text, seconds=0.01)
    elements = browser("token=1", page)
    shares, chosen = tokens_of(elements)
    assert (len(shares), chosen) == (len(text.encode()), [1])
    weights = studies.attention_maps(lm, text).weights[0, 0, 1]
    np.testing.assert_allclose(shares, 100 * weights, atol=0.3)


@pytest.mark.parametrize("state", ["layer=99&head=-1&token=x", "layer=<script>&token=1e9", "token=-3"])
def test_a_strange_address_is_harmless(browser, state):
    assert len(tokens_of(browser(state))[1]) == 1
