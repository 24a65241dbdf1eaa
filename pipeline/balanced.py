"""Stage 2, subset match, for the `balanced` layout: Algorithms 2 and 3 of the paper on signatures.

Where the paper filters a batch of queries by the common prefix of a block of sets (Algorithm 4), this filters by all
bits that the block's sets have in common, which include the prefix's one-bits, and does so on two levels of blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tagmatch.model.arrays import I64Array, IntArray, Lists, U8Array, U32Array, U64Array, UIntArray, frozen, offsets_of
from tagmatch.model.kernels.hashing import SIGNATURE_BITS, SIGNATURE_WORDS, add_tag, contains, signatures_of
from tagmatch.model.kernels.intrinsics import array_at
from tagmatch.model.kernels.jit import apart, inlined, kernel
from tagmatch.model.options import MatchOptions
from tagmatch.model.parallel import even_ranges, run_rows
from tagmatch.model.tables import PartitionTable, Segment, is_deleted
from tagmatch.pipeline.one import (
    LAYOUT,
    LAYOUT_SCALAR,
    RANK_OFFSETS,
    RANKS,
    OneQuery,
    deleted_in,
    has_empty,
    kernels_of,
    live_of,
    prepare,
    ranks_of,
    scalar,
)
from tagmatch.pipeline.segment import Batches, Counted, Found, PartitionFinder, RowsFound
from tagmatch.pipeline.tags import QueryBatch, TagIndex, contains_ranks

_U = np.uint64


@kernel
def _common_bits(words, first_rows, first_blocks, block_rows, masks, first, last):
    for partition in range(first, last):
        for block in range(first_blocks[partition], first_blocks[partition + 1]):
            begin = first_rows[partition] + (block - first_blocks[partition]) * block_rows
            end = min(begin + block_rows, first_rows[partition + 1])
            for w in range(SIGNATURE_WORDS):
                masks[block, w] = ~_U(0)
            for row in range(begin, end):
                masks[block, 0] &= words[0][row]
                masks[block, 1] &= words[1][row]
                masks[block, 2] &= words[2][row]


class Blocks:
    """Partitions cut into blocks of rows, with the bits that all sets of a block have."""

    def __init__(self, words: tuple[U64Array, ...], first_rows: I64Array, rows: int, *, threads: int = 1) -> None:
        self._first_rows, self._rows = first_rows, rows
        self.firsts: I64Array = offsets_of(-(-np.diff(first_rows) // rows))
        self.masks: U64Array = np.empty((int(self.firsts[-1]), SIGNATURE_WORDS), np.uint64)
        run_rows(
            lambda first, last: _common_bits(words, first_rows, self.firsts, rows, self.masks, first, last),
            even_ranges(len(first_rows) - 1, threads),
            threads,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.firsts.nbytes + self.masks.nbytes

    def first_rows(self) -> I64Array:
        """First row of each block, and the end of the last."""
        counts = np.diff(self.firsts)
        numbers = np.arange(len(self.masks)) - np.repeat(self.firsts[:-1], counts)
        return np.append(np.repeat(self._first_rows[:-1], counts) + self._rows * numbers, self._first_rows[-1])


def signature_words(segment: Segment) -> tuple[U64Array, ...]:
    """The three words of all signatures, a column each."""
    signatures = segment.tagsets.signatures
    assert signatures is not None
    return tuple(frozen(np.ascontiguousarray(signatures[:, w])) for w in range(SIGNATURE_WORDS))


@inlined
def _leftmost_bit(signature):
    for bit in range(SIGNATURE_BITS):
        if (signature[bit >> 6] >> _U(63 - (bit & 63))) & _U(1) != _U(0):
            return bit
    return SIGNATURE_BITS


@kernel
def _leftmost_bits(masks, out):
    for i in range(len(masks)):
        out[i] = _leftmost_bit(masks[i])


@kernel
def relevant_to(query, first_masks, masks, partitions, out):
    """Algorithm 2: write the partitions in which there may be sets that a query contains; returns how many."""
    found = 0
    for bit in range(SIGNATURE_BITS):
        if (query[bit >> 6] >> _U(63 - (bit & 63))) & _U(1) == _U(0):
            continue
        for m in range(first_masks[bit], first_masks[bit + 1]):
            if contains(query, masks[m]):
                out[found] = partitions[m]
                found += 1
    return found


@kernel
def _relevant(queries, first_masks, masks, partitions, counts, places, out):
    """Count each partition's queries in `counts`; with `places`, write them to `out` instead."""
    relevant = np.empty(len(masks), np.int64)
    for i in range(len(queries)):
        for partition in relevant[: relevant_to(queries[i], first_masks, masks, partitions, relevant)]:
            if len(places):
                out[places[partition]] = i
                places[partition] += 1
            else:
                counts[partition] += 1


class PartitionIndex:
    """The partition table as 192 vectors of masks, by the mask's leftmost one-bit (§3.2)."""

    def __init__(self, table: PartitionTable) -> None:
        leftmost = np.empty(len(table), np.int64)
        _leftmost_bits(table.masks, leftmost)
        self.partitions: I64Array = np.argsort(leftmost, kind="stable")
        self.masks: U64Array = table.masks[self.partitions]
        self.first_masks: I64Array = offsets_of(np.bincount(leftmost, minlength=SIGNATURE_BITS))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.partitions.nbytes + self.masks.nbytes + self.first_masks.nbytes

    def route(self, queries: QueryBatch, hashes: U64Array) -> Batches:
        """Queries, with a batch for each partition in which there may be sets that they contain."""
        signatures = signatures_of(Lists(queries.offsets, queries.ranks), hashes)
        return Batches(queries, signatures, np.arange(len(self.masks)), *self.relevant(signatures))

    def relevant(self, signatures: U64Array) -> tuple[I64Array, I64Array]:
        """Queries to be matched within each partition, as list offsets and query numbers."""
        counts = np.zeros(len(self.masks), np.int64)
        none = np.empty(0, np.int64)
        tables = (signatures, self.first_masks, self.masks, self.partitions)
        _relevant(*tables, counts, none, none)
        offsets = offsets_of(counts)
        queued = np.empty(int(offsets[-1]), np.int64)
        if len(queued):
            _relevant(*tables, counts, offsets[:-1].copy(), queued)
        return offsets, queued


# Rows in a block, and blocks in a group of blocks
_BLOCK_ROWS = 32
_GROUP_BLOCKS = 32


@kernel
def _filter(small, queries, candidates, count, passed):
    """Write to `passed` those candidates whose query contains the bits `small`; returns how many."""
    a, b, c = small[0], small[1], small[2]
    left = 0
    for i in range(count):
        q = candidates[i]
        passed[left] = q
        left += ((a & ~queries[q, 0]) | (b & ~queries[q, 1]) | (c & ~queries[q, 2])) == _U(0)
    return left


@inlined
def _count_contained(words, begin, end, query):
    """How many of the sets from `begin` to `end` have only bits of the query: Algorithm 3's check.

    Without a branch, on words that stand together, at unsigned places (which need no test for a negative one): so the
    compiler checks several sets with one instruction.
    """
    first, second, third = words
    a, b, c = ~query[0], ~query[1], ~query[2]
    count = _U(0)
    for row in range(_U(begin), _U(end)):
        count += _U(((first[row] & a) | (second[row] & b) | (third[row] & c)) == _U(0))
    return count


class _Asked(NamedTuple):
    """Batches (see `Batches`), and their queries."""

    signatures: U64Array
    offsets: I64Array  # See `QueryBatch`
    ranks: U32Array
    partitions: I64Array
    batch_offsets: I64Array
    queued: I64Array
    answered: U8Array  # Of each query, whether it has a row that is not deleted, and needs no more; empty: all need all
    deleted: U8Array  # See `Deletions`


class _Known(NamedTuple):
    """The sets of a segment in partitions, and these in blocks and in groups of blocks."""

    words: tuple[U64Array, ...]  # See `signature_words`
    offsets: IntArray | UIntArray
    ranks: U32Array
    first_rows: I64Array
    first_blocks: I64Array  # See `Blocks`
    first_groups: I64Array
    of_blocks: U64Array
    of_groups: U64Array


@kernel
def _match_batches(asked, known, batch_size, exact):
    """Algorithm 3 on every batch, or part of it of `batch_size`; returns matching (query, set id) pairs."""
    query_signatures, query_offsets, query_ranks, partitions, batch_offsets, queued, answered, deleted = asked
    words, offsets, ranks, first_rows, first_blocks, first_groups, of_blocks, of_groups = known
    found_query = np.empty(1024, np.uint32)
    found_set = np.empty(1024, np.uint32)
    used = 0
    rejected = 0
    batch, numbers = np.empty((batch_size, SIGNATURE_WORDS), np.uint64), np.empty(batch_size, np.int64)
    one_is_enough = len(answered) > 0
    everyone = np.arange(batch_size)
    in_group = np.empty(batch_size + 1, np.int64)
    in_block = np.empty(batch_size + 1, np.int64)
    for b in range(len(partitions)):
        partition = partitions[b]
        for start in range(batch_offsets[b], batch_offsets[b + 1], batch_size):
            size = 0
            for query in queued[start : min(start + batch_size, batch_offsets[b + 1])]:
                if not (one_is_enough and answered[query]):
                    batch[size], numbers[size] = query_signatures[query], query
                    size += 1
            first_block, last_block = first_blocks[partition], first_blocks[partition + 1]
            for group in range(first_groups[partition], first_groups[partition + 1]):
                group_size = _filter(of_groups[group], batch, everyone, size, in_group)
                if group_size == 0:
                    continue
                group_block = first_block + (group - first_groups[partition]) * _GROUP_BLOCKS
                for block in range(group_block, min(group_block + _GROUP_BLOCKS, last_block)):
                    block_size = _filter(of_blocks[block], batch, in_group, group_size, in_block)
                    if block_size == 0:
                        continue
                    begin = first_rows[partition] + (block - first_block) * _BLOCK_ROWS
                    end = min(begin + _BLOCK_ROWS, first_rows[partition + 1])
                    for i in range(block_size):
                        query_signature, query = batch[in_block[i]], numbers[in_block[i]]
                        if one_is_enough and answered[query]:
                            continue
                        if _count_contained(words, begin, end, query_signature) == 0:
                            continue
                        for row in range(begin, end):
                            if _count_contained(words, row, row + 1, query_signature) == 0:
                                continue
                            if exact and not contains_ranks(
                                query_ranks, query_offsets[query], query_offsets[query + 1],
                                ranks, offsets[row], offsets[row + 1],
                            ):  # fmt: skip
                                rejected += 1
                                continue
                            if one_is_enough:
                                if is_deleted(deleted, row):
                                    continue
                                answered[query] = 1
                            if used == len(found_query):
                                found_query = np.concatenate((found_query, found_query))
                                found_set = np.concatenate((found_set, found_set))
                            found_query[used], found_set[used] = query, row
                            used += 1
                            if one_is_enough:
                                break
    return found_query[:used], found_set[:used], rejected


@kernel
def _by_query(found_query, found_set, has_empty, ends, out):
    """Set ids in query order, each query's ascending by partition; the empty set's first, if it is stored."""
    for query in found_query:
        ends[query + 1] += 1
    for query in range(len(ends) - 1):
        ends[query + 1] += ends[query] + has_empty
    places = ends[:-1].copy()
    if has_empty:
        for query in range(len(places)):
            out[places[query]] = 0
            places[query] += 1
    for i in range(len(found_query)):
        query = found_query[i]
        out[places[query]] = found_set[i]
        places[query] += 1


_HASHES, _FIRST_MASKS, _MASKS, _PARTITIONS, _WORDS = range(LAYOUT, LAYOUT + 5)
_FIRST_ROWS, _FIRST_BLOCKS, _FIRST_GROUPS, _OF_BLOCKS, _OF_GROUPS = range(_WORDS + 3, _WORDS + 8)
_EXACT = LAYOUT_SCALAR


@kernel
def _three_words(tables, place):
    return array_at(tables, place, np.uint64).reshape((-1, SIGNATURE_WORDS))


@kernel
def _sets_of(tables, ranks, rank_offset):
    """Sets that one query contains, and how many candidates were turned away."""
    hashes, masks = array_at(tables, _HASHES, np.uint64), _three_words(tables, _MASKS)
    signature = np.zeros((1, SIGNATURE_WORDS), np.uint64)
    for rank in ranks:
        add_tag(hashes[rank], signature[0])
    partitions = np.empty(len(masks), np.int64)
    first_masks, by_mask = array_at(tables, _FIRST_MASKS, np.int64), array_at(tables, _PARTITIONS, np.int64)
    partitions = partitions[: relevant_to(signature[0], first_masks, masks, by_mask, partitions)]
    words = (
        array_at(tables, _WORDS, np.uint64),
        array_at(tables, _WORDS + 1, np.uint64),
        array_at(tables, _WORDS + 2, np.uint64),
    )
    asked = _Asked(
        signature, np.array([0, len(ranks)]), ranks, partitions, np.arange(len(partitions) + 1),
        np.zeros(len(partitions), np.int64), np.zeros(0, np.uint8), deleted_in(tables),
    )  # fmt: skip
    known = _Known(
        words, array_at(tables, RANK_OFFSETS, rank_offset), array_at(tables, RANKS, np.uint32),
        array_at(tables, _FIRST_ROWS, np.int64), array_at(tables, _FIRST_BLOCKS, np.int64),
        array_at(tables, _FIRST_GROUPS, np.int64), _three_words(tables, _OF_BLOCKS), _three_words(tables, _OF_GROUPS),
    )  # fmt: skip
    _, found, rejected = _match_batches(asked, known, 1, scalar(tables, _EXACT) != 0)
    empty = has_empty(tables)
    sets = np.zeros(empty + len(found), np.uint32)
    sets[empty:] = found
    return sets, rejected


@apart
def _in_segment(tables, tags, _, __, most, dtypes):  # noqa: ARG001 - as `kernels_of` says
    """Sets of a segment that one query contains and that are not deleted; the rest (see `_sets_of`)."""
    tag_offset, rank_offset, _, _ = dtypes
    sets, rejected = _sets_of(tables, ranks_of(tables, tags, tag_offset), rank_offset)
    return live_of(tables, sets), rejected


def grouped_by_query(found: Found, queries: int, has_empty: bool) -> RowsFound:
    """What was found in all partitions, and the empty set, if it is stored, as lists of each query's sets."""
    ends = np.zeros(queries + 1, np.int64)
    out = np.empty(len(found.sets) + has_empty * queries, np.uint32)
    _by_query(found.queries, found.sets, has_empty, ends, out)
    return RowsFound(Lists(ends, out), found.rejected)


class BalancedSubsetMatch(PartitionFinder):
    """Subset match over a snapshot in the `balanced` layout; exact, or by signature only."""

    def __init__(self, segment: Segment, *, exact: bool, batch_size: int, threads: int = 1) -> None:
        table = segment.partitions
        assert isinstance(table, PartitionTable)
        self.partitions = len(table)
        self.batch_size = batch_size
        self.has_empty = segment.tagsets.has_empty_set
        self._exact = exact
        self._hashes = segment.vocabulary.hashes
        self._index = PartitionIndex(table)
        words, first_rows = signature_words(segment), table.first_rows
        blocks = Blocks(words, first_rows, _BLOCK_ROWS, threads=threads)
        groups = Blocks(words, first_rows, _BLOCK_ROWS * _GROUP_BLOCKS, threads=threads)
        signatures, ranks = segment.tagsets.signatures, segment.tagsets.ranks
        self._known = _Known(
            words, ranks.offsets, ranks.values, first_rows, blocks.firsts, groups.firsts, blocks.masks, groups.masks
        )
        copied = 0 if signatures is None or np.shares_memory(words[0], signatures) else signatures.nbytes
        self._nbytes = copied + blocks.nbytes + groups.nbytes + self._index.nbytes

    @classmethod
    def of(cls, segment: Segment, options: MatchOptions) -> BalancedSubsetMatch:
        """The subset match of a segment, with these options."""
        return cls(segment, exact=options.exact, batch_size=options.batch_size, threads=options.threads)

    def one_query(self, segment: Segment, tags: TagIndex) -> OneQuery:
        """As `Finder` says."""
        index, known = self._index, self._known
        own = [self._hashes, index.first_masks, index.masks, index.partitions, *known.words, *known[3:]]
        prepared, dtypes = prepare(segment, tags, own, [self._exact])
        return OneQuery([prepared], kernels_of(_in_segment, dtypes))

    def __len__(self) -> int:
        return len(self._known.words[0])

    @property
    def nbytes(self) -> int:
        """As `Finder` says."""
        return self._nbytes

    def route(self, queries: QueryBatch) -> Batches:
        """As `PartitionFinder` says."""
        return self._index.route(queries, self._hashes)

    def match(self, batches: Batches) -> Found:
        """As `PartitionFinder` says."""
        return self._match(batches, np.zeros(0, np.uint8), frozen(np.zeros(0, np.uint8)))

    def _match(self, batches: Batches, answered: U8Array, deleted: U8Array) -> Found:
        queries = batches.queries
        asked = _Asked(
            batches.signatures, queries.offsets, queries.ranks, batches.partitions, batches.offsets, batches.queued,
            answered, deleted,
        )  # fmt: skip
        return Found(*_match_batches(asked, self._known, self.batch_size, self._exact))

    def count(self, prepared: QueryBatch, segment: Segment, most: int) -> Counted:
        """As `Finder` says; a query that wants one key is matched until a set is found."""
        if most > 1:
            return super().count(prepared, segment, most)
        if self.has_empty and len(segment.live_rows(0, 1)):
            return Counted(np.ones(len(prepared), np.int64), len(prepared))
        answered = np.zeros(len(prepared), np.uint8)
        found = self._match(self.route(prepared), answered, segment.deleted)
        return Counted(answered.astype(np.int64), len(found.sets), found.rejected)

    def find(self, prepared: QueryBatch) -> RowsFound:
        """As `Finder` says."""
        return grouped_by_query(self.match(self.route(prepared)), len(prepared), self.has_empty)
