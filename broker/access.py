"""Access: the users, their rights by role, the limits of their messages, and a call on its way.

All ways into the service share this. Bearer tokens have users. Limits say how fast a user may send, how many clients
there may be, and how large their messages.
"""

from __future__ import annotations

import hmac
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tagmatch.broker.config import Role, ServerOptions, User
from tagmatch.broker.config_file import token_sha256
from tagmatch.broker.wire import GoneError, UnauthenticatedError
from tagmatch.model.errors import AccessError, Overloaded, UnavailableError

if TYPE_CHECKING:
    import pyarrow as pa

    from tagmatch.broker.service import Service
    from tagmatch.embedded import TagMatch

#: Where no users are configured, everyone is this one
ANYONE = User("anyone", "0" * 64, "admin")
#: Who shows no token, though there are users: may ask for the health of the service, and for nothing else
NOBODY = User("(no token)", "0" * 64)

_LONGEST = 4096
_NO_TOKEN, _EXPIRED = "the call needs a token: the header `authorization: Bearer TOKEN`", "the token has expired"


def user_of(token: str | None, users: Sequence[User], *, or_nobody: bool = False) -> User:
    """The user of a token; with `or_nobody`, a call without a token is `NOBODY`'s."""
    if not users:
        return ANYONE
    if token is None and or_nobody:
        return NOBODY
    if token is None or len(token) > _LONGEST:
        raise UnauthenticatedError(_NO_TOKEN)
    digest, found = token_sha256(token), None
    for user in users:  # all of them, so that the time tells nothing
        if hmac.compare_digest(digest, user.token_sha256):
            found = user
    if found is None:
        raise UnauthenticatedError("the token is unknown")
    if found.has_expired():
        raise UnauthenticatedError(_EXPIRED)
    return found


def require(user: User, role: Role, what: str) -> User:
    """See that a user has a right."""
    if user is NOBODY:
        raise UnauthenticatedError(_NO_TOKEN)
    if user.has_expired():
        raise UnauthenticatedError(_EXPIRED)
    if not user.may(role):
        raise AccessError(f"{what} needs the role {role!r}; user {user.name!r} has {user.role!r}")
    return user


def token_in(authorization: str) -> str | None:
    """The bearer token in the header `authorization` of a call, or `None`."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


#: Calls that administrators may have beyond `max_calls`; as many more are for their actions
RESERVED = 8
#: Messages of `max_message_bytes` that a user may have waiting, in all streams together
USER_MESSAGES = 4
# Seconds between looks whether a waiting call may go on
LOOK_S = 0.2
#: Why a call is not taken, or has no answer, when the service ends
ENDS = "the service ends, and takes no more calls"


class Bucket:
    """A token bucket: a caller that wants more than it holds waits, or is refused."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most, self._clock = rate, most, clock
        self._left, self._at = most, clock()
        self._lock = threading.Lock()

    def take(self, count: int) -> float:
        """Take tokens, also such as are still to come; returns the seconds until all of them are there."""
        with self._lock:
            self._renew()
            self._left -= count
            return max(0.0, -self._left / self._rate)

    def take_at_once(self, count: int) -> bool:
        """Take tokens that are there, of a large call those of a full bucket; returns whether they were."""
        with self._lock:
            self._renew()
            if self._left < min(count, self._most):
                return False
            self._left -= count
            return True

    def _renew(self) -> None:
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now


class UserLimits:
    """What a service takes of its users."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self._lock = threading.RLock()  # entered as it is, as a condition is entered by Python code
        self.changed = threading.Condition(self._lock)
        self.bytes: Counter[str] = Counter()  # of each user, held by calls
        self.rows: Counter[str] = Counter()  # held by all calls: `in_flight`, and of these `queued`
        self._buckets: dict[str, Bucket] = {}
        self._count = 0  # of all calls
        self._peers: dict[str, int] = {}
        self._calls: dict[str, int] = {}

    def stats(self) -> dict[str, int]:
        """Clients that have calls under way, these calls, and bytes and messages that are not dealt with yet."""
        with self.changed:
            return {
                "connections": len(self._peers), "calls": self._count, "bytes": self.bytes.total(),
                "in_flight": self.rows["in_flight"], "queued": self.rows["queued"],
            }  # fmt: skip

    def by_user(self) -> dict[str, dict[str, int]]:
        """Calls under way and bytes held of each user that has some."""
        with self.changed:
            return {name: {"calls": self._calls[name], "bytes": self.bytes[name]} for name in sorted(self._calls)}

    def begin(self, user: User, peer: str, ended: Ending, *, is_action: bool) -> Memory:
        """Count a call, until `end`, and what it has in memory."""
        name, peers, calls = user.name, self._peers, self._calls
        with self._lock:
            self._check_room(user, peer, is_action=is_action)
            self._count += 1
            peers[peer] = peers.get(peer, 0) + 1
            calls[name] = calls.get(name, 0) + 1
        return Memory(self, name, peer, ended)

    def end(self, memory: Memory) -> None:
        """Count a call no more."""
        with self._lock:
            memory.close()
            self._count -= 1
            for counts, name in ((self._peers, memory.peer), (self._calls, memory.user)):
                counts[name] -= 1
                if not counts[name]:
                    del counts[name]
            if not self._peers:
                self.changed.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no call is under way; returns whether that is so."""
        with self.changed:
            return self.changed.wait_for(lambda: not self._peers, seconds)

    def _check_room(self, user: User, peer: str, *, is_action: bool) -> None:
        """Refuse a call for which there is no room; administrators have more room, most of it for their actions."""
        options, own = self.options, self._calls.get(user.name, 0)  # a `Counter` is slow to say 0
        if user is NOBODY:
            if own >= RESERVED:
                raise Overloaded(f"there are {RESERVED} calls without a token under way; try again later")
            return
        is_administrator = user.role == "admin" and (is_action or user is not ANYONE)
        more = (2 * RESERVED if is_action else RESERVED) if is_administrator else 0
        if user is not ANYONE and not (is_administrator and is_action) and own >= options.most_user_calls:
            raise Overloaded(f"user {user.name!r} has {options.most_user_calls} calls under way; end one first")
        if self._count - self._calls.get(NOBODY.name, 0) >= options.max_calls + more:
            raise Overloaded(f"the service has its {options.max_calls} calls under way; try again later")
        if peer not in self._peers and len(self._peers) >= options.max_connections + more:
            raise Overloaded(f"the service has its {options.max_connections} connections; try again later")

    def admit(self, user: str, rows: int) -> None:
        """Check that `rows` rows, at least one, are within a user's rate."""
        if self.options.rate and not self.bucket(user).take_at_once(max(rows, 1)):
            raise Overloaded(f"user {user!r} sends more than {self.options.rate:g} a second; try again later")

    def bucket(self, user: str) -> Bucket:
        """What a user may send, if there is a rate."""
        with self.changed:
            if user not in self._buckets:
                most = max(1.0, self.options.rate * self.options.burst)
                self._buckets[user] = Bucket(self.options.rate, most)
            return self._buckets[user]


class Ending:
    """Whether a call has ended; as `threading.Event`, which takes longer to make than a short call to answer."""

    __slots__ = ("_event", "_is_set")
    _making = threading.Lock()

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None  # made for the first that waits

    def is_set(self) -> bool:
        """Whether it has."""
        return self._is_set

    def set(self) -> None:
        """It has."""
        self._is_set = True
        if self._event is not None:
            self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait for it, at most so long; returns whether it has."""
        with self._making:
            event = self._event = self._event or threading.Event()
        return self._is_set or event.wait(seconds)


class Memory:
    """What one call has in memory: its messages, and bytes of all calls of its user, are no more than they may be."""

    __slots__ = ("_bytes", "_ended", "_is_closed", "_limits", "_rows", "peer", "user")

    def __init__(self, limits: UserLimits, user: str, peer: str, ended: Ending) -> None:
        self._limits, self.user, self.peer, self._ended = limits, user, peer, ended
        self._bytes = 0
        self._rows: dict[str, int] = {}
        self._is_closed = False

    def take(self, nbytes: int, rows: int = 0, *, waits: bool) -> None:
        """Count bytes and messages that have come, when there is room for them, as there always is for the first."""
        with self._limits.changed:
            while not self._has_room(nbytes, rows):
                if not waits:
                    raise Overloaded(f"user {self.user!r} sends too much at once; try again later")
                if self._ended.is_set() or self._is_closed:
                    break
                self._limits.changed.wait(LOOK_S)
            if self._ended.is_set() or self._is_closed:
                raise GoneError
            self._count(nbytes, in_flight=rows, queued=rows)

    def _has_room(self, nbytes: int, rows: int) -> bool:
        options, held, queued = self._limits.options, self._limits.bytes[self.user], self._rows.get("queued", 0)
        if queued and (queued + rows > options.queue_rows or self._bytes + nbytes > 2 * options.max_message_bytes):
            return False
        return not held or held + nbytes <= USER_MESSAGES * options.max_message_bytes

    def give_back(self, nbytes: int = 0, **rows: int) -> None:
        """Count bytes that were dealt with, messages `queued` that wait no more, and those `in_flight` no more."""
        with self._limits.changed:
            if not self._is_closed:
                self._count(-nbytes, **{name: -count for name, count in rows.items()})

    def close(self) -> None:
        """Give all back; with the lock of the limits, as another thread may count bytes that come."""
        self._is_closed = True
        if self._bytes or self._rows:
            self._count(-self._bytes, **{name: -count for name, count in self._rows.items()})

    def _count(self, nbytes: int, **rows: int) -> None:
        self._bytes += nbytes
        for name, count in rows.items():
            self._rows[name] = self._rows.get(name, 0) + count
        self._limits.bytes[self.user] += nbytes
        self._limits.rows.update(rows)
        if not self._limits.bytes[self.user]:
            del self._limits.bytes[self.user]
        self._limits.changed.notify_all()


# -- calls -------------------------------------------------------------------------------------------------------------

#: Seconds for which a call waits for its first message, and for which a client may leave a message unread
FIRST_S, UNREAD_S = 20.0, 120.0


class Incoming(Protocol):
    """The stream that a client sends: its batches, which all have the columns of `schema`."""

    @property
    def schema(self) -> pa.Schema:
        """Names and types of columns; waits for it."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


class Outgoing(Protocol):
    """Record batches of one schema, in the form in which they go to a client."""

    def begin(self) -> bytes:
        """What comes first."""

    def batch(self, batch: pa.RecordBatch, metadata: bytes = b"") -> Iterator[bytes]:
        """A batch."""

    def told(self, metadata: bytes) -> bytes:
        """What is told without data."""


class Call(ABC):
    """One call on its way: who the client is, and its end; each way into the service has its own kind."""

    # Set by the service, as soon as it knows them
    service: Service
    user: User
    role: Role | None = None  # What it needs; `None` until that is known
    what = ""  # What it does, for messages
    check: Callable[[], object] | None = None  # What is looked at again and again, if `require` is not enough
    memory: Memory  # Where it counts what it keeps
    until: float | None = None  # When it ends, if the client neither sends nor reads
    has_every_column = False  # Whether its messages have columns that the client has not sent, as those of JSON have

    def __init__(self, peer: str, token: str | None) -> None:
        self.peer, self.token = peer, token
        self.ended = Ending()

    @property
    def index(self) -> TagMatch[Any]:
        """The served index, with all keys or those that the user may see."""
        return self.service.index_of(self.user)

    @abstractmethod
    def begin(self, act: Callable[[], None]) -> None:
        """Call `act` in another thread."""

    @abstractmethod
    def outgoing(self, schema: pa.Schema) -> Outgoing:
        """What makes answers of batches with this schema."""

    @abstractmethod
    def result(self, found: Mapping[str, Any]) -> bytes:
        """An object as the only answer."""

    @abstractmethod
    def note(self, text: str) -> bytes:
        """Tell the client something about its first messages; returns the metadata of their answers."""

    def require(self) -> None:
        """See that the right is still there, once it is known which one is needed; errors as `require`."""
        if self.role is not None:
            require(self.user, self.role, self.what)

    def look(self, now: float) -> None:
        """See that it may go on at this time of `time.monotonic`; errors as `require`, and UnavailableError."""
        (self.check or self.require)()
        if self.until is not None and self.until < now:
            raise UnavailableError("the client has not sent or read anything for too long; ask again")

    def keep_to_rate(self, rows: int) -> None:
        """Wait until these rows are within the rate of the user, or the service ends; GoneError if the call does."""
        if not self.service.config.server.rate:
            return
        bucket, began = self.service.limits.bucket(self.user.name), time.monotonic()
        if (seconds := bucket.take(rows)) <= 0:
            return
        try:
            while (left := began + seconds - time.monotonic()) > 0 and not self.service.is_draining:
                if self.ended.wait(min(left, LOOK_S)):
                    raise GoneError
                self.require()
        except BaseException:
            bucket.take(-rows)  # they will not be dealt with
            raise
        finally:
            self.service.metrics.throttled.inc(time.monotonic() - began)
