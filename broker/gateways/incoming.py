"""What comes from another broker: properties, or headers, and a payload, as rows and columns of messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tagmatch.broker.gateways.options import Form
from tagmatch.broker.publications import EXPIRES, ID, PAYLOAD
from tagmatch.files.csv_lines import value_in
from tagmatch.files.json_values import read_json
from tagmatch.model.columns import tag_list
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.locations import checked_location
from tagmatch.model.filters.values import attribute_tags
from tagmatch.model.names import near_match, near_name

#: Properties that have a meaning, and the prefixes of names of attributes; NATS has no colon in names of headers
TAG, TAG_LIST, LON, LAT, CHANNEL = "tag", "tags", "lon", "lat", "channel"
ATTRIBUTES = ("attribute:", "attribute-")
_OBJECT = ("attributes", "location", "tags")
_PROPERTIES = (TAG, TAG_LIST, LON, LAT, CHANNEL)
_LONGEST_NEAR = 16
#: Approximate bytes of messages in one table, and the memory that each part of a message takes besides its text
PART_BYTES = 8 << 20
_EACH_BYTES = 64


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message as it came.

    Attributes
    ----------
    properties : sequence of (str, str)
        Names may repeat.
    payload : bytes
    id : bytes, optional
        What notifications carry back.
    until : int, optional
        When it expires, in microseconds of `steady_us`.
    done : callable, optional
        Called once, when the message needs not come again.
    topic : str
        Where it came from: a topic or a subject.
    """

    properties: Sequence[tuple[str, str]]
    payload: bytes
    id: bytes | None = None
    until: int | None = None
    done: Callable[[], object] | None = None
    topic: str = ""

    def is_same(self, other: Incoming) -> bool:
        """Whether another one says the same, except when it expires."""
        mine, its = ((each.topic, each.id, each.payload, [*each.properties]) for each in (self, other))
        return mine == its

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        texts = sum(len(name) + len(value) for name, value in self.properties)
        return len(self.payload) + len(self.topic) + texts + _EACH_BYTES * (1 + len(self.properties))


@dataclass(frozen=True, slots=True)
class Row:
    """What one message says: its tags, attributes and place, and the channel that it is of.

    Attributes
    ----------
    all_tags : list of str
        The tags, and those made of attributes.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        No attribute can be so, or a tag has no UTF-8 form.
    """

    came: Incoming
    tags: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    location: tuple[float, float] | None = None
    channel: str | None = None
    all_tags: list[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        every = [*self.tags, *attribute_tags(self.attributes)]
        try:
            "".join(every).encode()
        except UnicodeEncodeError:
            raise InvalidValueError("a tag or a value has no UTF-8 form: it has half of a surrogate pair") from None
        object.__setattr__(self, "all_tags", every)


def row_of(came: Incoming, form: Form, *, plane: bool = False) -> Row:
    """What a message says in its properties, and with the form `json` in its payload.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        Something of it cannot be read; the message names it.

    Examples
    --------
    >>> row = row_of(Incoming([("tag", "fr"), ("tag", "cat"), ("attribute:price", "9.5")], b""), "properties")
    >>> row.tags, row.attributes
    (['fr', 'cat'], {'price': 9.5})
    """
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
    return Row(came, tags, {n: each for n, each in attributes.items() if each is not None}, location, channel)


def tables_of(
    rows: Sequence[Row], most: int = 1 << 20, most_bytes: int = PART_BYTES, *, steady: int = 0
) -> Iterator[tuple[pa.Table, list[Row]]]:
    r"""Rows as tables, each with its rows: `most` rows and `most_bytes` at most, but one row at least.

    Attributes become tags, so that values of one attribute may be of any types. Messages expire after the rest of their
    time; `steady` is the present value of `steady_us`.

    Examples
    --------
    >>> came = Incoming([], b"a")
    >>> [(table, _)] = tables_of([Row(came, ["fr"], {"city": "Rome"}), Row(came, [], {"city": True})])
    >>> table["tags"].to_pylist() == [["fr", "\0=city\0sRome"], ["\0=city\0b1"]], table.column_names
    (True, ['tags', 'id', 'payload', 'expires'])
    """
    part: list[Row] = []
    nbytes = 0
    for row in rows:
        size = row.came.nbytes
        if part and (len(part) >= most or nbytes + size > most_bytes):
            yield _table(part, steady), part
            part, nbytes = [], 0
        part.append(row)
        nbytes += size
    if part:
        yield _table(part, steady), part


def _table(rows: list[Row], steady: int) -> pa.Table:
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
