"""Areas of many rows, in columns: structs of Arrow or objects, as rows of tags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, F64Array, TagLists, U8Array
from tagmatch.model.arrow_input import plain_strings, reject_no_utf8
from tagmatch.model.columns import NO_SEQUENCES, arrow_chunks, rows_of_tags, shown
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError, TagMatchError
from tagmatch.model.input.values import struct_fields
from tagmatch.model.kernels.sphere import BOX, CIRCLE, LOWER, NEAR
from tagmatch.model.where.areas import FIELDS, KINDS, LIMITS, Area, check
from tagmatch.model.where.constraints import Constraint
from tagmatch.model.where.tag_columns import MOST_NUMBERS, area_tags

#: The field that says which kind an area has, and all others
KIND = "kind"
NUMBERS = tuple(dict.fromkeys(field for fields in FIELDS.values() for field in fields))
#: Fields that say where a circle is
PLACE = ("lon", "lat")

_FIELDS = (KIND, *NUMBERS)
_CIRCLE, _BOX, _NEAR, _NONE = range(len(KINDS) + 1)
_LETTERS = np.array([CIRCLE, BOX, NEAR, 0], np.uint8)
#: A bit for each of the fields that a kind has
_NEEDED = {name: sum(1 << NUMBERS.index(field) for field in fields) for name, fields in FIELDS.items()}


def _bounds(*, plane: bool) -> tuple[F64Array, F64Array]:
    """The least and the greatest number in each place of each kind, and of none."""
    least, most = np.zeros((2, len(KINDS) + 1, MOST_NUMBERS))
    for kind, fields in enumerate(FIELDS.values()):
        for place, field in enumerate(fields):
            most[kind, place] = np.finfo(np.float64).max if plane else LIMITS.get(field, np.finfo(np.float64).max)
            least[kind, place] = 0.0 if field == "metres" else -most[kind, place]
    return least, most


_BOUNDS = {plane: _bounds(plane=plane) for plane in (False, True)}


def is_area(value: object) -> TypeGuard[Area]:
    """Whether this is one area, not a column of them."""
    return isinstance(value, tuple(KINDS.values()))


def area_tag(area: object, name: str = "area", *, plane: bool) -> str:
    """The tag of one area; InvalidTypeError and InvalidValueError name the argument and the field."""
    if not is_area(area):
        raise InvalidTypeError(f"{name} must be a Circle, a Box or a Near, not {shown(area)}")
    try:
        check(area, plane=plane)
    except InvalidValueError as error:
        raise InvalidValueError(f"{name}: {error}") from None
    return Constraint.within(area, plane=plane).tag


def area_column(areas: Any, count: int, name: str = "area") -> pa.ChunkedArray | list[Any]:
    """A column of areas for so many rows, as structs of Arrow or as a list of objects, null where a row has none.

    InvalidTypeError, InvalidValueError: it is no column, or its length is another.
    """
    chunks = arrow_chunks(areas, name)
    if chunks is None and (isinstance(areas, NO_SEQUENCES) or not isinstance(areas, Iterable)):
        raise InvalidTypeError(f"{name} must be a Circle, a Box or a Near, or one for each row, not {shown(areas)}")
    column = list(areas) if chunks is None else pa.chunked_array(chunks, None if chunks else pa.null())
    if len(column) != count:
        raise InvalidValueError(f"{name} must have an area or a null for each of the {count} sets, not {len(column)}")
    return column


def listed_areas(areas: list[Any], name: str = "area", *, first_row: int = 0, plane: bool) -> TagLists:
    """The areas of rows, as objects, as tags; errors as `area_tag`, and the message names the row."""
    tags: list[list[str]] = []
    for row, area in enumerate(areas):
        tags.append([] if area is None else [area_tag(area, f"{name}: row {first_row + row}", plane=plane)])
    return rows_of_tags(tags)


def area_rows(areas: pa.Array, name: str = "area", *, first_row: int = 0, plane: bool, threads: int = 1) -> TagLists:
    """The areas of rows, as structs that `TagMatch.add_subscriptions` describes, as tags; a null is none.

    InvalidTypeError, InvalidValueError and NullError name the row, counted from `first_row`; `name` is the column.
    """
    count = len(areas)
    if pa.types.is_null(areas.type):
        return area_tags(np.zeros(count, np.uint8), np.zeros((count, MOST_NUMBERS)), threads)
    return area_tags(*_shapes(areas, name, first_row, plane), threads)


def shapes_in(areas: pa.Array, name: str, *, first_row: int = 0, plane: bool) -> tuple[U8Array, F64Array]:
    """The circles and boxes of rows, as structs, as letters and numbers (`Shapes`); errors (see `area_rows`)."""
    letters, values = _shapes(areas, name, first_row, plane)
    near = letters | LOWER == NEAR
    if near.any():
        row = first_row + int(np.argmax(near))
        raise InvalidValueError(f"{name}: row {row}: an area must be a circle or a box here, not near")
    return letters, values


def _shapes(areas: pa.Array, name: str, first_row: int, plane: bool) -> tuple[U8Array, F64Array]:
    """The areas of rows as letters and numbers (`Shapes`), 0 where a row has none; errors (see `area_rows`)."""
    if not pa.types.is_struct(areas.type):
        raise InvalidTypeError(f"{name} must be structs with {', '.join(_FIELDS)}, not {areas.type}")
    fields = struct_fields(areas, _FIELDS, f"{name}: areas")
    given, needed = np.zeros(len(areas), np.uint8), np.zeros(len(areas), np.uint8)
    for bit, field in enumerate(NUMBERS):
        if field in fields:
            kind = fields[field].type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
                raise InvalidTypeError(f"{name}: field {field!r} must be numbers, not {kind}")
            given |= (_there(fields[field]) << bit).astype(np.uint8)
    kinds = _kinds(areas, fields, given, name, first_row)
    values = np.zeros((len(areas), MOST_NUMBERS))
    for number, (kind_name, own) in enumerate(FIELDS.items()):
        rows = np.flatnonzero(kinds == number)
        needed[rows] = _NEEDED[kind_name]
        for place, field in enumerate(own if len(rows) else ()):
            values[rows, place] = _numbers(fields, field, len(areas))[rows]
    least, most = _BOUNDS[plane]
    wrong = ~((values >= least[kinds]) & (values <= most[kinds])).all(axis=1) | (given != needed)
    wrong |= (kinds == _BOX) & ((values[:, 1] > values[:, 3]) | (plane & (values[:, 0] > values[:, 2])))
    wrong |= (kinds == _NONE) & _there(areas)
    if wrong.any():
        row = int(np.argmax(wrong))
        record = {field: each[row].as_py() for field, each in fields.items()}
        raise _mistake(record, int(kinds[row]), f"{name}: row {first_row + row}", plane)
    letters = _LETTERS[kinds]
    if plane:
        letters[letters > 0] ^= LOWER
    return letters, values


def _kinds(areas: pa.Array, fields: dict[str, pa.Array], given: U8Array, name: str, first_row: int) -> U8Array:
    """Which of `KINDS` each area has; `_NONE` of a null and where it is none that is known."""
    kinds, unsaid = np.full(len(areas), _NONE, np.uint8), _there(areas)
    if KIND in fields:
        said = plain_strings(fields[KIND], f"{name}: field {KIND!r} must be strings, not {fields[KIND].type}")
        reject_no_utf8(said, name, first_row, len(said))
        kinds = pc.index_in(said, pa.array(list(KINDS), said.type)).fill_null(_NONE).to_numpy().astype(np.uint8)
        unsaid &= ~_there(said)
    # A circle whose place is missing must not be near by accident
    otherwise = _CIRCLE if any(field in fields for field in PLACE) else _NEAR
    kinds[unsaid] = np.where(given & _NEEDED["box"] > 0, _BOX, otherwise)[unsaid]
    return kinds


def _numbers(fields: dict[str, pa.Array], field: str, count: int) -> F64Array:
    values = fields.get(field)
    if values is None or pa.types.is_null(values.type):
        return np.zeros(count)
    # Adding zero makes -0.0 0.0
    return pc.cast(values, pa.float64(), safe=False).fill_null(0.0).to_numpy() + 0.0  # type: ignore[no-any-return]


def _mistake(record: dict[str, Any], number: int, place: str, plane: bool) -> TagMatchError:
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
            return InvalidValueError(f"{place}: field {field!r} is none of {has}")
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
