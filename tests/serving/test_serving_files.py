"""The files in export/ that TF Serving and Compose read, as these want them."""

import contextlib
import http.server
import io
import pathlib
import re
import shutil
import sys
import threading

import pytest
import tensorflow as tf
import yaml
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.serving.saved_model import export
from keras_transformer.serving.server_process import ENVIRONMENT
from tests.serving.test_clients import load, rest
from tests.support import child_process, server_protos
from tests.support.paths import EXPORT, ROOT
from tests.support.toy_translator import SOURCES, trained_translator

ENV = dict(re.findall("^(\\w+)=(.*)$", (EXPORT / ".env").read_text(), re.MULTILINE))
VERSION = ENV["TF_SERVING_VERSION"]
CONFIGS = ["models.config", "examples/two_languages.config", "examples/canary.config"]
METRICS = "/monitoring/prometheus/metrics"
FLAGS = {
    "--model_config_file", "--model_config_file_poll_wait_seconds", "--enable_batching",
    "--allow_version_labels_for_unavailable_models", "--batching_parameters_file",
    "--monitoring_config_file", "--grpc_channel_arguments",
}  # fmt: skip


def parsed(name, message):
    """What a file in config/ says, in the server's own words."""
    return text_format.Parse((EXPORT / "config" / name).read_text(), message)


def models_of(name):
    config = parsed(name, model_server_config_pb2.ModelServerConfig())
    return list(config.model_config_list.config)


def compose_service():
    (service,) = yaml.safe_load((EXPORT / "docker-compose.yml").read_text())["services"].values()
    return service


def test_the_servers_version_is_in_one_place():
    """Where people read it as well, it is that one."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION) and len(ENV) == 1
    paths = [ROOT / "README.md", *ROOT.glob("notebooks/*.ipynb"), *EXPORT.glob("*.*")]
    paths += [*EXPORT.glob("kubernetes/*"), *EXPORT.glob("config/*.*")]
    texts = {path: path.read_text() for path in paths}
    named = {path: set(re.findall(r"serving:(\w[\w.]*)", text)) for path, text in texts.items()}
    assert set().union(*named.values()) == {VERSION, "TF_SERVING_VERSION"}
    assert named[EXPORT / "README.md"] == {VERSION}
    assert named[EXPORT / "kubernetes" / "deployment.yaml"] == {"TF_SERVING_VERSION"}
    for path, text in texts.items():
        code = path.suffix in (".yml", ".yaml")
        assert not (code and VERSION in text), path


@pytest.mark.parametrize("name", CONFIGS)
def test_models_are_the_servers_own_proto(name):
    models = models_of(name)
    assert len({model.name for model in models}) == len(models) > 0
    for model in models:
        assert model.base_path == f"/models/{model.name}"
        assert model.model_platform == "tensorflow"
        loaded = set(model.model_version_policy.specific.versions)
        assert set(model.version_labels.values()) <= loaded
    assert {path.name for path in EXPORT.glob("config/examples/*")} == {
        pathlib.Path(name).name for name in CONFIGS[1:]
    }


def test_what_the_examples_are_examples_of():
    usual, (one, other), canary = map(models_of, CONFIGS)
    assert one.name != other.name
    assert usual[0].version_labels == {"stable": 1, "canary": 1}
    assert canary[0].version_labels == {"stable": 1, "canary": 2}
    assert canary[0].name == usual[0].name


def batching_parameters():
    message = server_protos.message_class("BatchingParameters")()
    return parsed("batching_parameters.txt", message)


def test_large_requests_are_split():
    """By TensorFlow's own batch scheduler, which is TF Serving's, with the numbers of the file."""
    parameters = batching_parameters()
    limit, largest = parameters.max_batch_size.value, parameters.max_execution_batch_size.value
    assert limit > largest and not parameters.allowed_batch_sizes

    @tf.function(input_signature=[tf.TensorSpec([None])], autograph=False)
    @tf.nondifferentiable_batch_function(
        parameters.num_batch_threads.value,
        limit,
        parameters.batch_timeout_micros.value,
        allowed_batch_sizes=[*range(1, largest + 1)],  # all: nothing is filled up
        max_enqueued_batches=parameters.max_enqueued_batches.value,
        enable_large_batch_splitting=parameters.enable_large_batch_splitting.value,
    )
    def sizes_of_batches(rows):
        return tf.fill(tf.shape(rows), tf.shape(rows)[0])

    for rows in (1, largest, largest + 1, limit):
        sizes = sizes_of_batches(tf.zeros([rows])).numpy().tolist()
        assert sizes == rows // largest * largest * [largest] + rows % largest * [rows % largest]
    with pytest.raises(tf.errors.InvalidArgumentError, match="larger than maximum input batch"):
        sizes_of_batches(tf.zeros([limit + 1]))


@pytest.mark.parametrize("script", ["client_rest", "client_grpc"])
def test_size_of_the_clients_requests(script, monkeypatch, capsys):
    """It fits in a batch by default, and the help has the limit."""
    parameters, client, asked = batching_parameters(), load(script), []
    monkeypatch.setattr("sys.argv", [script, "--model", "m"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n" * 100)))
    kind = client.RestClient if script == "client_rest" else client.GrpcClient
    monkeypatch.setattr(kind, "translate", lambda self, texts: asked.append(len(texts)) or [])
    client.main()
    assert asked[0] == parameters.max_execution_batch_size.value
    monkeypatch.setattr("sys.argv", [script, "--help"])
    with pytest.raises(SystemExit):
        client.main()
    assert f"up to {parameters.max_batch_size.value}" in " ".join(capsys.readouterr().out.split())


def test_where_people_read_the_limit_it_is_that_of_the_file():
    limit = f"up to {batching_parameters().max_batch_size.value} texts"
    for page in (EXPORT / "README.md", ROOT / "docs" / "serving.md"):
        assert limit in " ".join(page.read_text(encoding="utf-8").split()), page


def test_monitoring_config():
    config = parsed("monitoring.config", server_protos.message_class("MonitoringConfig")())
    assert config.prometheus_config.enable and config.prometheus_config.path == METRICS


@pytest.mark.parametrize("name", ["docker-compose.yml", "training-compose.yml"])
def test_compose_files_hold_by_their_schema(name):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = child_process.run([*command, EXPORT / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_compose_file_mounts_what_the_server_reads():
    """Directories: a single file would stay the old one when an editor replaces it."""
    service = compose_service()
    places = dict(volume.split(":")[1::-1] for volume in service["volumes"])
    assert places == {"/models": "./models", "/config": "./config"}
    assert (EXPORT / "config").is_dir()
    files = [flag.partition("=")[2] for flag in service["command"] if "_file=" in flag]
    assert len(files) == 3
    for file in files:
        assert (EXPORT / places["/config"] / pathlib.Path(file).relative_to("/config")).is_file()


def test_compose_file_and_manifests_start_the_same_server():
    service = compose_service()
    deployment = yaml.safe_load((EXPORT / "kubernetes" / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    name, _, tag = service["image"].partition(":")
    assert container["image"] == f"{name}:TF_SERVING_VERSION"
    assert tag.startswith("${TF_SERVING_VERSION:?")
    assert service["command"] == container["args"]
    assert {flag.partition("=")[0] for flag in service["command"]} == FLAGS
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert service["environment"] == environment == ENVIRONMENT


def test_model_is_named_in_one_place():
    (model,) = models_of("models.config")
    elsewhere = ["docker-compose.yml", "kustomization.yaml", "config/monitoring.config"]
    elsewhere += ["config/batching_parameters.txt"]
    for path in [*(EXPORT / name for name in elsewhere), *EXPORT.glob("kubernetes/*")]:
        assert model.name not in path.read_text(), path


class Metrics(http.server.BaseHTTPRequestHandler):
    """Answers as TF Serving does whose models are loaded."""

    def do_GET(self):
        self.send_response(200 if self.path == METRICS else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def answering(handler):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def test_health_check_of_the_compose_file():
    _, *command = compose_service()["healthcheck"]["test"]  # CMD

    def healthy(port):
        here = [part.replace("8501", str(port)) for part in command]
        return not child_process.run(here, capture_output=True, timeout=10).returncode

    with answering(Metrics) as port:
        assert healthy(port)
    assert not healthy(port)  # nobody listens any more
    with answering(http.server.BaseHTTPRequestHandler) as port:  # 501
        assert not healthy(port)


def docker_runs():
    return (
        bool(shutil.which("docker"))
        and not child_process.run(["docker", "info"], capture_output=True).returncode
    )


@pytest.mark.docker
@pytest.mark.skipif(not docker_runs(), reason="there is no Docker engine on this machine")
def test_real_server(tmp_path):
    """The real image with the real configuration: labels, batching, metrics, warm-up."""
    export(trained_translator(), tmp_path / "models" / "dates")
    shutil.copytree(EXPORT / "config", tmp_path / "config")
    for name in ("docker-compose.yml", ".env"):
        shutil.copy(EXPORT / name, tmp_path)
    compose = ["docker", "compose", "-f", str(tmp_path / "docker-compose.yml")]
    child_process.run([*compose, "up", "--detach", "--wait"], check=True)
    try:
        client = rest.RestClient("http://localhost:8501", "dates", label="stable", timeout=10)
        found = client.translate(SOURCES)
        assert found == trained_translator().translate(SOURCES)
        reply = client.predict({"text": SOURCES}, "beam")
        assert len(reply["text"]) == len(SOURCES)
    finally:
        child_process.run([*compose, "down"], check=True)
