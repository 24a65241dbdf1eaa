"""A Twitter-like workload after §4.2 of the TagMatch paper, drawn from random numbers instead of tweets.

A stored set is one user's interest in one publisher: the hashtags of one of the publisher's tweets,
translated to a language by a prefix (`fr_h123`), and for frequent writers the publisher itself as a tag
(`@p42`). A query is a stored set and two to four hashtags more (§4.2.2).

Simplified: the paper takes tweets from the TREC 2011 collection and followers from a crawl of Twitter; here
hashtags follow Zipf's law and the publishers' followers a power law, independently of each other. A set
draws its language for itself, not as one of the one or two languages of its user.

Each row depends on the seed and the row's number alone, so any range of rows can be generated anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch.kernels.jit import inlined, kernel
from tagmatch.parallel import run_rows

if TYPE_CHECKING:
    from collections.abc import Callable

#: Languages of tweets in percent (L. Hong, G. Convertino, E. H. Chi, "Language Matters in Twitter: A Large
#: Scale Study", ICWSM 2011; the paper's [6]); the ten named there are taken for the whole
LANGUAGES = {
    "en": 51.1, "ja": 19.1, "pt": 9.6, "id": 5.6, "es": 4.7, "nl": 1.4, "ko": 1.3, "fr": 1.3, "de": 1.0, "ms": 0.8
}  # fmt: skip
#: Keys are below this number (§4.2.1)
USERS = 300_000_000
#: Hashtags in a tweet: 1 plus an exponential distribution of this scale, so that distinct sets have 5 tags in
#: the mean (§4.2.1), and at most so many
HASHTAGS_SCALE, MAX_HASHTAGS = 4.05, 10
#: A set follows publisher `PUBLISHERS * u**SKEW` for a uniform u: few have most of the followers (chosen)
PUBLISHERS, SKEW = 5_000_000, 2.5
#: A publisher has from 1 to so many tweets, uniformly (chosen)
MAX_TWEETS = 40
#: Share of the publishers that are a tag in their followers' sets. The paper takes the 30 % who write most,
#: but here nobody is followed for writing more: hence a greater share (chosen)
FREQUENT_WRITERS = 0.6

_ROWS_PER_BLOCK = 65_536
_MAX_TAG_BYTES = len("en_h4294967295")
_U = np.uint64


@dataclass(frozen=True, slots=True)
class TwitterOptions:
    """What the workload is drawn from.

    Attributes
    ----------
    seed : int
        Workloads with different seeds share their statistics only.
    stored : int
        Each query extends one of the first `stored` sets.
    hashtags : int
        Different hashtags in each language. Hashtag `t` has a frequency proportional to log(1 + 1 / (t + 1)),
        which is Zipf's law but for the first few. By default a million rows hold 0.93 million distinct sets.
    min_extra_tags, max_extra_tags : int
        Hashtags of a query besides its stored set: two to four, uniformly (§4.2.2).
    """

    seed: int = 1
    stored: int = 1_000_000
    hashtags: int = 1 << 20
    min_extra_tags: int = 2
    max_extra_tags: int = 4

    def __post_init__(self) -> None:
        limits = {
            "seed": (0, 2**64 - 1),
            "stored": (1, 2**32 - 1),
            "hashtags": (8 * (MAX_HASHTAGS + self.max_extra_tags), 2**32 - 1),
            "max_extra_tags": (self.min_extra_tags, 1000),
            "min_extra_tags": (0, 1000),
        }
        for name, (least, most) in limits.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be from {least} to {most}, not {getattr(self, name)}")


class _Law(NamedTuple):
    """What stored sets are drawn from, as kernels take it."""

    seed: np.uint64
    hashtags: int
    shares: Any
    codes: Any


@inlined
def _mix(x):
    """Return a random number for each `x`: SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014)."""
    x = _U(x) + _U(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return x ^ (x >> _U(31))


@inlined
def _uniform(x):
    """Return a random number in [0, 1) for each `x`."""
    return (_mix(x) >> _U(11)) * (1.0 / 9007199254740992.0)


@kernel
def _add_hashtags(random, wanted, hashtags, tags, count):
    """Append `wanted` different hashtags to the `count` numbers in `tags`; returns the new count."""
    draw = _U(0)
    while wanted > 0:
        tag = np.int64(np.exp(_uniform(random + draw) * np.log(hashtags + 1.0))) - 1
        draw += _U(1)
        fresh = tag < hashtags
        for i in range(count):
            fresh &= tags[i] != tag
        if fresh:
            tags[count] = tag
            count += 1
            wanted -= 1
    return count


@kernel
def _make_set(row, law, tags):
    """Write a set's tags, hashtag `t` as t, publisher `p` as -1 - p; returns their count and the language."""
    random = _mix(_U(row) ^ _mix(law.seed))
    publisher = np.int64(PUBLISHERS * _uniform(random) ** SKEW)
    of_publisher = _mix(_U(publisher) ^ _mix(~law.seed))
    tweets = _U(1) + _mix(of_publisher) % _U(MAX_TWEETS)
    tweet = _mix(of_publisher + _U(1) + _mix(random + _U(1)) % tweets)
    language_at = _uniform(random + _U(2))
    language = 0
    while law.shares[language] <= language_at and language < len(law.shares) - 1:
        language += 1
    wanted = 1 + np.int64(-np.log(1.0 - _uniform(tweet)) * HASHTAGS_SCALE)
    count = _add_hashtags(tweet + _U(1), min(wanted, MAX_HASHTAGS), law.hashtags, tags, 0)
    if _uniform(~of_publisher) < FREQUENT_WRITERS:
        tags[count] = -1 - publisher
        count += 1
    return count, language


@kernel
def _write_number(number, data, at):
    """Write `number` in decimal to `data[at:]`; returns the end."""
    end, rest = at + 1, number
    while rest >= 10:
        end, rest = end + 1, rest // 10
    for place in range(end - 1, at - 1, -1):
        data[place] = ord("0") + number % 10
        number //= 10
    return end


@kernel
def _write_tags(tags, language, codes, data, at, ends):
    """Write the strings of tags to `data[at:]` and where each ends to `ends`; returns the last end."""
    for i in range(len(tags)):
        if tags[i] < 0:
            data[at], data[at + 1] = ord("@"), ord("p")
            at = _write_number(-1 - tags[i], data, at + 2)
        else:
            data[at : at + 2] = codes[language]
            data[at + 2], data[at + 3] = ord("_"), ord("h")
            at = _write_number(tags[i], data, at + 4)
        ends[i] = at
    return at


@kernel
def _write_sets(first, law, rows, keys):
    offsets, tag_offsets, data = rows
    tags = np.empty(MAX_HASHTAGS + 1, np.int64)
    tag, at = 0, 0
    for i in range(len(keys)):
        count, language = _make_set(first + i, law, tags)
        at = _write_tags(tags[:count], language, law.codes, data, at, tag_offsets[tag + 1 :])
        tag += count
        offsets[i + 1] = tag
        keys[i] = _mix(_U(first + i) ^ _mix(law.seed + _U(1))) % _U(USERS)


@kernel
def _write_queries(first, law, stored, extra, rows):
    offsets, tag_offsets, data = rows
    least, most = extra
    tags = np.empty(MAX_HASHTAGS + 1 + most, np.int64)
    tag, at = 0, 0
    for i in range(len(offsets) - 1):
        random = _mix(_U(first + i) ^ _mix(law.seed + _U(2)))
        count, language = _make_set(_mix(random) % _U(stored), law, tags)
        wanted = least + np.int64(_mix(random + _U(1)) % _U(most - least + 1))
        count = _add_hashtags(random + _U(2), wanted, law.hashtags, tags, count)
        at = _write_tags(tags[:count], language, law.codes, data, at, tag_offsets[tag + 1 :])
        tag += count
        offsets[i + 1] = tag


def _room(rows: int, most_tags: int) -> tuple[Any, ...]:
    """Return offsets of rows, offsets of tags and bytes, which kernels fill from the front."""
    data = np.empty(rows * most_tags * _MAX_TAG_BYTES, np.uint8)
    return np.zeros(rows + 1, np.int32), np.zeros(rows * most_tags + 1, np.int32), data


def _to_arrow(offsets: Any, tag_offsets: Any, data: Any) -> pa.ListArray:
    tags = int(offsets[-1])
    ends = tag_offsets[: tags + 1].copy()
    strings = pa.StringArray.from_buffers(tags, pa.py_buffer(ends), pa.py_buffer(data[: ends[-1]].copy()))
    return pa.ListArray.from_arrays(pa.array(offsets), strings)


def sets(options: TwitterOptions, first: int, count: int, *, threads: int = 1) -> pa.Table:
    """Generate stored sets `first` to `first + count`: columns `tags` (list of string) and `key` (uint64)."""

    def block(begin: int, end: int) -> pa.RecordBatch:
        rows = _room(end - begin, MAX_HASHTAGS + 1)
        keys = np.empty(end - begin, np.uint64)
        _write_sets(begin, _law(options), rows, keys)
        return pa.record_batch({"tags": _to_arrow(*rows), "key": pa.array(keys)})

    return _table(block, first, count, threads)


def queries(options: TwitterOptions, first: int, count: int, *, threads: int = 1) -> pa.Table:
    """Generate queries `first` to `first + count`: column `tags` (list of string)."""
    extra = (options.min_extra_tags, options.max_extra_tags)

    def block(begin: int, end: int) -> pa.RecordBatch:
        rows = _room(end - begin, MAX_HASHTAGS + 1 + options.max_extra_tags)
        _write_queries(begin, _law(options), options.stored, extra, rows)
        return pa.record_batch({"tags": _to_arrow(*rows)})

    return _table(block, first, count, threads)


def _law(options: TwitterOptions) -> _Law:
    shares = np.cumsum(list(LANGUAGES.values())) / sum(LANGUAGES.values())
    codes = np.frombuffer("".join(LANGUAGES).encode(), np.uint8).reshape(-1, 2)
    return _Law(_U(options.seed), options.hashtags, shares, codes)


def _table(block: Callable[[int, int], pa.RecordBatch], first: int, count: int, threads: int) -> pa.Table:
    if first < 0 or count < 0:
        raise ValueError(f"first and count must be zero or more, not {first} and {count}")
    edges = [*range(first, first + count, _ROWS_PER_BLOCK), first + count]
    head = block(first, first)  # the schema of an empty range, and compiled before threads use it
    return pa.Table.from_batches(run_rows(block, list(pairwise(edges)), threads), head.schema)
