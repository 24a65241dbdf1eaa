"""What an index has already where rows are appended to it: so that each set stays in one segment, with all of its keys.

A shard's sets are looked up in each segment of the index, as many at once as there are tasks; those found take their
stored keys along into the new segment, and their rows are deleted where they were. Small segments go into the new one
as a whole, as further shards. What else is stored is not touched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model import clock
from tagmatch.model.arrays import Strings, U32Array
from tagmatch.model.arrow import to_numbers
from tagmatch.model.errors import IndexChangedError, IndexCorruptError, IndexNotFoundError, InvalidValueError
from tagmatch.model.options import LAYOUT_DEFAULTS, KeyType, Layout, LayoutOptions
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.format import EXPIRES, files_of, key_type_of, parts_of
from tagmatch.model.storage.repository import Repository
from tagmatch.model.storage.tables import write_deletions
from tagmatch.model.tables import Snapshot
from tagmatch.partitioner.consolidation import due_rows, rows_with_ranks, to_take_in
from tagmatch.partitioner.local import HeldSets, held_in, no_changes
from tagmatch.partitioner.spark.batches import Scratch, for_each, grouped, one_row
from tagmatch.partitioner.spark.joined import Known, Numbers, make_slots
from tagmatch.partitioner.spark.keys import ShardKeys
from tagmatch.partitioner.spark.shards import Shards, held_by_shard, write_shard

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLOTS, _FOUND, _DUE = "stored-slots", "stored-found", "stored-due"

# Bytes of files that one task verifies, where they are not larger
_VERIFIED_BYTES = 1 << 26

_VERIFIED = "group long"
_DUE_ROWS = "place long, chunk long, due long"
_SHARD = "shard long, sets long"
_LEFT = "place long, deleted string"


@dataclass(frozen=True, slots=True)
class Stored:
    """The snapshot to which rows are appended."""

    index: Repository
    manifest: dict[str, Any] | None  # `None` if there is no index yet
    now: int  # Keys that have expired by then no longer count, in microseconds since 1970, UTC

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
    def key_type(self) -> KeyType | None:
        """What the keys are, if there is an index."""
        return None if self.manifest is None else key_type_of(self.manifest)

    @property
    def some_expire(self) -> bool:
        """Whether some of its keys do."""
        return any(parts_of(segment["files"], EXPIRES) for segment in self.segments)

    def options(self, layout: Layout | None, max_partition_size: int | None) -> LayoutOptions:
        """The layout of the index or, where there is none, that which was asked for."""
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
        return LayoutOptions(**found)

    def check_keys(self, key_type: KeyType) -> None:
        """See that rows have keys as the index has them; InvalidValueError."""
        if self.key_type not in (None, key_type):
            raise InvalidValueError(
                f'{self.index} has key_type "{self.key_type}", the rows have keys of type "{key_type}"; cast them'
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

    def _changed(self) -> IndexChangedError:
        return IndexChangedError(
            f"another program has saved changes to the index {self.index} while rows were being appended; append "
            "them again"
        )


@dataclass(frozen=True, slots=True)
class Due:
    """Where the rows are of sets of which keys have expired."""

    counts: dict[int, int]  # How many there are in each segment that has some
    chunks: dict[int, tuple[int, ...]]  # In which tables of the scratch folder those of a segment are, in order

    def rows(self, scratch: Scratch, place: int) -> U32Array:
        """Those of a segment, ascending."""
        found = [to_numbers(scratch.read(_DUE, chunk, "rows", keep=True)) for chunk in self.chunks.get(place, ())]
        return np.concatenate([np.zeros(0, np.uint32), *found])


@dataclass(frozen=True, slots=True)
class Kept:
    """The segments that stay, with their deletions."""

    entries: list[Entry] = field(default_factory=list)  # What manifests say of each
    # Names in the scratch folder of files that the index lacks, by their names in the index
    written: dict[str, str] = field(default_factory=dict)


def take_in(
    spark: SparkSession, keys: ShardKeys, stored: Stored, shards: Shards, sets_per_task: int
) -> tuple[Shards, Kept]:
    """Give the sets of shards the keys that they have in an index already, and make shards of its small segments.

    In other segments, sets of which some keys have expired are gone; if they have keys left, there are shards of them.
    """
    scratch = keys.scratch
    _verify_all(spark, stored)
    due = _find_due(spark, scratch, stored, sets_per_task)
    known = [
        Known(f"{_SLOTS}-{place}", partial(_tags_of, stored, place), each["tags"], each["seed"])
        for place, each in enumerate(stored.segments)
    ]
    numbers = make_slots(spark, scratch, known, sets_per_task)
    gone = [
        due.counts.get(place, 0) + each.get("deleted", {"rows": 0})["rows"]
        for place, each in enumerate(stored.segments)
    ]
    live = [each["rows"] - rows for each, rows in zip(stored.segments, gone, strict=True)]
    taken = to_take_in(live, shards.rows)
    free = max(shards.numbers, default=0) + 1
    looked_up = for_each(spark, shards.numbers, partial(_look_up, keys, stored, numbers, free), _SHARD).collect()
    chunks = _chunks(stored, [*taken, *(place for place in due.counts if place not in taken)], sets_per_task)
    small = partial(_take, keys, stored, chunks, taken, shards.numbers, due, 2 * free)
    made = [*looked_up, *for_each(spark, range(len(chunks)), small, _SHARD).collect()]
    kept_rows = sum(each["rows"] for place, each in enumerate(stored.segments) if place not in taken)
    whole = replace(
        shards,
        numbers=tuple(sorted(row.shard for row in made)),
        sets=sum(row.sets for row in made),
        other_rows=kept_rows,
    )
    places = [place for place in range(len(stored.segments)) if place not in taken]
    left = for_each(spark, places, partial(_delete, scratch, stored, shards.numbers, due), _LEFT).collect()
    kept = Kept()
    for row in sorted(left, key=lambda row: row.place):
        kept.entries.append(dict(stored.segments[row.place]))
        if row.deleted is not None:
            deleted = json.loads(row.deleted)
            kept.entries[-1]["deleted"], kept.written[deleted["name"]] = deleted, _deletions(row.place)
    return whole, kept


def _verify_all(spark: SparkSession, stored: Stored) -> None:
    """Verify the checksums of all files of the index."""
    files = files_of(stored.segments)
    groups = grouped([*files], [expected["bytes"] for expected in files.values()], _VERIFIED_BYTES)
    for_each(spark, range(len(groups)), partial(_verify, stored, groups), _VERIFIED).collect()


def _find_due(spark: SparkSession, scratch: Scratch, stored: Stored, rows_per_task: int) -> Due:
    """Find the sets of which keys have expired."""
    expiring = [place for place, each in enumerate(stored.segments) if parts_of(each["files"], EXPIRES)]
    chunks = _chunks(stored, expiring, rows_per_task)
    if not chunks:
        return Due({}, {})
    found = for_each(spark, range(len(chunks)), partial(_write_due, scratch, stored, chunks), _DUE_ROWS).collect()
    counts, written = dict[int, int](), dict[int, tuple[int, ...]]()
    for row in sorted(found, key=lambda row: row.chunk):
        if row.due:
            counts[row.place] = counts.get(row.place, 0) + row.due
            written[row.place] = (*written.get(row.place, ()), row.chunk)
    return Due(counts, written)


def _chunks(stored: Stored, places: Sequence[int], most: int) -> list[tuple[int, int, int]]:
    """Consecutive rows of segments, `most` at most in each: the place of the segment, the first row and the last."""
    return [
        (place, first, min(first + most, rows))
        for place in places
        if (rows := stored.segments[place]["rows"])
        for first in range(0, rows, most)
    ]


def _deletions(place: int) -> str:
    return f"stored-deletions-{place}"


# -- tasks -----------------------------------------------------------------------------------------------------------


def _verify(stored: Stored, groups: Sequence[Sequence[str]], group: int) -> Iterator[pa.RecordBatch]:
    files = files_of(stored.segments)
    stored.verify({name: files[name] for name in groups[group]})
    yield one_row(group=group)


def _tags_of(stored: Stored, place: int) -> Strings:
    return stored.open().segments[place].vocabulary.tags


def _write_due(
    scratch: Scratch, stored: Stored, chunks: Sequence[tuple[int, int, int]], chunk: int
) -> Iterator[pa.RecordBatch]:
    """Find the rows, of some of a segment, whose sets have keys that have expired."""
    place, first, last = chunks[chunk]
    due = due_rows(stored.open().segments[place], stored.now, first, last)
    scratch.write(_DUE, chunk, rows=pa.array(due))
    yield one_row(place=place, chunk=chunk, due=len(due))


def _look_up(
    keys: ShardKeys, stored: Stored, numbers: Sequence[Numbers], free: int, shard: int
) -> Iterator[pa.RecordBatch]:
    """Find the sets of a shard in all segments; leave the rows and, where there are some, another shard with all keys.

    Under another number, as a twin of this task may be reading the first.
    """
    scratch, own = keys.scratch, held_by_shard(keys, shard)
    held, found = list[HeldSets](), {}
    for place, segment in enumerate(stored.open().segments):
        ranks = numbers[place].of(own.vocabulary.tags, segment.vocabulary.tags)
        rows = rows_with_ranks(segment, ranks, own.ranks)
        found[f"rows-{place}"] = pa.array(rows)
        if len(rows):
            held.append(held_in(segment, rows))
    scratch.write(_FOUND, shard, **found)
    if held:
        shard += free
        # What is newer comes last
        write_shard(keys, shard, [*held, own], no_changes(), stored.now)
    yield one_row(shard=shard, sets=len(own))


def _take(
    keys: ShardKeys,
    stored: Stored,
    chunks: Sequence[tuple[int, int, int]],
    taken: Sequence[int],
    shards: Sequence[int],
    due: Due,
    free: int,
    chunk: int,
) -> Iterator[pa.RecordBatch]:
    """Make a shard of rows of a segment that no shard has taken keys from: of all or, where it stays, those due."""
    place, first, last = chunks[chunk]
    segment = stored.open().segments[place].without(_found(keys.scratch, shards, place))
    rows = segment.live_rows(first, last).astype(np.uint32)
    if place not in taken:
        rows = np.intersect1d(rows, due.rows(keys.scratch, place), assume_unique=True)
    shard = free + chunk
    if made := write_shard(keys, shard, [held_in(segment, rows)], no_changes(), stored.now):
        yield one_row(shard=shard, sets=made)


def _delete(scratch: Scratch, stored: Stored, shards: Sequence[int], due: Due, place: int) -> Iterator[pa.RecordBatch]:
    """Write which rows of a segment are deleted from now on, if there are more, and if others are left."""
    segment = stored.open().segments[place]
    gone = np.union1d(_found(scratch, shards, place), due.rows(scratch, place))
    if segment.live == len(gone):
        return
    deleted = None
    if len(gone) and (deletions := segment.without(gone).deletions) is not None:
        with scratch.files.new(_deletions(place)) as path:
            deleted = json.dumps(write_deletions(deletions, len(segment), path))
    yield pa.record_batch({"place": pa.array([place]), "deleted": pa.array([deleted], pa.string())})


def _found(scratch: Scratch, shards: Sequence[int], place: int) -> U32Array:
    """Rows of a segment whose sets are in one of the shards, ascending."""
    none = np.zeros(0, np.uint32)
    return np.sort(
        np.concatenate([none, *(to_numbers(scratch.read(_FOUND, shard, f"rows-{place}")) for shard in shards)])
    )
