"""The file of a configuration: read, checked wholly, and what it names looked at, before anything starts.

Each section of the file, which is TOML, is a dataclass, and each mistake is an error that names file and line.
Certificates and keys are checked before gRPC is given them, as its errors name no file and no fault.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tagmatch.broker.config import FILE, BrokerOptions, Config
from tagmatch.model.errors import ConfigError, InvalidValueError, TagMatchError
from tagmatch.model.names import near_match

T = TypeVar("T")

_HEADER = re.compile(r"\s*\[(\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""")
#: A key of one of several tables, as messages name it: the number is from 0
_ENTRY = re.compile(r"(\w+)\[(\d+)\]\.(\w+)")
_NAMES = {
    bool: "true or false", int: "an integer", float: "a number", str: "a text", datetime: "a time", dict: "a table",
}  # fmt: skip


class Lines:
    """In which line of a text in TOML something is."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, int, str], int] = {}
        section, seen, number = "", {"": 1}, 0
        for line, content in enumerate(text.splitlines(), 1):
            if found := _HEADER.match(content):
                section = found[2].strip("\"'")
                seen[section] = number = seen.get(section, -1) + 1 if found[1] else 0
                self._lines.setdefault((section, number, ""), line)
            elif found := _KEY.match(content):
                self._lines.setdefault((section, number, found[1]), line)

    def of(self, section: str, number: int = 0, key: str = "") -> int:
        """The line of a key, else that of its section, else the first."""
        places = [(section, number, key), (section, number, ""), ("", 0, section)]
        return next((self._lines[place] for place in places if place in self._lines), 1)

    def of_entry(self, entry: re.Match[str]) -> int:
        """The line of what `_ENTRY` has found."""
        return self.of(entry[1], int(entry[2]), entry[3])


def read_toml(text: str, file: str, kind: type[T]) -> T:
    """The dataclass that a text is: each field of it is a section, a dataclass or a tuple of them."""
    lines = Lines(text)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = int(place[1]) if place else len(text.splitlines()) or 1
        raise ConfigError(f"{file}:{line}: {str(error).partition(' (at ')[0]}") from None
    hints, sections = get_type_hints(kind), {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    made: dict[str, Any] = {}
    for name, value in found.items():
        if name not in sections:
            raise ConfigError(f"{file}:{lines.of(name)}: there is no section {name!r}{near_match(name, [*sections])}")
        hint = hints[name]
        if get_origin(hint) is tuple:
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise ConfigError(f"{file}:{lines.of(name)}: {name} must be tables: write [[{name}]]")
            own = get_args(hint)[0]
            made[name] = tuple(_made(own, each, name, number, file, lines) for number, each in enumerate(value))
        else:
            if not isinstance(value, dict):
                raise ConfigError(f"{file}:{lines.of(name)}: {name} must be a table: write [{name}]")
            made[name] = _made(hint, value, name, 0, file, lines)
    return _checked(kind, made, "", 0, file, lines)


def _made(kind: Any, table: Mapping[str, Any], section: str, number: int, file: str, lines: Lines) -> Any:
    """One section."""
    hints, known = get_type_hints(kind), {field.name: field for field in fields(kind)}
    values = {}
    for key, value in table.items():
        line = lines.of(section, number, key)
        if key not in known:
            raise ConfigError(f"{file}:{line}: [{section}] has no {key!r}{near_match(key, [*known])}")
        values[key] = _typed(value, hints[key], f"{file}:{line}: {key}")
    for key, each in known.items():
        if key not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{file}:{lines.of(section, number)}: [{section}] needs {key!r}")
    return _checked(kind, values, section, number, file, lines)


def _checked(kind: type[T], values: dict[str, Any], section: str, number: int, file: str, lines: Lines) -> T:
    try:
        return kind(**values)
    except ConfigError:
        raise
    except TagMatchError as error:
        text = str(error)
        name = text.partition(" ")[0].rstrip(":")
        line = lines.of(section, number, name) if section else lines.of(name)
        if not section and (entry := _ENTRY.match(text)):
            line = lines.of_entry(entry)
            text = _ENTRY.sub(lambda entry: f"{entry[3]} of [[{entry[1]}]] in line {lines.of_entry(entry)}", text)
        raise ConfigError(f"{file}:{line}: {text}") from None


def _typed(value: object, hint: Any, what: str) -> Any:
    """A value of the type that a field has."""
    kinds = [kind for kind in _alternatives(hint) if kind is not NoneType]
    for kind in kinds:
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise ConfigError(f"{what} must be one of {', '.join(map(repr, get_args(kind)))}, not {value!r}")
            return value
        if get_origin(kind) is tuple and isinstance(value, list):
            return tuple(_typed(each, get_args(kind)[0], what) for each in value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(kind, type) and not is_dataclass(kind) and type(value) is kind:
            return value
    wanted = " or ".join(_NAMES.get(kind, str(kind)) for kind in kinds)
    raise ConfigError(f"{what} must be {wanted}, not {str(value)[:60]!r}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return (hint,) if get_origin(hint) in (None, Literal, tuple) else get_args(hint)


def read_config(path: str | Path) -> Config:
    """The configuration in a file; relative paths in it are relative to its folder."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    found, folder = read_toml(text, str(path), Config), Path(path).parent
    sections: dict[str, Any] = {}
    for each in fields(found):
        given = getattr(found, each.name)
        is_many = isinstance(given, tuple)
        sections[each.name] = tuple(_beside(one, folder) for one in given) if is_many else _beside(given, folder)
    return replace(found, **sections)


def _beside(section: Any, folder: Path) -> Any:
    """A section whose files are relative to the folder."""
    files = {each.name: getattr(section, each.name) for each in fields(section) if FILE in each.metadata}
    return replace(section, **{name: str(folder / file) for name, file in files.items() if file is not None})


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
    for section, number, key, error in _faults(config):
        place = ""
        if path is not None:
            place = f"{path}:{Lines(Path(path).read_text()).of(section, number, key)}: "
        raise ConfigError(f"{place}{error}")


def _faults(config: Config) -> Iterator[tuple[str, int, str, TagMatchError]]:
    """What is wrong, and the section and the key that name the file."""
    server = config.server
    checks: list[tuple[str, int, str, Callable[[], object]]] = []
    if server.tls_cert is not None and server.tls_key is not None:
        checks.append(("server", 0, "tls_cert", partial(_certificates, "tls_cert", server.tls_cert)))
        checks.append(("server", 0, "tls_key", partial(_pair, server.tls_cert, server.tls_key)))
    checks.append(("server", 0, "client_ca", partial(_certificates, "client_ca", server.client_ca)))
    for section, number, gateway in config.gateways:
        if isinstance(gateway, BrokerOptions):
            checks.append((section, number, "password_file", partial(getattr, gateway, "password")))
            checks.append((section, number, "tls_ca", partial(_certificates, "tls_ca", gateway.tls_ca)))
        checks.append((section, number, "dead_letters", gateway.check_dead_letters))
    for section, number, key, check in checks:
        try:
            check()
        except TagMatchError as error:
            yield section, number, key, error


def _certificates(name: str, path: str | None) -> None:
    if path is not None:
        check_certificates(_read(name, path), f"{name} {path}")


def _pair(cert: str, key: str) -> None:
    check_pair(_read("tls_cert", cert), _read("tls_key", key), f"tls_cert {cert}", f"tls_key {key}")


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValueError(f"{name} {path}: cannot be read: {reason}") from None
