"""The examples that deploy replicas: they can be parsed, fit together, and name what there is."""

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from support.documents import ROOT

from tagmatch.broker.config import Config
from tagmatch.broker.config_file import read_config
from tagmatch.broker.observe import Metrics

DEPLOY = ROOT / "deploy"
OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def of_kind(kind):
    return {each["metadata"]["name"]: each for each in OBJECTS if each["kind"] == kind}


def the_config(tmp_path: Path, name: str) -> Config:
    path = tmp_path / name
    users = (DEPLOY / "replica.toml").read_text().partition("[[users]]")
    path.write_text(of_kind("ConfigMap")["tagmatch"]["data"][name] + "".join(users[1:]))
    return read_config(path)


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_objects_of_kubernetes_are_what_it_takes(version):
    for each in OBJECTS:
        kubernetes_validate.validate(each, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError, match="maxReplica"):
        kubernetes_validate.validate(OBJECTS[-1] | {"spec": {"maxReplica": 1}}, version, strict=True)


def test_objects_of_kubernetes_fit_together(tmp_path):
    assert [each["kind"] for each in OBJECTS] == [
        *("ConfigMap", "Service", "StatefulSet", "Service", "Deployment", "PodDisruptionBudget"),
        "HorizontalPodAutoscaler",
    ]
    writer, replicas = of_kind("StatefulSet")["tagmatch-writer"], of_kind("Deployment")["tagmatch"]
    assert writer["spec"]["replicas"] == 1
    assert writer["spec"]["serviceName"] in of_kind("Service")
    for each in (writer, replicas):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"] == labels
        assert of_kind("Service")[each["metadata"]["name"]]["spec"]["selector"] == labels
    wanted = of_kind("PodDisruptionBudget")["tagmatch"]["spec"]
    assert wanted["selector"]["matchLabels"] == replicas["spec"]["template"]["metadata"]["labels"]
    assert wanted["minAvailable"] < replicas["spec"]["replicas"]
    scaled = of_kind("HorizontalPodAutoscaler")["tagmatch"]["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("Deployment", replicas["metadata"]["name"])
    changing, following = the_config(tmp_path, "writer.toml").index, the_config(tmp_path, "replica.toml").index
    assert (changing.copy_to, following.follow) == (following.path, True)
    assert following.writer == f"grpc://{writer['metadata']['name']}:8815"


@pytest.mark.parametrize("pod", [of_kind("StatefulSet")["tagmatch-writer"], of_kind("Deployment")["tagmatch"]])
def test_pods(pod, tmp_path):
    spec = pod["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: each["path"] for name, each in probes.items()} == {
        "startup": "/livez", "liveness": "/livez", "readiness": "/readyz",
    }  # fmt: skip
    assert {each["port"] for each in probes.values()} == {"metrics"}
    name = re.search(r"/etc/tagmatch/(\w+\.toml)", container["command"][-1])[1]
    config = the_config(tmp_path, name)
    config.check_exposure()
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"grpc": config.server.port, "http": config.server.port + 1, "metrics": config.metrics.port}
    assert config.server.drain_seconds < spec["terminationGracePeriodSeconds"]
    claimed = (each["metadata"]["name"] for each in pod["spec"].get("volumeClaimTemplates", ()))
    volumes = {*claimed, *(each["name"] for each in spec["volumes"])}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    user = re.search(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())[1]
    assert spec["securityContext"]["runAsUser"] == int(user)


def test_it_is_scaled_by_a_metric_that_there_is():
    (metric,) = of_kind("HorizontalPodAutoscaler")["tagmatch"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    stats = dict.fromkeys(("sets", "keys", "staged", "index_bytes"), 0) | {"channels": {}, "number": 1, "lag": None}
    limits = dict.fromkeys(("connections", "calls", "bytes", "in_flight", "queued"), 0)
    metrics = Metrics(lambda: stats, lambda: limits, dict)
    assert f"\n{name} 0.0\n" in metrics.text().decode()


def test_the_image_has_kernels_compiled():
    """So that a new replica compiles nothing before it is ready."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert any(line.startswith('RUN tagmatch warmup --export "$XDG_CACHE_HOME"') for line in lines)
    assert any("XDG_CACHE_HOME=/opt/cache" in line for line in lines if line.startswith("ENV "))
    images = {pod["spec"]["template"]["spec"]["containers"][0]["image"] for kind in ("StatefulSet", "Deployment")
              for pod in of_kind(kind).values()}  # fmt: skip
    assert images == {yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["tagmatch"]["image"]}


def test_the_compose_file():
    found = yaml.safe_load((DEPLOY / "replicas.compose.yaml").read_text())
    services = found["services"]
    followers = [each for name, each in services.items() if name.startswith("replica-")]
    assert (len(followers), "writer" in services) == (2, True)
    mounted = [each for service in services.values() for each in service["volumes"]]
    for source in {each.partition(":")[0] for each in mounted}:
        assert source in found["volumes"] or (DEPLOY / source).is_file(), source
    writer, replica = read_config(DEPLOY / "container.toml"), read_config(DEPLOY / "replica.toml")
    assert (replica.index.follow, replica.index.path) == (True, writer.index.path)
    assert all("index:/var/lib/tagmatch:ro" in each["volumes"] for each in followers)
    balanced = (DEPLOY / "haproxy.cfg").read_text()
    assert re.findall(r" server (\S+) (\S+):(\d+)", balanced) == [
        (name, name, str(replica.server.port + more))
        for more in (1, 0)
        for name in services
        if name.startswith("replica-")
    ]
    assert sorted(re.findall(r"bind :(\d+)", balanced)) == [
        each.rpartition(":")[2] for each in services["balancer"]["ports"]
    ]
    assert f"check port {replica.metrics.port}" in balanced
    assert "httpchk GET /readyz" in balanced
    (port,) = services["writer"]["ports"]
    assert replica.index.writer == f"port {port.split(':')[1]}"
