"""The file of a configuration: read, checked wholly, and what it names looked at, before anything starts.

Each section of the file, which is TOML, is a dataclass, and each mistake is an error that names file and line.
Certificates and keys are checked before gRPC is given them, as its errors name no file and no fault.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tagmatch.broker.config import FILE, BrokerOptions, Config, KafkaOptions, read_file
from tagmatch.model.errors import ConfigError, InvalidValueError, TagMatchError
from tagmatch.model.names import near_match

_HEADER = re.compile(r"\s*\[(\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""")
#: A key of one of several tables, as messages name it: the number is from 0
_ENTRY = re.compile(r"(\w+)\[(\d+)\]\.(\w+)")
_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a text", datetime: "a time"}


def read_config(path: str | Path) -> Config:
    """The configuration in a file; relative paths in it are relative to its folder."""
    try:
        return _Text(Path(path)).config()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None


class _Text:
    """A text in TOML, in which each section is that of a field of `Config`: one table, or several."""

    def __init__(self, path: Path) -> None:
        self._path, self._text = path, path.read_text()
        self._lines: dict[tuple[str, int, str], int] = {}
        section, seen, number = "", {"": 1}, 0
        for line, content in enumerate(self._text.splitlines(), 1):
            if found := _HEADER.match(content):
                section = found[2].strip("\"'")
                seen[section] = number = seen.get(section, -1) + 1 if found[1] else 0
                self._lines.setdefault((section, number, ""), line)
            elif found := _KEY.match(content):
                self._lines.setdefault((section, number, found[1]), line)

    def line_of(self, section: str, number: int = 0, key: str = "") -> int:
        """The line of a key, else that of its section, else the first."""
        places = [(section, number, key), (section, number, ""), ("", 0, section)]
        return next((self._lines[place] for place in places if place in self._lines), 1)

    def error(self, text: str, section: str, number: int = 0, key: str = "") -> ConfigError:
        """A mistake in a section, or in one of its keys."""
        return ConfigError(f"{self._path}:{self.line_of(section, number, key)}: {text}")

    def config(self) -> Config:
        """All sections."""
        try:
            found = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
            line = int(place[1]) if place else len(self._text.splitlines()) or 1
            raise ConfigError(f"{self._path}:{line}: {str(error).partition(' (at ')[0]}") from None
        hints, made = get_type_hints(Config), dict[str, Any]()
        for name, value in found.items():
            if name not in hints:
                raise self.error(f"there is no section {name!r}{near_match(name, [*hints])}", name)
            are_many = get_origin(hints[name]) is tuple
            tables = value if are_many else [value]
            if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
                how = f"tables: write [[{name}]]" if are_many else f"a table: write [{name}]"
                raise self.error(f"{name} must be {how}", name)
            kind = get_args(hints[name])[0] if are_many else hints[name]
            sections = tuple(self._section(kind, table, name, number) for number, table in enumerate(tables))
            made[name] = sections if are_many else sections[0]
        try:
            return Config(**made)
        except TagMatchError as error:
            text = str(error)
            if isinstance(error, ConfigError) or not (entry := _ENTRY.match(text)):
                raise
            text = _ENTRY.sub(lambda each: f"{each[3]} of [[{each[1]}]] in line {self._line_of_entry(each)}", text)
            raise ConfigError(f"{self._path}:{self._line_of_entry(entry)}: {text}") from None

    def _line_of_entry(self, entry: re.Match[str]) -> int:
        return self.line_of(entry[1], int(entry[2]), entry[3])

    def _section(self, kind: Any, table: Mapping[str, Any], section: str, number: int) -> Any:
        hints, known, values = get_type_hints(kind), {each.name: each for each in fields(kind)}, {}
        for key, value in table.items():
            if key not in known:
                raise self.error(f"[{section}] has no {key!r}{near_match(key, [*known])}", section, number, key)
            try:
                values[key] = _typed(value, hints[key])
            except ConfigError as error:
                raise self.error(f"{key} {error}", section, number, key) from None
            if FILE in known[key].metadata:
                values[key] = str(self._path.parent / values[key])
        for key, each in known.items():
            if key not in values and each.default is MISSING and each.default_factory is MISSING:
                raise self.error(f"[{section}] needs {key!r}", section, number)
        try:
            return kind(**values)
        except TagMatchError as error:  # its first word is the key
            raise self.error(str(error), section, number, str(error).partition(" ")[0].rstrip(":")) from None


def _typed(value: object, hint: Any) -> Any:
    alternatives = (hint,) if get_origin(hint) in (None, Literal) else get_args(hint)
    kinds = [kind for kind in alternatives if kind is not NoneType]
    for kind in kinds:
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise ConfigError(f"must be one of {', '.join(map(repr, get_args(kind)))}, not {value!r}")
            return value
        if kind is float and type(value) is int and abs(value) < 2**64:
            return float(value)
        if type(value) is (get_origin(kind) or kind):
            return value
    raise ConfigError(f"must be {' or '.join(map(_NAMES.__getitem__, kinds))}, not {str(value)[:60]!r}")


def new_token() -> tuple[str, str]:
    """A token that cannot be guessed, and its SHA-256, which a configuration has."""
    token = secrets.token_urlsafe(32)
    return token, token_sha256(token)


def token_sha256(token: str) -> str:
    """What a configuration has of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


# -- files that a configuration names ----------------------------------------------------------------------------------


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
    server = config.server
    checks: list[tuple[str, int, str, Callable[[], object]]] = []
    if server.tls_cert is not None and server.tls_key is not None:
        cert, key = server.tls_cert, server.tls_key

        def check_key() -> None:
            check_pair(read_file("tls_cert", cert), read_file("tls_key", key), f"tls_cert {cert}", f"tls_key {key}")

        checks.append(("server", 0, "tls_cert", partial(_certificates, "tls_cert", cert)))
        checks.append(("server", 0, "tls_key", check_key))
    checks.append(("server", 0, "client_ca", partial(_certificates, "client_ca", server.client_ca)))
    for section, number, gateway in config.gateways:
        if isinstance(gateway, BrokerOptions):
            checks.append((section, number, "password_file", partial(getattr, gateway, "password")))
            checks.append((section, number, "tls_ca", partial(_certificates, "tls_ca", gateway.tls_ca)))
        if isinstance(gateway, KafkaOptions):
            checks.append((section, number, "options", partial(getattr, gateway, "passed_on")))
            checks.append((section, number, "registry_secret_file", partial(getattr, gateway, "registry_secret")))
            checks.append((section, number, "registry_ca", partial(_certificates, "registry_ca", gateway.registry_ca)))
        checks.append((section, number, "dead_letters", partial(_check_dead_letters, gateway.dead_letters)))
    for section, number, name, check in checks:
        try:
            check()
        except TagMatchError as error:
            text = str(error)
            raise _Text(Path(path)).error(text, section, number, name) if path else ConfigError(text) from None


def _check_dead_letters(path: str | None) -> None:
    if path is not None and not Path(path).parent.is_dir():
        raise InvalidValueError(f"dead_letters {path}: cannot be written: its folder is not there")


def _certificates(name: str, path: str | None) -> None:
    if path is not None:
        check_certificates(read_file(name, path), f"{name} {path}")
