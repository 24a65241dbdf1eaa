"""What `tagmatch-bench peers` runs on: data by generators that have the statistics of published data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import I64Array
from tagmatch.workloads.queries import Draw
from tagmatch.workloads.twitter import Twitter, TwitterOptions
from tagmatch_bench.harness.bench import BenchOptions
from tagmatch_bench.harness.data import distinct_sets, extend
from tagmatch_bench.workloads.content import lists_of

#: Stored sets, with columns `tags` and `key`, and queries
Peers: TypeAlias = tuple[pa.Table, pa.ListArray]


def _stored(tags: pa.ListArray) -> pa.Table:
    return pa.table({"tags": tags, "key": np.arange(len(tags), dtype=np.uint64)})


def _lists(sizes: I64Array, numbers: I64Array) -> pa.ListArray:
    return lists_of(sizes, pc.binary_join_element_wise("t", pa.array(numbers).cast(pa.string()), ""))


def _count(options: BenchOptions, most: int) -> int:
    """So many at scale 1, but some in any case."""
    return min(most, max(100, round(most * options.scale)))


def _twitter(sets: int, least: int, draw: Draw, options: BenchOptions) -> Peers:
    """Distinct sets with `least` tags or more; tags of queries by frequency, or all as likely: small answers."""
    count = _count(options, sets)
    drawn = distinct_sets(TwitterOptions(seed=options.seed), 2 * count)
    stored = drawn.filter(pc.greater_equal(pc.list_value_length(drawn["tags"]), least))[:count]
    return stored, extend(stored, options.queries, 2, 4, options.seed, draw=draw)


def _large(options: BenchOptions) -> Peers:
    """Sets as users have them, equal ones too, and tags by frequency, so that answers are large."""
    count, twitter = _count(options, 8_000_000), TwitterOptions(seed=options.seed)
    drawn = Twitter(twitter).sets(0, 1 + round(1.2 * count / twitter.mean_followed))
    stored = _stored(drawn["tags"][:count].combine_chunks())
    return stored, extend(stored, min(options.queries, 2_000), 2, 4, options.seed)


@dataclass(frozen=True, slots=True)
class _Skewed:
    """Sets whose sizes are lognormal, with tags whose frequencies follow Zipf's law; the first sets are the queries."""

    count: int
    mean: float
    spread: float
    most: int  # tags of a set
    universe: int
    exponent: float
    grows: bool = False  # whether fewer sets have fewer tags
    # queries that are drawn instead: how many, and the mean and the spread of their sizes
    asked: tuple[int, float, float] | None = None

    def __call__(self, options: BenchOptions) -> Peers:
        """Make the data."""
        random, count = np.random.default_rng(options.seed), _count(options, self.count)
        universe = max(1000, self.universe * count // self.count) if self.grows else self.universe
        sums = np.cumsum(np.arange(1, universe + 1) ** -self.exponent)
        names = random.permutation(universe)  # which do not tell the frequency

        def sets(count: int, mean: float, spread: float, most: int) -> pa.ListArray:
            """Draw sets; each tag of a set is drawn again until it has no other place there."""
            drawn = random.lognormal(np.log(mean) - spread**2 / 2, spread, count)
            sizes = np.clip(np.round(drawn), 1, min(most, universe // 2)).astype(np.int64)
            found, lacking = np.zeros(0, np.int64), sizes
            while lacking.any():
                rows = np.repeat(np.arange(count), lacking)
                tags = np.searchsorted(sums, random.random(len(rows)) * sums[-1])
                found = np.unique(np.concatenate([found, rows * universe + tags]))
                lacking = sizes - np.bincount(found // universe, minlength=count)
            return _lists(sizes, names[found % universe])

        tags = sets(count, self.mean, self.spread, self.most)
        if self.asked is None:
            return _stored(tags), tags[: options.queries]
        most, mean, spread = self.asked
        return _stored(tags), sets(min(options.queries, most), mean, spread, universe)


#: Values of each of mushroom's 23 attributes
_VALUES = np.array([2, 6, 4, 10, 2, 9, 2, 2, 2, 12, 2, 5, 4, 4, 9, 9, 1, 4, 3, 5, 9, 6, 7])


def _mushroom(options: BenchOptions) -> Peers:
    """Records with a value of each attribute, some much more frequent; sets are two to eight values of a record."""
    random, width = np.random.default_rng(options.seed), len(_VALUES)

    def records(count: int) -> I64Array:
        values = (random.random((count, width)) ** 3 * _VALUES).astype(np.int64)
        found: I64Array = values + np.cumsum(_VALUES) - _VALUES
        return found

    count, asked = _count(options, 49_000), records(min(options.queries, 8_124))
    chosen = random.random((count, width)).argsort(axis=1) < random.integers(2, 9, count)[:, None]
    sets = _lists(chosen.sum(axis=1), records(count)[chosen])
    return _stored(sets), _lists(np.full(len(asked), width), asked.ravel())


#: By the names of their parts. Statistics of AOL, Orkut, Netflix and kosarak were published with TT-Join; the spread
#: of sizes is chosen, and Orkut and Netflix have fewer sets. Machines have all tags of their Debian packages
DATA: Mapping[str, Callable[[BenchOptions], Peers]] = {
    "100": partial(_twitter, 100, 1, "frequency"),
    "10000": partial(_twitter, 10_000, 1, "frequency"),
    "selective": partial(_twitter, 1_000_000, 3, "uniform"),
    "large": _large,
    "aol": _Skewed(1_000_000, 3.0, 0.7, 245, 390_000, 0.68, grows=True),
    "orkut": _Skewed(200_000, 57.2, 1.0, 3000, 1_500_000, 0.6, grows=True),
    "netflix": _Skewed(20_000, 209.5, 1.1, 4000, 17_770, 0.57),
    "machines": _Skewed(56_000, 4.9, 0.5, 30, 4_500, 1.0, asked=(500, 837.0, 0.1)),
    "mushroom": _mushroom,
    "kosarak": _Skewed(37_000, 8.1, 1.0, 2498, 41_270, 1.1),
}
