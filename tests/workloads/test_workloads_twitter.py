"""The Twitter-like generator: its statistics, and that rows depend on the seed and the user alone."""

import dataclasses
import math
from collections import Counter, defaultdict
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch import TagMatchError
from tagmatch.workloads.numbers import Followed, followed_law, geometric_ratio, tweets_exponent
from tagmatch.workloads.twitter import LANGUAGES, SECOND_LANGUAGES, Twitter, TwitterOptions

pytestmark = pytest.mark.slow

USERS = 12_000
OPTIONS = TwitterOptions(seed=5)
MODEL = Twitter(OPTIONS)
FIRST, SECOND = (
    {code: weight / sum(weight for _, weight in shares) for code, weight in shares}
    for shares in (LANGUAGES, SECOND_LANGUAGES)
)


@pytest.fixture(scope="module")
def stored() -> pa.Table:
    return MODEL.sets(0, USERS, threads=2)


def slope_of(numbers: np.ndarray, edges: np.ndarray) -> float:
    """The slope of frequency over rank, both logarithmic, in ranges of ranks."""
    density = np.maximum(np.histogram(numbers, edges)[0], 1) / np.diff(edges)
    slope, _ = np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(density), 1)
    return float(slope)


def number_of(tags: pa.Array) -> np.ndarray:
    """The numbers of publishers or hashtags."""
    return pc.replace_substring_regex(tags, "^(@p|[a-z]+_h)", "").cast(pa.int64()).to_numpy()


def test_sets(stored: pa.Table) -> None:
    assert stored.schema == pa.schema({"tags": pa.list_(pa.string()), "key": pa.uint64()})
    stored.validate(full=True)
    assert stored["key"].unique().to_pylist() == list(range(USERS))
    lengths = pc.list_value_length(stored["tags"])
    assert pc.mean(lengths).as_py() == pytest.approx(OPTIONS.mean_tags, abs=0.15)
    assert pc.min(lengths).as_py() == 1
    assert pc.max(lengths).as_py() == OPTIONS.max_hashtags + 1
    tags = pc.list_flatten(stored["tags"]).combine_chunks()
    codes, number = "|".join(dict(LANGUAGES) | dict(SECOND_LANGUAGES)), "(0|[1-9][0-9]*)"
    assert pc.all(pc.match_substring_regex(tags, rf"^(@p{number}|({codes})_h{number})$")).as_py()
    for row in stored["tags"].slice(0, 20_000).to_pylist():
        assert len(set(row)) == len(row)
        assert len({tag.partition("_")[0] for tag in row if tag[0] != "@"}) == 1
    # The top 30 % of publishers; a frequent writer is one in all its followers' interests
    named = pc.starts_with(tags, "@p")
    assert pc.sum(named).as_py() / len(stored) == pytest.approx(OPTIONS.frequent_writers, abs=0.012)
    assert number_of(tags.filter(named)).max() < OPTIONS.publishers
    ranks = number_of(tags.filter(pc.invert(named)))
    assert slope_of(ranks, 2 ** np.arange(2, 17)) == pytest.approx(-OPTIONS.hashtag_exponent, abs=0.05)
    assert ranks.max() < OPTIONS.hashtags
    # A tweet's first hashtag, as the others must differ from it
    most_frequent = pc.ends_with(pc.list_element(stored["tags"], 0), "_h0")
    assert pc.mean(most_frequent).as_py() == pytest.approx(math.log(3) / math.log(2 * OPTIONS.hashtags + 1), rel=0.1)


def test_languages() -> None:
    """Each user's; all follow enough that both are seen, and the first cannot be told from the second."""
    many = Followed(np.array([40]), np.array([1.0]))
    table = Twitter(OPTIONS, followed=many).sets(0, 20_000, threads=2)
    codes = pc.replace_substring_regex(pc.list_element(table["tags"], 0), "_.*", "").to_numpy()
    found = Counter(frozenset(codes[row : row + 40]) for row in range(0, len(codes), 40))
    # Every pair is as frequent as drawing the second among all but the first makes it
    due: dict[frozenset[str], float] = defaultdict(float)
    for first, share in FIRST.items():
        due[frozenset((first,))] += OPTIONS.one_language * share
        for second, weight in SECOND.items():
            if second != first:
                two = (1 - OPTIONS.one_language) * share * weight / (1 - SECOND.get(first, 0))
                due[frozenset((first, second))] += two
    assert found.keys() <= due.keys()
    for languages, share in due.items():
        assert found[languages] / found.total() == pytest.approx(share, abs=0.01)


def test_number_of_followed_publishers() -> None:
    options = TwitterOptions(max_hashtags=1, mean_tags=1.3, seed=2)
    counts = np.bincount(Twitter(options).sets(0, 60_000, threads=2)["key"].to_numpy())
    assert len(counts) == 60_000
    assert counts.min() >= 1
    assert counts.max() <= options.max_followed
    law = followed_law(options.mean_followed, options.followed_exponent, options.max_followed)
    shares = np.diff(law.sums, prepend=0.0)
    assert shares @ law.values == pytest.approx(options.mean_followed, rel=1e-6)
    # Of so heavy a tail even the mean of many users varies; that of users below the 99th percentile does not
    due = shares[:399]
    assert counts[counts < 400].mean() == pytest.approx(due @ law.values[:399] / due.sum(), rel=0.03)
    assert counts.mean() == pytest.approx(options.mean_followed, rel=0.35)
    # Hill's estimator of the tail exponent
    tail = np.sort(counts)[-600:]
    assert 1 + 1 / np.mean(np.log(tail / tail[0])) == pytest.approx(options.followed_exponent, abs=0.25)


def test_fits() -> None:
    """The fitted parameters give the means that they are fitted to, computed in another way."""
    ratio = geometric_ratio(4.7, 20)
    shares = [ratio**n - (ratio ** (n + 1) if n < 19 else 0) for n in range(20)]
    assert sum(share * (n + 1) for n, share in enumerate(shares)) == pytest.approx(4.7)
    t, b = np.arange(1, 2_000_001), tweets_exponent(3, 2_000_000)
    assert (t**-b - np.append(t[1:] ** -b, 0)) @ t == pytest.approx(3, rel=1e-4)


@given(edges=st.lists(st.integers(0, 3000), max_size=4), threads=st.integers(1, 4))
def test_rows_do_not_depend_on_ranges_and_threads(stored: pa.Table, edges: list[int], threads: int) -> None:
    keys = stored["key"].to_numpy()
    for first, last in pairwise(sorted(edges)):
        begin, end = np.searchsorted(keys, [first, last])
        assert MODEL.sets(first, last, threads=threads).equals(stored.slice(begin, end - begin))
        assert Twitter(OPTIONS).interests(first, last, threads=threads) == end - begin


def test_seeds_and_far_users() -> None:
    one, other = (Twitter(TwitterOptions(seed=seed)).sets(0, 100) for seed in (1, 2))
    assert not one["tags"].slice(0, 50).equals(other["tags"].slice(0, 50))
    assert set(MODEL.sets(299_999_990, 300_000_000)["key"].to_pylist()) <= set(range(299_999_990, 300_000_000))
    assert MODEL.sets(5, 5).num_rows == 0
    for users in ((-1, 5), (5, 4), (0, 2**60)):
        with pytest.raises(TagMatchError, match="first and last"):
            MODEL.sets(*users)


def test_plain_tweets() -> None:
    options = TwitterOptions(publishers=1000, mean_followed=10, mean_tweets=2, max_tweets=5)
    model = Twitter(options)
    tweets = model.plain_tweets(0, 30_000)
    assert tweets.slice(20_000, 7).equals(model.plain_tweets(20_000, 7))
    assert not tweets.slice(0, 9).equals(model.plain_tweets(0, 9, seed=2))
    authors = [tags[-1] for tags in tweets.to_pylist()]
    assert all(author.startswith("@p") for author in authors)
    # In proportion to their tweets: 1 to 5 times as many as of those with one tweet
    counts = np.array(sorted(Counter(authors).values()))
    assert len(counts) == 1000
    assert np.quantile(counts, 0.99) / np.quantile(counts, 0.25) == pytest.approx(5, rel=0.4)
    codes = Counter(tags[0].partition("_")[0] for tags in tweets.to_pylist())
    assert codes.keys() == FIRST.keys()
    for code, share in FIRST.items():
        assert codes[code] / codes.total() == pytest.approx(share, abs=0.01)

    def without_language(tags: list[str]) -> tuple[tuple[str, ...], str]:
        return tuple(tag.partition("_")[2] for tag in tags[:-1]), tags[-1]

    # Writers write of what they follow: all interests of frequent writers occur except for the language
    written = set(map(without_language, tweets.to_pylist()))
    followed = [tags for tags in Twitter(options).sets(0, 200)["tags"].to_pylist() if tags[-1][0] == "@"]
    assert np.mean([without_language(tags) in written for tags in followed]) > 0.95


@pytest.mark.parametrize("option", [option for option in fields(TwitterOptions) if option.metadata])
def test_numbers_out_of_range(option: dataclasses.Field) -> None:
    for value in (option.metadata["low"] - 1, option.metadata["high"] + 1, "1", True, None, math.nan):
        with pytest.raises(TagMatchError, match=f"^{option.name} must be"):
            TwitterOptions(**{option.name: value})


WRONG: list[dict[str, object]] = [
    {"mean_tags": 1.2}, {"mean_tags": 21}, {"hashtags": 79}, {"mean_tweets": 50, "max_tweets": 40},
    {"publishers": 1.5}, {"languages": ()}, {"languages": (("en", 1), ("en", 2))}, {"languages": (("@en", 1),)},
    {"languages": (("en", 0),)}, {"languages": ("en", "fr", "deu")}, {"second_languages": (("en", math.inf),)},
    {"second_languages": (("en", 1),)},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_options(wrong: dict[str, object]) -> None:
    with pytest.raises(TagMatchError, match=f"^{next(iter(wrong))}"):
        TwitterOptions(**wrong)
    with pytest.raises(TagMatchError, match=r"^mean_followed must be from 1 to 5\.5"):
        Twitter(TwitterOptions(publishers=10))


def test_rows_in_numbers() -> None:
    """They are the rows of `sets`, in their order; equal sets, and no others, have equal sums."""
    rows = MODEL.sets(3, 2_000)
    blocks = MODEL.numbered(3, 2_000, threads=2)
    assert pa.Table.from_batches([MODEL.in_words(block) for block in blocks]) == rows
    sums = np.concatenate([block.sums() for block in blocks]).tolist()
    sets = [frozenset(tags) for tags in rows["tags"].to_pylist()]
    assert len(set(sums)) == len(set(sets)) == len(set(zip(sums, sets, strict=True))) < len(sets)
    (first, *_), some = blocks, np.array([0, 7, 8])
    assert MODEL.in_words(first.some(some)) == MODEL.in_words(first).take(pa.array(some))
