"""Tables whose columns lie among the files of a job, in runs one after the other; many tasks write their files.

Which bytes a part of a file has follows from the lengths of the runs, which the driver knows. So each task writes some
parts, of which it reads what it needs, and no task has a whole table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tagmatch.model.arrays import I64Array, IntArray, Lists, Strings, list_offsets, offsets_of
from tagmatch.model.arrow import from_lists, from_strings, from_words, to_lists, to_strings, to_words
from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.model.storage import table_files
from tagmatch.model.storage.format import Entry
from tagmatch.model.storage.table_files import Piece, TableFile
from tagmatch.model.storage.tables import table_file, table_of
from tagmatch.partitioner.spark.scratch import Scratch
from tagmatch.partitioner.spark.tasks import for_each, grouped, one_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITTEN = "part long, entry string"

#: A number for each run
Counts: TypeAlias = Sequence[int] | I64Array
#: Gives the elements of a run, by its number, from one place in it to another
Read: TypeAlias = Callable[[int, int, int], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """An array of runs, of which any bytes can be read: see `Piece`.

    Attributes
    ----------
    dtype : dtype
    starts : int64 array
        The place of the first element of each run, and how many elements there are.
    read_run : callable
        As `Read`; of any type that `dtype` has room for.
    """

    dtype: np.dtype[Any]
    starts: I64Array
    read_run: Read

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
    """Puts the columns of a table together, of which it has only the shapes in the place of the elements.

    Parameters
    ----------
    scratch : Scratch
    source, numbers
        Name and numbers of the tables of which the columns are joined, in order.
    """

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
    """Have the files of tables written to the scratch folder, by as many tasks as there are large parts.

    Returns
    -------
    list of dict
        For each table, what manifests say of its files, by their names.
    """
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
