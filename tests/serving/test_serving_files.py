"""The files in export/: as the programs that read them want them."""

import re
import shutil
import subprocess
import time

import pytest
import yaml
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from keras_transformer.serving.acceptance.server_process import ENVIRONMENT
from keras_transformer.serving.saved_model import export
from tests.serving.test_clients import rest
from tests.support.paths import EXPORT
from tests.support.toy_translator import SOURCES, trained_translator

IMAGE = "tensorflow/serving:2.20.0"
# Of tensorflow_serving's protos that have no Python package: every field, from their sources.
BATCHING = {
    "max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads",
    "allowed_batch_sizes",
}  # fmt: skip
FLAGS = {
    "--model_config_file", "--model_config_file_poll_wait_seconds", "--enable_batching",
    "--allow_version_labels_for_unavailable_models", "--batching_parameters_file",
    "--monitoring_config_file",
}  # fmt: skip


def read(name):
    return (EXPORT / name).read_text()


def without_comments(name):
    return re.sub("#.*", "", read(name))


def model_config():
    config = model_server_config_pb2.ModelServerConfig()
    text_format.Parse(read("models.config"), config)
    return config.model_config_list.config[0]


def test_models_config_is_the_servers_own_proto():
    model = model_config()
    assert (model.name, model.base_path) == ("dates", "/models/dates")
    assert model.model_platform == "tensorflow"
    loaded = set(model.model_version_policy.specific.versions)
    assert set(model.version_labels) == {"stable", "canary"}
    assert set(model.version_labels.values()) <= loaded


def test_batching_parameters():
    content = without_comments("batching_parameters.txt")
    wrapped = dict(re.findall(r"(\w+) \{ value: (\d+) \}", content))
    sizes = [int(size) for size in re.findall(r"allowed_batch_sizes: (\d+)", content)]
    assert set(re.findall("[a-z_]+", content)) - {"value"} == BATCHING
    # allowed_batch_sizes grow, and the last one has to be the largest batch.
    assert sizes == sorted(sizes) and sizes[-1] == int(wrapped["max_batch_size"])


def test_monitoring_config():
    content = without_comments("monitoring.config")
    assert re.findall("[a-z_]+(?=:| {)", content) == ["prometheus_config", "enable", "path"]
    (path,) = re.findall('path: "(.*)"', content)
    annotations = manifest("service")["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == path


def manifest(name):
    return yaml.safe_load(read(f"kubernetes/{name}.yaml"))


def test_compose_file_and_manifests_start_the_same_server():
    (service,) = yaml.safe_load(read("docker-compose.yml"))["services"].values()
    (container,) = manifest("deployment")["spec"]["template"]["spec"]["containers"]
    assert service["image"] == container["image"] == IMAGE
    assert service["command"] == container["args"]
    assert {flag.partition("=")[0] for flag in service["command"]} == FLAGS
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert service["environment"] == environment == ENVIRONMENT
    mounted = [volume.split(":")[1] for volume in service["volumes"]]
    for flag in service["command"]:
        name = flag.partition("=")[2]
        assert not name.startswith("/") or name in mounted
    for volume in service["volumes"]:
        assert (EXPORT / volume.split(":")[0]).exists() or volume.startswith("./models:")
    assert f"/v1/models/{model_config().name} " in " ".join(service["healthcheck"]["test"])


def test_manifests_fit_together():
    deployment, service, scaler = map(manifest, ("deployment", "service", "autoscaler"))
    assert [x["kind"] for x in (deployment, service, scaler)] == [
        "Deployment",
        "Service",
        "HorizontalPodAutoscaler",
    ]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": 8500, "http": 8501}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == set(ports)
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    probe = container["readinessProbe"]["httpGet"]
    assert probe["path"].startswith(f"/v1/models/{model_config().name}")


def docker_runs():
    return (
        bool(shutil.which("docker"))
        and not subprocess.run(["docker", "info"], capture_output=True).returncode
    )


@pytest.mark.docker
@pytest.mark.skipif(not docker_runs(), reason="there is no Docker engine on this machine")
def test_real_server(tmp_path):
    """The real image with the real configuration: labels, batching, metrics, warm-up."""
    export(trained_translator(), tmp_path / "models" / "dates")
    for name in ("models.config", "batching_parameters.txt", "monitoring.config"):
        shutil.copy(EXPORT / name, tmp_path)
    shutil.copy(EXPORT / "docker-compose.yml", tmp_path)
    compose = ["docker", "compose", "-f", str(tmp_path / "docker-compose.yml")]
    subprocess.run([*compose, "up", "--detach"], check=True)
    try:
        client = rest.RestClient("http://localhost:8501", "dates", label="stable", timeout=10)
        for _ in range(60):
            try:
                found = client.translate(SOURCES)
                break
            except rest.ClientError:
                time.sleep(1)
        assert found == trained_translator().translate(SOURCES)
        reply = client.predict({"text": SOURCES}, "beam")
        assert len(reply["text"]) == len(SOURCES)
    finally:
        subprocess.run([*compose, "down"], check=True)
