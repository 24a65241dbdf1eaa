"""Files and bytes of TLS that do not fit are refused before anything starts or connects; the message names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.certificates import Authority
from support.command import done, tagmatch
from support.service import config, written

from tagmatch import ConfigError, InvalidTypeError, InvalidValueError, TagMatch, connect
from tagmatch.broker.running import serving

OURS, OTHERS = Authority("ours"), Authority("others")
A, B = OURS.certificate("a"), OURS.certificate("b")
FILES = {
    "a.pem": A.cert, "a.key": A.key, "b.key": B.key, "ca.pem": OURS.cert, "empty": b"", "text": b"no PEM",
    "cut.pem": A.cert[: len(A.cert) // 2], "password": b"secret", "binary": b"\xff\xfe",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def _toml(folder: Path, cert: str = "a.pem", key: str = "a.key", more: str = "") -> Path:
    return written(folder, f'[server]\ntls_cert = "{cert}"\ntls_key = "{key}"\n{more}')


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        (
            "a.pem",
            "b.key",
            "service.toml:3: tls_key {0}/b.key does not belong to the certificate in tls_cert {0}",
        ),
        ("a.pem", "a.pem", "service.toml:3: tls_key {0}/a.pem holds no key as PEM"),
        ("a.pem", "empty", "service.toml:3: tls_key {0}/empty holds no key as PEM"),
        ("a.pem", "missing", "service.toml:3: tls_key {0}/missing: cannot be read: No such file or directory"),
        ("missing", "a.key", "service.toml:2: tls_cert {0}/missing: cannot be read: No such file or directory"),
        ("a.key", "a.key", "service.toml:2: tls_cert {0}/a.key holds no certificate"),
        ("cut.pem", "a.key", "service.toml:2: tls_cert {0}/cut.pem holds no certificate"),
        (".", "a.key", "service.toml:2: tls_cert {0}: cannot be read: Is a directory"),
    ],
)
def test_a_pair_that_does_not_fit(folder, cert, key, message):
    path = _toml(folder, cert, key)
    assert message.format(folder) in tagmatch("serve", "--config", path, "--check", code=1)
    assert message.format(folder) in tagmatch("serve", folder / "x.index", "--config", path, code=1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('client_ca = "text"', "service.toml:4: client_ca {0}/text holds no certificate as PEM"),
        ('[[nats]]\nmessages = "in"\ntls = true\ntls_ca = "empty"', "service.toml:7: tls_ca {0}/empty holds no"),
        (
            '[[mqtt]]\nmessages = "a"\n[[mqtt]]\nsession = "b"\ncontrol = "b"\nusername = "u"\npassword_file = "no"',
            "service.toml:10: password_file {0}/no: cannot be read",
        ),
        ('[[mqtt]]\nmessages = "a"\nusername = "u"\npassword_file = "binary"', "service.toml:7: password_file"),
    ],
)
def test_other_files_that_a_configuration_names(folder, more, message):
    assert message.format(folder) in tagmatch("serve", "--config", _toml(folder, more=more), "--check", code=1)


def test_files_that_fit(folder):
    gateway = '[[mqtt]]\nmessages = "a"\nusername = "u"\npassword_file = "password"\ntls = true\ntls_ca = "ca.pem"'
    more = f'client_ca = "ca.pem"\n{gateway}'
    assert done("serve", "--config", _toml(folder, more=more), "--check").endswith("ok\n")


def test_within_a_program(folder):
    wrong = config(tls_cert=str(folder / "a.pem"), tls_key=str(folder / "b.key"))
    with (
        TagMatch(device="cpu") as tm,
        pytest.raises(ConfigError, match=r"tls_key .* does not belong"),
        serving(tm, wrong),
    ):
        pass


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"tls_root_certs": "/etc/ssl/server.pem"},
            InvalidValueError,
            "tls_root_certs must be bytes of PEM, not '/etc",
        ),
        ({"tls_root_certs": Path("server.pem")}, InvalidTypeError, "tls_root_certs must be bytes of PEM"),
        ({"tls_root_certs": b""}, InvalidValueError, "tls_root_certs must be bytes of PEM"),
        ({"tls_root_certs": A.key}, InvalidValueError, "tls_root_certs holds no certificate"),
        ({"cert_chain": "client.pem", "private_key": A.key}, InvalidValueError, "cert_chain must be bytes of PEM"),
        ({"cert_chain": A.cert, "private_key": "client.key"}, InvalidValueError, "private_key must be bytes of PEM"),
        ({"cert_chain": A.cert, "private_key": B.key}, InvalidValueError, "private_key does not belong to the cert"),
        ({"cert_chain": A.cert}, InvalidValueError, "cert_chain and private_key must be given together"),
        ({"token": ""}, InvalidValueError, "token must be a string of one line"),
        ({"token": b"secret"}, InvalidValueError, "token must be a string of one line"),
    ],
)
def test_arguments_of_connect(given, error, message):
    with pytest.raises(error, match=message):
        connect("grpc+tls://127.0.0.1:1", **given)


def test_certificates_without_encryption():
    with pytest.raises(InvalidValueError, match=r"tls_root_certs needs encryption: connect to grpc\+tls://"):
        connect("grpc://127.0.0.1:1", tls_root_certs=OURS.cert)
