"""Sessions of subscribers: by name, each with the keys that it follows and an outbox, which outlive connections.

Pairs of a key and a session that follows it stand in sorted columns, which are looked up for many keys at once. The
columns come in few runs, each more than twice as long as the next one: new pairs become a run, and runs of like lengths
are merged. So a change costs as much as it changes, however many pairs there are.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.broker.config import SESSION_DEFAULTS, Guarantee, SessionOptions, WhenFull, check_not_negative
from tagmatch.broker.outbox import KEY_TYPES, Notifications, Outbox
from tagmatch.model.arrays import I64Array, Strings
from tagmatch.model.clock import now_us, steady_us
from tagmatch.model.columns import KEY_CHECKS
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, SessionError
from tagmatch.model.options import KeyType, check_one_of

#: Code of a key that no session follows; no index of a name is as great
_NO_CODE = np.uint64(2**64 - 1)
#: Names that may be known although no session follows them any more, beside as many as are followed
_SPARE_NAMES = 1_024


class _Run:
    """Pairs in the order of their codes, then of their sessions; those that are no more are marked."""

    def __init__(self, codes: Any, sessions: Any) -> None:
        order = np.lexsort((sessions, codes))
        self.codes, self.sessions = codes[order], sessions[order]
        self.is_there = np.ones(len(codes), bool)
        self.count = len(codes)

    def __len__(self) -> int:
        return len(self.codes)

    def lookup(self, codes: Any) -> tuple[I64Array, I64Array]:
        begins = np.searchsorted(self.codes, codes, "left")
        found = np.flatnonzero(begins < len(self.codes))
        found = found[self.codes[begins[found]] == codes[found]]
        begins = begins[found]
        counts = np.searchsorted(self.codes, codes[found], "right") - begins
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        rows = np.arange(total) + np.repeat(begins - (ends - counts), counts)
        places, sessions, there = np.repeat(found, counts), self.sessions[rows], self.is_there[rows]
        return (places, sessions) if there.all() else (places[there], sessions[there])

    def remove(self, codes: Any, session: int) -> None:
        """Mark the pairs of these codes and a session as removed."""
        last = len(self.codes) - 1
        low, ends = (np.searchsorted(self.codes, codes, side) for side in ("left", "right"))
        high = ends.copy()
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle, is_open = (low + high) // 2, low < high
            is_less = is_open & (self.sessions[np.minimum(middle, last)] < session)
            low, high = np.where(is_less, middle + 1, low), np.where(is_open & ~is_less, middle, high)
        found = np.unique(low[(low < ends) & (self.sessions[np.minimum(low, last)] == session)])
        self.count -= int(np.count_nonzero(self.is_there[found]))
        self.is_there[found] = False


def _merged(runs: list[_Run]) -> list[_Run]:
    """One run of the pairs in some, without those that are marked; or no run."""
    codes = np.concatenate([run.codes[run.is_there] for run in runs])
    sessions = np.concatenate([run.sessions[run.is_there] for run in runs])
    return [_Run(codes, sessions)] if len(codes) else []


class KeyFollowers:
    """Pairs of a key and the number of a session that follows it."""

    def __init__(self, key_type: KeyType) -> None:
        self._has_strings = key_type == "string"
        self._lock = threading.Lock()
        self._names: dict[Any, int] = {}
        self._runs: list[_Run] = []
        # What looking at several runs has cost since there were several
        self._looked_at = 0

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    def _count(self) -> int:
        return sum(run.count for run in self._runs)

    def follow(self, session: int, keys: pa.Array) -> None:
        """Add pairs, none of which there is yet."""
        with self._lock:
            codes = self._new_codes(keys)
            if len(codes):
                self._runs.append(_Run(codes, np.full(len(codes), session, np.int64)))
                self._settle()

    def unfollow(self, session: int, keys: pa.Array) -> None:
        """Remove pairs; those that there are not stay away."""
        with self._lock:
            codes = self._known_codes(keys)
            for run in self._runs:
                run.remove(codes, session)
            kept = ([run] if 2 * run.count >= len(run) else _merged([run]) for run in self._runs)
            self._runs = [run for runs in kept for run in runs]
            if len(self._names) > 2 * self._count() + _SPARE_NAMES:
                self._forget_names()

    def lookup(self, keys: pa.Array) -> tuple[I64Array, I64Array]:
        """Who follows these keys."""
        with self._lock:
            codes = self._known_codes(keys)
            if len(self._runs) > 1:
                self._looked_at += len(codes) * len(self._runs)
                if self._looked_at > self._count():
                    self._runs, self._looked_at = _merged(self._runs), 0
            runs = self._runs[:]
        if not runs:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        parts = [run.lookup(codes) for run in runs]
        if len(parts) == 1:
            return parts[0]
        places, sessions = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(places, kind="stable")
        return places[order], sessions[order]

    def _settle(self) -> None:
        """Merge the last runs while they are of like lengths."""
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = _merged(self._runs[-2:])

    def _forget_names(self) -> None:
        """Forget those that no session follows; codes are places among the names, in the order in which these came."""
        self._runs = _merged(self._runs)
        followed = np.unique(np.concatenate([np.zeros(0, np.uint64), *(run.codes for run in self._runs)]))
        names = list(self._names)
        self._names = {names[code]: place for place, code in enumerate(followed.tolist())}
        self._runs = [_Run(np.searchsorted(followed, run.codes).astype(np.uint64), run.sessions) for run in self._runs]

    def _new_codes(self, keys: pa.Array) -> Any:
        if not self._has_strings:
            return keys.to_numpy(zero_copy_only=False)
        names = self._names
        return np.array([names.setdefault(key, len(names)) for key in keys.to_pylist()], np.uint64)

    def _known_codes(self, keys: pa.Array) -> Any:
        """Codes of keys; a name that is not known has one that nobody follows."""
        if not self._has_strings:
            return keys.to_numpy(zero_copy_only=False)
        encoded = keys.dictionary_encode()
        codes = np.array([self._names.get(key, _NO_CODE) for key in encoded.dictionary.to_pylist()], np.uint64)
        return codes[encoded.indices.to_numpy(zero_copy_only=False)]


#: Counts of outboxes that go on when a session has ended
_LASTING = ("offered", "delivered", "dropped", "expired", "redelivered")
MAX_NAME = 256
#: Outdated ends that may be kept, in addition to one for each session
_SPARE_ENDS = 1_024


class SessionConnection:
    """A session as one program that is connected has it; `Sessions.connect` makes them."""

    def __init__(self, sessions: Sessions, session: _Session, *, is_new: bool) -> None:
        self._sessions, self._session = sessions, session
        self.name, self.is_new, self.outbox = session.name, is_new, session.outbox
        self._number = self.outbox.connect()

    @property
    def is_present(self) -> bool:
        """Whether it has not ended, and no other one has taken the session over."""
        return self.outbox.is_present(self._number)

    @property
    def keys(self) -> set[Any] | None:
        """Keys that the session follows; `None`: every key."""
        with self._sessions.lock:
            return None if self._session.keys is None else set(self._session.keys)

    def take(
        self, most: int = 1_024, *, most_bytes: int = 1 << 22, timeout: float | None = None
    ) -> pa.RecordBatch | None:
        """The next notifications, as `Outbox.take` gives them."""
        return self.outbox.take(self._number, most, most_bytes, timeout)

    def acknowledge(self, offset: int) -> None:
        """Let go of all notifications up to this offset, as `Outbox.acknowledge` does."""
        self.outbox.acknowledge(offset)

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
        self.ends: int | None = None  # microseconds of `steady_us`; set while it is not connected


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
    ) -> SessionConnection:
        """Connect to the session of this name, or begin it. Another connection that it has ends."""
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
        with self.lock:
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
            return SessionConnection(self, session, is_new=is_new)

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
        with self.lock:
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
        with self.lock:
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
        """All sessions, or those of one subscriber, except the gateways'."""
        with self.lock:
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
        with self.lock:
            self.end_expired()
            session = self._by_name.get(name)
            if session is None or not _is_of(session, subscriber):
                return False
            self._end(session)
            return True

    def close(self) -> None:
        """End all sessions; none can be begun any more."""
        with self.lock:
            self._is_closed = True
            for session in list(self._by_name.values()):
                self._end(session)

    # -- keys --------------------------------------------------------------------------------------------------------

    def change(self, session: _Session, more: Iterable[Any] = (), gone: Iterable[Any] = ()) -> None:
        """Have a session follow more keys, and some no longer."""
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
        kind = KEY_TYPES[self.key_type]
        if gone:
            self.followers.unfollow(session.number, pa.array(list(gone), kind))
        if more:
            self.followers.follow(session.number, pa.array(list(more), kind))
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

    def following_all(self) -> list[int]:
        """Numbers of sessions that follow every key."""
        with self.lock:
            return list(self._follow_all)

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
