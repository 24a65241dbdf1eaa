"""What comes from another broker: what its messages say, and requests to subscribe.

Dead letters, messages that cannot be used and notifications that cannot be sent, go to the end of a file, each with the
reason.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from tagmatch.broker.cloudevents import Event, event_in, message_in, properties_in, written
from tagmatch.broker.config import Form
from tagmatch.broker.hub import EXPIRES, ID, PAYLOAD, Tallies
from tagmatch.broker.wire import read_json as read_command
from tagmatch.files.csv import value_in
from tagmatch.files.json import read_json
from tagmatch.model.columns import tag_list
from tagmatch.model.errors import IndexChangedError, InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.input.places import checked_locations
from tagmatch.model.input.values import packed
from tagmatch.model.names import near_match, near_name

if TYPE_CHECKING:
    from tagmatch.embedded import TagMatch
    from tagmatch.model.change_counts import ChangeCounts

_LOG = logging.getLogger("tagmatch.gateways")
#: Properties that have a meaning, and the prefixes of names of attributes; NATS has no colon in names of headers
TAG, TAG_LIST, LON, LAT, CHANNEL = "tag", "tags", "lon", "lat", "channel"
ATTRIBUTES = ("attribute:", "attribute-")
_LONGEST_NEAR = 16
#: The type of places of messages
PLACES = pa.list_(pa.list_(pa.float64()))
# The memory that each part of a message takes besides its text, about
_EACH_BYTES = 64


class GatewayMessage(NamedTuple):
    """One message as it came."""

    properties: Sequence[tuple[str, str]]  # Names may repeat
    payload: bytes
    id: bytes | None = None  # What notifications carry back
    until: int | None = None  # When it expires, in microseconds of `steady_us`
    done: Callable[[], object] | None = None  # Called once, when the message needs not come again
    topic: str = ""  # Where it came from: a topic or a subject
    record: Any = None  # What the client of the broker gave

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        texts = sum(len(name) + len(value) for name, value in self.properties)
        return len(self.payload) + len(self.topic) + texts + _EACH_BYTES * (1 + len(self.properties))


#: Headers of messages that brokers keep no other place for, and of notifications
ID_HEADER, EXPIRES_IN = "id", "expires-in"
# As with MQTT, whose intervals have 32 bits
_LONGEST_S = 2.0**32


def id_and_end(headers: Sequence[tuple[str, str]], steady: int) -> tuple[bytes | None, int | None]:
    """What notifications carry back, and when a message expires, as headers say it; of several, the last one counts."""
    id_ = until = None
    for name, text in headers:
        if name == ID_HEADER:
            id_ = text.encode()
        elif name == EXPIRES_IN:
            try:
                until = steady + int(min(max(float(text), 0.0), _LONGEST_S) * 1e6)
            except ValueError:
                raise InvalidValueError(f"header {EXPIRES_IN!r} must be seconds, not {text[:60]!r}") from None
    return id_, until


class MessageRow(NamedTuple):
    """What one message says."""

    came: GatewayMessage
    tags: list[str]
    attributes: bytes  # packed, so that values of one attribute may be of any types
    location: list[tuple[float, float]]  # none, one or several
    channel: str | None
    sent: GatewayMessage  # What is published: the message, or its event as a JSON object


def row_of(came: GatewayMessage, form: Form, *, plane: bool = False) -> MessageRow:
    """What a message says in its properties, and with the forms `json` and `cloudevents` in its payload."""
    if form == "cloudevents":
        return row_of_event(came, event_in(came.properties, came.payload), plane=plane)
    found: Any = read_json(came.payload, "the payload") if form == "json" else {}
    if not isinstance(found, dict):
        raise InvalidTypeError(f"the payload must be a JSON object, not {type(found).__name__}")
    return row_in(came, came, found, plane=plane)


def row_of_event(came: GatewayMessage, event: Event, *, plane: bool = False) -> MessageRow:
    """What an event says: its extensions are properties, and it is the payload as a JSON object."""
    id_ = event["id"].encode(errors="replace") if came.id is None else came.id
    sent = came._replace(properties=properties_in(event), payload=written(event), id=id_)
    return row_in(came, sent, message_in(event), plane=plane)


def row_in(came: GatewayMessage, sent: GatewayMessage, found: dict[str, Any], *, plane: bool = False) -> MessageRow:
    """What a message says in properties, and in an object with `tags`, `attributes` and `location`."""
    tags: list[str] = []
    given: dict[str, list[Any]] = {}
    place: dict[str, float] = {}
    channel = None
    for name, value in sent.properties:
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
            check_property(name)
    if len(place) == 1:
        raise InvalidValueError("properties lon and lat must be given together")
    location: Any = (place[LON], place[LAT]) if place else None
    _check_known(found, ("attributes", "location", "tags"), "the payload has no")
    if not isinstance(found.get("attributes", {}), dict):
        raise InvalidTypeError("attributes in the payload must be an object")
    tags += tag_list(found.get("tags", []), "tags in the payload")
    for name, value in found.get("attributes", {}).items():
        given.setdefault(name, []).append(value)
    location = checked_locations(found.get("location", location), plane=plane)
    if TAG_LIST in given:
        raise InvalidValueError(f"an attribute of a message cannot be called {TAG_LIST!r} here")
    every = {name: values[0] if len(values) == 1 else _flat(values) for name, values in given.items()}
    attributes = packed(every) if every else b""
    try:
        "".join(tags).encode()
    except UnicodeEncodeError:
        raise InvalidValueError("a tag or a value has no UTF-8 form: it has half of a surrogate pair") from None
    return MessageRow(came, tags, attributes, location, channel, sent)


def table_in(rows: Sequence[MessageRow], steady: int = 0) -> pa.Table:
    """Rows as a table that `Hub.publish` takes; messages expire after the rest of their time, by `steady_us`."""
    return Rows.of(rows).published(steady)


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages in columns, which are handed over together."""

    came: Sequence[GatewayMessage]  # One for each row, or one that has all of them
    table: pa.Table  # What they say: as `match_many` takes it
    payloads: Sequence[bytes]
    ids: Sequence[bytes | None]
    until: Sequence[int | None] | None  # When they expire, by `steady_us`; `None` if none does

    @classmethod
    def of(cls, rows: Sequence[MessageRow]) -> Rows:
        """What these messages say."""
        columns: dict[str, pa.Array] = {"tags": pa.array([row.tags for row in rows], pa.list_(pa.large_string()))}
        if any(row.location for row in rows):
            columns["location"] = pa.array([row.location for row in rows], PLACES)
        if any(row.attributes for row in rows):
            columns["attributes"] = pa.array([row.attributes for row in rows], pa.binary())
        sent = [row.sent for row in rows]
        payloads, ids = [each.payload for each in sent], [each.id for each in sent]
        return cls([row.came for row in rows], pa.table(columns), payloads, ids, [each.until for each in sent])

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def is_whole(self) -> bool:
        """Whether one message has several rows, so that it is used or given up with all of them."""
        return len(self.came) < len(self)

    def part(self, first: int, last: int) -> Rows:
        """Some of the messages."""
        own = slice(first, last)
        until = None if self.until is None else self.until[own]
        return Rows(
            self.came[own], self.table.slice(first, last - first), self.payloads[own], self.ids[own], until
        )  # fmt: skip

    def published(self, steady: int = 0) -> pa.Table:
        """A table that `Hub.publish` takes."""
        own = {ID: pa.array(self.ids, pa.binary()), PAYLOAD: pa.array(self.payloads, pa.large_binary())}
        if self.until is None:
            own[EXPIRES] = pa.nulls(len(self), pa.duration("us"))
        else:
            left = [None if until is None else max(until - steady, 0) for until in self.until]
            own[EXPIRES] = pa.array(left, pa.duration("us"))
        return pa.Table.from_arrays([*self.table.columns, *own.values()], [*self.table.column_names, *own])


def _flat(values: list[Any]) -> list[Any]:
    lists = (value if isinstance(value, list) else [value] for value in values if value is not None)
    return [each for some in lists for each in some]


def check_property(name: str) -> None:
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
    if found and (unknown := sorted(found.keys() - set(known))):
        raise InvalidValueError(f"{what} {unknown[0][:60]!r}{near_match(unknown[0][:60], sorted(known))}")


# -- requests ----------------------------------------------------------------------------------------------------------


def committed(index: TagMatch[Any], *, full: bool = False) -> ChangeCounts:
    """Put staged changes into effect, after those that another program has saved since."""
    while True:
        try:
            return index.consolidate(full=full)
        except IndexChangedError:
            if not index.reload():
                raise


class Requests:
    """Carries requests out, and consolidates what they change."""

    def __init__(self, index: TagMatch[Any], counts: Tallies, *, write: bool, interval: float) -> None:
        self._index, self._counts, self._write, self._interval = index, counts, write, interval
        self._changed, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="tagmatch-consolidate", daemon=True)

    def start(self) -> None:
        """Begin to consolidate."""
        if self._write:
            self._thread.start()

    def stop(self) -> None:
        """Consolidate all changes, and end."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def answer(self, request: bytes) -> bytes:
        """Carry a request out; the answer, a JSON object: `ok`, and how many changes are `staged` or the `error`."""
        self._counts.add(requests=1)
        try:
            return json.dumps({"ok": True, "staged": self._carry_out(request)}).encode()
        except TagMatchError as error:
            why = str(error)
        except Exception as error:  # unforeseen, and an error of this request alone
            _LOG.exception("a request has failed")
            why = f"the request has failed: {type(error).__name__}; the log of the service says why"
        self._counts.add(requests_refused=1)
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
        is_last = False
        while not is_last:
            is_last = self._ending.wait(self._interval)
            if not self._changed.is_set():
                continue
            self._changed.clear()
            try:
                committed(self._index)
                self._counts.add(consolidations=1)
            except Exception as error:  # changes stay staged, and are tried again
                self._changed.set()
                self._counts.add(consolidations_failed=1)
                _LOG.error("consolidation failed: %s", error)


# -- dead letters ------------------------------------------------------------------------------------------------------

#: Bytes of the file after which no letter is written to it, until an operator moves it away
MOST_BYTES = 1 << 30
_LONGEST_REASON = 500


class DeadLetters:
    """Where dead letters go; all of them are logged and counted. All methods may be called from many threads."""

    def __init__(self, path: str | None, gateway: str, counts: Tallies) -> None:
        self._path, self._gateway, self._counts = path, gateway, counts
        self._writing = threading.Lock()
        #: Takes messages that came and are given up, besides the file; whether it keeps them
        self.keep: Callable[[Sequence[tuple[GatewayMessage, str]]], bool] | None = None

    def add(self, way: Literal["in", "out"], given_up: Sequence[tuple[Any, str]]) -> None:
        """Write messages that came or notifications that were to go, each with the reason; nothing waits for it."""
        for letter, reason in given_up:
            what = "a message" if way == "in" else "a notification"
            fields = {"gateway": self._gateway, "topic": letter.topic[:200], "reason": reason[:_LONGEST_REASON]}
            _LOG.warning("%s is given up", what, extra={"fields": fields})
        is_written = way == "in" and self.keep is not None and self.keep(given_up)
        try:
            if self._path is not None:
                with self._writing:
                    self._write(self._path, b"".join(self._line(way, *each) for each in given_up))
                is_written = True
        except (OSError, ValueError) as error:
            _LOG.error("dead letters are not written: %s", error)
        self._counts.add(dead_letters=len(given_up), dead_letters_unwritten=0 if is_written else len(given_up))

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
                getattr(os, "fdatasync", os.fsync)(file)  # macOS has only fsync
            except OSError:
                os.ftruncate(file, before)  # a line that is cut short would spoil the next one
                raise
        finally:
            os.close(file)
