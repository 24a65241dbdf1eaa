"""Who calls, and what they may do: bearer tokens, rights by role, and limits.

Limits say how fast a user may send, how many clients there may be, and how large their messages.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tagmatch.broker.config import Role, ServerOptions, User
from tagmatch.broker.wire import GoneError, UnauthenticatedError
from tagmatch.model.errors import AccessError, Overloaded

if TYPE_CHECKING:
    from tagmatch.broker.flight import Rpc
    from tagmatch.broker.service import Service
    from tagmatch.embedded import TagMatch

#: Where no users are configured, everyone is this one
ANYONE = User("anyone", "0" * 64, "admin")
#: Who shows no token, though there are users: may ask for the health of the service, and for nothing else
NOBODY = User("(no token)", "0" * 64)

_HEADER, _SCHEME = "authorization", "bearer "
_LONGEST = 4096
_NO_TOKEN, _EXPIRED = "the call needs a token: the header `authorization: Bearer TOKEN`", "the token has expired"


def new_token() -> tuple[str, str]:
    """A token that nobody can guess, and the SHA-256 that a configuration has of it."""
    token = secrets.token_urlsafe(32)
    return token, token_sha256(token)


def token_sha256(token: str) -> str:
    """What a configuration has of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


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
        raise UnauthenticatedError("the token is not known")
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


def token_of(headers: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The bearer token in the headers of a call, or `None`."""
    for name, value in headers:
        if name.lower() == _HEADER:
            text = value.decode(errors="replace") if isinstance(value, bytes) else value
            if text[: len(_SCHEME)].lower() == _SCHEME:
                return text[len(_SCHEME) :].strip()
    return None


#: Calls that administrators may have beyond `max_calls`; as many more are for their actions
RESERVED = 8
#: Messages of `max_message_bytes` that a user may have waiting, in all streams together
USER_MESSAGES = 4
# Seconds between looks whether what waits may go on
_LOOK_S = 0.2


class Bucket:
    """Tokens that come at a rate, up to so many: who takes more waits, or is refused."""

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
        self._options = options
        self._most_user_bytes = USER_MESSAGES * options.max_message_bytes
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._buckets: dict[str, Bucket] = {}
        self._peers: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def stats(self) -> dict[str, int]:
        """Clients that have calls under way, these calls, and bytes that have come and are not dealt with yet."""
        with self._lock:
            return {
                "connections": len(self._peers), "calls": self._peers.total(), "bytes": self._bytes.total(),
            }  # fmt: skip

    def by_user(self) -> dict[str, dict[str, int]]:
        """Calls under way and bytes held of each user that has some."""
        with self._lock:
            return {name: {"calls": self._calls[name], "bytes": self._bytes[name]} for name in sorted(self._calls)}

    @contextlib.contextmanager
    def call(self, user: User, peer: str, *, is_action: bool) -> Iterator[None]:
        """Count a call."""
        with self._lock:
            self._check_room(user, peer, is_action=is_action)
            self._peers[peer] += 1
            self._calls[user.name] += 1
        try:
            yield
        finally:
            with self._freed:
                _less(self._peers, peer, 1)
                _less(self._calls, user.name, 1)
                self._freed.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no call is under way; returns whether that is so."""
        with self._freed:
            return self._freed.wait_for(lambda: not self._peers, seconds)

    def _check_room(self, user: User, peer: str, *, is_action: bool) -> None:
        """Refuse a call for which there is no room; administrators have more room, most of it for their actions."""
        options, own = self._options, self._calls[user.name]
        if user is NOBODY:
            if own >= RESERVED:
                raise Overloaded(f"there are {RESERVED} calls without a token under way; try again later")
            return
        is_administrator = user.role == "admin" and (is_action or user is not ANYONE)
        more = (2 * RESERVED if is_action else RESERVED) if is_administrator else 0
        if user is not ANYONE and not (is_administrator and is_action) and own >= options.most_user_calls:
            raise Overloaded(f"user {user.name!r} has {options.most_user_calls} calls under way; end one first")
        if self._peers.total() - self._calls[NOBODY.name] >= options.max_calls + more:
            raise Overloaded(f"the service has its {options.max_calls} calls under way; try again later")
        if peer not in self._peers and len(self._peers) >= options.max_connections + more:
            raise Overloaded(f"the service has its {options.max_connections} connections; try again later")

    def admit(self, user: str, rows: int) -> None:
        """See that so many rows, at least one, are within a user's rate."""
        if self._options.rate and not self.bucket(user).take_at_once(max(rows, 1)):
            raise Overloaded(f"user {user!r} sends more than {self._options.rate:g} a second; try again later")

    def bucket(self, user: str) -> Bucket:
        """What a user may send, if there is a rate."""
        with self._lock:
            if user not in self._buckets:
                most = max(1.0, self._options.rate * self._options.burst)
                self._buckets[user] = Bucket(self._options.rate, most)
            return self._buckets[user]


class Memory:
    """What one call has in memory: its bytes, and all others of its user, are no more than they may be."""

    def __init__(self, limits: UserLimits, user: User, ended: threading.Event) -> None:
        self._limits, self._user, self._ended = limits, user.name, ended
        self._held = 0
        self._is_closed = False

    def take(self, nbytes: int, *, waits: bool) -> None:
        """Count bytes that have come, when there is room for them, as there always is for those of one message."""
        held, freed = self._limits._bytes, self._limits._freed
        with freed:
            while held[self._user] and held[self._user] + nbytes > self._limits._most_user_bytes:
                if not waits:
                    raise Overloaded(f"user {self._user!r} sends too much at once; try again later")
                if self._ended.is_set() or self._is_closed:
                    break
                freed.wait(_LOOK_S)
            if self._ended.is_set() or self._is_closed:
                raise GoneError
            held[self._user] += nbytes
            self._held += nbytes

    def give_back(self, nbytes: int) -> None:
        """Count bytes that were dealt with."""
        with self._limits._freed:
            if not self._is_closed:
                self._held -= nbytes
                _less(self._limits._bytes, self._user, nbytes)
                self._limits._freed.notify_all()

    def close(self) -> None:
        """Give all back."""
        with self._limits._freed:
            self._is_closed = True
            _less(self._limits._bytes, self._user, self._held)
            self._limits._freed.notify_all()


def _less(counts: Counter[str], name: str, count: int) -> None:
    """Count down, and forget names that have nothing any more."""
    counts[name] -= count
    if not counts[name]:
        del counts[name]


@dataclass(frozen=True, slots=True)
class ClientCall:
    """One call."""

    service: Service
    user: User
    role: Role  # What it needs
    what: str  # What it does, for messages
    rpc: Rpc  # The way to its client
    memory: Memory  # Where it counts the bytes that it keeps

    @property
    def index(self) -> TagMatch[Any]:
        """The index that is served."""
        return self.service.index

    def require(self) -> None:
        """See that the right is still there; errors as `access.require`."""
        require(self.user, self.role, self.what)

    def keep_to_rate(self, rows: int) -> None:
        """Wait until these rows are within the rate of the user, or the service ends."""
        if not self.service.config.server.rate:
            return
        bucket, began = self.service.limits.bucket(self.user.name), time.monotonic()
        if (seconds := bucket.take(rows)) <= 0:
            return
        try:
            while (left := began + seconds - time.monotonic()) > 0 and not self.service.is_draining:
                self.rpc.wait(min(left, _LOOK_S))
                self.require()
        except BaseException:
            bucket.take(-rows)  # they will not be dealt with
            raise
        finally:
            self.service.metrics.throttled.inc(time.monotonic() - began)
