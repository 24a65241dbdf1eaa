"""The Twitter-like workload of §4.2 of the TagMatch paper.

A stored set is one user's interest in one publisher: the hashtags of one of the publisher's tweets, translated to one
of the user's languages by a prefix (`fr_cat`), and for frequent writers the publisher itself as a tag (`@p42`). The
user's number is its key.

A user's rows depend on the seed and the user's number alone. A hashtag is a number until it is written: of a
synthetic tweet its rank, written `h5`; of a real one the number of its string.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import Lists, offsets_of
from tagmatch.model.arrow import to_strings
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.kernels.jit import inlined, kernel, lent
from tagmatch.model.kernels.lists import gather
from tagmatch.model.parallel import run, run_rows
from tagmatch.workloads.numbers import (
    MAX_ROWS,
    Followed,
    PowerLaw,
    check_numbers,
    check_rows,
    draw_power_law,
    followed_law,
    geometric_ratio,
    mix,
    number,
    position,
    power_law,
    random_of,
    running_sums,
    tweets_exponent,
    uniform,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tagmatch.model.arrays import F64Array, I64Array, U64Array
    from tagmatch.workloads.archives import Corpus

Shares = tuple[tuple[str, float], ...]

#: Languages of tweets in percent (L. Hong, G. Convertino, E. H. Chi, "Language Matters in Twitter: A Large
#: Scale Study", ICWSM 2011; the paper's [6]); the ten named there are taken for the whole
LANGUAGES: Shares = (
    ("en", 51.1), ("ja", 19.1), ("pt", 9.6), ("id", 5.6), ("es", 4.7), ("nl", 1.4), ("ko", 1.3), ("fr", 1.3),
    ("de", 1.0), ("ms", 0.8),
)  # fmt: skip
#: Speakers of second languages in millions (Ethnologue 2019, as tabulated in Wikipedia's "List of languages by total
#: number of speakers"; the paper's footnote 9)
SECOND_LANGUAGES: Shares = (
    ("en", 898.4), ("hi", 295.3), ("ar", 274.0), ("fr", 199.3), ("zh", 198.7), ("id", 155.4), ("ru", 104.3),
    ("ur", 101.6), ("es", 74.9), ("de", 56.0), ("bn", 36.8), ("pt", 24.2),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TwitterOptions:
    """What the workload is drawn from; each option's meaning and source is its `text`, from which its help is made.

    Kwak: H. Kwak, C. Lee, H. Park, S. Moon, "What is Twitter, a social network or a news media?", WWW 2010 (the
    paper's [8]). TREC: the Tweets2011 collection of the TREC microblog track, which the paper takes its tweets from.
    """

    seed: int = number(1, 0, 2**63 - 1, "Workloads with different seeds share their statistics only.")
    one_language: float = number(0.4, 0, 1, "Share of users with one language, the others have two (paper §4.2.1).")
    mean_followed: float = number(
        35.25, 1, 500_000, "Mean number of publishers that a user follows (Kwak: 1.47 G relations, 41.7 M users)."
    )
    followed_exponent: float = number(
        2.276, 1.01, 10, "Power-law exponent of the number of followed publishers (Kwak)."
    )
    max_followed: int = number(
        100_000, 1, 1_000_000, "Most publishers that a user follows (Kwak's fit holds so far), besides all there are."
    )
    publishers: int = number(
        5_300_000, 1, 2**32 - 1, "Users who write tweets (TREC: about 16 M tweets of 5.3 M users)."
    )
    popularity_exponent: float = number(
        0.0,
        0,
        3,
        "With 0, all publishers are as popular, and a user follows each at most once (paper §4.2.1). Otherwise the "
        "followers of the r-th are proportional to (r + shift)^-exponent; 0.784 is the rank-size law 1 / (2.276 - 1) "
        "of Kwak's followers.",
    )
    popularity_shift: float = number(
        5.4,
        0.5,
        2**32,
        "Shift of that law: of 5.3 M publishers, the first then has 0.2 % of all followers (Kwak: 2.9 M of 1.47 G); "
        "without meaning where the exponent is 0.",
    )
    mean_tweets: float = number(3.0, 1, 1_000_000, "Mean number of tweets of a publisher (TREC).")
    max_tweets: int = number(10_000, 1, 2**31 - 1, "Most tweets of a publisher (chosen).")
    frequent_writers: float = number(
        0.3, 0, 1, "Share of the publishers, by number of tweets, that are a tag in their interests (paper §4.2.1)."
    )
    hashtags: int = number(1 << 20, 1, 2**32 - 1, "Different hashtags, before translation (chosen).")
    hashtag_exponent: float = number(
        1.0, 0, 3, "Exponent of Zipf's law, which the frequency of hashtags follows (chosen)."
    )
    mean_tags: float = number(
        5.0, 1, 1001, "Mean number of tags of an interest, its publisher's included (paper §4.2.1)."
    )
    max_hashtags: int = number(10, 1, 1000, "Most hashtags of a tweet (chosen; 140 characters hold few more).")
    languages: Shares = LANGUAGES
    second_languages: Shares = SECOND_LANGUAGES

    def __post_init__(self) -> None:
        check_numbers(self)
        for name in ("languages", "second_languages"):
            object.__setattr__(self, name, _checked_shares(name, getattr(self, name)))
        if self.one_language < 1 and len({code for code, _ in self.second_languages}) == 1:
            (only,) = (code for code, _ in self.second_languages)
            if any(code == only for code, _ in self.languages):
                raise InvalidValueError(f"second_languages must hold another language than {only!r}")
        if self.hashtags < 8 * self.max_hashtags:
            raise InvalidValueError(
                f"hashtags must be at least 8 times max_hashtags, {8 * self.max_hashtags}, not {self.hashtags}"
            )
        least, most = 1 + self.frequent_writers, self.max_hashtags + self.frequent_writers
        if not least <= self.mean_tags <= most:
            raise InvalidValueError(
                f"mean_tags must be from {least:g} (a hashtag and frequent_writers) to {most:g} (max_hashtags and "
                f"frequent_writers), not {self.mean_tags!r}"
            )
        if self.mean_tweets > self.max_tweets:
            raise InvalidValueError(
                f"mean_tweets must be at most max_tweets, {self.max_tweets}, not {self.mean_tweets}"
            )


def _checked_shares(name: str, shares: object) -> Shares:
    """Shares of languages as tuples, which JSON turns into lists."""
    try:
        pairs = tuple((code, weight) for code, weight in cast(Shares, shares))
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be pairs of a language and its share, not {shares!r}") from None
    codes = [code for code, _ in pairs]
    if not pairs or len(set(codes)) < len(codes):
        raise InvalidValueError(f"{name} must name at least one language, and none twice")
    for code, weight in pairs:
        if not isinstance(code, str) or not code or code[0] == "@":
            raise InvalidValueError(f"{name}: a language must be a string that does not begin with '@', not {code!r}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise InvalidValueError(f"{name}: the share of {code!r} must be a number greater than 0, not {weight!r}")
    return pairs


_U = np.uint64
# A user's random number plus these gives what its languages and its number of interests are drawn from, and, from the
# last on, its interests
_LANGUAGES, _SECOND_LANGUAGE, _FOLLOWED, _PUBLISHERS, _INTERESTS = _U(0), _U(1), _U(2), _U(3), _U(4)


# A tag is drawn as a number: of what it begins with, and, in the low 32 bits, of a hashtag or a publisher
_KIND_BITS = 32
_NUMBER = (1 << _KIND_BITS) - 1
# Of a thread: the room for tags that it filled last
_last = threading.local()


class Languages(NamedTuple):
    """Languages by number; `first` and `second` are running sums of their shares, which end with 1."""

    one: float
    first: F64Array
    second: F64Array


class SyntheticTweets(NamedTuple):
    """Laws of synthetic tweets."""

    inverse_exponent: float
    max_tweets: int
    frequent_from: float
    inverse_log_ratio: float
    max_hashtags: int
    hashtags: PowerLaw


class RealTweets(NamedTuple):
    """Tweets by publisher, and hashtags by tweet; without a tweet, tweets are synthetic.

    Publisher `p` has tweets `tweets[p]` to `tweets[p + 1]`, tweet `t` hashtags `numbers[offsets[t]:offsets[t + 1]]`,
    and the first `frequent` publishers are frequent writers.
    """

    frequent: int
    tweets: I64Array
    offsets: I64Array
    numbers: I64Array


class TwitterModel(NamedTuple):
    """All that rows are drawn from.

    Of `alike` publishers, if they are that many, a user follows different ones, each as likely as any other; where
    it is 0, `popularity` is the law of the publisher of each interest.
    """

    seed: np.uint64
    languages: Languages
    followed: Followed
    alike: int
    popularity: PowerLaw
    synthetic: SyntheticTweets
    real: RealTweets


@kernel
def count_interests(first_user, model, out):
    """Write the number of interests of each user from `first_user` on."""
    for i in range(len(out)):
        random = random_of(_U(first_user) + _U(i), model.seed)
        out[i] = model.followed.values[position(model.followed.sums, uniform(random + _FOLLOWED))]


@lent
def _draw_languages(random, languages):
    """Return a user's two languages, twice the same if it has one only."""
    at = uniform(random + _LANGUAGES)
    if at < languages.one:
        first = position(languages.first, at / languages.one)
        return first, first
    first = position(languages.first, (at - languages.one) / (1.0 - languages.one))
    # In the running sums without the first language, the sums after it move down by its share
    sums = languages.second
    before = sums[first - _U(1)] if first > _U(0) else 0.0
    share = sums[first] - before
    at = uniform(random + _SECOND_LANGUAGE) * (1.0 - share)
    second = position(sums, at if at < before else at + share)
    return first, second


@inlined
def _permuted(x, count, random):
    """Return the number at `x` in a random order of the numbers below `count`.

    A Feistel network, walked until it gives such a number (J. Black, P. Rogaway, "Ciphers with Arbitrary Finite
    Domains", CT-RSA 2002), so that no order has to be kept. With four rounds, some pairs would be twice as likely.
    """
    half = _U(0)
    while _U(1) << (half + half) < count:
        half += _U(1)
    low = (_U(1) << half) - _U(1)
    while True:
        for step in range(10):
            x = ((x & low) << half) | ((x >> half) ^ (mix(random + (_U(step) << _U(32)) + (x & low)) & low))
        if x < count:
            return x


@inlined
def _tweets_of(random, law):
    """Return the number of tweets of the publisher with this random number, and whether it is a frequent writer."""
    u = uniform(random)
    return np.int64(min((1.0 - u) ** law.inverse_exponent, law.max_tweets)), u >= law.frequent_from


@kernel
def count_tweets(first_publisher, model, out):
    """Write the number of tweets of each publisher from `first_publisher` on, which must be synthetic."""
    for i in range(len(out)):
        random = random_of(first_publisher + i, ~model.seed)
        out[i] = _tweets_of(random, model.synthetic)[0]


@lent
def _draw_hashtags(random, law, numbers):
    """Write the different hashtags of a synthetic tweet to `numbers`; returns how many."""
    wanted = 1 + np.int64(min(np.log(1.0 - uniform(random)) * law.inverse_log_ratio, law.max_hashtags - 1.0))
    count = 0
    draw = random
    while count < wanted:
        draw += _U(1)
        number = draw_power_law(law.hashtags, uniform(draw))
        fresh = True
        for i in range(count):
            fresh &= numbers[i] != number
        if fresh:
            numbers[count] = number
            count += 1
    return count


@lent
def _tweet(publisher, random, model, numbers):
    """Write the hashtags of one of the publisher's tweets; returns how many, and whether it is a frequent writer."""
    real = model.real
    if len(real.tweets) > 0:
        first, end = real.tweets[publisher], real.tweets[publisher + 1]
        tweet = first + np.int64(random % _U(end - first))
        start = real.offsets[tweet]
        count = real.offsets[tweet + 1] - start
        for i in range(count):
            numbers[i] = real.numbers[start + i]
        return count, publisher < real.frequent
    of_publisher = random_of(publisher, ~model.seed)
    tweets, frequent = _tweets_of(of_publisher, model.synthetic)
    tweet = mix(of_publisher + _U(1) + random % _U(tweets))
    return _draw_hashtags(tweet, model.synthetic, numbers), frequent


@lent
def _write_tags(publisher, random, language, always_named, model, rows, tag):
    """Append the tags of one of the publisher's tweets: of each hashtag the language and its number.

    The publisher, whose language is the number after the last, is a tag too of frequent writers, or always. Returns the
    number of tags so far.
    """
    tags = rows[1]
    count, frequent = _tweet(publisher, random, model, tags[tag:])
    for _ in range(count):
        tags[tag] |= np.int64(language) << _KIND_BITS
        tag += 1
    if frequent or always_named:
        tags[tag] = len(model.languages.first) << _KIND_BITS | publisher
        tag += 1
    return tag


@kernel
def write_interests(first_user, starts, begin, end, model, rows, keys):
    """Write interests `begin` to `end` of users from `first_user` on, whose interests begin at `starts`."""
    user = np.searchsorted(starts, begin, side="right") - 1
    row, tag = begin, 0
    while row < end:
        random = random_of(first_user + user, model.seed)
        first, second = _draw_languages(random, model.languages)
        order = mix(random + _PUBLISHERS)
        while row < min(end, starts[user + 1]):
            number = _U(row - starts[user])
            interest = mix(random + _INTERESTS + number)
            if model.alike > 0:
                publisher = np.int64(_permuted(number, _U(model.alike), order))
            else:
                publisher = draw_power_law(model.popularity, uniform(interest))
            language = first if mix(interest + _U(1)) & _U(1) else second
            tag = _write_tags(publisher, mix(interest + _U(2)), language, False, model, rows, tag)
            rows[0][row - begin + 1] = tag
            keys[row - begin] = first_user + user
            row += 1
        user += 1


@kernel
def write_tweets(first, seed, tweets, model, rows):
    """Write plain tweets `first`, `first + 1`, ...; `tweets` as in `RealTweets`, of publishers of either kind."""
    seed = mix(mix(model.seed) + seed)
    tag = 0
    for i in range(len(rows[0]) - 1):
        random = mix(_U(first + i) ^ seed)
        publisher = np.int64(position(tweets[1:], np.int64(mix(random) % _U(tweets[-1]))))
        language = position(model.languages.first, uniform(random + _U(1)))
        tag = _write_tags(publisher, mix(random + _U(2)), language, True, model, rows, tag)
        rows[0][i + 1] = tag


SETS_SCHEMA = pa.schema({"tags": pa.list_(pa.string()), "key": pa.uint64()})

_ROWS_PER_BLOCK = 65_536
_BYTES_PER_BLOCK = 1 << 28
_USERS_PER_CHUNK = 65_536
_NO_NUMBERS = np.zeros(0, np.int64)
_NO_TWEETS = RealTweets(0, _NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)


#: Offsets of rows, and their tags, filled from the front
Room: TypeAlias = "tuple[I64Array, I64Array]"


class Numbered(NamedTuple):
    """Rows whose tags are numbers, see `_KIND_BITS`: equal ones are the same tag of a synthetic tweet."""

    tags: Lists
    keys: U64Array

    def some(self, rows: I64Array) -> Numbered:
        """Some of the rows."""
        return Numbered(gather(self.tags, rows.astype(np.uint32)), self.keys[rows])

    def sums(self) -> U64Array:
        """A number for each row that depends on its tags only, never 0."""
        sums = np.empty(len(self.keys), np.uint64)
        _sum_tags(self.tags.offsets, self.tags.values, sums)
        return sums


@kernel
def _sum_tags(offsets, tags, sums):
    for i in range(len(sums)):
        found = _U(0)
        for j in range(offsets[i], offsets[i + 1]):
            found += mix(tags[j])
        sums[i] = max(found, _U(1))


@kernel
def _ends_of_tags(prefixes, tags, offsets):
    """Write where each tag ends: a prefix, and a number in decimal digits."""
    end = 0
    for i in range(len(tags)):
        kind, rest = tags[i] >> _KIND_BITS, tags[i] & _NUMBER
        end += prefixes[kind + 1] - prefixes[kind] + 1
        while rest > 9:
            rest //= 10
            end += 1
        offsets[i + 1] = end


@kernel
def _write_bytes(prefixes, letters, tags, offsets, out):
    """Write the bytes of each tag."""
    for i in range(len(tags)):
        kind, rest, at = tags[i] >> _KIND_BITS, tags[i] & _NUMBER, offsets[i]
        for letter in range(prefixes[kind], prefixes[kind + 1]):
            out[at] = letters[letter]
            at += 1
        for place in range(offsets[i + 1] - 1, at - 1, -1):
            out[place] = 48 + rest % 10
            rest //= 10


def _numbered_tags(prefixes: pa.StringArray, tags: I64Array) -> pa.StringArray:
    """Tags of a prefix each, by its number, and a number."""
    known = to_strings(prefixes)
    offsets = np.zeros(len(tags) + 1, np.int32)
    _ends_of_tags(known.offsets, tags, offsets)
    out = np.empty(offsets[-1], np.uint8)
    _write_bytes(known.offsets, known.data, tags, offsets, out)
    return pa.StringArray.from_buffers(len(tags), pa.py_buffer(offsets), pa.py_buffer(out))


class Twitter:
    """The Twitter-like workload of §4.2.1 of the TagMatch paper."""

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
        first, second = dict(options.languages), dict(options.second_languages)
        codes = list(first | second)
        self._model = TwitterModel(
            np.uint64(options.seed),
            Languages(
                float(options.one_language),
                *(running_sums([shares.get(code, 0.0) for code in codes]) for shares in (first, second)),
            ),
            Followed(np.minimum(followed.values, publishers), followed.sums),
            publishers if options.popularity_exponent == 0 else 0,
            power_law(publishers, options.popularity_exponent, options.popularity_shift),
            _synthetic_tweets(options),
            real,
        )
        # What tags of each kind begin with, which is followed by a string of `_names`, or by the number
        longest_code = max(len(code.encode()) for code in codes) + 1
        self._names = None if corpus is None else corpus.names
        if corpus is None:
            self._prefixes = pa.array([*(f"{code}_h" for code in codes), "@p"])
            self._most_hashtags = options.max_hashtags
            hashtag = longest_code + len(f"h{options.hashtags}")
            self._most_bytes = self._most_hashtags * hashtag + len(f"@p{publishers}")
        else:
            self._prefixes = pa.array([*(f"{code}_" for code in codes), "@"])
            self._most_hashtags = corpus.most_hashtags
            self._most_bytes = self._most_hashtags * longest_code + corpus.most_bytes
        self._rows_per_block = max(1, min(_ROWS_PER_BLOCK, _BYTES_PER_BLOCK // self._most_bytes))

    def interests(self, first_user: int, last_user: int, *, threads: int = 1) -> int:
        """Return how many rows `sets` has for these users."""
        check_rows(first_user, last_user, MAX_ROWS)
        return sum(run_rows(lambda *chunk: int(self._counts(*chunk).sum()), _chunks(first_user, last_user), threads))

    def sets(self, first_user: int, last_user: int, *, threads: int = 1) -> pa.Table:
        """Generate the interests of users `first_user` to `last_user`."""
        check_rows(first_user, last_user, MAX_ROWS)
        batches = run(lambda block: self._interests(*block), self._blocks(first_user, last_user), threads)
        return pa.Table.from_batches(batches, SETS_SCHEMA)

    def stream(self, first_user: int, last_user: int) -> Iterator[pa.RecordBatch]:
        """Generate the rows of `sets` in batches of at most 65,536."""
        check_rows(first_user, last_user, MAX_ROWS)
        return (self._interests(*block) for block in self._blocks(first_user, last_user))

    def _counts(self, first_user: int, last_user: int) -> I64Array:
        counts = np.empty(last_user - first_user, np.int64)
        count_interests(first_user, self._model, counts)
        return counts

    def _blocks(self, first_user: int, last_user: int) -> Iterator[tuple[int, I64Array, int, int]]:
        """Cut the rows of users into blocks: a first user, where rows of users from it on begin, first and last row."""
        for first, last in _chunks(first_user, last_user):
            starts = offsets_of(self._counts(first, last))
            edges = [*range(0, int(starts[-1]), self._rows_per_block), int(starts[-1])]
            for begin, end in pairwise(edges):
                yield first, starts, begin, end

    def _interests(self, *block: Any) -> pa.RecordBatch:
        return self.in_words(self._numbered(*block))

    def _numbered(self, first_user: int, starts: I64Array, begin: int, end: int) -> Numbered:
        room, keys = self._room(end - begin), np.empty(end - begin, np.uint64)
        write_interests(first_user, starts, begin, end, self._model, room, keys)
        return Numbered(_filled(room), keys)

    def numbered(self, first_user: int, last_user: int, *, threads: int = 1) -> list[Numbered]:
        """Draw the rows of `sets`, in the same order, without the strings of their tags, in blocks."""
        check_rows(first_user, last_user, MAX_ROWS)
        return run(lambda block: self._numbered(*block), self._blocks(first_user, last_user), threads)

    def in_words(self, rows: Numbered) -> pa.RecordBatch:
        """Write the tags of some rows as `sets` has them."""
        return pa.record_batch([self._to_arrow(rows.tags), pa.array(rows.keys)], schema=SETS_SCHEMA)

    def _room(self, rows: int) -> Room:
        """Room for rows, whose tags a thread overwrites with the next: memory that is new takes longer to fill."""
        tags = rows * (self._most_hashtags + 1)
        if len(getattr(_last, "tags", ())) < tags:
            _last.tags = np.empty(tags, np.int64)
        return np.zeros(rows + 1, np.int64), _last.tags

    def _to_arrow(self, rows: Lists) -> pa.ListArray:
        """Rows of tags as strings."""
        tags = rows.values.view(np.int64)
        if self._names is None:
            words = _numbered_tags(self._prefixes, tags)
        else:  # names of publishers come after those of hashtags
            kinds, numbers = tags >> _KIND_BITS, tags & _NUMBER
            publishers = (kinds == len(self._prefixes) - 1) * (len(self._names) - self.publishers)
            names = self._names.take(pa.array(numbers + publishers))
            words = pc.binary_join_element_wise(self._prefixes.take(pa.array(kinds)), names, pa.scalar(""))
        return pa.ListArray.from_arrays(pa.array(rows.offsets.astype(np.int32)), words)

    def plain_tweets(self, first: int, count: int, *, seed: int = 1) -> pa.ListArray:
        """Generate tweets `first` to `first + count` of a plain stream of them.

        A publisher is drawn in proportion to its number of tweets, then one of its tweets, and a language by the
        distribution of first languages. Streams with different `seed` are of the same tweets. This takes 8 bytes of
        memory a publisher.
        """
        blocks = []
        for begin in range(first, first + count, self._rows_per_block):
            room = self._room(min(self._rows_per_block, first + count - begin))
            write_tweets(begin, np.uint64(seed), self._tweets, self._model, room)
            blocks.append(self._to_arrow(_filled(room)))
        return pa.concat_arrays(blocks) if blocks else pa.array([], pa.list_(pa.string()))

    @cached_property
    def _tweets(self) -> I64Array:
        """Return where each publisher's tweets begin, were all tweets numbered; length publishers + 1."""
        if len(self._model.real.tweets):
            return self._model.real.tweets
        tweets = np.zeros(self.publishers + 1, np.int64)
        count_tweets(0, self._model, tweets[1:])
        return np.cumsum(tweets, out=tweets)


def _filled(room: Room) -> Lists:
    offsets, tags = room
    return Lists(offsets, tags[: offsets[-1]].copy().view(np.uint64))


def _chunks(first_user: int, last_user: int) -> list[tuple[int, int]]:
    return list(pairwise([*range(first_user, last_user, _USERS_PER_CHUNK), last_user]))


def _synthetic_tweets(options: TwitterOptions) -> SyntheticTweets:
    # A ratio of 1, at which all tweets have the most hashtags, has no logarithm to divide by
    ratio = min(geometric_ratio(options.mean_tags - options.frequent_writers, options.max_hashtags), 1.0 - 1e-9)
    return SyntheticTweets(
        -1.0 / tweets_exponent(options.mean_tweets, options.max_tweets),
        options.max_tweets,
        1.0 - options.frequent_writers,
        1.0 / math.log(ratio),
        options.max_hashtags,
        power_law(options.hashtags, options.hashtag_exponent, 0.5),
    )
