"""Types of columns of data: how they are written, and which values they take."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime
from functools import lru_cache
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.columns import shown
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.names import near_match
from tagmatch.model.where.values import checked_text

#: A column's name, and its type
Schema = Mapping[str, pa.DataType]
#: Gives the value of a row of a column, as Python has it
Value: TypeAlias = Callable[[int], Any]

_NAMED = {
    "string": pa.string(),
    "bool": pa.bool_(),
    **{f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, ?([\w/+:-]+))?\]")
_IN_SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = date(1970, 1, 1).toordinal()
_YEARS = "dates and times of data are of the years 1 to 9999"
_DECIMAL = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")


def type_named(text: str) -> pa.DataType:
    """The type that a text names, such as `string`, `decimal(10, 2)` or `timestamp[ms, UTC]`; InvalidValueError."""
    if (known := _NAMED.get(text)) is not None:
        return known
    try:
        if found := _TIMESTAMP.fullmatch(text):
            return pa.timestamp(*found.groups())
        if found := _DECIMAL.fullmatch(text):
            return pa.decimal128(*map(int, found.groups()))
    except (ValueError, pa.ArrowException):
        pass
    raise InvalidValueError(
        f"there is no type {shown(text)} of data; there are {', '.join(_NAMED)}, timestamp[ms, UTC] and decimal(10, 2)"
    )


def known_type(text: str) -> pa.DataType:
    """The same of a type that is declared anew; its time zone must be known here."""
    kind = type_named(text)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            pa.scalar(0, pa.timestamp("s", kind.tz)).as_py()
        except (KeyError, ValueError):
            raise InvalidValueError(
                f"there is no time zone {kind.tz!r:.60}; there are UTC, Europe/Rome, +01:00, …"
            ) from None
    return kind


def text_of_type(kind: pa.DataType) -> str | None:
    """How a type is written; `None` if data cannot have it."""
    if pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_dictionary(kind):
        is_text = pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)
        return "dictionary" if is_text else None
    if pa.types.is_timestamp(kind):
        text = f"timestamp[{kind.unit}{'' if kind.tz is None else f', {kind.tz}'}]"
        return "timestamp" if text == "timestamp[us, UTC]" else text
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return next((text for text, known in _NAMED.items() if known == kind), None)


def family_of(kind: pa.DataType) -> str:
    """The family of a type: a value of one type may become another type of the family if it fits there."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "texts"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "numbers"
    if pa.types.is_timestamp(kind):
        return "times in a zone" if kind.tz else "times"
    return str(kind)


def data_schema(given: object, taken: Collection[str]) -> dict[str, pa.DataType]:
    """The columns of data that a schema of Arrow names, or a mapping of names to types or how these are written.

    InvalidTypeError, InvalidValueError: it names none, or one that is taken.
    """
    if given is None:
        return {}
    if isinstance(given, pa.Schema):
        items = [(field.name, field.type) for field in given]
    elif isinstance(given, Mapping):
        items = list(given.items())
    else:
        raise InvalidTypeError(f"data must be a schema of Arrow, or map names to types, not {shown(given)}")
    found: dict[str, pa.DataType] = {}
    for name, kind in items:
        if not isinstance(name, str) or not name or name in found:
            raise InvalidValueError(f"data: each column needs its own name, not {shown(name)}")
        if name in taken:
            raise InvalidValueError(f"data: a column cannot be called {name!r}, as subscriptions have that one")
        text = kind if isinstance(kind, str) else text_of_type(kind) if isinstance(kind, pa.DataType) else None
        if text is None:
            raise InvalidTypeError(f"data: column {name!r} has the type {kind}; there are {', '.join(_NAMED)}")
        found[checked_text(name, "name of a column")] = known_type(text)
    return found


def with_columns(schema: Schema, more: Schema, where: str) -> dict[str, pa.DataType]:
    """The columns of both; InvalidTypeError if one has two types."""
    for name, kind in more.items():
        if name in schema and schema[name] != kind:
            raise InvalidTypeError(
                f"data: column {name!r} has the type {text_of_type(schema[name])}, but {text_of_type(kind)} in {where}"
            )
    return {**schema, **more}


def unknown_column(name: object, schema: Schema, what: str = "data") -> InvalidValueError:
    """The error for an unknown column of data, in an argument."""
    if not schema:
        return InvalidValueError(f"{what}: there is no column {shown(name)}: give the columns as data= of TagMatch")
    return InvalidValueError(f"{what}: there is no column {shown(name)}{near_match(str(name), [*schema])}")


def some_columns(names: Iterable[object], schema: Schema, what: str = "columns") -> dict[str, pa.DataType]:
    """The types of some columns, which an argument names; InvalidValueError for an unknown column."""
    found = {}
    for name in names:
        if not isinstance(name, str) or name not in schema:
            raise unknown_column(name, schema, what)
        found[name] = schema[name]
    return found


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values of a column: of a dictionary, that of its texts."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def count_type(kind: pa.DataType) -> pa.DataType:
    """The type of counts by the values of a column of a type."""
    plain = plain_type(kind)
    return pa.list_(pa.struct({"value": plain, "count": pa.uint64()}))


def zone_wanted(kind: pa.TimestampType) -> str:
    """What times of a column need, for messages."""
    return "needs times with a zone" if kind.tz else "takes times without a zone"


def as_json(name: str, value: object, schema: Schema) -> tuple[str, Any]:
    """The type of a column, as it is written, and a value of it as JSON has it."""
    kind = schema.get(name)
    if kind is None:
        raise unknown_column(name, schema)
    text = text_of_type(kind)
    assert text is not None
    plain = plain_type(kind)
    if isinstance(value, bool) and not pa.types.is_boolean(plain):
        raise InvalidTypeError(f"data: column {name!r} takes values of {text}, not a bool")
    if pa.types.is_timestamp(plain) and isinstance(value, datetime) and (value.tzinfo is None) != (plain.tz is None):
        raise InvalidValueError(f"data: column {name!r} {zone_wanted(plain)}, not {shown(value)}")
    try:
        scalar = pa.scalar(value, plain)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidTypeError(f"data: column {name!r} takes values of {text}, not {shown(value)}: {error}") from None
    if pa.types.is_temporal(plain):
        least, most = _span(plain)
        if not least <= scalar.value <= most:
            raise InvalidValueError(f"data: column {name!r}: {_YEARS}")
        return text, scalar.value
    if pa.types.is_decimal(plain):
        return text, str(scalar.as_py())
    found = scalar.as_py()
    return text, str(found) if isinstance(found, float) and not isfinite(found) else found


@lru_cache(64)
def _span(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest number of a date or time that Python can show, in each zone."""
    first, last = (each.toordinal() - _EPOCH for each in (date.min, date.max))
    if pa.types.is_date32(kind):
        return first, last
    size, margin = 86_400 * _IN_SECONDS[kind.unit], kind.tz not in (None, "UTC")
    return max((first + margin) * size, -(2**63)), min((last + 1 - margin) * size, 2**63) - 1


def reject_other_years(name: str, column: pa.Array, first_row: int) -> None:
    """Raise InvalidValueError for the first date or time of a column of data that Python cannot show."""
    least, most = _span(column.type)
    numbers = column.view(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    wrong = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
    if (at := pc.index(wrong, True).as_py()) >= 0:
        raise InvalidValueError(f"data: column {name!r}: row {first_row + at}: {_YEARS}")


#: As many texts of a dictionary are kept as Python has them
_FEW_TEXTS = 1 << 10


# -- single values -----------------------------------------------------------------------------------------------------


def no_value(_: int) -> None:
    """The value of each row of a column that has none."""


def value_reader(column: pa.Array) -> Value:
    """What reads single values of a column: of most types in a tenth of the time that Arrow takes for one."""
    if column.null_count == len(column):
        return no_value
    read = _reader_of_all(column)
    if not column.null_count:
        return read
    bits, first = memoryview(column.buffers()[0]), column.offset

    def value(row: int) -> Any:
        at = first + row
        return read(row) if bits[at >> 3] >> (at & 7) & 1 else None

    return value


def _reader_of_all(column: pa.Array) -> Value:
    """The same, of rows that have values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        texts, index = column.dictionary, _reader_of_all(column.indices)
        text = texts.to_pylist().__getitem__ if len(texts) <= _FEW_TEXTS else _reader_of_all(texts)
        return lambda row: text(index(row))
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = _numbers_in(column, 1, np.dtype(kind.to_pandas_dtype()))
        return numbers.__getitem__
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        ends = _numbers_in(column, 1, np.dtype(np.int32 if pa.types.is_string(kind) else np.int64), more=1)
        data = memoryview(column.buffers()[2] or b"")
        return lambda row: str(data[ends[row] : ends[row + 1]], "utf-8")
    return lambda row: _shown_by_python(column[row])


def _shown_by_python(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except ValueError:  # of nanoseconds, without pandas
        raise InvalidValueError(
            "a time of data has nanoseconds, which Python shows with pandas alone; `tagmatch export` writes it"
        ) from None


def _numbers_in(column: pa.Array, buffer: int, kind: Any, more: int = 0) -> memoryview:
    numbers = np.frombuffer(column.buffers()[buffer], kind, len(column) + more, column.offset * kind.itemsize)
    return numbers.data
