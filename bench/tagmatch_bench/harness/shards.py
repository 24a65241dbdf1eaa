"""Distinct sets in Parquet files of a folder, which a later process goes on with; and many keys for each of them.

With one key, that is the user whose interest the set is. With more, the keys of a set depend on the set alone: ten
billion rows of users would not fit the disk of a usual machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tagmatch import TagMatchError
from tagmatch.files.formats import write_whole
from tagmatch.model.arrays import I64Array, Lists, TagLists, U64Array, offsets_of
from tagmatch.model.columns import tag_lists
from tagmatch.model.kernels.hashing import hash_tags
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.parallel import run, run_evenly
from tagmatch.workloads.numbers import mix
from tagmatch.workloads.queries import SAMPLE_SETS
from tagmatch.workloads.twitter import Numbered, Twitter, TwitterOptions
from tagmatch_bench.harness.data import Rows, Seen, make_workload, with_publishers
from tagmatch_bench.harness.reference import all_tags_in, right_answers

#: Sets of a file
SHARD_SETS = 1 << 18
#: Users whose rows are drawn at once, at most: some 17 million
_USERS = 475_000
#: Interests of a user in the mean, and sets of the workload from which it is learned how many keys sets have
_INTERESTS, _PILOT_SETS = 35.25, 4_000

_COLUMNS = ("tags", "key")

_U = np.uint64

Made = TypeVar("Made")


class Shards:
    """The first distinct sets of a workload, in files of `SHARD_SETS` each."""

    def __init__(self, folder: Path, sets: int, seed: int, threads: int) -> None:
        self._folder, self._sets, self._threads = folder, sets, threads
        self._options = TwitterOptions(seed=seed)

    def _path(self, number: int) -> Path:
        return self._folder / f"sets-{number:05}.parquet"

    @property
    def missing(self) -> int:
        """How many files are still to be written."""
        return sum(not self._path(number).exists() for number in range(-(-self._sets // SHARD_SETS)))

    def write(self) -> None:
        """Write the files that are missing; the sets in others are drawn again, but not written."""
        self._same_workload()
        model, seen = Twitter(with_publishers(self._options, self._sets, self._threads)), Seen(self._sets)
        users, found, waiting = 0, 0, list[tuple[Numbered, I64Array]]()
        while self.missing:
            more = min(_USERS, 1 + round(2 * (self._sets - found) / _INTERESTS))
            rows = Rows(model, users, users + more, self._threads)
            new = seen.add(rows.sums, threads=self._threads)[: self._sets - found]
            begin = found - sum(len(some) for _, some in waiting)
            users, found = users + more, found + len(new)
            shards = list(_of_equal_length([*waiting, *rows.parts(new)], SHARD_SETS))
            whole = (found - begin) // SHARD_SETS
            # No thread waits for another's last file: the files that not all of them write are left for later
            written = len(shards) if found == self._sets else whole - whole % self._threads
            waiting = [part for shard in shards[written:] for part in shard]
            numbered = enumerate(shards[:written], begin // SHARD_SETS)
            run(lambda each: self._write(*each, model=model), numbered, self._threads)

    def _write(self, number: int, parts: Sequence[tuple[Numbered, I64Array]], *, model: Twitter) -> None:
        path = self._path(number)
        if not path.exists():
            table = pa.Table.from_batches([model.in_words(block.some(rows)) for block, rows in parts])
            with write_whole(path) as part:
                pq.write_table(table, part, compression="zstd")

    def _same_workload(self) -> None:
        """Note the workload of these sets; raises if the files are of another one."""
        facts, path = {"sets": self._sets, "seed": self._options.seed}, self._folder / "workload.json"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            with write_whole(path) as part:
                part.write_text(json.dumps(facts))
        elif (there := json.loads(path.read_text())) != facts:
            raise TagMatchError(
                f"{self._folder} has files of another workload, {there}, not {facts}; name another folder"
            )

    def _files(self, count: int) -> range:
        """Numbers of the files that have the first sets."""
        if missing := self.missing:
            raise TagMatchError(f"{self._folder}: {missing} files of sets are missing; run --part generate first")
        return range(-(-count // SHARD_SETS))

    def _read(self, number: int, count: int, columns: Sequence[str]) -> pa.Table:
        table = pq.read_table(self._path(number), columns=list(columns), use_threads=False)
        return table[: count - number * SHARD_SETS]

    def each(self, count: int, work: Callable[[pa.Table], Made], columns: Sequence[str] = _COLUMNS) -> list[Made]:
        """The results of work on the files that have the first sets, without the sets after these."""
        return run(lambda number: work(self._read(number, count, columns)), self._files(count), self._threads)

    def tables(self, count: int) -> Iterator[pa.Table]:
        """Read the first sets, as many files at once as there are threads."""
        files = self._files(count)
        for first in files[:: self._threads]:
            some = files[first : first + self._threads]
            yield from run(lambda number: self._read(number, count, _COLUMNS), some, self._threads)

    def sample(self, count: int) -> pa.Table:
        """Some of the first sets: queries are made of them."""
        every = -(-count // SAMPLE_SETS)

        def some(table: pa.Table) -> pa.Table:
            return pa.table({"tags": table["tags"].combine_chunks().take(pa.array(np.arange(0, len(table), every)))})

        return pa.concat_tables(self.each(count, some, ["tags"]))

    def possible(self, count: int, tags: pa.Array) -> pa.Table:
        """Those of the first sets that have no other tags than these."""

        def some(table: pa.Table) -> pa.Table:
            batches = [batch.filter(all_tags_in(batch["tags"], tags)) for batch in table.to_batches()]
            return pa.Table.from_batches(batches, table.schema)

        return pa.concat_tables(self.each(count, some))


def _of_equal_length(
    parts: Sequence[tuple[Numbered, I64Array]], length: int
) -> Iterator[list[tuple[Numbered, I64Array]]]:
    """Divide rows of blocks, in their order, into shares of this length; the last has the rest."""
    share, room = list[tuple[Numbered, I64Array]](), length
    for block, all_rows in parts:
        rows = all_rows
        while len(rows):
            share.append((block, rows[:room]))
            rows, room = rows[room:], room - len(share[-1][1])
            if not room:
                yield share
                share, room = [], length
    if share:
        yield share


# -- keys --------------------------------------------------------------------------------------------------------------


class DrawnKeys:
    """Keys of sets: how many is drawn from those that sets of the workload have, and which from its users."""

    def __init__(self, sets: int, keys_per_set: float, seed: int, threads: int) -> None:
        pilot = make_workload(_PILOT_SETS, 1, seed, threads, keys_per_set=keys_per_set).sets
        self._lengths = np.unique(_numbers_in(pilot["tags"]), return_counts=True)[1]
        self._users = max(int(self._lengths.max()), round(sets * keys_per_set / _INTERESTS))
        self._threads = threads

    def of_tables(self, ranks: Lists, hashes: U64Array) -> Lists:
        """Keys, ascending, of the sets of an index, whose tags have these hashes."""
        return self._drawn(_numbers(ranks, hashes, self._threads))

    def of_rows(self, sets: pa.ChunkedArray) -> Lists:
        """Keys of sets of strings."""
        return self._drawn(_numbers_in(sets))

    def _drawn(self, numbers: U64Array) -> Lists:
        lengths = self._lengths[numbers % _U(len(self._lengths))]
        offsets = offsets_of(lengths)
        keys = np.empty(offsets[-1], np.uint32)

        def draw(first: int, last: int) -> None:
            _draw(numbers, self._users, offsets, first, last, keys)

        run_evenly(draw, len(numbers), self._threads)
        return Lists(offsets, keys)


def _numbers_in(sets: pa.ChunkedArray) -> U64Array:
    rows = tag_lists(sets, "tags")
    return np.concatenate([np.zeros(0, np.uint64), *map(_numbers_of_rows, rows)])


def _numbers_of_rows(rows: TagLists) -> U64Array:
    hashes = hash_tags(rows)
    return _numbers(Lists(rows.offsets, np.arange(len(hashes), dtype=np.uint32)), hashes, 1)


def _numbers(sets: Lists, hashes: U64Array, threads: int) -> U64Array:
    """A number of each set, which depends on its tags."""
    numbers = np.empty(len(sets), np.uint64)
    run_evenly(
        lambda first, last: _number(sets.offsets, sets.values, hashes, first, numbers[first:last]), len(sets), threads
    )
    return numbers


@kernel
def _number(offsets, ranks, hashes, first, numbers):
    for i in range(len(numbers)):
        found = _U(0)
        for j in range(offsets[first + i], offsets[first + i + 1]):
            found += mix(hashes[ranks[j]])
        numbers[i] = mix(found)


@kernel
def _draw(numbers, users, offsets, first, last, keys):
    """Write the keys of sets: one of each of as many equal ranges of users as the set has keys."""
    for i in range(first, last):
        random, begin = mix(numbers[i]), offsets[i]
        width = users // (offsets[i + 1] - begin)
        for j in range(begin, offsets[i + 1]):
            place = j - begin
            keys[j] = place * width + np.int64(mix(random + _U(place)) % _U(width))


class Oracle:
    """The right answers to a few queries, by brute force over the first sets."""

    def __init__(self, possible: pa.Table, queries: pa.ListArray, drawn: DrawnKeys | None, threads: int) -> None:
        rows = pa.table({"tags": possible["tags"], "key": pa.array(np.arange(len(possible), dtype=np.uint64))})
        self._rows = right_answers(rows, queries, threads=threads)
        self._keys = possible["key"].to_numpy() if drawn is None else None
        self._drawn, self._tags = drawn, possible["tags"].combine_chunks()

    def __call__(self, queries: pa.ListArray, unique: bool) -> list[list[int]]:
        """Keys of the first queries."""
        answers = [self._keys_of(np.array(rows, np.int64)) for rows in self._rows[: len(queries)]]
        return [sorted(set(keys)) for keys in answers] if unique else answers

    def _keys_of(self, rows: I64Array) -> list[int]:
        if self._drawn is None:
            assert self._keys is not None
            return [int(key) for key in self._keys[rows]]
        return [int(key) for key in self._drawn.of_rows(self._tags.take(pa.array(rows))).values]
