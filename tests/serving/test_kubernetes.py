"""The manifests in export/: each by Kubernetes' schemas, together as Kustomize joins them."""

import re
import shutil

import kubernetes_validate
import pytest
import yaml

from tests.serving.test_serving_files import METRICS, VERSION
from tests.support import child_process
from tests.support.paths import EXPORT

# The oldest that Kubernetes' schemas come for, and the newest.
VERSIONS = [kubernetes_validate.utils.all_versions()[0], kubernetes_validate.latest_version()]
# Of a ServiceMonitor, which is the Prometheus Operator's own kind: what of its fields we may use.
# From prometheus-operator, Documentation/api-reference/api.md.
MONITOR = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str, "labels": {"app": str}},
    "spec": {
        "selector": {"matchLabels": {"app": str}},
        "endpoints": [{"port": str, "path": str, "interval": str, "scheme": str}],
    },
}


def manifests(name):
    return list(yaml.safe_load_all((EXPORT / "kubernetes" / f"{name}.yaml").read_text()))


(DEPLOYMENT,), (AUTOSCALER,) = manifests("deployment"), manifests("autoscaler")
REST, GRPC = manifests("service")
TRAINING = manifests("training-job")
(SERVICE_MONITOR,) = manifests("service_monitor")
KUSTOMIZATION = yaml.safe_load((EXPORT / "kustomization.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", [DEPLOYMENT, AUTOSCALER, REST, GRPC, *TRAINING])
def test_manifests_hold_by_their_schemas(manifest, version):
    kubernetes_validate.validate(manifest, version, strict=True)  # unknown fields are errors


def check_fields(found, allowed):
    """That there is nothing but what a table allows."""
    if isinstance(allowed, dict):
        assert found.keys() <= allowed.keys()
        for key, value in found.items():
            check_fields(value, allowed[key])
    elif isinstance(allowed, list):
        for value in found:
            check_fields(value, allowed[0])
    else:
        assert isinstance(found, allowed)


def test_service_monitor():
    check_fields(SERVICE_MONITOR, MONITOR)
    assert SERVICE_MONITOR["apiVersion"] == "monitoring.coreos.com/v1"
    assert SERVICE_MONITOR["kind"] == "ServiceMonitor"
    (endpoint,) = SERVICE_MONITOR["spec"]["endpoints"]
    assert endpoint["path"] == METRICS and re.fullmatch(r"\d+s", endpoint["interval"])
    chosen = SERVICE_MONITOR["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= REST["metadata"]["labels"].items()
    # Only one of the Services has that port, or every pod would be counted twice.
    ports = [port["name"] for service in (REST, GRPC) for port in service["spec"]["ports"]]
    assert ports.count(endpoint["port"]) == 1


def test_manifests_fit_together():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"grpc": 8500, "http": 8501}
    for service, name in ((REST, "http"), (GRPC, "grpc")):
        assert service["spec"]["selector"] == labels
        (port,) = service["spec"]["ports"]
        assert (port["name"], port["port"], port["targetPort"]) == (name, ports[name], name)
    assert GRPC["spec"]["clusterIP"] == "None"  # headless: DNS names every pod
    annotations = REST["metadata"]["annotations"]
    assert annotations["prometheus.io/path"] == METRICS
    assert annotations["prometheus.io/port"] == str(ports["http"])
    target = AUTOSCALER["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", DEPLOYMENT["metadata"]["name"])
    assert "replicas" not in DEPLOYMENT["spec"]  # the autoscaler's alone


def test_probes():
    startup, readiness = CONTAINER["startupProbe"], CONTAINER["readinessProbe"]
    assert startup["httpGet"] == readiness["httpGet"] == {"path": METRICS, "port": "http"}
    # A server tries to load a model six times, a minute apart, before it gives up.
    assert startup["periodSeconds"] * startup["failureThreshold"] > 5 * 60
    assert CONTAINER["livenessProbe"]["tcpSocket"] == {"port": "grpc"}


def test_a_pod_answers_longer_than_a_request_takes():
    """TF Serving does not finish requests at SIGTERM; a REST request takes up to 30 seconds."""
    command, seconds = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert 30 + 5 < int(seconds) < POD["terminationGracePeriodSeconds"]


def test_kustomization_has_all_there_is():
    assert {f"kubernetes/{path.name}" for path in EXPORT.glob("kubernetes/*")} == {
        *KUSTOMIZATION["resources"],
        "kubernetes/service_monitor.yaml",
        "kubernetes/training-job.yaml",  # nothing that a server needs
    }
    generator, versions = KUSTOMIZATION["configMapGenerator"]
    assert versions["envs"] == [".env"]
    assert {EXPORT / name for name in generator["files"]} == {
        path for path in EXPORT.glob("config/*") if path.is_file()
    }
    maps = [volume["configMap"]["name"] for volume in POD["volumes"] if "configMap" in volume]
    assert maps == [generator["name"]]


def rendered(folder):
    done = child_process.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(done.stdout)}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl on this machine")
def test_another_configuration_starts_other_pods(tmp_path):
    """The map's name changes with its content, and the pods' template with that name."""
    shutil.copytree(EXPORT, tmp_path, ignore=shutil.ignore_patterns("models"), dirs_exist_ok=True)
    kustomization = tmp_path / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("# - kubernetes", "- kubernetes"))
    shutil.copy(tmp_path / "config/examples/canary.config", tmp_path / "config/models.config")
    before, after = rendered(EXPORT), rendered(tmp_path)
    for kinds, folder in ((before, EXPORT), (after, tmp_path)):
        for name, content in kinds["ConfigMap"]["data"].items():
            assert content == (folder / "config" / name).read_text()
        (volume,) = [
            volume["configMap"]["name"]
            for volume in kinds["Deployment"]["spec"]["template"]["spec"]["volumes"]
            if "configMap" in volume
        ]
        assert volume == kinds["ConfigMap"]["metadata"]["name"]
        (container,) = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
        assert container["image"] == f"tensorflow/serving:{VERSION}"
    assert before["ConfigMap"]["metadata"]["name"] != after["ConfigMap"]["metadata"]["name"]
    assert after.keys() - before.keys() == {"ServiceMonitor"}
