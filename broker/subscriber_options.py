"""Options of sessions and of what publishes to them, checked once where they enter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import check_integer, check_one_of, check_seconds

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
    """What a session may have, unless its subscriber asks for less.

    Attributes
    ----------
    max_sessions : int
        Sessions at once, with those that are not connected.
    max_user_sessions : int, optional
        Those of one user; `None`: a tenth of `max_sessions`, which leaves some for others.
    max_keys : int
        Keys that one session follows, at most.
    max_notifications : int
        Notifications that wait in the outbox of a session, with those that were not acknowledged.
    max_bytes : int
        Bytes of these.
    when_full : {"disconnect", "drop_oldest", "drop_newest"}
        What happens where there is no room for a notification. `disconnect`: it is dropped, and the subscriber gets an
        error and is cut; `drop_oldest`: those that have waited longest make room; `drop_newest`: it is dropped.
    linger, max_linger : float
        Seconds for which a session outlives its connection, and the most that its subscriber can ask for.
    message_expiry : float, optional
        Seconds after which a message expires that does not say when it does; `None`: never.
    """

    max_sessions: int = 10_000
    max_user_sessions: int | None = None
    max_keys: int = 100_000
    max_notifications: int = 100_000
    max_bytes: int = 64 << 20
    when_full: WhenFull = "disconnect"
    linger: float = 300.0
    max_linger: float = 86_400.0
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
    """How messages of many publishers are matched together.

    Attributes
    ----------
    max_waiting : int
        Messages that wait to be matched, at most.
    max_waiting_bytes : int
        Bytes of these.
    when_busy : {"wait", "drop"}
        What happens where there is no room: the publisher waits, or its messages are dropped.
    batch_messages : int
        Messages that are matched together, unless one publisher sends more at once.
    """

    max_waiting: int = 65_536
    max_waiting_bytes: int = 256 << 20
    when_busy: WhenBusy = "wait"
    batch_messages: int = 8_192

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
