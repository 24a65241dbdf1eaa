"""What queries are made of: the vocabulary of stored sets, and the sets themselves or a sample of them.

Queries as rows `id`, `tags` in Parquet or JSON Lines, at once or as they become due.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tagmatch.files.columns import EVERY_OTHER
from tagmatch.files.formats import STANDARD_STREAM
from tagmatch.files.json import concatenated, json_values, text_of
from tagmatch.files.reading import read_queries
from tagmatch.files.streams import write_whole
from tagmatch.model.arrays import offsets_of
from tagmatch.model.columns import tag_lists
from tagmatch.model.errors import TagMatchError
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.kernels.tag_table import TagInterner
from tagmatch.workloads.pacing import by_interval, when_due
from tagmatch.workloads.shards import mix, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tagmatch.model.arrays import BoolArray, F64Array, I64Array, U32Array, U64Array

#: Most sets that are kept in memory
SAMPLE_SETS = 1 << 22


@dataclass(frozen=True, slots=True)
class StoredSets:
    """Stored sets as lists of tag numbers."""

    tags: pa.LargeStringArray  # The vocabulary: every tag, by number
    frequencies: I64Array  # How many sets hold each tag
    offsets: I64Array  # Set `i` has tags `numbers[offsets[i]:offsets[i + 1]]`; a sample of all sets where they are many
    numbers: U32Array

    @classmethod
    def learn(
        cls, batches: Iterable[pa.Array], *, sample: int = SAMPLE_SETS, seed: int = 1, threads: int = 1
    ) -> StoredSets:
        """Read sets, Arrow arrays of lists of strings, once; keeps all tags but no more than `sample` sets.

        Each set is as likely as any other to be kept, whatever their number and order.
        """
        interner, kept = TagInterner(), _Sample(sample, seed)
        frequencies = np.zeros(1024, np.int64)
        for batch in batches:
            for rows in tag_lists(batch, "tags", stored=True):
                first, last = int(rows.offsets[0]), int(rows.offsets[-1])
                # A dictionary may have tags that no set has
                tags = rows.tags if rows.indices is None else gather_strings(rows.tags, rows.indices, threads=threads)
                hashes = hash_strings(tags, threads=threads, first=first, last=last)
                numbers = interner.intern(tags, hashes, first, threads=threads)
                if len(interner) > len(frequencies):
                    frequencies = np.concatenate([frequencies, np.zeros(2 * len(interner), np.int64)])
                _count(numbers, frequencies)
                kept.add(np.diff(rows.offsets).astype(np.int64), numbers)
        strings = interner.strings()
        buffers = (pa.py_buffer(np.asarray(strings.offsets)), pa.py_buffer(np.asarray(strings.data)))
        tags = pa.LargeStringArray.from_buffers(len(strings), *buffers)
        return cls(tags, frequencies[: len(strings)], *kept.lists())

    def __len__(self) -> int:
        return len(self.offsets) - 1


@kernel
def _count(numbers, frequencies):
    for number in numbers:
        frequencies[number] += 1


@kernel
def _priorities(first, seed, out):
    for i in range(len(out)):
        out[i] = mix(np.uint64(first + i) ^ mix(seed))


class _Sample:
    """Keeps the lists to which random numbers assign the lowest priorities."""

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._seed = size, np.uint64(seed)
        self._seen = 0
        self._limit = np.uint64(2**64 - 1)
        self._parts: list[tuple[U64Array, I64Array, U32Array]] = []

    def add(self, lengths: I64Array, numbers: U32Array) -> None:
        priorities = np.empty(len(lengths), np.uint64)
        _priorities(self._seen, self._seed, priorities)
        self._seen += len(lengths)
        self._parts.append(_filtered((priorities, lengths, numbers), priorities <= self._limit))
        if sum(len(lengths) for _, lengths, _ in self._parts) > 2 * self._size:
            self._prune()

    def _prune(self) -> None:
        merged = self._merged()
        priorities = merged[0]
        if len(priorities) > self._size:
            self._limit = np.partition(priorities, self._size - 1)[self._size - 1]
            merged = _filtered(merged, priorities <= self._limit)
        self._parts = [merged]

    def _merged(self) -> tuple[U64Array, I64Array, U32Array]:
        nothing = (np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint32))
        priorities, lengths, numbers = (np.concatenate(column) for column in zip(nothing, *self._parts, strict=True))
        return priorities, lengths, numbers

    def lists(self) -> tuple[I64Array, U32Array]:
        self._prune()
        ((_, lengths, numbers),) = self._parts
        return offsets_of(lengths), numbers


def _filtered(part: tuple[U64Array, I64Array, U32Array], kept: BoolArray) -> tuple[U64Array, I64Array, U32Array]:
    priorities, lengths, numbers = part
    if kept.all():
        return part
    return priorities[kept], lengths[kept], numbers[np.repeat(kept, lengths)]


def read_tags(path: str) -> Iterator[pa.Array]:
    """Read the column `tags` of a Parquet or JSON Lines file, or of all Parquet files in a folder, in their order."""
    if path != STANDARD_STREAM and Path(path).is_dir():
        read_facts(Path(path))
    for batch in read_queries(path, ignored=EVERY_OTHER):
        yield batch["tags"]


SCHEMA = pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string())})


def rows(make: Callable[[int, int], pa.ListArray], count: int | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Give queries 0 to `count`, or without end, in batches; `make(first, count)` makes some of them."""
    first = 0
    while count is None or first < count:
        some = batch_rows if count is None else min(batch_rows, count - first)
        yield pa.record_batch([pa.array(np.arange(first, first + some)), make(first, some)], schema=SCHEMA)
        first += some


def json_lines(batch: pa.RecordBatch) -> memoryview:
    """Return rows as JSON Lines in UTF-8."""
    return text_of(concatenated('{"id":', json_values(batch["id"]), ',"tags":', json_values(batch["tags"]), "}\n"))


def stream_to_stdout(pairs: Iterable[tuple[F64Array, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Write rows to standard output when they are due; yields what has been written."""
    for _, batch in when_due(pairs):
        sys.stdout.buffer.write(json_lines(batch))
        sys.stdout.buffer.flush()
        yield batch


def stream_to_folder(
    pairs: Iterable[tuple[F64Array, pa.RecordBatch]], folder: Path, interval: float
) -> Iterator[pa.Table]:
    """Write one Parquet file for the rows of every interval of `seconds`, at its end; yields what it has."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise TagMatchError(f"{folder} is not empty; name a new folder for the stream")
    except FileExistsError:
        raise TagMatchError(f"{folder} is a file; name a folder") from None
    except OSError as error:
        raise TagMatchError(f"{folder}: cannot be written: {error.strerror or error}") from None
    for number, table in by_interval(pairs, interval):
        with write_whole(folder / f"queries-{number:08d}.parquet") as part:
            pq.write_table(table, part, compression="zstd")
        yield table
