"""What many subscriptions ask for beside their tags, in columns: expressions, constraints and areas, as rows of tags.

Constraints and areas are structs of Arrow, which are checked and written as tags column by column: nothing is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import (
    BoolArray,
    F64Array,
    I64Array,
    Strings,
    TagLists,
    U8Array,
    U32Array,
    U64Array,
    offsets_of,
)
from tagmatch.model.arrow import from_strings, to_strings
from tagmatch.model.arrow_input import plain_strings, reject_no_utf8
from tagmatch.model.columns import arrow_chunks, listed_in, rows_of_tags, shown
from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError, NullError, TagMatchError
from tagmatch.model.input.values import (
    NO_PLACES,
    check_values,
    elements,
    is_list,
    keys_of_rows,
    places,
    struct_fields,
    value_column,
)
from tagmatch.model.kernels.sphere import BOX, CIRCLE, LOWER, NEAR
from tagmatch.model.where.areas import FIELDS, KINDS, LIMITS, Area, check
from tagmatch.model.where.constraints import MANY, OPERATORS, RANGES, Constraint
from tagmatch.model.where.language import stored_rows
from tagmatch.model.where.tag_columns import (
    CONSTANTS,
    MISSING,
    MOST_NUMBERS,
    SEVERAL,
    Columns,
    are_sound,
    area_tags,
    constraint_tags,
)
from tagmatch.model.where.values import value_of

# -- expressions, and all together -------------------------------------------------------------------------------------


class Conditions(NamedTuple):
    """What the rows of a table ask for beside their tags."""

    number: I64Array  # of each row, which of the alternatives it has
    rows: list[list[list[str]]]  # of different rows, the tags that each conjunction adds


def conditions_of(where: Any, count: int, name: str = "where", *, first_row: int = 0, plane: bool) -> Conditions:
    """The conditions of `count` rows: a column of expressions, null where there is none, or one expression for all.

    Each different text is read once. InvalidTypeError, InvalidValueError and FilterError name the row, counted from
    `first_row`; or the length is another.
    """
    if isinstance(where, str):
        return Conditions(np.zeros(count, np.int64), [stored_rows(where, plane=plane)])
    texts = texts_of(where, count, name, first_row=first_row)
    encoded = texts.dictionary_encode()
    codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
    found: list[list[list[str]]] = []
    for number, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            found.append(stored_rows(text, plane=plane))
        except FilterError as error:
            row = first_row + int(np.argmax(codes == number))
            raise FilterError(f"{name}: row {row}: {str(error).removeprefix('where: ')}") from None
    return Conditions(codes, [*found, [[]]])


def texts_of(where: Any, count: int, name: str = "where", *, first_row: int = 0) -> pa.Array:
    """A column of `count` expressions, null where there is none; InvalidTypeError, InvalidValueError."""
    texts = pa.chunked_array(_texts(where, name, first_row), pa.large_string()).combine_chunks()
    if len(texts) != count:
        raise InvalidValueError(f"{name} must have a text or a null for each of the {count} sets, not {len(texts)}")
    reject_no_utf8(texts, name, first_row, count)
    return texts


def _texts(where: Any, name: str, first_row: int) -> list[pa.Array]:
    """The chunks of a column of expressions."""
    chunks = arrow_chunks(where, name)
    if chunks is not None:
        return [
            plain_strings(chunk, f"{name} must be texts, not {chunk.type}").cast(pa.large_string()) for chunk in chunks
        ]
    listed = listed_in(where, f"{name} must be a text, or one for each row")
    for row, text in enumerate(listed):
        if not (text is None or isinstance(text, str)):
            raise InvalidTypeError(f"{name}: row {first_row + row} must be a text, not {shown(text)}")
    try:
        return [pa.array(listed, pa.large_string())]
    except UnicodeEncodeError as error:
        raise InvalidValueError(f"{name}: {shown(error.object)} has a lone surrogate and so no UTF-8 form") from None


def reject_mistakes(where: pa.Array, *, plane: bool) -> None:
    """Raise FilterError for the first expression that cannot be read, or whose areas are out of the geometry."""
    for text in _different(where).to_pylist():
        mistake = _mistake_in(text, plane)
        if mistake:
            raise FilterError(f"where: {shown(text.decode(errors='replace'))}: {mistake}")


def have_mistakes(where: pa.Array, *, plane: bool) -> BoolArray:
    """Of each expression, whether `reject_mistakes` rejects it."""
    texts = _different(where)
    bad = [text for text in texts.to_pylist() if _mistake_in(text, plane)]
    found: BoolArray = pc.is_in(where.cast(texts.type), pa.array(bad, texts.type)).to_numpy(zero_copy_only=False)
    return found


def _different(where: pa.Array) -> pa.Array:
    """The different expressions, in bytes, as they may be no UTF-8."""
    return pc.unique(where.drop_null().cast(pa.large_binary()))


def _mistake_in(text: bytes, plane: bool) -> str:
    """What is wrong with an expression, or nothing."""
    try:
        stored_rows(text.decode(), plane=plane)
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is no UTF-8"
    except FilterError as error:
        return str(error).removeprefix("where: ")
    return ""


def with_conditions(
    chunks: list[TagLists], columns: Mapping[str, Any], *, plane: bool, threads: int = 1
) -> tuple[list[TagLists], I64Array | None]:
    """The rows of all chunks with the tags of their columns `constraints`, `area` and `where`, those that there are.

    A row comes as often as its expression has alternatives: from which row each comes, `None` if each comes once.
    InvalidTypeError, InvalidValueError, NullError and FilterError name the row.
    """
    rows, sources = sum(map(len, chunks)), None
    constraints, areas, where = (columns.get(name) for name in ("constraints", "area", "where"))
    if constraints is not None:
        chunks = _with_rows(
            chunks,
            lambda first, count: constraint_rows(
                _slice(constraints, first, count), "constraints", first_row=first, threads=threads
            ),
        )
    if is_area(areas):
        one = rows_of_tags([[area_tag(areas, plane=plane)]])
        chunks = [_joined(chunk, np.arange(len(chunk)), one, np.zeros(len(chunk), np.int64)) for chunk in chunks]
    elif areas is not None:
        column = area_column(areas, rows)
        chunks = _with_rows(
            chunks,
            lambda first, count: (
                listed_areas(column[first : first + count], first_row=first, plane=plane)
                if isinstance(column, list)
                else area_rows(_slice(column, first, count), first_row=first, plane=plane, threads=threads)
            ),
        )
    if where is not None:
        chunks, sources = _with_alternatives(chunks, conditions_of(where, rows, plane=plane))
    return chunks, sources


def _with_alternatives(chunks: list[TagLists], conditions: Conditions) -> tuple[list[TagLists], I64Array]:
    """The rows of all chunks with the tags that their conditions add: as many of each as it has alternatives."""
    counts = np.array([len(rows) for rows in conditions.rows], np.int64)
    firsts = offsets_of(counts)
    added = rows_of_tags([tags for rows in conditions.rows for tags in rows])
    parts, sources, first = [], [np.zeros(0, np.int64)], 0
    for chunk in chunks:
        numbers = conditions.number[first : first + len(chunk)]
        rows = np.repeat(np.arange(len(chunk)), counts[numbers])
        within = np.arange(len(rows)) - np.repeat(offsets_of(counts[numbers])[:-1], counts[numbers])
        parts.append(_joined(chunk, rows, added, np.repeat(firsts[numbers], counts[numbers]) + within))
        sources.append(first + rows)
        first += len(chunk)
    return parts, np.concatenate(sources)


def _slice(column: pa.Array | pa.ChunkedArray, first: int, count: int) -> pa.Array:
    some = column.slice(first, count)
    return some.combine_chunks() if isinstance(some, pa.ChunkedArray) else some


def _with_rows(chunks: list[TagLists], others: Callable[[int, int], TagLists]) -> list[TagLists]:
    """The rows of all chunks, each with the tags of another one, of those that are given from a number on."""
    parts, first = [], 0
    for chunk in chunks:
        rows = np.arange(len(chunk))
        parts.append(_joined(chunk, rows, others(first, len(chunk)), rows))
        first += len(chunk)
    return parts


def _joined(left: TagLists, left_rows: I64Array, right: TagLists, right_rows: I64Array) -> TagLists:
    """Rows with the tags of one of these rows and one of those, by number, in one dictionary of both."""
    left_offsets, lefts = _places(left, left_rows)
    right_offsets, rights = _places(right, right_rows)
    lengths = np.empty(2 * len(left_rows), np.int64)
    lengths[0::2], lengths[1::2] = np.diff(left_offsets), np.diff(right_offsets)
    ends = offsets_of(lengths)
    of_left = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
    indices = np.empty(int(ends[-1]), np.uint32)
    indices[of_left] = lefts
    indices[~of_left] = rights + np.uint32(len(left.tags))
    strings = pa.concat_arrays([from_strings(each.tags).cast(pa.large_string()) for each in (left, right)])
    return TagLists(ends[::2], to_strings(strings), indices)


def _places(rows: TagLists, numbers: I64Array) -> tuple[I64Array, U32Array]:
    """The numbers of the strings that these rows have, and where those of each begin."""
    begins = rows.offsets[:-1][numbers].astype(np.int64)
    lengths = rows.offsets[1:][numbers] - begins
    offsets = offsets_of(lengths)
    places = np.arange(int(offsets[-1])) + np.repeat(begins - offsets[:-1], lengths)
    return offsets, (places if rows.indices is None else rows.indices[places]).astype(np.uint32)


def keys_of(keys: U64Array | Strings, rows: I64Array) -> U64Array | Strings:
    """The keys of these rows."""
    if isinstance(keys, Strings):
        return to_strings(from_strings(keys).cast(pa.large_string()).take(pa.array(rows)))
    return keys[rows]


# -- constraints -------------------------------------------------------------------------------------------------------

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
        return TagLists(np.zeros(len(constraints) + 1, np.int64), to_strings(pa.array([], pa.large_string())))
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
        strings = to_strings(attributes.fill_null("").cast(pa.large_string()))
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
        rows = keys_of_rows(found, count, threads)
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


# -- areas -------------------------------------------------------------------------------------------------------------

#: The field that says which kind an area has, and all others
KIND = "kind"
NUMBERS = tuple(dict.fromkeys(field for fields in FIELDS.values() for field in fields))
#: Fields that say where a circle is
PLACE = ("lon", "lat")

_AREA_FIELDS = (KIND, *NUMBERS)
_CIRCLE, _BOX, _NEAR, _NONE = range(len(KINDS) + 1)
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
    column = (
        listed_in(areas, f"{name} must be a Circle, a Box or a Near, or one for each row")
        if chunks is None
        else pa.chunked_array(chunks, None if chunks else pa.null())
    )
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
        raise InvalidTypeError(f"{name} must be structs with {', '.join(_AREA_FIELDS)}, not {areas.type}")
    fields = struct_fields(areas, _AREA_FIELDS, f"{name}: areas")
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
        needed[rows] = _FIELDS_OF[kind_name]
        for place, field in enumerate(own if len(rows) else ()):
            values[rows, place] = _numbers(fields, field, len(areas))[rows]
    least, most = _BOUNDS[plane]
    wrong = ~((values >= least[kinds]) & (values <= most[kinds])).all(axis=1) | (given != needed)
    wrong |= (kinds == _BOX) & ((values[:, 1] > values[:, 3]) | (plane & (values[:, 0] > values[:, 2])))
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
    """Which of `KINDS` each area has; `_NONE` of a null and where it is none that is known."""
    kinds, unsaid = np.full(len(areas), _NONE, np.uint8), _there(areas)
    if KIND in fields:
        said = plain_strings(fields[KIND], f"{name}: field {KIND!r} must be strings, not {fields[KIND].type}")
        reject_no_utf8(said, name, first_row, len(said))
        kinds = pc.index_in(said, pa.array(list(KINDS), said.type)).fill_null(_NONE).to_numpy().astype(np.uint8)
        unsaid &= ~_there(said)
    # A circle whose place is missing must not be near by accident
    otherwise = _CIRCLE if any(field in fields for field in PLACE) else _NEAR
    kinds[unsaid] = np.where(given & _FIELDS_OF["box"] > 0, _BOX, otherwise)[unsaid]
    return kinds


def _numbers(fields: dict[str, pa.Array], field: str, count: int) -> F64Array:
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
