"""Stage 1 for sets with constraints: messages as tags, codes of attributes and tokens on the device.

Their tokens are made on the device, where the ranks of tags and the codes of values are.

Stage 1 for sets with constraints: values of messages become codes on the device, and go to their messages.

Numbers come as they are, of which the CPU only leaves out nulls: to look constants up takes it far longer than to copy.
Texts, and attributes that are tags, come as codes (`tagmatch.pipeline.filters.messages`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numba.cuda
import numpy as np

from tagmatch.model.arrays import I64Array, TagLists, U32Array
from tagmatch.model.tables import Vocabulary
from tagmatch.pipeline.cuda.device import Workspace, grid, kernel, prefix_sums, to_device
from tagmatch.pipeline.cuda.pairs import CudaTagIndex, DeviceQueries
from tagmatch.pipeline.filters.codes import code_of_bits
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.known_columns import NUMBERS, TEXTS, KnownColumns
from tagmatch.pipeline.filters.message_tokens import most_tokens, tokens_of
from tagmatch.pipeline.filters.messages import values_of
from tagmatch.pipeline.filters.tokens import Cells

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
    """The values of some messages, of which the device is to make codes."""

    messages: int  # How many there are, from message `first` of all on
    first: int
    numbers: KnownColumns | None  # The columns of numbers
    sizes: I64Array  # How many values each of them has
    owners: U32Array  # The other values, as of `values_of`
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
    """Attributes of messages on the device, in any order within a message."""

    offsets: Any
    attributes: Any  # As of `tagmatch.pipeline.filters.messages.Messages`
    codes: Any


class CudaValueIndex:
    """Looks up the codes of values on the device."""

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
        self._seen.count(last - first, values.attributes, values.columns, sizes)
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


@kernel
def _room(messages, places, offsets, attribute_offsets, attributes, most, rooms):
    """One thread a message: how many tokens it can have, one for each tag and `most` for each attribute."""
    i = cuda.grid(1)
    if i < messages:
        room = (offsets[i + 1] if i + 1 < messages else places) - offsets[i]
        for at in range(attribute_offsets[i], attribute_offsets[i + 1]):
            room += most[attributes[at]]
        rooms[i] = room


@kernel
def _tokenize(
    messages, offsets, counts, ranks, attribute_offsets, attributes, codes,
    first_cells, bits, levels, known, first_tag,
    token_offsets, token_counts, tokens, owners, signatures,
):  # fmt: skip
    """One thread a message: its tokens go to its places, of which there may be more; `owners` names their message."""
    i = cuda.grid(1)
    if i < messages:
        begin = offsets[i]
        place = token_offsets[i]
        end, signature = tokens_of(
            ranks, begin, begin + counts[i], attributes, codes, attribute_offsets[i], attribute_offsets[i + 1],
            first_cells, bits, levels, known, first_tag, tokens, place,
        )  # fmt: skip
        token_counts[i] = end - place
        signatures[i] = signature
        for at in range(place, token_offsets[i + 1]):
            owners[at] = i


@dataclass(slots=True, eq=False)
class DeviceTokens:
    """Tokens of messages on the device."""

    places: int  # Of all messages
    offsets: Any
    counts: Any
    # Message `i` has the tokens `values[offsets[i]:offsets[i] + counts[i]]`, ascending, each once. The owners name the
    # message of each place.
    values: Any
    owners: Any
    signatures: Any  # Of each message's tokens


@dataclass(slots=True, eq=False)
class DeviceMessages(DeviceQueries):
    """Queries with attributes on the device."""

    attribute_offsets: Any
    attributes: Any  # As of `tagmatch.pipeline.filters.messages.Messages`
    codes: Any
    tokens: DeviceTokens | None = None  # For a trie, if there is one


class CudaMessageIndex(CudaTagIndex):
    """Looks up the ranks of tags on the device, the codes of values, and the tokens of messages."""

    def __init__(self, vocabulary: Vocabulary, index: FilterIndex) -> None:
        super().__init__(vocabulary)
        self._values = CudaValueIndex(index)
        self._tokens = None if index.trie is None else _TokenIndex(index.trie.cells)
        self.nbytes += self._values.nbytes + (0 if self._tokens is None else self._tokens.nbytes)

    def prepare(self, tags: TagLists, first: int, last: int) -> Callable[[Workspace], DeviceQueries]:
        """Do the CPU's part of stage 1 for messages `first` to `last`; what is left needs a workspace."""
        return partial(self._on_device, tags, first, last, self._values.given(tags, first, last))

    def _on_device(
        self, tags: TagLists, first: int, last: int, given: GivenValues, workspace: Workspace
    ) -> DeviceMessages:
        """Look up the tags of messages, the codes of their values, and make their tokens."""
        queries = self.ranks(tags, first, last, workspace)
        values = self._values.encode(given, workspace)
        on_device = DeviceMessages(
            workspace, queries.count, queries.places, queries.offsets, queries.counts, queries.ranks, queries.owners,
            values.offsets, values.attributes, values.codes,
        )  # fmt: skip
        if self._tokens is not None:
            on_device.tokens = self._tokens.tokens_of(on_device, given)
        return on_device


class _TokenIndex:
    """Makes the tokens of messages."""

    def __init__(self, cells: Cells) -> None:
        self._most, self._first_tag = most_tokens(cells), cells.first_tag
        tables: tuple[np.ndarray, ...] = (cells.first_cells, cells.bits, cells.levels, cells.tokens)
        self._cells = tuple(map(to_device, tables))
        self._most_there = to_device(self._most)
        self.nbytes = sum(int(table.nbytes) for table in (*self._cells, self._most_there))

    def tokens_of(self, there: DeviceMessages, given: GivenValues) -> DeviceTokens:
        """The tokens of messages that are on the device."""
        workspace, messages = there.workspace, (*grid(there.count, _BLOCK), there.workspace.stream)
        # Room for as many as there can be, as they are not counted before
        rooms = workspace.device("rooms for tokens", np.int32, there.count)
        _room[messages](
            there.count, there.places, there.offsets, there.attribute_offsets, there.attributes, self._most_there, rooms
        )
        places = there.places + int(given.sizes @ self._most[given.columns] + self._most[given.attributes].sum())
        tokens = DeviceTokens(
            places,
            prefix_sums("token offsets", rooms, there.count, workspace),
            workspace.device("token counts", np.int32, there.count),
            workspace.device("tokens", np.uint32, places),
            workspace.device("token owners", np.uint32, places),
            workspace.device("token signatures", np.uint64, there.count),
        )
        _tokenize[messages](
            there.count, there.offsets, there.counts, there.ranks,
            there.attribute_offsets, there.attributes, there.codes,
            *self._cells, self._first_tag,
            tokens.offsets, tokens.counts, tokens.values, tokens.owners, tokens.signatures,
        )  # fmt: skip
        return tokens
