"""Stage 2, subset match, for the `rarest` layout: the clusters of the query's own tags, and a bitmap of its ranks.

Most tags are no set's rarest, which a bit says. Rows of small clusters are candidates, all queries' of a block at once:
those whose second-rarest tag the query does not have are turned away by a bit of it. Large clusters are searched one
after the other.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tagmatch.model.arrays import Lists, U8Array, U32Array, bytes_of, pooled
from tagmatch.model.kernels.intrinsics import array_at, on_stack, prefetch, rows_on_stack
from tagmatch.model.kernels.jit import kernel, lent, with_room
from tagmatch.model.kernels.lists import ascending_row
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.model.options import MatchOptions
from tagmatch.model.tables import ClusterTable, Segment
from tagmatch.pipeline.clusters import (
    AT_ONCE,
    NO_RANK,
    NO_RANKS_BIT,
    SHORT_RUN,
    Runs,
    all_known,
    bit_of,
    clusters_of,
    heads_of,
    keys_at,
    rarest_ranks,
    runs_of,
    scan,
    shared_ranks,
    tally,
    turned_away,
    verify_longer,
    walk,
)
from tagmatch.pipeline.entered import entry_of
from tagmatch.pipeline.one import (
    ALL,
    FEW_TAGS,
    LAYOUT,
    RANK_OFFSETS,
    RANKS,
    OneQuery,
    bytes_for,
    has_empty,
    kernels_of,
    live_of,
    look_up_in,
    prepare,
)
from tagmatch.pipeline.segment import Counted, Finder, RowsFound, SegmentMessages
from tagmatch.pipeline.tags import QueryBatch, TagIndex, contains_ranks

_U = np.uint64

#: Clusters of at most this number of rows are small
SCAN_ROWS = 32

# Queries, and tags except for those of one of them, whose cache misses are waited for together
_BLOCK, _BLOCK_TAGS = 128, 1024
#: Clusters of more rows are walked
WALK_ROWS = 4096
# Most bytes of the bitmap of a single query's ranks, which a processor's cache has room for. To set a bit has to wait
# for the bit before it in the same word, so words are short.
_MOST_BYTES = 1 << 19
# More ranks of a query, with a bit each modulo 64, turn hardly any row away
_MANY_RANKS = 32
# A query of more tags is a block: its bits are set once, and turn rows away before these are read
_ALONE = 128
# Rows of small clusters that one query has, for which there is memory at hand
_FEW_PLACES, _EDGES = 256, 2
# Clusters of such a query of more rows are looked at one by one
_FEW_ROWS = 3
# Of a small segment, clusters with at most as many rows are verified at once, the first without a branch before; of
# others those rows whose second-rarest rank the query has
_FEW_DIRECTLY, _NOTED_ROWS = _U(8), _U(4)
# A segment gains nothing by blocks if offsets and second-rarest ranks of its rows have no more bytes, and stay in a
# processor's second cache, and if no cluster has more rows, as some of these might be passed over unread
FEW_BYTES, _FEW_TOGETHER = 1 << 20, 1024
# Of a small segment with more rows, a query asks for the cluster, and for the rows, of tags of queries behind it
_FEW_HEADS, _FAR_AHEAD, _AHEAD = 1 << 15, _U(24), _U(12)
#: Nor do fewer queries gain by another kernel
FEW_QUERIES = 16
# Rows for which there is room at first: these for each query, or, up to the second number, a fourth more than before
_ROWS_A_QUERY, _MOST_ROOM = 16, 1 << 22
# Columns of what there is about the tags of a block that some set has as its rarest; of each place, how many are before
_RANK, _BEFORE, _ROW, _ROW_END = range(4)
_AT_ONCE, _ROWS_AT_ONCE = int(AT_ONCE), int((AT_ONCE + _U(1)) * SHORT_RUN)


@lent
def _clear(bits, ranks, begin, end):
    for at in range(_U(begin), _U(end)):
        bits[bit_of(bits, ranks[at])[0]] = 0
    bits[len(bits) - 1] = 0


@lent
def _mark(bits, ranks, begin, end):
    """Set the bits of ranks; returns whether one but UNKNOWN was set."""
    repeated = _U(0)
    for at in range(_U(begin), _U(end)):
        word, bit = bit_of(bits, ranks[at])
        repeated |= (bits[word] >> bit) & _U(ranks[at] != UNKNOWN)
        bits[word] |= _U(1) << bit
    bits[len(bits) - 1] |= NO_RANKS_BIT
    return repeated & _U(1)


@lent
def _rarest_tags(block, rarest, tags):
    """Write the ranks that some set has as its rarest, and for each place of a block how many are before it."""
    (query_offsets, query_ranks), first, last, _, _ = block
    base, used, behind = _U(query_offsets[first]), _U(0), _U(8 * len(rarest) - 1)
    count = _U(query_offsets[last]) - base
    for i in range(count):
        rank = min(_U(query_ranks[base + i]), behind)  # UNKNOWN is behind them all
        tags[i, _BEFORE] = used
        tags[used, _RANK] = rank
        used += _U(rarest[rank >> _U(3)] >> (rank & _U(7))) & _U(1)
    tags[count, _BEFORE] = used
    return used


@lent
def _mark_alone(block, rarest, tags, bits, exact):
    """As `_rarest_tags`, of one query, whose bits are set; each rank once if there is a bit for each."""
    (query_offsets, query_ranks), first, last, _, _ = block
    base, used, behind = _U(query_offsets[first]), _U(0), _U(8 * len(rarest) - 1)
    count, keep = _U(query_offsets[last]) - base, _U(not exact)
    for i in range(count):
        rank = min(_U(query_ranks[base + i]), behind)
        tags[used, _RANK] = rank
        word, bit = bit_of(bits, query_ranks[base + i])
        is_new = keep | ~(_U(bits[word]) >> bit)
        bits[word] |= _U(1) << bit
        used += (_U(rarest[rank >> _U(3)]) >> (rank & _U(7))) & is_new & _U(1)
    bits[len(bits) - 1] |= NO_RANKS_BIT
    tags[0, _BEFORE], tags[count, _BEFORE] = 0, used
    return used


@lent
def _candidates(block, tags, seconds, bits, places, ends):
    """Write rows of small clusters whose second-rarest rank the queries may have, and how many others they have.

    Query `i` has the rows up to `ends[i + 1, 0]`, and `ends[i + 1, 1]` rows in clusters that are not small.
    """
    (query_offsets, query_ranks), first, last, alone, few = block
    base, used = _U(query_offsets[first]), _U(0)
    for query in range(first, last):
        # One bit for each rank modulo 64: most rows are turned away by it. Sets of one tag must pass.
        query_bits, others, begun = _U(1) << (_U(NO_RANK) & _U(63)), _U(0), used
        begin, end = _U(query_offsets[query]), _U(query_offsets[query + 1])
        if alone:
            query_bits = ~_U(0)
        else:
            for at in range(begin, end):
                query_bits |= _U(1) << (_U(query_ranks[at]) & _U(63))
        for i in range(_U(tags[begin - base, _BEFORE]), _U(tags[end - base, _BEFORE])):
            row, row_end = _U(tags[i, _ROW]), _U(tags[i, _ROW_END])
            if row_end - row > few:
                others += row_end - row
                continue
            places[used, 0] = row
            used += (query_bits >> (_U(seconds[row]) & _U(63))) & _U(1)
            for candidate in range(row + _U(1), row_end):
                places[used, 0] = candidate
                used += (query_bits >> (_U(seconds[candidate]) & _U(63))) & _U(1)
        many = used > begun and not alone and end - begin > _U(_MANY_RANKS)
        if many:
            _mark(bits, query_ranks, begin, end)
        if many or alone:
            candidates, used = used, begun
            for i in range(begun, candidates):
                row = places[i, 0]
                word, bit = bit_of(bits, seconds[row])
                places[used, 0] = row
                used += (_U(bits[word]) >> bit) & _U(1)
        if many:
            _clear(bits, query_ranks, begin, end)
        ends[query - first + 1, 0], ends[query - first + 1, 1] = used, others
    return used


@lent
def _once(bits, tags, first, last):
    """Leave each of some ranks, whose bits are set, its rows once."""
    for i in range(first, last):
        word, bit = bit_of(bits, tags[i, _RANK])
        if (bits[word] >> bit) & _U(1):
            bits[word] &= ~(_U(1) << bit)
        else:
            tags[i, _ROW_END] = tags[i, _ROW]
    for i in range(first, last):
        word, bit = bit_of(bits, tags[i, _RANK])
        bits[word] |= _U(1) << bit


@kernel
def _verify(block, tags, candidates, known, limits, bits, out, ends):
    """Append the rows that each query of a block contains; returns them, and how many were read."""
    ((query_offsets, query_ranks), first, last, alone, few), (places, row_ends) = block, candidates
    ((_, ranks, _, first_rows), _, _), (has_empty, most, walk_rows) = known, limits
    base, exact, read, used = query_offsets[first], 8 * len(bits) >= len(first_rows), 0, ends[first]
    for query in range(first, last):
        begin, end = query_offsets[query], query_offsets[query + 1]
        candidate, last_candidate = row_ends[query - first, 0], row_ends[query - first + 1, 0]
        others = row_ends[query - first + 1, 1]
        room = last_candidate - candidate + others + 1
        if used + room >= len(out):  # seldom, and a call counts references, which takes longer than most queries
            out = with_room(out, used, room + 1)
        if has_empty:
            out[used] = 0
            used += 1
        if room > 1:
            found = used
            repeated = not alone and _mark(bits, query_ranks, begin, end) != _U(0) and exact
            for i in range(candidate, last_candidate):
                place, stop = _U(places[i, 1]), _U(places[i, 2])
                out[used] = places[i, 0]
                contained = all_known(bits, ranks, place, stop)
                if not exact and contained:
                    contained = _U(contains_ranks(query_ranks, begin, end, ranks, place, stop))
                used += np.int64(contained)
            read += last_candidate - candidate
            if others:
                first_tag, last_tag = _U(tags[begin - base, _BEFORE]), _U(tags[end - base, _BEFORE])
                if repeated:
                    _once(bits, tags, first_tag, last_tag)
                of_query = query_ranks, begin, end  # here, as to make it counts references
                for i in range(first_tag, last_tag):
                    row, row_end = np.int64(tags[i, _ROW]), np.int64(tags[i, _ROW_END])
                    if row_end - row > np.int64(few) and read <= most:
                        if row_end - row > walk_rows:
                            used, more = walk(bits, of_query, known, (row, row_end), most - read, out, used)
                        else:
                            used, more = scan(bits, of_query, known, (row, row_end), out, used)
                        read += more
            if not alone:
                _clear(bits, query_ranks, begin, end)
            if repeated:
                used = ascending_row(out, found, used, found)
        ends[query + 1] = used
    return out, read


@kernel
def _count(block, tags, candidates, known, limits, bits, rows, counts):
    """Count the keys of rows that each query of a block contains, or some of them, if they are as many as is asked for.

    Returns how many rows these are, with `rows` more, and how many were read.
    """
    ((query_offsets, query_ranks), first, last, alone, few), (places, row_ends) = block, candidates
    ((_, ranks, _, _), _, _), (has_empty, most, weights, runs) = known, limits
    base, read = _U(query_offsets[first]), 0
    room = on_stack(np.uint32, _AT_ONCE), on_stack(np.uint32, _ROWS_AT_ONCE), on_stack(np.uint32, _ROWS_AT_ONCE)
    for query in range(first, last):
        begin, end = _U(query_offsets[query]), _U(query_offsets[query + 1])
        candidate, last_candidate = row_ends[query - first, 0], row_ends[query - first + 1, 0]
        others, found, keys = row_ends[query - first + 1, 1], _U(0), _U(0)
        if has_empty:
            keys = keys_at(weights, 0)
            found = _U(keys > _U(0))
        if keys < most and (last_candidate > candidate or others):
            repeated = not alone and _mark(bits, query_ranks, begin, end) != _U(0)
            first_tag, last_tag = _U(tags[begin - base, _BEFORE]), _U(tags[end - base, _BEFORE])
            if repeated:  # candidates of a tag are there as often as the tag
                _once(bits, tags, first_tag, last_tag)
                last_candidate, few = candidate, _U(0)
            for i in range(candidate, last_candidate):
                read += 1
                if all_known(bits, ranks, _U(places[i, 1]), _U(places[i, 2])):
                    own = keys_at(weights, _U(places[i, 0]))
                    keys += own
                    found += _U(own > _U(0))
                    if keys >= most:
                        break
            if others or repeated:
                for i in range(first_tag, last_tag):
                    rank, row, row_end = tags[i, _RANK], _U(tags[i, _ROW]), _U(tags[i, _ROW_END])
                    if row_end - row > few and keys < most:
                        ends = runs[0][rank], runs[0][rank + np.uint32(1)]
                        own, own_rows, more = tally(bits, known, runs, ends, weights, most - keys, room)
                        keys += own
                        found += own_rows
                        read += more
            if not alone:
                _clear(bits, query_ranks, begin, end)
            few = block[4]
        rows += np.int64(found)
        counts[query + 1] = keys
    return rows, read


@cache
def _in_blocks(of_block: Any, is_counted: bool) -> Any:
    """What finds the sets that queries contain, block by block of these, by what does so for a block."""

    @kernel
    def find(queries, known, limits, bits, ends, out):
        """What is found, and how many rows were read, except the empty set's.

        By `_verify`, the rows that each query contains, the empty set's first, in `out` or in larger memory; by
        `_count`, how many these are, and `ends` become counts of keys.

        The limits say whether there is an empty set, after how many rows, or keys, it goes no further, and of how many
        rows clusters are not walked, or what each row counts for. Queries have their ranks in any order, also several
        times, and UNKNOWN; if `bits` has not one for each rank, ascending and each once.
        """
        (query_offsets, query_ranks), ((offsets, ranks, seconds, first_rows), _, rarest) = queries, known
        longest, count, size = 0, len(ends) - 1, min(_BLOCK, len(ends) - 1)
        for query in range(count):
            longest = max(longest, query_offsets[query + 1] - query_offsets[query])
        longest = max(longest, min(_BLOCK_TAGS, query_offsets[count] - query_offsets[0]))
        # Few arrays, as to make one takes 60 ns
        tags, places = rows_on_stack(np.uint32, FEW_TAGS, 4), rows_on_stack(np.int64, _FEW_PLACES, 3)
        row_ends = rows_on_stack(np.int64, 2, 2)
        if count > 1 or longest >= FEW_TAGS:
            tags, places = np.empty((longest + 1, 4), np.uint32), np.empty((16 * size, 3), np.int64)
            row_ends = np.empty((size + 1, 2), np.int64)
        row_ends[0, 0] = row_ends[0, 1] = 0
        exact, total, touched = 8 * len(bits) >= len(first_rows), 0, np.uint32(0)
        # Each miss of the cache gets its own loop, without a branch on the data: the processor then waits for
        # many misses at once instead of for one after the other. Branches come in the loop after it, when the data is
        # at hand.
        last = 0
        while last < count:
            first, last = last, last + 1
            begin, room = query_offsets[first], 0
            alone = query_offsets[last] - begin > _ALONE
            while not alone and last < min(count, first + _BLOCK) and query_offsets[last + 1] - begin <= _BLOCK_TAGS:
                last += 1
            few = _U(_FEW_ROWS if alone else SCAN_ROWS)
            if is_counted and first > 0 and limits[1] == _U(1):
                # If most queries have an answer, the first one is found sooner than all candidates
                answered = 0
                for i in range(max(first - _BLOCK, 0), first):
                    if ends[i + 1] > 0:
                        answered += 1
                if 2 * answered > min(first, _BLOCK):
                    few = _U(0)
            block = queries, first, last, alone, few
            used = _mark_alone(block, rarest, tags, bits, exact) if alone else _rarest_tags(block, rarest, tags)
            for i in range(used):
                rank = tags[i, _RANK]
                tags[i, _ROW], tags[i, _ROW_END] = first_rows[rank], first_rows[rank + np.uint32(1)]
                room += min(tags[i, _ROW_END] - tags[i, _ROW], np.uint32(SCAN_ROWS))
            for i in range(used):
                touched ^= seconds[tags[i, _ROW]]
            if room >= len(places):
                places = np.empty((2 * room + 1, 3), np.int64)
            candidates = _candidates(block, tags, seconds, bits, places, row_ends)
            for i in range(candidates):
                row = _U(places[i, 0])
                places[i, 1], places[i, 2] = offsets[row] + 1, offsets[row + _U(1)]
            for i in range(candidates):
                touched ^= ranks[places[i, 1] - 1]
            out, read = of_block(block, tags, (places, row_ends), known, limits, bits, out, ends)
            if alone:
                _clear(bits, query_ranks, begin, query_offsets[last])
            total += read
        return out, total, touched

    return find


_find_sets, _count_sets = _in_blocks(_verify, False), _in_blocks(_count, True)


@kernel
def _find_directly(queries, known, limits, stamps, ends, out):
    """As `_find_sets`, of a small segment, one query after the other.

    The limits say whether there is an empty set, and how many rows the largest cluster has. `stamps` has a byte for
    each rank, one for UNKNOWN and one for the last number that was used: each query has another one, with which it
    stamps its ranks.
    """
    (query_offsets, query_ranks), (has_empty, largest), (clusters, heads, rarest) = queries, limits, known
    first_rows = clusters[3]
    longest, count, behind = 0, len(ends) - 1, _U(len(first_rows) - 1)
    for query in range(count):
        longest = max(longest, query_offsets[query + 1] - query_offsets[query])
    own, used, read, number = np.empty(longest + 1, np.uint32), _U(0), _U(0), _U(stamps[behind + _U(1)])
    far, end = len(heads) > _FEW_HEADS, _U(max(len(query_ranks), 1) - 1)
    for query in range(_U(count)):
        number += _U(1)
        if number > _U(255):
            stamps[:] = 0
            number = _U(1)
        stamps[behind] = number
        tags, large = _U(0), _U(0)
        if far:
            for at in range(_U(query_offsets[query]), _U(query_offsets[query + _U(1)])):
                prefetch(first_rows, min(_U(query_ranks[min(at + _FAR_AHEAD, end)]), behind))
                prefetch(heads, _U(first_rows[min(_U(query_ranks[min(at + _AHEAD, end)]), behind)]))
        for at in range(_U(query_offsets[query]), _U(query_offsets[query + _U(1)])):
            rank = min(_U(query_ranks[at]), behind)
            own[tags] = rank
            tags += (_U(rarest[rank >> _U(3)]) >> (rank & _U(7))) & _U(stamps[rank] != number)
            stamps[rank] = number
        # Seldom; to ask for each cluster takes longer than to look at most of them. Candidates, and rows that wait
        room = min(tags * _U(largest), _U(len(heads))) + _NOTED_ROWS + _U(1)
        if used + _U(2) * room > _U(len(out)):
            out = with_room(out, np.int64(used), np.int64(_U(2) * room))
        if has_empty:
            out[used] = 0
            used += _U(1)
        noted, asked, waiting = used, (stamps, number), used + room
        found = used, waiting, read
        for i in range(tags):
            row, row_end = _U(first_rows[own[i]]), _U(first_rows[own[i] + np.uint32(1)])
            if row_end - row > _FEW_DIRECTLY:
                own[large] = own[i]
                large += _U(1)
                continue
            for place in range(_NOTED_ROWS):
                out[noted + place] = row + place
            for place in range(_NOTED_ROWS, row_end - row):
                out[noted + place] = row + place
            noted += row_end - row
        for i in range(used, noted):
            found = turned_away(asked, heads, _U(out[i]), (out, *found))
        for i in range(large):
            for candidate in range(_U(first_rows[own[i]]), _U(first_rows[own[i] + np.uint32(1)])):
                found = turned_away(asked, heads, candidate, (out, *found))
        used, read = verify_longer(asked, clusters, out, (waiting, found[1]), found[0]), found[2]
        ends[query + _U(1)] = used
    stamps[behind + _U(1)] = number
    return out[: np.int64(used)], np.int64(read)


_SECONDS, _FIRST_ROWS, _SHARED, _RAREST = range(LAYOUT, LAYOUT + 4)


@lent
def _bytes_for(ranks, tags):
    """Bytes of a bit for each rank, or of fewer for a query of few tags: a power of two."""
    most = min(bytes_for(tags), _MOST_BYTES)
    size = 1
    while 8 * size < ranks and 2 * size <= most:
        size *= 2
    return size


@kernel
def _sets_of(tables, ranks, most, types, bits, out):
    """Sets that one query contains, and how many candidates were turned away; -1 for more than `most`."""
    (_, rank_offset, _, _), first_row = types
    seconds = array_at(tables, _SECONDS, np.uint32)
    offsets, values = array_at(tables, RANK_OFFSETS, rank_offset), array_at(tables, RANKS, np.uint32)
    clusters = (offsets, values, seconds, array_at(tables, _FIRST_ROWS, first_row))
    empty, ends, edges = has_empty(tables), on_stack(np.int64, _EDGES), on_stack(np.int64, _EDGES)
    if len(seconds) == 0:
        return out[:0], 0
    shared, rarest = array_at(tables, _SHARED, np.uint8), array_at(tables, _RAREST, np.uint8)
    ends[0], edges[0], edges[1] = 0, 0, len(ranks)
    limits = empty != 0, most, WALK_ROWS
    sets, read, _ = _find_sets((edges, ranks), (clusters, shared, rarest), limits, bits, ends, out)
    sets = sets[: ends[1]]
    return sets, read - len(sets) + empty if read <= most else -1


@cache
def _in_segment(first_row: Any) -> Any:
    """What finds the sets of a segment that one query contains; `first_row` is the type of its clusters' edges."""

    @kernel
    def in_segment(tables, tags, _, room, most, dtypes):
        ranks, known = room.ranks[: len(tags.offsets) - 1], len(array_at(tables, _FIRST_ROWS, first_row))
        look_up_in(tables, tags, dtypes[0], ranks)
        bits = room.bits[: _bytes_for(known, len(ranks))]
        for i in range(len(bits)):
            bits[i] = 0
        if 8 * len(bits) < known:
            ranks = ranks[: ascending_row(ranks, 0, len(ranks), 0)]
        sets, rejected = _sets_of(tables, ranks, most, (dtypes, first_row), bits, room.sets)
        return live_of(tables, sets), rejected

    return in_segment


def _last(unused: list[U8Array], size: int) -> U8Array:
    """An array that no other thread uses: one of these, or zeros."""
    try:
        return unused.pop()
    except IndexError:
        return np.zeros(size, np.uint8)


class RarestSubsetMatch(Finder):
    """Subset match over a snapshot in the `rarest` layout. Always exact: tags are compared, not signatures."""

    def __init__(self, segment: Segment, *, threads: int = 1) -> None:
        assert isinstance(segment.partitions, ClusterTable)
        self._clusters = clusters_of(segment, threads=threads)
        self._shared = shared_ranks(self._clusters, threads=threads)
        self._rarest = rarest_ranks(self._clusters)
        self._has_empty = segment.tagsets.has_empty_set
        offsets, _, seconds, first_rows = self._clusters
        few_bytes = offsets.nbytes + seconds.nbytes + first_rows.nbytes <= FEW_BYTES
        self._largest = int(np.diff(first_rows).max(initial=0))
        self._heads = heads_of(self._clusters) if few_bytes and self._largest <= _FEW_TOGETHER else None
        self._rows_a_query = 0.0  # of the last call
        # Bitmaps, which are zeros, and stamps that no thread uses now
        self._bitmaps: list[U8Array] = []
        self._stamps: list[U8Array] = []
        self._runs: Runs | None = None

    @classmethod
    def of(cls, segment: Segment, options: MatchOptions) -> RarestSubsetMatch:
        """The subset match of a segment, with these options."""
        return cls(segment, threads=options.threads)

    def __len__(self) -> int:
        return len(self._shared)

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        runs = () if self._runs is None else self._runs
        return bytes_of(self._clusters.seconds, self._shared, self._rarest, self._heads, *runs)

    def one_query(self, segment: Segment, tags: TagIndex) -> OneQuery:
        """As `Finder` says."""
        prepared, dtypes = prepare(segment, tags, [*self._clusters[2:], self._shared, self._rarest], [])
        first_row: Any = self._clusters.first_rows.dtype.type
        sets_in = _in_segment(first_row)
        return OneQuery([prepared], kernels_of(sets_in, dtypes, entry=entry_of(sets_in, dtypes)))

    def prepare(self, messages: SegmentMessages) -> QueryBatch:
        """As `Finder` says; a bitmap needs no order."""
        return messages.unordered

    def find(self, prepared: QueryBatch) -> RowsFound:
        """As `Finder` says."""
        ends = np.zeros(len(prepared) + 1, np.int64)
        if len(self) == 0 or (len(prepared.ranks) == 0 and not self._has_empty):
            return RowsFound(Lists(ends, np.zeros(0, np.uint32)), 0)
        clusters, rarest = tuple(self._clusters), self._rarest  # a named tuple's type takes longer to find
        queries, ranks = (prepared.offsets, prepared.ranks), len(self._clusters.first_rows)
        out = self._room(len(prepared))
        if self._heads is not None and len(prepared) >= FEW_QUERIES:
            stamps, limits = _last(self._stamps, ranks + 1), (self._has_empty, self._largest)
            rows, read = _find_directly(queries, (clusters, self._heads, rarest), limits, stamps, ends, out)
            self._stamps.append(stamps)
        else:
            known = clusters, self._shared, rarest
            bits = _last(self._bitmaps, 1 << (ranks >> 3).bit_length())
            rows, read, _ = _find_sets(queries, known, (self._has_empty, ALL, WALK_ROWS), bits, ends, out)
            rows = rows[: ends[-1]]
            self._bitmaps.append(bits)
        self._rows_a_query = len(rows) / len(prepared)
        return RowsFound(Lists(ends, rows), int(read) + self._has_empty * len(prepared) - len(rows))

    def count(self, prepared: QueryBatch, segment: Segment, most: int) -> Counted:
        """As `Finder` says."""
        counts, keys = np.zeros(len(prepared) + 1, np.int64), segment.keys.keys
        if len(self) == 0 or (len(prepared.ranks) == 0 and not self._has_empty):
            return Counted(counts[1:])
        known = tuple(self._clusters), self._shared, self._rarest
        queries, ranks = (prepared.offsets, prepared.ranks), len(self._clusters.first_rows)
        bits = _last(self._bitmaps, 1 << (ranks >> 3).bit_length())
        weights = keys.offsets, len(keys.values) == len(keys), segment.deleted
        limits = self._has_empty, np.uint64(most), weights, tuple(self._all_runs(keys))
        found, read, _ = _count_sets(queries, known, limits, bits, counts, 0)
        self._bitmaps.append(bits)
        return Counted(counts[1:], int(found), int(read) + self._has_empty * len(prepared) - int(found))

    def _all_runs(self, keys: Lists) -> Runs:
        """The runs of all clusters, made when keys, which are always the same, are first counted."""
        if self._runs is None:
            self._runs = runs_of(self._clusters, keys)
        return self._runs

    def _room(self, queries: int) -> U32Array:
        """Room for the rows of all queries; kernels that need more copy them."""
        expected = min(int(1.25 * self._rows_a_query * queries), _MOST_ROOM)
        return pooled(max(expected, _ROWS_A_QUERY * queries) + _ROWS_A_QUERY, np.uint32)
