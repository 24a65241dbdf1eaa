"""Numbered strings, the tags or the keys of all shards: a table, and slots to look its strings up, by their hash.

Each group of hashes has slots of its own, which one task makes: of the strings whose hash is in the group it only gets
the hashes and the numbers, and maps the table for those few that have to be told from others by their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import I64Array, Strings, U32Array, U64Array
from tagmatch.model.arrow import to_numbers
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.kernels.sorting import group_by
from tagmatch.model.kernels.tag_table import UNKNOWN, build_slots_of, find_all, new_key
from tagmatch.model.kernels.xxh64 import hash_strings
from tagmatch.partitioner.spark.records import rows_at
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.serialized import SERIALIZED, Serializer, by_number, groups_by_hash, labels_for
from tagmatch.partitioner.spark.tasks import for_each, one_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUP = "number long"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of strings, which tasks look up.

    Attributes
    ----------
    scratch : Scratch
        Has slots.
    name : str
        Of the slots.
    groups : int
        Of hashes.
    found : frozenset of int
        The groups that have strings.
    seed : int
        Of the hash.
    """

    scratch: Scratch
    name: str
    groups: int
    found: frozenset[int]
    seed: int = 0

    def of(self, strings: Strings, known: Strings) -> U32Array:
        """The number of each string in a table of `known` ones, UNKNOWN if it has none."""
        hashes = hash_strings(strings, seed=self.seed)
        firsts, order = group_by(groups_by_hash(hashes, self.groups), self.groups)
        numbers = np.full(len(strings), UNKNOWN)
        for group in np.flatnonzero(np.diff(firsts)).tolist():
            if group not in self.found:
                continue
            chosen = order[firsts[group] : firsts[group + 1]]
            some, out = gather_strings(strings, chosen), np.empty(len(chosen), np.uint32)
            slots = to_numbers(self.scratch.read(self.name, group, "slots", keep=True))
            find_all(hashes[chosen], some.offsets, some.data, 0, slots, known.offsets, known.data, out)
            numbers[chosen] = out
        return numbers


@dataclass(frozen=True, slots=True)
class Known:
    """A table of different strings.

    Attributes
    ----------
    name : str
        Of the slots that are made for it.
    strings : callable
        Gives the strings to a task.
    count : int
    seed : int
        Of their hash.
    """

    name: str
    strings: Callable[[], Strings]
    count: int
    seed: int = 0

    def groups(self, strings_per_task: int) -> int:
        """How many groups of hashes there are to be."""
        return max(1, -(-self.count // strings_per_task))


def make_slots(spark: SparkSession, scratch: Scratch, tables: Sequence[Known], strings_per_task: int) -> list[Numbers]:
    """Make slots for the strings of each table, in groups of about `strings_per_task`."""
    groups = [(place, group) for place, each in enumerate(tables) for group in range(each.groups(strings_per_task))]
    chunks = [
        (place, first, min(first + strings_per_task, each.count))
        for place, each in enumerate(tables)
        for first in range(0, each.count, strings_per_task)
    ]
    labels = labels_for(spark, len(groups))[0]
    sent = for_each(spark, range(len(chunks)), partial(_send, tables, chunks, groups, labels), SERIALIZED)
    made = by_number(sent, len(groups), partial(_build, scratch, tables, groups, new_key()), _GROUP).collect()
    found = [groups[row.number] for row in made]
    return [
        Numbers(
            scratch,
            each.name,
            each.groups(strings_per_task),
            frozenset(group for of_table, group in found if of_table == place),
            each.seed,
        )
        for place, each in enumerate(tables)
    ]


def _send(
    tables: Sequence[Known],
    chunks: Sequence[tuple[int, int, int]],
    groups: Sequence[tuple[int, int]],
    labels: I64Array,
    chunk: int,
) -> Iterator[pa.RecordBatch]:
    """Send hashes and numbers of some strings of a table to the groups of the hashes."""
    place, first, last = chunks[chunk]
    hashes = hash_strings(tables[place].strings(), seed=tables[place].seed, first=first, last=last)
    own = [number for number, (of_table, _) in enumerate(groups) if of_table == place]
    records = pa.record_batch({"number": pa.array(np.arange(first, last, dtype=np.uint32)), "hash": pa.array(hashes)})
    serializer = Serializer()
    serializer.scatter(groups_by_hash(hashes, len(own)), labels[own], np.array(own), partial(rows_at, records))
    yield from serializer.take()


def _build(
    scratch: Scratch,
    tables: Sequence[Known],
    groups: Sequence[tuple[int, int]],
    key: U64Array,
    number: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Leave the slots of a group, which are the same for a task's twin: batches come in another order there."""
    table, group = tables[groups[number][0]], groups[number][1]
    records = pa.concat_batches(list(batches)).sort_by("number")
    slots = build_slots_of(to_numbers(records["number"]), table.strings(), to_numbers(records["hash"]), key)
    scratch.write(table.name, group, slots=pa.array(slots))
    yield one_row(number=number)
