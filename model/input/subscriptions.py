"""Subscriptions as callers give them, one by one or in columns, and the rows of tags that are stored for them.

Constraints are structs of Arrow, which are checked and written as tags column by column: nothing is parsed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model import clock
from tagmatch.model.arrays import BoolArray, I64Array, Strings, TagLists, U8Array, U32Array, U64Array, offsets_of
from tagmatch.model.arrow import (
    as_table,
    from_strings,
    plain_array,
    plain_strings,
    reject_no_utf8,
    to_strings,
    without_null_lists,
)
from tagmatch.model.clock import expiry_times
from tagmatch.model.columns import (
    KEY_CHECKS,
    arrow_chunks,
    listed_in,
    rows_of_tags,
    shown,
    stored_tag_list,
    tag_lists,
)
from tagmatch.model.errors import FilterError, InvalidTypeError, InvalidValueError, NullError, TagMatchError
from tagmatch.model.input.declared_columns import as_decimals
from tagmatch.model.input.places import area_column, area_rows, area_tag, is_area
from tagmatch.model.input.typed import PARSED, is_typed, parsed
from tagmatch.model.input.values import (
    FLOAT,
    NO_PLACES,
    TEXT,
    VALUES,
    check_values,
    elements,
    is_list,
    keys_of_rows,
    kind_of,
    places,
    struct_fields,
    value_column,
)
from tagmatch.model.names import check_names
from tagmatch.model.options import KeyType
from tagmatch.model.where.areas import Near
from tagmatch.model.where.constraints import (
    LIKE,
    MANY,
    MATCHES,
    OPERATORS,
    PHRASE,
    RANGES,
    Constraint,
    Where,
)
from tagmatch.model.where.declared import NOTHING, Declared, declared_tag
from tagmatch.model.where.language import rows_of, stored_rows
from tagmatch.model.where.tag_columns import CONSTANTS, MISSING, SEVERAL, Columns, are_sound, constraint_tags
from tagmatch.model.where.values import RESERVED, value_of

#: The columns of a table of subscriptions that have constraints
WHERE, AREA = "where", "area"
CONDITIONS = (WHERE, "constraints", AREA)

#: The columns that a table of subscriptions may have
COLUMNS = ("key", "tags", *CONDITIONS, "expires")


def alternatives(
    tags: object, where: object, area: object = None, *, plane: bool = False, declared: Declared | None = None
) -> list[list[str]]:
    """The rows that are stored for one subscription: one for each conjunction that its expression becomes.

    Entries of `tags` that are `Where`, as iteration gives them, are conditions, too, as they are stored.
    InvalidTypeError, InvalidValueError and FilterError name the mistake.

    >>> alternatives(["fr"], 'tags {"new"} or tags {"sale"}')
    [['fr', 'new'], ['fr', 'sale']]
    """
    plain = stored_tag_list(tags)
    conditions: list[Any] = [] if where is None else [where]
    if Where in map(type, plain):
        conditions += [tag for tag in plain if isinstance(tag, Where)]
        plain = [tag for tag in plain if not isinstance(tag, Where)]
    rows = [plain]
    for condition in conditions:
        own = None if isinstance(condition, Where) else declared
        rows = [[*row, *other] for other in stored_rows(condition, plane=plane, declared=own) for row in rows]
    if area is not None:
        at = area_tag(area, plane=plane)
        rows = [[*row, at] for row in rows]
    different: dict[frozenset[str], list[str]] = {}
    for row in rows:
        different.setdefault(frozenset(row), row)
    return [*different.values()]


def nears_of(stored: Iterable[str]) -> list[float]:
    """The metres of each `Near` among the conditions of a set, as users see it.

    >>> nears_of(["fr", Where("within near(500)"), Where("x = 1")])
    [500.0]
    """
    conditions = [row for each in stored if isinstance(each, Where) for row in rows_of(each)]
    areas = [constraint.area for row in conditions for constraint in row.constraints]
    return [area.metres for area in areas if isinstance(area, Near)]


@dataclass(frozen=True, slots=True, eq=False)
class RowsToStore:
    """What is stored for subscriptions: one row for each conjunction that the expression of one becomes."""

    chunks: list[TagLists]  # tags of the rows, with the tags of conditions
    keys: U64Array | Strings  # the key of each row
    expires: I64Array | None  # when each row's key expires, in microseconds since 1970; `None` if none does
    sources: I64Array | None  # the subscription of each row; `None` where each has one


def rows_to_store(
    columns: Mapping[str, Any], key_type: KeyType, *, plane: bool, threads: int, declared: Declared | None = None
) -> RowsToStore:
    """The rows that are stored for columns `tags` and `key`, and perhaps others of `COLUMNS`.

    InvalidTypeError, InvalidValueError and FilterError name the row that cannot be stored.
    """
    chunks = tag_lists(columns["tags"], "tags", stored=True)
    keys = KEY_CHECKS[key_type].many(columns["key"], "keys")
    rows = sum(map(len, chunks))
    if rows != len(keys):
        raise InvalidValueError(f"tags and keys must have the same length; there are {rows} sets, {len(keys)} keys")
    times = expiry_times(columns.get("expires"), rows, clock.now_us())
    chunks, sources = with_conditions(chunks, columns, plane=plane, threads=threads, declared=declared)
    if sources is not None:
        keys, times = keys_of(keys, sources), None if times is None else times[sources]
    return RowsToStore(chunks, keys, times, sources)


def columns_of(given: Any, *, match_all: bool = False, data: Collection[str] = ()) -> dict[str, Any]:
    """The columns of a table of subscriptions, as `Index.add_subscriptions` takes it, by name; errors as there.

    There may be columns of data. Without a column `tags`, or where that is null, a row has no tags if it has a
    condition, or with `match_all`.
    """
    table = as_table(given)
    if table is None:
        raise InvalidTypeError(
            f"subscriptions must be a table of Arrow or a DataFrame of pandas, polars or DuckDB, not {shown(given)}"
        )
    names = table.schema.names
    known = (*COLUMNS, *data)
    check_names(names, known, f"subscriptions have columns {', '.join(known)}")
    for name in names:
        if name not in known or names.count(name) > 1:
            also = "" if name in known or data else "; columns of data come with put_many, or with data= on Spark"
            raise InvalidValueError(f"subscriptions have columns {', '.join(known)}, each once, not {name!r}{also}")
    if "key" not in names:
        is_index = "key" in getattr(getattr(given, "index", None), "names", ())  # of pandas
        hint = "; the DataFrame has it as its index: give reset_index() of it" if is_index else ""
        told = ", ".join(map(repr, names)) or "none"
        raise InvalidValueError(f"subscriptions need a column 'key'; there is {told}{hint}")
    if not match_all and {"tags", *CONDITIONS}.isdisjoint(names):
        raise InvalidValueError(
            f"subscriptions need one of the columns {', '.join(('tags', *CONDITIONS))}: without any, each would match "
            f"every message; {_put_whole(data)}if that is meant, give match_all=True"
        )
    columns = {name: table.column(name) for name in names}
    if "tags" not in columns or columns["tags"].null_count:
        batches = table.to_batches() if isinstance(table, pa.Table) else [table]
        chunks = list(_every_tags(batches, match_all, _put_whole(data)))
        columns["tags"] = pa.chunked_array(chunks, None if chunks else pa.list_(pa.string()))
    return columns


def _put_whole(data: Collection[str]) -> str:
    """What those are told, who perhaps want to change data alone."""
    return "a put replaces all that a key had, so that its tags and conditions are given, too; " if data else ""


def _every_tags(batches: Iterable[pa.RecordBatch], match_all: bool, hint: str) -> Iterator[pa.Array]:
    """The tags of all rows, none null; NullError."""
    row = 0
    for batch in batches:
        tags = tags_of(batch, CONDITIONS)
        if tags.null_count and not match_all:
            row += int(np.argmax(tags.is_null().to_numpy(zero_copy_only=False)))
            raise NullError(
                f"subscriptions: row {row} has no tags and no condition, and would match every message: {hint}give [] "
                "for no tags, or match_all=True"
            )
        yield without_null_lists(tags, np.ones(len(batch), np.bool_))
        row += len(batch)


def tags_of(batch: pa.RecordBatch, instead: Iterable[str]) -> pa.Array:
    """The column `tags`, whose nulls are empty lists in rows that have a value in one of some other columns."""
    names = batch.schema.names
    has_other = np.zeros(len(batch), np.bool_)
    for name in instead:
        if name in names:
            has_other |= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
    tags = batch.column("tags") if "tags" in names else pa.nulls(len(batch), pa.list_(pa.string()))
    return without_null_lists(tags, has_other)


# -- expressions, and all together -------------------------------------------------------------------------------------


class Conditions(NamedTuple):
    """The conditions in the rows of a table, besides their tags."""

    number: I64Array  # of each row, which of the alternatives it has
    rows: list[list[list[str]]]  # of different rows, the tags that each conjunction adds


def conditions_of(
    where: Any,
    count: int,
    name: str = "where",
    *,
    first_row: int = 0,
    plane: bool,
    declared: Declared | None = None,
) -> Conditions:
    """The conditions of `count` rows: a column of expressions with nulls, or one expression for all.

    Each different text is read once. InvalidTypeError, InvalidValueError and FilterError name the row, counted from
    `first_row`; or the length is another.
    """
    if isinstance(where, str):
        return Conditions(np.zeros(count, np.int64), [stored_rows(where, plane=plane, declared=declared)])
    texts = texts_of(where, count, name, first_row=first_row)
    encoded = texts.dictionary_encode()
    codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
    found: list[list[list[str]]] = []
    for number, text in enumerate(encoded.dictionary.to_pylist()):
        try:
            found.append(stored_rows(text, plane=plane, declared=declared))
        except FilterError as error:
            row = "" if count == 1 and not first_row else f"row {first_row + int(np.argmax(codes == number))}: "
            raise FilterError(f"{name}: {row}{str(error).removeprefix('where: ')}") from None
    return Conditions(codes, [*found, [[]]])


def texts_of(where: Any, count: int, name: str = "where", *, first_row: int = 0) -> pa.Array:
    """A column of `count` expressions or nulls; InvalidTypeError, InvalidValueError."""
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
        stored_rows(text.decode(), plane=plane, declared=NOTHING)
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} is no UTF-8"
    except FilterError as error:
        return str(error).removeprefix("where: ")
    return ""


def with_conditions(
    chunks: list[TagLists],
    columns: Mapping[str, Any],
    *,
    plane: bool,
    threads: int = 1,
    declared: Declared | None = None,
) -> tuple[list[TagLists], I64Array | None]:
    """The rows of all chunks with the tags of the columns `constraints`, `area` and `where`, if present.

    A row comes as often as its expression has alternatives: from which row each comes, `None` if each comes once.
    InvalidTypeError, InvalidValueError, NullError and FilterError name the row.
    """
    rows, sources = sum(map(len, chunks)), None
    constraints, areas, where = (columns.get(name) for name in ("constraints", "area", "where"))
    if constraints is not None:
        chunks = [
            _beside(
                chunk, constraint_rows(constraints[first:last], first_row=first, threads=threads, declared=declared)
            )
            for chunk, first, last in _ranges(chunks)
        ]
    if is_area(areas):
        one = rows_of_tags([[area_tag(areas, plane=plane)]])
        chunks = [_joined(chunk, np.arange(len(chunk)), one, np.zeros(len(chunk), np.int64)) for chunk in chunks]
    elif areas is not None:
        column = area_column(areas, rows)
        chunks = [
            _beside(chunk, area_rows(column[first:last], first_row=first, plane=plane, threads=threads))
            for chunk, first, last in _ranges(chunks)
        ]
    if where is not None:
        chunks, sources = _with_alternatives(chunks, conditions_of(where, rows, plane=plane, declared=declared))
    return chunks, sources


def _ranges(chunks: list[TagLists]) -> Iterator[tuple[TagLists, int, int]]:
    """Each chunk, and from which row to which of all it has them."""
    first = 0
    for chunk in chunks:
        yield chunk, first, first + len(chunk)
        first += len(chunk)


def _with_alternatives(chunks: list[TagLists], conditions: Conditions) -> tuple[list[TagLists], I64Array]:
    """The rows of all chunks with the tags that their conditions add: as many of each as it has alternatives."""
    counts = np.array([len(rows) for rows in conditions.rows], np.int64)
    firsts = offsets_of(counts)
    added = rows_of_tags([tags for rows in conditions.rows for tags in rows])
    parts, sources = [], [np.zeros(0, np.int64)]
    for chunk, first, last in _ranges(chunks):
        numbers = conditions.number[first:last]
        begins = offsets_of(counts[numbers])
        rows = np.repeat(np.arange(len(chunk)), counts[numbers])
        alternative = np.arange(begins[-1]) - begins[rows] + firsts[numbers][rows]
        if repeated := _repeated(chunk, conditions.rows, numbers, begins):
            rows, alternative = np.delete(rows, repeated), np.delete(alternative, repeated)
        parts.append(_joined(chunk, rows, added, alternative))
        sources.append(first + rows)
    return parts, np.concatenate(sources)


def _repeated(chunk: TagLists, conditions: list[list[list[str]]], numbers: I64Array, begins: I64Array) -> list[int]:
    """Which alternatives are as one before: they differ in tags only that the row has anyway."""
    named = {tag for rows in conditions if len(rows) > 1 for tags in rows for tag in tags if RESERVED not in tag}
    if not named:
        return []
    offsets, places = _places(chunk, np.arange(len(chunk)))
    strings = from_strings(chunk.tags)
    is_named = pc.is_in(strings, pa.array(sorted(named), strings.type)).to_numpy(zero_copy_only=False)
    before, repeated = offsets_of(is_named[places].astype(np.int64)), list[int]()
    for row in np.flatnonzero(before[offsets[1:]] > before[offsets[:-1]]).tolist():
        own = set(strings.take(pa.array(places[offsets[row] : offsets[row + 1]])).to_pylist())
        seen = set[frozenset[str]]()
        for at, tags in enumerate(conditions[numbers[row]], int(begins[row])):
            if (rest := frozenset(tags) - own) in seen:
                repeated.append(at)
            seen.add(rest)
    return repeated


def _beside(left: TagLists, right: TagLists) -> TagLists:
    """Rows with the tags of both that have their number."""
    every = np.arange(len(left))
    return _joined(left, every, right, every)


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
ATTRIBUTE, OPERATOR, UPPER, LIST = "attr", "op", "upper", "values"
#: Those of some types may have texts that write their values
VALUE_FIELDS = ("value", "int", "float", "text", "bool", *PARSED)
_FIELDS = (ATTRIBUTE, OPERATOR, *VALUE_FIELDS, UPPER, LIST)
# What an operator needs, by how many operands it has
_NEEDED = {
    0: "no value",
    1: f"one value, in one of the fields {', '.join(VALUE_FIELDS)}",
    2: f"two values, in the fields 'value' and {UPPER!r}, or both in {LIST!r}",
    MANY: f"a list of values, in the field {LIST!r}",
}
# Of operators by number, whether they have two ends, between which there must be a value
_HAS_ENDS = np.array([own.count == 2 for own in OPERATORS.values()])
# And whether their operand is a pattern, which may have mistakes
_HAS_PATTERN = np.array([own.kind in (LIKE, MATCHES) for own in OPERATORS.values()])
_PHRASE = list(OPERATORS).index(PHRASE)
# Bytes of a tag that is no range of values, but its attribute
_AROUND_NAME = len(Constraint("", RANGES).tag)


def constraint_rows(
    constraints: pa.Array | pa.ChunkedArray,
    name: str = "constraints",
    *,
    first_row: int = 0,
    threads: int = 1,
    declared: Declared | None = None,
) -> TagLists:
    """The constraints of each row, lists of structs that `TagMatch.add_subscriptions` describes, as tags.

    InvalidTypeError, InvalidValueError and NullError name the column, the row, counted from `first_row`, and the place
    of the constraint there.
    """
    if pa.types.is_null(constraints.type):
        return TagLists(np.zeros(len(constraints) + 1, np.int64), to_strings(pa.array([], pa.large_string())))
    constraints, kind = plain_array(constraints), constraints.type
    if not is_list(kind) or not pa.types.is_struct(kind.value_type):
        raise InvalidTypeError(f"{name} must be lists of structs with {', '.join(_FIELDS[:3])}, …, not {kind}")
    offsets, structs = elements(constraints)
    read = _Read(name, first_row, offsets, structs)
    columns = read.columns(threads, NOTHING if declared is None else declared)
    sound = are_sound(columns, threads)
    if structs.null_count:
        sound &= structs.is_valid().to_numpy(zero_copy_only=False)
    if not sound.all():
        raise read.mistake(int(np.argmin(sound)), columns)
    tags = constraint_tags(columns, threads)
    patterns = np.flatnonzero(_HAS_PATTERN[columns.operators])
    if len(patterns):
        tags = read.with_patterns(tags, patterns, columns)
    empty = _empty_ranges(columns, tags)
    if empty.any():
        raise read.mistake(int(np.argmax(empty)), columns)
    return TagLists(offsets, read.as_declared(tags, columns, declared))


def _empty_ranges(columns: Columns, tags: Strings) -> BoolArray:
    """Constraints whose two ends have no value between them: their tags end with the name."""
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
        self._are_decimals: pa.Array | None = None  # for each constraint, whether its attribute is declared as one
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

    def columns(self, threads: int, declared: Declared) -> Columns:
        """What kernels need."""
        attributes, count = self._text(ATTRIBUTE), len(self._structs)
        if declared.decimals:
            self._are_decimals = pc.is_in(attributes, pa.array(sorted(declared.decimals), attributes.type))
        operators = pc.index_in(self._text(OPERATOR), pa.array(list(OPERATORS))).fill_null(-1).to_numpy()
        strings = to_strings(attributes.fill_null("").cast(pa.large_string()))
        every = np.arange(count)
        given = {name: values for name, values in self._fields.items() if name in VALUE_FIELDS}
        values = self._keys(given, "value", every, threads)
        given = {name: values for name, values in self._fields.items() if name == UPPER}
        uppers = self._keys(given, UPPER, every, threads)
        lists, members = np.zeros(count + 1, np.int64), self._keys({}, LIST, every[:0], threads)
        has_list: BoolArray = np.zeros(count, np.bool_)
        if LIST in self._fields and not pa.types.is_null(self._fields[LIST].type):
            given = self._fields[LIST]
            if not is_list(given.type):
                raise InvalidTypeError(f"{self._name}: field {LIST!r} must be lists of values, not {given.type}")
            has_list = given.is_valid().to_numpy(zero_copy_only=False)
            lists, inner = elements(given)
            members = self._keys({LIST: inner}, LIST, np.repeat(every, np.diff(lists)), threads)
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

    def _keys(self, fields: dict[str, pa.Array], field: str, owners: I64Array, threads: int) -> _Keys:
        """The keys of all values, each given in one of several arrays, and the constraints that they belong to."""
        count, found = len(owners), []
        label = f"{self._name}: field {field!r}"

        def place_of(place: int) -> str:
            return f"{self._place(int(owners[place]))}, field {field!r},"

        for name, plain in (each for own, values in fields.items() for each in _plain(own, values)):
            reject_no_utf8(plain, label, self._first_row, len(self._offsets) - 1)
            if name in PARSED and kind_of(plain.type) == TEXT and not is_typed(plain.type):
                plain = parsed(plain, name, place_of)
            check_values(
                plain,
                place_of,
                f"{label} has values of {plain.type}, but these are {VALUES}: cast it",
            )
            columns = (value_column(each, NO_PLACES) for each in self._with_decimals(plain, owners))
            found += [column for column in columns if column is not None]
        rows = keys_of_rows(found, count, threads)
        counts = np.diff(rows.offsets)
        begins, ends = places(rows.tags)
        one = np.full((count, 2), MISSING, np.int64)
        there = counts == 1
        firsts = rows.offsets[:-1][there]
        one[there, 0], one[there, 1] = begins[firsts], ends[firsts]
        one[counts > 1] = SEVERAL
        return _Keys(rows.tags.data, one)

    def _with_decimals(self, values: pa.Array, owners: I64Array) -> list[pa.Array]:
        """Values; doubles of attributes that are declared as decimals are apart, as these."""
        if self._are_decimals is None or kind_of(values.type) != FLOAT:
            return [values]
        doubles, nothing = values.cast(pa.float64()), pa.scalar(None, pa.float64())
        chosen = self._are_decimals.take(pa.array(owners))
        return [pc.if_else(chosen, nothing, doubles), as_decimals(pc.if_else(chosen, doubles, nothing))]

    def as_declared(self, tags: Strings, columns: Columns, declared: Declared | None) -> Strings:
        """The tags of constraints as attributes are declared; each different one is looked at once.

        InvalidTypeError and InvalidValueError name the place.
        """
        phrases = columns.operators == _PHRASE
        if not (declared or phrases.any()):
            return tags
        plain = np.where(phrases, 1, 0)  # a phrase has the tag of `contains`
        encoded = from_strings(tags).cast(pa.large_string()).dictionary_encode()
        codes = 2 * encoded.indices.to_numpy().astype(np.int64) + plain
        different, firsts, places = np.unique(codes, return_index=True, return_inverse=True)
        texts, found = encoded.dictionary.take(pa.array(different // 2)).to_pylist(), []
        for tag, code, first in zip(texts, different.tolist(), firsts.tolist(), strict=True):
            try:
                found.append(declared_tag(tag, declared, is_phrase=code % 2 == 1))
            except (InvalidTypeError, InvalidValueError) as error:
                raise type(error)(f"{self._place(first)}: {error}") from None
        return to_strings(pa.array(found, pa.large_string()).take(pa.array(places)))

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
        operator = self._fields[OPERATOR][number].as_py()
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
            return InvalidValueError(f"{place}: several values are given, but only one is allowed; leave others null")
        try:
            self._constraint(number, columns)
        except TagMatchError as error:
            return error
        raise AssertionError(place)

    def with_patterns(self, tags: Strings, numbers: I64Array, columns: Columns) -> Strings:
        """The tags, of constraints with these numbers as an expression has them; errors name the place."""
        own = [self._constraint(number, columns).tag for number in numbers.tolist()]
        mask = np.zeros(len(tags), np.bool_)
        mask[numbers] = True
        found = from_strings(tags).cast(pa.large_string())
        return to_strings(pc.replace_with_mask(found, pa.array(mask), pa.array(own, pa.large_string())))

    def _constraint(self, number: int, columns: Columns) -> Constraint:
        """A constraint, as an expression has it; errors name its place."""
        attribute, operator = (self._fields[field][number].as_py() for field in (ATTRIBUTE, OPERATOR))
        members = columns.members[columns.lists[number] : columns.lists[number + 1]]
        places = (columns.values[number], columns.uppers[number], *members)
        operands = [value_of(columns.data[begin:end].tobytes().decode()) for begin, end in places if end > 0]
        try:
            return Constraint.of(attribute, operator, operands)
        except TagMatchError as error:
            kind = InvalidTypeError if isinstance(error, InvalidTypeError) else InvalidValueError
            raise kind(f"{self._place(number)}: {error}") from None


def _moved(keys: _Keys, start: int) -> I64Array:
    """Places in an array in which the keys begin later."""
    return np.where(keys.places < 0, keys.places, keys.places + start)


def _plain(name: str, values: pa.Array) -> list[tuple[str, pa.Array]]:
    """Values of one type each, and their fields: those of unions, and of structs, of whose fields one has a value."""
    if pa.types.is_struct(values.type):
        own = zip((field.name for field in values.type), values.flatten(), strict=True)
        return [plain for field, inner in own for plain in _plain(field, inner)]
    if not pa.types.is_union(values.type):
        return [(name, values)]
    if values.offset:  # Arrow gives codes and offsets of a union from its beginning
        values = pa.concat_arrays([values])
    codes = values.type_codes.to_numpy()
    at = values.offsets.to_numpy() if values.type.mode == "dense" else np.arange(len(values))
    fields = [
        values.field(number).take(pa.array(at, mask=codes != code))
        for number, code in enumerate(values.type.type_codes)
    ]
    return [plain for field in fields for plain in _plain(name, field)]


def _has_operands(count: int, has_value: bool, has_upper: bool, members: int, has_list: bool) -> bool:
    """Whether operands are as many as an operator needs, and in the right fields."""
    if count == MANY:
        return has_list and not has_value and not has_upper
    if members:
        return count == members == 2 and not has_value and not has_upper
    return has_value == (count > 0) and has_upper == (count > 1)
