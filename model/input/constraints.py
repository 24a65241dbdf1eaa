"""Constraints as structs of Arrow, which are checked and written as tags column by column: nothing is parsed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import BoolArray, I64Array, Strings, TagLists, U8Array, offsets_of
from tagmatch.model.arrow_input import plain_strings, reject_no_utf8, strings_in
from tagmatch.model.columns import shown
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, NullError, TagMatchError
from tagmatch.model.input.attributes import rows_of_columns
from tagmatch.model.input.values import NO_PLACES, check_values, elements, is_list, places, struct_fields, value_column
from tagmatch.model.where.constraints import MANY, OPERATORS, RANGES, Constraint
from tagmatch.model.where.tag_columns import CONSTANTS, MISSING, SEVERAL, Columns, are_sound, constraint_tags
from tagmatch.model.where.values import value_of

#: Fields of a constraint: its attribute and operator; the operand, in one of several fields; and other operands
ATTRIBUTE, OPERATOR, VALUES, UPPER, LIST = "attr", "op", ("value", "int", "float", "text", "bool"), "upper", "values"
_FIELDS = (ATTRIBUTE, OPERATOR, *VALUES, UPPER, LIST)
# What an operator needs, by how many operands it has
_NEEDED = {
    0: "no value",
    1: f"one value, in one of the fields {', '.join(VALUES)}",
    2: f"two values, in the fields 'value' and {UPPER!r}, or both in {LIST!r}",
    MANY: f"a list of values, in the field {LIST!r}",
}
# Of operators by number, whether they have two ends, between which there must be a value
_HAS_ENDS = np.array([own.count == 2 for own in OPERATORS.values()])
# Bytes of a tag that is no range of values, but its attribute
_AROUND_NAME = len(Constraint("", RANGES).tag)


def constraint_rows(
    constraints: pa.Array, name: str = "constraints", *, first_row: int = 0, threads: int = 1
) -> TagLists:
    """The constraints of each row, lists of structs that `TagMatch.add_subscriptions` describes, as tags.

    InvalidTypeError, InvalidValueError and NullError name the column, the row, counted from `first_row`, and the place
    of the constraint there.
    """
    if pa.types.is_null(constraints.type):
        return TagLists(np.zeros(len(constraints) + 1, np.int64), strings_in(pa.array([], pa.large_string())))
    kind = constraints.type
    if not is_list(kind) or not pa.types.is_struct(kind.value_type):
        raise InvalidTypeError(f"{name} must be lists of structs with {', '.join(_FIELDS[:3])}, …, not {kind}")
    offsets, structs = elements(constraints)
    read = _Read(name, first_row, offsets, structs)
    columns = read.columns(threads)
    sound = are_sound(columns, threads)
    if structs.null_count:
        sound &= structs.is_valid().to_numpy(zero_copy_only=False)
    if not sound.all():
        raise read.mistake(int(np.argmin(sound)), columns)
    tags = constraint_tags(columns, threads)
    empty = _empty_ranges(columns, tags)
    if empty.any():
        raise read.mistake(int(np.argmax(empty)), columns)
    return TagLists(offsets, tags)


def _empty_ranges(columns: Columns, tags: Strings) -> BoolArray:
    """Constraints whose two ends have no value between them: nothing stands behind the name in their tags."""
    lengths, names = np.diff(tags.offsets), np.diff(columns.names, axis=1)[:, 0]
    found: BoolArray = _HAS_ENDS[columns.operators] & (lengths == names + _AROUND_NAME)
    return found


class _Keys(NamedTuple):
    """Keys of values by place in `data`; `MISSING` or `SEVERAL` in place of those that are not one."""

    data: U8Array
    places: I64Array


class _Read:
    """Constraints of all rows, one after the other, as their fields."""

    def __init__(self, name: str, first_row: int, offsets: I64Array, structs: pa.StructArray) -> None:
        self._name, self._first_row, self._offsets, self._structs = name, first_row, offsets, structs
        self._fields = struct_fields(structs, _FIELDS, f"{name}: constraints")
        for field in (ATTRIBUTE, OPERATOR):
            if field not in self._fields:
                raise InvalidTypeError(
                    f"{name}: constraints need a field {field!r}, not only {', '.join(self._fields)}"
                )

    def _text(self, field: str) -> pa.Array:
        values = self._fields[field]
        texts = plain_strings(values, f"{self._name}: field {field!r} must be strings, not {values.type}")
        reject_no_utf8(texts, self._name, self._first_row, len(self._offsets) - 1)
        return texts

    def columns(self, threads: int) -> Columns:
        """What kernels need."""
        attributes, count = self._text(ATTRIBUTE), len(self._structs)
        operators = pc.index_in(self._text(OPERATOR), pa.array(list(OPERATORS))).fill_null(-1).to_numpy()
        strings = strings_in(attributes.fill_null("").cast(pa.large_string()))
        every = np.arange(count)
        values = self._keys([self._fields[name] for name in VALUES if name in self._fields], "value", every, threads)
        uppers = self._keys([self._fields[name] for name in (UPPER,) if name in self._fields], UPPER, every, threads)
        lists, members = np.zeros(count + 1, np.int64), self._keys([], LIST, every[:0], threads)
        has_list: BoolArray = np.zeros(count, np.bool_)
        if LIST in self._fields and not pa.types.is_null(self._fields[LIST].type):
            given = self._fields[LIST]
            if not is_list(given.type):
                raise InvalidTypeError(f"{self._name}: field {LIST!r} must be lists of values, not {given.type}")
            has_list = given.is_valid().to_numpy(zero_copy_only=False)
            lists, inner = elements(given)
            members = self._keys([inner], LIST, np.repeat(every, np.diff(lists)), threads)
        parts = [np.frombuffer(CONSTANTS, np.uint8), strings.data, values.data, uppers.data, members.data]
        starts = offsets_of(np.array(list(map(len, parts)), np.int64))
        return Columns(
            np.concatenate(parts),
            operators.astype(np.int64),
            np.stack(places(strings), axis=1) + starts[1],
            _moved(values, starts[2]),
            _moved(uppers, starts[3]),
            lists,
            _moved(members, starts[4]),
            has_list,
        )

    def _keys(self, fields: list[pa.Array], field: str, owners: I64Array, threads: int) -> _Keys:
        """The keys of values, of each of which one array has one, and the constraints that they belong to."""
        count, found = len(owners), []
        label = f"{self._name}: field {field!r}"
        for plain in (each for values in fields for each in _plain(values)):
            reject_no_utf8(plain, label, self._first_row, len(self._offsets) - 1)
            check_values(
                plain,
                lambda place: f"{self._place(int(owners[place]))}, field {field!r},",
                f"{label} has values of {plain.type}, but these are bools, integers, floats or strings: cast it",
            )
            column = value_column(plain, NO_PLACES)
            if column is not None:
                found.append(column)
        rows = rows_of_columns(found, count, threads)
        counts = np.diff(rows.offsets)
        begins, ends = places(rows.tags)
        one = np.full((count, 2), MISSING, np.int64)
        there = counts == 1
        firsts = rows.offsets[:-1][there]
        one[there, 0], one[there, 1] = begins[firsts], ends[firsts]
        one[counts > 1] = SEVERAL
        return _Keys(rows.tags.data, one)

    def _place(self, number: int) -> str:
        """What messages call a constraint."""
        row = int(np.searchsorted(self._offsets, number, side="right")) - 1
        return f"{self._name}: row {self._first_row + row}, constraint {number - int(self._offsets[row])}"

    def mistake(self, number: int, columns: Columns) -> TagMatchError:
        """What is wrong with a constraint that is not sound."""
        place = self._place(number)
        if not self._structs[number].is_valid:
            return NullError(f"{place} is null; leave it out")
        for field in (ATTRIBUTE, OPERATOR):
            if not self._fields[field][number].is_valid:
                return NullError(f"{place}: field {field!r} is null; each constraint needs one")
        attribute, operator = (self._fields[field][number].as_py() for field in (ATTRIBUTE, OPERATOR))
        if operator not in OPERATORS:
            return InvalidValueError(
                f"{place}: there is no operator {shown(operator)}; there are {' '.join(OPERATORS)}"
            )
        given = columns.values[number], columns.uppers[number]
        members = columns.members[columns.lists[number] : columns.lists[number + 1]]
        if (members[:, 0] == MISSING).any():
            return NullError(f"{place}: field {LIST!r} holds a null where a value must be; leave it out")
        has_value, has_upper = (one[0] != MISSING for one in given)
        count = OPERATORS[operator].count
        if not _has_operands(count, has_value, has_upper, len(members), columns.has_list[number]):
            return InvalidValueError(f"{place}: {operator} needs {_NEEDED[count]}")
        if any((one == SEVERAL).any() for one in (*given, members)):
            return InvalidValueError(f"{place}: there are several values where one must be; leave others null")
        operands = [
            value_of(columns.data[begin:end].tobytes().decode()) for begin, end in (*given, *members) if end > 0
        ]
        try:
            Constraint.of(attribute, operator, operands)
        except TagMatchError as error:
            return type(error)(f"{place}: {error}")
        raise AssertionError(place)


def _moved(keys: _Keys, start: int) -> I64Array:
    """Places in an array in which the keys begin later."""
    return np.where(keys.places < 0, keys.places, keys.places + start)


def _plain(values: pa.Array) -> list[pa.Array]:
    """Values of one type each: those of unions, and of structs, of whose fields one has a value."""
    if pa.types.is_struct(values.type):
        return [plain for field in values.flatten() for plain in _plain(field)]
    if not pa.types.is_union(values.type):
        return [values]
    codes = values.type_codes.to_numpy()
    at = values.offsets.to_numpy() if values.type.mode == "dense" else np.arange(len(values))
    fields = [
        values.field(number).take(pa.array(at, mask=codes != code))
        for number, code in enumerate(values.type.type_codes)
    ]
    return [plain for field in fields for plain in _plain(field)]


def _has_operands(count: int, has_value: bool, has_upper: bool, members: int, has_list: bool) -> bool:
    """Whether there are as many operands as an operator needs, and where it needs them."""
    if count == MANY:
        return has_list and not has_value and not has_upper
    if members:
        return count == members == 2 and not has_value and not has_upper
    return has_value == (count > 0) and has_upper == (count > 1)
