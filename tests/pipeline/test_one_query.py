"""A query that is asked alone is answered by one kernel, as all others are: by the oracle, and counted alike."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support.agreement import assert_keys, loaded
from support.pipelines import together

from tagmatch import Circle
from tagmatch.model.columns import joined_tags
from tagmatch.model.kernels import interpreted
from tagmatch.model.kernels.intrinsics import Prepared, add, array_at
from tagmatch.model.kernels.jit import kernel
from tagmatch.model.layouts import LAYOUTS

EVERY = ["a", *(f"{digit}{i}" for digit in "pqrs" for i in range(12))]


@pytest.mark.parametrize(("keys_a_set", "largest"), [(1, 2**40), (2, 1)])
@pytest.mark.parametrize("sets", [10, pytest.param(20_000, marks=pytest.mark.slow)])
def test_few_and_many_answers(layout: str, sets: int, keys_a_set: int, largest: int) -> None:
    """On both sides of the bounds of tags, candidates and keys up to which the interpreter lock is kept."""
    rows = [["a", *(f"{digit}{i // 12**place % 12}" for place, digit in enumerate("pqrs"))] for i in range(sets)]
    pairs = [(row, (i + sets * each) * largest) for i, row in enumerate(rows) for each in range(keys_a_set)]
    pairs += [(["a"], key * largest) for key in range(sets)]
    tm, oracle = loaded(pairs, layout=layout)
    for tags in (["a"], EVERY, [*EVERY, *(f"unknown {i}" for i in range(50))]):
        expected = oracle.match(tags)
        assert sorted(tm.match(tags)) == expected
        assert tm.match_unique(tags) == set(expected)


@pytest.mark.slow
def test_counts_are_those_of_packets(layout: str, rng: random.Random) -> None:
    tags = [f"t{i}" for i in range(30)]
    pairs = [(rng.sample(tags, rng.randint(0, 4)), key) for key in range(500)]
    queries = [rng.sample([*tags, "unknown"], rng.randint(0, 12)) for _ in range(100)]
    alone, together_, oracle = *(loaded(pairs, layout=layout)[0] for _ in range(2)), loaded(pairs)[1]
    for query in queries:
        alone.match(query)
    together_.match_many(queries)
    names = ("queries", "matches", "verified", "rejected")
    counts = [[tm.stats()[name] for name in names] for tm in (alone, together_)]
    assert counts[0] == counts[1]
    assert counts[0][:2] == [len(queries), sum(len(oracle.match(query)) for query in queries)]


def test_kernels_are_loaded_once(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the query has: to find that a kernel is there already, or not, takes a millisecond."""
    monkeypatch.setattr(interpreted, "PATIENCE", 1.0)  # to compile them all takes a minute
    tm, _ = loaded([(["a"], 1)], layout=layout)
    tm.add_set(["b"], 2, where="x < 1", area=Circle(0, 0, 1))
    tm.add_set(["c"], 3, where="x < 1")
    tm.consolidate()

    def ask() -> None:
        for tags in (["a"], EVERY * 2):
            for more in ({}, {"attributes": {"x": 0}}, {"location": (0, 0)}):
                tm.match(tags, **more), tm.match_unique(tags, **more), tm.explain(tags, **more)  # type: ignore[arg-type]

    ask()
    monkeypatch.setattr("tagmatch.model.kernels.kept.KeptByCode.load_overload", None)
    ask()


def test_sets_that_only_seem_to_be_contained(layout: str) -> None:
    """Signatures say so of sets whose first tag, or only one, no query has: they are compared, and turned away."""
    tags = [f"t{i}" for i in range(2_000)]
    tm, oracle = loaded([([tag], key) for key, tag in enumerate(tags)], layout=layout)
    for count in (16, 17, 33, 600, 1_500):  # few are compared one by one; of many there is a bit for each
        for query in (tags[:count], tags[:count][::-1] * 2):
            assert sorted(tm.match(query)) == oracle.match(query)
            assert_keys(tm.match_many([query]), [oracle.match(query)])
    assert LAYOUTS[layout].compares_tags or tm.stats()["rejected"] > 100


def test_tags_that_cannot_be_told_apart_are_not_joined() -> None:
    for tags, joined in (([], (b"", 0)), ([""], (b"", 1)), (["", "é"], (b"\0\xc3\xa9", 2))):
        assert joined_tags(tags) == joined
    for tags in (["a\0", "b"], ["\0"], iter(["a"])):
        assert joined_tags(tags) is None


@kernel
def _sum_all(addresses, counts):
    total = 0.0
    for value in array_at(addresses, 0, np.uint8):
        total += value
    for value in array_at(addresses, 1, np.float64):
        total += value
    for _ in range(1000):
        add(counts, 1, 2)
    return total, len(array_at(addresses, 2, np.int32))


def test_prepared_arrays_are_the_arrays() -> None:
    prepared = Prepared(np.arange(5, dtype=np.uint8), np.array([[0.5, 1.5], [2.5, -8.0]]), np.empty(0, np.int32))
    counts = np.zeros(3, np.int64)
    results: list[Any] = []
    with together([lambda: results.append(_sum_all(prepared.addresses, counts))] * 4):
        pass
    assert results == [(6.5, 0)] * 4
    assert counts.tolist() == [0, 8_000, 0]
