"""Sets with constraints on the device: messages become codes and tokens (stage 1), and are matched (stage 2).

Numbers come as they are, and the CPU only leaves out nulls: to look constants up takes it far longer than to copy.
Texts, and attributes that are tags, come as codes (`tagmatch.pipeline.filters.messages`). Of sets in blocks, half a
warp matches each block and message; of sets in a trie, a thread each token of each message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numba.cuda
import numpy as np

from tagmatch.model.arrays import I64Array, TagLists, U32Array, bytes_of
from tagmatch.model.tables import Vocabulary
from tagmatch.pipeline.cuda.device import (
    Workspace,
    clear,
    grid,
    inlined,
    kernel,
    prefix_sums,
    sent,
    to_device,
    typed,
)
from tagmatch.pipeline.cuda.pairs import CudaTagIndex, DeviceQueries, PairArrays, QueryArrays, new_stage, staging
from tagmatch.pipeline.filters.asked import verified
from tagmatch.pipeline.filters.codes import code_of_bits
from tagmatch.pipeline.filters.index import FilterIndex
from tagmatch.pipeline.filters.lines import ABSENT, BLOCK, SEVERAL, LineIndex, bucket_of, in_box, with_value
from tagmatch.pipeline.filters.messages import NUMBERS, TEXTS, KnownColumns, values_of
from tagmatch.pipeline.filters.trie import DEEPEST, INNER, TrieIndex, child_of, most_tokens, rows_of_node, tokens_of

cuda: Any = numba.cuda

_BLOCK = 128
# Stands for a column of values that are codes: their attributes in the upper half of the bits, codes in the lower
_CODES = -1


class _Given(NamedTuple):
    """Values by column; the last one has those that are codes."""

    ends: Any
    attributes: Any
    kinds: Any
    owners: Any  # Of each value its message, and its bits
    bits: Any


class _Constants(NamedTuple):
    """The constants of numbers (see `Constants`); arrays come with their lengths, as the device has no empty ones."""

    starts: Any
    upper_halves: int
    halves: Any
    wholes: int
    doubles: Any
    inexact: int
    rests: Any


@kernel
def _encode(values, columns, given, known, attributes, codes, counts):
    """One thread a value: its attribute and code; `counts` says how many values each message has."""
    i = cuda.grid(1)
    if i < values:
        column, last = 0, columns - 1
        while column < last:
            middle = (column + last) >> 1
            if given.ends[middle] <= i:
                column = middle + 1
            else:
                last = middle
        attribute, kind, bits = given.attributes[column], given.kinds[column], given.bits[i]
        if kind == _CODES:
            attributes[i] = bits >> np.uint64(32)
            codes[i] = bits & np.uint64(0xFFFFFFFF)
        else:
            attributes[i] = attribute
            doubles = known.halves[: known.upper_halves], known.doubles[: known.wholes]
            first, end = known.starts[attribute], known.starts[attribute + 1]
            codes[i] = code_of_bits(kind, bits, first, end, doubles, known.rests[: known.inexact])
        cuda.atomic.add(counts, given.owners[i], 1)


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
    """The values of some messages, for the device to make codes of."""

    messages: int  # how many there are, from message `first` of all on
    first: int
    numbers: KnownColumns  # the columns of numbers
    sizes: I64Array  # how many values each of them has
    owners: U32Array  # the other values (see `values_of`)
    attributes: U32Array
    codes: U32Array

    def __len__(self) -> int:
        return int(self.sizes.sum()) + len(self.owners)


# Of messages without columns
_NO_COLUMNS = KnownColumns(np.zeros((0, 0), np.uint64), np.zeros((0, 3), np.int64), [], [])


class ValueArrays(NamedTuple):
    """Attributes of messages on the device, in any order within a message."""

    offsets: Any
    attributes: Any  # Numbers of attributes, and codes, as `MessageTable` has them
    codes: Any


@kernel
def _room(messages, places, queries, values, most, rooms):
    """One thread a message: how many tokens it can have, one for each tag and `most` for each attribute."""
    i = cuda.grid(1)
    if i < messages:
        room = (queries.offsets[i + 1] if i + 1 < messages else places) - queries.offsets[i]
        for at in range(values.offsets[i], values.offsets[i + 1]):
            room += most[values.attributes[at]]
        rooms[i] = room


class TokenArrays(NamedTuple):
    """Tokens of messages: `i` has `values[offsets[i]:offsets[i] + counts[i]]`, ascending, each once."""

    offsets: Any
    counts: Any
    values: Any
    owners: Any  # The message of each place
    signatures: Any  # Of each message's tokens


@kernel
def _tokenize(messages, asked, cells, out):
    """One thread a message: its tokens go to its places, which may be more."""
    i = cuda.grid(1)
    if i < messages:
        queries, values = asked.queries, asked.values
        begin, place = queries.offsets[i], out.offsets[i]
        message = (
            values.attributes, values.codes, values.offsets[i], values.offsets[i + 1],
            queries.ranks, begin, begin + queries.counts[i],
        )  # fmt: skip
        end, signature = tokens_of(message, cells, out.values, place)
        out.counts[i] = end - place
        out.signatures[i] = signature
        for at in range(place, out.offsets[i + 1]):
            out.owners[at] = i


class MessageArrays(NamedTuple):
    """Messages as tags and as attributes."""

    queries: QueryArrays
    values: ValueArrays


@dataclass(slots=True, eq=False)
class DeviceMessages(DeviceQueries):
    """Queries with attributes on the device."""

    asked: MessageArrays
    tokens: TokenArrays | None = None  # for a trie
    token_places: int = 0  # of all messages


class CudaMessageIndex(CudaTagIndex):
    """Looks up the ranks of tags on the device, the codes of values, and the tokens of messages."""

    def __init__(self, vocabulary: Vocabulary, index: FilterIndex) -> None:
        super().__init__(vocabulary)
        self._known, self._seen = index.attributes, index.seen
        constants = index.attributes.constants
        tables: tuple[Any, ...] = (constants.halves, constants.doubles, constants.rests)
        lengths_too = chain.from_iterable((len(table), table) for table in tables)
        self._constants = sent(_Constants(constants.number_starts, *lengths_too))
        self.nbytes += bytes_of(self._constants)
        self._cells = None
        if index.trie is not None:
            self._most = most_tokens(index.trie.cells)
            self._cells, self._most_there = sent(index.trie.cells), to_device(self._most)
            self.nbytes += bytes_of(self._cells, self._most_there)

    def prepare(self, tags: TagLists, first: int, last: int) -> Callable[[Workspace], DeviceQueries]:
        """Do the CPU's part of stage 1 for messages `first` to `last`; the rest needs a workspace."""
        return partial(self._on_device, tags, first, last, self._given(tags, first, last))

    def _on_device(
        self, tags: TagLists, first: int, last: int, given: GivenValues, workspace: Workspace
    ) -> DeviceMessages:
        """Look up the tags of messages, the codes of their values, and make their tokens."""
        queries = self.ranks(tags, first, last, workspace)
        asked = typed(MessageArrays(queries.arrays, self._encode(given, workspace)))
        on_device = DeviceMessages(workspace, queries.count, queries.places, queries.arrays, asked)
        if self._cells is not None:
            self._tokenize(on_device, given)
        return on_device

    def _tokenize(self, there: DeviceMessages, given: GivenValues) -> None:
        """Make the tokens of messages; room is for as many as there can be, as they are not counted before."""
        workspace, count = there.workspace, there.count
        by_message = (*grid(count, _BLOCK), workspace.stream)
        rooms = workspace.device("rooms for tokens", np.int32, count)
        _room[by_message](count, there.places, there.arrays, there.asked.values, self._most_there, rooms)
        of_numbers = given.sizes @ self._most[given.numbers.heads[:, 0]]
        places = there.places + int(of_numbers + self._most[given.attributes].sum())
        there.token_places = places
        there.tokens = typed(TokenArrays(
            prefix_sums("token offsets", rooms, count, workspace),
            workspace.device("token counts", np.int32, count),
            workspace.device("tokens", np.uint32, places),
            workspace.device("token owners", np.uint32, places),
            workspace.device("token signatures", np.uint64, count),
        ))  # fmt: skip
        _tokenize[by_message](count, there.asked, self._cells, there.tokens)

    def _given(self, tags: TagLists, first: int, last: int) -> GivenValues:
        """The values of messages `first` to `last`; encodes texts, which takes the CPU much longer than the rest."""
        given, numbers, texts = tags.attributes, _NO_COLUMNS, None
        if given is not None:
            numbers, texts = (KnownColumns.of(given, self._known, kinds) for kinds in (NUMBERS, TEXTS))
        sizes = numbers.counts(first, last)
        values = GivenValues(last - first, first, numbers, sizes, *values_of(tags, first, last, self._known, texts))
        self._seen.count(last - first, values.attributes, numbers.heads[:, 0], sizes)
        return values

    def _encode(self, given: GivenValues, workspace: Workspace) -> ValueArrays:
        """Copy values to the device, make codes of them, and put those of each message side by side."""
        values, messages, stream = len(given), given.messages, workspace.stream
        counts = workspace.device("counts of values", np.int32, messages)
        clear(counts, messages, stream)
        found = [workspace.device(name, np.uint32, values) for name in ("attributes as given", "codes as given")]
        in_order = [workspace.device(name, np.uint32, values) for name in ("attributes", "codes")]
        owners, bits = self._send(given, workspace)
        attributes, kinds, _ = np.append(given.numbers.heads, [(0, _CODES, 0)], axis=0).T
        heads = (np.append(np.cumsum(given.sizes), values), attributes, kinds)
        names = ("ends of columns", "attributes of columns", "kinds of columns")
        ends_there, numbers, kinds_there = (workspace.send(*each) for each in zip(names, heads, strict=True))
        launched = (*grid(values, _BLOCK), stream)
        all_given = _Given(ends_there, numbers, kinds_there, owners, bits)
        _encode[launched](values, len(kinds), all_given, self._constants, *found, counts)
        ends = prefix_sums("attribute offsets", counts, messages, workspace)
        _by_message[launched](values, owners, *found, ends, counts, *in_order)
        return typed(ValueArrays(ends, *in_order))

    def _send(self, given: GivenValues, workspace: Workspace) -> tuple[Any, Any]:
        """The message and the bits of each value, those of numbers first."""
        values, numbers = len(given), len(given) - len(given.owners)
        owners = workspace.pinned("owners of values", np.uint32, values)
        bits = workspace.pinned("bits of values", np.uint64, values)
        given.numbers.gather(given.first, given.first + given.messages, owners, bits)
        owners[numbers:] = given.owners
        bits[numbers:] = given.attributes
        bits[numbers:] <<= np.uint64(32)
        bits[numbers:] |= given.codes
        return workspace.upload("owners of values", owners), workspace.upload("bits of values", bits)


@inlined
def _verified(message, row, asked, known):
    """Whether a message has all that the set of a row asks; both."""
    queries, values = asked.queries, asked.values
    begin, first, last = queries.offsets[message], known.record_offsets[row], known.record_offsets[row + 1]
    own = (
        values.attributes, values.codes, values.offsets[message], values.offsets[message + 1],
        queries.ranks, begin, begin + queries.counts[message],
    )  # fmt: skip
    good = verified(first, last, known.records, own, None, False, known.constraints)
    return good, np.uint32(message), known.rows[row]


_stage, _flush = staging(_verified)

_LINE_BLOCK = 256
# Threads of a block and a message: each has a word of 32 bits of its lines
_LANES = BLOCK // 32
# Bytes that say which line each attribute of a message has; messages come in parts for which this is enough
_BUCKETS = 64 << 20

_U32 = np.uint32


@kernel
def assign_buckets(first, count, values, cut, buckets):
    """One thread a message: which line of its column each attribute has."""
    i = cuda.grid(1)
    if i < count:
        known = len(cut.edge_offsets) - 1
        begin = i * known
        for at in range(begin, begin + known):
            buckets[at] = ABSENT
        for place in range(values.offsets[first + i], values.offsets[first + i + 1]):
            attribute = np.int64(cut.numbers[values.attributes[place]])
            if attribute >= 0:
                edges, last = cut.edge_offsets[attribute], cut.edge_offsets[attribute + 1]
                bucket = bucket_of(values.codes[place], cut.edges, edges, last)
                buckets[begin + attribute] = with_value(buckets[begin + attribute], bucket)


@inlined
def _word_of_several(line, lane, attribute, cut, lines, values, message):
    """Sets in the line of any of the values that a message has of an attribute."""
    word = lines[line + SEVERAL, lane]
    for place in range(values.offsets[message], values.offsets[message + 1]):
        if np.int64(cut.numbers[values.attributes[place]]) == attribute:
            edges, last = cut.edge_offsets[attribute], cut.edge_offsets[attribute + 1]
            word |= lines[line + bucket_of(values.codes[place], cut.edges, edges, last), lane]
    return word


@kernel
def match_lines(first, count, buckets, asked, cut, blocks, known, out):
    """Append the sets whose constraints and tags messages `first` to `first + count` have.

    Neighbouring half warps have the same block, whose lines they find in the cache.
    """
    waiting = new_stage()
    thread = np.int64(cuda.grid(1))
    if thread < (len(blocks.column_offsets) - 1) * count * _LANES:
        lane = thread % _LANES
        pair = thread // _LANES
        block, i = pair // count, pair % count
        message, begin = first + i, i * (len(cut.edge_offsets) - 1)
        left, boxes, columns = _U32(0xFFFFFFFF), blocks.boxes, blocks.columns
        for box in range(blocks.box_offsets[block], blocks.box_offsets[block + 1]):
            if not in_box(buckets[begin + np.int64(boxes[box, 0])], boxes[box, 1], boxes[box, 2]):
                left = _U32(0)
                break
        column, last = blocks.column_offsets[block], blocks.column_offsets[block + 1]
        while left != _U32(0) and column < last:
            attribute, line = np.int64(columns[column, 0]), np.int64(columns[column, 1])
            bucket = np.int64(buckets[begin + attribute])
            if bucket != SEVERAL:
                left &= blocks.lines[line + bucket, lane]
            else:
                left &= _word_of_several(line, lane, attribute, cut, blocks.lines, asked.values, message)
            column += 1
        while left != _U32(0):
            candidate = block * BLOCK + lane * 32 + np.int64(cuda.ffs(left)) - 1
            left &= left - _U32(1)
            if candidate < len(known.rows):  # a block without columns, the last one, has fewer sets than bits
                _stage(message, candidate, waiting, asked, known, out)
    _flush(waiting, asked, known, out)


class CudaLines:
    """The sets of lines, in device memory."""

    def __init__(self, index: LineIndex) -> None:
        self._count, self._attributes = len(index.blocks.column_offsets) - 1, len(index.buckets.edge_offsets) - 1
        self._cut, self._sets = sent(index.buckets), sent(index.sets)
        self._blocks = sent(index.blocks._replace(lines=index.blocks.lines.view(np.uint32)))
        self.nbytes = bytes_of(self._cut, self._blocks, self._sets)

    def launch(self, messages: DeviceMessages, out: PairArrays) -> None:
        """Append the matches of all messages."""
        workspace, asked = messages.workspace, messages.asked
        at_once = max(1, _BUCKETS // max(1, self._attributes))
        for first in range(0, messages.count, at_once):
            count = min(at_once, messages.count - first)
            buckets = workspace.device("buckets", np.uint8, count * self._attributes)
            by_message = (*grid(count, _LINE_BLOCK), workspace.stream)
            assign_buckets[by_message](first, count, asked.values, self._cut, buckets)
            threads = self._count * count * _LANES
            match_lines[(*grid(threads, _LINE_BLOCK), workspace.stream)](
                first, count, buckets, asked, self._cut, self._blocks, self._sets, out
            )


_U = np.uint64
_TRIE_BLOCK = 128
# Sets without tokens, which no token leads to, that a thread looks at
_EACH = 64


@kernel
def match_trie(threads, token_places, parts, tokens, asked, trie, known, out):
    """Append the sets whose constraints and tags a message has.

    A thread has a place of a message's tokens: it goes depth first to the sets whose least likely token stands there,
    and whose others come after it. Those that need no token are at the root; `parts` threads share them for a message.
    """
    waiting = new_stage()
    # Nodes on the way that have children, and where the search for these goes on; the deepest ones have none
    path = cuda.local.array((DEEPEST, 2), np.int64)
    thread = np.int64(cuda.grid(1))
    if thread < token_places:
        message = np.int64(tokens.owners[thread])
        last = tokens.offsets[message] + tokens.counts[message]
        missing = ~tokens.signatures[message]
        node, place, depth = np.int64(0), thread, 0
        if place < last:
            node = np.int64(trie.roots[tokens.values[place]])
        while node != 0 or depth > 0:
            if node != 0:
                row, end, has_children = rows_of_node(node, trie.nodes)
                for candidate in range(row, end):
                    if trie.signatures[candidate] & missing == _U(0):
                        _stage(message, candidate, waiting, asked, known, out)
                if has_children:
                    path[depth, 0], path[depth, 1] = node, place + 1
                    depth += 1
                node = np.int64(0)
            else:
                place = path[depth - 1, 1]
                if place < last:
                    path[depth - 1, 1] = place + 1
                    node = child_of(path[depth - 1, 0], tokens.values[place], trie.edges, trie.children)
                else:
                    depth -= 1
    elif thread < threads:
        message = (thread - token_places) // parts
        # Neighbours look at neighbouring rows
        for candidate in range((thread - token_places) % parts, rows_of_node(0, trie.nodes)[1], parts):
            _stage(message, candidate, waiting, asked, known, out)
    _flush(waiting, asked, known, out)


class CudaTrie:
    """The sets of a trie, in device memory."""

    def __init__(self, index: TrieIndex) -> None:
        self._count = len(index)
        self._tokenless = int(index.trie.nodes[0, 1] & ~INNER)  # rows, the first ones, that have no token
        self._trie, self._sets = sent(index.trie), sent(index.sets)
        self.nbytes = bytes_of(self._trie, self._sets)

    def launch(self, messages: DeviceMessages, out: PairArrays) -> None:
        """Append the matches of all messages."""
        tokens = messages.tokens
        assert tokens is not None
        parts = -(-self._tokenless // _EACH)
        threads = messages.token_places + messages.count * parts
        if not self._count or not threads:
            return
        match_trie[(*grid(threads, _TRIE_BLOCK), messages.workspace.stream)](
            threads, messages.token_places, parts, tokens, messages.asked, self._trie, self._sets, out
        )


class CudaFilters:
    """Those that the trie has, and those that lines have, in device memory."""

    def __init__(self, index: FilterIndex) -> None:
        trie = None if index.trie is None else CudaTrie(index.trie)
        lines = None if index.lines is None else CudaLines(index.lines)
        self._parts = [part for part in (trie, lines) if part is not None]
        self.nbytes = sum(part.nbytes for part in self._parts)

    def launch(self, messages: DeviceQueries, out: PairArrays) -> None:
        """Append the matches of all messages."""
        assert isinstance(messages, DeviceMessages)
        for part in self._parts:
            part.launch(messages, out)
