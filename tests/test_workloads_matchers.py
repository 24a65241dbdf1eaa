"""The baseline matchers against the oracle."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle

from workloads import twitter
from workloads.matchers import Matcher, RarestTagDict, SignatureScan
from workloads.twitter import TwitterOptions

TAGS = st.text("abcdé", max_size=2)
SETS = st.lists(st.tuples(st.lists(TAGS, max_size=4), st.integers(0, 2**64 - 1)), max_size=20)
QUERIES = st.lists(st.lists(TAGS, max_size=8), max_size=5)


def table_of(rows: list[tuple[list[str], int]]) -> pa.Table:
    tags, keys = [tags for tags, _ in rows], [key for _, key in rows]
    return pa.table({"tags": pa.array(tags, pa.list_(pa.string())), "key": pa.array(keys, pa.uint64())})


def right_answers(sets: pa.Table, queries: pa.ListArray) -> list[Counter[int]]:
    oracle = Oracle()
    oracle.add_sets(sets["tags"].to_pylist(), sets["key"].to_pylist())
    oracle.consolidate()
    return [Counter(oracle.match(query)) for query in queries.to_pylist()]


def answers(matcher: Matcher, queries: pa.ListArray) -> list[Counter[int]]:
    return [Counter(map(int, keys)) for keys in matcher.match_many(matcher.prepare(queries))]


def check(sets: pa.Table, queries: pa.ListArray) -> None:
    right = right_answers(sets, queries)
    assert answers(RarestTagDict(sets), queries) == right
    scanned = answers(SignatureScan(sets), queries)
    assert len(scanned) == len(right)
    assert all(keys.keys() <= found.keys() for keys, found in zip(right, scanned, strict=True))


@given(rows=SETS, asked=QUERIES)
def test_small_tables(rows: list[tuple[list[str], int]], asked: list[list[str]]) -> None:
    check(table_of(rows), pa.array(asked, pa.list_(pa.string())))


def test_twitter_like_sets() -> None:
    options = TwitterOptions(stored=3000, hashtags=200)
    check(twitter.sets(options, 0, 3000), twitter.queries(options, 0, 100)["tags"].combine_chunks())


def test_slices_and_chunks() -> None:
    options = TwitterOptions(stored=600)
    whole = twitter.sets(options, 0, 600)
    queries = twitter.queries(options, 0, 90)["tags"].combine_chunks()
    check(pa.concat_tables([whole.slice(7, 200), whole.slice(300)]), queries.slice(11, 60))


def test_signature_scan_finds_wrong_keys_too() -> None:
    options = TwitterOptions(stored=20_000)
    sets, queries = twitter.sets(options, 0, 20_000), twitter.queries(options, 0, 50)["tags"]
    exact, scanned = (
        sum(map(len, m.match_many(m.prepare(queries)))) for m in (RarestTagDict(sets), SignatureScan(sets))
    )
    assert scanned > exact > 0


@pytest.mark.parametrize("matcher", [RarestTagDict, SignatureScan])
def test_nothing_stored_or_asked(matcher: type[RarestTagDict] | type[SignatureScan]) -> None:
    nothing, some = table_of([]), table_of([(["a"], 1)])
    queries = pa.array([["a"], []], pa.list_(pa.string()))
    assert answers(matcher(nothing), queries) == [Counter(), Counter()]
    assert answers(matcher(some), queries.slice(0, 0)) == []
