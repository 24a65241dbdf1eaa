"""The systems that match constraints on attributes, against brute force in plain Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.content import matching_keys
from support.content_systems import (
    NAMES,
    OTHER_NAMES,
    REAL,
    WHOLE,
    Row,
    check,
    subscriptions,
    tables,
    text_tables,
    text_workloads,
    workloads,
)

from tagmatch.workloads.content import SCENARIOS, Content, ContentOptions
from tagmatch.workloads.systems.catalogue import CONTENT, CONTENT_PHASES, CONTENT_SHARED, ENCODED, System

#: Also with as many nodes as there can be
SYSTEMS = {
    **CONTENT,
    **CONTENT_PHASES,
    **CONTENT_SHARED,
    "BE-Tree, cut to the end": System("be_tree:BeTree", {"leaf": 1}),
}


#: And our own, in each path
ALL = {**SYSTEMS, **ENCODED}


@pytest.fixture(params=ALL, scope="module")
def system(request: pytest.FixtureRequest) -> System:
    return ALL[request.param]


@pytest.fixture(params=SYSTEMS, scope="module")
def compared(request: pytest.FixtureRequest) -> System:
    return SYSTEMS[request.param]


@given(workload=workloads(WHOLE, NAMES), threads=st.sampled_from([1, 3]))
def test_whole_numbers(system: System, workload: tuple[list[Row], list[Row]], threads: int) -> None:
    check(system, *tables(*workload, pa.int64()), threads)


@given(workload=workloads(st.integers(-3, 3), OTHER_NAMES))
def test_many_names(system: System, workload: tuple[list[Row], list[Row]]) -> None:
    check(system, *tables(*workload, pa.int64()))


@given(workload=workloads(REAL, NAMES))
def test_real_numbers(system: System, workload: tuple[list[Row], list[Row]]) -> None:
    check(system, *tables(*workload, pa.float64()))


@given(workload=text_workloads(), threads=st.sampled_from([1, 3]))
def test_texts(system: System, workload: tuple[list[Row], list[Row]], threads: int) -> None:
    check(system, *text_tables(*workload), threads)


@pytest.mark.parametrize("text", ["", "a", "ab", "aa", "abcabca", "aaaaaaa", "a\uffff", "\U0010ffffab"])
def test_all_parts_of_a_text(system: System, text: str) -> None:
    """Each is a prefix, contained or equal, or none of these, and so for messages that have one character less."""
    parts = sorted({text[i:j] for i in range(len(text) + 1) for j in range(i, len(text) + 1)} | {"b", "aab", "ca"})
    asked = [(op, part) for op in ("=", "!=", "prefix", "contains") for part in parts]
    stored = [
        {"key": key, "constraints": [{"attr": "t", "op": op, "text": part}]} for key, (op, part) in enumerate(asked)
    ]
    messages = [{"t": text}, {"t": text[:-1]}, {"t": text[1:]}, {"x": 1}]
    assert check(system, *text_tables(stored, messages)) > len(messages)


@pytest.mark.parametrize("interfaces", [1, 10])
def test_generated_texts(system: System, interfaces: int) -> None:
    filters = {"min_filters": 600 // interfaces, "max_filters": 600 // interfaces}
    content = Content(ContentOptions(interfaces=interfaces, **filters, names=8, strings=0.5, values=20))
    assert check(system, content.subscriptions(0, content.filters), content.messages(0, 60), threads=2) > 100


@pytest.mark.parametrize("interfaces", [1, 10, 300])
def test_generated(system: System, interfaces: int) -> None:
    """Few names, so that there is much to find; slices and chunks."""
    filters = {"min_filters": 600 // interfaces, "max_filters": 600 // interfaces}
    options = ContentOptions(interfaces=interfaces, **filters, names=8, between=25)
    content = Content(options)
    whole = content.subscriptions(0, content.filters)
    half = len(whole) // 2
    stored = pa.concat_tables([whole.slice(1, half - 1), whole.slice(half)])
    assert check(system, stored, content.messages(0, 60).slice(3), threads=2) > 100


def test_dense(system: System) -> None:
    content = Content(replace(SCENARIOS["dense"], interfaces=800, values=1000, width=0.9))
    assert check(system, content.subscriptions(0, 800), content.messages(0, 20)) > 1000


def test_zipf_names(system: System) -> None:
    options = replace(SCENARIOS["pcm"], interfaces=30, min_filters=30, max_filters=30, zipf=2.0, max_attributes=9)
    content = Content(options)
    assert check(system, content.subscriptions(0, 900), content.messages(0, 60)) > 100


def test_large_filters(system: System) -> None:
    """More constraints than a byte counts."""
    filters = [
        {"key": size, "constraints": [{"attr": "x", "op": ">", "value": i % 7, "upper": None} for i in range(size)]}
        for size in (1, 255, 256, 257, 512, 70_000)
    ]
    assert check(system, *tables(filters, [{"x": 6}, {"x": 7}, {}], pa.int64())) == 7


@pytest.mark.parametrize("value", [2**31 - 1, 2**31, -(2**31), -(2**31) - 1])
def test_operands_of_32_bits_and_just_more(system: System, value: int) -> None:
    """Also a message's value that has their lowest 32 bits only in common."""
    filters = [
        {"key": key, "constraints": [{"attr": "x", "op": op, "value": value, "upper": value}]}
        for key, op in enumerate(["=", "!=", "<", ">", "between"])
    ]
    messages = [{"x": value + more} for more in (0, 1, -1, 2**32, -(2**32))]
    assert check(system, *tables(filters, messages, pa.int64())) == 2 + 4 * 2


def test_nothing_stored_or_sent(system: System) -> None:
    some = [{"key": 1, "constraints": []}], [{"x": 1}, {}]
    check(system, *tables([], some[1], pa.int64()))
    check(system, *tables(some[0], [], pa.int64()))
    check(system, tables(*some, pa.int64())[0], pa.table({"other": pa.array([None, 2], pa.int64())}))


@given(workload=workloads(WHOLE, NAMES), parts=st.integers(1, 4))
def test_a_message_in_tasks(workload: tuple[list[Row], list[Row]], parts: int) -> None:
    """Each filter is in one SubC phase, whatever number there is."""
    stored, sent = tables(*workload, pa.int64())
    matcher: Any = CONTENT_PHASES["H and C phases"](stored, 1)
    prepared = matcher.prepare(sent)
    for row, right in enumerate(matching_keys(stored.to_pylist(), sent.to_pylist())):
        bits = matcher.h_phase(prepared, row)
        assert len(bits) == matcher.predicates
        found = [matcher.sub_c_phase(bits, part, parts) for part in range(parts)]
        assert sorted(matcher.keys_of(np.concatenate(found)).tolist()) == right


def test_parts_have_as_many_filters() -> None:
    """About: each has whole clusters."""
    content = Content(ContentOptions(interfaces=1, min_filters=8000, max_filters=8000, names=8))
    matcher: Any = CONTENT_PHASES["H and C phases"](content.subscriptions(0, content.filters), 1)
    every = np.ones(matcher.predicates, np.uint8)
    counts = [len(matcher.sub_c_phase(every, part, 4)) for part in range(4)]
    assert sum(counts) == content.filters
    assert all(0.9 * 2000 < count < 1.1 * 2000 for count in counts)


CONSTRAINT = {"attr": "x", "op": "=", "value": 1, "upper": None}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"op": "prefix"}, "operator 'prefix' is none of =, !=, <, >, between"),
        ({"value": None}, "a constraint has no operand"),
        ({"op": "between"}, "a constraint has no operand"),
        ({"value": float("nan")}, "a constraint has NaN as its operand"),
    ],
)
def test_wrong_constraints(compared: System, wrong: Row, message: str) -> None:
    filters = [{"key": 1, "constraints": [CONSTRAINT, CONSTRAINT | wrong]}]
    with pytest.raises(ValueError, match=message):
        compared(tables(filters, [], pa.float64())[0], 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"text": "12345678"}, "a text of 8 bytes is longer than 7"),
        ({"text": "ééé€"}, "a text of 9 bytes is longer than 7"),
        ({"text": "a\0"}, "a text has a character of code 0"),
        ({"op": "<"}, "operator '<' is none of =, !=, prefix, contains"),
        ({"attr": "x"}, "attribute 'x' has constraints on numbers and on texts"),
    ],
)
def test_wrong_texts(compared: System, wrong: Row, message: str) -> None:
    right = {"attr": "t", "op": "=", "text": "a"}
    with pytest.raises(ValueError, match=message):
        compared(subscriptions([{"key": 1, "constraints": [CONSTRAINT, right | wrong]}], pa.int64()), 1)
    with pytest.raises(ValueError, match="texts cannot be compared beside numbers of type double"):
        compared(subscriptions([{"key": 1, "constraints": [right]}], pa.float64()), 1)


def test_messages_of_other_types_are_refused(compared: System) -> None:
    asked = [CONSTRAINT, {"attr": "t", "op": "prefix", "text": "a"}]
    matcher: Any = compared(subscriptions([{"key": 1, "constraints": asked}], pa.int64()), 1)
    for sent, message in (
        ({"t": [5]}, "attribute 't' of messages is int64; constraints want texts"),
        ({"x": ["5"]}, "attribute 'x' of messages is string; constraints want numbers"),
        ({"t": ["12345678"]}, "a text of 8 bytes is longer than 7"),
        ({"t": ["\0"]}, "a text has a character of code 0"),
    ):
        with pytest.raises(ValueError, match=message):
            matcher.prepare(pa.table(sent))
    nothing = matcher.prepare(pa.table({"x": pa.nulls(2), "t": pa.nulls(2), "other": ["12345678", "1"]}))
    assert matcher.match_many(nothing).to_pylist() == [[], []]


def test_nan_is_refused(compared: System) -> None:
    matcher: Any = compared(tables([{"key": 1, "constraints": [CONSTRAINT]}], [], pa.float64())[0], 1)
    with pytest.raises(ValueError, match="attribute 'x' of a message is NaN"):
        matcher.prepare(pa.table({"x": [1.0, float("nan")]}))
