"""Tables whose columns lie among the files of a job, in runs one after the other; many tasks write their files.

Which bytes a part of a file has follows from the lengths of the runs, which the driver knows. So each task writes some
parts, of which it reads what it needs, and no task has a whole table.

Numbered strings, the tags or the keys of all shards: a table, and slots to look its strings up, by their hash.

Each group of hashes has slots of its own, which one task makes: of the strings whose hash is in the group it only gets
the hashes and the numbers, and maps the table for those few that have to be told from others by their bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import I64Array, IntArray, Lists, Strings, U32Array, U64Array, list_offsets, offsets_of
from tagmatch.model.arrow import from_lists, from_strings, from_words, to_lists, to_numbers, to_strings, to_words
from tagmatch.model.kernels.hashing import SIGNATURE_WORDS, hash_strings
from tagmatch.model.kernels.lists import gather_strings, group_by
from tagmatch.model.kernels.tag_table import UNKNOWN, build_slots_of, find_all, new_key
from tagmatch.model.storage import table_files
from tagmatch.model.storage.files import Entry
from tagmatch.model.storage.table_files import Piece, TableFile
from tagmatch.model.storage.tables import table_file, table_of
from tagmatch.partitioner.spark.batches import (
    SERIALIZED,
    Scratch,
    Serializer,
    by_number,
    for_each,
    grouped,
    groups_by_hash,
    labels_for,
    one_row,
    rows_at,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITTEN = "part long, entry string"

#: A number for each run
Counts: TypeAlias = Sequence[int] | I64Array
#: Gives the elements of a run, by its number, from one place in it to another
Read: TypeAlias = Callable[[int, int, int], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """An array of runs, of which any bytes can be read: see `Piece`."""

    dtype: np.dtype[Any]
    starts: I64Array  # The place of the first element of each run, and how many elements there are
    read_run: Read  # As `Read`; of any type that `dtype` has room for

    def __len__(self) -> int:
        return int(self.starts[-1]) * self.dtype.itemsize

    def read(self, first: int, last: int) -> memoryview:
        """As `Piece` says."""
        size = self.dtype.itemsize
        low, high = first // size, -(-last // size)
        array = np.empty(high - low, self.dtype)
        begin, end = np.searchsorted(self.starts, [low, high], "right")
        for run in range(begin - 1, min(end, len(self.starts) - 1)):
            start, stop = max(low, int(self.starts[run])), min(high, int(self.starts[run + 1]))
            if start < stop:
                base = int(self.starts[run])
                array[start - low : stop - low] = self.read_run(run, start - base, stop - base)
        return memoryview(array.data).cast("B")[first - low * size : last - low * size]


class JoinedTable:
    """Puts the columns of a table together, of which it has only the shapes in place of the elements."""

    def __init__(self, scratch: Scratch, source: str, numbers: Sequence[int]) -> None:
        self._scratch, self._source, self._numbers = scratch, source, tuple(numbers)
        self._pieces: dict[int, Piece] = {}

    def array(self, joined: Joined) -> npt.NDArray[Any]:
        """An array with the shape of a joined one."""
        array = self._scratch.new_array((int(joined.starts[-1]),), joined.dtype)
        if len(array):
            self._pieces[array.ctypes.data] = joined
        return array

    def numbers(self, column: str, counts: Counts, dtype: npt.DTypeLike) -> pa.Array:
        """A column of numbers, of which there are so many in each table."""
        return pa.array(self._values(column, counts, dtype))

    def words(self, column: str, counts: Counts) -> pa.Array:
        """A column of signatures or masks."""
        words = self._values(column, [SIGNATURE_WORDS * count for count in counts], np.uint64)
        return from_words(words.reshape(-1, SIGNATURE_WORDS))

    def lists(self, column: str, counts: Counts, totals: Counts, dtype: npt.DTypeLike) -> pa.Array:
        """A column of lists, of which there are so many in each table, with so many values in all."""
        offsets = self._offsets(column, counts, totals, list_offsets(np.array(totals, np.int64)).dtype)
        return from_lists(Lists(offsets, self._values(column, totals, dtype)))

    def strings(self, column: str, counts: Counts, nbytes: Counts) -> pa.Array:
        """A column of strings, of which there are so many in each table, with so many bytes in all.

        Its offsets have 64 bits, however few bytes there are, as those of keys.
        """
        offsets = self._offsets(column, counts, nbytes, np.dtype(np.int64))
        return from_strings(Strings(offsets, self._values(column, nbytes, np.uint8)))

    def file(self, name: str, /, **columns: pa.Array) -> TableFile:
        """The file of the table with these columns, of which parts can be written by any process."""
        return table_file(name, table_of(**columns), self._pieces)

    def _values(self, column: str, counts: Counts, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        starts = offsets_of(np.array(counts, np.int64))
        read = partial(_values_of, self._scratch, self._source, self._numbers, column)
        return self.array(Joined(np.dtype(dtype), starts, read))

    def _offsets(self, column: str, counts: Counts, totals: Counts, dtype: np.dtype[Any]) -> IntArray:
        bases = offsets_of(np.array(totals, np.int64))
        # The first is 0, and a run of its own
        starts = offsets_of(np.array([1, *counts], np.int64))
        read = partial(_ends_of, self._scratch, self._source, self._numbers, column, bases)
        offsets: IntArray = self.array(Joined(dtype, starts, read))
        offsets[-1] = bases[-1]  # which Arrow looks at
        return offsets


def _values_of(
    scratch: Scratch, source: str, numbers: Sequence[int], column: str, run: int, first: int, last: int
) -> npt.NDArray[Any]:
    values = _offsets_and_values(scratch.read(source, numbers[run], column))[1]
    return values[first:last]


def _ends_of(
    scratch: Scratch,
    source: str,
    numbers: Sequence[int],
    column: str,
    bases: I64Array,
    run: int,
    first: int,
    last: int,
) -> npt.NDArray[Any]:
    if run == 0:
        return np.zeros(1, np.int64)
    offsets = _offsets_and_values(scratch.read(source, numbers[run - 1], column))[0]
    ends: I64Array = offsets[first + 1 : last + 1].astype(np.int64) + bases[run - 1]
    return ends


def _offsets_and_values(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """What an array is made of; offsets only lists and strings have."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        strings = to_strings(array)
        return strings.offsets, strings.data
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = to_lists(array)
        return lists.offsets, lists.values
    none = np.zeros(0, np.int64)
    if pa.types.is_fixed_size_list(kind):
        return none, to_words(array).reshape(-1)
    return none, array.to_numpy()


def write_files(spark: SparkSession, scratch: Scratch, files: Sequence[TableFile]) -> list[dict[str, Entry]]:
    """Have the files of tables written to the scratch folder, by as many tasks as there are large parts."""
    parts = [(table, number) for table, file in enumerate(files) for number in range(file.parts)]
    sizes = [files[table].part_size(number) for table, number in parts]
    groups = grouped(range(len(parts)), sizes, table_files.PART_BYTES)
    work = partial(_write, scratch, tuple(files), parts, groups)
    rows = for_each(spark, range(len(groups)), work, _WRITTEN).collect()
    entries = {row.part: json.loads(row.entry) for row in rows}
    written = [dict[str, Entry]() for _ in files]
    for place, (table, number) in enumerate(parts):
        written[table][files[table].part_name(number)] = entries[place]
    return written


def _write(
    scratch: Scratch,
    files: Sequence[TableFile],
    parts: Sequence[tuple[int, int]],
    groups: Sequence[Sequence[int]],
    group: int,
) -> Iterator[pa.RecordBatch]:
    for place in groups[group]:
        table, number = parts[place]
        with scratch.files.new(files[table].part_name(number)) as path:
            entry = files[table].write(number, path)
        yield one_row(part=place, entry=json.dumps(entry))


_GROUP = "number long"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of strings, which tasks look up."""

    scratch: Scratch  # Has slots
    name: str  # Of the slots
    groups: int  # Of hashes
    found: frozenset[int]  # The groups that have strings
    seed: int = 0  # Of the hash

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
    """A table of different strings."""

    name: str  # Of the slots that are made for it
    strings: Callable[[], Strings]  # Gives the strings to a task
    count: int
    seed: int = 0  # Of their hash

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
