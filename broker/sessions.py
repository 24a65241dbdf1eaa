"""Sessions of subscribers: by name, each with the keys that it follows and an outbox, which outlive connections."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.broker.notifications import KEY_TYPES, Notifications
from tagmatch.broker.outbox import Outbox
from tagmatch.broker.routes import Routes
from tagmatch.broker.subscriber_options import (
    SESSION_DEFAULTS,
    Guarantee,
    SessionOptions,
    WhenFull,
    check_not_negative,
)
from tagmatch.model.arrays import Strings
from tagmatch.model.clock import now_us, steady_us
from tagmatch.model.columns import KEY_CHECKS
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, SessionError
from tagmatch.model.options import KeyType, check_one_of

#: Counts of outboxes that go on when a session has ended
_LASTING = ("offered", "delivered", "dropped", "expired", "redelivered")
MAX_NAME = 256
#: Outdated ends that may be kept, in addition to one for each session
_SPARE_ENDS = 1_024


class Connection:
    """A session as one program that is connected has it; `Sessions.connect` makes them.

    Attributes
    ----------
    name : str
        Of the session.
    is_new : bool
        Whether the session began with this connection, not with an earlier one.
    """

    def __init__(self, sessions: Sessions, session: _Session, *, is_new: bool) -> None:
        self._sessions, self._session = sessions, session
        self.name, self.is_new = session.name, is_new
        self._number = session.outbox.connect()

    @property
    def is_present(self) -> bool:
        """Whether it has not ended, and no other one has taken the session over."""
        return self._session.outbox.is_present(self._number)

    @property
    def keys(self) -> set[Any] | None:
        """Keys that the session follows; `None`: every key."""
        return self._sessions.keys_of(self._session)

    @property
    def guarantee(self) -> Guarantee:
        """What holds for notifications of this session."""
        return self._session.outbox.guarantee

    def take(
        self, most: int = 1_024, *, most_bytes: int = 1 << 22, timeout: float | None = None
    ) -> pa.RecordBatch | None:
        """The next notifications, as `Outbox.take` gives them."""
        return self._session.outbox.take(self._number, most, most_bytes, timeout)

    def acknowledge(self, offset: int) -> None:
        """Let go of all notifications up to this offset, as `Outbox.acknowledge` does."""
        self._session.outbox.acknowledge(offset)

    def progress(self) -> tuple[int, int]:
        """How far the outbox has come, as `Outbox.progress` says."""
        return self._session.outbox.progress()

    def follow(self, keys: Iterable[Any]) -> None:
        """Follow more keys; SessionError if they are too many."""
        self._sessions.follow(self._session, keys)

    def unfollow(self, keys: Iterable[Any]) -> None:
        """Follow some keys no longer."""
        self._sessions.unfollow(self._session, keys)

    def stats(self) -> dict[str, int]:
        """Counts of the outbox, as `Outbox.stats` gives them."""
        return self._session.outbox.stats()

    def close(self, *, end: bool = False) -> None:
        """End the connection, and with `end` the session; without, it lives on as long as it lingers."""
        self._sessions.disconnect(self._session, self._number, end=end)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Session:
    def __init__(self, number: int, name: str, subscriber: str, outbox: Outbox, linger: float) -> None:
        self.number, self.name, self.subscriber, self.outbox, self.linger = number, name, subscriber, outbox, linger
        self.keys: set[Any] | None = set()
        self.ends: int | None = None  # microseconds of `steady_us`; set while it is not connected


class Sessions:
    """All sessions, by name. All methods may be called from many threads.

    Parameters
    ----------
    key_type : {"integer", "string"}
        Type of the keys of the index.
    options : SessionOptions
    now : callable
        Microseconds since 1970, for messages that expire at a time of day.
    steady : callable, optional
        Microseconds for all durations, which do not jump with the system's clock. Default: `steady_us`, or another
        `now` that is given.

    Examples
    --------
    >>> sessions = Sessions("integer")
    >>> with sessions.connect("phone", "ana", keys=[7]) as connection:
    ...     connection.keys
    {7}
    """

    def __init__(
        self,
        key_type: KeyType,
        options: SessionOptions = SESSION_DEFAULTS,
        now: Callable[[], int] = now_us,
        steady: Callable[[], int] | None = None,
    ) -> None:
        self.key_type, self.options, self.now = key_type, options, now
        self.steady = steady or (steady_us if now is now_us else now)
        self._lock = threading.RLock()
        self._by_name: dict[str, _Session] = {}
        self._by_number: dict[int, _Session] = {}
        self._by_subscriber: Counter[str] = Counter()
        self._routes = Routes(key_type)
        self._follow_all: dict[int, _Session] = {}
        # When sessions without a connection end, soonest first; what does not hold any more is passed over
        self._ends: list[tuple[int, int]] = []
        self._next_number = 0
        self._is_closed = False
        self._ended: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    # -- connections -------------------------------------------------------------------------------------------------

    def connect(
        self,
        name: str,
        subscriber: str = "",
        *,
        keys: Iterable[Any] | None = None,
        every_key: bool = False,
        guarantee: Guarantee = "at_most_once",
        when_full: WhenFull | None = None,
        linger: float | None = None,
    ) -> Connection:
        """Connect to the session of this name, or begin it. Another connection that it has ends.

        Parameters
        ----------
        name : str
            Of the session, of 1 to 256 characters.
        subscriber : str
            Who has it; another one cannot connect to it.
        keys : iterable of keys, optional
            What the session follows from now on; `None`: what it followed before, at first nothing.
        every_key : bool
            Follow every key, those to come, too; `keys` must be `None`.
        guarantee : {"at_most_once", "at_least_once"}
            Fixed for the session. `at_most_once`: a notification that was handed over does not come again.
            `at_least_once`: it comes again, to the next connection, unless it was acknowledged.
        when_full, linger
            As in `SessionOptions`, whose values are the defaults.

        Raises
        ------
        InvalidTypeError, InvalidValueError
            An argument cannot be used; the message names it.
        SessionError
            The session is another subscriber's or has another guarantee, or there are too many sessions or keys.
        """
        _check_name(name)
        check_one_of("guarantee", guarantee, ("at_most_once", "at_least_once"))
        when_full = self.options.when_full if when_full is None else when_full
        check_one_of("when_full", when_full, ("disconnect", "drop_oldest", "drop_newest"))
        linger = self.options.linger if linger is None else linger
        check_not_negative("linger", linger)
        if linger > self.options.max_linger:
            raise InvalidValueError(f"linger must be at most {self.options.max_linger:g} seconds, not {linger:g}")
        if every_key and keys is not None:
            raise InvalidValueError("every_key follows all keys; give no keys with it")
        wanted = None if keys is None else self._checked(keys)
        self._check_count(len(wanted or ()))
        with self._lock:
            self.end_expired()
            if self._is_closed:
                raise SessionError("the service is ending; connect again later")
            session = self._by_name.get(name)
            is_new = session is None
            if session is None:
                session = self._begin(name, subscriber, guarantee, when_full, linger)
            elif session.subscriber != subscriber:
                raise SessionError(f"session {name!r} is another subscriber's; choose another name")
            elif session.outbox.guarantee != guarantee:
                raise SessionError(
                    f"session {name!r} has the guarantee {session.outbox.guarantee}; connect with it, or end the "
                    "session first"
                )
            session.outbox.when_full, session.linger, session.ends = when_full, linger, None
            if every_key:
                self._change(session, session.keys or set(), set())
                session.keys = None
                self._follow_all[session.number] = session
            elif wanted is not None:
                present = session.keys or set()
                session.keys = present
                self._follow_all.pop(session.number, None)
                self._change(session, present - wanted, wanted - present)
            self._counts["connections"] += 1
            return Connection(self, session, is_new=is_new)

    def _begin(self, name: str, subscriber: str, guarantee: Guarantee, when_full: WhenFull, linger: float) -> _Session:
        options = self.options
        if len(self._by_name) >= options.max_sessions:
            self._counts["refused"] += 1
            raise SessionError(f"there are {options.max_sessions} sessions, the most allowed; connect again later")
        if not _is_gateway(subscriber) and self._by_subscriber[subscriber] >= options.user_sessions:
            self._counts["refused"] += 1
            raise SessionError(
                f"you have {options.user_sessions} sessions, the most allowed; end one first (end_session)"
            )
        limits = options.max_notifications, options.max_bytes
        outbox = Outbox(guarantee, when_full, *limits, self.now, self.steady)
        session = _Session(self._next_number, name, subscriber, outbox, linger)
        self._next_number += 1
        self._by_name[name] = self._by_number[session.number] = session
        self._by_subscriber[subscriber] += 1
        return session

    def disconnect(self, session: _Session, connection: int, *, end: bool) -> None:
        """End a connection, if it is the present one of its session, which then ends, too, or after a time."""
        with self._lock:
            if session.outbox.disconnect(connection):
                session.ends = self.steady() + int(session.linger * 1e6)
                heapq.heappush(self._ends, (session.ends, session.number))
                if len(self._ends) > 2 * len(self._by_number) + _SPARE_ENDS:
                    self._ends = [
                        (each.ends, each.number) for each in self._by_number.values() if each.ends is not None
                    ]
                    heapq.heapify(self._ends)
                if end or session.linger == 0:
                    self._end(session)

    def end_expired(self) -> None:
        """End sessions that have been without a connection for as long as they linger."""
        with self._lock:
            now = self.steady()
            while self._ends and self._ends[0][0] <= now:
                ends, number = heapq.heappop(self._ends)
                session = self._by_number.get(number)
                if session is not None and session.ends == ends:
                    self._end(session)

    def _end(self, session: _Session) -> None:
        if self._by_name.pop(session.name, None) is None:
            return
        del self._by_number[session.number]
        self._by_subscriber[session.subscriber] -= 1
        if not self._by_subscriber[session.subscriber]:
            del self._by_subscriber[session.subscriber]
        self._follow_all.pop(session.number, None)
        self._change(session, session.keys or set(), set())
        session.outbox.close()
        counts = session.outbox.stats()
        self._ended.update({name: counts[name] for name in _LASTING})
        self._counts["ended"] += 1

    def listed(self, subscriber: str | None = None) -> list[dict[str, Any]]:
        """All sessions, or those of one subscriber, except the gateways'.

        Returns
        -------
        list of dict
            Of each `session`, its name, its `user`, whether it is `connected`, its `guarantee`, how many
            `keys` it follows (`None`: every key), how many notifications are `waiting`, of how many `bytes`, and in how
            many seconds it ends (`ends_in`; `None`: it is connected).
        """
        with self._lock:
            self.end_expired()
            now = self.steady()
            return [
                {
                    "session": each.name,
                    "user": each.subscriber,
                    "connected": each.ends is None,
                    "guarantee": each.outbox.guarantee,
                    "keys": None if each.keys is None else len(each.keys),
                    **{name: count for name, count in each.outbox.stats().items() if name in ("waiting", "bytes")},
                    "ends_in": None if each.ends is None else max(0.0, (each.ends - now) / 1e6),
                }
                for each in self._by_name.values()
                if _is_of(each, subscriber)
            ]

    def end(self, name: str, subscriber: str | None = None) -> bool:
        """End a session with all that waits, of one subscriber if that is given; whether there was one."""
        with self._lock:
            self.end_expired()
            session = self._by_name.get(name)
            if session is None or not _is_of(session, subscriber):
                return False
            self._end(session)
            return True

    def close(self) -> None:
        """End all sessions; none can be begun any more."""
        with self._lock:
            self._is_closed = True
            for session in list(self._by_name.values()):
                self._end(session)

    # -- keys --------------------------------------------------------------------------------------------------------

    def keys_of(self, session: _Session) -> set[Any] | None:
        """Keys that a session follows, `None`: every key."""
        with self._lock:
            return None if session.keys is None else set(session.keys)

    def follow(self, session: _Session, keys: Iterable[Any]) -> None:
        """Have a session follow more keys."""
        wanted = self._checked(keys)
        with self._lock:
            self._check_present(session)
            if session.keys is not None:
                self._change(session, set(), wanted - session.keys)

    def unfollow(self, session: _Session, keys: Iterable[Any]) -> None:
        """Have a session follow some keys no longer."""
        unwanted = self._checked(keys)
        with self._lock:
            self._check_present(session)
            if session.keys is None:
                raise InvalidValueError("this session follows every key; connect with keys to follow only some")
            self._change(session, unwanted & session.keys, set())

    def _check_present(self, session: _Session) -> None:
        if session.number not in self._by_number:
            raise SessionError("this session has ended; connect again to begin another")

    def _change(self, session: _Session, gone: set[Any], more: set[Any]) -> None:
        """Follow other keys: the work is that of the change, however many keys the session follows."""
        keys = set() if session.keys is None else session.keys
        self._check_count(len(keys) - len(gone) + len(more))
        kind = KEY_TYPES[self.key_type]
        if gone:
            self._routes.unfollow(session.number, pa.array(list(gone), kind))
        if more:
            self._routes.follow(session.number, pa.array(list(more), kind))
        keys -= gone
        keys |= more

    def _check_count(self, wanted: int) -> None:
        if wanted > self.options.max_keys:
            raise SessionError(
                f"a session cannot follow {wanted} keys, but {self.options.max_keys} at most; use several "
                "sessions, or follow every key"
            )

    def _checked(self, keys: Iterable[Any]) -> set[Any]:
        # The order of keys says nothing here, so that sets of them will do
        listed = list(keys) if isinstance(keys, AbstractSet) else keys
        found = KEY_CHECKS[self.key_type].many(listed, "keys")
        return set(found.tolist() if isinstance(found, np.ndarray) else _texts(found))

    # -- notifications -----------------------------------------------------------------------------------------------

    def lookup(self, keys: pa.Array) -> tuple[Any, Any]:
        """Places in `keys` and numbers of sessions that follow the key there, as `Routes.lookup` gives them."""
        return self._routes.lookup(keys)

    def following_all(self) -> list[int]:
        """Numbers of sessions that follow every key."""
        with self._lock:
            return list(self._follow_all)

    def offer(self, number: int, notifications: Notifications) -> int:
        """Put notifications into the outbox of a session; how many these are, none if it has ended."""
        session = self._by_number.get(number)
        return 0 if session is None else session.outbox.offer(notifications)

    def stats(self) -> dict[str, int]:
        """Counts of all sessions, also of those that have ended.

        Returns
        -------
        dict
            `sessions` there are, `connected` of them, `keys` that they follow, `connections` begun, sessions `ended`
            and `refused`; and of notifications what `Outbox.stats` gives.
        """
        with self._lock:
            self.end_expired()
            counts = Counter(self._ended)
            sessions = list(self._by_name.values())
            for session in sessions:
                counts.update(session.outbox.stats())
            names = ("offered", "delivered", "dropped", "expired", "waiting", "in_flight", "redelivered", "bytes")
            return {
                "sessions": len(sessions),
                "connected": sum(session.outbox.is_connected for session in sessions),
                "keys": len(self._routes),
                **{name: self._counts[name] for name in ("connections", "ended", "refused")},
                **{name: counts[name] for name in names},
            }


def _is_of(session: _Session, subscriber: str | None) -> bool:
    """Whether a session is a subscriber's, or a user's."""
    return session.subscriber == subscriber or (subscriber is None and not _is_gateway(session.subscriber))


def _is_gateway(subscriber: str) -> bool:
    """Gateways have a name that no user can have."""
    return subscriber.startswith("\0")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidTypeError(f"the name of a session must be a string, not {name!r}")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidValueError(f"the name of a session must have 1 to {MAX_NAME} characters, not {len(name)}")


def _texts(strings: Strings) -> list[str]:
    kind = pa.string() if strings.offsets.dtype == np.int32 else pa.large_string()
    buffers = [None, pa.py_buffer(strings.offsets), pa.py_buffer(strings.data)]
    texts: list[str] = pa.Array.from_buffers(kind, len(strings), buffers).to_pylist()
    return texts
