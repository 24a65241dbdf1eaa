"""The columns that files have, and how their values are checked and, as JSON has them, become structs of Arrow.

The rules for other columns, whose misspelt names are errors, and for rows that cannot be used.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array
from tagmatch.model.arrow import is_text, reject_no_utf8, without_null_lists
from tagmatch.model.clock import TIME, check_text, times_in
from tagmatch.model.columns import KEY_CHECKS, shown, stored_tag_list, tag_list, tag_lists
from tagmatch.model.data_types import Schema, plain_type, text_of_type
from tagmatch.model.errors import (
    FilterError,
    InputFileError,
    InvalidTypeError,
    InvalidValueError,
    NullError,
    TagMatchError,
)
from tagmatch.model.input.declared_columns import as_declared
from tagmatch.model.input.messages import TAGS, messages_in
from tagmatch.model.input.places import (
    COORDINATES,
    KIND,
    LOCATION,
    NUMBERS,
    PLACE,
    TEXT,
    WITHIN,
    area_from,
    area_rows,
    is_place_column,
    locations_of_rows,
    names_of_places,
    shapes_in,
)
from tagmatch.model.input.putting import data_column
from tagmatch.model.input.subscriptions import (
    AREA,
    ATTRIBUTE,
    CONDITIONS,
    LIST,
    OPERATOR,
    UPPER,
    VALUE_FIELDS,
    WHERE,
    conditions_of,
    constraint_rows,
    tags_of,
)
from tagmatch.model.input.typed import PARSED
from tagmatch.model.input.values import packed
from tagmatch.model.names import near_name
from tagmatch.model.options import KeyType
from tagmatch.model.where.areas import text_of
from tagmatch.model.where.declared import NOTHING, Declared
from tagmatch.model.where.language import stored_rows
from tagmatch.model.where.values import Written, check_name, finite_number, key_of


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of a file and how its values are checked."""

    name: str
    # Types that the column may have in a file without types; the first that fits some rows is taken for them
    kinds: tuple[pa.DataType, ...]
    # `check(array, name, first_row=row)` raises a `TagMatchError` for values that cannot be used
    check: Callable[..., object]
    # The same for one Python value, `check_one(value, name)`; without it, for what `make` makes of that value
    check_one: Callable[[Any, str], object] | None = None
    # What makes an array of values as JSON has them, of any type in each row, for which Arrow's readers have no type
    make: Callable[[list[Any]], pa.Array] | None = None
    is_optional: bool = False  # Whether a file need not have it, nor a row of it
    # Names of optional columns: a row that has a value in one of them need have none here, and has an empty list
    instead: tuple[str, ...] = ()
    takes_text: bool = False  # Whether a cell of CSV may be a text that is no JSON

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Values that have been read one by one."""
        if self.make is not None:
            return self.make(values)
        return pa.array(values, pa.string()).cast(TIME) if kind == TIME else pa.array(values, kind)

    def array_of(self, values: list[Any]) -> pa.Array:
        """The same, of the first type that has all of them."""
        for kind in self.kinds[:-1]:
            with contextlib.suppress(pa.ArrowException, OverflowError, TypeError):
                return self.array(values, kind)
        return self.array(values, self.kinds[-1])

    def check_value(self, value: Any, label: str, row: int) -> None:
        """See that a value of JSON can be used; errors begin with what the column is called, and the row."""
        if self.check_one is not None:
            self.check_one(value, f"{label}: row {row}")
        elif self.make is not None:
            try:
                made = self.make([value])
            except (InvalidTypeError, InvalidValueError) as error:
                raise type(error)(f"{label}: row {row}: {error}") from None
            self.check(made, label, first_row=row)

    @property
    def is_attribute(self) -> bool:
        """Whether its values are those of one attribute."""
        return self.kinds == (PACKED,) and self.name != ATTRIBUTES.name

    def is_missing(self, found: Mapping[str, object]) -> bool:
        """Whether a file, or a row, with these columns lacks it."""
        return not self.is_optional and not any(name in found for name in (self.name, *self.instead))

    @property
    def choice(self) -> str:
        """Names of columns; one of them must be present."""
        return _one_of((self.name, *self.instead))

    def null(self, name: str) -> NullError:
        """The error for a row, which messages call `name`, that has no value in any of these columns."""
        others = f", or a value of {_one_of(self.instead)}" if self.instead else ""
        return NullError(f"{name} is null: give [] for no tags{others}")

    def label(self, path: str) -> str:
        """What messages call the column of a file."""
        return f"{path}: column {self.name!r}"


def _one_of(names: tuple[str, ...]) -> str:
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last


class FileRows(NamedTuple):
    """Rows of a file that can be used."""

    batch: pa.RecordBatch  # Their columns
    numbers: I64Array  # Their numbers among all rows of the file or folder, also those that cannot be used


def rows_from(batch: pa.RecordBatch, first: int) -> FileRows:
    """Rows that follow each other."""
    return FileRows(batch, np.arange(first, first + len(batch)))


def joined(parts: Iterable[FileRows]) -> Iterator[FileRows]:
    """Few large parts for many small ones; those before an error come before it."""
    waiting: list[FileRows] = []
    fault: TagMatchError | None = None
    try:
        for part in parts:
            waiting.append(part)  # noqa: PERF402 - an error leaves those before it
    except TagMatchError as error:
        fault = error
    for _, group in groupby(waiting, lambda part: part.batch.schema):
        some = list(group)
        batch = pa.Table.from_batches([part.batch for part in some]).combine_chunks().to_batches()
        yield FileRows(batch[0], np.concatenate([part.numbers for part in some])) if len(some) > 1 else some[0]
    if fault is not None:
        raise fault


def with_all_tags(batch: pa.RecordBatch, columns: tuple[FileColumn, ...], path: str, first_row: int) -> pa.RecordBatch:
    """Rows that all have tags: none where other columns are there instead."""
    (column,) = (column for column in columns if column.name == TAGS)
    place = batch.schema.get_field_index(TAGS)
    if place < 0:
        place = 0
        batch = batch.add_column(place, TAGS, pa.nulls(len(batch), column.kinds[0]))
    elif not batch[TAGS].null_count:
        return batch
    if column.is_optional:
        tags = without_null_lists(batch[TAGS], np.ones(len(batch), np.bool_))
    else:
        tags = tags_of(batch, column.instead)
    if tags.null_count:
        row = int(np.argmax(tags.is_null().to_numpy(zero_copy_only=False)))
        raise column.null(f"{column.label(path)}: row {first_row + row}")
    return batch.set_column(place, TAGS, tags)


def _check_ids(ids: pa.Array, name: str, first_row: int = 0) -> None:
    if not (pa.types.is_integer(ids.type) or is_text(ids.type)):
        raise InvalidTypeError(f"{name} must be integers or strings, not {ids.type}")
    reject_no_utf8(ids, name, first_row, len(ids))


def _check_id(value: object, name: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
        raise InvalidTypeError(f"{name} must be an integer or a string, not {shown(value)}")
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise InvalidValueError(f"{name} must have at most 64 bits; write a string for {shown(value)}")


#: What text formats make of attributes: these packed, in lists as no file has them
PACKED = pa.list_(pa.binary())


def _made(kind: pa.DataType, make: Callable[[Any], object], rows: Iterable[Any]) -> pa.Array:
    """What is made of each row, null for one that has nothing, as an array of this type."""
    return pa.array([None if row is None else make(row) for row in rows], kind)


def _packed_rows(rows: Iterable[Any], declared: Declared = NOTHING) -> pa.Array:
    def make(row: Any) -> list[bytes]:
        found = [packed(row)]
        if declared.strict:  # otherwise, it refuses nothing
            declared.message(row)
        return found

    return _made(PACKED, make, rows)


def _values_of(name: str, values: list[Any], declared: Declared) -> pa.Array:
    return _packed_rows([{name: value} for value in values], declared)


def attribute_columns(given: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Attributes of queries, of `ATTRIBUTES` or of columns that are one each, as `TagMatch.match_many` takes them."""
    found: dict[str, pa.Array] = {}
    if as_bytes := [pc.binary_join(values, b"") for values in given.values() if values.type == PACKED]:
        found[ATTRIBUTES.name] = pc.binary_join_element_wise(*(values.fill_null(b"") for values in as_bytes), b"")
    typed = {name: values for name, values in given.items() if values.type != PACKED}
    own = typed.pop(ATTRIBUTES.name, None)
    if own is not None and pa.types.is_map(own.type):
        found[f"{ATTRIBUTES.name} in maps"] = own
    elif own is not None:
        typed |= zip(_names(own.type), own.flatten(), strict=True)
    if typed:
        found[ATTRIBUTES.name] = pa.StructArray.from_arrays(list(typed.values()), list(typed))
    return found


def _table_of(attributes: pa.StructArray | pa.MapArray) -> pa.RecordBatch:
    if pa.types.is_map(attributes.type):
        return pa.record_batch({ATTRIBUTES.name: attributes})
    return pa.RecordBatch.from_arrays(attributes.flatten(), names=_names(attributes.type))


def _names(kind: pa.StructType) -> list[str]:
    return [kind.field(i).name for i in range(kind.num_fields)]


def _check_attributes(attributes: pa.Array, name: str, first_row: int = 0, *, declared: Declared) -> None:
    if attributes.type == PACKED:
        return
    is_struct = pa.types.is_struct(attributes.type)
    if not pa.types.is_map(attributes.type) and not (is_struct and attributes.type.num_fields):
        wanted = "a struct with a field for each attribute, or a map"
        raise InvalidTypeError(f"{name} must be {wanted}, not {attributes.type}")
    if is_struct and TAGS in _names(attributes.type):
        raise InvalidValueError(f"{name} must have no field {TAGS!r}")
    try:
        _check_messages(_table_of(attributes), first_row, declared)
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{name}: {str(error).removeprefix(f'column {ATTRIBUTES.name!r}: ')}") from None


def _check_messages(attributes: pa.RecordBatch, first_row: int, declared: Declared) -> None:
    chunks = messages_in([attributes], first_row=first_row)
    if declared.strict:
        as_declared(chunks, declared, first_row)


def _check_attribute(attribute: str, values: pa.Array, name: str, first_row: int = 0, *, declared: Declared) -> None:
    if values.type == PACKED:
        return
    try:
        _check_messages(pa.record_batch({attribute: values}), first_row, declared)
    except (InvalidTypeError, InvalidValueError) as error:
        problem = str(error).removeprefix(f"column {attribute!r}")
        raise type(error)(f"{name}{problem}; --ignore-columns {attribute!r} leaves it aside") from None


def _check_condition(where: Any, name: str, *, plane: bool, declared: Declared) -> None:
    try:
        if where is not None:
            stored_rows(where, plane=plane, declared=declared)
    except (InvalidTypeError, FilterError) as error:
        raise type(error)(f"{name}: {str(error).removeprefix('where: ')}") from None


_TYPES = {bool: "bool", int: "int", float: "float", str: "text"}
_TEXTS = dict.fromkeys(("text", *PARSED), pa.string())
_VALUE = pa.struct({"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), **_TEXTS})


def _list(name: str, given: object) -> list[Any]:
    if not isinstance(given, list):
        raise InvalidTypeError(f"{name} must be a list, not {shown(given)}")
    return given


def _text(name: str, given: object) -> str:
    if not isinstance(given, str):
        raise InvalidTypeError(f"field {name!r} must be a text, not {shown(given)}")
    return given


def _value(name: str, given: Any) -> dict[str, Any]:
    if name in PARSED and isinstance(given, str):
        given = {name: given}
    if isinstance(given, dict) and len(given) == 1 and [_TYPES.get(type(each)) for each in given.values()] == [*given]:
        (given,) = given.values()  # in the field of its type, as columns of Arrow have it
    key_of(given)
    return dict(given) if isinstance(given, dict) else {_TYPES[type(given)]: given}


def _values(name: str, given: object) -> list[Any]:
    return [None if each is None else _value(name, each) for each in _list(f"field {name!r}", given)]


#: What is made of each field of an object of JSON, `make(name, value)`, and the type of that
_Fields = Mapping[str, tuple[Callable[[str, Any], Any], pa.DataType]]
_OF_CONSTRAINTS: _Fields = {
    **dict.fromkeys((ATTRIBUTE, OPERATOR), (_text, pa.string())),
    **dict.fromkeys((*VALUE_FIELDS, UPPER), (_value, _VALUE)),
    LIST: (_values, pa.list_(_VALUE)),
}
_OF_AREAS: _Fields = {KIND: (_text, pa.string()), **dict.fromkeys(NUMBERS, (finite_number, pa.float64()))}

#: What text formats make of constraints
CONSTRAINT_LISTS = pa.list_(pa.struct({name: kind for name, (_, kind) in _OF_CONSTRAINTS.items()}))
#: The same of areas, which may be texts
AREA_COLUMN = pa.struct([*((name, kind) for name, (_, kind) in _OF_AREAS.items()), (TEXT, pa.string())])


def _typed(record: object, one: str, many: str, fields: _Fields) -> dict[str, Any]:
    """An object of JSON, `one` of `many`, as a struct of Arrow is made of it; nulls are left out."""
    if not isinstance(record, dict):
        raise InvalidTypeError(f"{one} must be an object, not {shown(record)}")
    for name in record:
        if name not in fields:
            raise InvalidValueError(f"{many} have no field {name!r}")
    return {name: fields[name][0](name, value) for name, value in record.items() if value is not None}


def _typed_constraints(row: object) -> list[dict[str, Any]]:
    return [_typed(one, "a constraint", "constraints", _OF_CONSTRAINTS) for one in _list("constraints", row)]


def _typed_area(record: object) -> dict[str, Any]:
    found = _typed(record, "an area", "areas", _OF_AREAS)
    # In a column of all fields, it would be a circle whose place is missing
    is_near = KIND not in found and "metres" in found and not any(name in record for name in PLACE)  # type: ignore[operator]
    return {KIND: "near", **found} if is_near else found


def _any_area(record: object) -> dict[str, Any]:
    """An area as a text, a geometry of GeoJSON, or an object with numbers."""
    if isinstance(record, dict) and (COORDINATES in record or TEXT in record):
        record = text_of(area_from(record))
    return {TEXT: record} if isinstance(record, str) else _typed_area(record)


constraint_lists = partial(_made, CONSTRAINT_LISTS, _typed_constraints)
_area_column = partial(_made, AREA_COLUMN, _any_area)


def _locations(names: tuple[str, ...], rows: list[Any]) -> pa.Array:
    """Locations of rows as structs; as lists of these, if a row has a list of places."""
    kind = pa.struct(dict.fromkeys(names, pa.float64()))
    several = [isinstance(row, list) and all(isinstance(each, list | dict) for each in row) for row in rows]
    if not any(several):
        return _made(kind, partial(_typed_location, names), rows)
    lists = [row if is_list or row is None else [row] for row, is_list in zip(rows, several, strict=True)]
    return _made(pa.list_(kind), lambda row: [_typed_location(names, each) for each in row], lists)


def _typed_location(names: tuple[str, ...], given: object) -> dict[str, float]:
    record = dict(zip(names, given, strict=True)) if isinstance(given, list) and len(given) == len(names) else given
    if not isinstance(record, dict) or not set(record) <= set(names):
        raise InvalidTypeError(
            f"a location must be [{', '.join(names)}] or an object with {' and '.join(names)}, "
            f"or a list of such places, not {shown(given)}"
        )
    for name in names:
        if record.get(name) is None:
            raise NullError(f"a location must have a number {name}, not {shown(given)}")
    return {name: finite_number(name, record[name]) for name in names}


def _check_places(
    column: str, check: Callable[..., object], values: pa.Array, name: str, first_row: int = 0, *, plane: bool
) -> None:
    kind = values.type
    if pa.types.is_null(kind):
        return
    if not is_place_column(pa.schema([(column, kind)]), column):
        raise InvalidTypeError(
            f"{name} says where queries are, and must be structs, not {kind}; --attributes {column} has it be an "
            "attribute"
        )
    check(values, name, first_row=first_row, plane=plane)


_LISTS = pa.list_(pa.string())
#: Of queries
ID = FileColumn("id", (pa.int64(), pa.uint64(), pa.string()), _check_ids, _check_id, is_optional=True)
ATTRIBUTES = FileColumn(
    "attributes", (PACKED,), partial(_check_attributes, declared=NOTHING), make=_packed_rows, is_optional=True
)


def columns_of_sets(
    key_type: KeyType, *, expires: bool, plane: bool, match_all: bool, declared: Declared
) -> tuple[FileColumn, ...]:
    """What a stored set has: its tags and key, what a query must be as well, and perhaps when its key expires."""

    def check(where: pa.Array, name: str, first_row: int = 0) -> None:
        conditions_of(where, len(where), name, first_row=first_row, plane=plane, declared=declared)

    check_tags, keys = partial(tag_lists, stored=True), KEY_CHECKS[key_type]
    check_one, constraints = partial(_check_condition, plane=plane), partial(constraint_rows, declared=declared)
    columns = (
        FileColumn(TAGS, (_LISTS,), check_tags, stored_tag_list, is_optional=match_all, instead=CONDITIONS),
        FileColumn("key", (pa.uint64() if key_type == "integer" else pa.string(),), keys.many, keys.one),
        FileColumn(WHERE, (pa.string(),), check, partial(check_one, declared=declared), is_optional=True),
        FileColumn("constraints", (CONSTRAINT_LISTS,), constraints, make=constraint_lists, is_optional=True),
        FileColumn(
            AREA, (AREA_COLUMN,), partial(area_rows, plane=plane), make=_area_column, is_optional=True, takes_text=True
        ),
    )
    return (*columns, FileColumn("expires", (TIME,), times_in, check_text, is_optional=True)) if expires else columns


def columns_of_data(schema: Schema) -> tuple[FileColumn, ...]:
    """Columns of data that keys which are put may have."""
    found = []
    for name, kind in schema.items():
        plain = plain_type(kind)
        own = FileColumn(name, (plain,), partial(_check_data, name, schema), is_optional=True, takes_text=True)
        if pa.types.is_string(plain):
            found.append(replace(own, check_one=partial(_check_text, name, kind)))
        else:
            found.append(replace(own, make=partial(_data_of_texts, name, plain)))
    return tuple(found)


def _check_data(name: str, schema: Schema, values: pa.Array, label: str, first_row: int = 0) -> None:
    try:
        data_column(name, values, schema, first_row)
    except (InvalidTypeError, InvalidValueError) as error:
        row = f"row {first_row}: " if len(values) == 1 and isinstance(error, InvalidTypeError) else ""
        raise type(error)(f"{label}: {row}{error}") from None


def _check_text(name: str, kind: pa.DataType, value: Any, label: str) -> None:
    if not isinstance(value, str):
        raise InvalidTypeError(
            f"{label}: data: column {name!r} takes values of {text_of_type(kind)}, not {shown(value)}"
        )


def _may_lack_digits(value: object) -> bool:
    """Whether a number of JSON, which is a double, may have been another decimal."""
    digits = _as_written(value).lower().partition("e")[0].replace(".", "").strip("-0")
    return isinstance(value, float) and len(digits) > 15


def _as_written(value: object) -> str:
    return value.text if isinstance(value, Written) else repr(value)


def _data_of_texts(name: str, kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Values of JSON, with texts read as the type says; InvalidTypeError if a number has lost digits, as a double."""
    if pa.types.is_decimal(kind) and (lost := next(filter(_may_lack_digits, values), None)) is not None:
        raise InvalidTypeError(
            f"data: column {name!r} takes values of {text_of_type(kind)}, and {_as_written(lost)} has more digits than "
            "JSON's numbers keep, which is 15: write it as a string"
        )
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    try:
        return pa.array(texts, pa.string()).cast(kind)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise InvalidTypeError(f"data: column {name!r} takes values of {text_of_type(kind)}: {error}") from None


def columns_of_queries(attributes: tuple[str, ...], *, plane: bool, declared: Declared) -> tuple[FileColumn, ...]:
    """What a query has: its tags, its id and attributes, and places, unless columns of their names are attributes."""
    kind = pa.struct(dict.fromkeys(names_of_places(plane=plane), pa.float64()))
    located = partial(_locations, names_of_places(plane=plane))
    location = partial(_check_places, LOCATION, locations_of_rows, plane=plane)
    within = partial(_check_places, WITHIN, shapes_in, plane=plane)
    places = (
        FileColumn(LOCATION, (kind,), location, make=located, is_optional=True),
        FileColumn(WITHIN, (AREA_COLUMN,), within, make=_area_column, is_optional=True, takes_text=True),
    )
    tags = FileColumn(TAGS, (_LISTS,), tag_lists, tag_list, instead=(ATTRIBUTES.name,))
    check, make = partial(_check_attributes, declared=declared), partial(_packed_rows, declared=declared)
    own = replace(ATTRIBUTES, check=check, make=make)
    return (tags, ID, *(column for column in places if column.name not in attributes), own)


def require_columns(found: list[str], path: str, columns: tuple[FileColumn, ...]) -> None:
    """See that a file, which messages call `path`, has each column that it must have, and each one once."""
    counts = Counter(found)
    for column in columns:
        if column.is_missing(counts):
            raise InputFileError(
                f"{path} has no column {column.choice}; its columns are {', '.join(map(repr, found)) or 'none'}"
            )
        if counts[column.name] > 1:
            raise InputFileError(f"{path} has {counts[column.name]} columns {column.name!r}; there must be one")


def refuse_twice(names: Iterable[str], own: Collection[str]) -> None:
    """Check that no attribute of the column `attributes` is a column, too; InvalidValueError."""
    for name in names:
        if name in own:
            raise InvalidValueError(
                f"attribute {name!r} is a column, and in the column {ATTRIBUTES.name!r}; leave out one"
            )


#: In the place of names of columns: all that have no meaning
EVERY_OTHER = ("*",)


class OtherColumns:
    """The rule for columns that have no meaning: they are left aside, or each is an attribute of queries.

    A column is taken for a misspelt one if its name is nearly that of a known one, which is not there itself.
    """

    def __init__(
        self,
        known: Iterable[str],
        ignored: tuple[str, ...] = (),
        attributes: tuple[str, ...] = (),
        declared: Declared = NOTHING,
    ) -> None:
        self._known, self._ignored, self._attributes = frozenset(known), ignored, attributes
        self._declared = declared
        self.are_all_ignored = ignored == EVERY_OTHER and not attributes
        self.seen: dict[str, None] = {}  # Those of sets that were left aside

    def with_attributes(self, columns: tuple[FileColumn, ...], names: list[str], path: str) -> tuple[FileColumn, ...]:
        """The columns of a file with columns of these names, also those that are an attribute of queries each.

        If there is one of these, queries need no tags. InputFileError: a column is misspelt, or has no name.
        """
        self.check(names, path)
        own = self.attributes_in(names)
        for name in own:
            try:
                check_name(name)
            except InvalidValueError as error:
                raise InputFileError(
                    f"{path}: column {name!r}: {error}; commands leave columns aside with --ignore-columns"
                ) from None
        given = tuple(
            replace(each, is_optional=each.is_optional or bool(own)) if each.name == TAGS else each for each in columns
        )
        declared = self._declared
        return given + tuple(
            FileColumn(
                name,
                (PACKED,),
                partial(_check_attribute, name, declared=declared),
                make=partial(_values_of, name, declared=declared),
            )
            for name in dict.fromkeys(own)
        )

    def attributes_in(self, names: Iterable[str]) -> tuple[str, ...]:
        """The columns, of these or as they were named, that are an attribute each."""
        if self._attributes == EVERY_OTHER:
            return tuple(self._without_meaning(names))
        return tuple(name for name in self._attributes if name not in self._ignored)

    def leave_aside(self, names: Iterable[str]) -> bool:
        """Take note of columns of many rows that are left aside; whether none can be a misspelt one of some row."""
        others = self._without_meaning(names)
        near = next((place for place, name in enumerate(others) if self._near(name, self._known)), len(others))
        self._note(others[:near])
        return near == len(others)

    def check(self, names: Collection[str], place: str) -> None:
        """See that no column is misspelt, and take note of those that are left aside."""
        others, missing = self._without_meaning(names), self._known.difference(names)
        for name in others:
            if near := self._near(name, missing):
                instead = (
                    f"an attribute of that name goes into the column 'attributes'; commands take --attributes {name!r}"
                    if self._attributes
                    else f"leave it aside, as commands do with --ignore-columns {name!r}"
                )
                raise InputFileError(
                    f"{place} has a column {name!r}, which means nothing here; is {near!r} meant? "
                    f"Rename the column, or {instead}"
                )
        self._note(others)

    def _near(self, name: str, known: Collection[str]) -> str | None:
        return None if name in self._attributes else near_name(name, known)

    def _without_meaning(self, names: Iterable[str]) -> list[str]:
        if self._ignored == EVERY_OTHER:
            return []
        return [name for name in names if name not in self._known and name not in self._ignored]

    def _note(self, names: list[str]) -> None:
        if not self._attributes:
            self.seen |= dict.fromkeys(names)


class InvalidRows:
    """The rule for rows that cannot be used: the first ends the reading, or all are skipped and counted."""

    def __init__(self, *, skip: bool = False, most: int = 1) -> None:
        self._skip, self._most = skip, most
        self.count = 0
        self.first: list[str] = []  # What at most `most` of them say

    def found(self, error: TagMatchError) -> None:
        """Raise or count a row's mistake."""
        if not self._skip:
            raise error
        self.count += 1
        if self.count <= self._most:
            self.first.append(str(error))
