"""Stage 1 for sets with constraints: values of messages become codes on the device, and go to their messages.

Numbers come as they are, of which the CPU only leaves out nulls: to look constants up takes it far longer than to copy.
Texts, and attributes that are tags, come as codes (`tagmatch.pipeline.filters.messages`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import I64Array, TagLists, U32Array
from tagmatch.pipeline.cuda.jit import kernel
from tagmatch.pipeline.cuda.memory import Workspace, grid, to_device
from tagmatch.pipeline.cuda.scan import prefix_sums
from tagmatch.pipeline.filters.codes import code_of_bits
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.known_columns import NUMBERS, TEXTS, KnownColumns
from tagmatch.pipeline.filters.messages import values_of

cuda: Any = numba.cuda

_BLOCK = 128
# Stands for a column of values that are codes: their attributes in the upper half of the bits, codes in the lower
_CODES = -1


@kernel
def _clear(messages, counts):
    i = cuda.grid(1)
    if i < messages:
        counts[i] = 0


@kernel
def _encode(
    values, columns, ends, attributes_of, kinds, owners, bits,
    number_starts, upper_halves, halves, wholes, doubles, inexact, rests, attributes, codes, counts,
):  # fmt: skip
    """One thread a value: its attribute and code; `counts` says how many values each message has.

    Of the constants' arrays the first so many elements count, as the device has no empty arrays.
    """
    i = cuda.grid(1)
    if i < values:
        column, last = 0, columns - 1
        while column < last:
            middle = (column + last) >> 1
            if ends[middle] <= i:
                column = middle + 1
            else:
                last = middle
        attribute, kind = attributes_of[column], kinds[column]
        if kind == _CODES:
            attributes[i] = bits[i] >> np.uint64(32)
            codes[i] = bits[i] & np.uint64(0xFFFFFFFF)
        else:
            attributes[i] = attribute
            codes[i] = code_of_bits(
                kind, bits[i], number_starts[attribute], number_starts[attribute + 1],
                (halves[:upper_halves], doubles[:wholes]), rests[:inexact],
            )  # fmt: skip
        cuda.atomic.add(counts, owners[i], 1)


@kernel
def _by_message(values, owners, attributes, codes, ends, counts, sorted_attributes, sorted_codes):
    """One thread a value: it goes to its message's, from the back; `counts` say how many are still to come."""
    i = cuda.grid(1)
    if i < values:
        message = owners[i]
        at = ends[message] + cuda.atomic.sub(counts, message, 1) - 1
        sorted_attributes[at] = attributes[i]
        sorted_codes[at] = codes[i]


@dataclass(frozen=True, slots=True, eq=False)
class GivenValues:
    """The values of some messages, of which the device is to make codes.

    Attributes
    ----------
    messages : int
        How many there are, from message `first` of all on.
    first : int
    numbers : KnownColumns, optional
        The columns of numbers.
    sizes : int64 array
        How many values each of them has.
    owners, attributes, codes : uint32 arrays
        The other values, as of `values_of`.
    """

    messages: int
    first: int
    numbers: KnownColumns | None
    sizes: I64Array
    owners: U32Array
    attributes: U32Array
    codes: U32Array

    def __len__(self) -> int:
        return int(self.sizes.sum()) + len(self.owners)

    @property
    def columns(self) -> I64Array:
        """The attribute of each column of numbers."""
        return _NO_COLUMNS if self.numbers is None else self.numbers.heads[:, 0]


_NO_COLUMNS = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class DeviceValues:
    """Attributes of messages on the device, in any order within a message.

    Attributes
    ----------
    offsets : int64 device array
    attributes, codes : uint32 device arrays
        As of `tagmatch.pipeline.filters.messages.Messages`.
    """

    offsets: Any
    attributes: Any
    codes: Any


class CudaValueIndex:
    """Looks up the codes of values on the device.

    Parameters
    ----------
    index : FilterIndex
    """

    def __init__(self, index: FilterIndex) -> None:
        self._known, self._seen = index.attributes, index.seen
        constants = index.attributes.constants
        tables: tuple[np.ndarray, ...] = (constants.halves, constants.doubles, constants.rests)
        self._starts = to_device(constants.number_starts)
        # Each with its length
        self._tables = tuple((len(table), to_device(table)) for table in tables)
        self.nbytes = sum(int(table.nbytes) for table in (self._starts, *(there for _, there in self._tables)))

    def given(self, tags: TagLists, first: int, last: int) -> GivenValues:
        """The values of messages `first` to `last`; encodes texts, which takes the CPU much longer than the rest."""
        given = tags.attributes
        if given is None:
            numbers, texts, sizes = None, None, _NO_COLUMNS
        else:
            numbers, texts = (KnownColumns.of(given, self._known, kinds) for kinds in (NUMBERS, TEXTS))
            sizes = numbers.counts(first, last)
        values = GivenValues(last - first, first, numbers, sizes, *values_of(tags, first, last, self._known, texts))
        self._seen.count_values(last - first, values.attributes, values.columns, sizes)
        return values

    def encode(self, given: GivenValues, workspace: Workspace) -> DeviceValues:
        """Copy values to the device, make codes of them, and put those of each message side by side."""
        values, messages, stream = len(given), given.messages, workspace.stream
        counts = workspace.device("counts of values", np.int32, messages)
        _clear[(*grid(messages, _BLOCK), stream)](messages, counts)
        found = [workspace.device(name, np.uint32, values) for name in ("attributes as given", "codes as given")]
        in_order = [workspace.device(name, np.uint32, values) for name in ("attributes", "codes")]
        owners, bits = self._send(given, workspace)
        columns = len(given.columns) + 1
        kinds = np.full(columns, _CODES)
        if given.numbers is not None:
            kinds[:-1] = given.numbers.heads[:, 1]
        heads = (np.append(np.cumsum(given.sizes), values), np.append(given.columns, 0), kinds)
        names = ("ends of columns", "attributes of columns", "kinds of columns")
        sent = [workspace.send(name, head) for name, head in zip(names, heads, strict=True)]
        tables = chain.from_iterable(self._tables)
        launched = (*grid(values, _BLOCK), stream)
        _encode[launched](values, columns, *sent, owners, bits, self._starts, *tables, *found, counts)
        ends = prefix_sums("attribute offsets", counts, messages, workspace)
        _by_message[launched](values, owners, *found, ends, counts, *in_order)
        return DeviceValues(ends, *in_order)

    def _send(self, given: GivenValues, workspace: Workspace) -> tuple[Any, Any]:
        """The message and the bits of each value, those of numbers first."""
        values, numbers = len(given), len(given) - len(given.owners)
        owners = workspace.pinned("owners of values", np.uint32, values)
        bits = workspace.pinned("bits of values", np.uint64, values)
        if given.numbers is not None:
            given.numbers.gather(given.first, given.first + given.messages, owners, bits)
        owners[numbers:] = given.owners
        bits[numbers:] = given.attributes
        bits[numbers:] <<= np.uint64(32)
        bits[numbers:] |= given.codes
        return workspace.upload("owners of values", owners), workspace.upload("bits of values", bits)
