"""Generates rows of the workload: users' interests, and plain tweets, in Arrow columns."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import offsets_of
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.parallel import run, run_rows
from tagmatch.workloads.twitter import kernels
from tagmatch.workloads.twitter.laws import Followed, followed_law, geometric_ratio, power_law, tweets_exponent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tagmatch.model.arrays import F64Array, I64Array
    from tagmatch.workloads.twitter.corpus import Corpus
    from tagmatch.workloads.twitter.options import TwitterOptions

SETS_SCHEMA = pa.schema({"tags": pa.list_(pa.string()), "key": pa.uint64()})
#: Keys are users' numbers, below this
MAX_USERS = 2**40

_ROWS_PER_BLOCK = 65_536
_BYTES_PER_BLOCK = 1 << 28
_USERS_PER_CHUNK = 65_536
_NO_NUMBERS, _NO_BYTES = np.zeros(0, np.int64), np.zeros(0, np.uint8)
_NO_TWEETS = kernels.RealTweets(
    0, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, _NO_BYTES, _NO_NUMBERS, _NO_BYTES
)


class Twitter:
    """The Twitter-like workload of §4.2.1 of the TagMatch paper.

    Parameters
    ----------
    options : TwitterOptions
    corpus : Corpus, optional
        Real tweets in place of synthetic ones. Options of the number of publishers, of tweets and of hashtags then
        have no meaning, nor has `languages` where the corpus has languages. With a `popularity_exponent`, publishers
        are as popular as they rank by number of tweets.
    followed : Followed, optional
        A real distribution of the number of followed publishers, in place of the options'.

    Raises
    ------
    InvalidValueError
        `mean_followed` cannot be had with so few publishers.

    Notes
    -----
    With a `popularity_exponent`, an interest's publisher is drawn without regard to the user's other interests, so that
    a user may follow a popular publisher twice, with different tweets or with the same.
    """

    def __init__(
        self, options: TwitterOptions, *, corpus: Corpus | None = None, followed: Followed | None = None
    ) -> None:
        if corpus is not None and corpus.languages:
            options = replace(options, languages=corpus.languages)
        real = _NO_TWEETS
        if corpus is not None:
            frequent = math.floor(options.frequent_writers * (len(corpus.tweets.tweets) - 1) + 0.5)
            real = corpus.tweets._replace(frequent=frequent)
        publishers = options.publishers if corpus is None else len(corpus.tweets.tweets) - 1
        if followed is None:
            most = min(options.max_followed, publishers)
            followed = followed_law(options.mean_followed, options.followed_exponent, most)
        self.publishers = publishers
        self._model = kernels.Model(
            np.uint64(options.seed),
            _languages(options),
            Followed(np.minimum(followed.values, publishers), followed.sums),
            publishers if options.popularity_exponent == 0 else 0,
            power_law(publishers, options.popularity_exponent, options.popularity_shift),
            _synthetic_tweets(options),
            real,
        )
        longest_code = int(np.diff(self._model.languages.offsets).max()) + 1
        if corpus is None:
            self._most_hashtags = options.max_hashtags
            hashtag = longest_code + len(f"h{options.hashtags}")
            self._most_bytes = self._most_hashtags * hashtag + len(f"@p{publishers}")
        else:
            self._most_hashtags = corpus.most_hashtags
            self._most_bytes = self._most_hashtags * longest_code + corpus.most_bytes
        self._rows_per_block = max(1, min(_ROWS_PER_BLOCK, _BYTES_PER_BLOCK // self._most_bytes))

    def interests(self, first_user: int, last_user: int, *, threads: int = 1) -> int:
        """Return how many rows `sets` has for these users."""
        _check_range(first_user, last_user)
        return sum(run_rows(lambda *chunk: int(self._counts(*chunk).sum()), _chunks(first_user, last_user), threads))

    def sets(self, first_user: int, last_user: int, *, threads: int = 1) -> pa.Table:
        """Generate the interests of users `first_user` to `last_user`.

        Returns
        -------
        pyarrow.Table
            One row per interest, in the order of users: `tags` (list of string, none twice) and `key` (uint64), the
            user's number. Rows depend on the options and the user's number alone.
        """
        _check_range(first_user, last_user)
        batches = run(lambda block: self._interests(*block), self._blocks(first_user, last_user), threads)
        return pa.Table.from_batches(batches, SETS_SCHEMA)

    def stream(self, first_user: int, last_user: int) -> Iterator[pa.RecordBatch]:
        """Generate the rows of `sets` in batches of at most 65,536."""
        _check_range(first_user, last_user)
        return (self._interests(*block) for block in self._blocks(first_user, last_user))

    def _counts(self, first_user: int, last_user: int) -> I64Array:
        counts = np.empty(last_user - first_user, np.int64)
        kernels.count_interests(first_user, self._model, counts)
        return counts

    def _blocks(self, first_user: int, last_user: int) -> Iterator[tuple[int, I64Array, int, int]]:
        """Cut the rows of users into blocks: a first user, where rows of users from it on begin, first and last row."""
        for first, last in _chunks(first_user, last_user):
            starts = offsets_of(self._counts(first, last))
            edges = [*range(0, int(starts[-1]), self._rows_per_block), int(starts[-1])]
            for begin, end in pairwise(edges):
                yield first, starts, begin, end

    def _interests(self, first_user: int, starts: I64Array, begin: int, end: int) -> pa.RecordBatch:
        numbers, rows = self._room(end - begin)
        keys = np.empty(end - begin, np.uint64)
        kernels.write_interests(first_user, starts, begin, end, self._model, numbers, rows, keys)
        return pa.record_batch([_to_arrow(*rows), pa.array(keys)], schema=SETS_SCHEMA)

    def _room(self, rows: int) -> tuple[I64Array, tuple[Any, Any, Any]]:
        """Return numbers of a tweet's hashtags; offsets of rows, offsets of tags and bytes, filled from the front."""
        tags = rows * (self._most_hashtags + 1)
        data = np.empty(rows * self._most_bytes, np.uint8)
        offsets, tag_offsets = np.empty(rows + 1, np.int32), np.empty(tags + 1, np.int32)
        offsets[0] = tag_offsets[0] = 0
        return np.empty(self._most_hashtags, np.int64), (offsets, tag_offsets, data)

    def plain_tweets(self, first: int, count: int, *, seed: int = 1) -> pa.ListArray:
        """Generate tweets `first` to `first + count` of a plain stream of them.

        A publisher is drawn in proportion to its number of tweets, then one of its tweets, and a language by the
        distribution of first languages. Streams with different `seed` are of the same tweets. This takes 8 bytes of
        memory a publisher.

        Returns
        -------
        pyarrow.ListArray
            Of strings: a tweet's hashtags and its publisher, whether a frequent writer or not.
        """
        blocks = []
        for begin in range(first, first + count, self._rows_per_block):
            numbers, rows = self._room(min(self._rows_per_block, first + count - begin))
            kernels.write_tweets(begin, np.uint64(seed), self._tweets, self._model, numbers, rows)
            blocks.append(_to_arrow(*rows))
        return pa.concat_arrays(blocks) if blocks else pa.array([], pa.list_(pa.string()))

    @cached_property
    def _tweets(self) -> I64Array:
        """Return where each publisher's tweets begin, were all tweets numbered; length publishers + 1."""
        if len(self._model.real.tweets):
            return self._model.real.tweets
        tweets = np.zeros(self.publishers + 1, np.int64)
        kernels.count_tweets(0, self._model, tweets[1:])
        return np.cumsum(tweets, out=tweets)


@lru_cache(maxsize=4)
def _model(options: TwitterOptions) -> Twitter:
    return Twitter(options)


def sets(options: TwitterOptions, first_user: int, last_user: int, *, threads: int = 1) -> pa.Table:
    """Generate the interests of users `first_user` to `last_user` from synthetic tweets; see `Twitter.sets`."""
    return _model(options).sets(first_user, last_user, threads=threads)


def _check_range(first_user: int, last_user: int) -> None:
    if not 0 <= first_user <= last_user <= MAX_USERS:
        raise InvalidValueError(
            f"first_user and last_user must be ascending and from 0 to {MAX_USERS}, not {first_user} and {last_user}"
        )


def _chunks(first_user: int, last_user: int) -> list[tuple[int, int]]:
    return list(pairwise([*range(first_user, last_user, _USERS_PER_CHUNK), last_user]))


def _languages(options: TwitterOptions) -> kernels.Languages:
    first, second = dict(options.languages), dict(options.second_languages)
    codes = list(first | second)
    encoded = [code.encode() for code in codes]
    return kernels.Languages(
        float(options.one_language),
        _running_sums([first.get(code, 0.0) for code in codes]),
        _running_sums([second.get(code, 0.0) for code in codes]),
        offsets_of(np.array([len(code) for code in encoded])),
        np.frombuffer(b"".join(encoded), np.uint8).copy(),
    )


def _running_sums(shares: list[float]) -> F64Array:
    sums: F64Array = np.cumsum(shares, dtype=np.float64)
    sums /= sums[-1]
    return sums


def _synthetic_tweets(options: TwitterOptions) -> kernels.SyntheticTweets:
    # A ratio of 1, at which all tweets have the most hashtags, has no logarithm to divide by
    ratio = min(geometric_ratio(options.mean_tags - options.frequent_writers, options.max_hashtags), 1.0 - 1e-9)
    return kernels.SyntheticTweets(
        -1.0 / tweets_exponent(options.mean_tweets, options.max_tweets),
        options.max_tweets,
        1.0 - options.frequent_writers,
        1.0 / math.log(ratio),
        options.max_hashtags,
        power_law(options.hashtags, options.hashtag_exponent, 0.5),
    )


def _to_arrow(offsets: Any, tag_offsets: Any, data: Any) -> pa.ListArray:
    tags = int(offsets[-1])
    ends = tag_offsets[: tags + 1].copy()
    strings = pa.StringArray.from_buffers(tags, pa.py_buffer(ends), pa.py_buffer(data[: ends[-1]].copy()))
    return pa.ListArray.from_arrays(pa.array(offsets), strings)
