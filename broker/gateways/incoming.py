"""What comes from another broker: messages as rows and columns, and requests to add or to remove a subscription."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tagmatch.broker.config import Form
from tagmatch.broker.hub import EXPIRES, ID, PAYLOAD
from tagmatch.broker.wire import read_json as read_command
from tagmatch.files.csv import value_in
from tagmatch.files.json import read_json
from tagmatch.model.columns import tag_list
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.input.places import checked_location
from tagmatch.model.names import near_match, near_name

if TYPE_CHECKING:
    from tagmatch import TagMatch
from tagmatch.model.where.values import attribute_tags

#: Properties that have a meaning, and the prefixes of names of attributes; NATS has no colon in names of headers
TAG, TAG_LIST, LON, LAT, CHANNEL = "tag", "tags", "lon", "lat", "channel"
ATTRIBUTES = ("attribute:", "attribute-")
_OBJECT = ("attributes", "location", "tags")
_PROPERTIES = (TAG, TAG_LIST, LON, LAT, CHANNEL)
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

    def is_same(self, other: GatewayMessage) -> bool:
        """Whether another one says the same, except when it expires."""
        mine, its = ((each.topic, each.id, each.payload, [*each.properties]) for each in (self, other))
        return mine == its

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        texts = sum(len(name) + len(value) for name, value in self.properties)
        return len(self.payload) + len(self.topic) + texts + _EACH_BYTES * (1 + len(self.properties))


@dataclass(frozen=True, slots=True)
class MessageRow:
    """What one message says: its tags, attributes and place, and the channel that it is of."""

    came: GatewayMessage
    tags: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    location: tuple[float, float] | None = None
    channel: str | None = None
    all_tags: list[str] = field(init=False, repr=False)  # The tags, and those made of attributes

    def __post_init__(self) -> None:
        every = [*self.tags, *attribute_tags(self.attributes)]
        try:
            "".join(every).encode()
        except UnicodeEncodeError:
            raise InvalidValueError("a tag or a value has no UTF-8 form: it has half of a surrogate pair") from None
        object.__setattr__(self, "all_tags", every)


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
            place[name] = _number(name, value)
        elif name.startswith(ATTRIBUTES):
            given.setdefault(name[len(ATTRIBUTES[0]) :], []).append(_value(name, value))
        else:
            _check_property(name)
    location: Any = None
    if place:
        if len(place) < 2:
            raise InvalidValueError("properties lon and lat must be given together")
        location = (place[LON], place[LAT])
    if form == "json":
        found = _object(came.payload)
        tags += tag_list(found.get("tags", []), "tags in the payload")
        inner = found.get("attributes", {})
        if not isinstance(inner, dict):
            raise InvalidTypeError("attributes in the payload must be an object")
        for name, value in inner.items():
            given.setdefault(name, []).append(value)
        location = found.get("location", location)
    if location is not None:
        location = checked_location(tuple(location) if isinstance(location, list) else location, plane=plane)
    if TAG_LIST in given:
        raise InvalidValueError(f"an attribute of a message cannot be called {TAG_LIST!r} here")
    attributes = {name: values[0] if len(values) == 1 else [*_flat(values)] for name, values in given.items()}
    return MessageRow(came, tags, {n: each for n, each in attributes.items() if each is not None}, location, channel)


def table_in(rows: Sequence[MessageRow], steady: int = 0) -> pa.Table:
    r"""Rows as a table that `Hub.publish` takes; messages expire after the rest of their time, by `steady_us`.

    Attributes become tags, so that values of one attribute may be of any types.

    >>> came = GatewayMessage([], b"a")
    >>> table = table_in([MessageRow(came, ["fr"], {"city": "Rome"}), MessageRow(came, [], {"city": True})])
    >>> table["tags"].to_pylist() == [["fr", "\0=city\0sRome"], ["\0=city\0b1"]], table.column_names
    (True, ['tags', 'id', 'payload', 'expires'])
    """
    columns: dict[str, pa.Array] = {"tags": pa.array([row.all_tags for row in rows], pa.list_(pa.large_string()))}
    if any(row.location is not None for row in rows):
        columns["location"] = pa.array([row.location for row in rows], pa.list_(pa.float64()))
    columns[ID] = pa.array([row.came.id for row in rows], pa.binary())
    columns[PAYLOAD] = pa.array([row.came.payload for row in rows], pa.large_binary())
    left = [None if (until := row.came.until) is None else max(until - steady, 0) for row in rows]
    columns[EXPIRES] = pa.array(left, pa.duration("us"))
    return pa.table(columns)


# -- values ------------------------------------------------------------------------------------------------------------


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """Values of a name that repeats, which are several values of one attribute."""
    for value in values:
        if isinstance(value, list):
            yield from value
        elif value is not None:
            yield value


def _check_property(name: str) -> None:
    """Refuse a property without a meaning that is nearly one with a meaning."""
    prefix, *rest = re.split(r"[-:._](?=.)", name, maxsplit=1)
    if len(prefix) > _LONGEST_NEAR:  # a misspelt name is about as long as the right one; others are not remembered
        return
    if near := near_name(prefix, ["attribute"]) if rest else near_name(name, _PROPERTIES):
        meant = ":".join((near, *rest))
        raise InvalidValueError(f"property {name[:60]!r} means nothing here; is {meant[:60]!r} meant? Rename it")


def _value(name: str, text: str) -> Any:
    try:
        return value_in(text)
    except ValueError as error:
        raise InvalidValueError(f"property {name[:60]!r}: {str(error)[:200]}") from None


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValueError(f"property {name!r} must be a number, not {text[:60]!r}") from None


def _object(payload: bytes) -> dict[str, Any]:
    found = read_json(payload, "the payload")
    if not isinstance(found, dict):
        raise InvalidTypeError(f"the payload must be a JSON object, not {type(found).__name__}")
    if unknown := sorted(found.keys() - set(_OBJECT)):
        raise InvalidValueError(f"the payload has no {unknown[0][:60]!r}{near_match(unknown[0][:60], [*_OBJECT])}")
    return found


_LOG = logging.getLogger("tagmatch.gateways")
_ACTIONS = ("subscribe", "unsubscribe")
_FIELDS = frozenset(("action", "key", "tags", "where", "missing"))


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
            staged = self._carry_out(request)
        except TagMatchError as error:
            self._count("requests_refused")
            return _error(error)
        except Exception as error:  # unforeseen, and an error of this request alone
            _LOG.exception("a request has failed")
            self._count("requests_refused")
            return _error(f"the request has failed: {type(error).__name__}; the log of the service says why")
        return json.dumps({"ok": True, "staged": staged}).encode()

    def _carry_out(self, request: bytes) -> int:
        if not self._write:
            raise InvalidValueError("this gateway carries out no requests: write = true in its options would let it")
        found = _read(request)
        tags, key, where = found["tags"], found["key"], found.get("where")
        if found["action"] == "subscribe":
            staged = self._index.add_set(tags, key, where=where)
        else:
            staged = self._index.remove_set(tags, key, where=where, missing=found.get("missing", "ignore"))
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


def _error(why: object) -> bytes:
    return json.dumps({"ok": False, "error": str(why)}).encode()


def _read(request: bytes) -> dict[str, Any]:
    found = read_command(request, "a request")
    if unknown := sorted(found.keys() - _FIELDS):
        near = near_match(unknown[0][:60], sorted(_FIELDS))
        raise InvalidValueError(f"a request has no field {unknown[0][:60]!r}{near}")
    if found.get("action") not in _ACTIONS:
        raise InvalidValueError(f"action must be one of {_ACTIONS}, not {str(found.get('action'))[:60]!r}")
    if "missing" in found and found["action"] == "subscribe":
        raise InvalidValueError("'missing' is for requests to unsubscribe")
    if missing := sorted({"key", "tags"} - found.keys()):
        raise InvalidValueError(f"a request needs {missing[0]!r}")
    return found
