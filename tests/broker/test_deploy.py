"""The files that deploy the service fit it: options, metrics, commands and paths that they name are there."""

import configparser
import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from support.command import done
from support.documents import ROOT

from tagmatch import TagMatch
from tagmatch.broker.config import read_config
from tagmatch.broker.metrics import Metrics
from tagmatch.broker.running import serving
from tagmatch.cli.app import app

DEPLOY = ROOT / "deploy"
CONFIG = "/etc/tagmatch/service.toml"
SERVE = ["serve", "--config", CONFIG]
IMAGES = [ROOT / "Dockerfile", DEPLOY / "spark" / "Dockerfile"]


def steps(step: str) -> list[str]:
    """What follows a word in the files of images, of the service first."""
    lines = [line.strip().partition(" ") for file in IMAGES for line in file.read_text().splitlines()]
    return [rest for word, _, rest in lines if word == step]


def test_the_steps_of_the_image_can_be_done():
    lines = [line.strip() for line in IMAGES[0].read_text().splitlines() if line and not line.startswith("#")]
    known = "FROM WORKDIR COPY RUN ENV USER VOLUME EXPOSE HEALTHCHECK STOPSIGNAL CMD"
    assert {line.split()[0] for line in lines} <= {*known.split()}
    runs = [line[4:] for line in lines if line.startswith("RUN ")]
    for program, *more in map(str.split, runs):
        if program == "tagmatch":
            assert more[0] in {each.callback.__name__ for each in app.registered_commands}
        else:
            assert program.startswith("/opt/tagmatch/bin/") or shutil.which(program), program
    (installed,) = re.findall(r"'\.\[([a-z,]+)\]'", "".join(runs))
    extras = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in extras for extra in installed.split(","))
    assert json.loads(steps("CMD")[0]) == ["tagmatch", *SERVE]
    options, _, program = steps("HEALTHCHECK")[0].partition("CMD ")
    assert "--start-period=" in options
    code = json.loads(program)[2]
    compile(code, "HEALTHCHECK", "exec")
    assert "/livez" in code


def test_compose():
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services, config = found["services"], read_config(DEPLOY / "container.toml")
    assert set(services) == {"tagmatch", "prometheus", "grafana"}
    for service in services.values():
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            assert source in found["volumes"] or (DEPLOY / source).exists(), volume
            assert target.startswith("/")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    for image in (*(each["image"] for each in services.values()), *(line.split()[0] for line in steps("FROM"))):
        assert re.search(r":v?\d+\.\d+\.\d+", image), f"{image} is another one tomorrow"
    ours = services["tagmatch"]
    assert ours["healthcheck"]["start_period"]
    assert f"./container.toml:{CONFIG}:ro" in ours["volumes"]
    assert ours["ports"] == [f"127.0.0.1:{config.server.port}:{config.server.port}"]
    assert int(ours["stop_grace_period"].rstrip("s")) > config.server.drain_seconds
    assert config.index.path.startswith("/var/lib/tagmatch/")
    config.check_exposure()
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"tagmatch:{config.metrics.port}"]}]
    assert steps("EXPOSE")[0].split() == [str(config.server.port), str(config.metrics.port)]


@pytest.mark.parametrize("name", ["service.toml", "container.toml"])
def test_as_they_stand_they_let_nobody_in(name):
    config = read_config(DEPLOY / name)
    assert [set(user.token_sha256) for user in config.users] == [{"0"}]
    is_container = name == "container.toml"
    assert (config.server.insecure, config.server.is_local) == (is_container, not is_container)
    assert config.metrics.host == ("0.0.0.0" if is_container else "127.0.0.1")
    assert done("serve", "--config", DEPLOY / name, "--check").endswith(": ok\n")


def test_the_dashboard_shows_metrics_that_there_are():
    panels = json.loads((DEPLOY / "grafana" / "tagmatch.json").read_text())["panels"]
    with TagMatch(threads=1, device="cpu") as index:
        known = set(re.findall(r"^# TYPE (\w+) ", Metrics(index.stats).text().decode(), re.MULTILINE))
    queries = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    used = {name.removesuffix("_bucket") for name in re.findall(r"tagmatch_\w+", queries)}
    assert used
    assert used <= known
    folder = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    (provider,) = yaml.safe_load((folder / "dashboards/tagmatch.yaml").read_text())["providers"]
    assert f"{provider['options']['path']}/tagmatch.json" in (DEPLOY / "compose.yaml").read_text()


def test_the_unit():
    found = configparser.RawConfigParser(strict=False)
    found.optionxform = str
    found.read(DEPLOY / "tagmatch.service")
    unit, config = found["Service"], read_config(DEPLOY / "service.toml")
    program, *arguments = unit["ExecStart"].split()
    assert program.endswith("/bin/tagmatch")
    assert arguments == SERVE
    assert int(unit["TimeoutStopSec"]) > config.server.drain_seconds
    assert unit["StateDirectory"] in config.index.path
    names = ("KillSignal", "StateDirectoryMode", "CacheDirectoryMode", "UMask")
    assert [unit[name] for name in names] == ["SIGTERM", "0700", "0700", "0077"]
    assert all(unit[name] for name in ("MemoryMax", "SystemCallFilter"))


@pytest.mark.slow
def test_the_example():
    """Flight alone: a process that never imports tagmatch."""
    example = ROOT / "examples" / "flight_client.py"
    with TagMatch(threads=1, device="cpu") as index, serving(index) as service:
        command = [sys.executable, str(example), service.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    put, *answers = done.stdout.splitlines()
    counts = "{'added': 2, 'already_there': 0, 'removed': 0, 'missing': 0}"
    assert put == f"put: {{'rows': 2, 'staged': 2, 'committed': True, 'changes': {counts}, 'sets': 2}}"
    assert answers == ["offer 0 -> [7, 8]", "offer 1 -> [7, 8]", "offer 2 -> [8]", "sets: 2"]
    assert "import tagmatch" not in example.read_text()
