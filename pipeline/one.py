"""One query, from its tags to its keys, by one call of a kernel in the thread that asks.

A packet goes through stages, each a few calls of kernels with arrays of columns in between; for a single query these
calls and arrays take far longer than the matching. Here the very same kernels are called by a kernel. What they need of
the segments they get as one argument (`Prepared`), and the tags of the query as one, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tagmatch.model.arrays import I64Array, U8Array, U32Array, U64Array
from tagmatch.model.columns import joined_tags
from tagmatch.model.input.places import NO_PLACE, ONE_PLACE
from tagmatch.model.input.values import NO_ATTRIBUTES
from tagmatch.model.kernels.entry import IS_LOCKED, Entry, bound
from tagmatch.model.kernels.hashing import xxh64
from tagmatch.model.kernels.interpreted import numbers_in
from tagmatch.model.kernels.intrinsics import Prepared, add, array_at, on_stack
from tagmatch.model.kernels.jit import brief_kernel, kernel, lent, with_room
from tagmatch.model.kernels.known_tags import SHORT, look_up
from tagmatch.model.kernels.lists import ascending_row
from tagmatch.model.tables import Segment
from tagmatch.pipeline.tags import TagIndex, copy_keys, keep_live, key_ends
from tagmatch.pipeline.unique import unique_keys

# Places of what all layouts need in `Prepared`; what a layout adds follows
_SCALARS, _BUCKETS, _SECRET, _TAG_OFFSETS, _TAG_DATA, RANK_OFFSETS, RANKS, _KEY_OFFSETS, _KEYS, _DELETED = range(10)
NAME_OFFSETS, NAMES = 10, 11
#: Place of the first array that a layout adds
LAYOUT = 12

# Places in the scalars
_HAS_EMPTY = 0
#: Place of the first scalar that a layout adds
LAYOUT_SCALAR = 1

#: Places in a row of tables, behind all addresses; the first one is there for entries alone
FIND, FIRST_ROW, FIRST_KEY = -3, -2, -1

#: Most candidates, and most keys, of a query that is answered at once; and the value for no bound
FEW, ALL = 1 << 12, 1 << 62
#: Most tags of such a query, and most bytes of its attributes
FEW_TAGS, FEW_BYTES = 1024, 1 << 12
#: Sets of a query for which there is room at first, and most bytes of the bits of such a query's ranks
ROOM_FOR_SETS, BITS_BYTES = 256, 1 << 15
# To sort up to this number of tags takes less time than to clear a bit for each rank, and these bytes are enough
_SORTED_TAGS, _FEWEST_BYTES = 32, 512

#: How an answer is wanted: as `match`, `match_unique` or `match_count` return it, as the keys' bytes, or as sets
KEYS, UNIQUE, COUNT, BYTES, SETS = range(5)

# Ends of one list
_TWO = 2
# Places in the counts
QUERIES, MATCHES, VERIFIED, REJECTED = range(4)


class Single(NamedTuple):
    """One query as bytes, which kernels read."""

    text: bytes  # Its tags, UTF-8, with a zero byte between each and the next
    tag_count: int  # How many there are
    attributes: bytes  # See `packed`
    place: bytes  # See `packed_place`
    tags: object = None  # The tags themselves, unless `enter` was asked already


class AnswersOne(Protocol):
    """Answers single queries in the calling thread, by few calls of kernels."""

    def keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array:
        """Keys of the sets that a query contains, ascending and each once if `unique`.

        To `counts`, int64[4], queries, keys, sets found and candidates turned away are added.
        """

    def enter(self, tags: object, wanted: int, counts: bytes, attributes: bytes) -> Any:
        """What is wanted of a query, if it can be answered by the shortest way; else `None`, and nothing is counted.

        It is wanted as `KEYS`, `UNIQUE`, `COUNT` or `BYTES`. `counts` is `address_of` counts as in `keys`. The query
        is at no place.
        """

    def brief_keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array | None:
        """As `keys`, where that takes less time than to have another thread do it; else `None`, uncounted."""

    def set_ids(self, query: Single) -> U32Array:
        """Ids of the sets that a query contains."""


#: What answers one query without a packet, and the query as it takes it
Alone: TypeAlias = tuple[AnswersOne, Single]

#: As `Single`, of a tuple, in half the time
single: Callable[[tuple[bytes, int, bytes, bytes, object]], Single] = partial(tuple.__new__, Single)


def alone(
    one: AnswersOne | None,
    tags: object,
    attributes: bytes = NO_ATTRIBUTES,
    place: bytes = NO_PLACE,
    *,
    entered: bool = False,
) -> Alone | None:
    """What answers one query without a packet, and the query as it takes it; `None` if it needs a packet."""
    joined = None if one is None or len(place) > ONE_PLACE else joined_tags(tags)
    if one is None or joined is None:
        return None
    return one, single((*joined, attributes, place, None if entered else tags))


DType = type[Any]


class DTypes(NamedTuple):
    """Types of the elements of arrays that are not the same in all segments; kernels are compiled for each."""

    tag_offset: DType
    rank_offset: DType
    key_offset: DType
    key: DType


@kernel
def scalar(tables, place):
    """A number of the segment."""
    return array_at(tables, _SCALARS, np.int64)[place]


@kernel
def has_empty(tables):
    """How many empty sets are stored: one or none."""
    return scalar(tables, _HAS_EMPTY)


class QueryTags(NamedTuple):
    """The tags of a query in a kernel."""

    offsets: I64Array  # See `Strings`
    data: U8Array


class Room(NamedTuple):
    """Memory for what one segment after the other has of a query."""

    ranks: U32Array  # For each tag
    sets: U32Array
    bits: U8Array  # As many as `bytes_for` says


@lent
def bytes_for(tags):
    """Bytes of bits for a query with this number of tags, at most `BITS_BYTES` except for more than `FEW_TAGS`."""
    return _FEWEST_BYTES if tags <= _SORTED_TAGS else max(BITS_BYTES, BITS_BYTES // FEW_TAGS * tags)


@kernel
def _room_for(tags):
    count = len(tags.offsets) - 1
    return Room(np.empty(count, np.uint32), np.empty(ROOM_FOR_SETS, np.uint32), np.empty(bytes_for(count), np.uint8))


@kernel
def hashes_of(tags, seed):
    """XXH64 of the tags of a query."""
    offsets, data = tags
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(hashes)):
        hashes[i] = xxh64(data, offsets[i], offsets[i + 1], np.uint64(seed))
    return hashes


@kernel
def tags_in(text, count):
    """The `count` tags in `text`, which has a zero byte between each and the next."""
    packed = np.frombuffer(text, np.uint8)
    data = np.empty(len(packed) + SHORT, np.uint8)  # so that short tags are looked up by words
    offsets = np.zeros(count + 1, np.int64)
    tag = used = 0
    for byte in packed:
        if byte == 0:
            tag += 1
            offsets[tag] = used
        else:
            data[used] = byte
            used += 1
    offsets[count] = used
    return QueryTags(offsets, data)


@kernel
def ranks_of(tables, tags, tag_offset):
    """Ascending ranks of the tags of a query (§3.2)."""
    numbers = np.empty(len(tags.offsets) - 1, np.uint32)
    look_up_in(tables, tags, tag_offset, numbers)
    return numbers[: ascending_row(numbers, 0, len(numbers), 0)]


@kernel
def look_up_in(tables, tags, tag_offset, numbers):
    """Write the rank of each tag of a query; UNKNOWN if it has none."""
    offsets, data = tags
    known_offsets, known_data = array_at(tables, _TAG_OFFSETS, tag_offset), array_at(tables, _TAG_DATA, np.uint8)
    known = array_at(tables, _BUCKETS, np.uint64), array_at(tables, _SECRET, np.uint64)
    look_up(offsets, data, 0, known, known_offsets, known_data, numbers)


@kernel
def deleted_in(tables):
    """The bits of the rows that are deleted (see `Deletions`); none if no row is."""
    return array_at(tables, _DELETED, np.uint8)


@kernel
def live_of(tables, sets):
    """The sets that are not deleted."""
    deleted = deleted_in(tables)
    if len(deleted) == 0:
        return sets
    ends, new_ends = on_stack(np.int64, _TWO), on_stack(np.int64, _TWO)
    ends[0], ends[1], new_ends[0] = 0, len(sets), 0
    live = np.empty(len(sets) + 1, np.uint32)
    return live[: keep_live(ends, sets, deleted, new_ends, live)]


@kernel
def add_rows(tables, sets, found, used):
    """As `add_keys`, of the sets themselves."""
    first_row, found = np.uint64(tables[FIRST_ROW]), with_room(found, used, len(sets))
    for each in sets:
        found[used] = np.uint64(each) + first_row
        used += 1
    return found, used


@kernel
def add_keys(tables, sets, most, found, used, key_offset, key):
    """Put the keys of sets of a segment behind the first `used` ones that were found (§3.4).

    Returns them, in larger memory if need be, and their number then; -1 if that would be more than `most`.
    """
    offsets, keys = array_at(tables, _KEY_OFFSETS, key_offset), array_at(tables, _KEYS, key)
    ends, places = on_stack(np.int64, _TWO), on_stack(np.int64, _TWO)  # to make an array takes 60 ns
    ends[0], ends[1], places[0] = 0, len(sets), 0
    key_ends(ends, sets, offsets, places)
    total = used + places[1]
    if total > most:
        return found, -1
    found = with_room(found, used, total - used)
    copy_keys(sets, offsets, keys, found[used:total])
    first_key = tables[FIRST_KEY]
    if first_key:
        for i in range(used, total):
            found[i] += first_key
    return found, total


@kernel
def add_keys_at(tables, places, found, used, key):
    """As `add_keys`, of the keys at some places of the key table."""
    keys, first_key = array_at(tables, _KEYS, key), np.uint64(tables[FIRST_KEY])
    found = with_room(found, used, len(places))
    for place in places:
        found[used] = np.uint64(keys[place]) + first_key
        used += 1
    return found, used


@kernel
def answer(found, unique, verified, rejected, counts):
    """The keys that were found, ascending and each once if `unique`; counted."""
    if unique:
        places, ends = np.zeros(2, np.int64), np.zeros(2, np.int64)
        places[1] = len(found)
        once = np.empty(len(found), np.uint64)
        found = once[: unique_keys(places, found, np.ones(1, np.bool_), ends, once)]
    count_answer(counts, len(found), verified, rejected)
    return found


@kernel
def count_answer(counts, matches, verified, rejected):
    """Count a query that is answered."""
    add(counts, QUERIES, 1)
    add(counts, MATCHES, matches)
    add(counts, VERIFIED, verified)
    add(counts, REJECTED, rejected)


class Kernels(NamedTuple):
    """Kernels that answer single queries about segments with arrays of certain types.

    Each gets a row for each segment: its addresses (see `Prepared`), and the offsets to add to its rows and to its
    keys; the text of the query; the number of its tags; and a tuple of what it has besides.
    """

    # Gets the kind of answer, `counts`, and `most`, too; returns keys or sets, or `None` where these are not enough
    keys: Any
    sets: Any = None  # What finds sets with areas, whose keys are looked up by themselves
    # What answers few tags with few keys (`entry_of`). `keys` lets go of the interpreter lock, and to get it back takes
    # longer than most queries where many threads ask.
    entry: Entry | None = None


# Elements of a segment for each one that a query reads, which no query has all of; and for how many of these each byte
# of a query counts, as Python takes some 20 us for each letter of a text that is searched
_READ, _SLOWER = 8, 32


@kernel
def only_tags(rest):  # noqa: ARG001
    """No attributes and no areas of a query."""
    return ()


def for_sets(dtypes: DTypes) -> DTypes:
    """The types that what finds sets is compiled for, which never looks at keys."""
    return dtypes._replace(key_offset=np.int64, key=np.int64)


@cache
def kernels_of(sets_in: Any, dtypes: DTypes, read: Any = only_tags, entry: Entry | None = None) -> Kernels:
    """The kernels of those sets that `sets_in` finds.

    It gets the addresses of a segment, the tags, what `read` makes of the rest of the query, `Room`, `most` and
    `dtypes`. It returns sets that are not deleted, and how many candidates were turned away; less than 0 if `most` is
    not enough.
    """
    *_, key_offset, key = dtypes
    dtypes = for_sets(dtypes)

    @kernel
    def in_all(tables, text, count, rest, wanted, counts, most):
        tags, others = tags_in(text, count), read(rest)
        found, used, verified, rejected, room = np.empty(0, np.uint64), 0, 0, 0, _room_for(tags)
        for segment in range(len(tables)):
            sets, more = sets_in(tables[segment], tags, others, room, most, dtypes)
            if more < 0:
                return None
            if wanted == SETS:
                found, used = add_rows(tables[segment], sets, found, used)
            else:
                found, used = add_keys(tables[segment], sets, most, found, used, key_offset, key)
            if used < 0:
                return None
            verified, rejected = verified + len(sets), rejected + more
        if wanted == SETS:
            return found[:used]
        return answer(found[:used], wanted == UNIQUE, verified, rejected, counts)

    in_all.elements = _elements
    # Once queries have an entry, this answers few of them
    in_all.patience = 1.0 if entry is None else 2.0
    return Kernels(in_all, entry=entry)


def _elements(arguments: tuple[Any, ...]) -> int:
    """How many elements of the arrays of segments are looked at, at most about, and of the query."""
    tables, *query = arguments
    return int(tables[:, 1 : LAYOUT * 2 : 2].sum()) // _READ + _SLOWER * numbers_in(query)


class _Entered:
    """What answers single queries about segments; once there is compiled code for that, Python calls this at once."""

    def __init__(self, of_nowhere: Sequence[OneQuery]) -> None:
        self._of_nowhere = of_nowhere  # those that may have an answer to a query without a place
        self.is_entered = False

    def enter(self, tags: object, wanted: int, counts: bytes, attributes: bytes) -> Any:
        """See `AnswersOne`. Once there is compiled code, that stands here itself."""
        function = _function_of(self._of_nowhere)
        if function is None:
            return None
        self.enter, self.is_entered = function, True  # type: ignore[method-assign]
        return function(tags, wanted, counts, attributes)


def _function_of(parts: Sequence[OneQuery]) -> Callable[..., Any] | None:
    """What answers few tags with few candidates and keys; `None` if it is neither compiled nor due to be."""
    entries = [part._kernels.entry for part in parts if part._kernels.entry is not None]
    if not IS_LOCKED or len(entries) < len(parts):
        return None
    due = [part._due() for part in parts]
    addresses = [entry.find.address(*each) for entry, each in zip(entries, due, strict=True)]
    is_due, is_long = map(any, zip(*due, strict=True))
    enter = entries[0].enter.address(is_due or 0 not in addresses, is_long)
    if 0 in (enter, *addresses):
        return None
    width = 1 + max(part._tables.shape[1] for part in parts)
    tables = []
    for part, address in zip(parts, addresses, strict=True):
        table = np.zeros((len(part._tables), width), np.uint64)
        table[:, : part._tables.shape[1]] = part._tables
        table[:, FIND], table[:, FIRST_ROW:] = address, part._tables[:, FIRST_ROW:]
        tables.append(table)
    table = np.concatenate(tables)
    table = table[np.argsort(table[:, FIRST_KEY], kind="stable")]
    return bound(enter, np.ascontiguousarray(table), [part._segments for part in parts])


_NO_COUNTS: I64Array = np.zeros(0, np.int64)


class OneQuery(_Entered):
    """Answers single queries about segments with arrays of the same types; any number of threads may share it.

    Attributes mean nothing to sets without constraints, nor does a place to sets without areas.
    """

    def __init__(
        self,
        segments: Sequence[Prepared],
        kernels: Kernels,
        first_rows: Sequence[int] = (0,),
        first_keys: Sequence[int] = (0,),
    ) -> None:
        super().__init__([self])
        self._segments = segments  # what the tables' addresses point to
        addresses = np.stack([segment.addresses for segment in segments])
        self._tables = np.column_stack([addresses, np.array([first_rows, first_keys], np.uint64).T])
        self._kernels = kernels

    @property
    def parts(self) -> Sequence[OneQuery]:
        """Itself."""
        return (self,)

    @property
    def needs_place(self) -> bool:
        """Whether no query without a place has an answer."""
        return False

    def keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array:
        """Keys of the sets that a query contains."""
        keys = None if query.tags is None else self.brief_keys(query, unique, counts)
        found: U64Array = self._keys(query, unique, counts, ALL) if keys is None else keys
        return found

    def brief_keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array | None:
        """As `keys`, of a query that has few tags, candidates and keys; `None`, and nothing is counted, of others."""
        if self._kernels.entry is None or not is_short(query):
            return None
        found = None if query.tags is None else self.enter(query.tags, BYTES, address_of(counts), query.attributes)
        if not self.is_entered:
            few: U64Array | None = self._keys(query, unique, counts, FEW)
            return few
        if found is None:
            return None
        keys = np.frombuffer(found, np.uint64)
        if unique:
            count, keys = len(keys), np.unique(keys)
            if len(keys) < count:
                add_counts(counts, np.array([0, len(keys) - count, 0, 0]))
        return keys

    def _due(self) -> tuple[bool, bool]:
        """Whether it is time to compile what answers at once, and whether a query would take longer by Python."""
        keys = self._kernels.keys
        return keys.is_due((self._tables,)), keys.is_long((self._tables,))

    def _keys(self, query: Single, unique: bool, counts: I64Array, most: int) -> Any:
        text, tag_count, attributes, *_ = query
        wanted = UNIQUE if unique else KEYS
        return self._kernels.keys(self._tables, text, tag_count, (attributes,), wanted, counts, most)

    def set_ids(self, query: Single) -> U32Array:
        """Ids of the sets that a query contains."""
        text, tag_count, attributes, *_ = query
        found = self._kernels.keys(self._tables, text, tag_count, (attributes,), SETS, _NO_COUNTS, ALL)
        return np.asarray(found, np.uint32)


def is_short(query: Single) -> bool:
    """Whether a query has few tags, and little else."""
    return query.tag_count <= FEW_TAGS and len(query.attributes) <= FEW_BYTES


def one_of_all(
    each: Sequence[OneQuery | OfSeveralTypes], first_rows: Sequence[int], first_keys: Sequence[int]
) -> OneQuery | OfSeveralTypes:
    """What answers about all that some answer about, each about one segment; the rest (see `OneQuery`)."""
    alike: dict[Kernels, list[tuple[OneQuery, int, int]]] = {}
    for one, first_row, first_key in zip(each, first_rows, first_keys, strict=False):
        for part in one.parts:
            alike.setdefault(part._kernels, []).append((part, first_row, first_key))
    together = [
        type(found[0][0])(
            [segment for part, _, _ in found for segment in part._segments],
            kernels,
            [first_row for _, first_row, _ in found],
            [first_key for *_, first_key in found],
        )
        for kernels, found in alike.items()
    ]
    return together[0] if len(together) == 1 else OfSeveralTypes(together)


def address_of(counts: I64Array) -> bytes:
    """The address of counts, as compiled code reads it soonest."""
    return counts.ctypes.data.to_bytes(8, sys.byteorder)


@brief_kernel
def add_counts(counts, more):
    """Add these counts to others, also while other threads add."""
    for place in range(len(more)):
        add(counts, place, more[place])


class OfSeveralTypes(_Entered):
    """Answers single queries about segments with arrays of several types, by what answers about those of each."""

    def __init__(self, parts: Sequence[OneQuery]) -> None:
        super().__init__([part for part in parts if not part.needs_place] or parts[:1])
        self.parts = parts

    def keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array:
        """See `OneQuery`."""
        parts = self._asked(query)
        if len(parts) == 1:
            return parts[0].keys(query, unique, counts)
        own = np.zeros(len(counts), np.int64)
        return _together([part.keys(query, unique, own) for part in parts], unique, own, counts)

    def brief_keys(self, query: Single, unique: bool, counts: I64Array) -> U64Array | None:
        """See `OneQuery`; `None` if one of the parts would take long."""
        if query.tags is None and self.is_entered:
            return None
        own, found = np.zeros(len(counts), np.int64), []
        for part in self._asked(query):
            keys = part.brief_keys(query, unique, own)
            if keys is None:
                return None
            found.append(keys)
        return _together(found, unique, own, counts)

    def set_ids(self, query: Single) -> U32Array:
        """See `OneQuery`."""
        return np.concatenate([part.set_ids(query) for part in self._asked(query)])

    def _asked(self, query: Single) -> Sequence[OneQuery]:
        """The parts that may have an answer; one at least, which counts the query."""
        return self.parts if query.place else self._of_nowhere


def _together(found: list[U64Array], unique: bool, own: I64Array, counts: I64Array) -> U64Array:
    """The keys that parts have found, counted as one answer."""
    some = [keys for keys in found if len(keys)]
    keys = np.concatenate(some) if len(some) > 1 else (some or found)[0]
    if unique and len(some) > 1:
        keys = np.unique(keys)
    own[QUERIES], own[MATCHES] = 1, len(keys)
    add_counts(counts, own)
    return keys


def prepare(
    segment: Segment, tags: TagIndex, arrays: list[npt.NDArray[Any]], scalars: list[int]
) -> tuple[Prepared, DTypes]:
    """What `ranks_of` and `add_keys` need, followed by arrays and scalars of the layout."""
    known, ranks, keys = segment.vocabulary.tags, segment.tagsets.ranks, segment.keys.keys
    numbers = np.array([segment.tagsets.has_empty_set, *scalars], np.int64)
    names = (np.zeros(0, np.int64), np.zeros(0, np.uint8))
    if segment.keys.names is not None:
        names = segment.keys.names.offsets, segment.keys.names.data
    common = (*tags.known, known.offsets, known.data, ranks.offsets, ranks.values, keys.offsets, keys.values)
    common += (segment.deleted, *names)
    varying = (known.offsets, ranks.offsets, keys.offsets, keys.values)
    return Prepared(numbers, *common, *arrays), DTypes(*(array.dtype.type for array in varying))
