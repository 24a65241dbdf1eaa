"""What comes from another broker: properties, or headers, and a payload, as rows and columns of messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tagmatch.broker.gateways.options import Form
from tagmatch.broker.publications import EXPIRES, ID, PAYLOAD
from tagmatch.files.csv_lines import value_in
from tagmatch.model.columns import tag_list
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.locations import checked_location
from tagmatch.model.filters.values import attribute_tags
from tagmatch.model.names import near_match, near_name

#: Properties that have a meaning, and the prefixes of names of attributes; NATS has no colon in names of headers
TAG, TAG_LIST, LON, LAT, CHANNEL = "tag", "tags", "lon", "lat", "channel"
ATTRIBUTES = ("attribute:", "attribute-")
#: Integers up to here are floats, too
_EXACT = 2**53
_OBJECT = ("attributes", "location", "tags")
_PROPERTIES = (TAG, TAG_LIST, LON, LAT, CHANNEL)


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
    expires : int, optional
        Microseconds since 1970.
    done : callable, optional
        Called once, when the message is matched or refused.
    """

    properties: Sequence[tuple[str, str]]
    payload: bytes
    id: bytes | None = None
    expires: int | None = None
    done: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One message as the matcher knows it."""

    came: Incoming
    tags: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    location: tuple[float, float] | None = None
    channel: str | None = None


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
    attributes: dict[str, Any] = {}
    place: dict[str, float] = {}
    channel = None
    for name, value in came.properties:
        if name == TAG:
            tags.append(value)
        elif name == TAG_LIST:
            tags += tag_list(_json(value, "property 'tags'"), "property 'tags'")
        elif name == CHANNEL:
            channel = value
        elif name in (LON, LAT):
            place[name] = _number(name, value)
        elif name.startswith(ATTRIBUTES):
            _add(attributes, name[len(ATTRIBUTES[0]) :], _value(name, value))
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
            _add(attributes, name, value)
        location = found.get("location", location)
    if location is not None:
        location = checked_location(tuple(location) if isinstance(location, list) else location, plane=plane)
    attributes = {name: value for name, value in attributes.items() if value is not None}
    attribute_tags(attributes)  # which refuses what no attribute can be
    for value in attributes.values():
        _kind(value)
    try:
        "".join(tags).encode()
    except UnicodeEncodeError:
        raise InvalidValueError("a tag has no UTF-8 form: it has half of a surrogate pair") from None
    return Row(came, tags, attributes, location, channel)


def tables_of(rows: Sequence[Row]) -> list[tuple[pa.Table, list[Row]]]:
    """Rows as tables, each with the rows that it has: one, unless values of an attribute have several types.

    Examples
    --------
    >>> came = Incoming([], b"a")
    >>> [(table, _)] = tables_of([Row(came, ["fr"], {"price": 9}), Row(came, [], {"price": 9.5})])
    >>> table["attributes"].to_pylist(), table.column_names
    ([{'price': 9.0}, {'price': 9.5}], ['tags', 'attributes', 'id', 'payload', 'expires'])
    """
    groups: list[tuple[dict[str, str], list[Row]]] = []
    for row in rows:
        own = {name: _kind(value) for name, value in row.attributes.items()}
        for kinds, members in groups:
            merged = _merged(kinds, own)
            if merged is not None:
                kinds.update(merged)
                members.append(row)
                break
        else:
            groups.append((own, [row]))
    return [(_table(kinds, members), members) for kinds, members in groups]


# -- values ------------------------------------------------------------------------------------------------------------

_TYPES = {
    "bool": pa.bool_(),
    "small": pa.int64(),
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.large_string(),
}
#: The kind that has values of both; those of one kind need no entry
_BOTH = {
    frozenset(("small", "int")): "int",
    frozenset(("small", "float")): "float",
    frozenset(("small list", "int list")): "int list",
    frozenset(("small list", "float list")): "float list",
}


def _kind(value: Any) -> str:
    if isinstance(value, list):
        kinds = {_kind(each) for each in value}
        while len(kinds) > 1:
            merged = _BOTH.get(frozenset(sorted(kinds)[:2]))
            if merged is None:
                raise InvalidTypeError(f"values of an attribute must have one type, not as in {str(value)[:60]}")
            kinds = kinds - set(sorted(kinds)[:2]) | {merged}
        return f"{next(iter(kinds), 'text')} list"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "small" if -_EXACT <= value <= _EXACT else "int"
    return "float" if isinstance(value, float) else "text"


def _merged(kinds: dict[str, str], own: dict[str, str]) -> dict[str, str] | None:
    """Kinds of attributes of a row, where others of these have kinds already; `None`: they do not go together."""
    merged = {}
    for name, kind in own.items():
        both = kinds.get(name, kind)
        if both != kind:
            both = _BOTH.get(frozenset((both, kind)), "")
            if not both:
                return None
        merged[name] = both
    return merged


def _table(kinds: dict[str, str], rows: list[Row]) -> pa.Table:
    columns: dict[str, pa.Array] = {"tags": pa.array([row.tags for row in rows], pa.list_(pa.large_string()))}
    values = []
    for name, kind in kinds.items():
        plain, _, is_list = kind.partition(" ")
        type_ = pa.list_(_TYPES[plain]) if is_list else _TYPES[plain]
        values.append(pa.array([row.attributes.get(name) for row in rows], type_))
    if values:  # whatever they are called
        columns["attributes"] = pa.StructArray.from_arrays(values, list(kinds))
    if any(row.location is not None for row in rows):
        columns["location"] = pa.array([row.location for row in rows], pa.list_(pa.float64()))
    columns[ID] = pa.array([row.came.id for row in rows], pa.binary())
    columns[PAYLOAD] = pa.array([row.came.payload for row in rows], pa.large_binary())
    columns[EXPIRES] = pa.array([row.came.expires for row in rows], pa.timestamp("us", "UTC"))
    return pa.table(columns)


def _add(attributes: dict[str, Any], name: str, value: Any) -> None:
    """Values of a name that repeats are several values of one attribute."""
    if name == TAG_LIST:
        raise InvalidValueError(f"an attribute of a message cannot be called {name!r} here")
    if name not in attributes:
        attributes[name] = value
    else:
        attributes[name] = [*_listed(attributes[name]), *_listed(value)]


def _check_property(name: str) -> None:
    """See that a property without a meaning is none that is misspelt."""
    prefix, *rest = re.split(r"[-:._](?=.)", name, maxsplit=1)
    if near := near_name(prefix, ["attribute"]) if rest else near_name(name, _PROPERTIES):
        meant = ":".join((near, *rest))
        raise InvalidValueError(f"property {name[:60]!r} means nothing here; is {meant[:60]!r} meant? Rename it")


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _value(name: str, text: str) -> Any:
    try:
        return value_in(text)
    except ValueError as error:
        raise InvalidValueError(f"property {name!r}: {error}") from None


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValueError(f"property {name!r} must be a number, not {text[:60]!r}") from None


def _json(text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidValueError(f"{what} must be JSON, not {text[:60]!r}") from None


def _object(payload: bytes) -> dict[str, Any]:
    found = _json(payload, "the payload")
    if not isinstance(found, dict):
        raise InvalidTypeError(f"the payload must be a JSON object, not {type(found).__name__}")
    if unknown := sorted(found.keys() - set(_OBJECT)):
        raise InvalidValueError(f"the payload has no {unknown[0][:60]!r}{near_match(unknown[0][:60], [*_OBJECT])}")
    return found
