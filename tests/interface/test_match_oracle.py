"""All ways to match, with every engine, against the oracle."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import assert_agree, assert_keys, loaded

from tagmatch import TagMatch

MAX_KEY = 2**64 - 1


def numbers(count: int, prefix: str) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


@given(rounds=st.lists(strategies.changes(), min_size=1, max_size=3), queries=strategies.query_lists)
def test_any_changes_any_queries(engine, rounds, queries):
    tm, oracle = TagMatch(**engine), Oracle()
    everything = sorted({tag for changes in rounds for _, tags, _ in changes for tag in tags})
    for changes in rounds:
        for database in (tm, oracle):
            for added, tags, key in changes:
                (database.add_set if added else database.remove_set)(tags, key)
            database.consolidate()
        assert_agree(tm, oracle, [*queries, everything])


@given(pairs=st.lists(strategies.pairs, min_size=1), queries=strategies.query_lists)
def test_layouts_agree(pairs, queries):
    rarest, balanced = (loaded(pairs, layout=each)[0] for each in ("rarest", "balanced"))
    assert len(rarest) == len(balanced)
    for unique in (False, True):
        answers = [tm.match_many(queries, unique=unique).to_pylist() for tm in (rarest, balanced)]
        assert list(map(sorted, answers[0])) == list(map(sorted, answers[1]))
    for query in queries:
        assert dict(rarest.explain(query)) == dict(balanced.explain(query))


@pytest.mark.parametrize(
    ("pairs", "query", "expected"),
    [
        pytest.param([(["a", "b"], 1), (["b", "c"], 2)], ["a", "b", "d"], [1], id="subset"),
        pytest.param([(["a", "b"], 1)], ["a"], [], id="part of a set"),
        pytest.param([(["a"], 7), (["b"], 7), (["a", "b"], 7)], ["a", "b"], [7, 7, 7], id="key once per set"),
        pytest.param([(["a", "b"], 7), (["b", "a", "a"], 7)], ["a", "b"], [7], id="pair added twice"),
        pytest.param([(["a"], 3), (["a"], 1), (["a"], 2)], ["a"], [1, 2, 3], id="keys of one set"),
        pytest.param([(["a"], 1)], ["a", "a", "a"], [1], id="query repeats a tag"),
        pytest.param([([], 1), (["a"], 2)], [], [1], id="empty query"),
        pytest.param([([], 1), (["a"], 2)], ["unknown"], [1], id="unknown tag"),
        pytest.param([(["a"], 1)], [], [], id="empty query, no empty set"),
        pytest.param([([], 1), ([""], 2)], [""], [1, 2], id="empty set and empty tag"),
        pytest.param([([""], 2)], ["a"], [], id="empty tag is a tag"),
        pytest.param([(["ab"], 1), (["a", "b"], 2)], ["ab"], [1], id="tags are not joined"),
        pytest.param([(["é"], 1), (["e\u0301"], 2)], ["é"], [1], id="no Unicode normalization"),
        pytest.param([(["a"], 1), (["A"], 2)], ["A"], [2], id="case matters"),
        pytest.param([(["a\0"], 1), (["a"], 2)], ["a"], [2], id="trailing NUL matters"),
        pytest.param([(["a" * 100_000], 1), (["a" * 99_999], 2)], ["a" * 100_000], [1], id="very long tags"),
        pytest.param([(["a"], 2**32 - 1), (["a"], 2**32)], ["a"], [2**32 - 1, 2**32], id="around 32 bits"),
        pytest.param([(["a"], 0), (["b"], MAX_KEY)], ["a", "b"], [0, MAX_KEY], id="least and greatest key"),
    ],
)
def test_examples(engine, pairs, query, expected):
    tm, oracle = loaded(pairs, **engine)
    assert oracle.match(query) == expected
    assert_agree(tm, oracle, [query])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param([("add", "a", 1), ("remove", "a", 1)], {"ab": (5,)}, id="added then removed"),
        pytest.param([("remove", "a", 1), ("add", "a", 1)], {"a": (1,), "ab": (5,)}, id="removed then added"),
        pytest.param([("add", "a", 1), ("remove", "a", 1), ("add", "a", 1)], {"a": (1,), "ab": (5,)}, id="back again"),
        pytest.param([("remove", "ab", 5)], {}, id="last key of a stored set"),
        pytest.param([("remove", "ab", 6)], {"ab": (5,)}, id="absent key"),
        pytest.param([("remove", "abc", 5)], {"ab": (5,)}, id="absent set"),
        pytest.param([("add", "ab", 5)], {"ab": (5,)}, id="stored pair"),
        pytest.param([("add", "ab", 4), ("remove", "ba", 5)], {"ab": (4,)}, id="key replaced"),
        pytest.param([("add", "", 9)], {"": (9,), "ab": (5,)}, id="empty set"),
    ],
)
@pytest.mark.parametrize("bulk", [False, True], ids=["single", "bulk"])
def test_changes_take_effect_in_order_at_consolidate(layout, bulk, changes, expected):
    tm, _ = loaded([(["a", "b"], 5)], layout=layout)
    for kind, tags, key in changes:
        if bulk:
            getattr(tm, f"{kind}_sets")([list(tags)], [key])
        else:
            getattr(tm, f"{kind}_set")(list(tags), key)
        assert tm.explain(list("abc")) == [(frozenset("ab"), (5,))]
    tm.consolidate()
    tm.check()
    assert dict(tm.explain(list("abc"))) == {frozenset(tags): keys for tags, keys in expected.items()}
    assert len(tm) == len(expected)


def test_empty_index(engine):
    tm = TagMatch(**engine)
    for _ in range(2):
        assert_agree(tm, Oracle(), [["a"], []])
        assert tm.stats()["sets"] == 0
        tm.consolidate()


def test_everything_removed(engine):
    pairs = [([], 1), *(([tag], 2) for tag in numbers(20, "a"))]
    tm, _ = loaded(pairs, **engine)
    tm.remove_sets(*zip(*pairs, strict=True))
    tm.consolidate()
    assert_agree(tm, Oracle(), [numbers(20, "a"), []])


def test_no_queries(layout):
    tm, _ = loaded([(["a"], 1), ([], 2)], layout=layout)
    assert_keys(tm.match_many([]), [])
    assert_keys(tm.match_many(pa.array([], pa.list_(pa.string())), unique=True), [])


def test_answers_are_in_the_order_of_the_queries(engine, rng):
    tags = numbers(5_000, "a")
    tm, _ = loaded([([tag], key) for key, tag in enumerate(tags)], **engine)
    asked = rng.sample(range(len(tags)), len(tags))
    for unique in (False, True):
        assert_keys(tm.match_many([[tags[i]] for i in asked], unique=unique), [[i] for i in asked])


@pytest.fixture(scope="module")
def workload(seed: int) -> tuple[list[tuple[list[str], int]], list[list[str]], list[list[int]]]:
    """20,000 sets and 3,000 queries over 500 tags that follow Zipf's law, and the oracle's answers."""
    rng = random.Random(seed)
    vocabulary = numbers(500, "tag")
    weights = [1 / rank for rank in range(10, 10 + len(vocabulary))]

    def tags(most: int) -> list[str]:
        return rng.choices(vocabulary, weights, k=rng.randint(1, most))

    pairs = [(tags(8), rng.randrange(5_000) << rng.choice((0, 40))) for _ in range(20_000)]
    queries = [[*rng.choice(pairs)[0], *tags(6), "unknown"] for _ in range(2_900)]
    queries += [tags(60) for _ in range(95)] + [vocabulary] * 5
    oracle = Oracle()
    oracle.add_sets(*zip(*pairs, strict=True))
    oracle.consolidate()
    return pairs, queries, [oracle.match(query) for query in queries]


@pytest.mark.slow
def test_large_workload(engine, workload):
    pairs, queries, expected = workload
    tm, oracle = loaded(pairs, **engine)
    tm.check()
    assert len(tm) == len(oracle)
    assert_keys(tm.match_many(queries), expected)
    assert_keys(tm.match_many(queries, unique=True), [sorted(set(keys)) for keys in expected])
    for query, keys in itertools.islice(zip(queries, expected, strict=True), 200):
        assert sorted(tm.match(query)) == keys


@pytest.mark.slow
def test_large_workload_in_two_halves(layout, workload):
    pairs, queries, expected = workload
    half = len(pairs) // 2
    tm, _ = loaded(pairs[:half], layout=layout)
    tm.add_sets(*zip(*pairs[half:], strict=True))
    tm.consolidate()
    tm.check()
    assert_keys(tm.match_many(queries), expected)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
def test_signature_answers_contain_the_exact_ones(layout, threads, workload):
    pairs, queries, expected = workload
    tm, _ = loaded(pairs, layout=layout, threads=threads, max_partition_size=100, exact=False)
    answers = tm.match_many(queries).to_pylist()
    for found, exact in zip(answers, expected, strict=True):
        assert Counter(found) >= Counter(exact)
    unique = tm.match_many(queries, unique=True).to_pylist()
    assert list(map(sorted, unique)) == [sorted(set(keys)) for keys in answers]


@given(pairs=st.lists(strategies.pairs, min_size=1), queries=strategies.query_lists)
def test_signature_answers_contain_the_exact_ones_for_any_sets(pairs, queries):
    tm, oracle = loaded(pairs, layout="balanced", max_partition_size=7, exact=False)
    for query, found in zip(queries, tm.match_many(queries).to_pylist(), strict=True):
        assert Counter(found) >= Counter(oracle.match(query))


def test_signature_answers_are_by_signature():
    sets = [[f"a{i}", f"b{i}"] for i in range(1_000)]
    everything = list(range(len(sets)))
    halves = numbers(len(sets), "a")
    by_signature, _ = loaded(zip(sets, everything, strict=True), layout="balanced", exact=False)
    by_tags, _ = loaded(zip(sets, everything, strict=True), layout="balanced")
    # the query's 1,000 tags set all 192 bits, so that every signature is contained in its own
    assert sorted(by_signature.match(halves)) == everything
    assert by_signature.match_unique(halves) == set(everything)
    assert by_tags.match(halves) == []
    # while a single tag sets 7 at most
    assert by_signature.match(["a0"]) == []
    assert 0 in by_signature.match(sets[0])


@pytest.mark.slow
@pytest.mark.parametrize("size", [5_000, 40_000])
def test_queries_of_thousands_of_tags(engine, rng, size):
    tags = numbers(size, "a")
    pairs = [(rng.sample(tags, rng.randint(1, 4)), key) for key in range(500)]
    tm, oracle = loaded(pairs, **engine)
    assert_agree(tm, oracle, [tags, tags[: size // 2], tags[1:] * 2, numbers(size, "unknown")])


def test_sets_of_300_tags_with_equal_signatures(engine, rng):
    """Their signatures have (nearly) all bits set, so that no pivot tells them apart."""
    tags = numbers(310, "a")
    pairs = [(rng.sample(tags, 300), key) for key in range(60)] + [(tags[:size], size) for size in (1, 2, 300)]
    tm, oracle = loaded(pairs, **engine)
    assert_agree(tm, oracle, [tags, tags[1:], tags[:300], pairs[0][0], pairs[0][0][1:]])


def test_one_tag_in_all_sets(engine, rng):
    tags = numbers(50, "a")
    pairs = [(["shared", *rng.sample(tags, rng.randint(0, 3))], key) for key in range(300)]
    tm, oracle = loaded(pairs, **engine)
    assert_agree(tm, oracle, [tags, ["shared"], ["shared", *tags], ["shared", *tags[:10]]])


def test_one_set_with_many_keys(engine):
    keys = list(range(0, 300_000, 3))
    tm, _ = loaded(([["a", "b"], key] for key in keys), **engine)
    assert len(tm) == 1
    assert_keys(tm.match_many([["a"], ["b", "a"]]), [[], keys])


def test_all_subsets(engine, rng):
    """A prefix tree that branches everywhere, next to one whose rarest tags are in all of its sets."""
    tags = numbers(11, "a")
    subsets = [[tag for i, tag in enumerate(tags) if number >> i & 1] for number in range(2**11)]
    pairs = [(subset, number) for number, subset in enumerate(subsets)]
    pairs += [(["r0", "r1", "r2", *subset], number) for number, subset in enumerate(subsets[::3])]
    tm, oracle = loaded(pairs, **engine)
    queries = [
        [*rng.choice(subsets), *rng.sample(["r0", "r1", "r2", "unknown"], rng.randint(0, 4))] for _ in range(100)
    ]
    assert_agree(tm, oracle, [*queries, tags, [*tags, "r0", "r1", "r2"], ["r0", "r1", "r2"]])


def test_chain_of_sets(engine):
    tags = numbers(300, "a")
    tm, oracle = loaded([(tags[:size], size) for size in range(301)], **engine)
    assert_agree(tm, oracle, [tags, tags[:150], tags[:150] + tags[151:], tags[1:], []])


@pytest.mark.slow
def test_options_change_no_answer(layout: str, workload: Any):
    pairs, queries, expected = workload
    for options in ({"batch_size": 1}, {"batch_size": 1_000}, {"flush_timeout": None}, {"flush_timeout": 0}):
        tm, _ = loaded(pairs, layout=layout, **options)
        assert_keys(tm.match_many(queries[:300]), expected[:300])
        assert sorted(tm.submit(queries[0]).result(timeout=60)) == expected[0]
