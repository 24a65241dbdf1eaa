"""Exact look-up in hash tables: a dict of rarest tags in Python, and every subset of a query."""

from __future__ import annotations

from collections import defaultdict
from math import comb

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array, Lists, U64Array, list_offsets, offsets_of
from tagmatch.model.columns import key_values
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.tables import KeyTable
from tagmatch.workloads.numbers import mix
from tagmatch_bench.systems.matcher import (
    ListsOfStrings,
    Plain,
    first_of_equals,
    keys_of_matches,
    list_array,
    rarest_of,
    rows_of,
    unique_lists,
)


class RarestTagDict(ListsOfStrings):
    """A dict from each tag to the sets whose rarest tag it is, which are tested one by one. Exact.

    This is the ranked key method of T. Yan and H. García-Molina, "Index Structures for Selective Dissemination
    of Information Under the Boolean Model", ACM TODS 19(2), 1994, on Python's own types. Simplified: a candidate
    is tested as a whole, by `frozenset.issuperset`, instead of one word after the other.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:  # noqa: ARG002
        rows = rows_of(sets)
        self._clusters: dict[str, list[tuple[frozenset[str], list[int]]]] = defaultdict(list)
        self._keys_of_empty_set: list[int] = []
        for (tags, keys), rarest in zip(rows, rarest_of(tags for tags, _ in rows), strict=True):
            if rarest is None:
                self._keys_of_empty_set = keys
            else:
                self._clusters[rarest].append((tags, keys))

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the stored sets that match, for each query in order."""
        cluster_of = self._clusters.get
        answers = []
        for query in map(frozenset, queries):
            contains = query.issuperset
            keys = self._keys_of_empty_set.copy()
            for cluster in map(cluster_of, query):
                if cluster:
                    for candidate, candidate_keys in cluster:
                        if contains(candidate):
                            keys += candidate_keys
            answers.append(keys)
        return unique_lists(answers) if unique else answers

    def match(self, query: list[str]) -> list[int]:
        """Return the keys of the stored sets that match one query."""
        return self.match_many([query])[0]


_U = np.uint64
_LOW32 = np.uint64(0xFFFFFFFF)
_HIGH32 = np.uint64(0xFFFFFFFF00000000)


class SubsetEnumeration(Plain):
    """A hash table of the stored sets, in which all subsets of a query are looked up. Exact.

    The variant that the TagMatch paper's introduction names: it "looks for the subsets q_j ⊆ q directly in the database
    (e.g., using a hash table)", in time exponential in the query. Subsets are limited to the query's known tags and to
    the largest stored set's size. Simplified: a subset is not left out because none of its supersets is stored.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1, max_subsets: int = 2**22) -> None:
        self._threads = threads
        self._max_subsets = max_subsets
        tags = sets["tags"].combine_chunks()
        self._vocabulary = pc.unique(tags.flatten())
        rows = known_tags(tags, self._vocabulary)
        self._longest = int(rows.lengths().max(initial=0))
        self._filter, self._slots, self._sets, set_of_row = _distinct_sets(rows)
        self._keys = _key_table(set_of_row, key_values(sets["key"], "key"), len(self._sets))

    def prepare(self, queries: pa.ListArray) -> pa.ListArray:
        """Convert to lists of uint32: the numbers of each query's known tags."""
        known = known_tags(queries, self._vocabulary)
        lengths = known.lengths()
        longest = int(lengths.max(initial=0))
        subsets = 0
        for size in range(min(longest, self._longest) + 1):
            subsets += comb(longest, size)
            if subsets > self._max_subsets:
                raise ValueError(
                    f"query {int(np.argmax(lengths))} has {longest} known tags and so more than {self._max_subsets:,} "
                    f"(max_subsets) subsets of up to {self._longest} tags; leave it out or raise max_subsets"
                )
        return list_array(known)

    def match_many(self, queries: pa.ListArray, *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        offsets, tags = queries.offsets.to_numpy(), queries.values.to_numpy()

        def match(first: int, last: int) -> Lists:
            ends = np.zeros(last - first + 1, np.int64)
            stored = (self._filter, self._slots, self._sets.offsets, self._sets.values)
            found = _match(offsets[first : last + 1], tags, self._longest, *stored, ends)
            return Lists(ends, found)

        return keys_of_matches(match, len(queries), self._keys, unique=unique, threads=self._threads)

    def nbytes(self) -> int | None:
        """Bytes of memory."""
        tables = (self._filter, self._slots, self._sets, self._keys, self._vocabulary)
        return sum(int(table.nbytes) for table in tables)


def known_tags(rows: pa.ListArray, vocabulary: pa.Array) -> Lists:
    """Return the place of each tag in a vocabulary, uint32; every row ascending, each place once."""
    numbers = pc.index_in(rows.flatten(), vocabulary)
    row_of_tag = np.repeat(np.arange(len(rows), dtype=np.uint64), pc.list_value_length(rows).to_numpy())
    known = numbers.is_valid().to_numpy(zero_copy_only=False)
    pairs = np.sort((row_of_tag[known] << _U(32)) | numbers.drop_null().to_numpy().astype(np.uint64))
    pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])[: len(pairs)]]
    lengths = np.bincount((pairs >> _U(32)).astype(np.int64), minlength=len(rows))
    return Lists(list_offsets(lengths), (pairs & _LOW32).astype(np.uint32))


def _distinct_sets(rows: Lists) -> tuple[U64Array, U64Array, Lists, I64Array]:
    """Return the hash table's filter and slots, the distinct sets and the number of each row's set."""
    # Words of 64 bits, 16 to 32 bits a set, and two to four slots a set
    filter_words = np.zeros(2 ** (len(rows) // 4).bit_length(), np.uint64)
    slots = np.zeros(2 ** (2 * len(rows)).bit_length(), np.uint64)
    offsets, tags = np.zeros(len(rows) + 1, np.int64), np.empty_like(rows.values)
    set_of_row = np.empty(len(rows), np.int64)
    count = _insert(rows.offsets, rows.values, filter_words, slots, offsets, tags, set_of_row)
    return filter_words, slots, Lists(offsets[: count + 1].copy(), tags[: offsets[count]].copy()), set_of_row


def _key_table(sets: I64Array, keys: U64Array, count: int) -> KeyTable:
    """Return the keys of each of `count` sets, from (set, key) pairs, which may occur more than once."""
    order = np.lexsort((keys, sets))
    sets, keys = sets[order], keys[order]
    new = first_of_equals(sets, keys)
    return KeyTable(Lists(offsets_of(np.bincount(sets[new], minlength=count)), keys[new]))


@inlined
def _filter_bit(set_hash, filter_words):
    """(word, bit) of a set: the bit is 0 only if no set with this hash is stored, as of most subsets of a query."""
    # The filter is small enough to stay in the cache, where the slots are not
    place = set_hash >> _U(32)
    return (place >> _U(6)) & _U(len(filter_words) - 1), place & _U(63)


@kernel
def _find(set_hash, tags, first, count, slots, offsets, stored):
    """`(slot, number)` of the set `tags[first:first + count]`, ascending; the number is -1 when the slot is free."""
    # A set's hash is the sum of its tags' numbers, mixed; a slot is its upper half and the set's number + 1, or 0
    mask = _U(len(slots) - 1)
    place = set_hash & mask
    while slots[place] != _U(0):
        if (slots[place] ^ set_hash) & _HIGH32 == _U(0):
            number = np.int64(slots[place] & _LOW32) - 1
            begin = offsets[number]
            same = offsets[number + 1] - begin == count
            i = 0
            while same and i < count:
                same = stored[begin + i] == tags[first + i]
                i += 1
            if same:
                return place, number
        place = (place + _U(1)) & mask
    return place, -1


@kernel
def _insert(row_offsets, row_tags, filter_words, slots, offsets, tags, set_of_row):
    """Number different sets in the order in which they are first seen, and copy their tags; returns how many."""
    known = 0
    for row in range(len(row_offsets) - 1):
        first, end = row_offsets[row], row_offsets[row + 1]
        set_hash = _U(0)
        for i in range(first, end):
            set_hash += mix(row_tags[i])
        place, number = _find(set_hash, row_tags, first, end - first, slots, offsets, tags)
        if number < 0:
            number = known
            known += 1
            slots[place] = (set_hash & _HIGH32) | _U(known)
            word, bit = _filter_bit(set_hash, filter_words)
            filter_words[word] |= _U(1) << bit
            offsets[known] = offsets[number] + (end - first)
            for i in range(end - first):
                tags[offsets[number] + i] = row_tags[first + i]
        set_of_row[row] = number
    return known


@kernel
def _match(query_offsets, query_tags, longest, filter_words, slots, offsets, tags, ends):
    """Numbers of the stored sets that are subsets of each query, and in `ends` where each query's end."""
    out = np.empty(1024, np.uint32)
    used = 0
    subset = np.empty(longest + 1, np.uint32)
    places = np.empty(longest + 1, np.int64)
    for query in range(len(ends) - 1):
        end = query_offsets[query + 1]
        # Depth first: the subset is extended by the next tag or, if no tag is left or allowed, its last tag replaced.
        at, size, set_hash = np.int64(query_offsets[query]), 0, _U(0)
        while True:
            word, bit = _filter_bit(set_hash, filter_words)
            if (filter_words[word] >> bit) & _U(1) != _U(0):
                number = _find(set_hash, subset, 0, size, slots, offsets, tags)[1]
                if number >= 0:
                    if used == len(out):
                        out = np.concatenate((out, out))
                    out[used] = number
                    used += 1
            while size > 0 and (at == end or size == longest):
                size -= 1
                at = places[size] + 1
                set_hash -= mix(subset[size])
            if at == end or size == longest:
                break
            places[size], subset[size] = at, query_tags[at]
            set_hash += mix(query_tags[at])
            size += 1
            at += 1
        ends[query + 1] = used
    return out[:used]
