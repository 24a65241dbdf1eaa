"""The files that deploy the service fit it: options, metrics, commands and paths that they name are there."""

from __future__ import annotations

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
from typer.testing import CliRunner

from tagmatch import TagMatch
from tagmatch.broker.config import read_config
from tagmatch.broker.metrics import Metrics
from tagmatch.broker.running import serving
from tagmatch.cli.app import app

DEPLOY = ROOT / "deploy"
CONFIG = "/etc/tagmatch/service.toml"
SERVE = ["serve", "--config", CONFIG]
COMMANDS = {each.callback.__name__ for each in app.registered_commands}


def steps() -> list[tuple[str, str]]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.strip().partition(" ") for line in lines)]


def images() -> list[str]:
    """Those that others are made of."""
    files = (ROOT / "Dockerfile", DEPLOY / "spark" / "Dockerfile")
    return [line.split()[1] for file in files for line in file.read_text().splitlines() if line.startswith("FROM ")]


def test_the_steps_of_the_image_can_be_done():
    """Their commands are there, what they copy, too, and the package has the extras that they install."""
    known = {
        "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "CMD",
    }  # fmt: skip
    assert {word for word, _ in steps()} <= known
    for command in (rest for word, rest in steps() if word == "RUN"):
        program = command.split()[0]
        if program == "tagmatch":
            assert command.split()[1] in COMMANDS
        elif not program.startswith("/opt/tagmatch/bin/"):
            assert shutil.which(program), program
    (installed,) = re.findall(r"'\.\[([a-z,]+)\]'", "".join(rest for word, rest in steps() if word == "RUN"))
    extras = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in extras for extra in installed.split(","))
    (command,) = [json.loads(rest) for word, rest in steps() if word == "CMD"]
    assert command == ["tagmatch", *SERVE]
    (check,) = [rest for word, rest in steps() if word == "HEALTHCHECK"]
    options, _, program = check.partition("CMD ")
    assert "--start-period=" in options
    program = json.loads(program)
    compile(program[2], "HEALTHCHECK", "exec")
    assert "/livez" in program[2]


def test_compose():
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = found["services"]
    assert set(services) == {"tagmatch", "prometheus", "grafana"}
    for service in services.values():
        for volume in service["volumes"]:
            source, target = volume.split(":")[:2]
            assert source in found["volumes"] or (DEPLOY / source).exists(), volume
            assert target.startswith("/")
    assert services["tagmatch"]["healthcheck"]["start_period"]
    for image in (*(each["image"] for each in services.values()), *images()):
        assert re.search(r":v?\d+\.\d+\.\d+", image), f"{image} is another one tomorrow"
    assert f"./container.toml:{CONFIG}:ro" in services["tagmatch"]["volumes"]
    assert all(port.startswith("127.0.0.1:") for each in services.values() for port in each.get("ports", ()))
    config = read_config(DEPLOY / "container.toml")
    assert services["tagmatch"]["ports"] == [f"127.0.0.1:{config.server.port}:{config.server.port}"]
    assert int(services["tagmatch"]["stop_grace_period"].rstrip("s")) > config.server.drain_seconds
    assert config.index.path.startswith("/var/lib/tagmatch/")
    config.check_exposure()
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"tagmatch:{config.metrics.port}"]}]
    exposed = next(rest for word, rest in steps() if word == "EXPOSE").split()
    assert exposed == [str(config.server.port), str(config.metrics.port)]


@pytest.mark.parametrize("name", ["service.toml", "container.toml"])
def test_as_they_stand_they_let_nobody_in(name):
    config = read_config(DEPLOY / name)
    assert [set(user.token_sha256) for user in config.users] == [{"0"}]
    is_container = name == "container.toml"
    assert (config.server.insecure, config.server.is_local) == (is_container, not is_container)
    assert config.metrics.host == ("0.0.0.0" if is_container else "127.0.0.1")
    assert done("serve", "--config", DEPLOY / name, "--check").endswith(": ok\n")


def test_the_dashboard_shows_metrics_that_there_are():
    found = json.loads((DEPLOY / "grafana" / "tagmatch.json").read_text())
    with TagMatch(threads=1, device="cpu") as index:
        text = Metrics(index.stats).text().decode()
    known = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    used = set()
    for panel in found["panels"]:
        for target in panel["targets"]:
            used |= set(re.findall(r"tagmatch_\w+", target["expr"]))
    assert used
    for name in used:
        assert name in known or name.removesuffix("_bucket") in known, name
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in found["panels"]} == {source["uid"]}
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/tagmatch.yaml").read_text())["providers"]
    compose = (DEPLOY / "compose.yaml").read_text()
    assert f"{provider['options']['path']}/tagmatch.json" in compose


def test_the_unit():
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(DEPLOY / "tagmatch.service")
    program, *arguments = unit["Service"]["ExecStart"].split()
    assert program.endswith("/bin/tagmatch")
    assert arguments == SERVE
    config = read_config(DEPLOY / "service.toml")
    assert unit["Service"]["KillSignal"] == "SIGTERM"
    assert int(unit["Service"]["TimeoutStopSec"]) > config.server.drain_seconds
    assert unit["Service"]["StateDirectory"] in config.index.path
    assert unit["Service"]["StateDirectoryMode"] == unit["Service"]["CacheDirectoryMode"] == "0700"
    assert unit["Service"]["UMask"] == "0077"
    assert unit["Service"]["MemoryMax"]
    assert unit["Service"]["SystemCallFilter"]


def test_the_example():
    """Flight alone: a process that never imports tagmatch."""
    with TagMatch(threads=1, device="cpu") as index, serving(index) as service:
        command = [sys.executable, str(ROOT / "examples" / "flight_client.py"), service.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "put: {'rows': 2, 'staged': 2, 'committed': True, "
        "'changes': {'added': 2, 'already_there': 0, 'removed': 0, 'missing': 0}, 'sets': 2}",
        "offer 0 -> [7, 8]",
        "offer 1 -> [7, 8]",
        "offer 2 -> [8]",
        "sets: 2",
    ]
    assert "import tagmatch" not in (ROOT / "examples" / "flight_client.py").read_text()


def test_a_check_notes_what_may_surprise(tmp_path):
    config = tmp_path / "service.toml"
    config.write_text("")
    found = CliRunner().invoke(app, ["serve", f"{tmp_path}/no.index", "--config", str(config), "--check"])
    assert found.stdout == f"{config}: ok\n"
    assert found.stderr == (
        f"{config}: there are no users: everyone who can connect may do everything\n"
        f"{config}: there is no index at {tmp_path}/no.index: no such folder\n"
    )
    with TagMatch(tmp_path / "an.index") as tm:
        tm.consolidate()
    config.write_text(done("token", "ana"))
    assert CliRunner().invoke(app, ["serve", f"{tmp_path}/an.index", "--config", str(config), "--check"]).stderr == ""
