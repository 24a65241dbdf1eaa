"""The files that a configuration names: read and looked at before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tagmatch.broker.certificates import check_certificates, check_pair
from tagmatch.broker.config import Config
from tagmatch.broker.toml_file import Lines
from tagmatch.model.errors import ConfigError, InvalidValueError, TagMatchError


def check_files(config: Config, path: str | None = None) -> None:
    """See that the files that a configuration names can be read, and are what they must be.

    Parameters
    ----------
    config : Config
    path : str, optional
        The file that it is in, whose lines messages name.

    Raises
    ------
    ConfigError
        One cannot be read, holds no PEM, or a key is not that of the certificate.
    """
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
