"""Queries one by one for systems that take calls: each is answered once, by a call that begins when it is due."""

import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pipelines import TIMEOUT, together

from tagmatch_bench.harness import gathered
from tagmatch_bench.harness.gathered import gathering
from tagmatch_bench.systems.hash_tables import RarestTagDict
from tagmatch_bench.systems.matcher import ListsOfStrings

SETS = st.lists(st.lists(st.sampled_from("abcd"), unique=True, max_size=3), max_size=6)


class Calls(ListsOfStrings):
    """Counts the queries of each call; the answer to each query is the length of it."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:  # noqa: ARG002
        self.calls.append(len(queries))
        if ["wrong"] in queries:
            raise ValueError("no such query")
        return [[len(query)] for query in queries]


@pytest.fixture
def calls() -> Iterator[Calls]:
    return Calls()


@given(sets=SETS, queries=SETS, unique=st.booleans())
def test_answers_are_those_of_calls(sets: list[list[str]], queries: list[list[str]], unique: bool) -> None:
    keys = [number % 2 for number in range(len(sets))]
    stored = pa.table({"tags": pa.array(sets, pa.list_(pa.string())), "key": pa.array(keys, pa.uint64())})
    with gathering(RarestTagDict(stored), 0.0, unique=unique) as submit:
        futures = [submit(query) for query in queries]
    for query, future in zip(queries, futures, strict=True):
        of_query = {(frozenset(tags), key) for tags, key in zip(sets, keys, strict=True) if {*tags} <= {*query}}
        found = future.result(0)
        assert sorted(found) == sorted({key for _, key in of_query} if unique else [key for _, key in of_query])
        assert isinstance(found, set if unique else list)


@pytest.mark.parametrize("wait", [0.0, 0.002])
def test_each_query_of_many_callers_is_answered_once(calls: Calls, wait: float) -> None:
    def ask() -> None:
        futures = [submit(["a"] * (number % 5)) for number in range(200)]
        assert [future.result(TIMEOUT) for future in futures] == [[number % 5] for number in range(200)]

    with gathering(calls, wait, unique=False) as submit, together([ask] * 4):
        pass
    assert sum(calls.calls) == 800


def test_a_call_has_what_comes_within_the_time(calls: Calls) -> None:
    with gathering(calls, 0.3, unique=False) as submit:
        begun = time.perf_counter()
        futures = [submit(["a"]), submit(["b"])]
        assert [future.result(TIMEOUT) for future in futures] == [[1], [1]]
        assert time.perf_counter() - begun >= 0.3
    assert calls.calls == [2]


def test_a_full_call_and_the_last_one_do_not_wait(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered, "MOST", 2)
    with gathering(calls, 1000.0, unique=False) as submit:
        futures: list[Future[Any]] = [submit(["a"]) for _ in range(5)]
    assert [future.result(0) for future in futures] == [[1]] * 5
    assert calls.calls == [2, 2, 1]


def test_a_call_that_fails_tells_those_that_wait(calls: Calls) -> None:
    with gathering(calls, 0.0, unique=False) as submit:
        with pytest.raises(ValueError, match="no such query"):
            submit(["wrong"]).result(TIMEOUT)
        assert submit(["a", "b"]).result(TIMEOUT) == [2]
