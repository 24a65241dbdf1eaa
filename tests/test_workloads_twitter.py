"""The Twitter-like generator: its statistics, and that rows do not depend on how they are generated."""

from __future__ import annotations

import math
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.twitter import FREQUENT_WRITERS, LANGUAGES, MAX_HASHTAGS, USERS, TwitterOptions, queries, sets

ROWS = 200_000
OPTIONS = TwitterOptions(stored=ROWS)


@pytest.fixture(scope="module")
def stored() -> pa.Table:
    return sets(OPTIONS, 0, ROWS, threads=2)


@pytest.fixture(scope="module")
def asked() -> pa.Table:
    return queries(OPTIONS, 0, ROWS, threads=2)


def flat_tags(table: pa.Table) -> pa.ChunkedArray:
    return pc.list_flatten(table["tags"])


def mean_tags(table: pa.Table) -> float:
    return pc.mean(pc.list_value_length(table["tags"])).as_py()


def test_columns(stored: pa.Table, asked: pa.Table) -> None:
    assert stored.schema == pa.schema({"tags": pa.list_(pa.string()), "key": pa.uint64()})
    assert asked.schema == pa.schema({"tags": pa.list_(pa.string())})
    stored.validate(full=True)
    asked.validate(full=True)
    assert stored.num_rows == asked.num_rows == ROWS
    assert pc.max(stored["key"]).as_py() < USERS


def test_tags_per_set_and_query(stored: pa.Table, asked: pa.Table) -> None:
    lengths = pc.list_value_length(stored["tags"])
    assert mean_tags(stored) == pytest.approx(5, abs=0.3)
    assert pc.min(lengths).as_py() == 1
    assert pc.max(lengths).as_py() == MAX_HASHTAGS + 1
    assert mean_tags(asked) == pytest.approx(mean_tags(stored) + 3, abs=0.05)


def test_most_sets_are_distinct(stored: pa.Table) -> None:
    distinct = {frozenset(tags) for tags in stored["tags"].to_pylist()}
    assert len(distinct) >= 0.9 * ROWS
    assert sum(map(len, distinct)) / len(distinct) == pytest.approx(5, abs=0.3)


def test_tags_are_distinct_within_a_row(stored: pa.Table, asked: pa.Table) -> None:
    for table in (stored, asked):
        assert all(len(set(tags)) == len(tags) for tags in table["tags"].slice(0, 20_000).to_pylist())


def test_tag_strings(stored: pa.Table, asked: pa.Table) -> None:
    pattern = rf"^(@p(0|[1-9][0-9]*)|({'|'.join(LANGUAGES)})_h(0|[1-9][0-9]*))$"
    for table in (stored, asked):
        assert pc.all(pc.match_substring_regex(flat_tags(table), pattern)).as_py()


def test_publishers(stored: pa.Table) -> None:
    last = pa.chunked_array([[tags[-1] for tags in stored["tags"].to_pylist()]])
    assert pc.mean(pc.starts_with(last, "@p")).as_py() == pytest.approx(FREQUENT_WRITERS, abs=0.02)
    tags = flat_tags(stored)
    assert pc.sum(pc.starts_with(tags, "@p")).as_py() == pc.sum(pc.starts_with(last, "@p")).as_py()


def test_languages(stored: pa.Table) -> None:
    first = pc.list_element(stored["tags"], 0)
    for language, percent in LANGUAGES.items():
        share = pc.mean(pc.starts_with(first, f"{language}_h")).as_py()
        assert share == pytest.approx(percent / sum(LANGUAGES.values()), abs=0.01)


def test_a_row_has_one_language(asked: pa.Table) -> None:
    for tags in asked["tags"].slice(0, 20_000).to_pylist():
        assert len({tag[:2] for tag in tags if tag[0] != "@"}) == 1


def test_hashtags_follow_zipfs_law(stored: pa.Table) -> None:
    tags = flat_tags(stored)
    hashtags = pc.sum(pc.starts_with(tags, "en_h")).as_py()
    for number in (0, 1, 10, 100):
        share = pc.sum(pc.equal(tags, f"en_h{number}")).as_py() / hashtags
        assert share == pytest.approx(math.log1p(1 / (number + 1)) / math.log(OPTIONS.hashtags + 1), rel=0.2)


def test_queries_extend_a_stored_set() -> None:
    options = TwitterOptions(stored=300)
    stored = [set(tags) for tags in sets(options, 0, 300)["tags"].to_pylist()]
    for tags in queries(options, 0, 2000)["tags"].to_pylist():
        query = set(tags)
        assert any(tagset <= query and 2 <= len(query - tagset) <= 4 for tagset in stored)


def test_extra_tags() -> None:
    options = TwitterOptions(stored=1, min_extra_tags=0, max_extra_tags=0)
    (tags,) = sets(options, 0, 1)["tags"].to_pylist()
    assert queries(options, 0, 3)["tags"].to_pylist() == [tags] * 3


@given(edges=st.lists(st.integers(0, 150_000), max_size=4), threads=st.integers(1, 4))
def test_rows_do_not_depend_on_ranges_and_threads(
    stored: pa.Table, asked: pa.Table, edges: list[int], threads: int
) -> None:
    edges = sorted(edges)
    for first, last in pairwise(edges):
        count = last - first
        assert sets(OPTIONS, first, count, threads=threads).equals(stored.slice(first, count))
        assert queries(OPTIONS, first, count, threads=threads).equals(asked.slice(first, count))


def test_seeds_differ() -> None:
    one, other = (sets(TwitterOptions(seed=seed), 0, 100) for seed in (1, 2))
    assert not one["tags"].equals(other["tags"])
    assert not one["key"].equals(other["key"])


def test_no_rows() -> None:
    assert sets(OPTIONS, 5, 0).num_rows == 0
    assert queries(OPTIONS, 5, 0).schema == queries(OPTIONS, 5, 1).schema


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"stored": 0}, "stored"),
        ({"hashtags": 2**32}, "hashtags"),
        ({"hashtags": 20}, "hashtags"),
        ({"seed": -1}, "seed"),
        ({"max_extra_tags": 1001}, "max_extra_tags"),
        ({"min_extra_tags": -1}, "min_extra_tags"),
        ({"min_extra_tags": 3, "max_extra_tags": 2}, "max_extra_tags"),
    ],
)
def test_options_are_checked(wrong: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TwitterOptions(**wrong)


@pytest.mark.parametrize("generate", [sets, queries])
def test_ranges_are_checked(generate: object) -> None:
    assert callable(generate)
    with pytest.raises(ValueError, match="zero or more"):
        generate(OPTIONS, -1, 5)
