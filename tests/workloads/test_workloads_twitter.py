"""The Twitter-like generator: its statistics, and that rows depend on the seed and the user alone."""

from __future__ import annotations

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
from tagmatch.workloads.twitter import Followed, Twitter, TwitterOptions, sets
from tagmatch.workloads.twitter.laws import followed_law, geometric_ratio, tweets_exponent
from tagmatch.workloads.twitter.options import LANGUAGES, SECOND_LANGUAGES

pytestmark = pytest.mark.slow

USERS = 12_000
OPTIONS = TwitterOptions(seed=5)
FIRST, SECOND = (
    {code: weight / sum(weight for _, weight in shares) for code, weight in shares}
    for shares in (LANGUAGES, SECOND_LANGUAGES)
)


@pytest.fixture(scope="module")
def stored() -> pa.Table:
    return sets(OPTIONS, 0, USERS, threads=2)


def slope_of(numbers: np.ndarray, edges: np.ndarray) -> float:
    """The slope of frequency over rank, both logarithmic, in ranges of ranks."""
    density = np.maximum(np.histogram(numbers, edges)[0], 1) / np.diff(edges)
    slope, _ = np.polyfit(np.log(np.sqrt(edges[1:] * edges[:-1])), np.log(density), 1)
    return float(slope)


def number_of(tags: pa.Array) -> np.ndarray:
    """The numbers of publishers or hashtags."""
    return pc.replace_substring_regex(tags, "^(@p|[a-z]+_h)", "").cast(pa.int64()).to_numpy()


# -- columns and tags ------------------------------------------------------------------------------------------------


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


def test_users_of_a_set(stored: pa.Table) -> None:
    """Most sets have one user, a few have very many."""
    users: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for tags, key in zip(stored["tags"].to_pylist(), stored["key"].to_pylist(), strict=True):
        users[tuple(sorted(tags))].add(key)
    counts = np.array([len(found) for found in users.values()])
    assert counts.mean() > 1.05
    assert np.median(counts) == 1
    assert counts.max() > 100


# -- laws ------------------------------------------------------------------------------------------------------------


def test_languages() -> None:
    """Each user's, of whom all follow so many that both are seen; the first cannot be told from the second."""
    many = Followed(np.array([40]), np.array([1.0]))
    table = Twitter(OPTIONS, followed=many).sets(0, 20_000, threads=2)
    codes = pc.replace_substring_regex(pc.list_element(table["tags"], 0), "_.*", "").to_numpy()
    users = [frozenset(codes[row : row + 40]) for row in range(0, len(codes), 40)]
    sizes = Counter(map(len, users))
    assert sizes.keys() == {1, 2}
    assert sizes[1] / sizes.total() == pytest.approx(OPTIONS.one_language, abs=0.015)
    one, two = (Counter(each for each in users if len(each) == size) for size in (1, 2))
    assert {code for (code,) in one} == FIRST.keys()
    for code, share in FIRST.items():
        assert one[frozenset((code,))] / one.total() == pytest.approx(share, abs=0.02)
    # Every pair is as frequent as drawing the second among all but the first makes it
    due: dict[frozenset[str], float] = defaultdict(float)
    for first, share in FIRST.items():
        for second, weight in SECOND.items():
            if second != first:
                due[frozenset((first, second))] += share * weight / (1 - SECOND.get(first, 0))
    assert two.keys() <= due.keys()
    for pair, share in due.items():
        assert two[pair] / two.total() == pytest.approx(share, abs=0.015)


def test_both_languages_are_used_alike() -> None:
    options = TwitterOptions(one_language=0, languages=(("aa", 1),), second_languages=(("bb", 2), ("aa", 5)))
    first = pc.list_element(sets(options, 0, 1000)["tags"], 0)
    assert pc.mean(pc.starts_with(first, "aa_")).as_py() == pytest.approx(0.5, abs=0.02)
    assert pc.all(pc.match_substring_regex(first, "^(aa|bb)_")).as_py()


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_exponent_of_hashtags(exponent: float) -> None:
    options = TwitterOptions(hashtag_exponent=exponent, max_hashtags=1, mean_tags=1.3)
    numbers = number_of(pc.list_element(sets(options, 0, 6000)["tags"], 0))
    assert slope_of(numbers, 4 ** np.arange(2, 7)) == pytest.approx(-exponent, abs=0.15)


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


def test_popularity_of_publishers() -> None:
    """With all publishers named, their ranks can be seen."""
    options = TwitterOptions(frequent_writers=1, max_hashtags=1, mean_tags=2, popularity_exponent=0.784)
    tags = pc.list_flatten(sets(options, 0, 30_000, threads=2)["tags"])
    publishers = number_of(tags.filter(pc.starts_with(tags, "@p")))
    assert np.mean(publishers == 0) == pytest.approx(0.002, rel=0.1)
    assert slope_of(publishers, 4 ** np.arange(4, 11)) == pytest.approx(-options.popularity_exponent, abs=0.05)


#: Rows have one hashtag and their publisher
ALL_NAMED = {"frequent_writers": 1, "max_hashtags": 1, "mean_tags": 2}


def followed_publishers(table: pa.Table) -> np.ndarray:
    return number_of(pc.list_element(table["tags"], 1))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_publishers_are_drawn_alike(seed: int) -> None:
    """Of all users' publishers by chi-squared, whose mean is the degrees of freedom and whose variance twice these."""
    options = TwitterOptions(seed=seed, publishers=1000, mean_followed=20, **ALL_NAMED)
    counts = np.bincount(followed_publishers(sets(options, 0, 5000, threads=2)), minlength=1000)
    assert len(counts) == 1000
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 999 + 6 * math.sqrt(2 * 999)


def test_pairs_of_publishers_are_followed_alike() -> None:
    """Also of the first two that a user follows, where there are but few."""
    two_each = Followed(np.array([2]), np.ones(1))
    model = Twitter(TwitterOptions(publishers=6, mean_followed=2, **ALL_NAMED), followed=two_each)
    pairs = Counter(map(tuple, followed_publishers(model.sets(0, 60_000, threads=2)).reshape(-1, 2).tolist()))
    assert pairs.keys() == {(one, other) for one in range(6) for other in range(6) if one != other}
    counts = np.array(list(pairs.values()))
    assert ((counts - 2000) ** 2 / 2000).sum() < 29 + 6 * math.sqrt(2 * 29)


@pytest.mark.parametrize("publishers", [1, 2, 3, 257])
def test_nobody_follows_a_publisher_twice(publishers: int) -> None:
    everybody = Followed(np.array([publishers]), np.ones(1))
    model = Twitter(TwitterOptions(publishers=publishers, mean_followed=1, **ALL_NAMED), followed=everybody)
    orders = followed_publishers(model.sets(0, 50)).reshape(50, publishers)
    assert (np.sort(orders) == np.arange(publishers)).all()
    assert publishers < 100 or len({tuple(order) for order in orders}) == 50


def test_tweets_of_publishers() -> None:
    """Of a few publishers whom everybody follows, the different sets show how many tweets each has."""
    options = TwitterOptions(
        frequent_writers=1, publishers=2000, mean_followed=100, followed_exponent=9,
        mean_tags=7, one_language=1, languages=(("en", 1),), max_tweets=20,
    )  # fmt: skip
    tweets = defaultdict(set)
    for tags in sets(options, 0, 5000, threads=2)["tags"].to_pylist():
        tweets[tags[-1]].add(tuple(tags[:-1]))
    counts = np.array([len(found) for found in tweets.values()])
    assert len(counts) == 2000
    assert counts.mean() == pytest.approx(3, abs=0.25)
    assert 20 >= counts.max() > 15
    assert np.mean(counts == 1) == pytest.approx(0.6, abs=0.06)


def test_fits() -> None:
    """The fitted parameters give the means that they are fitted to, computed in another way."""
    ratio = geometric_ratio(4.7, 20)
    shares = [ratio**n - (ratio ** (n + 1) if n < 19 else 0) for n in range(20)]
    assert sum(share * (n + 1) for n, share in enumerate(shares)) == pytest.approx(4.7)
    for most in (50, 2_000_000):
        b = tweets_exponent(3, most)
        t = np.arange(1, most + 1)
        assert (t**-b - np.append(t[1:] ** -b, 0)) @ t == pytest.approx(3, rel=1e-4)


# -- ranges and seeds ------------------------------------------------------------------------------------------------


@given(edges=st.lists(st.integers(0, 3000), max_size=4), threads=st.integers(1, 4))
def test_rows_do_not_depend_on_ranges_and_threads(stored: pa.Table, edges: list[int], threads: int) -> None:
    keys = stored["key"].to_numpy()
    for first, last in pairwise(sorted(edges)):
        begin, end = np.searchsorted(keys, [first, last])
        assert sets(OPTIONS, first, last, threads=threads).equals(stored.slice(begin, end - begin))
        assert Twitter(OPTIONS).interests(first, last, threads=threads) == end - begin


def test_a_user_with_many_interests_is_cut_into_batches() -> None:
    model = Twitter(OPTIONS, followed=Followed(np.array([0, 150_000]), np.array([0.5, 1.0])))
    table = model.sets(0, 6, threads=2)
    counts = Counter(table["key"].to_pylist())
    assert set(counts.values()) == {150_000}
    assert 0 < len(counts) < 6
    batches = list(model.stream(0, 6))
    assert max(map(len, batches)) <= 65_536
    assert pa.Table.from_batches(batches).equals(table)


def test_seeds_and_far_users() -> None:
    one, other = (sets(TwitterOptions(seed=seed), 0, 100) for seed in (1, 2))
    assert not one["tags"].slice(0, 50).equals(other["tags"].slice(0, 50))
    assert set(sets(OPTIONS, 299_999_990, 300_000_000)["key"].to_pylist()) <= set(range(299_999_990, 300_000_000))
    assert sets(OPTIONS, 5, 5).num_rows == 0
    for users in ((-1, 5), (5, 4), (0, 2**60)):
        with pytest.raises(TagMatchError, match="first_user and last_user"):
            sets(OPTIONS, *users)


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

    # What is written is what is followed: all interests of frequent writers occur but for the language
    written = set(map(without_language, tweets.to_pylist()))
    followed = [tags for tags in sets(options, 0, 200)["tags"].to_pylist() if tags[-1][0] == "@"]
    assert np.mean([without_language(tags) in written for tags in followed]) > 0.95


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [option for option in fields(TwitterOptions) if option.metadata])
def test_numbers_out_of_range(option: dataclasses.Field) -> None:
    for value in (option.metadata["low"] - 1, option.metadata["high"] + 1, "1", True, None, math.nan):
        with pytest.raises(TagMatchError, match=f"^{option.name} must be"):
            TwitterOptions(**{option.name: value})


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean_tags": 1.2},
        {"mean_tags": 21},
        {"hashtags": 79},
        {"mean_tweets": 50, "max_tweets": 40},
        {"publishers": 1.5},
        {"languages": ()},
        {"languages": (("en", 1), ("en", 2))},
        {"languages": (("@en", 1),)},
        {"languages": (("en", 0),)},
        {"languages": ("en", "fr", "deu")},
        {"second_languages": (("en", math.inf),)},
        {"second_languages": (("en", 1),)},
    ],
    ids=str,
)
def test_wrong_options(wrong: dict[str, object]) -> None:
    with pytest.raises(TagMatchError, match=f"^{next(iter(wrong))}"):
        TwitterOptions(**wrong)


def test_options_are_kept_by_json() -> None:
    lists = {name: list(map(list, getattr(OPTIONS, name))) for name in ("languages", "second_languages")}
    assert TwitterOptions(**(dataclasses.asdict(OPTIONS) | lists)) == OPTIONS


def test_more_followed_than_there_are() -> None:
    with pytest.raises(TagMatchError, match=r"^mean_followed must be from 1 to 5\.5"):
        sets(TwitterOptions(publishers=10), 0, 1)
    (row,) = sets(TwitterOptions(publishers=1, mean_followed=1), 0, 1)["tags"].to_pylist()
    assert len(row) >= 1
