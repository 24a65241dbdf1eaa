"""Limits: how fast a user may send, how many clients there may be, and how large what they send."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa

from tagmatch.broker.config import ServerOptions
from tagmatch.model.errors import InvalidValueError, Overloaded


class Bucket:
    """Tokens that come at a rate, up to so many: who takes more waits, or is refused.

    Parameters
    ----------
    rate, most : float
        Tokens a second, and at most.
    clock : callable
        Seconds.
    """

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


class Limits:
    """What a service takes of its users.

    Parameters
    ----------
    options : ServerOptions
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}
        self._peers: Counter[str] = Counter()

    @property
    def connections(self) -> int:
        """Clients that have calls under way."""
        return len(self._peers)

    @contextlib.contextmanager
    def connection(self, peer: str) -> Iterator[None]:
        """Count a call of a client.

        Raises
        ------
        Overloaded
            Too many others have calls under way.
        """
        with self._lock:
            if peer not in self._peers and len(self._peers) >= self._options.max_connections:
                raise Overloaded(f"the service has its {self._options.max_connections} connections; try again later")
            self._peers[peer] += 1
        try:
            yield
        finally:
            with self._lock:
                self._peers[peer] -= 1
                if not self._peers[peer]:
                    del self._peers[peer]

    def wait_for(self, user: str, rows: int) -> float:
        """Seconds that a stream of a user must wait before so many rows are within the rate."""
        return self._bucket(user).take(rows) if self._options.rate else 0.0

    def admit(self, user: str, rows: int) -> None:
        """See that so many rows, at least one, are within a user's rate.

        Raises
        ------
        Overloaded
            They are not.
        """
        if self._options.rate and not self._bucket(user).take_at_once(max(rows, 1)):
            raise Overloaded(f"user {user!r} sends more than {self._options.rate:g} a second; try again later")

    def _bucket(self, user: str) -> Bucket:
        with self._lock:
            if user not in self._buckets:
                most = max(1.0, self._options.rate * self._options.burst)
                self._buckets[user] = Bucket(self._options.rate, most)
            return self._buckets[user]

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """See that a batch is not too large, and that it is what it says: its bytes come from anyone.

        Raises
        ------
        InvalidValueError
            It is too large.
        pyarrow.ArrowInvalid
            Offsets, lengths or texts are damaged.
        """
        if len(batch) > self._options.max_batch_rows:
            raise InvalidValueError(
                f"a batch must have at most {self._options.max_batch_rows:,} rows, not {len(batch):,}"
            )
        batch.validate(full=True)
        self.check_bytes(batch.nbytes)

    def check_bytes(self, nbytes: int) -> None:
        """See that so many bytes are not too many; InvalidValueError."""
        if nbytes > self._options.max_message_bytes:
            raise InvalidValueError(
                f"at most {self._options.max_message_bytes:,} bytes may come at once, not {nbytes:,}"
            )
