"""Sessions of subscribers: by name, each with the keys that it follows and an outbox, which outlive connections."""

from __future__ import annotations

import secrets
import threading
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from tagmatch.broker.config import SESSION_DEFAULTS, Guarantee, SessionOptions, WhenFull, check_not_negative
from tagmatch.broker.outbox import Notifications, Outbox
from tagmatch.model.arrays import I64Array, Strings, U64Array
from tagmatch.model.arrow import from_strings
from tagmatch.model.clock import now_us, steady_us
from tagmatch.model.columns import KEY_CHECKS
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, SessionError
from tagmatch.model.options import KeyType, check_one_of
from tagmatch.model.tables import NEVER

# Integers that are equal modulo this are looked up together at first
_SLOTS = 1 << 22


class KeyFollowers:
    """Keys, each with the numbers of the sessions that follow it; a change costs as much as it changes."""

    def __init__(self, key_type: KeyType) -> None:
        self._has_integers = key_type == "integer"
        self._lock = threading.Lock()
        self._numbers: dict[Any, list[int]] = {}  # ascending
        # By slot, how many followers keys have there: most keys without a follower need no look at the dictionary
        self._slots = np.zeros(_SLOTS, np.uint32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def follow(self, session: int, keys: Collection[Any]) -> None:
        """Add pairs, all of them new."""
        with self._lock:
            for key in keys:
                insort(self._numbers.setdefault(key, []), session)
            self._count_more(keys, 1)

    def unfollow(self, session: int, keys: Collection[Any]) -> None:
        """Remove pairs, all of them present."""
        with self._lock:
            for key in keys:
                numbers = self._numbers[key]
                del numbers[bisect_left(numbers, session)]
                if not numbers:
                    del self._numbers[key]
            self._count_more(keys, -1)

    def _count_more(self, keys: Collection[Any], sign: int) -> None:
        self._count += sign * len(keys)
        if self._has_integers:
            np.add.at(self._slots, _slots_of(np.fromiter(keys, np.uint64, len(keys))), sign)

    def lookup(self, keys: pa.Array) -> tuple[I64Array, I64Array]:
        """The followers of these keys: the places of keys with followers, ascending, and a session at each."""
        with self._lock:
            if self._has_integers:
                codes = keys.to_numpy(zero_copy_only=False)
                places = np.flatnonzero(self._slots[_slots_of(codes)])
                listed = codes[places].tolist()
            else:
                listed = keys.to_pylist() if self._numbers else []
                places = np.arange(len(listed))
            each = list(map(self._numbers.get, listed))
            there, found = np.array([numbers is not None for numbers in each], np.bool_), list(filter(None, each))
            counts = np.fromiter(map(len, found), np.int64, len(found))
            numbers = np.fromiter(chain.from_iterable(found), np.int64, int(counts.sum()))
        return np.repeat(places[there], counts), numbers


def _slots_of(integers: U64Array) -> Any:
    return (integers % np.uint64(_SLOTS)).astype(np.int64)


#: Counts of outboxes that go on when a session has ended
_LASTING = ("offered", "delivered", "dropped", "expired", "redelivered")
MAX_NAME = 256


class SessionConnection:
    """A session as one program that is connected has it; `Sessions.connect` makes them."""

    def __init__(self, sessions: Sessions, session: _Session) -> None:
        self._sessions, self._session = sessions, session
        self.outbox = session.outbox
        self._number = self.outbox.connect()
        # The next notifications, and to let go of all up to an offset
        self.take, self.acknowledge = partial(self.outbox.take, self._number), self.outbox.acknowledge

    @property
    def number(self) -> int:
        """The number of the session, by which notifications are offered to it."""
        return self._session.number

    @property
    def is_present(self) -> bool:
        """Whether it has not ended, and no other one has taken the session over."""
        return self.outbox.is_present(self._number)

    @property
    def keys(self) -> set[Any] | None:
        """Keys that the session follows; `None`: every key."""
        with self._sessions.lock:
            return None if self._session.keys is None else set(self._session.keys)

    def mark_of(self, offset: int) -> str:
        """A text for an offset, which no other session has, before it or after it: `12-5f0c9a1be2d34c77`."""
        return f"{offset}-{self._session.mark}"

    def resume(self, mark: str) -> bool:
        """Acknowledge up to an offset that `mark_of` has told; whether it was this session's."""
        return self._sessions.acknowledge(self._session.name, self._session.subscriber, mark)

    def follow(self, keys: Iterable[Any]) -> None:
        """Follow more keys; SessionError if they are too many."""
        self._sessions.change(self._session, more=keys)

    def unfollow(self, keys: Iterable[Any]) -> None:
        """Follow some keys no longer."""
        self._sessions.change(self._session, gone=keys)

    def close(self, *, end: bool = False) -> None:
        """End the connection, and with `end` the session; without, it lives on as long as it lingers."""
        self._sessions.disconnect(self._session, self._number, end=end)

    def __enter__(self) -> SessionConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Session:
    def __init__(self, number: int, name: str, subscriber: str, outbox: Outbox, linger: float) -> None:
        self.number, self.name, self.subscriber, self.outbox, self.linger = number, name, subscriber, outbox, linger
        self.keys: set[Any] | None = set()
        self.ends = NEVER  # microseconds of `steady_us`; set while it is not connected
        self.mark = secrets.token_hex(8)  # No other session has it, also not in another run of the service


class Sessions:
    """All sessions, by name. All methods may be called from many threads."""

    def __init__(
        self,
        key_type: KeyType,
        options: SessionOptions = SESSION_DEFAULTS,
        now: Callable[[], int] = now_us,
        steady: Callable[[], int] | None = None,
    ) -> None:
        self.key_type, self.options, self.now = key_type, options, now
        self.steady = steady or (steady_us if now is now_us else now)
        self.lock = threading.RLock()
        self._by_name: dict[str, _Session] = {}
        self._by_number: dict[int, _Session] = {}
        self._by_subscriber: Counter[str] = Counter()
        self.followers = KeyFollowers(key_type)
        self._follow_all: set[int] = set()
        self._first_end = NEVER  # no session ends earlier
        self._next_number = 0
        self._is_closed = False
        self._ended: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

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
    ) -> SessionConnection:
        """Connect to the session of this name, or begin it. Another connection that it has ends."""
        _check_name(name)
        check_one_of("guarantee", guarantee, get_args(Guarantee))
        when_full = self.options.when_full if when_full is None else when_full
        check_one_of("when_full", when_full, get_args(WhenFull))
        linger = self.options.linger if linger is None else linger
        check_not_negative("linger", linger)
        if linger > self.options.max_linger:
            raise InvalidValueError(f"linger must be at most {self.options.max_linger:g} seconds, not {linger:g}")
        if every_key and keys is not None:
            raise InvalidValueError("every_key follows all keys; give no keys with it")
        wanted = None if keys is None else self._checked(keys)
        self._check_count(len(wanted or ()))
        with self.lock:
            self.end_expired()
            if self._is_closed:
                raise SessionError("the service is ending; connect again later")
            session = self._by_name.get(name)
            if session is None:
                session = self._begin(name, subscriber, guarantee, when_full, linger)
            elif session.subscriber != subscriber:
                raise SessionError(f"session {name!r} is another subscriber's; choose another name")
            elif session.outbox.guarantee != guarantee:
                raise SessionError(
                    f"session {name!r} has the guarantee {session.outbox.guarantee}; connect with it, or end the "
                    "session first"
                )
            session.outbox.when_full, session.linger, session.ends = when_full, linger, NEVER
            if every_key:
                self._change(session, session.keys or set(), set())
                session.keys = None
                self._follow_all.add(session.number)
            elif wanted is not None:
                present = session.keys or set()
                session.keys = present
                self._follow_all.discard(session.number)
                self._change(session, present - wanted, wanted - present)
            self._counts["connections"] += 1
            return SessionConnection(self, session)

    def _begin(self, name: str, subscriber: str, guarantee: Guarantee, when_full: WhenFull, linger: float) -> _Session:
        options = self.options
        if len(self._by_name) >= options.max_sessions:
            self._counts["refused"] += 1
            raise SessionError(f"there are {options.max_sessions} sessions, the most allowed; connect again later")
        if not _is_gateway(subscriber) and self._by_subscriber[subscriber] >= options.user_sessions:
            self._counts["refused"] += 1
            raise SessionError(f"you have {options.user_sessions} sessions, the most allowed; end one (end_session)")
        limits = options.max_notifications, options.max_bytes
        outbox = Outbox(guarantee, when_full, *limits, self.now, self.steady)
        session = _Session(self._next_number, name, subscriber, outbox, linger)
        self._next_number += 1
        self._by_name[name] = self._by_number[session.number] = session
        self._by_subscriber[subscriber] += 1
        return session

    def disconnect(self, session: _Session, connection: int, *, end: bool) -> None:
        """End a connection, if it is the present one of its session, which then ends, too, or after a time."""
        with self.lock:
            if session.outbox.disconnect(connection):
                session.ends = self.steady() + int(session.linger * 1e6)
                self._first_end = min(self._first_end, session.ends)
                if end or session.linger == 0:
                    self._end(session)

    def end_expired(self) -> None:
        """End sessions that have been without a connection for as long as they linger."""
        with self.lock:
            now = self.steady()
            if now < self._first_end:
                return
            sessions = list(self._by_number.values())
            self._first_end = min((each.ends for each in sessions if each.ends > now), default=NEVER)
            for each in sessions:
                if each.ends <= now:
                    self._end(each)

    def _end(self, session: _Session) -> None:
        if self._by_name.pop(session.name, None) is None:
            return
        del self._by_number[session.number]
        self._by_subscriber[session.subscriber] -= 1
        if not self._by_subscriber[session.subscriber]:
            del self._by_subscriber[session.subscriber]
        self._follow_all.discard(session.number)
        self._change(session, session.keys or set(), set())
        session.outbox.close()
        counts = session.outbox.stats()
        self._ended.update({name: counts[name] for name in _LASTING})
        self._counts["ended"] += 1

    def listed(self, subscriber: str | None = None) -> list[dict[str, Any]]:
        """All sessions, or those of one subscriber, except the gateways'."""
        with self.lock:
            self.end_expired()
            now = self.steady()
            return [
                {
                    "session": each.name,
                    "user": each.subscriber,
                    "connected": each.ends == NEVER,
                    "guarantee": each.outbox.guarantee,
                    "keys": None if each.keys is None else len(each.keys),
                    **{name: count for name, count in each.outbox.stats().items() if name in ("waiting", "bytes")},
                    "ends_in": None if each.ends == NEVER else max(0.0, (each.ends - now) / 1e6),
                }
                for each in self._by_name.values()
                if _is_of(each, subscriber)
            ]

    def end(self, name: str, subscriber: str | None = None) -> bool:
        """End a session with all that waits, of one subscriber if that is given; whether there was one."""
        with self.lock:
            self.end_expired()
            session = self._by_name.get(name)
            if session is None or not _is_of(session, subscriber):
                return False
            self._end(session)
            return True

    def acknowledge(self, name: str, subscriber: str, mark: str) -> bool:
        """Drop a subscriber's notifications, up to a text of `mark_of`; returns whether it was of the current session.

        SessionError if the subscriber has no session of this name.
        """
        digits, dash, own = mark.partition("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and (own or not dash)):
            raise InvalidValueError(f"an id of a notification is as 12-5f0c9a1be2d34c77, not {mark[:60]!r}")
        with self.lock:
            self.end_expired()
            session = self._by_name.get(name)
            if session is None or session.subscriber != subscriber:
                raise SessionError(f"you have no session {name[:60]!r}; connect to begin one")
            if dash and own != session.mark:
                return False
            if session.outbox.guarantee == "at_least_once":
                session.outbox.acknowledge(int(digits))
            return True

    def close(self) -> None:
        """End all sessions; none can be begun any more."""
        with self.lock:
            self._is_closed = True
            for session in list(self._by_name.values()):
                self._end(session)

    def change(self, session: _Session, more: Iterable[Any] = (), gone: Iterable[Any] = ()) -> None:
        """Let a session follow more keys, and some no longer."""
        wanted, unwanted = self._checked(more), self._checked(gone)
        with self.lock:
            if session.number not in self._by_number:
                raise SessionError("this session has ended; connect again to begin another")
            if session.keys is not None:
                self._change(session, unwanted & session.keys, wanted - session.keys)
            elif unwanted:
                raise InvalidValueError("this session follows every key; connect with keys to follow only some")

    def _change(self, session: _Session, gone: set[Any], more: set[Any]) -> None:
        """Follow other keys: the work is that of the change, however many keys the session follows."""
        keys = set() if session.keys is None else session.keys
        self._check_count(len(keys) - len(gone) + len(more))
        self.followers.unfollow(session.number, gone)
        self.followers.follow(session.number, more)
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
        return set((from_strings(found) if isinstance(found, Strings) else pa.array(found)).to_pylist())

    def following_all(self) -> list[int]:
        """Numbers of sessions that follow every key."""
        with self.lock:
            return [*self._follow_all]

    def offer(self, number: int, notifications: Notifications) -> int:
        """Put notifications into the outbox of a session; how many these are, none if it has ended."""
        session = self._by_number.get(number)
        return 0 if session is None else session.outbox.offer(notifications)

    def stats(self) -> dict[str, int]:
        """Counts of all sessions, also of those that have ended."""
        with self.lock:
            self.end_expired()
            counts = Counter(self._ended)
            sessions = list(self._by_name.values())
            for session in sessions:
                counts.update(session.outbox.stats())
            names = ("offered", "delivered", "dropped", "expired", "waiting", "in_flight", "redelivered", "bytes")
            return {
                "sessions": len(sessions),
                "connected": sum(session.outbox.is_connected for session in sessions),
                "keys": len(self.followers),
                **{name: self._counts[name] for name in ("connections", "ended", "refused")},
                **{name: counts[name] for name in names},
            }


def _is_of(session: _Session, subscriber: str | None) -> bool:
    """Whether a session is a subscriber's, or a user's."""
    return session.subscriber == subscriber or (subscriber is None and not _is_gateway(session.subscriber))


def _is_gateway(subscriber: str) -> bool:
    return subscriber.startswith("\0")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise InvalidTypeError(f"the name of a session must be a string, not {name!r}")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidValueError(f"the name of a session must have 1 to {MAX_NAME} characters, not {len(name)}")
