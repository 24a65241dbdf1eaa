"""Where queries are, as JSON and Parquet have it: columns `location` and `within`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tagmatch.files.areas import area_structs
from tagmatch.locations import LOCATION, WITHIN, is_place_column, names_of_places, places_in
from tagmatch.model.columns import shown
from tagmatch.model.conditions.areas import shapes_in
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError
from tagmatch.model.filters.areas import finite_number


def place_structs(*, plane: bool) -> pa.StructType:
    """What text formats make of locations."""
    return pa.struct(dict.fromkeys(names_of_places(plane=plane), pa.float64()))


def locations_of_json(rows: Iterable[Any], kind: pa.StructType) -> pa.Array:
    """Locations of rows, null where there are none, as one of `place_structs`.

    Raises
    ------
    InvalidTypeError, InvalidValueError, NullError
        A row has none: neither two numbers, nor an object of them.
    """
    names = [kind.field(i).name for i in range(kind.num_fields)]
    return pa.array([None if row is None else _typed(row, names) for row in rows], kind)


def _typed(given: object, names: list[str]) -> dict[str, float]:
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
