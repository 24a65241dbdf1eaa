"""All ways to match, with every engine, against the oracle."""

import itertools
import random
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import assert_agree, assert_keys, loaded

from tagmatch import TagMatch


def numbers(count: int, prefix: str) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def test_empty_index(layout):
    tm = TagMatch(layout=layout)
    for _ in range(2):
        assert_agree(tm, Oracle(), [["a"], []])
        assert_keys(tm.match_many(pa.array([], pa.list_(pa.string())), unique=True), [])
        tm.consolidate()


@pytest.mark.slow
def test_answers_are_in_the_order_of_the_queries(engine, rng):
    tags = numbers(5_000, "a")
    tm, _ = loaded([([tag], key) for key, tag in enumerate(tags)], **engine)
    asked = rng.sample(range(len(tags)), len(tags))
    for unique in (False, True):
        assert_keys(tm.match_many([[tags[i]] for i in asked], unique=unique), [[i] for i in asked])


@pytest.fixture(scope="module")
def workload(seed: int) -> tuple[list[tuple[list[str], int]], list[list[str]], list[list[int]]]:
    """5,000 sets and 1,000 queries over 500 tags that follow Zipf's law, and the oracle's answers."""
    rng = random.Random(seed)
    vocabulary = numbers(500, "tag")
    weights = [1 / rank for rank in range(10, 10 + len(vocabulary))]

    def tags(most: int) -> list[str]:
        return rng.choices(vocabulary, weights, k=rng.randint(1, most))

    pairs = [(tags(8), rng.randrange(5_000) << rng.choice((0, 40))) for _ in range(5_000)]
    queries = [[*rng.choice(pairs)[0], *tags(6), "unknown"] for _ in range(960)]
    queries += [tags(60) for _ in range(35)] + [vocabulary] * 5
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


Shape = tuple[list[tuple[list[str], int]], list[list[str]]]


def thousands_of_tags(rng: random.Random, size: int = 5_000) -> Shape:
    tags = numbers(size, "a")
    pairs = [(rng.sample(tags, rng.randint(1, 4)), key) for key in range(500)]
    return pairs, [tags, tags[: size // 2], tags[1:] * 2, numbers(size, "unknown")]


def equal_signatures(rng: random.Random) -> Shape:
    """Of sets of 300 tags (nearly) all bits are set, so that no pivot tells them apart."""
    tags = numbers(310, "a")
    pairs = [(rng.sample(tags, 300), key) for key in range(60)] + [(tags[:size], size) for size in (1, 2, 300)]
    return pairs, [tags, tags[1:], tags[:300], pairs[0][0], pairs[0][0][1:]]


def one_tag_in_all(rng: random.Random) -> Shape:
    tags = numbers(50, "a")
    pairs = [(["shared", *rng.sample(tags, rng.randint(0, 3))], key) for key in range(300)]
    return pairs, [tags, ["shared"], ["shared", *tags], ["shared", *tags[:10]]]


def all_subsets(rng: random.Random) -> Shape:
    """A prefix tree that branches everywhere, next to one whose rarest tags are in all of its sets."""
    tags, rare = numbers(11, "a"), ["r0", "r1", "r2"]
    subsets = [[tag for i, tag in enumerate(tags) if number >> i & 1] for number in range(2**11)]
    pairs = [(subset, number) for number, subset in enumerate(subsets)]
    pairs += [([*rare, *subset], number) for number, subset in enumerate(subsets[::3])]
    queries = [[*rng.choice(subsets), *rng.sample([*rare, "unknown"], rng.randint(0, 4))] for _ in range(40)]
    return pairs, [*queries, tags, [*tags, *rare], rare]


def chain(_: random.Random) -> Shape:
    tags = numbers(300, "a")
    return [(tags[:size], size) for size in range(301)], [tags, tags[:150], tags[:150] + tags[151:], tags[1:], []]


ALL_SUBSETS = pytest.param(all_subsets, marks=pytest.mark.slow)


@pytest.mark.parametrize("shape", [thousands_of_tags, equal_signatures, one_tag_in_all, ALL_SUBSETS, chain])
def test_shapes_of_sets(engine, rng, shape):
    pairs, queries = shape(rng)
    assert_agree(*loaded(pairs, **engine), queries)


@pytest.mark.nightly
def test_queries_of_many_thousands_of_tags(engine, rng):
    pairs, queries = thousands_of_tags(rng, 40_000)
    assert_agree(*loaded(pairs, **engine), queries)


@pytest.mark.slow
def test_one_set_with_many_keys(layout):
    keys = list(range(0, 300_000, 3))
    tm, _ = loaded(([["a", "b"], key] for key in keys), layout=layout)
    assert len(tm) == 1
    assert_keys(tm.match_many([["a"], ["b", "a"]]), [[], keys])
