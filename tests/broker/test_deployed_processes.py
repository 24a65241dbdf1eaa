"""What the files of `deploy/` run in containers, run as processes: each with its command, files, ports and probes."""

import contextlib
import re
import shlex
import signal
import subprocess
import urllib.request

import pytest
import yaml
from support.command import COMMAND
from support.documents import ROOT
from support.waiting import wait_until

from tagmatch import InvalidValueError, connect
from tagmatch.broker.config_file import token_sha256

pytestmark = pytest.mark.nightly
pytest_plugins = ["support.s3_bucket"]

DEPLOY, LONG = ROOT / "deploy", 120
COMPOSE = yaml.safe_load((DEPLOY / "replicas.compose.yaml").read_text())["services"]
OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
DOCKERFILE = (ROOT / "Dockerfile").read_text()
USERS = f'[[users]]\nname = "anyone"\ntoken_sha256 = "{token_sha256("secret")}"\nrole = "admin"\n'


def replaced(text, changes):
    """The text with each of these words replaced, all at once."""
    return re.sub("|".join(map(re.escape, changes)), lambda found: str(changes[found[0]]), text)


class Container:
    """A command with another address, and with temporary folders in place of the mounted ones."""

    def __init__(self, address, command, mounted):
        self.address = address
        ours = {**mounted, "exec tagmatch": f"exec {shlex.quote(str(COMMAND))}"}
        self._command = [str(COMMAND) if each == "tagmatch" else replaced(each, ours) for each in command]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def asked(self, port, path):
        try:
            with urllib.request.urlopen(f"http://{self.address}:{port}{path}", timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def connected(self, port=8815):
        return connect(f"grpc://{self.address}:{port}", token="secret", wait=LONG)

    def stop(self, seconds):
        """As SIGTERM of Docker and Kubernetes, which wait so long."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, log

    def kill(self):
        self.process.kill()
        self.process.communicate(timeout=LONG)


def told(tm, tag, key):
    tm.add_set([tag], key)
    tm.consolidate()


def of_kind(kind, name):
    (found,) = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def healthy(container):
    """Whether the check of the image, as it stands there, passes."""
    (check,) = re.findall(r"HEALTHCHECK .*CMD \[\"python\", \"-c\", \"(.*)\"\]", DOCKERFILE)
    command = [COMMAND.with_name("python"), "-c", check.replace("127.0.0.1", container.address)]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def test_the_containers_of_compose(tmp_path):
    (command,) = re.findall(r"^CMD \[(.*)\]", DOCKERFILE, re.MULTILINE)
    (tmp_path / "index").mkdir()

    def container(name, address):
        mounted = {"/var/lib/tagmatch": tmp_path / "index"}
        for volume in COMPOSE[name]["volumes"]:
            source, target = volume.split(":")[:2]
            if source != "index":
                mounted[target] = tmp_path / f"{name}.toml"
                text = (DEPLOY / source).read_text().partition("[[users]]")[0] + USERS
                ours = {"/var/lib/tagmatch": tmp_path / "index", "0.0.0.0": address}
                mounted[target].write_text(replaced(text, ours))
        found = Container(address, [each.strip().strip("'\"") for each in command.split(",")], mounted)
        stack.callback(found.kill)
        return found

    with contextlib.ExitStack() as stack:
        writer, *replicas = (
            container(name, f"127.0.1.{number}") for number, name in enumerate(["writer", "replica-1", "replica-2"], 1)
        )
        with writer.connected() as tm:
            told(tm, "cat", 1)
        for each in (writer, *replicas):
            wait_until(lambda each=each: healthy(each), LONG)
        for each in replicas:
            wait_until(lambda each=each: each.asked(9815, "/readyz") == 200, LONG)
            with each.connected() as tm:
                wait_until(lambda tm=tm: tm.match(["cat"]) == [1], LONG)
                with pytest.raises(InvalidValueError, match="make changes at port 8814"):
                    told(tm, "dog", 2)
            assert each.asked(8816, "/livez") is not None
        for each in (*replicas, writer):
            each.stop(int(COMPOSE["writer"]["stop_grace_period"].rstrip("s")))


def test_the_pods_of_kubernetes(tmp_path, uri):
    """They are ready when the writer has copied; the writer's disk is lost, and another one takes its place."""
    data = of_kind("ConfigMap", "tagmatch")["data"]
    places = {"writer": ("StatefulSet", "tagmatch-writer"), "replica": ("Deployment", "tagmatch")}

    def pod(what, name, address):
        spec = of_kind(*places[what])["spec"]["template"]["spec"]
        (described,) = spec["containers"]
        mounted = {}
        for volume in described["volumeMounts"]:
            mounted[volume["mountPath"]] = tmp_path / name / volume["name"]
            mounted[volume["mountPath"]].mkdir(parents=True)
        (mounted["/etc/users"] / "users.toml").write_text(USERS)
        ours = {**mounted, "s3://bucket/served.index": uri, "0.0.0.0": address}
        for file, text in data.items():
            (mounted["/etc/tagmatch"] / file).write_text(replaced(text, ours))
        found = Container(address, described["command"], mounted)
        stack.callback(found.kill)
        return found, described, spec["terminationGracePeriodSeconds"]

    def passes(container, described, probe):
        of = described[f"{probe}Probe"]["httpGet"]
        (port,) = [each["containerPort"] for each in described["ports"] if each["name"] == of["port"]]
        return container.asked(port, of["path"]) == 200

    with contextlib.ExitStack() as stack:
        replica, described, grace = pod("replica", "replica-0", "127.0.2.2")
        wait_until(lambda: passes(replica, described, "startup"), LONG)
        assert passes(replica, described, "liveness")
        assert not passes(replica, described, "readiness")
        writer, of_writer, _ = pod("writer", "writer-0", "127.0.2.1")
        wait_until(lambda: passes(writer, of_writer, "readiness"), LONG)
        with writer.connected() as tm:
            told(tm, "cat", 1)
        wait_until(lambda: passes(replica, described, "readiness"), LONG)
        with replica.connected() as tm:
            wait_until(lambda: tm.match(["cat"]) == [1], LONG)
            writer.kill()
            assert tm.match(["cat"]) == [1]
            assert passes(replica, described, "readiness")
            # Its disk is lost: another writer begins from the copy
            lost = tmp_path / "writer-0" / "index" / "served.index"
            restored = tmp_path / "restored.index"
            subprocess.run([COMMAND, "restore", uri, restored], check=True, stdout=subprocess.DEVNULL)
            lost.rename(tmp_path / "lost.index")
            restored.rename(lost)
            writer.start()
            with writer.connected() as changing:
                assert changing.match(["cat"]) == [1]
                told(changing, "cat", 2)
            wait_until(lambda: sorted(tm.match(["cat"])) == [1, 2], LONG)
        # An upgrade: a new pod, then the old one is drained
        newer, *_ = pod("replica", "replica-1", "127.0.2.3")
        wait_until(lambda: passes(newer, described, "readiness"), LONG)
        subprocess.run(described["lifecycle"]["preStop"]["exec"]["command"], check=True)
        replica.stop(grace)
        with newer.connected() as tm:
            assert sorted(tm.match(["cat"])) == [1, 2]
        newer.stop(grace)
        writer.stop(grace)
