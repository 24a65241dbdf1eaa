"""Areas as JSON has them, as structs of Arrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tagmatch.model.columns import shown
from tagmatch.model.conditions.areas import KIND, NUMBERS, PLACE, area_rows
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.areas import finite_number

#: What text formats make of areas
AREA_STRUCTS = pa.struct({KIND: pa.string(), **dict.fromkeys(NUMBERS, pa.float64())})


def area_structs(rows: Iterable[Any]) -> pa.Array:
    """Areas of rows, null where there are none, as `AREA_STRUCTS`.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        A row has none, or a field is not what it must be.
    """
    return pa.array([None if row is None else _typed(row) for row in rows], AREA_STRUCTS)


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


def _typed(record: object) -> dict[str, Any]:
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
