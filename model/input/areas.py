"""Areas of many rows, in columns: structs of Arrow or objects, as rows of tags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import F64Array, TagLists, U8Array
from tagmatch.model.arrow_input import plain_strings, reject_no_utf8
from tagmatch.model.columns import NO_SEQUENCES, arrow_chunks, rows_of_tags, shown
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError, TagMatchError
from tagmatch.model.kernels.area_shapes import BOX, CIRCLE, MOST_NUMBERS, NEAR, TO_PLANE, area_tags
from tagmatch.model.where.areas import FIELDS, KINDS, MAX_LAT, MAX_LON, Area, check
from tagmatch.model.where.constraints import Constraint

#: The field that says which kind an area has, and all others
KIND = "kind"
NUMBERS = tuple(dict.fromkeys(field for fields in FIELDS.values() for field in fields))
#: Fields that say where a circle is
PLACE = ("lon", "lat")

_CIRCLE, _BOX, _NEAR = KINDS
_LETTERS = {_CIRCLE: CIRCLE, _BOX: BOX, _NEAR: NEAR}
#: A bit for each of the fields that a kind has
_NEEDED = {name: sum(1 << NUMBERS.index(field) for field in fields) for name, fields in FIELDS.items()}


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
    return area_tags(*_read(areas, name, first_row, plane).shapes(), threads)


def shapes_in(areas: pa.Array, name: str, *, first_row: int = 0, plane: bool) -> tuple[U8Array, F64Array]:
    """The circles and boxes of rows, as structs, as letters and numbers (`Shapes`); errors as of `area_rows`."""
    letters, values = _read(areas, name, first_row, plane).shapes()
    near = np.isin(letters, (NEAR, NEAR + TO_PLANE))
    if near.any():
        row = first_row + int(np.argmax(near))
        raise InvalidValueError(f"{name}: row {row}: an area must be a circle or a box here, not near")
    return letters, values


def _read(areas: pa.Array, name: str, first_row: int, plane: bool) -> _Read:
    if not pa.types.is_struct(areas.type):
        raise InvalidTypeError(f"{name} must be structs with {KIND}, {', '.join(NUMBERS)}, not {areas.type}")
    return _Read(areas, name, first_row, plane)


class _Read:
    """Areas of all rows as their fields."""

    def __init__(self, areas: pa.StructArray, name: str, first_row: int, plane: bool) -> None:
        self._areas, self._name, self._first_row, self._plane = areas, name, first_row, plane
        self._fields: dict[str, pa.Array] = {}
        for number, values in enumerate(areas.flatten()):
            field = areas.type.field(number).name
            if field not in (KIND, *NUMBERS) or field in self._fields:
                raise InvalidTypeError(
                    f"{name}: areas have fields {KIND}, {', '.join(NUMBERS)}, each once, not {field!r}"
                )
            if field != KIND and not (
                pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_null(values.type)
            ):
                raise InvalidTypeError(f"{name}: field {field!r} must be numbers, not {values.type}")
            self._fields[field] = values
        self._given = np.zeros(len(areas), np.uint8)
        for bit, field in enumerate(NUMBERS):
            if field in self._fields:
                self._given |= (_there(self._fields[field]) << bit).astype(np.uint8)

    def shapes(self) -> tuple[U8Array, F64Array]:
        """Their letters and numbers, as of `Shapes`; 0 where a row has none."""
        letters = self._letters()
        values = np.zeros((len(letters), MOST_NUMBERS))
        sound = np.ones(len(letters), np.bool_)
        needed = np.zeros(len(letters), np.uint8)
        for kind, letter in _LETTERS.items():
            rows = letters == letter
            if not rows.any():
                continue
            needed[rows] = _NEEDED[kind]
            numbers = {field: self._numbers(field) for field in FIELDS[kind]}
            sound &= ~rows | self._are_sound(kind, numbers)
            for place, field in enumerate(FIELDS[kind]):
                values[rows, place] = numbers[field][rows]
        wrong = ~sound | (self._given != needed) | ((letters == 0) & _there(self._areas))
        if wrong.any():
            self._refuse(int(np.argmax(wrong)), letters)
        if self._plane:
            letters[letters > 0] -= np.uint8(-TO_PLANE)
        return letters, values

    def _letters(self) -> U8Array:
        """Which kind each has, by its letter; 0 where there is none that is known, and of a null."""
        letters = np.zeros(len(self._areas), np.uint8)
        unsaid = _there(self._areas)
        if KIND in self._fields:
            kinds = plain_strings(
                self._fields[KIND], f"{self._name}: field {KIND!r} must be strings, not {self._fields[KIND].type}"
            )
            reject_no_utf8(kinds, self._name, self._first_row, len(kinds))
            codes = pc.index_in(kinds, pa.array(list(KINDS), kinds.type)).fill_null(len(KINDS)).to_numpy()
            letters = np.array([*_LETTERS.values(), 0], np.uint8)[codes]
            unsaid &= ~_there(kinds)
        is_box = self._given & _NEEDED[_BOX] > 0
        # A circle whose place is missing must not be near by accident
        is_near = np.full(len(letters), not any(field in self._fields for field in PLACE))
        letters[unsaid] = np.where(is_box, BOX, np.where(is_near, NEAR, CIRCLE))[unsaid]
        return letters

    def _numbers(self, field: str) -> F64Array:
        values = self._fields.get(field)
        if values is None or pa.types.is_null(values.type):
            return np.zeros(len(self._areas))
        # Adding zero makes -0.0 0.0
        return pc.cast(values, pa.float64(), safe=False).fill_null(0.0).to_numpy() + 0.0  # type: ignore[no-any-return]

    def _are_sound(self, kind: str, numbers: dict[str, F64Array]) -> npt.NDArray[np.bool_]:
        """Whether the numbers, where all are there, are those of an area of this kind."""
        sound: npt.NDArray[np.bool_] = np.ones(len(self._areas), np.bool_)
        for field, values in numbers.items():
            if field == "metres":
                sound &= (values >= 0) & (values < np.inf)
            elif self._plane:
                sound &= np.isfinite(values)
            else:
                sound &= np.abs(values) <= (MAX_LAT if field in ("lat", "south", "north") else MAX_LON)
        if kind == _BOX:
            sound &= numbers["south"] <= numbers["north"]
            if self._plane:
                sound &= numbers["west"] <= numbers["east"]
        return sound

    def _refuse(self, row: int, letters: U8Array) -> NoReturn:
        """Say what is wrong with an area."""
        place = f"{self._name}: row {self._first_row + row}"
        record = {field: values[row].as_py() for field, values in self._fields.items()}
        said, letter = record.get(KIND), letters[row]
        given = [field for field in NUMBERS if record.get(field) is not None]
        if not letter:
            raise InvalidValueError(f"{place}: there is no kind {shown(said)}; there are {', '.join(KINDS)}")
        kind = next(name for name, each in _LETTERS.items() if each == letter)
        if not given and said is None:
            raise NullError(f"{place}: all fields are null; a row without an area is null itself")
        for field in given:
            if field not in FIELDS[kind]:
                raise InvalidValueError(
                    f"{place}: field {field!r} is none of a {kind}, which has {', '.join(FIELDS[kind])}"
                )
        for field in FIELDS[kind]:
            if field not in given:
                is_null = "is null" if field in self._fields else "is missing"
                raise NullError(f"{place}: field {field!r} {is_null}; a {kind} has {', '.join(FIELDS[kind])}")
        try:
            check(KINDS[kind](*(record[field] for field in FIELDS[kind])), plane=self._plane)
        except TagMatchError as error:
            raise type(error)(f"{place}: {error}") from None
        raise AssertionError(place)


def _there(values: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return found
