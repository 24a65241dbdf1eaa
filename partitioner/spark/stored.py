"""What an index has already where rows are appended to it: so that each set stays in one segment, with all of its keys.

A shard's sets are looked up in each segment of the index, as many at once as there are tasks; those found take their
stored keys along into the new segment, and their rows are deleted where they were. Small segments go into the new one
as a whole, as further shards. What else is stored is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model import clock
from tagmatch.model.arrays import U32Array
from tagmatch.model.arrow import to_lists, to_numbers, to_strings
from tagmatch.model.errors import IndexChangedError, IndexNotFoundError, InvalidValueError
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.model.options import LAYOUT_DEFAULTS, KeyType, Layout, LayoutOptions
from tagmatch.model.storage.format import EXPIRES, Entry, key_type_of, parts_of
from tagmatch.model.storage.location import Location
from tagmatch.model.tables import Segment, Snapshot, Vocabulary
from tagmatch.partitioner.consolidation import rows_with, to_take_in
from tagmatch.partitioner.expired import without_due
from tagmatch.partitioner.local import Held, build_segment, held_in, no_changes
from tagmatch.partitioner.spark.keys import Keys
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.shards import Shards, write_shard
from tagmatch.partitioner.spark.tasks import for_each, one_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLOTS, _FOUND, _DUE = "stored-slots", "stored-found", "stored-due"
_PREPARED = "place long, due long"
_SHARD = "shard long, sets long"


@dataclass(frozen=True, slots=True)
class Stored:
    """The snapshot to which rows are appended.

    Attributes
    ----------
    index : Location
    manifest : dict, optional
        `None` if there is no index yet.
    now : int
        Keys that have expired by then no longer count, in microseconds since 1970, UTC.
    """

    index: Location
    manifest: dict[str, Any] | None
    now: int

    @classmethod
    def at(cls, index: Location) -> Stored:
        """What an index has now; errors as `Location.has_index` and `manifest`."""
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
        """The layout of the index or, where there is none, that which was asked for.

        Raises
        ------
        InvalidValueError
            Another one was asked for than the index has.
        """
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

    def open(self, *, verified: bool = False) -> Snapshot:
        """The snapshot itself, if it is still the current one; `verified`: all of its files are read and checked.

        Raises
        ------
        IndexChangedError
            It is not.
        """
        assert self.name is not None
        try:
            snapshot = self.index.open() if verified else self.index.open_unverified(self.name)
        except IndexNotFoundError:
            snapshot = None
        if snapshot is None or snapshot.name != self.name:
            raise IndexChangedError(
                f"another program has saved changes to the index {self.index} while rows were being appended; append "
                "them again"
            )
        return snapshot


@dataclass(frozen=True, slots=True)
class Left:
    """What stays of the segments of an index.

    Attributes
    ----------
    stored : Stored
    taken : tuple of int
        Places of the segments that went into the new one. Of others, sets of which keys have expired did.
    shards : tuple of int
        Numbers of the shards whose sets were looked up.
    """

    stored: Stored
    taken: tuple[int, ...] = ()
    shards: tuple[int, ...] = ()

    def prepare(self, scratch: Scratch, new: Segment) -> dict[str, Any]:
        """Write what the index lacks of the snapshot with the new segment; returns what `Location.switch` takes."""
        kept = []
        if self.shards:
            for place, segment in enumerate(self.stored.open().segments):
                gone = np.union1d(_found(scratch, self.shards, place), _due(scratch, place))
                if place not in self.taken and segment.live > len(gone):
                    kept.append(segment.without(gone))
        return self.stored.index.prepare(Snapshot((*kept, new)), self.stored.segments)


def take_in(spark: SparkSession, keys: Keys, stored: Stored, shards: Shards, sets_per_task: int) -> tuple[Shards, Left]:
    """Give the sets of shards the keys that they have in an index already, and make shards of its small segments.

    In other segments, sets of which some keys have expired are gone; if they have keys left, there are shards of them.

    Returns
    -------
    shards : Shards
        Of all sets of the new segment.
    left : Left
    """
    scratch = keys.scratch
    prepared = for_each(spark, [0], partial(_prepare, scratch, stored), _PREPARED).collect()
    due = {row.place: row.due for row in prepared}
    gone = [due[place] + each.get("deleted", {"rows": 0})["rows"] for place, each in enumerate(stored.segments)]
    live = [each["rows"] - rows for each, rows in zip(stored.segments, gone, strict=True)]
    taken = to_take_in(live, shards.rows)
    free = max(shards.numbers, default=0) + 1
    looked_up = for_each(spark, shards.numbers, partial(_look_up, keys, stored, free), _SHARD).collect()
    chunks = _chunks(stored, [*taken, *(place for place in due if due[place] and place not in taken)], sets_per_task)
    small = partial(_take, keys, stored, chunks, taken, shards.numbers, 2 * free)
    made = [*looked_up, *for_each(spark, range(len(chunks)), small, _SHARD).collect()]
    kept_rows = sum(each["rows"] for place, each in enumerate(stored.segments) if place not in taken)
    whole = replace(
        shards,
        numbers=tuple(sorted(row.shard for row in made)),
        sets=sum(row.sets for row in made),
        other_rows=kept_rows,
    )
    return whole, Left(stored, tuple(taken), shards.numbers)


def _chunks(stored: Stored, places: Sequence[int], most: int) -> list[tuple[int, int, int]]:
    """Consecutive rows of segments, `most` at most in each: the place of the segment, the first row and the last."""
    return [
        (place, first, min(first + most, rows))
        for place in places
        if (rows := stored.segments[place]["rows"])
        for first in range(0, rows, most)
    ]


# -- tasks -----------------------------------------------------------------------------------------------------------


def _prepare(scratch: Scratch, stored: Stored, _: int) -> Iterator[pa.RecordBatch]:
    """Read all files once, and leave what others then need not find.

    Which is slots to look up tags by, and the rows of sets of which keys have expired.
    """
    for place, segment in enumerate(stored.open(verified=True).segments):
        due = without_due(segment, stored.now)[0]
        scratch.write(_SLOTS, place, slots=pa.array(segment.vocabulary.slots))
        scratch.write(_DUE, place, rows=pa.array(due))
        yield one_row(place=place, due=len(due))


def _look_up(keys: Keys, stored: Stored, free: int, shard: int) -> Iterator[pa.RecordBatch]:
    """Find the sets of a shard in all segments; leave the rows and, where there are some, another shard with all keys.

    Under another number, as a twin of this task may be reading the first.
    """
    scratch, own = keys.scratch, _held(keys, shard)
    held, found = list[Held](), {}
    for place, segment in enumerate(stored.open().segments):
        slots = to_numbers(scratch.read(_SLOTS, place, "slots", keep=True))
        known = replace(segment, vocabulary=segment.vocabulary.with_slots(slots))
        rows = rows_with(known, own.vocabulary.tags, own.ranks)
        found[f"rows-{place}"] = pa.array(rows)
        if len(rows):
            held.append(held_in(segment, rows))
    scratch.write(_FOUND, shard, **found)
    if held:
        shard += free
        # What is newer comes last
        write_shard(keys, shard, build_segment([*held, own], no_changes(), LayoutOptions(), now=stored.now))
    yield one_row(shard=shard, sets=len(own))


def _held(keys: Keys, shard: int) -> Held:
    tags, frequencies, ranks = (keys.scratch.read("shard", shard, name) for name in ("tags", "frequencies", "ranks"))
    strings = to_strings(tags)
    vocabulary = Vocabulary(strings, hash_strings(strings), to_numbers(frequencies))
    return Held(vocabulary, to_lists(ranks), keys.of_shard(shard))


def _take(
    keys: Keys,
    stored: Stored,
    chunks: Sequence[tuple[int, int, int]],
    taken: Sequence[int],
    shards: Sequence[int],
    free: int,
    chunk: int,
) -> Iterator[pa.RecordBatch]:
    """Make a shard of rows of a segment that no shard has taken keys from: of all or, where it stays, those due."""
    place, first, last = chunks[chunk]
    segment = stored.open().segments[place].without(_found(keys.scratch, shards, place))
    rows = segment.live_rows(first, last).astype(np.uint32)
    if place not in taken:
        rows = np.intersect1d(rows, _due(keys.scratch, place), assume_unique=True)
    made = build_segment([held_in(segment, rows)], no_changes(), LayoutOptions(), now=stored.now)
    if len(made):
        shard = free + chunk
        write_shard(keys, shard, made)
        yield one_row(shard=shard, sets=len(made))


def _found(scratch: Scratch, shards: Sequence[int], place: int) -> U32Array:
    """Rows of a segment whose sets are in one of the shards, ascending."""
    rows: U32Array = np.sort(scratch.joined(_FOUND, shards, f"rows-{place}", to_numbers, np.uint32))
    return rows


def _due(scratch: Scratch, place: int) -> U32Array:
    """Rows of a segment whose sets have keys that have expired, ascending."""
    rows: U32Array = to_numbers(scratch.read(_DUE, place, "rows", keep=True))
    return rows
