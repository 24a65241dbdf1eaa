"""Queries of §4.2.2 of the TagMatch paper: a random stored set and a few random tags more; and when they arrive."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tagmatch.files.columns import EVERY_OTHER
from tagmatch.files.formats import STANDARD_STREAM, write_whole
from tagmatch.files.json import object_lines
from tagmatch.files.rows import read_queries
from tagmatch.model.arrays import offsets_of
from tagmatch.model.arrow import from_strings
from tagmatch.model.columns import tag_lists
from tagmatch.model.errors import InvalidValueError, TagMatchError
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.kernels.jit import inlined, kernel
from tagmatch.model.kernels.lists import gather_strings
from tagmatch.model.kernels.tag_table import TagInterner
from tagmatch.model.parallel import run_rows
from tagmatch.workloads.archives import read_facts
from tagmatch.workloads.numbers import check_numbers, check_range, mix, number, position, random_of

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
    offsets: I64Array  # Set `i` has tags `numbers[offsets[i]:offsets[i + 1]]`; a sample of all sets if they are many
    numbers: U32Array

    @classmethod
    def learn(
        cls, batches: Iterable[pa.Array], *, sample: int = SAMPLE_SETS, seed: int = 1, threads: int = 1
    ) -> StoredSets:
        """Read sets, Arrow arrays of lists of strings, once; keeps all tags but no more than `sample` sets.

        Each set is as likely as any other to be kept, for any number and order.
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
                np.add.at(frequencies, numbers, 1)
                kept.add(np.diff(rows.offsets).astype(np.int64), numbers)
        strings = interner.strings()
        return cls(from_strings(strings), frequencies[: len(strings)], *kept.lists())

    def __len__(self) -> int:
        return len(self.offsets) - 1


@kernel
def _priorities(first, seed, out):
    for i in range(len(out)):
        out[i] = random_of(first + i, seed)


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
        nothing = (np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.uint32))
        priorities, lengths, numbers = (np.concatenate(column) for column in zip(nothing, *self._parts, strict=True))
        if len(priorities) > self._size:
            self._limit = np.partition(priorities, self._size - 1)[self._size - 1]
        self._parts = [_filtered((priorities, lengths, numbers), priorities <= self._limit)]

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


def stream_to_stdout(pairs: Iterable[tuple[F64Array, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Write rows to standard output when they are due; yields the written rows."""
    for _, batch in when_due(pairs):
        sys.stdout.buffer.write(object_lines(batch))
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
    for place, table in by_interval(pairs, interval):
        with write_whole(folder / f"queries-{place:08d}.parquet") as part:
            pq.write_table(table, part, compression="zstd")
        yield table


Draw = Literal["uniform", "frequency"]

_U = np.uint64
_QUERIES_PER_BLOCK = 65_536
# Draws in a row that may find tags which the query has already, before the tag after the last of them is taken
_DRAWS = 100


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """How stored sets are extended."""

    seed: int = number(1, 0, 2**63 - 1, "Seed of the random numbers.")
    min_extra: int = number(2, 0, 2**31 - 1, "Fewest tags besides the stored set; each number is as likely.")
    max_extra: int = number(4, 0, 2**31 - 1, "Most tags besides the stored set.")
    # Draw the tags in proportion to the number of stored sets that hold them, or each as often as any other
    draw: Draw = "frequency"

    def __post_init__(self) -> None:
        check_numbers(self)
        check_range(self, "extra")
        if self.draw not in get_args(Draw):
            raise InvalidValueError(f"draw must be one of {', '.join(map(repr, get_args(Draw)))}, not {self.draw!r}")


@kernel
def _pick(first, seed, sets, least, most, rows, extra):
    """Write each query's stored set and how many tags it has besides."""
    for i in range(len(rows)):
        random = random_of(first + i, mix(seed) + _U(1))
        rows[i] = mix(random) % _U(sets)
        extra[i] = least + np.int64(mix(random + _U(1)) % _U(most - least + 1))


@inlined
def _unseen(random, sums, seen, query):
    """Return a random tag that the query has not."""
    tags = _U(len(seen))
    number = _U(0)
    for draw in range(_DRAWS):
        at = mix(random + _U(draw))
        number = position(sums, np.int64(at % _U(sums[-1]))) if len(sums) > 0 else at % tags
        if seen[number] != query:
            return number
    while seen[number] == query:
        number = (number + _U(1)) % tags
    return number


@kernel
def _extend(first, seed, stored, sums, rows, extra, seen, out):
    """Write the tags of queries, none twice; returns the first that wants more tags than there are, -1 if none does."""
    (stored_offsets, numbers), (offsets, tags) = stored, out
    at = 0
    for i in range(len(rows)):
        begin, query = at, np.uint32(i + 1)
        for j in range(stored_offsets[rows[i]], stored_offsets[rows[i] + 1]):
            if seen[numbers[j]] != query:
                seen[numbers[j]] = query
                tags[at] = numbers[j]
                at += 1
        if at - begin + extra[i] > len(seen):
            return i
        random = mix(random_of(first + i, mix(seed) + _U(1)) + _U(2))
        for j in range(extra[i]):
            number = _unseen(random + _U(_DRAWS) * _U(j), sums, seen, query)
            seen[number] = query
            tags[at] = number
            at += 1
        offsets[i + 1] = at
    return -1


class Extender:
    """Makes queries of stored sets; each depends on the sets, the options and its number alone."""

    def __init__(self, stored: StoredSets, options: QueryOptions) -> None:
        if not len(stored):
            raise InvalidValueError("there are no stored sets that queries could extend")
        if options.max_extra > len(stored.tags):
            raise InvalidValueError(
                f"max_extra is {options.max_extra}, but all sets have only {len(stored.tags)} different tags together; "
                "ask for fewer (--max-extra)"
            )
        self._stored, self._options = stored, options
        self._seed = np.uint64(options.seed)
        self._sums = np.cumsum(stored.frequencies if options.draw == "frequency" else np.zeros(0, np.int64))

    def queries(self, first: int, count: int, *, threads: int = 1) -> pa.ListArray:
        """Make queries `first` to `first + count`, lists of strings."""
        edges = [*range(first, first + count, _QUERIES_PER_BLOCK), first + count]
        return pa.concat_arrays(run_rows(self._block, list(pairwise(edges)), threads) or [self._block(first, first)])

    def _block(self, first: int, last: int) -> pa.ListArray:
        stored, options = self._stored, self._options
        rows, extra = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
        _pick(first, self._seed, len(stored), options.min_extra, options.max_extra, rows, extra)
        offsets = offsets_of(np.diff(stored.offsets)[rows] + extra)
        numbers = np.empty(offsets[-1], np.uint32)
        seen = np.zeros(len(stored.tags), np.uint32)
        sets, out = (stored.offsets, stored.numbers), (offsets, numbers)
        failed = _extend(first, self._seed, sets, self._sums, rows, extra, seen, out)
        if failed >= 0:
            raise InvalidValueError(
                f"query {first + failed} needs {extra[failed]} tags besides those of a stored set, but all sets "
                f"have only {len(stored.tags)} different tags together; lower max_extra (--max-extra)"
            )
        tags = stored.tags.take(pa.array(numbers[: offsets[-1]])).cast(pa.string())
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), tags)


_TIMES_PER_BLOCK = 65_536
# Seconds within which queries that are due wait for each other, as sleeping for each would take longer
_TICK = 0.001
# Seconds; there are numbers of seconds for which the operating system cannot sleep
_LONGEST_SLEEP = 3600.0


def arrival_times(rate: float, burstiness: float = 1.0, seed: int = 1) -> Iterator[F64Array]:
    """Return an endless stream of arrivals whose gaps follow a Gamma distribution."""
    if not 0 < rate < np.inf:
        raise InvalidValueError(f"rate must be greater than 0, not {rate!r}")
    if not 0 <= burstiness < np.inf:
        raise InvalidValueError(f"burstiness must be zero or more, not {burstiness!r}")
    return _times(rate, burstiness, seed)


def _times(rate: float, burstiness: float, seed: int) -> Iterator[F64Array]:
    random, numbers, last = np.random.default_rng(seed), np.arange(1.0, _TIMES_PER_BLOCK + 1), 0.0
    while True:
        if burstiness:
            times = last + np.cumsum(random.gamma(1 / burstiness, burstiness / rate, _TIMES_PER_BLOCK))
        else:
            times = numbers / rate
        last, numbers = float(times[-1]), numbers + _TIMES_PER_BLOCK
        yield times


def paced(batches: Iterable[pa.RecordBatch], times: Iterable[F64Array]) -> Iterator[tuple[F64Array, pa.RecordBatch]]:
    """Join rows and their due times: for each batch, an array of as many seconds from the start."""
    blocks = iter(times)
    waiting = np.zeros(0)
    for batch in batches:
        while len(waiting) < len(batch):
            waiting = np.concatenate([waiting, next(blocks)])
        yield waiting[: len(batch)], batch
        waiting = waiting[len(batch) :]


def when_due(
    pairs: Iterable[tuple[F64Array, pa.RecordBatch]],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[F64Array, pa.RecordBatch]]:
    """Give rows, with their due times, once they are due; all that are due at once, however late they are."""
    start = now()
    for due, batch in pairs:
        done = 0
        while done < len(due):
            elapsed = now() - start
            ready = int(np.searchsorted(due, elapsed, side="right"))
            if ready > done:
                yield due[done:ready], batch.slice(done, ready - done)
                done = ready
            else:
                sleep(min(max(due[done] - elapsed, _TICK), _LONGEST_SLEEP))


def by_interval(
    pairs: Iterable[tuple[F64Array, pa.RecordBatch]],
    interval: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[int, pa.Table]]:
    """Give the rows that are due in each interval, of `seconds`, at its end; intervals without rows are left out."""
    start = now()

    def parts() -> Iterator[tuple[int, pa.RecordBatch]]:
        for due, batch in pairs:
            numbers = np.floor_divide(due, interval).astype(np.int64)
            edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            for first, last in pairwise(edges):
                yield int(numbers[first]), batch.slice(first, last - first)

    for place, some in groupby(parts(), itemgetter(0)):
        table = pa.Table.from_batches([batch for _, batch in some])
        while (wait := start + (place + 1) * interval - now()) > 0:
            sleep(min(wait, _LONGEST_SLEEP))
        yield place, table
