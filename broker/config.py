"""The configuration of a service: its sections, each with its options, checked once on entry."""

from __future__ import annotations

import graphlib
import ipaddress
import os
import re
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from tagmatch.model.errors import ConfigError, FilterError, InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.options import Channel, Order, check_integer, check_one_of, check_seconds, seconds_of

Role = Literal["read", "write", "admin"]
#: Each may do what those before it may
ROLES: tuple[Role, ...] = ("read", "write", "admin")
#: The outcome of a notification for which an outbox has no room
WhenFull = Literal["disconnect", "drop_oldest", "drop_newest"]
#: Whether a notification leaves the outbox when it is handed over, or when it is acknowledged
Guarantee = Literal["at_most_once", "at_least_once"]
#: The same of a gateway, from a message's arrival to its notifications
Delivery = Literal["at_most_once", "at_least_once", "exactly_once"]
#: The outcome of messages for which the queue of the hub has no room
WhenBusy = Literal["wait", "drop"]
#: Where a message says what it is: in its properties alone, or also in its payload, a JSON object
Form = Literal["properties", "json", "cloudevents", "arrow"]

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_SHA256 = re.compile("[0-9a-f]{64}")
#: Most notifications and bytes that an option can ask for
_MAX_COUNT, _MAX_BYTES = 2**31, 2**40
#: Bytes of any text of MQTT, and what it cannot have
_LONGEST, _CONTROLS = 65_535, re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")


#: In the metadata of a field: `check(name, value)` raises an error; the value is a file, by default next to the
#: configuration's own
_CHECK, FILE = "check", "file"


def _checked(default: Any, check: Callable[[str, Any], object]) -> Any:
    return field(default=default, metadata={_CHECK: check})


def _text(default: str | None) -> Any:
    return _checked(default, _check_text)


def _number(default: float, low: float, high: float) -> Any:
    return _checked(default, partial(_check_range, low=low, high=high))


def _integer(default: int | None, low: int, high: int) -> Any:
    return _checked(default, partial(check_integer, low=low, high=high))


def _one_of(default: str, kind: Any) -> Any:
    return _checked(default, partial(check_one_of, allowed=get_args(kind)))


def _file() -> Any:
    return field(default=None, metadata={FILE: True})


class Section:
    """A section, whose fields check themselves; `None` is valid if it is the default."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if _CHECK in each.metadata and not (value is None and each.default is None):
                each.metadata[_CHECK](each.name, value)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidValueError(f"{name} must be from {low:g} to {high:g}, not {value:g}")


def check_not_negative(name: str, value: float) -> None:
    """See that an option is zero or more seconds, and not endless; InvalidTypeError, InvalidValueError."""
    check_seconds(name, value)
    if value is None or not 0 <= value < 2**40:
        raise InvalidValueError(f"{name} must be zero or more seconds, not {value!r}")


def _check_positive(name: str, value: float) -> None:
    check_not_negative(name, value)
    if not value > 0:
        raise InvalidValueError(f"{name} must be more than zero seconds")


def _check_text(name: str, text: object) -> None:
    """See that a text is one that a broker takes: without controls, in UTF-8, and not too long."""
    if not isinstance(text, str):
        raise InvalidTypeError(f"{name} must be a string, not {text!r}")
    # Halves of pairs have no form in UTF-8, and become `?`
    if _CONTROLS.search(text) or len(text.encode(errors="replace")) > _LONGEST:
        raise InvalidValueError(
            f"{name} must be a text without control characters, of at most {_LONGEST} bytes of UTF-8, not {text[:60]!r}"
        )


def _check_name(name: str, text: object) -> None:
    _check_text(name, text)
    if not text:
        raise InvalidValueError(f"{name} must be a name, not {text!r}")


def _check_group(name: str, text: object) -> None:
    if not isinstance(text, str) or any(each.isspace() or not each.isprintable() for each in text):
        raise InvalidValueError(f"{name} must be a name without spaces, not {text!r}")


def _check_origins(name: str, origins: list[Any]) -> None:
    for each in origins:
        if not isinstance(each, str) or not _ORIGIN.fullmatch(each):
            raise InvalidValueError(
                f"{name} must be sites as browsers name them, such as 'https://shop.example', not {each!r}"
            )


def read_file(name: str, path: str) -> bytes:
    """What a file of an option has; InvalidValueError."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValueError(f"{name} {path}: cannot be read: {reason}") from None


def _first_line(name: str, path: str | None) -> str | None:
    """The first line of the file of an option; InvalidValueError."""
    if path is None:
        return None
    try:
        return read_file(name, path).decode().partition("\n")[0]
    except UnicodeDecodeError:
        raise InvalidValueError(f"{name} {path}: cannot be read: it is no UTF-8") from None


@dataclass(frozen=True, slots=True)
class ServerOptions(Section):
    """Where the service listens, with which certificates, and its limits."""

    host: str = "127.0.0.1"  # Port 0: any that is free
    port: int = _number(8815, 0, 65_535)
    tls_cert: str | None = _file()  # The certificate, as PEM; without it there is no encryption
    tls_key: str | None = _file()  # Its key, as PEM
    client_ca: str | None = _file()  # What certificates of clients must be signed by, as PEM: mutual TLS
    insecure: bool = False  # Listen beyond this machine without users, or without TLS, all the same
    max_message_bytes: int = _number(64 << 20, 1024, 1 << 30)  # Of a batch in memory, and of all that a `DoPut` brings
    max_batch_rows: int = _number(65_536, 1, 1 << 24)  # Rows of a batch, and of those that are matched together
    max_connections: int = _number(256, 1, 1 << 20)  # Clients, by address and port, that have calls under way at once
    max_calls: int = _number(1024, 1, 1 << 20)  # Under way at once, with streams, which have two threads each
    max_user_calls: int | None = None  # Those of one user, by default a quarter; not actions of administrators
    rate: float = _number(0.0, 0, 1e12)  # Messages, changes and keys to follow that a user may send a second; 0: any
    burst: float = _number(1.0, 1e-3, 3600)  # How many may come at once after a pause, in seconds of `rate`
    queue_rows: int = _number(131_072, 1, 1 << 24)  # Messages of a stream that wait; with more, no more is read
    drain_seconds: float = _number(10.0, 0, 3600)  # After SIGTERM, how long calls under way may take

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        _check_range("max_user_calls", self.most_user_calls, 1, self.max_calls)
        if (self.tls_cert is None) != (self.tls_key is None):
            name = "tls_cert" if self.tls_cert else "tls_key"
            raise InvalidValueError(f"{name} needs {'tls_key' if self.tls_cert else 'tls_cert'}, too")
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


#: How often a follower looks for a newer snapshot, in seconds
FOLLOW_S = 0.25


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Which index is served, and who changes it; other fields are those of `TagMatch.open`."""

    path: str | None = None  # Its folder or URI; the command line may give it instead
    create: bool = False  # Begin an empty index if the path has no index
    follow: bool = False  # Only answer, from what another service saves there
    writer: str | None = None  # With `follow`: how errors call that service, such as its address
    copy_to: str | None = None  # A folder or URI that gets each snapshot, for services that follow it
    key_type: Literal["integer", "string"] | None = None  # Of an index that is begun; of others, what its keys must be
    exact: bool = True
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    auto_reload: float | None = None
    plane: bool = False
    durability: Literal["fsync", "os", "none"] | None = None
    keep_snapshots: int | None = None
    data: dict[str, str] | None = None  # Columns of data that keys may have, by name, with their types
    attributes: dict[str, str] | None = None  # Declared attributes of subscriptions and messages, likewise
    analyzers: dict[str, str] | None = None  # How texts of these are analysed
    strict: bool | None = None  # Whether attributes that are not declared, or of another type, are errors
    keys: Literal["indexed", "unindexed"] = "indexed"  # `unindexed` refuses what asks by key
    order: Order = "fifo"  # In which order messages of channels, the sections [[channel]], are matched

    def __post_init__(self) -> None:
        for name in ("create", "copy_to"):
            if self.follow and getattr(self, name):
                raise InvalidValueError(f"{name} is for the service that changes the index; leave it out with follow")

    @property
    def keywords(self) -> dict[str, Any]:
        """Those of `TagMatch.open`."""
        others = ("path", "create", "follow", "writer", "copy_to")
        found = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in others}
        if self.follow and self.auto_reload is None:
            found["auto_reload"] = FOLLOW_S
        return found


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
        except TagMatchError as error:  # the key comes first, so that its line is named
            raise InvalidValueError(str(error).removeprefix(f"channel {self.name!r}: ")) from None

    @property
    def channel(self) -> Channel:
        """The channel that these options are of."""
        found = {name: getattr(self, name) for name in ("deadline", "latency_budget", "expiry")}
        durations = {name: seconds_of(each, name) if isinstance(each, str) else each for name, each in found.items()}
        return Channel(self.name, priority=self.priority, **durations)


@dataclass(frozen=True, slots=True)
class MetricsOptions(Section):
    """The address of `/metrics`, `/livez` and `/readyz`, which need no token."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = _number(9815, 0, 65_535)


@dataclass(frozen=True, slots=True)
class HttpOptions(Section):
    """Calls over HTTP with JSON, at the host of [server], with its certificates, users and limits."""

    enabled: bool = True
    port: int | None = _integer(None, 0, 65_535)  # `None`: the one after [server] port, any if that is 0
    # Sites whose pages may ask, such as `https://shop.example`: what browsers send as `Origin`
    origins: list[str] | None = _checked(None, _check_origins)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What is logged to standard error, and how; with `traces`, spans of OpenTelemetry are written there as well."""

    format: Literal["json", "text"] = "json"
    level: Literal["debug", "info", "warning", "error"] = "info"
    traces: bool = False


@dataclass(frozen=True, slots=True)
class User:
    """A user of the service."""

    name: str
    token_sha256: str  # What `tagmatch token` prints, in hexadecimal digits; the token itself is nowhere
    role: Role = "read"
    expires: datetime | None = None  # From when on the token is refused
    filter: str | None = None  # An expression about data: the user sees, and changes, only keys whose data satisfies it

    def __post_init__(self) -> None:
        if self.filter is not None:
            if self.role == "admin":
                raise InvalidValueError("filter goes with the roles read and write: an admin sees everything")
            from tagmatch.model.where.language import terms_of

            try:
                list(terms_of(self.filter))
            except FilterError as error:
                raise InvalidValueError(f"filter: {str(error).removeprefix('where: ')}") from None
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
class SessionOptions(Section):
    """What a session may have, unless its subscriber asks for less."""

    max_sessions: int = _integer(10_000, 1, _MAX_COUNT)  # Sessions at once, with those that are not connected
    max_user_sessions: int | None = _integer(None, 1, _MAX_COUNT)  # Those of one user; `None`: a tenth
    max_keys: int = _integer(100_000, 1, _MAX_COUNT)  # Keys that one session follows, at most
    max_notifications: int = _integer(100_000, 1, _MAX_COUNT)  # In an outbox, with those that are not acknowledged
    max_bytes: int = _integer(64 << 20, 1, _MAX_BYTES)  # Bytes of these
    # With `disconnect`, a notification without room is dropped, and the subscriber gets an error and is cut; with
    # `drop_oldest`, those that have waited longest make room
    when_full: WhenFull = _one_of("disconnect", WhenFull)
    linger: float = _checked(300.0, check_not_negative)  # Seconds for which a session outlives its connection
    max_linger: float = _checked(86_400.0, check_not_negative)  # The most that its subscriber can ask for
    message_expiry: float | None = _checked(None, check_not_negative)  # Seconds, where a message says none

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.linger > self.max_linger:
            raise InvalidValueError(f"linger must be at most max_linger, {self.max_linger:g} s, not {self.linger:g}")

    @property
    def user_sessions(self) -> int:
        """Sessions that one user can have."""
        return max(self.max_sessions // 10, 1) if self.max_user_sessions is None else self.max_user_sessions


@dataclass(frozen=True, slots=True)
class HubOptions(Section):
    """How messages of many publishers are matched together."""

    max_waiting: int = _integer(65_536, 1, _MAX_COUNT)  # Messages that wait to be matched, at most
    max_waiting_bytes: int = _integer(256 << 20, 1, _MAX_BYTES)  # Bytes of these
    when_busy: WhenBusy = _one_of("wait", WhenBusy)  # Whether a publisher waits for room
    batch_messages: int = _integer(8_192, 1, 2**20)  # Matched together, unless one publisher sends more at once


SESSION_DEFAULTS = SessionOptions()
HUB_DEFAULTS = HubOptions()

# -- gateways ----------------------------------------------------------------------------------------------------------

#: Characters that no broker takes, or not every one: controls, white space, halves of pairs and non-characters
_UNSAFE = "\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufdd0-\\ufdef" + "".join(
    f"\\U{plane:04x}fffe\\U{plane:04x}ffff" for plane in range(17)
)


@dataclass(frozen=True, slots=True)
class Naming:
    """How a kind of broker names its places."""

    place: str  # What one is called
    separator: str  # Stands between levels
    one: str  # As a level of a filter: any one level
    rest: str  # As a level of a filter: all levels from there on
    special: str  # What a level cannot have within it, `separator`, `one` and `rest` among it
    rest_is_optional: bool  # Whether `rest` also takes the place that ends before it

    def level(self, key: str) -> str:
        """A key as one level: what a level cannot have, and `%`, is written as `%2F`, `%25`, ...: its UTF-8 so."""

        def percent(found: re.Match[str]) -> str:
            return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))

        return _unsafe(self.special).sub(percent, key) if key else "%"

    def is_usable(self, name: str, *, wildcards: bool) -> bool:
        """Whether a name is one of a place, or a filter of places."""
        levels = self.plain(name).split(self.separator)
        if not wildcards and ({self.one, self.rest} & {*levels} or self.plain(name) != name):
            return False
        if self.rest in levels[:-1] or (not self.rest_is_optional and "" in levels):
            return False
        named = [level for level in levels if level not in (self.one, self.rest)]
        return self.plain(name) != "" and not _unsafe(self.special).search("".join(named).replace("%", ""))

    def plain(self, name: str) -> str:
        """The filter that a shared subscription of MQTT shares; an empty one if it is malformed."""
        if self is not MQTT or not name.startswith("$share/"):
            return name
        _, group, *levels = name.split("/")
        return "/".join(levels) if group and not {*group} & {*"+#"} else ""

    def overlap(self, one: str, other: str) -> bool:
        """Whether there is a place that both filters take."""
        some, others = (self.plain(each).split(self.separator) for each in (one, other))
        if self is MQTT:  # a wildcard at the first level takes no topics of the broker itself
            firsts = {some[0], others[0]}
            if firsts & {self.one, self.rest} and any(first.startswith("$") for first in firsts):
                return False
        for mine, its in zip(some, others, strict=False):
            if self.rest in (mine, its):
                return True
            if self.one not in (mine, its) and mine != its:
                return False
        longer = max(some, others, key=len)[min(len(some), len(others)) :]
        return not longer or (self.rest_is_optional and longer == [self.rest])


MQTT = Naming("topic", "/", "+", "#", "/+#", rest_is_optional=True)
NATS = Naming("subject", ".", "*", ">", ".*>\\s", rest_is_optional=False)
KAFKA = Naming("topic", "/", "+", "#", "/+#", rest_is_optional=False)
_REGISTRY = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_KAFKA_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@cache
def _unsafe(special: str) -> re.Pattern[str]:
    return re.compile(f"[%{special}{_UNSAFE}]")


@dataclass(frozen=True, slots=True)
class GatewayOptions(Section):
    """What gateways have in common."""

    messages: str = _text("")  # Where they come from: a topic or a subject, perhaps with wildcards; empty: none come
    notifications: str = _text("")  # Where they go: the prefix, behind which the key is; empty: none go
    control: str = _text("")  # Where requests to subscribe and to unsubscribe come from; empty: none come
    write: bool = False  # Whether such requests are carried out; without, each is refused
    # `json`: a payload is an object, perhaps with tags, attributes, location; `cloudevents`: events come and go;
    # `arrow`: a payload, of Kafka alone, is an Arrow IPC stream with a message in each row
    form: Form = _one_of("properties", Form)
    session: str = _text("gateway")  # Name of the session whose notifications go out
    guarantee: Delivery = _one_of("at_least_once", Delivery)  # From a message's arrival to its notification
    # What happens to notifications for which the outbox of the gateway has no room
    when_full: WhenFull = _one_of("drop_newest", Literal["drop_newest", "drop_oldest"])
    max_waiting: int = _integer(10_000, 1, _MAX_COUNT)  # Messages that have come and are not matched yet, at most
    # Of messages that are not done with; a larger one is a dead letter. Half of what an outbox may have is the most, so
    # that notifications of these find room.
    max_waiting_bytes: int = _integer(32 << 20, 1, _MAX_BYTES)
    dead_letters: str | None = _file()  # JSON Lines, to which rejected messages are appended, with the reason
    required: bool = False  # Whether the service is not ready while this gateway has no connection
    batch_messages: int = _integer(1_024, 1, 2**20)  # Messages, and notifications, that go together, at most
    consolidate_interval: float = _checked(5.0, _check_positive)  # Seconds between looks for changes by requests
    retry_first: float = _checked(0.5, _check_positive)  # Seconds after which a lost connection is tried again
    retry_most: float = _checked(30.0, _check_positive)  # The same at most, as it doubles

    #: How this kind of broker names its topics or subjects, and the class of its gateways, which is imported if need be
    naming: ClassVar[Naming]
    gateway: ClassVar[str]
    guarantees: ClassVar[tuple[Delivery, ...]] = ("at_most_once", "at_least_once")
    forms: ClassVar[tuple[Form, ...]] = ("properties", "json", "cloudevents")

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not self.messages and not self.notifications and not self.control:
            raise InvalidValueError("messages, notifications or control must say where something comes from or goes")
        for name in ("messages", "control", "notifications"):
            place, may_have_wildcards = getattr(self, name), name != "notifications"
            if place and not self.naming.is_usable(place, wildcards=may_have_wildcards):
                what = f"a {self.naming.place}" + (" or a filter of them" if may_have_wildcards else ", no filter")
                raise InvalidValueError(f"{name} must be {what}, not {place!r}")

        for name, allowed in (("guarantee", self.guarantees), ("form", self.forms)):
            if (value := getattr(self, name)) not in allowed:
                raise InvalidValueError(f"{name} must be {' or '.join(map(repr, allowed))} here, not {value!r}")

    def is_place(self, name: str) -> bool:
        """Whether a notification or an answer may go to a place of this name."""
        return self.naming.is_usable(name, wildcards=False)

    @property
    def session_guarantee(self) -> Guarantee:
        """The guarantee of the session whose notifications go out."""
        return "at_most_once" if self.guarantee == "at_most_once" else "at_least_once"

    @property
    def address(self) -> str:
        """Where the other broker is: gateways to one broker have the same."""
        raise NotImplementedError

    @property
    def places(self) -> dict[str, str]:
        """What the gateway takes from the broker and gives to it, by option, as filters; without those not given."""
        below = f"{self.notifications}{self.naming.separator}{self.naming.one}" if self.notifications else ""
        found = {"messages": self.messages, "control": self.control, "notifications": below}
        return {name: place for name, place in found.items() if place}


@dataclass(frozen=True, slots=True)
class BrokerOptions(GatewayOptions):
    """What gateways to servers have in common."""

    host: str = _text("127.0.0.1")  # Where the other broker is
    port: int = _integer(0, 1, 65_535)
    username: str | None = _text(None)  # How the gateway logs in there
    password_file: str | None = _file()  # It has the password in its first line
    tls: bool = False  # Whether the connection is encrypted
    tls_ca: str | None = _file()  # The certificates, as PEM, that are trusted; by default those of the system

    def __post_init__(self) -> None:
        GatewayOptions.__post_init__(self)
        if self.password_file is not None and self.username is None:
            raise InvalidValueError("password_file needs a username, too")
        if self.tls_ca is not None and not self.tls:
            raise InvalidValueError("tls_ca also needs tls = true")

    @property
    def address(self) -> str:
        """Where the other broker is: gateways to one broker have the same."""
        return f"{self.host}:{self.port}"

    @property
    def password(self) -> str | None:
        """The first line of `password_file`; InvalidValueError if it cannot be read."""
        return _first_line("password_file", self.password_file)

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """What certificates are trusted, `None` without TLS."""
        return ssl.create_default_context(cafile=self.tls_ca) if self.tls else None


@dataclass(frozen=True, slots=True)
class MqttOptions(BrokerOptions):
    """A gateway to a broker of MQTT 5; other options are those of `BrokerOptions`."""

    port: int = _integer(1883, 1, 65_535)
    session: str = _text("mqtt")
    client_id: str = _checked("tagmatch", _check_name)  # By which the broker keeps messages while the gateway is away
    session_expiry: int = _integer(3_600, 0, 2**32 - 1)  # Seconds for which it keeps them
    keepalive: int = _integer(30, 1, 65_535)  # Seconds of silence until the gateway asks whether the broker is there

    naming: ClassVar[Naming] = MQTT
    gateway: ClassVar[str] = "tagmatch.broker.mqtt:MqttGateway"


@dataclass(frozen=True, slots=True)
class NatsOptions(BrokerOptions):
    """A gateway to a server of NATS; other options are those of `BrokerOptions`."""

    port: int = _integer(4222, 1, 65_535)
    session: str = _text("nats")
    queue: str = _checked("", _check_group)  # Of gateways of a group, each message goes to one; empty: each gets all
    flush_timeout: float = _checked(5.0, check_not_negative)  # Seconds until the server must have everything sent to it

    naming: ClassVar[Naming] = NATS
    gateway: ClassVar[str] = "tagmatch.broker.nats:NatsGateway"


#: Options of librdkafka that are not passed on, and why: the gateway sets them, or what it promises would not hold
_OWN_OPTIONS = {
    "bootstrap.servers": "give host and port",
    "metadata.broker.list": "give host and port",
    "group.id": "give group",
    "transactional.id": "give transactional_id",
    "session.timeout.ms": "give session_timeout",
    "message.timeout.ms": "give flush_timeout",
    "delivery.timeout.ms": "give flush_timeout",
    **dict.fromkeys(("enable.auto.commit", "enable.auto.offset.store"), "messages would be lost"),
    **dict.fromkeys(("enable.idempotence", "acks", "request.required.acks"), "notifications would be lost"),
    "isolation.level": "messages of transactions that were aborted would come",
    "enable.partition.eof": "it brings records that are no messages",
    "delivery.report.only.error": "the gateway sets it",
    "plugin.library.paths": "a configuration loads no code",
}
_SECRET = re.compile(r"password|secret|sasl\.jaas|\.pem$")


@dataclass(frozen=True, slots=True)
class KafkaOptions(BrokerOptions):
    """A gateway to Kafka; other options are those of `BrokerOptions`."""

    port: int = _integer(9092, 1, 65_535)  # Of each host without a port; commas divide hosts
    session: str = _text("kafka")
    group: str = _checked("tagmatch", _check_name)  # The consumer group: each message goes to one of its gateways
    session_timeout: float = _checked(45.0, _check_positive)  # Seconds of silence until others take a gateway's part
    sasl_mechanism: str = _one_of("SCRAM-SHA-512", Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
    flush_timeout: float = _checked(5.0, _check_positive)  # Seconds until the brokers must have the notifications
    batch_messages: int = _integer(8_192, 1, 2**20)  # Messages that are fetched, matched and committed together
    # Of exactly once: a name of this gateway alone, which is the same when it begins again, so that its unfinished
    # transaction ends at once; by default one that is new each time, whose transaction ends after flush_timeout
    transactional_id: str = _text("")
    # Where the schemas of values are, in Avro, Protobuf or JSON, of `form = "json"`: http://… or https://…
    registry: str = _text("")
    registry_username: str | None = _text(None)  # How the gateway logs in there, with a password
    registry_secret_file: str | None = _file()  # In its first line the password, or a bearer token without a username
    registry_ca: str | None = _file()  # As `tls_ca`, of the registry
    dead_letter_topic: str = _text("")  # Where messages that are given up go, with the reason; empty: they do not
    options: dict[str, Any] | None = None  # Of librdkafka, passed on; a text `env:NAME` or `file:PATH` is read there

    naming: ClassVar[Naming] = KAFKA
    gateway: ClassVar[str] = "tagmatch.broker.kafka:KafkaGateway"
    guarantees: ClassVar[tuple[Delivery, ...]] = ("at_least_once", "exactly_once")
    forms: ClassVar[tuple[Form, ...]] = get_args(Form)

    def is_place(self, name: str) -> bool:
        """Whether Kafka takes a name as that of a topic."""
        return _KAFKA_TOPIC.fullmatch(name) is not None and name not in (".", "..")

    def __post_init__(self) -> None:
        BrokerOptions.__post_init__(self)
        places = {**{name: getattr(self, name) for name in self.places}, "dead_letter_topic": self.dead_letter_topic}
        for name, topic in places.items():
            if topic and not self.is_place(topic):
                raise InvalidValueError(
                    f"{name} must be one topic, of at most 249 letters, digits and '.', '_', '-', not {topic!r}"
                )
        if self.dead_letter_topic in (self.messages, self.control, self.notifications) and self.dead_letter_topic:
            raise InvalidValueError("dead_letter_topic must be another topic: letters would come as messages")
        if self.transactional_id and self.guarantee != "exactly_once":
            raise InvalidValueError("transactional_id needs guarantee = 'exactly_once', too")
        self._check_registry()
        for name, value in (self.options or {}).items():
            self._check_option(name, value)

    def _check_registry(self) -> None:
        if not self.registry:
            for name in ("registry_username", "registry_secret_file", "registry_ca"):
                if getattr(self, name) is not None:
                    raise InvalidValueError(f"{name} also needs registry, the address of the schemas")
            return
        if not _REGISTRY.fullmatch(self.registry):
            raise InvalidValueError(
                f"registry must be an address as 'https://registry.example:8081', without a user, not {self.registry!r}"
            )
        if self.form != "json":
            raise InvalidValueError(
                f"registry needs form = 'json', as values by schemas have the fields of JSON, not {self.form!r}"
            )
        if self.registry_username is not None and self.registry_secret_file is None:
            raise InvalidValueError("registry_username also needs registry_secret_file, which has the password")
        if self.registry_ca is not None and not self.registry.startswith("https:"):
            raise InvalidValueError("registry_ca needs a registry with https")

    def _check_option(self, name: str, value: object) -> None:
        why = _OWN_OPTIONS.get(name)
        if name.startswith("sasl.") and self.username is not None:
            why = "username, password_file and sasl_mechanism say how the gateway logs in; leave them or this out"
        if why is not None:
            raise InvalidValueError(f"options: {name!r} cannot be given: {why}")
        if not isinstance(value, str | int | float):
            raise InvalidTypeError(f"options: {name!r} must be a text, a number or a bool, not {value!r}")
        if _SECRET.search(name) and not str(value).startswith(("env:", "file:")):
            raise InvalidValueError(f"options: {name!r} is a secret: write 'env:NAME' or 'file:PATH' in its place")

    @property
    def registry_secret(self) -> str | None:
        """The first line of `registry_secret_file`; InvalidValueError if it cannot be read."""
        return _first_line("registry_secret_file", self.registry_secret_file)

    @property
    def passed_on(self) -> dict[str, Any]:
        """`options` with what variables and files hold; InvalidValueError if one is not there."""
        found = {}
        for name, value in (self.options or {}).items():
            where, colon, place = str(value).partition(":")
            if where == "env" and colon and isinstance(value, str):
                if place not in os.environ:
                    raise InvalidValueError(f"options: {name!r}: there is no environment variable {place!r}")
                value = os.environ[place]
            elif where == "file" and colon and isinstance(value, str):
                value = read_file(f"options: {name!r}:", place).decode(errors="replace").rstrip("\n")
            found[name] = value
        return found

    @property
    def address(self) -> str:
        """The brokers that are asked first, each with its port, divided by commas."""
        hosts = [each.strip() for each in self.host.split(",")]
        named = [f"[{each}]" if each.count(":") > 1 and "[" not in each else each for each in hosts]
        return ",".join(each if re.search(r"[^:]:\d+$", each) else f"{each}:{self.port}" for each in named)

    @property
    def places(self) -> dict[str, str]:
        """As of other gateways; all notifications go to one topic."""
        found = {name: getattr(self, name) for name in ("messages", "control", "notifications")}
        return {name: place for name, place in found.items() if place}


@dataclass(frozen=True, slots=True)
class Config:
    """All sections. To add one: write its dataclass, whose `__post_init__` checks it, and add a field."""

    server: ServerOptions = field(default_factory=ServerOptions)
    index: IndexOptions = field(default_factory=IndexOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    metrics: MetricsOptions = field(default_factory=MetricsOptions)
    log: LogOptions = field(default_factory=LogOptions)
    users: tuple[User, ...] = ()
    sessions: SessionOptions = field(default_factory=SessionOptions)
    hub: HubOptions = field(default_factory=HubOptions)
    mqtt: tuple[MqttOptions, ...] = ()
    nats: tuple[NatsOptions, ...] = ()
    kafka: tuple[KafkaOptions, ...] = ()
    channel: tuple[ChannelOptions, ...] = ()

    def __post_init__(self) -> None:
        _see_that_all_differ((f"{name}[{number}].session", each.session) for name, number, each in self.gateways)
        for section in dict.fromkeys(section for section, _, _ in self.gateways):
            _see_that_nothing_comes_back(section, getattr(self, section))
        _see_that_all_differ((f"users[{number}].name", user.name) for number, user in enumerate(self.users))
        _see_that_all_differ((f"channel[{number}].name", each.name) for number, each in enumerate(self.channel))

    @property
    def http_port(self) -> int:
        """The port of [http], also by default."""
        if self.http.port is not None:
            return self.http.port
        return self.server.port + 1 if 0 < self.server.port < 65_535 else 0

    @property
    def gateways(self) -> list[tuple[str, int, GatewayOptions]]:
        """Each gateway, with its section and its number there."""
        return [
            (section.name, number, options)
            for section in fields(self)
            for number, options in enumerate(getattr(self, section.name) if section.default == () else ())
            if isinstance(options, GatewayOptions)
        ]

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


def _see_that_nothing_comes_back(section: str, gateways: Sequence[GatewayOptions]) -> None:
    """Refuse gateways whose notifications come back to them as messages or requests, perhaps through others."""
    follows: dict[int, set[int]] = {}
    why: dict[tuple[int, int], tuple[str, str]] = {}
    for number, gateway in enumerate(gateways):
        places, overlap = gateway.places, gateway.naming.overlap
        if {"messages", "control"} <= places.keys() and overlap(gateway.messages, gateway.control):
            raise InvalidValueError(
                f"{section}[{number}].messages also matches {section}[{number}].control, so that requests "
                "would be messages; choose places that differ"
            )
        for other, its in enumerate(gateways):
            if "notifications" not in places or gateway.address != its.address:
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
            f"{taken} also matches {given}, so that notifications would come back as messages, for ever; "
            "choose places that differ"
        ) from None


def _see_that_all_differ(entries: Iterable[tuple[str, str]]) -> None:
    """Refuse two entries, each with its key and the value that it has there, that have the same value."""
    earlier: dict[str, str] = {}
    for key, value in entries:
        if value in earlier:
            raise InvalidValueError(f"{key} is {value!r}, as is {earlier[value]}; give each its own name")
        earlier[value] = key
