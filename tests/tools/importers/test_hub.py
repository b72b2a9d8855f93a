"""Models by their names on the Hugging Face Hub, which a server on this machine stands in for."""

import contextlib
import functools
import hashlib
import http.server
import json
import os
import sys
import threading

import pytest

from keras_transformer.runs.run import Run
from tests.support.command_line import refused, run_process
from tests.support.marian_models import FOLDER

COMMIT = "0" * 40


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the Hub does, with the files of one folder."""

    def __init__(self, folder, *arguments):
        self.folder = folder
        super().__init__(*arguments)

    def do_GET(self, body=True):
        headers, path = {"X-Repo-Commit": COMMIT}, self.path.partition("?")[0]
        if path.startswith("/api/models/owner/model/tree"):
            files = [
                {"type": "file", "path": x.name, "size": x.stat().st_size, "oid": COMMIT}
                for x in self.folder.iterdir()
            ]
            content = json.dumps(files).encode()
        elif path.startswith("/api/models/owner/model"):
            files = [{"rfilename": x.name} for x in self.folder.iterdir()]
            content = json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": files}).encode()
        elif path.startswith(f"/owner/model/resolve/{COMMIT}/"):
            content = (self.folder / path.rpartition("/")[2]).read_bytes()
            headers["ETag"] = hashlib.sha256(content).hexdigest()
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def do_HEAD(self):
        self.do_GET(body=False)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serve(folder):
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Hub, folder)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_model_is_downloaded_and_imported_by_its_name(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with serve(FOLDER / "tied") as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        result = run_process("import", "owner/model", tmp_path / "run")
    assert result.returncode == 0, result.stderr.decode()
    assert Run(tmp_path / "run").read_config().imported.source == "owner/model"
    assert not os.path.exists(tmp_path / "home" / "token")


def test_offline_it_is_one_sentence(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = run_process("import", "owner/model", tmp_path / "run")
    error = result.stderr.decode()
    assert result.returncode == 2 and "cannot be downloaded from the Hub" in error, error
    assert error.startswith("keras-transformer: ") and error.count("\n") == 1


def test_without_the_package_a_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(["import", "owner/model", tmp_path / "run"], "pip install huggingface_hub")
