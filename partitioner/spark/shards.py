"""Shards: rows by a hash of their set, each shard with its distinct sets, their keys, and the tags that occur in them.

Equal sets meet in one shard; whether they are equal is decided on the tags. A shard is what the local partitioner makes
of its rows.

Where rows are appended to an index, each set stays in one segment, with all of its keys. A shard's sets are looked up
in each segment of the index; those found take their stored keys along into the new segment, and their rows are deleted
in their old segment. Small segments go into the new one as a whole, as further shards. No other segment is touched.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException

from tagmatch.model import clock
from tagmatch.model.arrays import BoolArray, I64Array, U8Array, U32Array
from tagmatch.model.arrow import are_strings, from_lists, from_strings, from_tag_lists, to_lists, to_numbers, to_strings
from tagmatch.model.change_counts import ADD, REMOVE
from tagmatch.model.clock import times_in
from tagmatch.model.columns import KEY_CHECKS, tag_lists
from tagmatch.model.errors import (
    IndexChangedError,
    IndexCorruptError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
)
from tagmatch.model.input.subscriptions import have_mistakes, reject_mistakes, tags_of, with_conditions
from tagmatch.model.kernels.hashing import hash_strings, hash_tags
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import gather, group_by, sort_values
from tagmatch.model.kernels.tag_table import UNKNOWN, find_all
from tagmatch.model.layouts import empty_segment
from tagmatch.model.options import LAYOUT_DEFAULTS, KeyType, Layout, LayoutOptions
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.format import EXPIRES, RECORDS, TABLE_SUFFIX, declared_in, files_of, key_type_of, parts_of
from tagmatch.model.storage.repository import Repository
from tagmatch.model.storage.tables import write_deletions
from tagmatch.model.tables import LONG_AGO, Snapshot, Vocabulary
from tagmatch.model.where.declared import NOTHING
from tagmatch.partitioner.consolidation import StagedChanges, due_rows, rows_with_ranks, to_take_in
from tagmatch.partitioner.local import Changes, HeldSets, distinct_sets, held_by, held_in, no_changes
from tagmatch.partitioner.spark.batches import (
    SERIALIZED,
    Batches,
    chunks_of,
    deserialized,
    for_each,
    gathered,
    grouped,
    groups_by_hash,
    in_groups,
    labels_for_all,
    number_of_task,
    one_row,
    serialized,
)
from tagmatch.partitioner.spark.scans import Scan, UnreadError
from tagmatch.partitioner.spark.tables import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

#: What can be wrong with a row; the first that is counts
PROBLEMS = (
    "tags is null",
    "a tag is null",
    "key is null",
    "key is negative",
    "key is 2**64 or more",
    "where has a mistake",
)

_KEY_LIMIT = pa.scalar(decimal.Decimal(2**64), pa.decimal128(20, 0))

# Numbers of batches: rows, and how many there were of each problem
_ROWS, _PROBLEMS = 0, 1

# Tables of shards: their sets, and those from which keys are removed
_SETS, _GONE = "shard", "shard-removed"

# Of rows that have conditions, and of those whose keys expire
_WHERE, *_ = _CONDITIONS = "where", "constraints", "area"
_EXPIRES = "expires"

#: The column that says whether a row removes its key from its set
REMOVED = "removed"

_SENT_BYTES, _RECEIVED_BYTES = 1 << 25, 1 << 22

_MADE = "shard long, sets long, keys long, removes boolean, rows long, problems array<long>"
_SHARD = "shard long, sets long, keys long"


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a job."""

    numbers: tuple[int, ...]  # of the shards with sets
    sets: int  # distinct sets of all shards
    keys: int  # of all sets
    rows: int  # rows that these are of
    problems: dict[str, int]  # rows that were left out, by their problem
    removing: tuple[int, ...] = ()  # the numbers of shards with sets that keys are removed from


def check_removed(kind: pa.DataType, *, append: bool) -> None:
    """See that rows, which have a column `REMOVED` of this type, can remove sets and keys."""
    if not append:
        raise InvalidValueError(
            f"column {REMOVED!r}: rows that replace an index, or make one with data, cannot remove any; append them, "
            "or drop the column"
        )
    if not pa.types.is_boolean(kind):
        raise InvalidTypeError(f"column {REMOVED!r} must be boolean, not {kind}")


def removes(rows: pa.RecordBatch) -> BoolArray:
    """Whether each of these rows removes its key; a null says that it does not."""
    if REMOVED not in rows.schema.names:
        return np.zeros(len(rows), np.bool_)
    flags: BoolArray = pc.fill_null(rows.column(REMOVED), False).to_numpy(zero_copy_only=False)
    return flags


def make_shards(rows: DataFrame, job: Job, now: int, *, skip_invalid: bool) -> Shards:
    """Make shards of columns `tags`, `key`, perhaps as decimals, and perhaps of conditions, `expires` and `removed`."""
    labels = labels_for_all(rows.sparkSession)
    clean = partial(_clean, labels, plane=job.plane, skip_invalid=skip_invalid)

    def collected(sent: DataFrame) -> list[Row]:
        return sent.repartition("label").mapInArrow(partial(_write_rows, job, now), _MADE).collect()

    scan = Scan.of(rows)
    try:
        made = collected(rows.mapInArrow(clean, SERIALIZED) if scan is None else scan.map(rows, clean, SERIALIZED))
    except PySparkException as error:
        if scan is None or UnreadError.__name__ not in str(error):
            raise
        made = collected(rows.mapInArrow(clean, SERIALIZED))
    counts = np.sum([np.zeros(len(PROBLEMS), np.int64), *(np.array(shard.problems) for shard in made)], axis=0)
    return Shards(
        tuple(sorted(shard.shard for shard in made if shard.sets)),
        sum(shard.sets for shard in made),
        sum(shard.keys for shard in made),
        sum(shard.rows for shard in made),
        {problem: int(count) for problem, count in zip(PROBLEMS, counts, strict=True) if count},
        tuple(sorted(shard.shard for shard in made if shard.removes)),
    )


@kernel
def _set_hashes(offsets, hashes, out):
    """Sum the different hashes of each row, which are sorted in place."""
    for row in range(len(out)):
        first, last = offsets[row], offsets[row + 1]
        sort_values(hashes, first, last)
        total = np.uint64(0)
        for i in range(first, last):
            if i == first or hashes[i] != hashes[i - 1]:
                total += hashes[i]
        out[row] = total


def _clean(
    labels: I64Array, batches: Batches, *, plane: bool = False, skip_invalid: bool = False
) -> Iterator[pa.RecordBatch]:
    """Rows that can be stored, by a hash of their set; of the others how many there are of each kind."""
    found = np.zeros(len(PROBLEMS), np.int64)
    for batch in gathered(batches, _SENT_BYTES):
        good, problems = good_rows(batch, plane=plane, skip_invalid=skip_invalid)
        found += np.bincount(problems, minlength=len(PROBLEMS) + 1)[1:]
        asked = {name: good[name] for name in _CONDITIONS if name in good.schema.names}
        (rows,), sources = with_conditions(
            tag_lists(good["tags"], "tags", stored=True), asked, plane=plane, declared=NOTHING
        )
        tags = from_tag_lists(rows) if asked else good["tags"]
        keys = good["key"] if are_strings(good["key"].type) else good["key"].cast(pa.uint64())
        columns = {"tags": tags, "key": keys}
        if _EXPIRES in good.schema.names:
            columns[_EXPIRES] = pa.array(times_in(good[_EXPIRES], _EXPIRES, 0))
        if REMOVED in good.schema.names:
            columns[REMOVED] = pa.array(removes(good))
        if sources is not None:
            columns |= {name: columns[name].take(pa.array(sources)) for name in columns if name != "tags"}
        hashes = np.empty(len(rows), np.uint64)
        _set_hashes(rows.offsets, hash_tags(rows), hashes)
        firsts, order = group_by(groups_by_hash(hashes, len(labels)), len(labels))
        records = pa.record_batch(columns).take(pa.array(order))
        yield from in_groups(firsts, labels, np.full(len(labels), _ROWS), records)
    if found.any():
        yield from serialized([(int(labels[0]), _PROBLEMS, pa.record_batch([pa.array(found)], ["rows"]))])


def good_rows(batch: pa.RecordBatch, *, plane: bool, skip_invalid: bool) -> tuple[pa.RecordBatch, U8Array]:
    """The rows of a batch that can be stored, and the problem of each row, as `_problems` has it."""
    if batch["tags"].null_count:
        batch = batch.set_column(batch.schema.get_field_index("tags"), "tags", tags_of(batch, _CONDITIONS))
    problems = _problems(batch["tags"], batch["key"])
    if _WHERE in batch.schema.names:
        if skip_invalid:
            problems[have_mistakes(batch[_WHERE], plane=plane) & (problems == 0)] = len(PROBLEMS)
        else:
            reject_mistakes(batch[_WHERE], plane=plane)
    return batch if not problems.any() else batch.filter(pa.array(problems == 0)), problems


def _problems(tags: pa.ListArray, keys: pa.Array) -> U8Array:
    """For each row 0, or one more than the place of its problem in `PROBLEMS`."""
    problems = np.zeros(len(tags), np.uint8)
    if pa.types.is_decimal(keys.type):
        problems[pc.fill_null(pc.greater_equal(keys, _KEY_LIMIT), False).to_numpy(zero_copy_only=False)] = 5
    if not are_strings(keys.type):
        problems[pc.fill_null(pc.less(keys, 0), False).to_numpy(zero_copy_only=False)] = 4
    problems[keys.is_null().to_numpy(zero_copy_only=False)] = 3
    values = tags.flatten()
    if values.null_count:
        parents = pc.list_parent_indices(tags).to_numpy()
        problems[parents[values.is_null().to_numpy(zero_copy_only=False)]] = 2
    problems[tags.is_null().to_numpy(zero_copy_only=False)] = 1
    return problems


def _write_rows(job: Job, now: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    staged = StagedChanges()
    problems = np.zeros(len(PROBLEMS), np.int64)

    def rows() -> Iterator[pa.RecordBatch]:
        for number, records in deserialized(batches):
            if number == _ROWS:
                yield records
            else:
                np.add(problems, records["rows"].to_numpy(), out=problems)

    for some in gathered(rows(), _RECEIVED_BYTES):
        own = KEY_CHECKS[job.key_type].many(some["key"], "key")
        times = to_numbers(some[_EXPIRES]) if _EXPIRES in some.schema.names else None
        staged.extend(tag_lists(some["tags"], "tags"), own, removed=removes(some), expires=times)
    if len(staged) or problems.any():
        shard, changes, empty = number_of_task(), staged.changes(), [no_sets(job)]
        removed = np.flatnonzero(changes.kinds == REMOVE)
        sets, keys = _write_shard(job, shard, empty, _in_order(changes), now)
        if len(removed):
            gone = replace(_at(changes, removed), kinds=np.full(len(removed), ADD, np.uint8), expires=None)
            _write_shard(job, shard, empty, gone, table=_GONE)
        yield one_row(shard=shard, sets=sets, keys=keys, removes=len(removed) > 0, rows=len(changes), problems=problems)


def _in_order(changes: Changes) -> Changes:
    """The changes, removals last and else by expiry, as the last one of a set and a key counts: rows have no order."""
    is_removal = changes.kinds == REMOVE
    times = changes.expires
    if times is None and not is_removal.any():
        return changes
    return _at(changes, np.lexsort([is_removal] if times is None else [times, is_removal]))


def _at(changes: Changes, places: I64Array) -> Changes:
    """Those of some changes of one set each that are in these places."""
    times = None if changes.expires is None else changes.expires[places]
    rows = gather(changes.rows, places.astype(np.uint32))
    return replace(changes, rows=rows, keys=changes.keys[places], kinds=changes.kinds[places], expires=times)


def _removals(gone: HeldSets) -> Changes:
    """Changes that remove these keys from these sets."""
    table, empty = gone.keys, no_changes()
    rows = gather(gone.ranks, np.repeat(np.arange(len(gone), dtype=np.uint32), table.keys.lengths()))
    keys = table.keys.values.astype(np.uint64)
    kinds = np.full(len(keys), REMOVE, np.uint8)
    return replace(
        empty, tags=gone.vocabulary.tags, rows=rows, keys=keys, kinds=kinds, names=table.names or empty.names
    )


def no_sets(job: Job) -> HeldSets:
    """No sets, but they say of what type keys are."""
    return held_by(empty_segment(job.layout, job.key_type))


def _write_shard(
    job: Job, shard: int, held: Sequence[HeldSets], changes: Changes, now: int = LONG_AGO, table: str = _SETS
) -> tuple[int, int]:
    """Leave what stored sets are after changes as a shard, its tags by their hashes; returns how many sets and keys."""
    sets = distinct_sets(held, changes, rarest_first=False, now=now)
    if len(sets.ranks):
        job.scratch.write(
            table,
            shard,
            tags=from_strings(sets.vocabulary.tags),
            hashes=pa.array(sets.vocabulary.hashes),
            frequencies=pa.array(sets.vocabulary.frequencies),
            ranks=from_lists(sets.ranks),
            **job.columns(sets.keys),
        )
    return len(sets.ranks), len(sets.keys.keys.values)


def sets_of_shard(job: Job, shard: int, table: str = _SETS) -> HeldSets:
    """The sets of a shard, its tags by their hashes."""
    names = ("tags", "hashes", "frequencies", "ranks")
    tags, hashes, frequencies, ranks = (job.scratch.read(table, shard, name) for name in names)
    vocabulary = Vocabulary(to_strings(tags), to_numbers(hashes), to_numbers(frequencies))
    return HeldSets(vocabulary, to_lists(ranks), job.of_shard(shard, table))


# -- the stored segments --------------------------------------------------------------------------------------------

_FOUND, _FOUND_BY_ALL, _DUE = "stored-found", "stored-found-by-all", "stored-due"

# Bytes of files that one task verifies, except for a larger file
_VERIFIED_BYTES = 1 << 26

# Stored tags that are looked up together, while they are in the cache
_TAGS_AT_ONCE = 1 << 16

_VERIFIED = "group long"
_DUE_ROWS = "place long, chunk long, due long"
_GATHERED = "place long"
_LEFT = "place long, deleted string"


@dataclass(frozen=True, slots=True)
class Stored:
    """The snapshot to which rows are appended."""

    index: Repository
    manifest: dict[str, Any] | None = None  # `None` if there is no index yet
    now: int = LONG_AGO  # keys that have expired by then no longer count, in microseconds since 1970, UTC

    @classmethod
    def at(cls, index: Repository) -> Stored:
        """What an index has now; errors as `Repository.has_index` and `manifest`."""
        return cls(index, index.manifest() if index.has_index() else None, clock.now_us())

    @property
    def name(self) -> str | None:
        """Of the snapshot."""
        return None if self.manifest is None else str(self.manifest["snapshot"])

    @property
    def segments(self) -> list[Entry]:
        """What the manifest says of each segment."""
        return [] if self.manifest is None else self.manifest["segments"]

    @property
    def expiring(self) -> list[int]:
        """The places of segments some of whose keys expire."""
        return [place for place, each in enumerate(self.segments) if parts_of(each["files"], EXPIRES)]

    @property
    def has_records(self) -> bool:
        """Whether some keys have records."""
        return any(parts_of(each["files"], f"{RECORDS}{TABLE_SUFFIX}") for each in self.segments)

    @property
    def is_whole(self) -> bool:
        """Whether the index is one segment without deletions and without keys that may have expired."""
        return len(self.segments) <= 1 and not self.expiring and not any(each.get("deleted") for each in self.segments)

    def options(self, layout: Layout | None, max_partition_size: int | None) -> LayoutOptions:
        """The layout of the index or, without one, that which was asked for."""
        of_index = {} if self.manifest is None else self.manifest
        found = {}
        for name, asked in (("layout", layout), ("max_partition_size", max_partition_size)):
            has = of_index.get(name, asked)
            if asked not in (None, has):
                raise InvalidValueError(
                    f"{self.index} has {name}={has!r}, so rows cannot be appended with {name}={asked!r}; leave it out, "
                    "or build the index anew"
                )
            found[name] = getattr(LAYOUT_DEFAULTS, name) if has is None else has
        attributes, strict = declared_in(of_index)
        return LayoutOptions(**found, attributes=attributes, strict=strict)

    def check_keys(self, key_type: KeyType) -> None:
        """See that rows have keys as the index has them; InvalidValueError."""
        if self.manifest is not None and (has := key_type_of(self.manifest)) != key_type:
            raise InvalidValueError(
                f'{self.index} has key_type "{has}", the rows have keys of type "{key_type}"; cast them'
            )

    def open(self) -> Snapshot:
        """The snapshot itself, if it is still the current one, without a look at its files."""
        assert self.name is not None
        try:
            return self.index.open_unverified(self.name)
        except IndexNotFoundError:
            raise self._changed() from None

    def verify(self, files: dict[str, Entry]) -> None:
        """Verify the checksums of some files of the snapshot; errors as `open`, and IndexCorruptError."""
        try:
            self.index.verify(files)
        except IndexCorruptError:
            if not self.index.has_index() or self.index.manifest()["snapshot"] != self.name:
                raise self._changed() from None
            raise

    def chunks(self, places: Sequence[int], most: int) -> list[tuple[int, int, int]]:
        """Rows of these segments, `most` at most in each chunk."""
        return chunks_of([(place, self.segments[place]["rows"]) for place in places], most)

    def _changed(self) -> IndexChangedError:
        return IndexChangedError(
            f"another program has saved changes to the index {self.index} while rows were being appended; append "
            "them again"
        )


class Appending:
    """Gives the sets of shards the keys that they have in an index already, and makes shards of its small segments.

    In other segments, sets with keys that have expired are deleted; if they have keys left, they go into new shards.
    """

    def __init__(self, job: Job, stored: Stored, shards: Shards) -> None:
        self._job, self._scratch, self._stored, self._shards = job, job.scratch, stored, shards
        self._numbers = sorted({*shards.numbers, *shards.removing})
        self._free = max(self._numbers, default=0) + 1  # numbers of shards from there on
        # Of segments, by place, how many sets have keys that have expired, by the number of the chunk with their rows
        self._due: dict[int, dict[int, int]] = {}
        self.entries: list[Entry] = []  # what manifests say of the segments that stay
        self.written: dict[str, str] = {}  # names in the scratch folder of files that the index lacks, by those there

    def take_in(self, spark: SparkSession, *, every: bool = False) -> Shards:
        """The shards, some of them replaced; takes in `every` segment, or only small ones."""
        stored, segments = self._stored, self._stored.segments
        files = files_of(segments)
        groups = grouped([*files], [expected["bytes"] for expected in files.values()], _VERIFIED_BYTES)
        for_each(spark, range(len(groups)), partial(self._verify, groups), _VERIFIED).collect()
        if chunks := stored.chunks(stored.expiring, self._job.sets_per_task):
            found = for_each(spark, range(len(chunks)), partial(self._write_due, chunks), _DUE_ROWS).collect()
            for row in sorted(found, key=lambda row: row.chunk):
                if row.due:
                    self._due.setdefault(row.place, {})[row.chunk] = row.due
        live = [
            each["rows"] - each.get("deleted", {"rows": 0})["rows"] - sum(self._due.get(place, {}).values())
            for place, each in enumerate(segments)
        ]
        taken = [*range(len(segments))] if every else to_take_in(live, self._shards.rows)
        looked_up = for_each(spark, self._numbers, self._look_up, _SHARD).collect()
        for_each(spark, range(len(segments)), self._gather, _GATHERED).collect()
        due = [place for place in self._due if place not in taken]
        chunks = stored.chunks([*taken, *due], self._job.sets_per_task)
        made = for_each(spark, range(len(chunks)), partial(self._take, chunks, taken), _SHARD).collect()
        places = [place for place in range(len(segments)) if place not in taken]
        left = for_each(spark, places, self._delete, _LEFT).collect()
        for row in sorted(left, key=lambda row: row.place):
            self.entries.append(dict(segments[row.place]))
            if row.deleted is not None:
                self.entries[-1]["deleted"] = deleted = json.loads(row.deleted)
                self.written[deleted["name"]] = _deletions(row.place)
        made += looked_up
        sets, keys = sum(row.sets for row in made), sum(row.keys for row in made)
        return replace(self._shards, numbers=tuple(sorted(row.shard for row in made)), sets=sets, keys=keys)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _verify(self, groups: Sequence[Sequence[str]], group: int) -> Iterator[pa.RecordBatch]:
        files = files_of(self._stored.segments)
        self._stored.verify({name: files[name] for name in groups[group]})
        yield one_row(group=group)

    def _write_due(self, chunks: Sequence[tuple[int, int, int]], chunk: int) -> Iterator[pa.RecordBatch]:
        """Find the rows, of some of a segment, whose sets have keys that have expired."""
        place, first, last = chunks[chunk]
        due = due_rows(self._stored.open().segments[place], self._stored.now, first, last)
        self._scratch.write(_DUE, chunk, rows=pa.array(due))
        yield one_row(place=place, chunk=chunk, due=len(due))

    def _look_up(self, shard: int) -> Iterator[pa.RecordBatch]:
        """Find the sets of a shard in all segments; leave their rows and, if some are found, a shard with all keys."""
        job, shards, none = self._job, self._shards, no_sets(self._job)
        own = sets_of_shard(job, shard) if shard in shards.numbers else none
        gone = sets_of_shard(job, shard, _GONE) if shard in shards.removing else none
        changed = [each for each in (own, gone) if len(each)]
        sets, keys = len(own), len(own.keys.keys.values)
        held, found = list[HeldSets](), {}
        for place, segment in enumerate(self._stored.open().segments):
            ranks = [_ranks_in(segment.vocabulary, each.vocabulary) for each in changed]
            by_set = [rows_with_ranks(segment, of, each.ranks) for of, each in zip(ranks, changed, strict=True)]
            rows = np.unique(np.concatenate(by_set))
            found[f"rows-{place}"] = pa.array(rows)
            if len(rows):
                held.append(held_in(segment, rows))
        self._scratch.write(_FOUND, shard, **found)
        times = own.keys.expires
        if held or (times is not None and (times <= self._stored.now).any()):
            shard += self._free  # as a twin of this task may be reading the first
            # What is newer comes last
            sets, keys = _write_shard(job, shard, [*held, own], _removals(gone), self._stored.now)
        if sets:
            yield one_row(shard=shard, sets=sets, keys=keys)

    def _take(
        self, chunks: Sequence[tuple[int, int, int]], taken: Sequence[int], chunk: int
    ) -> Iterator[pa.RecordBatch]:
        """Make a shard of the rows of a segment that no shard took: all or, if the segment stays, the due ones."""
        place, first, last = chunks[chunk]
        found, shard = self._found(place), 2 * self._free + chunk
        found = found[slice(*np.searchsorted(found, np.array([first, last], np.uint32)))]
        segment = self._stored.open().segments[place].without(found)
        rows = segment.live_rows(first, last).astype(np.uint32)
        if place not in taken:
            rows = np.intersect1d(rows, self._due_in(place), assume_unique=True)
        sets, keys = _write_shard(self._job, shard, [held_in(segment, rows)], no_changes(), self._stored.now)
        if sets:
            yield one_row(shard=shard, sets=sets, keys=keys)

    def _delete(self, place: int) -> Iterator[pa.RecordBatch]:
        """Write which rows of a segment are deleted from now on, if there are more, and if others are left."""
        segment, gone = self._stored.open().segments[place], np.union1d(self._found(place), self._due_in(place))
        if segment.live == len(gone):
            return
        deleted = None
        if len(gone) and (deletions := segment.without(gone).deletions) is not None:
            with self._scratch.files.new(_deletions(place)) as path:
                deleted = json.dumps(write_deletions(deletions, len(segment), path))
        yield pa.record_batch({"place": pa.array([place]), "deleted": pa.array([deleted], pa.string())})

    def _gather(self, place: int) -> Iterator[pa.RecordBatch]:
        """Leave the rows of a segment that shards have found in one file: its chunks may be as many as the shards."""
        rows = [self._scratch.read(_FOUND, shard, f"rows-{place}", keep=True) for shard in self._numbers]
        found = np.sort(np.concatenate([np.zeros(0, np.uint32), *map(to_numbers, rows)]))
        self._scratch.write(_FOUND_BY_ALL, place, rows=pa.array(found))
        yield one_row(place=place)

    def _found(self, place: int) -> U32Array:
        """Rows of a segment whose sets are in one of the shards, ascending."""
        found: U32Array = to_numbers(self._scratch.read(_FOUND_BY_ALL, place, "rows", keep=True))
        return found

    def _due_in(self, place: int) -> U32Array:
        """Rows of a segment whose sets have keys that have expired, ascending."""
        rows = [self._scratch.read(_DUE, chunk, "rows", keep=True) for chunk in self._due.get(place, ())]
        return np.concatenate([np.zeros(0, np.uint32), *map(to_numbers, rows)])


def _deletions(place: int) -> str:
    return f"stored-deletions-{place}"


def _ranks_in(stored: Vocabulary, own: Vocabulary) -> U32Array:
    """The rank of each tag of a shard in a segment, whose tags are looked up among the shard's; else UNKNOWN."""
    ranks = np.full(len(own), UNKNOWN)
    tags, known = stored.tags, own.tags
    for first in range(0, len(stored), _TAGS_AT_ONCE):
        last = min(first + _TAGS_AT_ONCE, len(stored))
        same = stored.seed == own.seed
        hashes = stored.hashes[first:last] if same else hash_strings(tags, seed=own.seed, first=first, last=last)
        places = np.empty(last - first, np.uint32)
        find_all(hashes, tags.offsets, tags.data, first, own.slots, known.offsets, known.data, places)
        found = np.flatnonzero(places != UNKNOWN)
        ranks[places[found]] = first + found
    return ranks
