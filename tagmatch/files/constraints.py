"""Constraints as JSON has them, with values of any type in one field, as structs of Arrow, where fields have one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tagmatch.model.columns import shown
from tagmatch.model.conditions.structured import ATTRIBUTE, LIST, OPERATOR, UPPER, VALUES, constraint_rows
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.values import key_of

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
    """Constraints of rows, null where there are none, as `CONSTRAINT_LISTS`.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        A row has none, or a value is none that an attribute can have.
    """
    return pa.array(
        [None if row is None else list(map(_typed, _list(row, "constraints"))) for row in rows], CONSTRAINT_LISTS
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


def _typed(record: object) -> dict[str, Any]:
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
