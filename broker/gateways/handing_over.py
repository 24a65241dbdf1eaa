"""Messages that have come through a gateway: they wait, bounded, and are handed over to the hub in parts.

No message ends this or holds up others: what cannot be handed over is a dead letter, alone. Dead letters, also those of
notifications, go to the end of a file, each with the reason.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from tagmatch.broker.config import GatewayOptions
from tagmatch.broker.gateways.incoming import GatewayMessage, MessageRow, row_of, table_in
from tagmatch.broker.hub import Hub, Published
from tagmatch.model.errors import ClosedError, DeadlineMissed, Overloaded, TagMatchError

_LOG = logging.getLogger("tagmatch.gateways")
#: Bytes of the file after which no letter is written to it, until an operator moves it away
MOST_BYTES = 1 << 30
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What is given up."""

    way: Literal["in", "out"]  # A message that came, or a notification that was to go
    reason: str
    topic: str  # Where it came from, or was to go: a topic or a subject
    payload: bytes
    id: bytes | None = None
    properties: Sequence[tuple[str, str]] = field(default_factory=tuple)

    def line(self, gateway: str) -> bytes:
        r"""An object of JSON on a line; payload and id are bytes as base64.

        Examples
        --------
        >>> DeadLetter("out", "it is too large", "out/7", b"miaow").line("mqtt")[-41:]
        b'"topic": "out/7", "payload": "bWlhb3c="}\n'
        """
        found = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "gateway": gateway,
            "way": self.way,
            "reason": self.reason[:_LONGEST_REASON],
            "topic": self.topic,
            "payload": b64encode(self.payload).decode(),
        }
        if self.id is not None:
            found["id"] = b64encode(self.id).decode()
        if self.properties:
            found["properties"] = [*map(list, self.properties)]  # type: ignore[assignment]
        return json.dumps(found).encode() + b"\n"


class DeadLetters:
    """Where dead letters go; all of them are logged and counted. All methods may be called from many threads."""

    def __init__(self, path: str | None, gateway: str) -> None:
        self._path, self._gateway = path, gateway
        self._lock = threading.Lock()
        self._counts = {"dead_letters": 0, "dead_letters_unwritten": 0}

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Write letters, as one; where that fails, it is logged and counted, and nothing waits for it."""
        for letter in letters:
            what = "a message" if letter.way == "in" else "a notification"
            fields = {"gateway": self._gateway, "topic": letter.topic[:200], "reason": letter.reason[:_LONGEST_REASON]}
            _LOG.warning("%s is given up", what, extra={"fields": fields})
        with self._lock:
            self._counts["dead_letters"] += len(letters)
            try:
                is_written = self._path is not None and self._write(self._path, letters)
            except (OSError, ValueError) as error:
                is_written = False
                _LOG.error("dead letters are not written: %s", error)
            if not is_written:
                self._counts["dead_letters_unwritten"] += len(letters)

    def _write(self, path: str, letters: Sequence[DeadLetter]) -> bool:
        """Write letters behind those that are there; opened anew each time, so that it may be moved away."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            text = b"".join(letter.line(self._gateway) for letter in letters)
            before = os.fstat(file).st_size
            if before + len(text) > MOST_BYTES:
                raise OSError(f"{path} would have more than {MOST_BYTES:,} bytes; move it away")
            try:
                while text:
                    text = text[os.write(file, text) :]
                os.fdatasync(file)
            except OSError:
                os.ftruncate(file, before)  # a line that is cut short would spoil the next one
                raise
        finally:
            os.close(file)
        return True

    def stats(self) -> dict[str, int]:
        """Counts: `dead_letters`, and `dead_letters_unwritten` of them, as there is no file, or it takes no more."""
        with self._lock:
            return dict(self._counts)


#: Approximate bytes of messages that are handed over together
PART_BYTES = 8 << 20
# Until messages that found the hub overloaded are handed over again
_AGAIN_S = 0.1
_COUNTS = ("received", "matched", "unmatched", "refused", "dropped", "failed")


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one channel that are handed over together."""

    channel: str | None
    rows: list[MessageRow]

    @property
    def members(self) -> list[GatewayMessage]:
        return [row.came for row in self.rows]

    def halves(self) -> tuple[_Part, _Part]:
        middle = len(self.rows) // 2
        return _Part(self.channel, self.rows[:middle]), _Part(self.channel, self.rows[middle:])


class HandingOver:
    """Takes messages, and hands them over in a separate thread.

    Each message is counted: `received = matched + unmatched + refused + dropped + failed + waiting`.
    """

    def __init__(
        self,
        hub: Hub,
        options: GatewayOptions,
        most_bytes: int,
        letters: DeadLetters,
        when_sent: Callable[[Callable[[], None]], None],
        *,
        plane: bool,
        steady: Callable[[], int],
    ) -> None:
        self._hub, self._options, self._most_bytes, self._plane = hub, options, most_bytes, plane
        self._letters, self._when_sent, self._steady = letters, when_sent, steady
        self._lock = threading.Lock()
        self._came, self._went = threading.Condition(self._lock), threading.Condition(self._lock)
        self._inbox: deque[GatewayMessage] = deque()
        self._again: deque[tuple[float, _Part]] = deque()  # each with the moment from which on
        self._counts: Counter[str] = Counter()
        self._waiting = self._held = self._held_bytes = 0
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="tagmatch-gateway-in", daemon=True)

    # -- messages come in --------------------------------------------------------------------------------------------

    def receive(self, came: GatewayMessage, *, may_drop: bool) -> bool:
        """Take a message; whether it was taken. One for which there is no room is dropped and counted if that may be.

        If that may not be, it is as if it had not come; the caller must see to it that it comes again.
        """
        size = came.nbytes
        if size > self._most_bytes:
            self.refuse(came, f"it has {size:,} bytes, more than max_waiting_bytes and outboxes allow")
            return True
        with self._lock:
            has_room = self._held < self._options.max_waiting and self._held_bytes + size <= self._most_bytes
            if has_room or may_drop:
                self._counts["received"] += 1
            if not has_room:
                self._counts["dropped"] += may_drop
                return False
            self._inbox.append(came)
            self._waiting += 1
            self._held += 1
            self._held_bytes += size
            self._came.notify()
            return True

    def refuse(self, came: GatewayMessage, why: object) -> None:
        """Count a message that has come just now and cannot be used: a dead letter."""
        self._letters.add([_letter(came, why)])
        with self._lock:
            self._counts.update(received=1, refused=1)
        _finish([came])

    def count_dropped(self) -> None:
        """Count a message that the client library has dropped."""
        with self._lock:
            self._counts.update(received=1, dropped=1)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                self._came.wait_for(lambda: self._again or self._inbox or self._is_ending)
                again = self._again.popleft() if self._again else None
                taken = [] if again else self._taken()
                if again is None and not taken:
                    return
            if again is not None:
                time.sleep(max(again[0] - time.monotonic(), 0.0))
                self._publish(again[1])
            for part in self._parts(taken):
                self._publish(part)

    def _taken(self) -> list[GatewayMessage]:
        taken: list[GatewayMessage] = []
        nbytes = 0
        while self._inbox and len(taken) < self._options.batch_messages:
            nbytes += self._inbox[0].nbytes
            if taken and nbytes > PART_BYTES:
                break
            taken.append(self._inbox.popleft())
        return taken

    def _parts(self, taken: Sequence[GatewayMessage]) -> list[_Part]:
        """Messages of each channel; those that cannot be read are given up."""
        by_channel: dict[str | None, list[MessageRow]] = {}
        for came in taken:
            try:
                row = row_of(came, self._options.form, plane=self._plane)
            except Exception as error:  # an error of this message alone
                self._give_up([came], error)
            else:
                by_channel.setdefault(row.channel, []).append(row)
        return [_Part(channel, rows) for channel, rows in by_channel.items()]

    def _publish(self, part: _Part) -> None:
        try:
            table = table_in(part.rows, self._steady())
            published = self._hub.publish(table, channel=part.channel, when_busy="wait")
        except Exception as error:
            self._refused(part, error, may_be_notified=False)
        else:
            published.add_done_callback(partial(self._published, part))

    def _published(self, part: _Part, future: Future[Published]) -> None:
        """Count messages that were matched; called in the thread of the hub."""
        error = future.exception()
        if error is not None:
            self._refused(part, error, may_be_notified=not isinstance(error, TagMatchError))
            return
        matched = future.result().matched
        self._count(len(part.rows), matched=matched, unmatched=len(part.rows) - matched)
        self._release([came for came in part.members if came.done is None])
        if awaited := [came for came in part.members if came.done is not None]:
            self._when_sent(lambda: self._release(awaited))

    def _refused(self, part: _Part, error: BaseException, *, may_be_notified: bool) -> None:
        """Find the message that causes an error, unless the error is temporary."""
        if isinstance(error, ClosedError):
            # The service ends: the other side keeps what it does not hear of
            self._count(len(part.rows), dropped=len(part.rows))
            self._release(part.members, acknowledge=False)
        elif part.channel is not None and isinstance(error, DeadlineMissed | Overloaded):
            self._give_up(part.members, error)
        elif isinstance(error, Overloaded):
            self._put_back(part, after=_AGAIN_S)
        elif len(part.rows) == 1 or (may_be_notified and self._options.guarantee == "at_most_once"):
            self._give_up(part.members, error)
        else:
            self._put_back(*part.halves())

    def _put_back(self, *parts: _Part, after: float = 0.0) -> None:
        moment = time.monotonic() + after
        with self._lock:
            self._again.extendleft((moment, part) for part in reversed(parts))
            self._came.notify()

    # -- outcomes of messages ----------------------------------------------------------------------------------------

    def _give_up(self, members: list[GatewayMessage], error: BaseException) -> None:
        if isinstance(error, DeadlineMissed | Overloaded):
            outcome = "dropped"
        else:
            outcome = "refused" if isinstance(error, TagMatchError) else "failed"
        if outcome == "failed":
            _LOG.error("messages were not matched", exc_info=error)
        self._letters.add([_letter(came, error) for came in members])
        self._count(len(members), **{outcome: len(members)})
        self._release(members)

    def _count(self, count: int, **outcomes: int) -> None:
        with self._lock:
            self._counts.update(outcomes)
            self._waiting -= count
            self._went.notify_all()

    def _release(self, members: Sequence[GatewayMessage], *, acknowledge: bool = True) -> None:
        """Let go of messages, and tell the other side that they need not come again."""
        if acknowledge:
            _finish(members)
        with self._lock:
            self._held -= len(members)
            self._held_bytes -= sum(came.nbytes for came in members)
            self._went.notify_all()

    # -- the object --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to hand over."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether it still hands over."""
        return self._thread.is_alive()

    def wait(self, timeout: float) -> bool:
        """Wait until no message waits to be matched; whether that is so."""
        with self._lock:
            return self._went.wait_for(lambda: self._waiting == 0, timeout)

    def end(self) -> None:
        """End the thread, when it has handed over what there is."""
        with self._lock:
            self._is_ending = True
            self._came.notify_all()

    @property
    def held(self) -> int:
        """Messages that the other side does not know to be done with."""
        return self._held

    def stats(self) -> dict[str, int]:
        """Counts of one moment: messages by outcome, those `waiting`, and bytes of messages that are held."""
        with self._lock:
            counts = {name: self._counts[name] for name in _COUNTS}
            return {**counts, "waiting": self._waiting, "waiting_bytes": self._held_bytes}


def _finish(members: Sequence[GatewayMessage]) -> None:
    for came in members:
        if came.done is not None:
            try:
                came.done()
            except Exception as error:  # of the connection; the message comes again
                _LOG.warning("a message was not acknowledged: %s", error)


def _letter(came: GatewayMessage, why: object) -> DeadLetter:
    reason = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
    return DeadLetter("in", reason, came.topic, came.payload, came.id, came.properties)
