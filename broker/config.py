"""The configuration of a service: one file in TOML, checked wholly before anything starts.

A file in TOML as dataclasses: each section is one, and each mistake is an error that names file and line.
"""

from __future__ import annotations

import graphlib
import ipaddress
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tagmatch.broker.gateways.options import HubOptions, MqttOptions, NatsOptions, SessionOptions
from tagmatch.model.errors import ConfigError, InvalidValueError, TagMatchError
from tagmatch.model.names import near_match
from tagmatch.model.options import Channel, Order, seconds_of

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


Role = Literal["read", "write", "admin"]
#: Each may do what those before it may
ROLES: tuple[Role, ...] = ("read", "write", "admin")

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where the service listens, with which certificates, and its limits."""

    host: str = "127.0.0.1"  # Port 0: any that is free
    port: int = 8815
    tls_cert: str | None = None  # Files with the certificate and its key, as PEM. Without them there is no encryption.
    tls_key: str | None = None
    # File with the certificates, as PEM, that certificates of clients must be signed by: mutual TLS
    client_ca: str | None = None
    insecure: bool = False  # Listen beyond this machine without users, or without TLS, all the same
    max_message_bytes: int = 64 << 20  # Bytes of a batch, as Arrow has it in memory, and of all that one `DoPut` brings
    max_batch_rows: int = 65_536  # Rows of a batch, and of those that are matched together
    max_connections: int = 256  # Clients, by address and port, that have calls under way at once
    # Calls under way at once, streams among them; a client may have many. Each stream has two threads, and messages
    # that wait. Administrators may have a few more.
    max_calls: int = 1024
    # Those of one user, except actions of administrators. Default: a quarter of `max_calls`.
    max_user_calls: int | None = None
    # Messages, changes and keys to follow a second that a user may send; 0: as many as they like. Streams are slowed
    # down, other calls refused.
    rate: float = 0.0
    burst: float = 1.0  # How many may come at once after a pause, in seconds of `rate`
    queue_rows: int = 131_072  # Messages of one stream that wait to be matched; with more, no more is read
    drain_seconds: float = 10.0  # After SIGTERM, how long what is under way may take

    def __post_init__(self) -> None:
        in_range("port", self.port, 0, 65_535)
        in_range("max_message_bytes", self.max_message_bytes, 1024, 1 << 30)
        in_range("max_batch_rows", self.max_batch_rows, 1, 1 << 24)
        in_range("max_connections", self.max_connections, 1, 1 << 20)
        in_range("max_calls", self.max_calls, 1, 1 << 20)
        in_range("max_user_calls", self.most_user_calls, 1, self.max_calls)
        in_range("rate", self.rate, 0, 1e12)
        in_range("burst", self.burst, 1e-3, 3600)
        in_range("queue_rows", self.queue_rows, 1, 1 << 24)
        in_range("drain_seconds", self.drain_seconds, 0, 3600)
        if (self.tls_cert is None) != (self.tls_key is None):
            name = "tls_cert" if self.tls_cert else "tls_key"
            raise InvalidValueError(f"{name} needs {'tls_key' if self.tls_cert else 'tls_cert'} beside it")
        if self.client_ca is not None and self.tls_cert is None:
            raise InvalidValueError("client_ca needs tls_cert and tls_key: without TLS no client shows a certificate")

    @property
    def most_user_calls(self) -> int:
        """`max_user_calls`, also by default."""
        return max(1, self.max_calls // 4) if self.max_user_calls is None else self.max_user_calls

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Which index is served; other fields are those of `TagMatch.open`."""

    path: str | None = None  # Its folder or URI; the command line may give it instead
    create: bool = False  # Begin an empty index where there is none
    key_type: Literal["integer", "string"] | None = None  # Of an index that is begun; of others, what its keys must be
    exact: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    auto_reload: float | None = None
    plane: bool = False
    durability: Literal["fsync", "os", "none"] | None = None
    keep_snapshots: int | None = None
    order: Order = "fifo"  # In which order messages of channels, the sections [[channel]], are matched

    @property
    def keywords(self) -> dict[str, Any]:
        """Those of `TagMatch.open`."""
        names = (
            "key_type", "exact", "device", "threads", "auto_reload", "plane", "durability", "keep_snapshots", "order",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """A class of messages with a deadline, as `Channel` of Python; durations are seconds, or texts such as `"5ms"`."""

    name: str
    deadline: float | str | None = None  # From the moment that a message has come until its answer is late
    priority: int = 0  # Which message goes first where deadlines are equal
    latency_budget: float | str = 0.0  # How long a message may wait for others
    expiry: float | str | None = None  # After which a message is not matched at all

    def __post_init__(self) -> None:
        try:
            _ = self.channel
        except TagMatchError as error:
            about = f"channel {self.name!r}: "  # the key comes first, so that its line is named
            raise InvalidValueError(str(error).removeprefix(about)) from None

    @property
    def channel(self) -> Channel:
        """The channel that these options are of."""
        found = {name: getattr(self, name) for name in ("deadline", "latency_budget", "expiry")}
        durations = {name: seconds_of(each, name) if isinstance(each, str) else each for name, each in found.items()}
        return Channel(self.name, priority=self.priority, **durations)


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """Where `/metrics`, `/livez` and `/readyz` are; nobody needs a right to read them."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = 9815

    def __post_init__(self) -> None:
        in_range("port", self.port, 0, 65_535)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is logged to standard error, and how; with `traces`, spans of OpenTelemetry are written there as well."""

    format: Literal["json", "text"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"
    traces: bool = False


@dataclass(frozen=True, slots=True)
class User:
    """Who may use the service."""

    name: str
    # What `tagmatch token` prints: the SHA-256 of the token, in hexadecimal digits. The token itself is nowhere.
    token_sha256: str
    role: Role = "read"
    expires: datetime | None = None  # From when on the token is refused

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise InvalidValueError(f"name must be a text that can be printed, not {self.name!r}")
        if not _SHA256.fullmatch(self.token_sha256):
            raise InvalidValueError(
                "token_sha256 must be 64 hexadecimal digits, as `tagmatch token` prints them; never the token itself"
            )
        if self.expires is not None and self.expires.utcoffset() is None:
            raise InvalidValueError("expires must have a time zone: write Z behind it for UTC")

    def has_expired(self) -> bool:
        """Whether the token counts no more."""
        return self.expires is not None and datetime.now(UTC) >= self.expires

    def may(self, role: Role) -> bool:
        """Whether this user has the rights of a role."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True)
class Config:
    """All sections. To add one: write its dataclass, whose `__post_init__` checks it, and add a field."""

    server: ServerOptions = field(default_factory=ServerOptions)
    index: IndexOptions = field(default_factory=IndexOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    log: LogOptions = field(default_factory=LogOptions)
    users: tuple[User, ...] = ()
    sessions: SessionOptions = field(default_factory=SessionOptions)
    hub: HubOptions = field(default_factory=HubOptions)
    mqtt: tuple[MqttOptions, ...] = ()
    nats: tuple[NatsOptions, ...] = ()
    channel: tuple[ChannelOptions, ...] = ()

    def __post_init__(self) -> None:
        _see_that_all_differ(
            (f"{section}[{number}].session", gateway.session)
            for section, gateways in (("mqtt", self.mqtt), ("nats", self.nats))
            for number, gateway in enumerate(gateways)
        )
        _see_that_nothing_comes_back("mqtt", self.mqtt)
        _see_that_nothing_comes_back("nats", self.nats)
        _see_that_all_differ((f"users[{number}].name", user.name) for number, user in enumerate(self.users))
        _see_that_all_differ((f"channel[{number}].name", each.name) for number, each in enumerate(self.channel))

    def check_exposure(self) -> None:
        """Refuse what others could read or use unseen."""
        if self.server.is_local or self.server.insecure:
            return
        missing = [what for what, there in (("[[users]]", self.users), ("tls_cert", self.server.tls_cert)) if not there]
        if missing:
            raise ConfigError(
                f"{self.server.host} can be reached from other machines, so that {' and '.join(missing)} must be "
                "given; or say `insecure = true` in [server], where a network in between keeps others out"
            )


def _see_that_nothing_comes_back(section: str, gateways: Sequence[MqttOptions | NatsOptions]) -> None:
    """Refuse gateways whose notifications come back to them as messages or requests, perhaps through others."""
    follows: dict[int, set[int]] = {}
    why: dict[tuple[int, int], tuple[str, str]] = {}
    for number, gateway in enumerate(gateways):
        places, overlap = gateway.places, gateway.naming.overlap
        if {"messages", "control"} <= places.keys() and overlap(gateway.messages, gateway.control):
            raise InvalidValueError(
                f"{section}[{number}].messages also takes what comes to {section}[{number}].control, so that requests "
                "would be messages; choose places that differ"
            )
        for other, its in enumerate(gateways):
            if "notifications" not in places or (gateway.host, gateway.port) != (its.host, its.port):
                continue
            for name in {"messages", "control"} & its.places.keys():
                if overlap(places["notifications"], its.places[name]):
                    follows.setdefault(number, set()).add(other)
                    why[number, other] = (f"{section}[{number}].notifications", f"{section}[{other}].{name}")
    try:
        graphlib.TopologicalSorter(follows).prepare()
    except graphlib.CycleError as error:
        after, before = error.args[1][:2]
        given, taken = why[before, after]
        raise InvalidValueError(
            f"{taken} also takes what goes to {given}, so that notifications would come back as messages, for ever; "
            "choose places that differ"
        ) from None


def _see_that_all_differ(entries: Iterable[tuple[str, str]]) -> None:
    """Refuse two entries, each with its key and the value that it has there, that have the same value."""
    earlier: dict[str, str] = {}
    for key, value in entries:
        if value in earlier:
            raise InvalidValueError(f"{key} is {value!r}, as is {earlier[value]}; give each a name of its own")
        earlier[value] = key


S = TypeVar("S", ServerOptions, MqttOptions, NatsOptions)


def in_range(name: str, value: float, low: float, high: float) -> None:
    """See that an option is between two numbers; InvalidValueError."""
    if not low <= value <= high:
        raise InvalidValueError(f"{name} must be from {low:g} to {high:g}, not {value:g}")


def read_config(path: str | Path) -> Config:
    """The configuration in a file.

    Relative paths in it are relative to its folder.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    found = read_toml(text, str(path), Config)
    folder = Path(path).parent
    return replace(
        found,
        server=_beside(found.server, folder, "tls_cert", "tls_key", "client_ca"),
        mqtt=tuple(_beside(each, folder, "password_file", "tls_ca", "dead_letters") for each in found.mqtt),
        nats=tuple(_beside(each, folder, "password_file", "tls_ca", "dead_letters") for each in found.nats),
    )


def _beside(section: S, folder: Path, *names: str) -> S:
    """A section whose files of these names are relative to the folder."""
    files = {name: getattr(section, name) for name in names}
    found: dict[str, Any] = {name: str(folder / file) for name, file in files.items() if file is not None}
    return replace(section, **found)
