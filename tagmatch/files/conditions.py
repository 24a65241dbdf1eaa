"""Constraints as JSON has them, with values of any type in one field, as structs of Arrow, where fields have one.

Areas as JSON has them, as structs of Arrow.

Where queries are, as JSON and Parquet have it: columns `location` and `within`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tagmatch.locations import LOCATION, WITHIN, is_place_column, names_of_places, places_in
from tagmatch.model.columns import shown
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError
from tagmatch.model.input.areas import KIND, NUMBERS, PLACE, area_rows, shapes_in
from tagmatch.model.input.constraints import ATTRIBUTE, LIST, OPERATOR, UPPER, VALUES, constraint_rows
from tagmatch.model.where.values import finite_number, key_of

_TYPES = {bool: "bool", int: "int", float: "float", str: "text"}
_VALUE = pa.struct({"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "text": pa.string()})
_TEXTS, _ONE_VALUE = (ATTRIBUTE, OPERATOR), (*VALUES, UPPER)

#: What text formats make of constraints
CONSTRAINT_LISTS = pa.list_(
    pa.struct(
        {
            **dict.fromkeys(_TEXTS, pa.string()),
            **dict.fromkeys(_ONE_VALUE, _VALUE),
            LIST: pa.list_(_VALUE),
        }
    )
)


def constraint_lists(rows: Iterable[Any]) -> pa.Array:
    """Constraints of rows, null where there are none, as `CONSTRAINT_LISTS`."""
    return pa.array(
        [None if row is None else list(map(_typed_constraint, _list(row, "constraints"))) for row in rows],
        CONSTRAINT_LISTS,
    )


def check_constraints(value: object, name: str) -> None:
    """See that the constraints of one row can be used; errors as `constraint_lists` and `constraint_rows`."""
    try:
        lists = constraint_lists([value])
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    try:
        constraint_rows(lists, "")
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{name}{str(error).removeprefix(': row 0')}") from None


def _typed_constraint(record: object) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise InvalidTypeError(f"a constraint must be an object, not {shown(record)}")
    found: dict[str, Any] = {}
    for name, given in record.items():
        if given is None:
            continue
        if name in _TEXTS:
            if not isinstance(given, str):
                raise InvalidTypeError(f"field {name!r} must be a text, not {shown(given)}")
            found[name] = given
        elif name in _ONE_VALUE:
            found[name] = _value(given)
        elif name == LIST:
            found[name] = [None if each is None else _value(each) for each in _list(given, f"field {LIST!r}")]
        else:
            raise InvalidValueError(f"constraints have no field {name!r}")
    return found


def _value(given: Any) -> dict[str, Any]:
    key_of(given)
    return {_TYPES[type(given)]: given}


def _list(given: object, what: str) -> list[Any]:
    if not isinstance(given, list):
        raise InvalidTypeError(f"{what} must be a list, not {shown(given)}")
    return given


#: What text formats make of areas
AREA_STRUCTS = pa.struct({KIND: pa.string(), **dict.fromkeys(NUMBERS, pa.float64())})


def area_structs(rows: Iterable[Any]) -> pa.Array:
    """Areas of rows, null where there are none, as `AREA_STRUCTS`."""
    return pa.array([None if row is None else _typed_area(row) for row in rows], AREA_STRUCTS)


def check_area(value: object, name: str, *, plane: bool) -> None:
    """See that the area of one row can be used; errors as `area_structs` and `area_rows`."""
    try:
        structs = area_structs([value])
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    try:
        area_rows(structs, "", plane=plane)
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{name}{str(error).removeprefix(': row 0')}") from None


def _typed_area(record: object) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise InvalidTypeError(f"an area must be an object, not {shown(record)}")
    found: dict[str, Any] = {}
    for name, given in record.items():
        if name not in (KIND, *NUMBERS):
            raise InvalidValueError(f"areas have no field {name!r}")
        if given is None:
            continue
        if name != KIND:
            found[name] = finite_number(name, given)
        elif isinstance(given, str):
            found[name] = given
        else:
            raise InvalidTypeError(f"field {name!r} must be a text, not {shown(given)}")
    # In a column of all fields, it would be a circle whose place is missing
    if KIND not in found and "metres" in found and not any(name in record for name in PLACE):
        return {KIND: "near", **found}
    return found


def place_structs(*, plane: bool) -> pa.StructType:
    """What text formats make of locations."""
    return pa.struct(dict.fromkeys(names_of_places(plane=plane), pa.float64()))


def locations_of_json(rows: Iterable[Any], kind: pa.StructType) -> pa.Array:
    """Locations of rows, null where there are none, as one of `place_structs`."""
    names = [kind.field(i).name for i in range(kind.num_fields)]
    return pa.array([None if row is None else _typed_location(row, names) for row in rows], kind)


def _typed_location(given: object, names: list[str]) -> dict[str, float]:
    if isinstance(given, list) and len(given) == len(names):
        given = dict(zip(names, given, strict=True))
    if not isinstance(given, dict) or not set(given) <= set(names):
        raise InvalidTypeError(
            f"a location must be [{', '.join(names)}] or an object with {' and '.join(names)}, not {shown(given)}"
        )
    for name in names:
        if given.get(name) is None:
            raise NullError(f"a location must have a number {name}, not {shown(given)}")
    return {name: finite_number(name, given[name]) for name in names}


def check_locations(values: pa.Array, name: str, first_row: int, *, plane: bool) -> None:
    """See that the locations of some rows can be used; errors as `places_in`."""
    _check_kind(values, LOCATION, name)
    places_in(values, name, plane=plane, first_row=first_row)


def check_location(value: object, name: str, *, plane: bool) -> None:
    """See that the location of one row can be used; errors as `locations_of_json` and `places_in`."""
    try:
        structs = locations_of_json([value], place_structs(plane=plane))
    except (InvalidTypeError, InvalidValueError, NullError) as error:
        raise type(error)(f"{name}: {error}") from None
    _of_one(lambda: places_in(structs, "", plane=plane, first_row=0), name)


def check_withins(values: pa.Array, name: str, first_row: int, *, plane: bool) -> None:
    """See that the areas in which clients must be can be used, of some rows; errors as `shapes_in`."""
    _check_kind(values, WITHIN, name)
    if not pa.types.is_null(values.type):
        shapes_in(values, name, first_row=first_row, plane=plane)


def check_within(value: object, name: str, *, plane: bool) -> None:
    """See that the area of one row can be used; errors as `area_structs` and `shapes_in`."""
    try:
        structs = area_structs([value])
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    _of_one(lambda: shapes_in(structs, "", plane=plane), name)


def _check_kind(values: pa.Array, column: str, name: str) -> None:
    kind = values.type
    if not (pa.types.is_null(kind) or is_place_column(pa.schema([(column, kind)]), column)):
        raise InvalidTypeError(
            f"{name} says where queries are, and must be structs, not {kind}; --attributes {column} has it be an "
            "attribute"
        )


def _of_one(check: Any, name: str) -> None:
    try:
        check()
    except (InvalidTypeError, InvalidValueError, NullError) as error:
        raise type(error)(f"{name}{str(error).removeprefix(': row 0')}") from None
