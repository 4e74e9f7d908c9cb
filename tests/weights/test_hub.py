# SPDX-License-Identifier: Apache-2.0
"""Ids on the hub: the real client, a small server on loopback that speaks as it does, a prepared cache."""

import hashlib
import http.server
import importlib
import json
import os
import sys
import threading
from pathlib import Path

import makers
import pytest
from makers import CONFIG

import gpt2cy
from gpt2cy import cli
from gpt2cy.weights import hub

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves /OWNER/NAME/resolve/REVISION/FILE from a folder."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def log_message(self, *args):
        pass

    def answer(self, body):
        server = self.server
        if "/resolve/" not in self.path:  # what else a client may want to know
            return self.refuse(404, "EntryNotFound")
        server.asked.append((self.command, self.path, self.headers.get("authorization")))
        _, owner, name, *rest = self.path.split("?")[0].split("/", 4)
        if f"{owner}/{name}" != "someone/tiny":
            return self.refuse(404, "RepoNotFound")
        if server.token and self.headers.get("authorization") != f"Bearer {server.token}":
            return self.refuse(401, "GatedRepo")
        revision, _, file = rest[-1].partition("/")
        if revision not in ("main", "v1", COMMIT):
            return self.refuse(404, "RevisionNotFound")
        path = server.folder / file
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def served(tmp_path, tensors, monkeypatch):
    """The server; its folder has the model."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.folder, server.asked, server.token = tmp_path / "served", [], None
    makers.folder(server.folder, tensors)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    for name in [name for name in sys.modules if name.split(".")[0] == "huggingface_hub"]:
        monkeypatch.delitem(sys.modules, name)  # the client reads its environment when it is imported
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    server.errors = importlib.import_module("huggingface_hub.errors")
    monkeypatch.chdir(tmp_path)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def files_asked(server):
    return {path.rpartition("/")[2] for command, path, _ in server.asked if command == "GET"}


def test_an_id(served, tensors, gives, tmp_path):
    (served.folder / "vocab.json").write_text("{}")
    (served.folder / "tf_model.h5").write_text("large")
    gives("someone/tiny", CONFIG, tensors)
    assert files_asked(served) >= {"config.json", "model.safetensors", "vocab.json"}
    assert not any("tf_model" in path or "pytorch_model" in path for _, path, _ in served.asked)
    with gpt2cy.weights.open_checkpoint("someone/tiny") as checkpoint:
        assert (checkpoint.folder / "vocab.json").exists()
        assert checkpoint.folder.is_relative_to(tmp_path / "home" / "hub")


def test_what_is_in_the_cache_is_not_fetched_again(served, tensors, gives):
    gives("someone/tiny", CONFIG, tensors)
    served.asked.clear()
    gives("someone/tiny", CONFIG, tensors)
    assert files_asked(served) == set()
    served.asked.clear()
    gives("someone/tiny", CONFIG, tensors, local_files_only=True)
    assert served.asked == []


def test_a_prepared_cache_and_no_network(served, tensors, gives, tmp_path):
    snapshot = tmp_path / "mine" / "models--someone--tiny" / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    makers.sharded(snapshot, tensors)
    (tmp_path / "mine" / "models--someone--tiny" / "refs").mkdir()
    (tmp_path / "mine" / "models--someone--tiny" / "refs" / "main").write_text(COMMIT)
    gives("someone/tiny", CONFIG, tensors, local_files_only=True, cache_dir=tmp_path / "mine")
    gives(
        "someone/tiny", CONFIG, tensors, local_files_only=True, cache_dir=tmp_path / "mine", revision=COMMIT
    )
    assert served.asked == []


def test_nothing_in_the_cache(served):
    with pytest.raises(served.errors.LocalEntryNotFoundError) as caught:
        gpt2cy.GPT.from_pretrained("someone/tiny", local_files_only=True)
    assert isinstance(caught.value, OSError)
    assert served.asked == []


def test_revisions(served, tensors, gives):
    gives("someone/tiny", CONFIG, tensors, revision="v1")
    assert any("/resolve/v1/" in path for _, path, _ in served.asked)
    with pytest.raises(served.errors.RevisionNotFoundError):
        gpt2cy.GPT.from_pretrained("someone/tiny", revision="v2")


def test_tokens(served, tensors, gives):
    served.token = "hf_secret"
    with pytest.raises(OSError):
        gpt2cy.GPT.from_pretrained("someone/tiny")
    gives("someone/tiny", CONFIG, tensors, token="hf_secret")


def test_an_unknown_id(served, capsys):
    for source in ("someone/else", "gpt3"):
        with pytest.raises(OSError) as caught:
            gpt2cy.GPT.from_pretrained(source)
        assert source in str(caught.value)
        taken = f"there is no file or folder {source!r}: it was taken for an id of the hub"
        assert caught.value.__notes__ == [taken]
        assert cli.main(["info", source]) == 2
        assert capsys.readouterr().err.endswith(f" ({taken})\n")


def test_shards(served, tensors, gives, tmp_path):
    makers.sharded(served.folder, makers.prefixed(tensors))
    gives("someone/tiny", CONFIG, tensors)
    assert sum("-of-00002" in name for name in files_asked(served)) == 2


@pytest.mark.parametrize("write", [makers.torch_zip, makers.torch_old])
def test_pytorch_where_there_is_no_safetensors(served, tensors, gives, write):
    (served.folder / "model.safetensors").unlink()
    write(served.folder / "pytorch_model.bin", tensors)
    gives("someone/tiny", CONFIG, tensors)


def test_a_folder_of_that_name_goes_first(served, tensors, gives, tmp_path):
    (tmp_path / "someone").mkdir()
    makers.folder(tmp_path / "someone" / "tiny", tensors)
    gives("someone/tiny", CONFIG, tensors)
    assert served.asked == []


def test_an_index_from_the_hub_fetches_nothing_outside(served, tensors):
    index = makers.sharded(served.folder, tensors)
    index["weight_map"]["wpe.weight"] = "../../../etc/passwd"
    (served.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="weight_map: wpe.weight: expected the name of a file beside it"):
        gpt2cy.GPT.from_pretrained("someone/tiny")
    assert not any("passwd" in path for _, path, _ in served.asked)


def test_offline_by_the_environment(served, tmp_path, python):
    """HF_HUB_OFFLINE, HF_ENDPOINT and HF_HOME as the client reads them, in a process of its own."""
    code = "import gpt2cy; print(gpt2cy.GPT.from_pretrained('someone/tiny').config.vocab_size)"
    assert python(code).split() == ["61"]
    assert list((tmp_path / "home" / "hub").glob("models--someone--tiny"))
    served.asked.clear()
    assert python(code, HF_HUB_OFFLINE="1").split() == ["61"]
    assert served.asked == []


def test_without_the_client(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"no file or folder 'someone/tiny'.*pip install 'gpt2cy\[hub\]'"):
        gpt2cy.GPT.from_pretrained("someone/tiny")


def test_only_ids_reach_the_hub(monkeypatch, tmp_path):
    monkeypatch.setattr(hub, "fetch", lambda *args, **options: pytest.fail("asked the hub"))
    for source in (
        "./someone/tiny",
        "/someone/tiny",
        "a/b/c",
        "someone/tiny/",
        "../tiny",
        "some one",
        Path("a/b"),
    ):
        with pytest.raises(FileNotFoundError):
            gpt2cy.GPT.from_pretrained(source)
