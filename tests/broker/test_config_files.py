"""Files that a configuration, `connect` or the command names: what does not fit is refused before anything starts."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority
from support.command import done, tagmatch
from support.service import written
from typer.testing import CliRunner

from tagmatch import ConfigError, InvalidTypeError, InvalidValueError, TagMatch, connect
from tagmatch.broker.access import token_sha256
from tagmatch.broker.config import User, read_config
from tagmatch.broker.config_files import check_files
from tagmatch.broker.running import serving
from tagmatch.cli.app import app

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
    assert noted("no.index") == (
        f"{path}: ok\n",
        f"{path}: there are no users: everyone who can connect may do everything\n"
        f"{path}: there is no index at {folder}/no.index: no such folder\n",
    )
    with TagMatch(folder / "an.index") as tm:
        tm.consolidate()
    path.write_text(done("token", "ana"))
    assert noted("an.index") == (f"{path}: ok\n", "")


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
