"""Certificates and keys, as PEM: checked before gRPC is given them, as its errors name no file and no fault.

The files that a configuration names: read and looked at before anything starts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tagmatch.broker.config import Config, Lines
from tagmatch.model.errors import ConfigError, InvalidValueError, TagMatchError


def check_certificates(pem: bytes, name: str) -> None:
    """See that a text holds certificates."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with contextlib.suppress(ssl.SSLError, ValueError), _file(pem) as path:
        context.load_verify_locations(path)
    if not context.cert_store_stats()["x509"]:
        raise InvalidValueError(f"{name} holds no certificate as PEM, -----BEGIN CERTIFICATE-----")


def check_pair(cert: bytes, key: bytes, cert_name: str, key_name: str) -> None:
    """See that a text holds certificates, and another the key of the first one."""
    import ssl

    def passphrase() -> bytes:
        raise InvalidValueError(f"{key_name} has a passphrase; give it without, in a file that only this user can read")

    check_certificates(cert, cert_name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        with _file(cert) as cert_path, _file(key) as key_path:
            context.load_cert_chain(cert_path, key_path, passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH" or error.reason == "KEY_TYPE_MISMATCH":
            raise InvalidValueError(
                f"{key_name} does not belong to the certificate in {cert_name}; give the key that it was made with"
            ) from None
        if b"PRIVATE KEY-----" not in key:
            raise InvalidValueError(f"{key_name} holds no key as PEM, -----BEGIN PRIVATE KEY-----") from None
        raise InvalidValueError(f"{key_name} cannot be used with {cert_name}: {error.reason or error}") from None


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[str]:
    """A path for functions that take only files; in memory on Linux, as keys are secret."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem")
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name


def check_files(config: Config, path: str | None = None) -> None:
    """See that the files that a configuration names can be read, and are what they must be."""
    for section, number, key, error in _faults(config):
        place = ""
        if path is not None:
            place = f"{path}:{Lines(Path(path).read_text()).of(section, number, key)}: "
        raise ConfigError(f"{place}{error}")


def _faults(config: Config) -> Iterator[tuple[str, int, str, TagMatchError]]:
    """What is wrong, and the section and the key that name the file."""
    checks: list[tuple[str, int, str, Callable[[], object]]] = []
    server = config.server
    if server.tls_cert is not None and server.tls_key is not None:
        checks.append(("server", 0, "tls_cert", partial(_certificates, "tls_cert", server.tls_cert)))
        checks.append(("server", 0, "tls_key", partial(_pair, server.tls_cert, server.tls_key)))
    if server.client_ca is not None:
        checks.append(("server", 0, "client_ca", partial(_certificates, "client_ca", server.client_ca)))
    for section, gateways in (("mqtt", config.mqtt), ("nats", config.nats)):
        for number, gateway in enumerate(gateways):
            checks.append((section, number, "password_file", partial(getattr, gateway, "password")))
            if gateway.tls_ca is not None:
                checks.append((section, number, "tls_ca", partial(_certificates, "tls_ca", gateway.tls_ca)))
            checks.append((section, number, "dead_letters", gateway.check_dead_letters))
    for section, number, key, check in checks:
        try:
            check()
        except TagMatchError as error:
            yield section, number, key, error


def _certificates(name: str, path: str) -> None:
    check_certificates(_read(name, path), f"{name} {path}")


def _pair(cert: str, key: str) -> None:
    check_pair(_read("tls_cert", cert), _read("tls_key", key), f"tls_cert {cert}", f"tls_key {key}")


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValueError(f"{name} {path}: cannot be read: {reason}") from None
