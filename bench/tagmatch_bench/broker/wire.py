"""Events and deliveries as bytes of a connection.

All numbers are little-endian. An event is its size, uint32, without these four bytes; its number, uint32; how many
attributes it has, uint16; and of each the length of the name, uint16, the name in UTF-8, and the value, int64. A
delivery is its size, the number of its event, and the interfaces that it goes to, uint64 each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Lists, Strings, U8Array, U32Array, U64Array, offsets_of
from tagmatch.model.columns import tag_lists
from tagmatch.model.kernels.hashing import hash_strings, xxh64
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.tag_table import UNKNOWN, build_slots, find

# Bytes of the size, of an event's number and count, of a name's length, and of a value
_SIZE, _HEAD, _LENGTH, _VALUE = 4, 6, 2, 8
_NUMBER, INTERFACE = 4, 8
#: Bytes of a delivery without interfaces
DELIVERY = _SIZE + _NUMBER
_SEED = np.uint64(0)


class WireError(ValueError):
    """Bytes that are no events or deliveries."""


class Events(NamedTuple):
    """Events as columns."""

    numbers: U32Array
    offsets: I64Array
    attributes: U32Array  # those of event `i`, by number, are from `offsets[i]` to `offsets[i + 1]`
    values: I64Array

    @classmethod
    def of(cls, messages: pa.Table) -> Events:
        """Number messages, which have a column of integers for each attribute, null if a message lacks it."""
        columns = [column.combine_chunks() for column in messages.columns]
        there = np.stack([column.is_valid().to_numpy(zero_copy_only=False) for column in columns], axis=1)
        values = np.stack([column.fill_null(0).to_numpy() for column in columns], axis=1)
        rows, attributes = np.nonzero(there)
        offsets = offsets_of(there.sum(axis=1))
        numbers = np.arange(len(messages), dtype=np.uint32)
        return cls(numbers, offsets, attributes.astype(np.uint32), values[rows, attributes].astype(np.int64))

    def part(self, first: int, last: int) -> Events:
        """Events `first` to `last`."""
        offsets = self.offsets[first : last + 1]
        own = slice(offsets[0], offsets[-1])
        return Events(self.numbers[first:last], offsets - offsets[0], self.attributes[own], self.values[own])


def joined(parts: Sequence[Events]) -> Events:
    """The events of several parts, one after the other."""
    sizes = [np.diff(part.offsets) for part in parts]
    numbers, attributes, values = (
        np.concatenate(columns)
        for columns in zip(*((part.numbers, part.attributes, part.values) for part in parts), strict=True)
    )
    return Events(numbers, offsets_of(np.concatenate(sizes)), attributes, values)


@dataclass(frozen=True, slots=True, eq=False)
class Names:
    """Names of attributes, numbered in order, and the table that they are looked up in."""

    strings: Strings
    slots: U64Array

    @classmethod
    def of(cls, names: Sequence[str]) -> Names:
        """Number names."""
        ((rows),) = tag_lists(pa.array([names], pa.list_(pa.string())), "names")
        return cls(rows.tags, build_slots(rows.tags, hash_strings(rows.tags)))

    def __len__(self) -> int:
        return len(self.strings)


@inlined
def _write(data, at, number, size):
    for byte in range(size):
        data[at + byte] = (number >> np.uint64(8 * byte)) & np.uint64(255)
    return at + size


@inlined
def _read(data, at, size):
    number = np.uint64(0)
    for byte in range(size):
        number |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    return number


@kernel
def _encode(first, count, offsets, attributes, values, name_offsets, names, data):
    """Write `count` events from number `first` on, repeating them all; returns the number of bytes."""
    at, events = np.int64(0), len(offsets) - 1
    for number in range(first, first + count):
        event = number % events
        begin, end = offsets[event], offsets[event + 1]
        size = _HEAD
        for i in range(begin, end):
            size += _LENGTH + name_offsets[attributes[i] + 1] - name_offsets[attributes[i]] + _VALUE
        if at + _SIZE + size > len(data):
            return -1
        at = _write(data, at, np.uint64(size), _SIZE)
        at = _write(data, at, np.uint64(number), _NUMBER)
        at = _write(data, at, np.uint64(end - begin), _HEAD - _NUMBER)
        for i in range(begin, end):
            start, stop = name_offsets[attributes[i]], name_offsets[attributes[i] + 1]
            at = _write(data, at, np.uint64(stop - start), _LENGTH)
            data[at : at + stop - start] = names[start:stop]
            at = _write(data, at + stop - start, np.uint64(values[i]), _VALUE)
    return at


def encoded(events: Events, first: int, count: int, names: Names) -> U8Array:
    """Events `first` to `first + count` as bytes, where events repeat in turn and have consecutive numbers."""
    lengths = np.diff(names.strings.offsets)
    longest = (
        _SIZE + _HEAD + int(np.diff(events.offsets).max(initial=0)) * (_LENGTH + _VALUE + int(lengths.max(initial=0)))
    )
    data = np.empty(count * longest, np.uint8)
    strings = names.strings
    used = _encode(first, count, events.offsets, events.attributes, events.values, strings.offsets, strings.data, data)
    return data[:used]


@kernel
def _decode(data, slots, name_offsets, names, numbers, ends, attributes, values):
    """Read the events that are whole; how many, where the rest begins, and whether what begins there is no event."""
    at, events, used = np.int64(0), 0, 0
    while at + _SIZE <= len(data):
        end = at + _SIZE + np.int64(_read(data, at, _SIZE))
        if end - at < _SIZE + _HEAD:
            return events, at, True
        if end > len(data):
            break
        numbers[events] = _read(data, at + _SIZE, _NUMBER)
        count = _read(data, at + _SIZE + _NUMBER, _HEAD - _NUMBER)
        place = at + _SIZE + _HEAD
        for _ in range(count):
            if place + _LENGTH > end:
                return events, at, True
            start = place + _LENGTH
            place = start + np.int64(_read(data, place, _LENGTH)) + _VALUE
            if place > end:
                return events, at, True
            stop = place - _VALUE
            number = find(xxh64(data, start, stop, _SEED), data, start, stop, slots, name_offsets, names)[2]
            if number != UNKNOWN:
                attributes[used], values[used] = number, np.int64(_read(data, stop, _VALUE))
                used += 1
        if place != end:
            return events, at, True
        events += 1
        ends[events] = used
        at = end
    return events, at, False


def decoded(data: U8Array, names: Names) -> tuple[Events, int]:
    """The events that are whole, without attributes of other names, and how many bytes they have."""
    most_events, most_values = len(data) // (_SIZE + _HEAD), len(data) // (_LENGTH + _VALUE)
    numbers, ends = np.empty(most_events, np.uint32), np.zeros(most_events + 1, np.int64)
    attributes, values = np.empty(most_values, np.uint32), np.empty(most_values, np.int64)
    strings = names.strings
    count, stop, is_wrong = _decode(data, names.slots, strings.offsets, strings.data, numbers, ends, attributes, values)
    if is_wrong:
        raise WireError(f"what begins with byte {stop}, after {count} events, is no event")
    used = int(ends[count])
    return Events(numbers[:count], ends[: count + 1], attributes[:used], values[:used]), int(stop)


@kernel
def _deliver(numbers, offsets, keys, data):
    at = np.int64(0)
    for event in range(len(numbers)):
        begin, end = offsets[event], offsets[event + 1]
        at = _write(data, at, np.uint64(_NUMBER + INTERFACE * (end - begin)), _SIZE)
        at = _write(data, at, np.uint64(numbers[event]), _NUMBER)
        for i in range(begin, end):
            at = _write(data, at, np.uint64(keys[i]), INTERFACE)


def deliveries(numbers: U32Array, interfaces: Lists) -> U8Array:
    """The interfaces of some events as bytes."""
    places = int(interfaces.offsets[-1] - interfaces.offsets[0])
    data = np.empty((_SIZE + _NUMBER) * len(numbers) + INTERFACE * places, np.uint8)
    _deliver(numbers, interfaces.offsets, interfaces.values, data)
    return data


@kernel
def _received(data, numbers, ends, keys):
    at, events, used = np.int64(0), 0, 0
    while at + _SIZE + _NUMBER <= len(data):
        end = at + _SIZE + np.int64(_read(data, at, _SIZE))
        if end > len(data) or end < at + _SIZE + _NUMBER:
            break
        numbers[events] = _read(data, at + _SIZE, _NUMBER)
        for place in range(at + _SIZE + _NUMBER, end - INTERFACE + 1, INTERFACE):
            keys[used] = _read(data, place, INTERFACE)
            used += 1
        events += 1
        ends[events] = used
        at = end
    return events, at


def received(data: U8Array) -> tuple[U32Array, Lists]:
    """Numbers of events, and their interfaces."""
    numbers, ends = np.empty(len(data) // (_SIZE + _NUMBER), np.uint32), np.zeros(1 + len(data) // _SIZE, np.int64)
    keys = np.empty(len(data) // INTERFACE, np.uint64)
    count, stop = _received(data, numbers, ends, keys)
    if stop != len(data):
        raise WireError(f"what begins with byte {stop} of {len(data)}, after {count} deliveries, is no delivery")
    return numbers[:count], Lists(ends[: count + 1], keys[: int(ends[count])])
