"""A message that Python hands to compiled code as it is: any tags, bounds, references, threads, lack of code."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
import tracemalloc
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support.agreement import index_of, loaded

from tagmatch import Circle, TagMatch
from tagmatch.model.kernels import interpreted
from tagmatch.pipeline import entered, one
from tagmatch.pipeline.one import OneQuery

TAGS = ["", "a", "b", "ab", "é", "\U0010ffff", "nul\0", "\0", "a\0b", "x" * 15, "x" * 16, "long é" * 20]
TEXTS = st.sampled_from([*TAGS, "unknown", "unknown é" * 9])


class Text(str):
    __slots__ = ()


class Listed(list[str]):
    def __iter__(self) -> Any:
        return iter(["b"])


def views(tags: list[str]) -> Any:
    return dict.fromkeys(tags).keys()


def returned(tm: TagMatch[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What compiled code returns for messages since: `None` where others answer them."""
    seen: list[Any] = []
    query: Any = tm._engine.changing.ready.one
    tm.match(["a"])
    function = query.enter
    assert type(function) is type(len)

    def enter(*arguments: Any) -> Any:
        seen.append(function(*arguments))
        return seen[-1]

    monkeypatch.setattr(query, "enter", enter)
    return seen


SETS = st.lists(st.sampled_from(TAGS), max_size=4)


@pytest.mark.usefixtures("segments_stay")
@given(
    first=st.lists(SETS, min_size=1, max_size=20),
    second=st.lists(SETS, max_size=8),
    queries=st.lists(st.lists(TEXTS, max_size=12), min_size=1, max_size=5),
    kind=st.sampled_from([list, tuple, set, frozenset, deque, iter, views, Listed]),
    key_type=st.sampled_from(["integer", "string"]),
)
def test_any_tags_in_anything(first: Any, second: Any, queries: Any, kind: Any, key_type: Any) -> None:
    """In one segment, then in several with deleted rows."""
    name: Any = int if key_type == "integer" else "é{}".format
    with TagMatch[Any](key_type=key_type, device="cpu", threads=1) as tm:
        oracle = Oracle()
        for sets in (first, second):
            for each in (tm, oracle):
                each.add_sets(sets, [name(key % 7) for key in range(len(sets))])  # type: ignore[attr-defined]
                if sets is second:
                    each.remove_set(first[0], name(0))  # type: ignore[attr-defined]
                each.consolidate()  # type: ignore[attr-defined]
            for query in queries:
                given = ["b"] if kind is Listed else query
                expected = oracle.match(given)
                assert sorted(tm.match(kind(query))) == expected
                assert tm.match_unique(kind(query)) == set(expected)
                assert tm.match_count(kind(query)) == len(expected)
                assert tm.match_count(kind(query), unique=True) == len(set(expected))
                assert tm.match_exists(kind(query)) == bool(expected)
                assert sorted(tm.submit(kind(query)).result()) == expected


def test_what_is_no_tag_is_refused_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    tm, oracle = loaded([(["a"], 1), (["a", "b"], 2)], device="cpu")
    seen = returned(tm, monkeypatch)
    for wrong in ("ab", b"ab", None, 7, ["a", 7], ("a", None), {"a", b"b"}, ["\ud800"], [["a"]]):
        with pytest.raises((TypeError, ValueError), match="tags"):
            tm.match(wrong)  # type: ignore[arg-type]
    assert seen == [None] * len(seen)
    del seen[:]
    assert sorted(tm.match([Text("a"), Text("b")])) == oracle.match(["a", "b"])
    assert len(seen) == 1
    assert seen[0] is not None


@pytest.mark.parametrize("key_type", ["integer", "string"])
def test_both_sides_of_each_bound(key_type: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tags, their bytes, candidates and keys; large keys; what many keys need more memory for."""
    name: Any = (lambda key: key * 2**50) if key_type == "integer" else (lambda key: f"{key}" * 9)
    pairs = [(["few", f"{key % 16}"], name(key)) for key in range(4000)]
    pairs += [(["many"], name(key)) for key in range(5000)] + [(["x" * 1800], name(1)), ([], name(0))]
    tm, oracle = loaded(pairs, device="cpu", threads=1, key_type=key_type)
    seen = returned(tm, monkeypatch)
    some = [f"{i}" for i in range(16)]
    for query, is_entered in (
        (["few", *some], True), (["few", "few", "3", "3"], True), ([*"a" * 1024], True), ([*"a" * 1025], False),
        (["few", *some, *(f"unknown {i}" for i in range(1007))], True), (["many"], False), (["x" * 1800], True),
        (["x" * 1800, "y" * 31_000], False), ([f"{i}" * 20 for i in range(1024)], False), ([], True),
    ):  # fmt: skip
        del seen[:]
        expected = oracle.match(query)
        assert sorted(tm.match(query)) == expected
        assert (seen[0] is not None) == is_entered
        assert tm.match_unique(query) == set(expected)
        assert tm.match_count(query) == len(expected)


def test_sets_with_conditions_and_areas_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call answers about segments of several types, except about areas, if the message is somewhere."""
    tm = index_of([["a"], ["a", "b"], []], [1, 2, 3], device="cpu", threads=1)
    tm.add_set(["a"], 4, where="price < 5")
    tm.add_set([], 5, where='name = "x" and price > 100')
    tm.add_set(["a"], 2**40, area=Circle(9, 45, 500))
    tm.consolidate()
    seen = returned(tm, monkeypatch)
    messages: Any = (None, {"price": 1}, {"price": 101, "name": "x"})
    for tags, attributes in itertools.product((["a"], ["b", "a"], []), messages):
        price = 50 if attributes is None else attributes["price"]
        holds = {1: "a" in tags, 2: len(tags) == 2, 3: True, 4: "a" in tags and price < 5, 5: price > 100}
        expected = [key for key, is_in in holds.items() if is_in]
        assert sorted(tm.match(tags, attributes)) == expected
        assert sorted(tm.submit(tags, attributes).result()) == expected
        assert tm.match_count(tags, attributes) == len(expected)
        assert tm.match_unique(tags, attributes) == set(expected)
    assert None not in seen
    assert len(seen) == 36
    assert sorted(tm.match(["a"], {"price": 1}, location=(9, 45))) == [1, 3, 4, 2**40]
    assert len(seen) == 36


def test_what_takes_long_is_entered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tm, oracle = loaded([(["a"], key) for key in range(5000)], device="cpu", threads=1)
    seen = returned(tm, monkeypatch)
    for ask in (tm.match, tm.match_unique, tm.match_count, lambda tags: tm.submit(tags).result()):  # type: Any
        found = ask(["a"])
        assert found == 5000 or sorted(found) == oracle.match(["a"])
        assert seen == [None]
        seen.clear()


def test_ctrl_c_comes_after_an_answer_or_before_it() -> None:
    """Never within one: no reference is lost, and the index answers as before."""
    tags = ["a", "é", "".join(["a", "b"])]
    tm, oracle = loaded([(["a", "é"], key + 10**6) for key in range(900)], device="cpu", threads=1)
    right, before, interrupted = oracle.match(tags), [sys.getrefcount(each) for each in tags], 0
    earlier = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for number in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + number))
                while True:
                    assert len(tm.match(tags)) == len(tm.match_unique(set(tags))) == tm.match_count(tuple(tags))
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
    assert interrupted == 200
    assert sorted(tm.match(tags)) == right
    assert max(abs(sys.getrefcount(each) - then) for each, then in zip(tags, before, strict=True)) < 5


def test_each_reference_is_given_back() -> None:
    """To tags, keys, and their containers, in answers, in refusals and in messages left to other code."""
    sets = [["a", "é"], ["a"], *[["b"]] * 5000]
    tm = index_of(sets, range(10**6, 10**6 + len(sets)), device="cpu")
    tags = ["a", "é", "".join(["a", "b"])]
    held: list[Any] = [tags, tuple(tags), set(tags), [*tags, 7], ["b"], ["\ud800"], *tags, None, list, tm]

    def ask(times: int) -> None:
        for _ in range(times):
            for each in held[:6]:
                for method in (tm.match, tm.match_unique, tm.match_count):  # type: Any
                    try:
                        method(each)
                    except (TypeError, ValueError):
                        assert each in held[3:6:2]

    ask(5)
    gc.collect()
    before = [sys.getrefcount(each) for each in held]
    tracemalloc.start()
    try:
        ask(5)
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
        ask(50)
        gc.collect()
        more, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert more - used < 20_000
    after = [sys.getrefcount(each) for each in held]
    assert max(abs(now - then) for now, then in zip(after, before, strict=True)) < 20


def test_answers_change_with_the_index_while_many_ask() -> None:
    """Each answer is that of one snapshot, wholly; what answered before is let go of."""
    with TagMatch(device="cpu", threads=1) as tm:
        tm.add_set(["a"], 0)
        tm.consolidate()
        stop, wrong = threading.Event(), []

        def ask() -> None:
            last = 0
            while not stop.is_set():
                (found,) = {key // 3 for key in tm.match(["a", "b"])}
                if found < last or sorted(tm.match_unique({"a", "c"})) == []:
                    wrong.append(found)
                last = found

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(1, 30):
            for i in range(3):
                tm.remove_set(["a"], 3 * (number - 1) + i)
                tm.add_set(["a"], 3 * number + i)
            tm.consolidate()
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert sorted(tm.match(["a"])) == [87, 88, 89]


def test_others_answer_until_there_is_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded if it is kept, and compiled only when Python has run the kernels for long."""
    entered.entry_of.cache_clear()
    tm, oracle = loaded([(["a"], 1), (["a", "b"], 2)], device="cpu")
    (query,) = tm._engine.changing.answering.matcher.one_query.parts  # type: ignore[union-attr]
    monkeypatch.setattr(interpreted, "PATIENCE", 1.0)
    assert sorted(tm.match(["a", "b"])) == oracle.match(["a", "b"])
    assert type(query.enter) is type(len)  # kept by what ran before

    entered.entry_of.cache_clear()
    monkeypatch.setattr("tagmatch.model.kernels.entry.load", lambda *_: False)
    compiled: list[Any] = []
    tm, _ = loaded([(["a"], 1), (["a", "b"], 2)], device="cpu")
    (query,) = tm._engine.changing.answering.matcher.one_query.parts  # type: ignore[union-attr]
    monkeypatch.setattr(query._kernels.entry.find._compiled, "compile", lambda *_: compiled.append(1))
    for _ in range(3):
        assert sorted(tm.match(["a", "b"])) == oracle.match(["a", "b"])
        assert tm.match_unique(["a", "b"]) == {1, 2}
        assert tm.match_count(["a", "b"]) == 2
        assert sorted(tm.submit(["a", "b"]).result()) == oracle.match(["a", "b"])
    assert isinstance(query, OneQuery)
    assert not compiled


def test_free_threaded_python_asks_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.pipeline.one.IS_LOCKED", False)
    entered.entry_of.cache_clear()
    tm, oracle = loaded([(["a"], 1), (["a", "b"], 2), ([], 2**40)], device="cpu")
    assert sorted(tm.match(["a", "b"])) == oracle.match(["a", "b"])
    assert tm.match_unique(["a", "b"]) == {1, 2, 2**40}
    assert sorted(tm.submit(["a", "b"]).result()) == oracle.match(["a", "b"])
    assert np.sum(tm.match(["b"])) == 2**40


@pytest.mark.parametrize("key_type", ["integer", "string"])
def test_lack_of_memory_is_said_or_left_to_others(key_type: Any) -> None:
    """At each allocation of Python's own: an error, `None` or the answer, and nothing is spoiled."""
    testing = pytest.importorskip("_testcapi")
    name: Any = (lambda key: key + 10**6) if key_type == "integer" else "key {}".format
    tm, oracle = loaded([(["a"], name(key)) for key in range(9)], device="cpu", key_type=key_type)
    tm.match(["a"])
    (query,) = tm._engine.changing.answering.matcher.one_query.parts  # type: ignore[union-attr]
    enter, counts, seen = query.enter, tm._engine._pipeline.counts_at, set()
    for tags, wanted in itertools.product((["a"], {"a", "b"}), (one.KEYS, one.UNIQUE, one.COUNT, one.BYTES)):
        right = enter(tags, wanted, counts, b"")
        for place in range(20):
            testing.set_nomemory(place, place + 1)
            try:
                found = enter(tags, wanted, counts, b"")
            except MemoryError:
                found = MemoryError
            finally:
                testing.remove_mem_hooks()
            assert found in (MemoryError, None, right)
            seen.add("right" if found == right else found)
    assert seen == {"right", None, MemoryError}
    assert sorted(tm.match(["a"])) == oracle.match(["a"])
