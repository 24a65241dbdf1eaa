"""What the benchmarks run on: distinct stored sets and queries that extend them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import BoolArray, I64Array, U64Array, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.kernels.lists import group_by
from tagmatch.model.parallel import even_ranges, run, run_evenly, run_rows
from tagmatch.workloads.queries import SAMPLE_SETS, Draw, Extender, QueryOptions, StoredSets
from tagmatch.workloads.twitter import Numbered, Twitter, TwitterOptions

# Rows that are generated at once, with their duplicates: about 100 bytes each
_MOST_ROWS = 1 << 26

# Leading bits of numbers by which they are grouped, so that several threads can work on them
_GROUP_BITS = 10
_GROUPS = 1 << _GROUP_BITS


#: Keys of a set, in the mean. The paper's 300 million users, with 35 interests each, have 50 for each of its 212
#: million sets (§4.2.1), which takes ten times as much memory.
KEYS_PER_SET = 5.0

# Publishers of the small workload from which it is learned how many a large one needs
_PILOT_PUBLISHERS = 1000

# Rows that are generated at most for a set that is wanted with one key. A number of publishers has a limited number of
# different tweets: of 5.3 million, 212 million sets would be the last of billions of rows.
_MOST_ROWS_PER_SET = 2.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Stored sets and queries."""

    sets: pa.Table  # columns `tags` and `key`; a set occurs once for each of its keys
    distinct: int  # different sets among them
    sample: pa.Table  # some of these, each once: what queries are made of
    queries: pa.ListArray  # lists of strings

    @property
    def keys_per_set(self) -> float:
        """How many keys a set has in the mean."""
        return len(self.sets) / self.distinct


def make_workload(sets: int, queries: int, seed: int, threads: int, *, keys_per_set: float = KEYS_PER_SET) -> Workload:
    """Generate users of the Twitter-like workload until their interests are enough distinct sets."""
    options = TwitterOptions(seed=seed)
    if keys_per_set > 1:
        publishers = min(options.publishers, _publishers(options, sets, keys_per_set, threads))
        options = replace(options, publishers=publishers)
    rows, sample = _generate(options, sets, one_key=keys_per_set <= 1, threads=threads)
    return Workload(rows, sets, sample, extend(sample, queries, 2, 4, seed, threads=threads))


def extend(
    sets: pa.Table,
    queries: int,
    min_extra: int,
    max_extra: int,
    seed: int,
    *,
    threads: int = 1,
    draw: Draw = "frequency",
) -> pa.ListArray:
    """Make queries of sets, each with some tags more, drawn in proportion to their frequency in the sets, or alike."""
    stored = StoredSets.learn(sets["tags"].chunks, sample=len(sets), threads=threads)
    return Extender(stored, QueryOptions(seed, min_extra, max_extra, draw)).queries(0, queries, threads=threads)


def distinct_sets(options: TwitterOptions, count: int, *, threads: int = 1) -> pa.Table:
    """Generate the first `count` distinct sets, each with its first key: columns `tags` and `key`."""
    return _generate(options, count, one_key=True, threads=threads)[0]


def _publishers(options: TwitterOptions, sets: int, keys_per_set: float, threads: int) -> int:
    """Return the number of publishers whose interests are `sets` sets just when these have `keys` keys."""
    pilot = Twitter(replace(options, publishers=_PILOT_PUBLISHERS))
    users = 1 + round(2 * keys_per_set * _PILOT_PUBLISHERS / options.mean_followed)
    while True:
        rows = Rows(pilot, 0, users, threads).without_repeats()
        new = np.zeros(len(rows), np.bool_)
        new[Seen().add(rows.sums, threads=threads)] = True
        distinct = np.cumsum(new)
        before = int(np.flatnonzero(np.arange(1, len(rows) + 1) < keys_per_set * distinct)[-1])
        if before + 1 < len(rows):
            break
        users *= 2
    fewest = math.ceil(2 * options.mean_followed)
    return max(fewest, round(sets * _PILOT_PUBLISHERS / int(distinct[before])))


def with_publishers(options: TwitterOptions, count: int, threads: int) -> TwitterOptions:
    """Return the options with more publishers if theirs have too few tweets for this number of sets of one key."""
    if count <= options.publishers:  # there are enough
        return options
    needed = _publishers(options, count, _MOST_ROWS_PER_SET, threads)
    return replace(options, publishers=max(options.publishers, needed))


def _generate(options: TwitterOptions, count: int, *, one_key: bool, threads: int) -> tuple[pa.Table, pa.Table]:
    """Generate rows until they have `count` distinct sets; returns them, and first rows of no more than `SAMPLE_SETS`.

    With one key, there are more publishers than `options` say if these have too few tweets.
    """
    model, seen = Twitter(with_publishers(options, count, threads) if one_key else options), Seen()
    taken, sample, every = list[pa.RecordBatch](), list[pa.RecordBatch](), -(-count // SAMPLE_SETS)
    all_first = one_key and every == 1
    users, found, new_share = 0, 0, 1.0
    while found < count:
        # Some more than it takes, as the more sets there are, the fewer rows are new
        wanted = min(_MOST_ROWS, 1.1 * (count - found) / new_share)
        more = 1 + round(wanted / options.mean_followed)
        rows = Rows(model, users, users + more, threads)
        if not one_key:
            rows = rows.without_repeats()
        new = seen.add(rows.sums, threads=threads)
        new_share = max(1, len(new)) / len(rows)
        # The end may belong to one set too many
        end = int(new[count - found]) if found + len(new) > count else len(rows)
        new = new[: count - found]
        taken += rows.in_words(new if one_key else np.arange(end))
        if not all_first:
            sample += rows.in_words(new[-found % every :: every])
        found, users = found + len(new), users + more
    table = pa.Table.from_batches(taken)
    return table, table if all_first else pa.Table.from_batches(sample)


class Rows:
    """Rows of some users, whose tags are numbers until they are written."""

    def __init__(self, model: Twitter, first_user: int, last_user: int, threads: int) -> None:
        self._model, self._threads = model, threads
        self._blocks = model.numbered(first_user, last_user, threads=threads)
        #: A number for each row that depends on its set only
        self.sums: U64Array = np.concatenate(run(Numbered.sums, self._blocks, threads))

    def __len__(self) -> int:
        return len(self.sums)

    def without_repeats(self) -> Rows:
        """Leave out pairs of a set and a key that came before: of a user that wants the same from two publishers."""
        # Keys are far apart
        keys = np.concatenate([block.keys for block in self._blocks]) * np.uint64(0x9E3779B97F4A7C15)
        kept = Seen().add(np.maximum(self.sums ^ keys, np.uint64(1)), threads=self._threads)
        if len(kept) < len(self):
            self._blocks = run(lambda part: part[0].some(part[1]), self.parts(kept), self._threads)
            self.sums = self.sums[kept]
        return self

    def in_words(self, rows: I64Array) -> list[pa.RecordBatch]:
        """Write some rows, ascending, in batches."""
        write = self._model.in_words
        return run(lambda part: write(part[0].some(part[1])), self.parts(rows), self._threads)

    def parts(self, rows: I64Array) -> list[tuple[Numbered, I64Array]]:
        """Each block with those of the rows that it has."""
        starts = offsets_of(np.array([len(block.keys) for block in self._blocks]))
        wanted = np.split(rows, np.searchsorted(rows, starts[1:-1]))
        return [(block, some - first) for block, some, first in zip(self._blocks, wanted, starts, strict=False)]


class Seen:
    """The numbers seen so far, which are as good as random: hash tables, one for each value of their first bits."""

    def __init__(self, expected: int = 0) -> None:
        self._count = 0
        self._tables = np.zeros((_GROUPS, _slots(expected)), np.uint64)

    def add(self, numbers: U64Array, *, threads: int = 1) -> I64Array:
        """See more numbers; returns, in order, the places of those that were not seen before."""
        slots = _slots(self._count + len(numbers))
        if slots > self._tables.shape[1]:
            tables = np.zeros((_GROUPS, slots), np.uint64)
            _place(tables, self._tables[self._tables != 0], threads)
            self._tables = tables
        new = np.flatnonzero(_place(self._tables, numbers, threads))
        self._count += len(new)
        return new


def _slots(count: int) -> int:
    """Slots of a group, which are about half full, with room for a group that is larger than others."""
    return 1 << (2 * count // _GROUPS + 64).bit_length()


def _place(tables: U64Array, numbers: U64Array, threads: int) -> BoolArray:
    """Add numbers to the tables of their groups; returns which of them are new."""
    labels = np.empty(len(numbers), np.uint32)

    def label(first: int, last: int) -> None:
        np.right_shift(numbers[first:last], 64 - _GROUP_BITS, out=labels[first:last], casting="unsafe")

    run_evenly(label, len(numbers), threads)
    starts, order = group_by(labels, _GROUPS, threads=threads)
    new = np.zeros(len(numbers), np.bool_)

    def work(first: int, last: int) -> None:
        for group in range(first, last):
            _add(numbers, order[starts[group] : starts[group + 1]], tables[group], new)

    run_rows(work, even_ranges(_GROUPS, 4 * threads), threads)
    return new


@kernel
def _add(numbers, places, table, new):
    """Add numbers to a hash table whose free slots hold zero, which is no set's number."""
    last_slot = np.uint64(len(table) - 1)
    for place in places:
        number = numbers[place]
        slot = number & last_slot
        while table[slot] != number and table[slot] != np.uint64(0):
            slot = (slot + np.uint64(1)) & last_slot
        if table[slot] != number:
            table[slot] = number
            new[place] = True
