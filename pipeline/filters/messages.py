"""Messages as codes of the attributes that sets ask for: stage 1 for sets with constraints.

A message's attributes come as columns, or as tags: U+0000, `=`, the name, U+0000, and the key of the value
(`tagmatch.model.where.values`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array, TagLists, U32Array, U64Array, frozen
from tagmatch.model.columns import strings_of
from tagmatch.model.input.attributes import AttributeColumns
from tagmatch.model.input.values import (
    BEGIN,
    BITS,
    BOOL,
    END,
    FLOAT,
    INTEGER,
    KIND,
    NAME_BEGIN,
    NAME_END,
    NO_BYTES,
    TEXT,
    Column,
    count_there,
    kind_within,
    places_there,
    row_of,
    values_of_rows,
    wide_numbers,
)
from tagmatch.model.kernels.hashing import xxh64
from tagmatch.model.kernels.intrinsics import Prepared, array_at
from tagmatch.model.kernels.jit import kernel, lent, with_room
from tagmatch.model.kernels.tag_table import UNKNOWN, find
from tagmatch.pipeline.filters.attributes import Attributes, step
from tagmatch.pipeline.filters.codes import code_of, code_of_value, write_codes
from tagmatch.pipeline.tags import QueryBatch

#: Kinds of columns whose values are 64 bits each
NUMBERS = (BOOL, INTEGER, FLOAT)
#: Kinds of the others
TEXTS = (TEXT,)

#: Places of a column's arrays, each of which has an address and a length
ROWS, VALIDITY, VALUE_BITS, BEGINS, ENDS, DATA = range(6)
_ARRAYS, _HEAD = 6, 3
_NO_ADDRESSES, _NO_TEXTS = (0,) * 2 * _ARRAYS, (0,) * 2 * len((BEGINS, ENDS, DATA))


@dataclass(frozen=True, slots=True, eq=False)
class KnownColumns:
    """Columns of attributes that sets ask for."""

    addresses: U64Array  # Of the arrays of each column (see `Prepared`)
    heads: I64Array  # The attribute, and the column's `kind` and `first_bit`
    kept: list[object]  # What must stay as long as the addresses
    # Of columns that `_read` is still to see to, the number and the place among all that are given
    places: list[tuple[int, int]]

    @classmethod
    def of(cls, given: AttributeColumns, known: Attributes, kinds: tuple[int, ...] = NUMBERS + TEXTS) -> KnownColumns:
        """The columns of these kinds, which threads that ask at the same time make together, and only once."""

        def choose(chosen: list[KnownColumns], _: object) -> None:
            chosen.append(cls._chosen(given, known, kinds))

        # As a piece of work, for two threads would only take the interpreter lock from each other
        chosen: list[KnownColumns] = given.memo.of((known, kinds), lambda: ([], [None]), choose)
        found: KnownColumns = given.memo.of(chosen[0], lambda: (chosen[0], chosen[0].places), partial(_read, given))
        return found

    @classmethod
    def _chosen(cls, given: AttributeColumns, known: Attributes, kinds: tuple[int, ...]) -> KnownColumns:
        """The columns, of which those of wide numbers are used as they lie in memory."""
        addresses, heads = array("Q"), array("q")
        kept: list[object] = []
        left: list[tuple[int, int]] = []
        for place, number in enumerate(known.names.numbers(strings_of(given.names)).tolist()):
            if number == UNKNOWN:
                continue
            values = given.given(place)
            kind = kind_within(values.type)
            if kind not in kinds or values.null_count == len(values):
                continue
            wide = wide_numbers(values)
            if wide is None:
                left.append((len(heads) // _HEAD, place))
                addresses.extend(_NO_ADDRESSES)
                heads.extend((number, kind, 0))
            else:
                addresses.extend((0, 0, *wide.validity, *wide.bits, *_NO_TEXTS))
                heads.extend((number, kind, wide.first_bit))
                kept.append(values)
        return cls(np.array(addresses).reshape(-1, 2 * _ARRAYS), np.array(heads).reshape(-1, _HEAD), kept, left)

    def counts(self, first: int, last: int) -> I64Array:
        """How many values messages `first` to `last` have in each column."""
        counts = np.empty(len(self.heads), np.int64)
        _count(self.addresses, self.heads, first, last, counts)
        return counts

    def gather(self, first: int, last: int, owners: U32Array, bits: U64Array) -> None:
        """Write the values of messages `first` to `last` in columns of numbers, column by column, as `counts` says."""
        _gather(self.addresses, self.heads, first, last, owners, bits)


def _read(given: AttributeColumns, columns: KnownColumns, which: tuple[int, int]) -> None:
    """Read one of the columns whose values must be copied."""
    number, place = which
    column = given.column(place)
    if column is None:  # lists without any values
        column = Column(TEXT, NO_BYTES, frozen(np.zeros(len(given.batch) + 1, np.int64)))
    prepared = Prepared(column.rows, column.validity, column.bits, column.begins, column.ends, column.text)
    columns.kept.append(prepared)
    columns.addresses[number], columns.heads[number, 2] = prepared.addresses, column.first_bit


@kernel
def _count(columns, heads, first, last, counts):
    for column in range(len(heads)):
        rows, validity = array_at(columns[column], ROWS, np.int64), array_at(columns[column], VALIDITY, np.uint8)
        begin, stop = values_of_rows(rows, first, last)
        counts[column] = count_there(validity, heads[column, 2], begin, stop)


@kernel
def _gather(columns, heads, first, last, owners, bits):
    used, places = np.int64(0), np.empty(0, np.int64)
    for column in range(len(heads)):
        arrays = columns[column]
        rows, validity = array_at(arrays, ROWS, np.int64), array_at(arrays, VALIDITY, np.uint8)
        values, row = array_at(arrays, VALUE_BITS, np.uint64), first
        begin, stop = values_of_rows(rows, first, last)
        if len(places) < stop - begin:
            places = np.empty(stop - begin, np.int64)
        count = places_there(validity, heads[column, 2], begin, stop, places)
        for place in places[:count]:
            row = row_of(rows, row, place)
            owners[used], bits[used] = row - first, values[place]
            used += 1


_EQUALS, _TEXT = tuple(b"=s")
_SEED = np.uint64(0)
_NO_INDICES = frozen(np.zeros(0, np.uint32))


class MessageTable(NamedTuple):
    """Messages by the ranks of their tags and by those of their attributes that sets ask for; kernels take it."""

    rank_offsets: I64Array
    ranks: U32Array
    offsets: I64Array  # Message `i` has the attributes from `offsets[i]` to `offsets[i + 1]`
    attributes: U32Array  # An attribute with several values is there as often
    codes: U32Array


@lent
def _number_of(data, start, stop, slots, offsets, heap):
    if len(offsets) == 1:
        return UNKNOWN
    return find(xxh64(data, start, stop, _SEED), data, start, stop, slots, offsets, heap)[2]


@kernel
def _with_patterns(owner, attribute, text, patterns, found, used):
    """Behind the first `used` values, the patterns that a text contains or ends with; in longer arrays if need be."""
    (data, start, stop), (owners, attributes, codes) = text, found
    roots, edges, children, fails, outputs, firsts, nexts, only_at_end, of_pattern = patterns
    root = node = roots[attribute]
    for at in range(start, stop + 1):
        if at > start:
            node = step(node, root, data[at - 1], edges, children, fails)
        place = outputs[node]
        while place != 0:
            pattern = firsts[place]
            while pattern >= 0:
                if at == stop or not only_at_end[pattern]:
                    owners, attributes = with_room(owners, used, 1), with_room(attributes, used, 1)
                    codes = with_room(codes, used, 1)
                    owners[used], attributes[used], codes[used] = owner, of_pattern[pattern], 1
                    used += 1
                pattern = nexts[pattern]
            place = outputs[fails[place]] if place != root else 0
    return (owners, attributes, codes), used


@kernel
def _encode_tags(tags, first, last, known):
    """Attributes that come as tags: of each value the message, counted from `first`, the attribute and the code."""
    rows, indices, offsets, data = tags
    names, absent, first_tag, constants, patterns = known
    name_slots, name_offsets, name_bytes = names
    absent_slots, absent_offsets, absent_bytes = absent
    roots, room = patterns[0], rows[last] - rows[first]
    owners, attributes, codes = np.empty(room, np.uint32), np.empty(room, np.uint32), np.empty(room, np.uint32)
    used = 0
    for row in range(first, last):
        for place in range(rows[row], rows[row + 1]):
            string = np.int64(indices[place]) if len(indices) else np.int64(place)
            if string >= len(offsets) - 1:  # beyond its dictionary
                continue
            start, stop = np.int64(offsets[string]), np.int64(offsets[string + 1])
            if stop - start < 2 or data[start] != 0 or data[start + 1] != _EQUALS:
                number = _number_of(data, start, stop, absent_slots, absent_offsets, absent_bytes)
                if number == UNKNOWN:
                    continue
                number, code = np.int64(first_tag + number), 1
            else:
                end = start + 2
                while end < stop and data[end] != 0:
                    end += 1
                number = _number_of(data, start + 2, end, name_slots, name_offsets, name_bytes)
                if number == UNKNOWN:
                    continue
                number, start = np.int64(number), end + 1
                code = code_of(data, start, stop, number, constants)
                if code == 0:
                    continue
            if used == len(owners):
                owners, attributes = with_room(owners, used, 1), with_room(attributes, used, 1)
                codes = with_room(codes, used, 1)
            owners[used], attributes[used], codes[used] = row - first, number, code
            used += 1
            # Tags that must not be there have the numbers behind all names
            if number < len(roots) and roots[number] != 0 and data[start] == _TEXT:
                text, found = (data, start + 1, stop), (owners, attributes, codes)
                (owners, attributes, codes), used = _with_patterns(row - first, number, text, patterns, found, used)
    return (owners, attributes, codes), used


@kernel
def _encode_columns(columns, heads, first, last, constants, patterns, found, used):
    """The values of columns behind those that there are already, in longer arrays if need be; column by column."""
    owners, attributes, codes = found
    roots, places = patterns[0], np.empty(0, np.int64)
    for column in range(len(heads)):
        attribute, kind, first_bit = heads[column, 0], heads[column, 1], heads[column, 2]
        arrays = columns[column]
        rows, validity = array_at(arrays, ROWS, np.int64), array_at(arrays, VALIDITY, np.uint8)
        begin, stop = values_of_rows(rows, first, last)
        places = with_room(places, 0, stop - begin)
        count = places_there(validity, first_bit, begin, stop, places)
        owners, attributes = with_room(owners, used, count), with_room(attributes, used, count)
        codes, row = with_room(codes, used, count), first
        for i in range(count):
            row = row_of(rows, row, places[i])
            owners[used + i], attributes[used + i] = row - first, attribute
        data, row = array_at(arrays, DATA, np.uint8), first
        begins, ends = array_at(arrays, BEGINS, np.int64), array_at(arrays, ENDS, np.int64)
        bits = array_at(arrays, VALUE_BITS, np.uint64)
        values = (bits, begins, ends, data)
        write_codes(kind, attribute, values, places[:count], constants, codes[used : used + count])
        used += count
        if kind == TEXT and roots[attribute] != 0:
            for place in places[:count]:
                row = row_of(rows, row, place)
                text, so_far = (data, begins[place], ends[place]), (owners, attributes, codes)
                (owners, attributes, codes), used = _with_patterns(row - first, attribute, text, patterns, so_far, used)
    return (owners, attributes, codes), used


@kernel
def encode_one(offsets, hashes, tags, data, values, known):
    """The attributes and codes of one message, as `MessageTable` has them."""
    names, absent, first_tag, constants, patterns = known
    name_slots, name_offsets, name_bytes = names
    absent_slots, absent_offsets, absent_bytes = absent
    roots, room, used = patterns[0], len(hashes) + len(values), 0
    owners, attributes, codes = np.empty(room, np.uint32), np.empty(room, np.uint32), np.empty(room, np.uint32)
    if len(absent_offsets) > 1:
        for tag in range(len(hashes)):
            start, stop = offsets[tag], offsets[tag + 1]
            number = find(hashes[tag], tags, start, stop, absent_slots, absent_offsets, absent_bytes)[2]
            if number != UNKNOWN:
                attributes[used], codes[used] = first_tag + number, 1
                used += 1
    for i in range(len(values)):
        name = _number_of(data, values[i, NAME_BEGIN], values[i, NAME_END], name_slots, name_offsets, name_bytes)
        if name == UNKNOWN:
            continue
        number, kind, begin, end = np.int64(name), values[i, KIND], values[i, BEGIN], values[i, END]
        # The owner is always the same, but patterns need room for it
        owners, attributes = with_room(owners, used, 1), with_room(attributes, used, 1)
        codes = with_room(codes, used, 1)
        attributes[used] = number
        codes[used] = code_of_value(kind, np.uint64(values[i, BITS]), data, begin, end, number, constants)
        used += 1
        if kind == TEXT and roots[number] != 0:
            text, found = (data, begin, end), (owners, attributes, codes)
            (owners, attributes, codes), used = _with_patterns(0, number, text, patterns, found, used)
    return attributes[:used], codes[:used]


@kernel
def _by_message(found, used, ends):
    """Attributes and codes message by message, those of each in their order; writes where they end."""
    owners, attributes, codes = found
    ascending = True
    for i in range(used):
        ends[owners[i] + 1] += 1
        ascending &= i == 0 or owners[i - 1] <= owners[i]
    for message in range(1, len(ends)):
        ends[message] += ends[message - 1]
    if ascending:
        return attributes[:used], codes[:used]
    places = ends[:-1].copy()
    sorted_attributes, sorted_codes = np.empty(used, np.uint32), np.empty(used, np.uint32)
    for i in range(used):
        place = places[owners[i]]
        sorted_attributes[place], sorted_codes[place] = attributes[i], codes[i]
        places[owners[i]] = place + 1
    return sorted_attributes, sorted_codes


def values_of(
    tags: TagLists, first: int, last: int, known: Attributes, columns: KnownColumns | None
) -> tuple[U32Array, U32Array, U32Array]:
    """Of each value that messages `first` to `last` have among their tags and in some columns of theirs: what it is."""
    found, used = _values(tags, first, last, known, columns)
    owners, attributes, codes = (array[:used] for array in found)
    return owners, attributes, codes


def messages_of(queries: QueryBatch, tags: TagLists, first: int, last: int, known: Attributes) -> MessageTable:
    """Messages `first` to `last`, whose tags are `queries`."""
    given = tags.attributes
    columns = None if given is None else KnownColumns.of(given, known)
    ends = np.zeros(last - first + 1, np.int64)
    attributes, codes = _by_message(*_values(tags, first, last, known, columns), ends)
    return MessageTable(queries.offsets, queries.ranks, ends, attributes, codes)


def _values(
    tags: TagLists, first: int, last: int, known: Attributes, columns: KnownColumns | None
) -> tuple[tuple[U32Array, U32Array, U32Array], int]:
    """See `values_of`, in arrays that may be longer, and how many there are."""
    indices = _NO_INDICES if tags.indices is None else tags.indices
    given = tags.offsets, indices, tags.tags.offsets, tags.tags.data
    found: tuple[tuple[U32Array, U32Array, U32Array], int] = _encode_tags(given, first, last, known.known)
    if columns is not None:
        found = _encode_columns(columns.addresses, columns.heads, first, last, *known.known[-2:], *found)
    return found
