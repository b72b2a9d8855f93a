"""The files in export/ that TF Serving, Compose and Kubernetes read, as these want them."""

import http.server
import pathlib
import re
import shutil

import kubernetes_validate
import pytest
import yaml
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

import keras_transformer as kt
from keras_transformer.serving.server_process import ENVIRONMENT
from tests.serving.test_clients import rest
from tests.support import child_process
from tests.support.command_line import python
from tests.support.paths import EXPORT, ROOT
from tests.support.server_stand_ins import serving_http
from tests.support.toy_translator import SOURCES

ENV = dict(re.findall("^(\\w+)=(.*)$", (EXPORT / ".env").read_text(), re.MULTILINE))
VERSION = ENV["TF_SERVING_VERSION"]
METRICS = "/monitoring/prometheus/metrics"
(COMPOSED,) = yaml.safe_load((EXPORT / "docker-compose.yml").read_text())["services"].values()


def manifests(name):
    return list(yaml.safe_load_all((EXPORT / "kubernetes" / f"{name}.yaml").read_text()))


(DEPLOYMENT,), (AUTOSCALER,) = manifests("deployment"), manifests("autoscaler")
(REST, GRPC), (MONITOR,) = manifests("service"), manifests("service_monitor")
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_the_servers_version_is_in_one_place_or_that_one():
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION) and len(ENV) == 1
    paths = [ROOT / "README.md", *ROOT.glob("notebooks/*.ipynb"), *EXPORT.glob("*.*")]
    paths += [*EXPORT.glob("kubernetes/*"), *EXPORT.glob("config/*.*")]
    texts = {path: path.read_text() for path in paths}
    named = {path: set(re.findall(r"serving:(\w[\w.]*)", text)) for path, text in texts.items()}
    assert set().union(*named.values()) == {VERSION, "TF_SERVING_VERSION"}
    assert named[EXPORT / "README.md"] == {VERSION}
    assert not [path for path in paths if path.suffix[:2] == ".y" and VERSION in texts[path]]


def content(name):
    return re.sub(" *#.*", "", (EXPORT / "config" / name).read_text())  # without comments


def test_models():
    names = ["models.config", "examples/two_languages.config", "examples/canary.config"]
    kind = model_server_config_pb2.ModelServerConfig
    parsed = [text_format.Parse(content(name), kind()).model_config_list.config for name in names]
    (usual,), (one, other), (canary,) = parsed
    for model in (usual, one, other, canary):
        assert model.base_path == f"/models/{model.name}" and model.model_platform == "tensorflow"
        loaded = set(model.model_version_policy.specific.versions)
        assert set(model.version_labels.values()) <= loaded
    assert {path.name for path in EXPORT.glob("config/examples/*")} == {x[9:] for x in names[1:]}
    assert one.name != other.name and canary.name == usual.name
    assert usual.version_labels == {"stable": 1, "canary": 1}
    assert canary.version_labels == {"stable": 1, "canary": 2}
    elsewhere = [*EXPORT.glob("kubernetes/*"), *EXPORT.glob("*.y*ml"), *EXPORT.glob("config/*.txt")]
    for path in elsewhere:  # the model is named in one place
        assert usual.name not in path.read_text(), path


def test_batching():
    """A request of the clients is one batch. The names are session_bundle_config.proto's."""
    lines = filter(None, content("batching_parameters.txt").split("\n"))
    found = dict(re.fullmatch(r"(\w+) \{ value: (\w+) \}", line).groups() for line in lines)
    assert found.pop("enable_large_batch_splitting") == "true"
    size, most, *others = map(int, found.values())
    assert [*found][:2] == ["max_execution_batch_size", "max_batch_size"] and 0 < size < most
    assert [*found][2:] == ["batch_timeout_micros", "num_batch_threads", "max_enqueued_batches"]
    assert min(others) > 0
    for name in ("client_rest.py", "client_grpc.py"):
        text = " ".join((EXPORT / name).read_text().split())
        wanted = f'default={size}, help="lines in a request; config/ allows up to {most}'
        assert f'"--batch-size", type=int, {wanted}' in text


def test_monitoring():
    expected = f'prometheus_config {{ enable: true path: "{METRICS}" }}'  # monitoring_config.proto
    assert " ".join(content("monitoring.config").split()) == expected
    assert REST["metadata"]["annotations"]["prometheus.io/path"] == METRICS
    # The Prometheus Operator's own kind: see its Documentation/api-reference/api.md.
    assert f"{MONITOR['apiVersion']}/{MONITOR['kind']}" == "monitoring.coreos.com/v1/ServiceMonitor"
    (endpoint,) = MONITOR["spec"]["endpoints"]
    assert {*MONITOR["spec"]} == {"selector", "endpoints"}
    assert {*endpoint} == {"port", "path", "interval"} and endpoint["path"] == METRICS
    assert MONITOR["spec"]["selector"]["matchLabels"].items() <= REST["metadata"]["labels"].items()
    # Only one of the Services has that port, or every pod would be counted twice.
    ports = [port["name"] for service in (REST, GRPC) for port in service["spec"]["ports"]]
    assert ports.count(endpoint["port"]) == 1


@pytest.mark.parametrize("name", ["docker-compose.yml", "training-compose.yml"])
def test_compose_files_hold_by_their_schema(name):
    python("-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", EXPORT / name)


def test_compose_file_starts_the_server_of_the_manifests():
    name, _, tag = COMPOSED["image"].partition(":")
    assert CONTAINER["image"] == f"{name}:TF_SERVING_VERSION"
    assert tag.startswith("${TF_SERVING_VERSION:?")
    assert COMPOSED["command"] == CONTAINER["args"]
    environment = {variable["name"]: variable["value"] for variable in CONTAINER["env"]}
    assert COMPOSED["environment"] == environment == ENVIRONMENT
    # Directories: a single file would stay the old one when an editor replaces it.
    places = dict(volume.split(":")[1::-1] for volume in COMPOSED["volumes"])
    assert places == {"/models": "./models", "/config": "./config"}
    files = [flag.partition("=")[2] for flag in COMPOSED["command"] if "_file=" in flag]
    assert len(files) == 3
    for file in files:
        assert (EXPORT / places["/config"] / pathlib.Path(file).relative_to("/config")).is_file()


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):  # as TF Serving whose models are loaded
        self.send_response(200 if self.path == METRICS else 404)
        self.end_headers()


def test_health_check_of_the_compose_file():
    _, *command = COMPOSED["healthcheck"]["test"]  # CMD

    def healthy(url):
        here = [part.replace("8501", url.rpartition(":")[2]) for part in command]
        return not child_process.run(here, capture_output=True, timeout=10).returncode

    for handler in (Metrics, http.server.BaseHTTPRequestHandler):  # which answers 501
        with serving_http(handler) as url:
            assert healthy(url) == (handler is Metrics)
    assert not healthy(url)  # nobody listens any more


def docker_runs():
    command = ["docker", "info"]
    return shutil.which("docker") and not child_process.run(command, capture_output=True).returncode


@pytest.mark.docker
@pytest.mark.skipif(not docker_runs(), reason="there is no Docker engine on this machine")
def test_real_server(translator, tmp_path):
    """The real image with the real configuration: labels, batching, metrics, warm-up."""
    kt.export(translator, tmp_path / "models" / "dates")
    shutil.copytree(EXPORT / "config", tmp_path / "config")
    for name in ("docker-compose.yml", ".env"):
        shutil.copy(EXPORT / name, tmp_path)
    compose = ["docker", "compose", "-f", str(tmp_path / "docker-compose.yml")]
    child_process.run([*compose, "up", "--detach", "--wait"], check=True)
    try:
        client = rest.RestClient("http://localhost:8501", "dates", label="stable", timeout=10)
        assert client.translate(SOURCES) == translator.translate(SOURCES)
        assert len(client.predict({"text": SOURCES}, "beam")["text"]) == len(SOURCES)
    finally:
        child_process.run([*compose, "down"], check=True)


def test_manifests_hold_by_the_oldest_and_newest_schemas():
    versions = kubernetes_validate.utils.all_versions()[0], kubernetes_validate.latest_version()
    for manifest in (DEPLOYMENT, AUTOSCALER, REST, GRPC, *manifests("training-job")):
        for version in versions:
            kubernetes_validate.validate(manifest, version, strict=True)  # no unknown fields


def test_manifests_fit_together():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"grpc": 8500, "http": 8501}
    assert REST["metadata"]["annotations"]["prometheus.io/port"] == str(ports["http"])
    for service, name in ((REST, "http"), (GRPC, "grpc")):
        assert service["spec"]["selector"] == labels
        (port,) = service["spec"]["ports"]
        assert (port["name"], port["port"], port["targetPort"]) == (name, ports[name], name)
    assert GRPC["spec"]["clusterIP"] == "None"  # headless: DNS names every pod
    target = AUTOSCALER["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", DEPLOYMENT["metadata"]["name"])
    assert "replicas" not in DEPLOYMENT["spec"]  # the autoscaler's alone
    assert CONTAINER["readinessProbe"]["httpGet"] == {"path": METRICS, "port": "http"}
    # TF Serving does not finish requests at SIGTERM; a REST request takes up to 30 seconds.
    _, seconds = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert 30 < int(seconds) < POD["terminationGracePeriodSeconds"]


def test_kustomization_has_all_there_is():
    kustomization = yaml.safe_load((EXPORT / "kustomization.yaml").read_text())
    others = {"kubernetes/service_monitor.yaml", "kubernetes/training-job.yaml"}
    files = {f"kubernetes/{path.name}" for path in EXPORT.glob("kubernetes/*")}
    assert files == {*kustomization["resources"]} | others
    generator, versions = kustomization["configMapGenerator"]
    assert versions["envs"] == [".env"]
    files = {f"config/{path.name}" for path in EXPORT.glob("config/*") if path.is_file()}
    assert files == {*generator["files"]}
    maps = [volume["configMap"]["name"] for volume in POD["volumes"] if "configMap" in volume]
    assert maps == [generator["name"]]
