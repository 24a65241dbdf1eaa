"""Options of gateways, checked once where they enter.

Names of places of other brokers: topics of MQTT and subjects of NATS; what filters of them take; keys in them.

Options of sessions and of what publishes to them, checked once where they enter.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal, get_args

from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.options import check_integer, check_one_of, check_seconds

#: Characters that no broker takes, or not every one: controls, white space, halves of pairs and non-characters
_UNSAFE = "\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff\\ufdd0-\\ufdef" + "".join(
    f"\\U{plane:04x}fffe\\U{plane:04x}ffff" for plane in range(17)
)


@dataclass(frozen=True, slots=True)
class Naming:
    r"""How a kind of broker names its places.

    Attributes
    ----------
    place : str
        What one is called.
    separator : str
        Stands between levels.
    one, rest : str
        As a level of a filter: any one level, and all levels from there on.
    special : str
        What a level cannot have within it, `separator`, `one` and `rest` among it.
    rest_is_optional : bool
        Whether `rest` also takes the place that ends before it.

    Examples
    --------
    >>> MQTT.level("a/b\n"), MQTT.level(""), NATS.level("a b")
    ('a%2Fb%0A', '%', 'a%20b')
    >>> MQTT.overlap("in/#", "in/+"), MQTT.overlap("$share/group/in/+", "out/+"), NATS.overlap(">", "out.*")
    (True, False, True)
    """

    place: str
    separator: str
    one: str
    rest: str
    special: str
    rest_is_optional: bool

    def level(self, key: str) -> str:
        """A key as one level: what a level cannot have, and `%`, is written as `%2F`, `%25`, ...: its UTF-8 so."""
        return _unsafe(self.special).sub(_percent, key) if key else "%"

    def beneath(self, prefix: str) -> str:
        """The filter of the places that are one level below."""
        return f"{prefix}{self.separator}{self.one}"

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


@cache
def _unsafe(special: str) -> re.Pattern[str]:
    return re.compile(f"[%{special}{_UNSAFE}]")


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


#: What becomes of a notification for which an outbox has no room
WhenFull = Literal["disconnect", "drop_oldest", "drop_newest"]
#: Whether a notification leaves the outbox when it is handed over, or when it is acknowledged
Guarantee = Literal["at_most_once", "at_least_once"]
#: What becomes of messages for which the queue of the hub has no room
WhenBusy = Literal["wait", "drop"]

#: Most notifications and bytes that an option can ask for
MAX_NOTIFICATIONS = 2**31
MAX_BYTES = 2**40


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a session may have, unless its subscriber asks for less."""

    max_sessions: int = 10_000  # Sessions at once, with those that are not connected
    # Those of one user; `None`: a tenth of `max_sessions`, which leaves some for others
    max_user_sessions: int | None = None
    max_keys: int = 100_000  # Keys that one session follows, at most
    # Notifications that wait in the outbox of a session, with those that were not acknowledged
    max_notifications: int = 100_000
    max_bytes: int = 64 << 20  # Bytes of these
    # What happens where there is no room for a notification. `disconnect`: it is dropped, and the subscriber gets an
    # error and is cut; `drop_oldest`: those that have waited longest make room; `drop_newest`: it is dropped.
    when_full: WhenFull = "disconnect"
    # Seconds for which a session outlives its connection, and the most that its subscriber can ask for
    linger: float = 300.0
    max_linger: float = 86_400.0
    # Seconds after which a message expires that does not say when it does; `None`: never
    message_expiry: float | None = None

    def __post_init__(self) -> None:
        check_integer("max_sessions", self.max_sessions, 1, 2**31)
        if self.max_user_sessions is not None:
            check_integer("max_user_sessions", self.max_user_sessions, 1, 2**31)
        check_integer("max_keys", self.max_keys, 1, 2**31)
        check_integer("max_notifications", self.max_notifications, 1, MAX_NOTIFICATIONS)
        check_integer("max_bytes", self.max_bytes, 1, MAX_BYTES)
        check_one_of("when_full", self.when_full, get_args(WhenFull))
        check_not_negative("max_linger", self.max_linger)
        check_not_negative("linger", self.linger)
        if self.linger > self.max_linger:
            raise InvalidValueError(
                f"linger must be at most max_linger, {self.max_linger:g} seconds, not {self.linger:g}"
            )
        if self.message_expiry is not None:
            check_not_negative("message_expiry", self.message_expiry)

    @property
    def user_sessions(self) -> int:
        """Sessions that one user can have."""
        return max(self.max_sessions // 10, 1) if self.max_user_sessions is None else self.max_user_sessions


@dataclass(frozen=True, slots=True)
class HubOptions:
    """How messages of many publishers are matched together."""

    max_waiting: int = 65_536  # Messages that wait to be matched, at most
    max_waiting_bytes: int = 256 << 20  # Bytes of these
    # What happens where there is no room: the publisher waits, or its messages are dropped
    when_busy: WhenBusy = "wait"
    batch_messages: int = 8_192  # Messages that are matched together, unless one publisher sends more at once

    def __post_init__(self) -> None:
        check_integer("max_waiting", self.max_waiting, 1, 2**31)
        check_integer("max_waiting_bytes", self.max_waiting_bytes, 1, MAX_BYTES)
        check_one_of("when_busy", self.when_busy, get_args(WhenBusy))
        check_integer("batch_messages", self.batch_messages, 1, 2**20)


def check_not_negative(name: str, value: float) -> None:
    """See that an option is zero or more seconds, and not endless; InvalidTypeError, InvalidValueError."""
    check_seconds(name, value)
    if value is None or not 0 <= value < 2**40:
        raise InvalidValueError(f"{name} must be zero or more seconds, not {value!r}")


SESSION_DEFAULTS = SessionOptions()
HUB_DEFAULTS = HubOptions()


#: Bytes of any text of MQTT
_LONGEST = 65_535
#: Where a message says what it is: in its properties alone, or also in its payload, a JSON object
Form = Literal["properties", "json"]


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """What gateways have in common."""

    host: str = "127.0.0.1"  # Where the other broker is
    port: int = 0
    username: str | None = None  # How the gateway logs in there; the file has the password in its first line
    password_file: str | None = None
    # Whether the connection is encrypted, and a file with the certificates, as PEM, that are trusted; without the file,
    # those that the system trusts
    tls: bool = False
    tls_ca: str | None = None
    messages: str = ""  # Where messages come from: a topic or a subject, perhaps with wildcards. Empty: none come.
    notifications: str = ""  # Where notifications go: the prefix, behind which the key is. Empty: none go.
    control: str = ""  # Where requests to subscribe and to unsubscribe come from. Empty: none come.
    write: bool = False  # Whether such requests are carried out; without, each is refused
    # With `json`, the payload of a message is a JSON object, which may have `tags`, `attributes` and `location`
    form: Form = "properties"
    session: str = "gateway"  # Name of the session whose notifications go out
    # What holds from the arrival of a message to its notification: whether each side hears of it when the other side
    # has it
    guarantee: Guarantee = "at_least_once"
    when_full: WhenFull = "drop_newest"  # What happens to notifications for which the outbox of the gateway has no room
    max_waiting: int = 10_000  # Messages that have come and are not matched yet, at most
    # Bytes of messages that have come and are not done with yet, at most; a larger message is a dead letter. It is at
    # most half of what an outbox may have, so that notifications of these find room.
    max_waiting_bytes: int = 32 << 20
    # File of JSON Lines behind which messages and notifications are written that are given up, each with the reason.
    # Without it they are counted and logged.
    dead_letters: str | None = None
    required: bool = False  # Whether the service is not ready while this gateway has no connection
    # Messages that are handed over together, at most, and notifications that go out together
    batch_messages: int = 1_024
    # Seconds between two looks whether requests have changed something, which is consolidated then
    consolidate_interval: float = 5.0
    # Seconds after which a lost connection is tried again: at first, and at most, as it doubles
    retry_first: float = 0.5
    retry_most: float = 30.0

    #: How this kind of broker names its topics or subjects
    naming: ClassVar[Naming]

    def __post_init__(self) -> None:
        for name in ("host", "messages", "notifications", "control", "session"):
            if not isinstance(getattr(self, name), str):
                raise InvalidTypeError(f"{name} must be a string, not {getattr(self, name)!r}")
            check_text(name, getattr(self, name))
        if self.username is not None:
            check_text("username", self.username)
        check_integer("port", self.port, 1, 65_535)
        if not self.messages and not self.notifications and not self.control:
            raise InvalidValueError("messages, notifications or control must say where something comes from or goes")
        if self.password_file is not None and self.username is None:
            raise InvalidValueError("username must be given beside password_file")
        if self.tls_ca is not None and not self.tls:
            raise InvalidValueError("tls_ca needs tls = true beside it")
        check_one_of("form", self.form, get_args(Form))
        check_one_of("guarantee", self.guarantee, get_args(Guarantee))
        check_one_of("when_full", self.when_full, ("drop_newest", "drop_oldest"))
        check_integer("max_waiting", self.max_waiting, 1, 2**31)
        check_integer("max_waiting_bytes", self.max_waiting_bytes, 1, MAX_BYTES)
        check_integer("batch_messages", self.batch_messages, 1, 2**20)
        for name in ("consolidate_interval", "retry_first", "retry_most"):
            check_not_negative(name, getattr(self, name))
            if not getattr(self, name) > 0:
                raise InvalidValueError(f"{name} must be more than zero seconds")

        for name in ("messages", "control", "notifications"):
            place, may_have_wildcards = getattr(self, name), name != "notifications"
            if place and not self.naming.is_usable(place, wildcards=may_have_wildcards):
                what = f"a {self.naming.place}" + (" or a filter of them" if may_have_wildcards else ", no filter")
                raise InvalidValueError(f"{name} must be {what}, not {place!r}")

    @property
    def places(self) -> dict[str, str]:
        """What the gateway takes from the broker and gives to it, by option, as filters; without those not given."""
        below = self.naming.beneath(self.notifications) if self.notifications else ""
        found = {"messages": self.messages, "control": self.control, "notifications": below}
        return {name: place for name, place in found.items() if place}

    @property
    def password(self) -> str | None:
        """The first line of `password_file`; InvalidValueError if it cannot be read."""
        if self.password_file is None:
            return None
        try:
            return Path(self.password_file).read_text("utf-8").partition("\n")[0]
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise InvalidValueError(f"password_file {self.password_file}: cannot be read: {why}") from None

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """What certificates are trusted, `None` without TLS; InvalidValueError if `tls_ca` cannot be used."""
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.tls_ca)
        except ssl.SSLError:
            raise InvalidValueError(f"tls_ca {self.tls_ca}: it has no certificates as PEM") from None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise InvalidValueError(f"tls_ca {self.tls_ca}: cannot be read: {why}") from None

    def check_dead_letters(self) -> None:
        """See that the file of dead letters has a folder; InvalidValueError."""
        if self.dead_letters is not None and not Path(self.dead_letters).parent.is_dir():
            raise InvalidValueError(f"dead_letters {self.dead_letters}: cannot be written: its folder is not there")


def check_text(name: str, text: str) -> None:
    """See that a text is one that a broker takes: without controls, in UTF-8, and not too long; InvalidValueError."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = -1
    if not 0 <= size <= _LONGEST or any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text):
        raise InvalidValueError(
            f"{name} must be a text without control characters, of at most {_LONGEST} bytes of UTF-8, not {text[:60]!r}"
        )


@dataclass(frozen=True, slots=True)
class MqttOptions(GatewayOptions):
    """A gateway to a broker of MQTT 5; other options are those of `GatewayOptions`."""

    port: int = 1883
    session: str = "mqtt"
    # Name of the gateway at the broker, which keeps its messages by this name while it is away
    client_id: str = "tagmatch"
    session_expiry: int = 3_600  # Seconds for which the broker keeps messages for a gateway that is away
    keepalive: int = 30  # Seconds of silence after which the gateway asks whether the broker is still there

    naming: ClassVar[Naming] = MQTT

    def __post_init__(self) -> None:
        GatewayOptions.__post_init__(self)
        check_integer("session_expiry", self.session_expiry, 0, 2**32 - 1)
        check_integer("keepalive", self.keepalive, 1, 65_535)
        if not isinstance(self.client_id, str) or not self.client_id:
            raise InvalidValueError(f"client_id must be a name, not {self.client_id!r}")
        check_text("client_id", self.client_id)


@dataclass(frozen=True, slots=True)
class NatsOptions(GatewayOptions):
    """A gateway to a server of NATS; other options are those of `GatewayOptions`."""

    port: int = 4222
    session: str = "nats"
    queue: str = ""  # Queue group: of the gateways in it, each message goes to one. Empty: every gateway gets all.
    flush_timeout: float = 5.0  # Seconds within which the server must say that it has what was sent to it

    naming: ClassVar[Naming] = NATS

    def __post_init__(self) -> None:
        GatewayOptions.__post_init__(self)
        check_not_negative("flush_timeout", self.flush_timeout)
        if not isinstance(self.queue, str) or any(
            character.isspace() or not character.isprintable() for character in self.queue
        ):
            raise InvalidValueError(f"queue must be a name without spaces, not {self.queue!r}")
