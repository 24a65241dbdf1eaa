"""Files that a configuration, `connect` or the command names, and those that deploy the service."""

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.certificates import Authority
from support.command import done, tagmatch
from support.documents import ROOT
from support.service import written
from typer.testing import CliRunner

from tagmatch import ConfigError, InvalidTypeError, InvalidValueError, TagMatch, connect
from tagmatch.broker.access import UserLimits
from tagmatch.broker.config import ServerOptions, User
from tagmatch.broker.config_file import check_files, read_config, token_sha256
from tagmatch.broker.observe import Metrics
from tagmatch.broker.service import serving
from tagmatch.cli.app import app
from tagmatch.model.storage.format import MANIFEST

OURS = Authority("ours")
A, B = OURS.certificate("a"), OURS.certificate("b")
FILES = {
    "a.pem": A.cert, "a.key": A.key, "b.key": B.key, "ca.pem": OURS.cert, "empty": b"", "text": b"no PEM",
    "cut.pem": A.cert[: len(A.cert) // 2], "password": b"secret", "latin": b"\xe9\n",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def pair(cert: str, key: str) -> str:
    return f'[server]\ntls_cert = "{cert}"\ntls_key = "{key}"\n'


GATEWAY = '[[mqtt]]\nmessages = "in"\n'
PASSWORD = f'{GATEWAY}username = "u"\npassword_file = '
WRONG = [
    (pair("a.pem", "b.key"), "3: tls_key {0}/b.key does not belong to the certificate in tls_cert {0}"),
    (pair("a.pem", "a.pem"), "3: tls_key {0}/a.pem holds no key as PEM"),
    (pair("a.pem", "missing"), "3: tls_key {0}/missing: cannot be read: No such file or directory"),
    (pair("a.key", "a.key"), "2: tls_cert {0}/a.key holds no certificate"),
    (pair("cut.pem", "a.key"), "2: tls_cert {0}/cut.pem holds no certificate"),
    (pair(".", "a.key"), "2: tls_cert {0}: cannot be read: Is a directory"),
    (pair("a.pem", "a.key") + 'client_ca = "text"', "4: client_ca {0}/text holds no certificate as PEM"),
    (f'{GATEWAY}tls = true\ntls_ca = "empty"', "4: tls_ca {0}/empty holds no certificate as PEM"),
    (f'{PASSWORD}"."', "4: password_file {0}: cannot be read: Is a directory"),
    (f'{PASSWORD}"latin"', "4: password_file {0}/latin: cannot be read: it is no UTF-8"),
    (f'{GATEWAY}dead_letters = "none/x"', "3: dead_letters {0}/none/x: cannot be written"),
    (f'{GATEWAY}[[mqtt]]\nsession = "b"\ncontrol = "b"\nusername = "u"\npassword_file = "no"',
     "7: password_file {0}/no: cannot be read: No such file"),
    (f'{GATEWAY}tls = true\ntls_ca = "latin"'.replace("mqtt", "nats"), "4: tls_ca {0}/latin holds no certificate"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_files_that_do_not_fit(folder, text, message):
    path, words = written(folder, text), message.format(folder)
    found = read_config(path)
    with pytest.raises(ConfigError) as caught:
        check_files(found, str(path))
    assert str(caught.value).startswith(f"{path}:{words}")
    within = words.partition(": ")[2]
    with TagMatch(device="cpu") as tm, pytest.raises(ConfigError) as caught, serving(tm, found):
        pass
    assert str(caught.value).startswith(within)


@pytest.mark.slow
def test_the_command_checks_a_configuration(folder):
    fits = f'{GATEWAY}username = "u"\npassword_file = "password"\ntls = true\ntls_ca = "ca.pem"'
    path = written(folder, f'{pair("a.pem", "a.key")}client_ca = "ca.pem"\n{fits}')
    assert done("serve", "--config", path, "--check").endswith("ok\n")
    for text, *given, message in (
        ("[server]\nprot = 1", f"{folder}/service.toml:2: [server] has no 'prot'; is 'port' meant?"),
        ("", "x.index", "--host", "0.0.0.0", "insecure"),
        (pair("a.pem", "b.key"), f"service.toml:3: tls_key {folder}/b.key does not belong"),
    ):
        assert message in tagmatch("serve", "--config", written(folder, text), *given, "--check", code=1)
    assert "does not belong" in tagmatch("serve", "--config", path, str(folder / "new.index"), code=1)
    assert "there is no index" in tagmatch("serve", code=1)

    def noted(index: str) -> tuple[str, str]:
        found = CliRunner().invoke(app, ["serve", f"{folder}/{index}", "--config", str(path), "--check"])
        return found.stdout, found.stderr

    path.write_text("")
    wrong = tagmatch("serve", folder / "no.index", "--config", path, "--check", code=1)
    assert wrong == f"tagmatch: there is no index at {folder}/no.index: no such folder\n"
    path.write_text(done("token", "ana") + "[index]\ncreate = true\n")
    assert noted("no.index") == (f"{path}: ok\n", "")
    with TagMatch(folder / "an.index") as tm:
        tm.consolidate()
        tm.add_set(["a"], 1)
        said = (
            f"{path}: a program has changes staged for the index {folder}/an.index: the service answers, and refuses "
        )
        assert noted("an.index") == (f"{path}: ok\n", f"{said}changes\n")
        tm.consolidate()
    assert noted("an.index") == (f"{path}: ok\n", "")
    manifest = folder / "an.index" / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 999}))
    assert "upgrade tagmatch" in tagmatch("serve", folder / "an.index", "--config", path, "--check", code=1)


@pytest.mark.slow
def test_the_command_makes_tokens(tmp_path):
    printed, file = done("token", "ana", "--role", "write"), tmp_path / "bo.token"
    token = printed.splitlines()[0].rpartition(" ")[2]
    (user,) = read_config(written(tmp_path, printed)).users
    assert user == User("ana", token_sha256(token), "write")
    printed = done("token", "bo", "--output", file)
    assert file.stat().st_mode & 0o077 == 0
    kept = file.read_text().strip()
    (user,) = read_config(written(tmp_path, printed)).users
    assert user.token_sha256 == token_sha256(kept)
    assert kept not in printed
    assert f"{file} is there already" in tagmatch("token", "bo", "--output", file, code=1)
    assert file.read_text().strip() == kept
    tagmatch("token", "bo", "--output", "/dev/null")
    assert "write, admin" in tagmatch("token", "x", "--role", "root", code=2)


@pytest.mark.slow
def test_without_the_extra(tmp_path):
    """It is said at once, before an index is looked for, or a configuration."""
    code = 'import sys; sys.modules["prometheus_client"] = None; from tagmatch.cli import main; main()'
    arguments = ["serve", tmp_path / "x.index", "--config", tmp_path / "none", "--check"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    line = "tagmatch: the service needs prometheus-client; install it with: pip install 'tagmatch[serve]'\n"
    assert done.stderr == line


TLS = "grpc+tls://127.0.0.1:1"
PEM = "must be bytes of PEM"
ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    (TLS, {"tls_root_certs": "/etc/server.pem"}, f"tls_root_certs {PEM}, not '/etc"),
    (TLS, {"tls_root_certs": Path("server.pem")}, f"tls_root_certs {PEM}"),
    (TLS, {"tls_root_certs": b""}, f"tls_root_certs {PEM}"),
    (TLS, {"tls_root_certs": A.key}, "tls_root_certs holds no certificate"),
    (TLS, {"cert_chain": "a.pem", "private_key": A.key}, f"cert_chain {PEM}"),
    (TLS, {"cert_chain": A.cert, "private_key": "a.key"}, f"private_key {PEM}"),
    (TLS, {"cert_chain": A.cert, "private_key": B.key}, "private_key does not belong to the cert"),
    (TLS, {"cert_chain": A.cert}, "cert_chain and private_key must be given together"),
    *((TLS, {"token": token}, "token must be a string of one line") for token in ("", b"secret", "a\nb")),
    (TLS[:4] + TLS[8:], {"tls_root_certs": OURS.cert}, r"needs encryption: connect to grpc\+tls://"),
    (None, {}, "url must be a string, not "),
    *((url, {}, "grpc") for url in ("http://x:1", "grpc://x", "grpc://a@b:1", "x", "")),
]  # fmt: skip


@pytest.mark.parametrize(("url", "given", "message"), ARGUMENTS)
def test_arguments_of_connect(url, given, message):
    with pytest.raises((InvalidTypeError, InvalidValueError), match=message):
        connect(url, **given)


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
    assert ours["ports"] == [f"127.0.0.1:{port}:{port}" for port in (config.server.port, config.http_port)]
    assert int(ours["stop_grace_period"].rstrip("s")) > config.server.drain_seconds
    assert config.index.path.startswith("/var/lib/tagmatch/")
    config.check_exposure()
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"tagmatch:{config.metrics.port}"]}]
    assert steps("EXPOSE")[0].split() == [str(config.server.port), str(config.http_port), str(config.metrics.port)]


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
        known = set(
            re.findall(
                r"^# TYPE (\w+) ",
                Metrics(index.stats, UserLimits(ServerOptions()).stats, dict).text().decode(),
                re.MULTILINE,
            )
        )
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
