"""Attributes of many messages in columns of Arrow, a column for each or maps from names to values.

Only those that somebody asks for are read; `rows_of_columns` makes tags of them, as `tagmatch.model.where.values` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Memo, Strings, TagLists, frozen, offsets_of
from tagmatch.model.arrow import to_strings
from tagmatch.model.arrow_input import plain_strings
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.input.places import Locations
from tagmatch.model.input.values import (
    BOOL,
    NAN,
    NO_PLACES,
    TAG,
    TEXT,
    Column,
    check_values,
    elements,
    is_list,
    is_sound,
    next_there,
    number_of,
    prefix_of,
    value_column,
    values_of_rows,
)
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.where.values import ATTRIBUTE, RESERVED, check_name

_DIGITS = frozen(np.frombuffer(b"0123456789abcdef", np.uint8))
_BANG, _B, _N, _S, _ZERO = tuple(b"!bns0")

_ROWS_PER_TASK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class AttributeColumns:
    """Attributes that messages have beside their tags, a row of the batch for each message."""

    batch: pa.RecordBatch
    numbers: Sequence[int]  # those of its columns that are attributes, as `check_columns` lets them pass
    names: Sequence[str]  # theirs
    memo: Memo = field(default_factory=Memo, repr=False)  # what has been made of the columns

    def given(self, place: int) -> pa.Array:
        """The values of an attribute, as they were given."""
        return self.batch.column(self.numbers[place])

    def part(self, first: int, last: int) -> AttributeColumns:
        """Those of messages `first` to `last`."""
        return AttributeColumns(self.batch.slice(first, last - first), self.numbers, self.names)

    def column(self, place: int) -> Column | None:
        """An attribute, which is read once; `None` if it has no value at all."""
        return self.memo.of(place, lambda: (self._read(place), ()))

    def _read(self, place: int) -> Column | None:
        prefix = np.frombuffer(f"{ATTRIBUTE}{self.names[place]}{RESERVED}".encode(), np.uint8)
        return value_column(*_flat_values(self.given(place)), prefix=prefix)

    @property
    def columns(self) -> list[Column]:
        """All attributes that have a value."""
        columns = (self.column(place) for place in range(len(self.names)))
        return [column for column in columns if column is not None]


@dataclass(frozen=True, slots=True, eq=False)
class Messages(TagLists):
    """Tags of messages, and what they have besides, row by row."""

    attributes: AttributeColumns | None = None  # Only matchers of sets with constraints look at them
    locations: Locations | None = None  # If their tags do not say so; only matchers of sets with areas look at them

    @classmethod
    def of(cls, tags: TagLists, attributes: AttributeColumns | None, locations: Locations | None) -> TagLists:
        """Messages with these tags, attributes and locations."""
        if attributes is None and locations is None:
            return TagLists(tags.offsets, tags.tags, tags.indices, tags.memo)
        return cls(tags.offsets, tags.tags, tags.indices, tags.memo, attributes, locations)


def with_own_tags(rows: TagLists, first: int, last: int) -> tuple[TagLists, int, int]:
    """Messages `first` to `last`; of a dictionary, which is looked up as a whole, only the strings that they have."""
    if rows.indices is None:
        return rows, first, last
    offsets, count = rows.offsets[first : last + 1], last - first
    used, indices = np.unique(rows.indices[offsets[0] : offsets[-1]], return_inverse=True)
    used = used[used < len(rows.tags)]  # what is beyond the dictionary stays beyond it
    own = TagLists(offsets - offsets[0], gather_strings(rows.tags, used), indices.astype(np.uint32))
    attributes = None if rows.attributes is None else rows.attributes.part(first, last)
    return Messages.of(own, attributes, None if rows.locations is None else rows.locations.part(first, last)), 0, count


def check_columns(batch: pa.RecordBatch, numbers: Sequence[int], first_row: int) -> None:
    """See that columns can be attributes; InvalidTypeError and InvalidValueError name the column and the row."""
    names, kinds = batch.schema.names, batch.schema.types
    for number in numbers:
        name = names[number]
        check_name(name)
        if not is_sound(kinds[number]):
            column = batch.column(number)
            _check_values(f"column {name!r}", column.type, column, first_row.__add__)


def _check_values(label: str, kind: pa.DataType, given: pa.Array, row_at: Callable[[int], int]) -> None:
    """See that values, or lists of them, of a column of this type are such as attributes have.

    `row_at` gives the number, in messages, of the row of a value, or of a list of values.
    """
    values, lists = _flat_values(given)
    check_values(
        values,
        lambda place: f"{label}: row {row_at(_row_of_place(place, lists))}",
        f"{label} is of {kind}, but attributes are bools, integers, floats or strings, or lists of these: cast "
        "it, or leave it out",
    )


def _flat_values(given: pa.Array) -> tuple[pa.Array, I64Array]:
    """All values, and where those of each list begin, if there are lists."""
    if not is_list(given.type):
        return given, NO_PLACES
    lists, flat = elements(given)
    return flat, lists


def _row_of_place(place: int, rows: I64Array) -> int:
    """The row, or the list, of a value; `rows` is empty where that has the same number."""
    return int(np.searchsorted(rows, place, side="right")) - 1 if len(rows) else place


def entries_of(maps: pa.MapArray) -> tuple[I64Array, pa.Array, pa.Array]:
    """Where the entries of each row begin, and the names and the values of all."""
    kind = maps.type
    lists = maps.cast(pa.list_(pa.struct([pa.field("name", kind.key_type), pa.field("value", kind.item_type)])))
    rows, entries = elements(lists)
    return rows, *entries.flatten()


def map_column(name: str, maps: pa.MapArray, first_row: int = 0) -> Column | None:
    """The entries of all maps of a column, each with a name of its own; `None` if they have no value at all.

    InvalidTypeError and InvalidValueError name the column and the row, counted from `first_row`.
    """
    label, kind = f"column {name!r}", maps.type
    rows, names, entries = entries_of(maps)
    names = plain_strings(names, f"{label} is of {kind}, but the names of attributes are strings: cast them")

    def row_at(entry: int) -> int:
        return first_row + _row_of_place(entry, rows)

    _check_names(label, names, row_at)
    if not is_sound(kind.item_type):
        _check_values(label, kind, entries, row_at)
    values, values_of = _flat_values(entries)
    if len(values_of):
        names, rows = names.take(pa.array(np.repeat(np.arange(len(names)), np.diff(values_of)))), values_of[rows]
    begin, end, between = (pa.scalar(text, pa.large_string()) for text in (ATTRIBUTE, RESERVED, ""))
    prefixes = to_strings(pc.binary_join_element_wise(begin, names.cast(pa.large_string()), end, between))
    column = value_column(values, rows, prefix=prefixes.data)
    return None if column is None else column._replace(prefix_offsets=frozen(prefixes.offsets.astype(np.int64)))


def _check_names(label: str, names: pa.Array, row_at: Callable[[int], int]) -> None:
    """See that all are names that attributes can have."""
    bad = pc.or_(pc.equal(pc.binary_length(names), 0), pc.match_substring(names, RESERVED))
    if pc.any(bad).as_py():
        at = pc.index(bad, True).as_py()
        try:
            check_name(names[at].as_py())
        except InvalidValueError as error:
            raise InvalidValueError(f"{label}: row {row_at(at)}: {error}") from None


# -- as tags -----------------------------------------------------------------------------------------------------------


@kernel
def _measure(column, first, last, tags, sizes):
    kind, prefix, rows, validity, first_bit, bits, begins, ends, prefix_offsets, _ = column
    for row in range(first, last):
        i, stop = values_of_rows(rows, row, row + 1)
        i = next_there(validity, first_bit, i, stop)
        while i < stop:
            if kind == TAG:
                size = ends[i] - begins[i]
            elif kind == BOOL:
                size = 2
            elif kind == TEXT:
                size = 1 + ends[i] - begins[i]
            else:
                size = 1 if number_of(kind, bits[i])[1] == NAN else 20
            begin, end = prefix_of(prefix, prefix_offsets, i)
            tags[row] += 1
            sizes[row] += end - begin + size
            i = next_there(validity, first_bit, i + 1, stop)


@kernel
def _write(column, first, last, ends_at, out, digits):
    """Write the values of rows behind what they have, whose ends `ends_at` gives and gets: number and byte."""
    kind, prefix, rows, validity, first_bit, bits, begins, ends, prefix_offsets, text = column
    tag_at, byte_at = ends_at
    offsets, data = out
    for row in range(first, last):
        tag, at = tag_at[row], byte_at[row]
        i, stop = values_of_rows(rows, row, row + 1)
        i = next_there(validity, first_bit, i, stop)
        while i < stop:
            begin, end = prefix_of(prefix, prefix_offsets, i)
            for place in range(begin, end):
                data[at] = prefix[place]
                at += 1
            if kind == BOOL:
                data[at], data[at + 1] = _B, _ZERO + bits[i]
                at += 2
            elif kind in (TAG, TEXT):
                if kind == TEXT:
                    data[at] = _S
                    at += 1
                for place in range(begins[i], ends[i]):
                    data[at] = text[place]
                    at += 1
            else:
                double, rest = number_of(kind, bits[i])
                if rest == NAN:
                    data[at] = _BANG
                    at += 1
                else:
                    data[at] = _N
                    for digit in range(16):
                        shift = np.uint64(60 - 4 * digit)
                        data[at + 1 + digit] = digits[(double >> shift) & np.uint64(15)]
                    for digit in range(3):
                        data[at + 17 + digit] = digits[(rest >> (8 - 4 * digit)) & 15]
                    at += 20
            tag += 1
            offsets[tag] = at
            i = next_there(validity, first_bit, i + 1, stop)
        tag_at[row], byte_at[row] = tag, at


def rows_of_columns(columns: Sequence[Column], count: int, threads: int) -> TagLists:
    """The values of all columns as rows of tags, those of a row column by column."""
    tags, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    ranges = even_ranges(count, min(threads, 1 + count // _ROWS_PER_TASK))

    def measure(first: int, last: int) -> None:
        for column in columns:
            _measure(column, first, last, tags, sizes)

    run_rows(measure, ranges, threads)
    row_offsets, byte_offsets = offsets_of(tags), offsets_of(sizes)
    offsets = np.zeros(int(row_offsets[-1]) + 1, np.int64)
    data = np.empty(int(byte_offsets[-1]), np.uint8)
    tag_at, byte_at = row_offsets[:-1].copy(), byte_offsets[:-1].copy()

    def write(first: int, last: int) -> None:
        for column in columns:
            _write(column, first, last, (tag_at, byte_at), (offsets, data), _DIGITS)

    run_rows(write, ranges, threads)
    return TagLists(row_offsets, Strings(offsets, data))
