"""Messages as codes of the attributes that sets ask for: stage 1 for sets with constraints.

A message's attributes come in columns, or packed as records (`tagmatch.model.input.values`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array, TagLists, U32Array, U64Array, frozen
from tagmatch.model.input.messages import AttributeColumns
from tagmatch.model.input.values import (
    BOOL,
    FLOAT,
    FRAME,
    INTEGER,
    TEXT,
    Column,
    count_there,
    kind_within,
    places_there,
    record_at,
    row_of,
    values_of_rows,
    wide_numbers,
)
from tagmatch.model.kernels.hashing import xxh64
from tagmatch.model.kernels.intrinsics import Prepared, array_at
from tagmatch.model.kernels.jit import kernel, lent, with_room
from tagmatch.model.kernels.lists import ascending_row
from tagmatch.model.kernels.tag_table import UNKNOWN, find
from tagmatch.pipeline.filters.attributes import Attributes, step
from tagmatch.pipeline.filters.codes import MARKED, code_of_value, write_codes
from tagmatch.pipeline.tags import QueryBatch

#: Kinds of columns whose values are 64 bits each
NUMBERS = (BOOL, INTEGER, FLOAT)
#: Kinds of the others, as which columns of maps count
TEXTS = (TEXT,)

#: Places of a column's arrays, each with an address and a length; those of maps have an attribute a value
ROWS, VALIDITY, VALUE_BITS, BEGINS, ENDS, DATA, OF_VALUES = range(7)
_ARRAYS, _HEAD = 7, 3
_NO_ADDRESSES, _NO_TEXTS = (0,) * 2 * _ARRAYS, (0,) * 2 * len((BEGINS, ENDS, DATA, OF_VALUES))


@dataclass(frozen=True, slots=True, eq=False)
class KnownColumns:
    """Columns of attributes that sets ask for."""

    addresses: U64Array  # Of the arrays of each column (see `Prepared`)
    heads: I64Array  # The attribute, and the column's `kind` and `first_bit`
    kept: list[object]  # What must stay as long as the addresses
    unread: list[tuple[int, int]]  # columns that `_read` is still to see to: the place here, the number in the batch

    @classmethod
    def of(cls, given: AttributeColumns, known: Attributes, kinds: tuple[int, ...] = NUMBERS + TEXTS) -> KnownColumns:
        """The columns of these kinds, which threads that ask at the same time make together, and only once."""

        def choose(chosen: list[KnownColumns], _: object) -> None:
            chosen.append(cls._chosen(given, known, kinds))

        # As a piece of work, for two threads would only take the interpreter lock from each other
        chosen: list[KnownColumns] = given.memo.together((known, kinds), lambda: ([], [None]), choose)
        read = partial(_read, given, known)
        found: KnownColumns = given.memo.together(chosen[0], lambda: (chosen[0], chosen[0].unread), read)
        return found

    @classmethod
    def _chosen(cls, given: AttributeColumns, known: Attributes, kinds: tuple[int, ...]) -> KnownColumns:
        """The columns; those of wide numbers are used as they lie in memory."""
        addresses, heads = array("Q"), array("q")
        kept: list[object] = []
        left: list[tuple[int, int]] = []
        for number, attribute in zip(given.numbers, known.names.numbers_of(given.names), strict=True):
            values = given.batch.column(number)
            kind = kind_within(values.type)
            if attribute == UNKNOWN or kind not in kinds or values.null_count == len(values):
                continue
            wide = wide_numbers(values)
            if wide is None:
                left.append((len(heads) // _HEAD, number))
                addresses.extend(_NO_ADDRESSES)
                heads.extend((attribute, kind, 0))
            else:
                addresses.extend((0, 0, *wide.validity, *wide.bits, *_NO_TEXTS))
                heads.extend((attribute, kind, wide.first_bit))
                kept.append(values)
        for number in given.maps if TEXT in kinds else ():
            left.append((len(heads) // _HEAD, number))
            addresses.extend(_NO_ADDRESSES)
            heads.extend((0, TEXT, 0))
        return cls(np.array(addresses).reshape(-1, 2 * _ARRAYS), np.array(heads).reshape(-1, _HEAD), kept, left)

    def counts(self, first: int, last: int) -> I64Array:
        """How many values messages `first` to `last` have in each column."""
        counts = np.empty(len(self.heads), np.int64)
        _count(self.addresses, self.heads, first, last, counts)
        return counts

    def gather(self, first: int, last: int, owners: U32Array, bits: U64Array) -> None:
        """Write the values of messages `first` to `last` in columns of numbers, column by column, as `counts` says."""
        _gather(self.addresses, self.heads, first, last, owners, bits)


def _read(given: AttributeColumns, known: Attributes, columns: KnownColumns, which: tuple[int, int]) -> None:
    """Read one of the columns whose values must be copied."""
    place, number = which
    of_values = _NO_INDICES
    if number in given.maps:
        entries = given.map_column(number)
        column = None if entries is None else entries.column
        of_values = _NO_INDICES if entries is None else frozen(known.names.numbers(entries.names))
    else:
        column = given.column(number)
    if column is None:  # lists without any values
        column = Column(TEXT, frozen(np.zeros(len(given.batch) + 1, np.int64)))
    arrays = (column.rows, column.validity, column.bits, column.begins, column.ends, column.text, of_values)
    prepared = Prepared(*arrays)
    columns.kept.append(prepared)
    columns.addresses[place], columns.heads[place, 1:] = prepared.addresses, (column.kind, column.first_bit)


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


# Patterns of a text, with repeated ones, after which these are dropped
_REPEATED = 1024


@kernel
def _with_patterns(owner, attribute, text, patterns, found, used):
    """Behind the first `used` values, the patterns that a text contains or ends with; in longer arrays if need be."""
    (data, start, stop), (owners, attributes, codes) = text, found
    roots, edges, children, fails, outputs, firsts, nexts, only_at_end, of_pattern = patterns
    if start < stop and data[start] == MARKED:
        return found, used
    root = node = roots[attribute]
    begin, most = used, _REPEATED
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
                    if used - begin == most:  # so that a long text takes no more memory than all patterns do
                        used = ascending_row(attributes, begin, used, begin)
                        most = 2 * (used - begin) + _REPEATED
                pattern = nexts[pattern]
            place = outputs[fails[place]] if place != root else 0
    return (owners, attributes, codes), used


@kernel
def _encode_tags(tags, first, last, known, found):
    """Tags that must not be there: of each the message, counted from `first`, the attribute and the code; how many."""
    rows, indices, offsets, data = tags
    _, (absent_slots, absent_offsets, absent_bytes), first_tag, _, _ = known
    owners, attributes, codes = found
    used = 0
    if len(absent_offsets) == 1:
        return found, used
    for row in range(first, last):
        for place in range(rows[row], rows[row + 1]):
            string = np.int64(indices[place]) if len(indices) else np.int64(place)
            if string >= len(offsets) - 1:  # beyond its dictionary
                continue
            start, stop = np.int64(offsets[string]), np.int64(offsets[string + 1])
            number = _number_of(data, start, stop, absent_slots, absent_offsets, absent_bytes)
            if number == UNKNOWN:
                continue
            owners, attributes = with_room(owners, used, 1), with_room(attributes, used, 1)
            codes = with_room(codes, used, 1)
            owners[used], attributes[used], codes[used] = row - first, first_tag + number, 1
            used += 1
    return (owners, attributes, codes), used


@kernel
def encode_packed(offsets, data, first, last, known, found, used):
    """Append packed attributes to those found already, in longer arrays if need be; returns their number then."""
    (name_slots, name_offsets, name_bytes), _, _, constants, patterns = known
    owners, attributes, codes = found
    roots = patterns[0]
    for row in range(first, last):
        at = offsets[row]
        while at < offsets[row + 1]:
            kind, bits, begin, end, text_begin, at = record_at(data, at)
            name = _number_of(data, begin, end, name_slots, name_offsets, name_bytes)
            if name == UNKNOWN:
                continue
            number = np.int64(name)
            owners, attributes = with_room(owners, used, 1), with_room(attributes, used, 1)
            codes = with_room(codes, used, 1)
            owners[used], attributes[used] = row - first, number
            codes[used] = code_of_value(kind, bits, data, text_begin, at, number, constants)
            used += 1
            if kind == TEXT and roots[number] != 0:
                text, so_far = (data, text_begin, at), (owners, attributes, codes)
                (owners, attributes, codes), used = _with_patterns(row - first, number, text, patterns, so_far, used)
    return (owners, attributes, codes), used


@lent
def _only_known(of_values, places, count):
    """Keep the first places whose attributes are asked for; how many."""
    kept = np.int64(0)
    for i in range(count):
        places[kept] = places[i]
        kept += np.int64(of_values[places[i]] != UNKNOWN)
    return kept


@kernel
def _encode_columns(columns, heads, first, last, constants, patterns, found, used):
    """Append the values of columns to those found already, in longer arrays if need be; column by column."""
    owners, attributes, codes = found
    roots, places = patterns[0], np.empty(0, np.int64)
    for column in range(len(heads)):
        attribute, kind, first_bit = heads[column, 0], heads[column, 1], heads[column, 2]
        arrays = columns[column]
        rows, validity = array_at(arrays, ROWS, np.int64), array_at(arrays, VALIDITY, np.uint8)
        begin, stop = values_of_rows(rows, first, last)
        places = with_room(places, 0, stop - begin)
        count = places_there(validity, first_bit, begin, stop, places)
        of_values = array_at(arrays, OF_VALUES, np.uint32)
        if len(of_values):
            count = _only_known(of_values, places, count)
        owners, attributes = with_room(owners, used, count), with_room(attributes, used, count)
        codes, row, before = with_room(codes, used, count), first, used
        for i in range(count):
            row = row_of(rows, row, places[i])
            owners[used + i], attributes[used + i] = row - first, attribute
        data, row = array_at(arrays, DATA, np.uint8), first
        begins, ends = array_at(arrays, BEGINS, np.int64), array_at(arrays, ENDS, np.int64)
        values = (array_at(arrays, VALUE_BITS, np.uint64), begins, ends, data)
        used += count
        if len(of_values):
            for i in range(count):
                attributes[before + i] = of_values[places[i]]
                own = np.int64(attributes[before + i])
                write_codes(kind, own, values, places[i : i + 1], constants, codes[before + i : before + i + 1])
        else:
            write_codes(kind, attribute, values, places[:count], constants, codes[before:used])
        if kind != TEXT or (len(of_values) == 0 and roots[attribute] == 0):
            continue
        for i in range(count):
            own, place = np.int64(attributes[before + i]), places[i]
            if roots[own] != 0:
                owner, text = np.int64(owners[before + i]), (data, begins[place], ends[place])
                found = (owners, attributes, codes)
                (owners, attributes, codes), used = _with_patterns(owner, own, text, patterns, found, used)
    return (owners, attributes, codes), used


# Their arrays are known by addresses, texts, which may be long, among them
_encode_columns.elements = lambda arguments: int(arguments[0][:, 1::2].sum())


@kernel
def encode_one(offsets, hashes, tags, data, known):
    """The attributes and codes of one message, as `MessageTable` has them."""
    _, (absent_slots, absent_offsets, absent_bytes), first_tag, _, _ = known
    room, used = len(hashes) + len(data) // FRAME, 0
    owners, attributes, codes = np.empty(room, np.uint32), np.empty(room, np.uint32), np.empty(room, np.uint32)
    if len(absent_offsets) > 1:
        for tag in range(len(hashes)):
            start, stop = offsets[tag], offsets[tag + 1]
            number = find(hashes[tag], tags, start, stop, absent_slots, absent_offsets, absent_bytes)[2]
            if number != UNKNOWN:
                attributes[used], codes[used] = first_tag + number, 1
                used += 1
    # Patterns need room for owners, which are always the same
    found = (owners, attributes, codes)
    (_, attributes, codes), used = encode_packed(np.array([0, len(data)]), data, 0, 1, known, found, used)
    return attributes[:used], codes[:used]


@kernel
def _by_message(found, used, ends):
    """Sort attributes and codes by message, those of each message in their order; writes where each message ends."""
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
    own = known.known
    room = (np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty(0, np.uint32))
    found: tuple[tuple[U32Array, U32Array, U32Array], int] = room, 0
    if not known.asks_for_no_tags:
        indices = _NO_INDICES if tags.indices is None else tags.indices
        found = _encode_tags((tags.offsets, indices, tags.tags.offsets, tags.tags.data), first, last, own, room)
    if columns is not None and len(columns.heads):
        found = _encode_columns(columns.addresses, columns.heads, first, last, *own[-2:], *found)
    if tags.attributes is not None and (packed := tags.attributes.packed) is not None:
        found = encode_packed(packed.offsets, packed.data, first, last, own, *found)
    return found
