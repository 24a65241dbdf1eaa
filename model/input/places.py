"""Where messages are, and where the clients must be that they are for: of single ones as bytes, and in columns."""

from __future__ import annotations

import contextlib
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, F64Array, I64Array, TagLists, U8Array, frozen, offsets_of
from tagmatch.model.arrow import is_text, plain_array, plain_strings, reject_no_utf8
from tagmatch.model.columns import arrow_chunks, listed_in, rows_of_tags, shown
from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError, NullError, TagMatchError
from tagmatch.model.input.values import is_list, struct_fields
from tagmatch.model.kernels.outlines import CORRIDOR, POLYGON, Areas, Outlines, areas_have, prepared
from tagmatch.model.kernels.sphere import BOX, CIRCLE, LOWER, NEAR
from tagmatch.model.where.areas import (
    AN_AREA,
    FIELDS,
    KINDS,
    LIMITS,
    MAX_LAT,
    MAX_LON,
    Area,
    Box,
    Near,
    check,
    out_of_range,
)
from tagmatch.model.where.constraints import Constraint
from tagmatch.model.where.language import rows_of
from tagmatch.model.where.outlines import Corridor, Polygon, json_of
from tagmatch.model.where.tag_columns import MOST_NUMBERS, area_tags, shapes_of
from tagmatch.model.where.tested import tested
from tagmatch.model.where.values import finite_number

#: The columns with the locations of messages, and with the areas that their clients must be in
LOCATION, WITHIN = "location", "within"
_NAMES = {True: ("x", "y"), False: ("lon", "lat")}

#: A packed place of a message that says nothing of it
NO_PLACE = b""

_BEGINS_POLYGON = re.compile(r"\s*(multi)?polygon\b", re.IGNORECASE)
_NUMBERS, _NUMBER = struct.Struct("7d"), struct.Struct("d")
_OUTLINES = [*map(chr, (POLYGON, CORRIDOR))]
_NOT_NEAR = "must be a circle, a box, a polygon or a corridor: near(…) is about where a subscriber is"
#: Bytes of a packed place without further places and without an outline
ONE_PLACE = _NUMBERS.size
_NOWHERE, _ANYWHERE = (math.nan, math.nan), (0.0, 0.0, 0.0, 0.0, 0.0)
_NOWHERE_AT_ALL = _NUMBERS.pack(*_NOWHERE, *_ANYWHERE)


def packed_place(location: object, within: object, *, plane: bool) -> bytes:
    """Where one message is, and where the clients are that it is for, as seven doubles; nothing, if it says neither.

    These are `lon` and `lat`, NaN if the message has no location; the letter of the area, 0 if it has none; and four
    numbers of the area (see `Areas`). Two more follow for each further place, and, if the area is an outline, its
    numbers, and their count. InvalidTypeError, InvalidValueError: they are no two numbers, no area or `Near`, or out
    of range.
    """
    if location is None and within is None:
        return NO_PLACE
    first, *others = checked_locations(location, plane=plane) or [_NOWHERE]
    further = struct.pack(f"{2 * len(others)}d", *chain.from_iterable(others)) if others else b""
    if within is None:
        return _NUMBERS.pack(*first, *_ANYWHERE) + further
    if isinstance(within, Near):
        raise InvalidTypeError(f"within {_NOT_NEAR}")
    try:
        check(within, plane=plane)
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"within: {error}") from None
    area = _alone(within, plane=plane)
    packed = _NUMBERS.pack(*first, area.kinds[0], *area.values[0]) + further
    return packed + np.append(area.numbers, len(area.numbers)).tobytes() if len(area.numbers) else packed


def checked_locations(location: object, *, plane: bool) -> list[tuple[float, float]]:
    """The places of a location: none, one, or several, of a list of them; errors (see `packed_place`)."""
    if location is None:
        return []
    places: Any = location
    if location != [] and not (
        isinstance(places, list | tuple) and any(isinstance(each, list | tuple | dict) for each in places)
    ):
        return [_checked_location(location, "location", plane=plane)]
    return [_checked_location(each, f"location: place {number}", plane=plane) for number, each in enumerate(places)]


def _checked_location(location: object, label: str, *, plane: bool) -> tuple[float, float]:
    """The two numbers of a place; errors (see `packed_place`)."""
    names, given = _NAMES[plane], location
    if isinstance(location, dict) and sorted(location) == sorted(names):
        location = [location[name] for name in names]
    if not isinstance(location, tuple | list) or len(location) != 2:
        several = ", or a list of such places" if label == "location" else ""
        raise InvalidTypeError(
            f"{label} must be two numbers, ({', '.join(names)}), or a dict with {' and '.join(names)}{several}, not "
            f"{type(given).__name__} {given!r:.80}"
        )
    try:
        lon, lat = (finite_number(name, value) for name, value in zip(names, location, strict=True))
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{label}: {error}") from None
    for name, value, limit, other, at_other in (("lon", lon, MAX_LON, "lat", lat), ("lat", lat, MAX_LAT, "lon", lon)):
        if not plane and not -limit <= value <= limit:
            raise InvalidValueError(f"{label}: {out_of_range(name, value, other, at_other)}")
    return lon, lat


# -- in columns --------------------------------------------------------------------------------------------------------


class Further(NamedTuple):
    """The places of messages beyond the first of each, as kernels take them."""

    offsets: I64Array  # Message `i` has those from `offsets[i]` to `offsets[i + 1]`; empty if none has any
    lon: F64Array
    lat: F64Array

    @classmethod
    def of(cls, lengths: I64Array, lon: F64Array, lat: F64Array) -> Further:
        """These places, as many for each message as `lengths` says."""
        return cls(offsets_of(lengths), lon, lat) if len(lon) else NO_FURTHER

    def part(self, first: int, last: int) -> Further:
        """Those of messages `first` to `last`."""
        if not len(self.offsets):
            return self
        begin, end = self.offsets[first], self.offsets[last]
        return Further.of(np.diff(self.offsets[first : last + 1]), self.lon[begin:end], self.lat[begin:end])

    def lengths(self, count: int) -> I64Array:
        """How many each of `count` messages has."""
        return np.diff(self.offsets) if len(self.offsets) else np.zeros(count, np.int64)


NO_FURTHER = Further(frozen(np.zeros(0, np.int64)), frozen(np.zeros(0)), frozen(np.zeros(0)))
NO_OUTLINES = Outlines(frozen(np.zeros(0, np.int64)), frozen(np.zeros(0)))


@dataclass(frozen=True, slots=True, eq=False)
class Locations:
    """Where messages are, and in which area the clients must be that each is for."""

    lon: F64Array  # NaN where a message has no location
    lat: F64Array
    kinds: U8Array  # letters of areas (see `Areas`); 0 where a message has none, empty if none has one
    values: F64Array  # [n, 4] (see `Areas`); as long as `kinds`
    outlines: Outlines = NO_OUTLINES  # its places are as many as `kinds`, or none if no area is an outline
    further: Further = NO_FURTHER

    def __len__(self) -> int:
        return len(self.lon)

    def part(self, first: int, last: int) -> Locations:
        """Those of messages `first` to `last`."""
        further, some = self.further.part(first, last), slice(first, last)
        outlines = Outlines(self.outlines.places[some], self.outlines.numbers)
        return Locations(self.lon[some], self.lat[some], self.kinds[some], self.values[some], outlines, further)

    @property
    def areas(self) -> Areas:
        """The areas, as kernels take them."""
        places, numbers = self.outlines
        return Areas(frozen(self.kinds), frozen(self.values), frozen(places), frozen(numbers))

    def every(self) -> tuple[I64Array, F64Array, F64Array]:
        """All places, message after message, NaN for one that has none: of each the message, and both numbers."""
        owners = np.repeat(np.arange(len(self)), 1 + self.further.lengths(len(self)))
        is_first = np.diff(owners, prepend=-1) > 0
        lon, lat = np.empty((2, len(owners)))
        lon[is_first], lat[is_first] = self.lon, self.lat
        lon[~is_first], lat[~is_first] = self.further.lon, self.further.lat
        return owners, lon, lat


def locations_in(places: Iterable[bytes]) -> Locations:
    """The locations of messages, from their packed places."""
    given = [each or _NOWHERE_AT_ALL for each in places]
    numbers = np.frombuffer(b"".join(each[:ONE_PLACE] for each in given)).reshape(-1, 7)
    kinds = numbers[:, 2].astype(np.uint8)
    if not kinds.any():
        kinds = kinds[:0]
    ends, outlines = [*map(len, given)], NO_OUTLINES
    if ((kinds == POLYGON) | (kinds == CORRIDOR)).any():
        is_outline = [chr(kind) in _OUTLINES for kind in kinds]
        counts = [int(_NUMBER.unpack(each[-8:])[0]) if has else 0 for each, has in zip(given, is_outline, strict=True)]
        ends = [end - 8 * (count + 1) if count else end for end, count in zip(ends, counts, strict=True)]
        parts = [each[end : end + 8 * count] for each, end, count in zip(given, ends, counts, strict=True)]
        outlines = Outlines(offsets_of(np.array(counts))[:-1], np.frombuffer(b"".join(parts)))
    others = np.frombuffer(b"".join(each[ONE_PLACE:end] for each, end in zip(given, ends, strict=True))).reshape(-1, 2)
    further = Further.of((np.array(ends) - ONE_PLACE) // 16, *others.T.copy())
    shapes = numbers[: len(kinds), 3:].copy()
    return Locations(numbers[:, 0].copy(), numbers[:, 1].copy(), kinds, shapes, outlines, further)


def locations_of(rows: TagLists, first: int, last: int) -> Locations | None:
    """Where messages `first` to `last` are; `None` if no message says anything of it."""
    given: Locations | None = rows.locations
    return None if given is None else given.part(first, last)


def coordinates(lon: Any, lat: Any, count: int, *, plane: bool) -> tuple[F64Array, F64Array]:
    """Coordinates of `count` clients; NaN in both, or a null of Arrow, takes a client off the map."""
    columns = []
    for name, given in zip(_NAMES[plane], (lon, lat), strict=True):
        values = np.asarray(_plain(given, name), np.float64)
        if values.ndim == 0:
            values = np.full(count, values)
        if values.shape != (count,):
            raise InvalidValueError(f"{name} must have a number for each of the {count} clients, not {values.shape}")
        wrong = np.isinf(values)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InvalidValueError(f"row {row}: {name} must be finite, not {float(values[row])!r}")
        columns.append(values + 0.0)
    if not plane:
        _reject_out_of_range(columns[0], columns[1], "row", 0)
    half = np.isnan(columns[0]) != np.isnan(columns[1])
    if half.any():
        raise InvalidValueError(f"{' and '.join(_NAMES[plane])}: row {int(np.argmax(half))} has only one of both")
    return columns[0], columns[1]


def area_has(area: Any, lon: F64Array, lat: F64Array, *, plane: bool) -> BoolArray:
    """Whether an area, not `Near`, has each of some places."""
    return areas_have(_alone(area, plane=plane), np.zeros(len(lon), np.int64), lon, lat, plane=plane)


def _alone(area: Any, *, plane: bool) -> Areas:
    """An area, not `Near`, as kernels take it."""
    if isinstance(area, Polygon | Corridor):
        return tested(area, plane=plane)[0]
    kinds = np.array([BOX if isinstance(area, Box) else CIRCLE], np.uint8)
    return Areas(kinds, np.array([(*astuple(area), 0.0)[:4]]), *NO_OUTLINES)


def _plain(given: Any, name: str) -> Any:
    """Numbers as NumPy takes them, NaN for nulls."""
    values = given if isinstance(given, pa.Array | pa.ChunkedArray) else np.asarray(np.nan if given is None else given)
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1:
        with contextlib.suppress(pa.ArrowException, OverflowError):  # some may be `None`
            values = pa.array(given)
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iuf":
            raise InvalidTypeError(f"{name} must be numbers, not {shown(given)}")
        return values
    return _numbers(plain_array(values), name, None if values is given else shown(given))


def without_locations(
    batch: pa.RecordBatch, *, plane: bool, first_row: int = 0
) -> tuple[pa.RecordBatch, Locations | None]:
    """A batch without its columns of locations, and these columns read; `None` if it has no such columns.

    A column that `is_place_column` says no to is an attribute of that name.
    """
    there = [name for name in (LOCATION, WITHIN) if is_place_column(batch.schema, name)]
    if not there:
        return batch, None
    places = batch.column(LOCATION) if LOCATION in there else pa.nulls(len(batch))
    lon, lat, further = locations_of_rows(places, f"column {LOCATION!r}", plane=plane, first_row=first_row)
    kinds, values, outlines = np.zeros(0, np.uint8), np.zeros((0, 4)), NO_OUTLINES
    if WITHIN in there:
        areas = shapes_in(batch.column(WITHIN), f"column {WITHIN!r}", plane=plane, first_row=first_row)
        kinds, values, outlines = areas.kinds, areas.values, Outlines(areas.places, areas.numbers)
    return batch.drop_columns(there), Locations(lon, lat, kinds, values, outlines, further)


def names_of_places(*, plane: bool) -> tuple[str, str]:
    """What both numbers of a place are called."""
    return _NAMES[plane]


def is_place_column(schema: pa.Schema, name: str) -> bool:
    """Whether there is a column of this name that says where messages are: structs or lists, areas also in texts."""
    place = schema.get_field_index(name)
    if place < 0:
        return False
    kind = schema.types[place]
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_struct(kind) or is_list(kind) or (name == WITHIN and _is_text_or_bytes(kind))


def locations_of_rows(
    column: pa.Array, name: str, *, plane: bool, first_row: int
) -> tuple[F64Array, F64Array, Further]:
    """The first place of each row, NaN if it has no place, and the others, if rows have lists of places."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary.take(column.indices)
    kind = column.type
    if not is_list(kind) or not (pa.types.is_struct(kind.value_type) or is_list(kind.value_type)):
        return *_places_in(column, name, None, plane=plane, first_row=first_row), NO_FURTHER
    lengths = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    owners, every = np.repeat(np.arange(len(column)), lengths), pc.list_flatten(column)
    if every.null_count:
        row = first_row + int(owners[np.argmin(_there(every))])
        raise NullError(f"{name}: row {row} has a null in its list of places")
    all_lon, all_lat = _places_in(every, name, owners, plane=plane, first_row=first_row)
    is_first = np.diff(owners, prepend=-1) > 0
    lon, lat = np.full((2, len(column)), np.nan)
    lon[lengths > 0], lat[lengths > 0] = all_lon[is_first], all_lat[is_first]
    return lon, lat, Further.of(np.maximum(lengths - 1, 0), all_lon[~is_first], all_lat[~is_first])


def _places_in(
    column: pa.Array, name: str, owners: I64Array | None, *, plane: bool, first_row: int
) -> tuple[F64Array, F64Array]:
    """Places, NaN for missing ones; errors begin with `name`, and name the row, from `owners` if given."""
    names = _NAMES[plane]
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan), np.full(len(column), np.nan)
    if pa.types.is_struct(column.type):
        fields = [field.name for field in column.type]
        if sorted(fields) != sorted(names):
            raise InvalidTypeError(f"{name} must have the fields {' and '.join(names)}, not {fields}")
        lon, lat = (_numbers(part, f"{name}: {field}") for part, field in zip(column.flatten(), fields, strict=True))
        if fields[0] != names[0]:
            lon, lat = lat, lon
    else:
        there = _there(column)
        wrong = there & (pc.list_value_length(column).fill_null(2).to_numpy() != 2)
        if wrong.any():
            row = _row_of(wrong, owners, first_row)
            raise InvalidValueError(f"{name}: row {row} must have two numbers, {' and '.join(names)}")
        lon, lat = np.full((2, len(column)), np.nan)
        lon[there], lat[there] = _numbers(pc.list_flatten(column), f"{name}: {names[0]}").reshape(-1, 2).T
    finite = np.isfinite(lon) & np.isfinite(lat)
    if not finite.all() and (wrong := _there(column) & ~finite).any():
        at = int(np.argmax(wrong))
        given, row = column[at].as_py(), _row_of(wrong, owners, first_row)
        numbers = [given[field] for field in names] if isinstance(given, dict) else given
        for field, number in zip(names, numbers, strict=True):
            if number is None:
                raise NullError(f"{name}: row {row} has no {field}")
            if not np.isfinite(number):
                raise InvalidValueError(f"{name}: row {row}: {field} must be finite, not {number}")
    if not plane:
        _reject_out_of_range(lon, lat, f"{name}: row", first_row, owners)
    return lon, lat


def _row_of(wrong: BoolArray, owners: I64Array | None, first_row: int) -> int:
    """The row of the first place that is wrong."""
    at = int(np.argmax(wrong))
    return first_row + (at if owners is None else int(owners[at]))


def _check_numbers(kind: pa.DataType, name: str, given: str | None = None) -> None:
    """Check that a type is numeric; errors name the type, or `given` instead."""
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InvalidTypeError(f"{name} must be numbers, not {given or kind}")


def _numbers(values: pa.Array, name: str, given: str | None = None) -> F64Array:
    """Numbers as float64, NaN for nulls; errors as `_check_numbers`."""
    _check_numbers(values.type, name, given)
    doubles = values if pa.types.is_float64(values.type) else values.cast(pa.float64(), safe=False)
    numbers: F64Array = doubles.to_numpy(zero_copy_only=False)
    return numbers


def _reject_out_of_range(
    lon: F64Array, lat: F64Array, label: str, first_row: int, owners: I64Array | None = None
) -> None:
    """Raise `InvalidValueError` for the first place, of those that are not NaN, that is not on the sphere."""
    wrong = (np.abs(lon) > MAX_LON) | (np.abs(lat) > MAX_LAT)
    if wrong.any():
        at = int(np.argmax(wrong))
        numbers = {"lon": float(lon[at]), "lat": float(lat[at])}
        name, other = ("lon", "lat") if abs(numbers["lon"]) > MAX_LON else ("lat", "lon")
        problem = out_of_range(name, numbers[name], other, numbers[other])
        raise InvalidValueError(f"{label} {_row_of(wrong, owners, first_row)}: {problem}")


# -- areas, in columns -------------------------------------------------------------------------------------------------

#: The field that says which kind an area has, and all others
KIND = "kind"
#: Another field, of areas as texts; and one that structs have which are geometries of GeoJSON
TEXT, COORDINATES = "text", "coordinates"
NUMBERS = tuple(dict.fromkeys(field for fields in FIELDS.values() for field in fields))
#: Fields that say where a circle is
PLACE = ("lon", "lat")

_AREA_FIELDS = (KIND, *NUMBERS)
_A_CIRCLE, _A_BOX, _A_NEAR, _NONE = range(len(KINDS) + 1)
_LETTERS = np.array([CIRCLE, BOX, NEAR, 0], np.uint8)
#: A bit for each of the fields that a kind has
_FIELDS_OF = {name: sum(1 << NUMBERS.index(field) for field in fields) for name, fields in FIELDS.items()}


def _bounds(*, plane: bool) -> tuple[F64Array, F64Array]:
    """The least and the greatest number in each place of each kind, and of none."""
    least, most = np.zeros((2, len(KINDS) + 1, MOST_NUMBERS))
    for kind, fields in enumerate(FIELDS.values()):
        for place, field in enumerate(fields):
            most[kind, place] = np.finfo(np.float64).max if plane else LIMITS.get(field, np.finfo(np.float64).max)
            least[kind, place] = 0.0 if field == "metres" else -most[kind, place]
    return least, most


_BOUNDS = {plane: _bounds(plane=plane) for plane in (False, True)}


def is_area(value: object) -> bool:
    """Whether this is one area, in any form, not a column of them."""
    forms = (*KINDS.values(), Polygon, Corridor, str, bytes, dict)
    # As shapely's geometries have it, not columns of them
    return isinstance(value, forms) or isinstance(getattr(value, "geom_type", None), str)


def area_from(given: Any, name: str = "area") -> Area:
    """The area that an object is, or a text, WKB, GeoJSON or a dict says: one as an expression has it after `within`.

    InvalidTypeError and InvalidValueError name the argument.
    """
    try:
        if isinstance(given, str) and not _BEGINS_POLYGON.match(given):
            given = json_of(given) if given.lstrip().startswith("{") else _area_in(given)
        if isinstance(given, dict) and not ("type" in given or COORDINATES in given):
            given = _area_of_fields(given)
        if isinstance(given, str | bytes | dict | list) or isinstance(getattr(given, "geom_type", None), str):
            return Polygon(given)
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    if not is_area(given):
        raise InvalidTypeError(f"{name} must be {AN_AREA}, not {shown(given)}")
    return given  # type: ignore[no-any-return]


def _area_of_fields(given: dict[str, Any]) -> Area:
    """The area that a dict says, with the fields of a struct of `area_rows`, or a field `text` alone."""
    fields = {name: value for name, value in given.items() if value is not None}
    if fields.keys() == {TEXT}:
        return area_from(fields[TEXT], "text")
    kind = fields.pop(KIND, None)
    if kind is None:
        kind = next((each for each in ("box", "circle") if {*FIELDS[each]} - {"metres"} & fields.keys()), "near")
    if kind not in [*KINDS]:
        raise InvalidValueError(f"there is no kind {shown(kind)}; there are {', '.join(KINDS)}")
    if fields.keys() != {*FIELDS[kind]}:
        raise InvalidValueError(
            f"a {kind} has {', '.join(FIELDS[kind])}, not {', '.join(map(str, fields)) or 'nothing'}"
        )
    return KINDS[kind](**fields)


def _area_in(text: str) -> Area:
    """The area that a text describes, as in expressions."""
    begins = f"within {text}"
    try:
        rows = rows_of(begins)
    except FilterError as error:
        column = re.sub(r"column ([0-9]+)", lambda at: f"column {max(int(at[1]) - 7, 1)}", str(error), count=1)
        raise InvalidValueError(column.removeprefix("where: ")) from None
    tests = [*rows[0].constraints, *rows[0].tags]
    area = tests[0].area if len(rows) == len(tests) == 1 and isinstance(tests[0], Constraint) else None
    if area is None:
        raise InvalidValueError(f"a text must be one area, not {shown(text)}")
    return area


def area_tag(area: object, name: str = "area", *, plane: bool) -> str:
    """The tag of one area; InvalidTypeError and InvalidValueError name the argument and the field."""
    found = area_from(area, name)
    try:
        check(found, plane=plane)
    except InvalidValueError as error:
        raise InvalidValueError(f"{name}: {error}") from None
    return Constraint.within(found, plane=plane).tag


def area_column(areas: Any, count: int, name: str = "area") -> pa.ChunkedArray | list[Any]:
    """A column with `count` areas, as structs of Arrow or as a list of objects, null for a row without an area.

    InvalidTypeError, InvalidValueError: it is no column, or its length is another.
    """
    chunks = arrow_chunks(areas, name)
    column = (
        listed_in(areas, f"{name} must be {AN_AREA}, or one for each row")
        if chunks is None
        else pa.chunked_array(chunks, None if chunks else pa.null())
    )
    if len(column) != count:
        raise InvalidValueError(f"{name} must have an area or a null for each of the {count} sets, not {len(column)}")
    return column


def area_rows(
    areas: pa.Array | pa.ChunkedArray | list[Any],
    name: str = "area",
    *,
    first_row: int = 0,
    plane: bool,
    threads: int = 1,
) -> TagLists:
    """The areas of rows as tags: objects, or structs that `TagMatch.add_subscriptions` describes; a null means no area.

    InvalidTypeError, InvalidValueError and NullError name the row, counted from `first_row`; `name` is the column.
    """
    if isinstance(areas, list):
        places = (f"{name}: row {first_row + row}" for row in range(len(areas)))
        pairs = zip(areas, places, strict=True)
        return rows_of_tags([[] if area is None else [area_tag(area, place, plane=plane)] for area, place in pairs])
    count = len(areas)
    if pa.types.is_null(areas.type):
        return area_tags(np.zeros(count, np.uint8), np.zeros((count, MOST_NUMBERS)), threads)
    areas = plain_array(areas)
    areas = areas.dictionary_decode() if pa.types.is_dictionary(areas.type) else areas
    for texts in areas.flatten() if pa.types.is_struct(areas.type) else [areas]:
        if is_text(texts.type.value_type if pa.types.is_dictionary(texts.type) else texts.type):
            reject_no_utf8(plain_strings(texts, ""), name, first_row, count)
    if not pa.types.is_struct(areas.type) or areas.type.get_field_index(COORDINATES) >= 0:
        _check_outlines(areas.type, name)
        return area_rows(areas.to_pylist(), name, first_row=first_row, plane=plane)
    place = areas.type.get_field_index(TEXT)
    if place < 0:
        return area_tags(*_shapes(areas, name, first_row, plane), threads)
    texts = areas.flatten()[place]
    kept = [areas.type.field(number) for number in range(areas.type.num_fields) if number != place]
    others = [areas.field(field.name) for field in kept]
    mask = pc.or_(pc.invert(areas.is_valid()), texts.is_valid())
    structs = pa.StructArray.from_arrays(others, fields=kept, mask=mask)
    letters, values = _shapes(structs, name, first_row, plane)
    found = texts.to_pylist()
    if not any(found):
        return area_tags(letters, values, threads)
    for row in np.flatnonzero(letters):
        kind = [*KINDS][int(np.argmax(letters[row] | LOWER == _LETTERS))]
        found[row] = KINDS[kind](*values[row, : len(FIELDS[kind])].tolist())
    return area_rows(found, name, first_row=first_row, plane=plane)


def _check_outlines(kind: pa.DataType, name: str) -> None:
    """InvalidTypeError if values of a type can be no areas."""
    if not (_is_text_or_bytes(kind) or is_list(kind) or pa.types.is_struct(kind)):
        raise InvalidTypeError(
            f"{name} must be texts, WKB, lists of rings, or structs with {', '.join(_AREA_FIELDS)}, not {kind}"
        )


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    of = pa.types
    is_bytes: bool = of.is_binary(kind) or of.is_large_binary(kind) or of.is_binary_view(kind)
    return is_bytes or is_text(kind)


def shapes_in(areas: pa.Array, name: str, *, first_row: int = 0, plane: bool) -> Areas:
    """The areas of rows in which clients are looked for, of kind 0 where a row has none; errors (see `area_rows`)."""
    kind = areas.type
    if pa.types.is_struct(kind) and max(map(kind.get_field_index, (TEXT, COORDINATES))) < 0:
        found = Areas(*_shapes(areas, name, first_row, plane), *NO_OUTLINES)
        found.kinds[found.kinds > 0] |= LOWER
    else:
        found = _written(area_rows(areas, name, first_row=first_row, plane=plane), plane=plane)
    near = found.kinds == NEAR
    if near.any():
        raise InvalidValueError(f"{name}: row {first_row + int(np.argmax(near))}: an area {_NOT_NEAR}")
    return found


def _written(rows: TagLists, *, plane: bool) -> Areas:
    """The areas of rows, which have the tag of one each, or none."""
    shapes, has = shapes_of(rows.tags, np.arange(len(rows.tags), dtype=np.uint32)), np.diff(rows.offsets) > 0
    letters = shapes.kinds | LOWER
    outlines, _ = prepared(letters, shapes.numbers, shapes.offsets, shapes.values, plane=plane)
    own = letters, shapes.values, outlines.places
    kinds, values, places = (np.zeros((len(has), *each.shape[1:]), each.dtype) for each in own)
    kinds[has], values[has], places[has] = own
    return Areas(kinds, values, places, outlines.numbers)


def _shapes(areas: pa.Array, name: str, first_row: int, plane: bool) -> tuple[U8Array, F64Array]:
    """The areas of rows as letters and numbers (`Shapes`), 0 where a row has none; errors (see `area_rows`)."""
    if not pa.types.is_struct(areas.type):
        raise InvalidTypeError(f"{name} must be structs with {', '.join(_AREA_FIELDS)}, not {areas.type}")
    fields = struct_fields(areas, _AREA_FIELDS, f"{name}: areas")
    given, needed = np.zeros(len(areas), np.uint8), np.zeros(len(areas), np.uint8)
    for bit, field in enumerate(NUMBERS):
        if field in fields:
            _check_numbers(fields[field].type, f"{name}: field {field!r}")
            given |= (_there(fields[field]) << bit).astype(np.uint8)
    kinds = _kinds(areas, fields, given, name, first_row)
    values = np.zeros((len(areas), MOST_NUMBERS))
    for number, (kind_name, own) in enumerate(FIELDS.items()):
        rows = np.flatnonzero(kinds == number)
        needed[rows] = _FIELDS_OF[kind_name]
        for place, field in enumerate(own if len(rows) else ()):
            values[rows, place] = _doubles(fields, field, len(areas))[rows]
    least, most = _BOUNDS[plane]
    wrong = ~((values >= least[kinds]) & (values <= most[kinds])).all(axis=1) | (given != needed)
    wrong |= (kinds == _A_BOX) & ((values[:, 1] > values[:, 3]) | (plane & (values[:, 0] > values[:, 2])))
    wrong |= (kinds == _NONE) & _there(areas)
    if wrong.any():
        row = int(np.argmax(wrong))
        record = {field: each[row].as_py() for field, each in fields.items()}
        raise _mistake_of(record, int(kinds[row]), f"{name}: row {first_row + row}", plane)
    letters = _LETTERS[kinds]
    if plane:
        letters[letters > 0] ^= LOWER
    return letters, values


def _kinds(areas: pa.Array, fields: dict[str, pa.Array], given: U8Array, name: str, first_row: int) -> U8Array:
    """The kind of each area, by its place in `KINDS`; `_NONE` for a null and for an unknown kind."""
    kinds, unsaid = np.full(len(areas), _NONE, np.uint8), _there(areas)
    if KIND in fields:
        said = plain_strings(fields[KIND], f"{name}: field {KIND!r} must be strings, not {fields[KIND].type}")
        reject_no_utf8(said, name, first_row, len(said))
        kinds = pc.index_in(said, pa.array(list(KINDS), said.type)).fill_null(_NONE).to_numpy().astype(np.uint8)
        unsaid &= ~_there(said)
    # A circle whose place is missing must not be near by accident
    otherwise = _A_CIRCLE if any(field in fields for field in PLACE) else _A_NEAR
    kinds[unsaid] = np.where(given & _FIELDS_OF["box"] > 0, _A_BOX, otherwise)[unsaid]
    return kinds


def _doubles(fields: dict[str, pa.Array], field: str, count: int) -> F64Array:
    values = fields.get(field)
    if values is None or pa.types.is_null(values.type):
        return np.zeros(count)
    # Adding zero makes -0.0 0.0
    return pc.cast(values, pa.float64(), safe=False).fill_null(0.0).to_numpy() + 0.0  # type: ignore[no-any-return]


def _mistake_of(record: dict[str, Any], number: int, place: str, plane: bool) -> TagMatchError:
    """What is wrong with an area, of this kind, that is not sound."""
    given = [field for field in NUMBERS if record.get(field) is not None]
    if number == _NONE:
        return InvalidValueError(f"{place}: there is no kind {shown(record.get(KIND))}; there are {', '.join(KINDS)}")
    if not given and record.get(KIND) is None:
        return NullError(f"{place}: all fields are null; a row without an area is null itself")
    kind = list(KINDS)[number]
    has = f"a {kind}, which has {', '.join(FIELDS[kind])}"
    for field in given:
        if field not in FIELDS[kind]:
            return InvalidValueError(f"{place}: field {field!r} does not belong to {has}")
    for field in FIELDS[kind]:
        if field not in given:
            is_null = "is null" if field in record else "is missing"
            return NullError(f"{place}: field {field!r} {is_null}; {has.replace(', which has', ' has')}")
    try:
        check(KINDS[kind](*(record[field] for field in FIELDS[kind])), plane=plane)
    except TagMatchError as error:
        return type(error)(f"{place}: {error}")
    raise AssertionError(place)


def _there(values: pa.Array) -> BoolArray:
    found: BoolArray = values.is_valid().to_numpy(zero_copy_only=False)
    return found
