"""Where messages of a table are: its columns `location` and `within`."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, F64Array
from tagmatch.model.columns import shown
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError
from tagmatch.model.input.areas import shapes_in
from tagmatch.model.input.places import Locations
from tagmatch.model.kernels.sphere import boxes_have, circles_have
from tagmatch.model.where.areas import MAX_LAT, MAX_LON, Box, Circle, out_of_range

LOCATION, WITHIN = "location", "within"
_NAMES = {True: ("x", "y"), False: ("lon", "lat")}


def coordinates(lon: Any, lat: Any, count: int, *, plane: bool) -> tuple[F64Array, F64Array]:
    """Where `count` clients are to be; NaN in both, or a null of Arrow, is nowhere."""
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


def area_has(area: object, lon: F64Array, lat: F64Array, *, plane: bool) -> BoolArray:
    """Whether an area, which is a circle or a box, has each of some places."""
    if isinstance(area, Box):
        west, south, east, north = (np.full(len(lon), edge) for edge in (area.west, area.south, area.east, area.north))
        return boxes_have(west, south, east, north, lon, lat, plane=plane)
    assert isinstance(area, Circle)
    middle_lon, middle_lat, metres = (np.full(len(lon), field) for field in (area.lon, area.lat, area.metres))
    return circles_have(middle_lon, middle_lat, metres, lon, lat, plane=plane)


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
    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InvalidTypeError(f"{name} must be numbers, not {kind if values is given else shown(given)}")
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values.cast(pa.float64()).to_numpy(zero_copy_only=False)


def locations_of_table(table: pa.Table | pa.RecordBatch, *, plane: bool, first_row: int = 0) -> list[Locations] | None:
    """Where the messages of each batch of a table are; `None` if no column says it.

    A column `location` or `within` that is no struct and no list is an attribute of that name.
    """
    if not any(is_place_column(table.schema, name) for name in (LOCATION, WITHIN)):
        return None
    batches, found = [table] if isinstance(table, pa.RecordBatch) else table.to_batches(), []
    for batch in batches:
        lon = lat = np.full(len(batch), np.nan)
        if is_place_column(batch.schema, LOCATION):
            lon, lat = places_in(batch.column(LOCATION), f"column {LOCATION!r}", plane=plane, first_row=first_row)
        kinds, values = np.zeros(0, np.uint8), np.zeros((0, 4))
        if is_place_column(batch.schema, WITHIN):
            kinds, values = shapes_in(batch.column(WITHIN), f"column {WITHIN!r}", plane=plane, first_row=first_row)
        found.append(Locations(lon, lat, kinds, values))
        first_row += len(batch)
    return found


def without_locations(table: pa.Table | pa.RecordBatch) -> pa.Table | pa.RecordBatch:
    """The table without the columns that `locations_of_table` reads."""
    return table.drop_columns([name for name in (LOCATION, WITHIN) if is_place_column(table.schema, name)])


def names_of_places(*, plane: bool) -> tuple[str, str]:
    """What both numbers of a place are called."""
    return _NAMES[plane]


def is_place_column(schema: pa.Schema, name: str) -> bool:
    """Whether there is a column of this name that says where messages are."""
    place = schema.get_field_index(name)
    return place >= 0 and (pa.types.is_struct(schema.types[place]) or _is_list(schema.types[place]))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def places_in(column: pa.Array, name: str, *, plane: bool, first_row: int) -> tuple[F64Array, F64Array]:
    """Places of rows, NaN where there are none; messages of errors begin with `name`."""
    names, there = _NAMES[plane], column.is_valid()
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan), np.full(len(column), np.nan)
    if pa.types.is_struct(column.type):
        fields = [column.type.field(i).name for i in range(column.type.num_fields)]
        if sorted(fields) != sorted(names):
            raise InvalidTypeError(f"{name} must have the fields {' and '.join(names)}, not {fields}")
        parts = [column.field(field) for field in names]
    else:
        lengths = pc.list_value_length(column)
        wrong = pc.and_(there, pc.not_equal(lengths, 2)).fill_null(False).to_numpy(zero_copy_only=False)
        if wrong.any():
            raise InvalidValueError(
                f"{name}: row {first_row + int(np.argmax(wrong))} must have two numbers, {' and '.join(names)}"
            )
        begins = np.cumsum(np.append(0, np.where(there.to_numpy(zero_copy_only=False), 2, 0)))[:-1]
        flat = column.flatten() if not pa.types.is_fixed_size_list(column.type) else pc.list_flatten(column)
        places = pa.array(begins, mask=~there.to_numpy(zero_copy_only=False))
        parts = [flat.take(places), flat.take(pc.add(places, 1))]
    lon, lat = (_numbers(part, name, field, there, first_row) for part, field in zip(parts, names, strict=True))
    if not plane:
        _reject_out_of_range(lon, lat, f"{name}: row", first_row)
    return lon, lat


def _reject_out_of_range(lon: F64Array, lat: F64Array, label: str, first_row: int) -> None:
    """Raise `InvalidValueError` for the first place, of those that are not NaN, that is not on the sphere."""
    wrong = (np.abs(lon) > MAX_LON) | (np.abs(lat) > MAX_LAT)
    if wrong.any():
        row = int(np.argmax(wrong))
        numbers = {"lon": float(lon[row]), "lat": float(lat[row])}
        name, other = ("lon", "lat") if abs(numbers["lon"]) > MAX_LON else ("lat", "lon")
        problem = out_of_range(name, numbers[name], other, numbers[other])
        raise InvalidValueError(f"{label} {first_row + row}: {problem}")


def _numbers(values: pa.Array, column: str, name: str, there: pa.Array, first_row: int) -> F64Array:
    """One number of each place, NaN where there is no place."""
    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise InvalidTypeError(f"{column}: {name} must be numbers, not {values.type}")
    is_there = there.to_numpy(zero_copy_only=False)
    missing = is_there & ~values.is_valid().to_numpy(zero_copy_only=False)
    if missing.any():
        raise NullError(f"{column}: row {first_row + int(np.argmax(missing))} has no {name}")
    numbers: F64Array = values.cast(pa.float64()).fill_null(np.nan).to_numpy().copy()
    wrong = is_there & ~np.isfinite(numbers)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InvalidValueError(f"{column}: row {first_row + row}: {name} must be finite, not {numbers[row]}")
    numbers[~is_there] = np.nan
    return numbers
