"""What comes from another broker: messages, which are handed over to the hub in parts, and requests to subscribe.

No message ends this or holds up others: a message that cannot be handed over is a dead letter, alone. Dead letters,
also those of notifications, go to the end of a file, each with the reason.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from tagmatch.broker.config import Form, GatewayOptions
from tagmatch.broker.hub import EXPIRES, ID, PAYLOAD, Hub, Published
from tagmatch.broker.wire import read_json as read_command
from tagmatch.files.csv import value_in
from tagmatch.files.json import read_json
from tagmatch.model.columns import tag_list
from tagmatch.model.errors import (
    ClosedError,
    DeadlineMissed,
    InvalidTypeError,
    InvalidValueError,
    Overloaded,
    TagMatchError,
)
from tagmatch.model.input.places import checked_location
from tagmatch.model.names import near_match, near_name
from tagmatch.model.where.values import attribute_tags

if TYPE_CHECKING:
    from tagmatch.embedded import TagMatch

_LOG = logging.getLogger("tagmatch.gateways")
#: Properties that have a meaning, and the prefixes of names of attributes; NATS has no colon in names of headers
TAG, TAG_LIST, LON, LAT, CHANNEL = "tag", "tags", "lon", "lat", "channel"
ATTRIBUTES = ("attribute:", "attribute-")
_LONGEST_NEAR = 16
# The memory that each part of a message takes besides its text, about
_EACH_BYTES = 64


@dataclass(frozen=True, slots=True)
class GatewayMessage:
    """One message as it came."""

    properties: Sequence[tuple[str, str]]  # Names may repeat
    payload: bytes
    id: bytes | None = None  # What notifications carry back
    until: int | None = None  # When it expires, in microseconds of `steady_us`
    done: Callable[[], object] | None = None  # Called once, when the message needs not come again
    topic: str = ""  # Where it came from: a topic or a subject

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        texts = sum(len(name) + len(value) for name, value in self.properties)
        return len(self.payload) + len(self.topic) + texts + _EACH_BYTES * (1 + len(self.properties))


class MessageRow(NamedTuple):
    """What one message says."""

    came: GatewayMessage
    tags: list[str]  # With those made of attributes, so that values of one attribute may be of any types
    location: tuple[float, float] | None
    channel: str | None


def row_of(came: GatewayMessage, form: Form, *, plane: bool = False) -> MessageRow:
    """What a message says in its properties, and with the form `json` in its payload."""
    tags: list[str] = []
    given: dict[str, list[Any]] = {}
    place: dict[str, float] = {}
    channel = None
    for name, value in came.properties:
        if name == TAG:
            tags.append(value)
        elif name == TAG_LIST:
            tags += tag_list(read_json(value, "property 'tags'"), "property 'tags'")
        elif name == CHANNEL:
            channel = value
        elif name in (LON, LAT):
            place[name] = _read(float, name, value, "must be a number, not {text!r}")
        elif name.startswith(ATTRIBUTES):
            given.setdefault(name[len(ATTRIBUTES[0]) :], []).append(_read(value_in, name, value, "{error}"))
        else:
            _check_property(name)
    if len(place) == 1:
        raise InvalidValueError("properties lon and lat must be given together")
    location: Any = (place[LON], place[LAT]) if place else None
    if form == "json":
        found = read_json(came.payload, "the payload")
        if not isinstance(found, dict):
            raise InvalidTypeError(f"the payload must be a JSON object, not {type(found).__name__}")
        _check_known(found, ("attributes", "location", "tags"), "the payload has no")
        if not isinstance(found.get("attributes", {}), dict):
            raise InvalidTypeError("attributes in the payload must be an object")
        tags += tag_list(found.get("tags", []), "tags in the payload")
        for name, value in found.get("attributes", {}).items():
            given.setdefault(name, []).append(value)
        location = found.get("location", location)
    if location is not None:
        location = checked_location(tuple(location) if isinstance(location, list) else location, plane=plane)
    if TAG_LIST in given:
        raise InvalidValueError(f"an attribute of a message cannot be called {TAG_LIST!r} here")
    every = {name: values[0] if len(values) == 1 else _flat(values) for name, values in given.items()}
    tags += attribute_tags({name: value for name, value in every.items() if value is not None})
    try:
        "".join(tags).encode()
    except UnicodeEncodeError:
        raise InvalidValueError("a tag or a value has no UTF-8 form: it has half of a surrogate pair") from None
    return MessageRow(came, tags, location, channel)


def table_in(rows: Sequence[MessageRow], steady: int = 0) -> pa.Table:
    """Rows as a table that `Hub.publish` takes; messages expire after the rest of their time, by `steady_us`."""
    columns: dict[str, pa.Array] = {"tags": pa.array([row.tags for row in rows], pa.list_(pa.large_string()))}
    if any(row.location is not None for row in rows):
        columns["location"] = pa.array([row.location for row in rows], pa.list_(pa.float64()))
    columns[ID] = pa.array([row.came.id for row in rows], pa.binary())
    columns[PAYLOAD] = pa.array([row.came.payload for row in rows], pa.large_binary())
    left = [None if (until := row.came.until) is None else max(until - steady, 0) for row in rows]
    columns[EXPIRES] = pa.array(left, pa.duration("us"))
    return pa.table(columns)


def _flat(values: list[Any]) -> list[Any]:
    lists = (value if isinstance(value, list) else [value] for value in values if value is not None)
    return [each for some in lists for each in some]


def _check_property(name: str) -> None:
    """Refuse a property without a meaning that is nearly one with a meaning."""
    prefix, *rest = re.split(r"[-:._](?=.)", name, maxsplit=1)
    if len(prefix) > _LONGEST_NEAR:  # a misspelt name is about as long as the right one; others are not remembered
        return
    names = (TAG, TAG_LIST, LON, LAT, CHANNEL)
    if near := near_name(prefix, ["attribute"]) if rest else near_name(name, names):
        meant = ":".join((near, *rest))
        raise InvalidValueError(f"property {name[:60]!r} means nothing here; is {meant[:60]!r} meant? Rename it")


def _read(read: Callable[[str], Any], name: str, text: str, wrong: str) -> Any:
    """The value of a property, or an error that says `wrong` of it."""
    try:
        return read(text)
    except ValueError as error:
        why = wrong.format(text=text[:60], error=str(error)[:200])
        raise InvalidValueError(f"property {name[:60]!r}: {why}") from None


def _check_known(found: dict[str, Any], known: Sequence[str], what: str) -> None:
    if unknown := sorted(found.keys() - set(known)):
        raise InvalidValueError(f"{what} {unknown[0][:60]!r}{near_match(unknown[0][:60], sorted(known))}")


# -- requests ----------------------------------------------------------------------------------------------------------


class Requests:
    """Carries requests out, and consolidates what they change."""

    def __init__(self, index: TagMatch[Any], write: bool, interval: float) -> None:
        self._index, self._write, self._interval = index, write, interval
        self._changed, self._ending = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._counts = {"requests": 0, "requests_refused": 0, "consolidations": 0, "consolidations_failed": 0}
        self._thread = threading.Thread(target=self._run, name="tagmatch-consolidate", daemon=True)

    def start(self) -> None:
        """Begin to consolidate."""
        if self._write:
            self._thread.start()

    def stop(self) -> None:
        """Consolidate what has changed, and end."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def answer(self, request: bytes) -> bytes:
        """Carry a request out; the answer, a JSON object: `ok`, and how many changes are `staged` or the `error`."""
        self._count("requests")
        try:
            return json.dumps({"ok": True, "staged": self._carry_out(request)}).encode()
        except TagMatchError as error:
            why = str(error)
        except Exception as error:  # unforeseen, and an error of this request alone
            _LOG.exception("a request has failed")
            why = f"the request has failed: {type(error).__name__}; the log of the service says why"
        self._count("requests_refused")
        return json.dumps({"ok": False, "error": why}).encode()

    def _carry_out(self, request: bytes) -> int:
        if not self._write:
            raise InvalidValueError("this gateway carries out no requests: write = true in its options would let it")
        found = read_command(request, "a request")
        _check_known(found, ("action", "key", "tags", "where", "missing"), "a request has no field")
        changes: dict[str, Any] = {"subscribe": self._index.add_set, "unsubscribe": self._index.remove_set}
        action = found.pop("action", None)
        if action not in (*changes,):
            raise InvalidValueError(f"action must be one of {(*changes,)}, not {str(action)[:60]!r}")
        if "missing" in found and action == "subscribe":
            raise InvalidValueError("'missing' is for requests to unsubscribe")
        if lacking := sorted({"key", "tags"} - found.keys()):
            raise InvalidValueError(f"a request needs {lacking[0]!r}")
        staged: int = changes[action](**found)
        self._changed.set()
        return staged

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            self._consolidate()
        self._consolidate()

    def _consolidate(self) -> None:
        if not self._changed.is_set():
            return
        self._changed.clear()
        try:
            self._index.consolidate()
            self._count("consolidations")
        except Exception as error:  # changes stay staged, and are tried again
            self._changed.set()
            self._count("consolidations_failed")
            _LOG.error("consolidation failed: %s", error)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def stats(self) -> dict[str, int]:
        """Counts: `requests`, `requests_refused` of them, `consolidations`, `consolidations_failed`."""
        with self._lock:
            return dict(self._counts)


# -- dead letters ------------------------------------------------------------------------------------------------------

#: Bytes of the file after which no letter is written to it, until an operator moves it away
MOST_BYTES = 1 << 30
_LONGEST_REASON = 500


class DeadLetters:
    """Where dead letters go; all of them are logged and counted. All methods may be called from many threads."""

    def __init__(self, path: str | None, gateway: str) -> None:
        self._path, self._gateway = path, gateway
        self._lock = threading.Lock()
        self._counts = {"dead_letters": 0, "dead_letters_unwritten": 0}

    def add(self, way: Literal["in", "out"], given_up: Sequence[tuple[Any, str]]) -> None:
        """Write messages that came or notifications that were to go, each with the reason; nothing waits for it."""
        for letter, reason in given_up:
            what = "a message" if way == "in" else "a notification"
            fields = {"gateway": self._gateway, "topic": letter.topic[:200], "reason": reason[:_LONGEST_REASON]}
            _LOG.warning("%s is given up", what, extra={"fields": fields})
        with self._lock:
            self._counts["dead_letters"] += len(given_up)
            try:
                if self._path is not None:
                    self._write(self._path, b"".join(self._line(way, *each) for each in given_up))
                    return
            except (OSError, ValueError) as error:
                _LOG.error("dead letters are not written: %s", error)
            self._counts["dead_letters_unwritten"] += len(given_up)

    def _line(self, way: str, letter: Any, reason: str) -> bytes:
        found = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "gateway": self._gateway,
            "way": way,
            "reason": reason[:_LONGEST_REASON],
            "topic": letter.topic,
            "payload": b64encode(letter.payload).decode(),
        }
        if letter.id is not None:
            found["id"] = b64encode(letter.id).decode()
        if way == "in" and letter.properties:
            found["properties"] = [*map(list, letter.properties)]
        return json.dumps(found).encode() + b"\n"

    def _write(self, path: str, text: bytes) -> None:
        """Write behind the letters that are there; the file is opened anew each time, so that it may be moved away."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
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

    def stats(self) -> dict[str, int]:
        """Counts: `dead_letters`, and `dead_letters_unwritten` of them, as there is no file, or it takes no more."""
        with self._lock:
            return dict(self._counts)


# -- messages are handed over ------------------------------------------------------------------------------------------

#: Approximate bytes of messages that are handed over together
PART_BYTES = 8 << 20
# Until messages that found the hub overloaded are handed over again
_AGAIN_S = 0.1
_COUNTS = ("received", "matched", "unmatched", "refused", "dropped", "failed")
#: Rows of one channel that are handed over together
_Part = tuple[str | None, list[MessageRow]]


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
        self.held = 0  # messages that the other side does not know to be done with
        self._waiting = self._held_bytes = 0
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="tagmatch-gateway-in", daemon=True)

    def receive(self, came: GatewayMessage, *, may_drop: bool) -> bool:
        """Take a message; whether it was taken. One for which there is no room is dropped and counted if that may be.

        If that may not be, it is as if it had not come; the caller must see to it that it comes again.
        """
        size = came.nbytes
        if size > self._most_bytes:
            self.refuse(came, f"it has {size:,} bytes, more than max_waiting_bytes and outboxes allow")
            return True
        with self._lock:
            has_room = self.held < self._options.max_waiting and self._held_bytes + size <= self._most_bytes
            if has_room or may_drop:
                self._counts["received"] += 1
            if not has_room:
                self._counts["dropped"] += may_drop
                return False
            self._inbox.append(came)
            self._waiting += 1
            self.held += 1
            self._held_bytes += size
            self._came.notify()
            return True

    def refuse(self, came: GatewayMessage, why: object) -> None:
        """Count a message that has come just now and cannot be used: a dead letter."""
        self._letters.add("in", [(came, _reason(why))])
        with self._lock:
            self._counts.update(received=1, refused=1)
        _finish([came])

    def count_dropped(self) -> None:
        """Count a message that the client library has dropped."""
        with self._lock:
            self._counts.update(received=1, dropped=1)

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
                self._publish(*again[1])
            for channel, rows in self._by_channel(taken).items():
                self._publish(channel, rows)

    def _taken(self) -> list[GatewayMessage]:
        taken: list[GatewayMessage] = []
        nbytes = 0
        while self._inbox and len(taken) < self._options.batch_messages:
            nbytes += self._inbox[0].nbytes
            if taken and nbytes > PART_BYTES:
                break
            taken.append(self._inbox.popleft())
        return taken

    def _by_channel(self, taken: Sequence[GatewayMessage]) -> dict[str | None, list[MessageRow]]:
        """Messages of each channel; those that cannot be read are given up."""
        found: dict[str | None, list[MessageRow]] = {}
        for came in taken:
            try:
                row = row_of(came, self._options.form, plane=self._plane)
            except Exception as error:  # an error of this message alone
                self._give_up([came], error)
            else:
                found.setdefault(row.channel, []).append(row)
        return found

    def _publish(self, channel: str | None, rows: list[MessageRow]) -> None:
        try:
            published = self._hub.publish(table_in(rows, self._steady()), channel=channel, when_busy="wait")
        except Exception as error:
            self._refused(channel, rows, error, may_be_notified=False)
        else:
            published.add_done_callback(partial(self._published, channel, rows))

    def _published(self, channel: str | None, rows: list[MessageRow], future: Future[Published]) -> None:
        """Count messages that were matched; called in the thread of the hub."""
        error = future.exception()
        if error is not None:
            self._refused(channel, rows, error, may_be_notified=not isinstance(error, TagMatchError))
            return
        matched = future.result().matched
        self._count(len(rows), matched=matched, unmatched=len(rows) - matched)
        self._release([row.came for row in rows if row.came.done is None])
        if awaited := [row.came for row in rows if row.came.done is not None]:
            self._when_sent(lambda: self._release(awaited))

    def _refused(
        self, channel: str | None, rows: list[MessageRow], error: BaseException, *, may_be_notified: bool
    ) -> None:
        """Find the message that causes an error, unless the error is temporary."""
        members, middle = [row.came for row in rows], len(rows) // 2
        if isinstance(error, ClosedError):
            # The service ends: the other side keeps what it does not hear of
            self._count(len(rows), dropped=len(rows))
            self._release(members, acknowledge=False)
        elif channel is not None and isinstance(error, DeadlineMissed | Overloaded):
            self._give_up(members, error)
        elif isinstance(error, Overloaded):
            self._put_back((channel, rows), after=_AGAIN_S)
        elif not middle or (may_be_notified and self._options.guarantee == "at_most_once"):
            self._give_up(members, error)
        else:
            self._put_back((channel, rows[:middle]), (channel, rows[middle:]))

    def _put_back(self, *parts: _Part, after: float = 0.0) -> None:
        moment = time.monotonic() + after
        with self._lock:
            self._again.extendleft((moment, part) for part in reversed(parts))
            self._came.notify()

    def _give_up(self, members: list[GatewayMessage], error: BaseException) -> None:
        if isinstance(error, DeadlineMissed | Overloaded):
            outcome = "dropped"
        elif isinstance(error, TagMatchError):
            outcome = "refused"
        else:
            outcome = "failed"
            _LOG.error("messages were not matched", exc_info=error)
        self._letters.add("in", [(came, _reason(error)) for came in members])
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
            self.held -= len(members)
            self._held_bytes -= sum(came.nbytes for came in members)

    def start(self) -> None:
        """Begin to hand over."""
        self._thread.start()

    def wait(self, timeout: float) -> bool:
        """Wait until no message waits to be matched; whether that is so."""
        with self._lock:
            return self._went.wait_for(lambda: self._waiting == 0, timeout)

    def end(self) -> None:
        """End the thread, when it has handed over what there is."""
        with self._lock:
            self._is_ending = True
            self._came.notify_all()

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


def _reason(why: object) -> str:
    return f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
