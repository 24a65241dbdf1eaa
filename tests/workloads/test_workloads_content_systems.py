"""The systems that match constraints on attributes, against brute force in plain Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.content_systems import NAMES, OTHER_NAMES, REAL, WHOLE, Row, check, tables, workloads

from tagmatch.workloads.content import SCENARIOS, Content, ContentOptions
from tagmatch.workloads.systems.catalogue import CONTENT, CONTENT_SHARED, System

#: Also with as many nodes as there can be
SYSTEMS = {**CONTENT, **CONTENT_SHARED, "BE-Tree, cut to the end": System("be_tree:BeTree", {"leaf": 1})}


@pytest.fixture(params=SYSTEMS, scope="module")
def system(request: pytest.FixtureRequest) -> System:
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
def test_wrong_constraints(system: System, wrong: Row, message: str) -> None:
    filters = [{"key": 1, "constraints": [CONSTRAINT, CONSTRAINT | wrong]}]
    with pytest.raises(ValueError, match=message):
        system(tables(filters, [], pa.float64())[0], 1)


def test_strings_and_nan_are_refused(system: System) -> None:
    content = Content(replace(SCENARIOS["pcm"], interfaces=1, min_filters=9, max_filters=9, strings=1.0))
    with pytest.raises(ValueError, match="constraints on strings cannot be compared"):
        system(content.subscriptions(0, 9), 1)
    matcher: Any = system(tables([{"key": 1, "constraints": [CONSTRAINT]}], [], pa.float64())[0], 1)
    with pytest.raises(ValueError, match="attribute 'x' of a message is NaN"):
        matcher.prepare(pa.table({"x": [1.0, float("nan")]}))
