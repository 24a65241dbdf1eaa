"""The systems that count satisfied constraints, against brute force in plain Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.content import matching_keys
from support.strategies import BOUNDARY_KEYS

from tagmatch.workloads.content import SCENARIOS, Content, ContentOptions
from tagmatch.workloads.systems.catalogue import CONTENT, System

NAMES = ("x", "y", "z", "price", "a b", "")
OTHER_NAMES = (*NAMES, "unknown", *(f"n{i}" for i in range(40)))
WHOLE = st.integers(-3, 3) | st.sampled_from([2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)])
REAL = st.sampled_from([-1.5, -0.0, 0.0, 0.5, 1.0, 1e300, float("inf"), float("-inf"), 5e-324])

Row = dict[str, Any]


def constraints(values: st.SearchStrategy[Any], names: tuple[str, ...]) -> st.SearchStrategy[Row]:
    name, comparison = st.sampled_from(names), st.sampled_from(["=", "!=", "<", ">"])
    one = st.fixed_dictionaries({"attr": name, "op": comparison, "value": values, "upper": st.none()})
    return one | st.fixed_dictionaries({"attr": name, "op": st.just("between"), "value": values, "upper": values})


def workloads(values: st.SearchStrategy[Any], names: tuple[str, ...]) -> st.SearchStrategy[tuple[list[Row], list[Row]]]:
    """Few names and values, so that filters match; constraints repeat, in a filter too, and a filter may have none."""
    filters = st.fixed_dictionaries(
        {
            "key": st.integers(0, 3) | st.sampled_from(BOUNDARY_KEYS),
            "constraints": st.lists(constraints(values, names), max_size=4),
        }
    )
    messages = st.dictionaries(st.sampled_from(OTHER_NAMES), values, max_size=20)
    return st.tuples(st.lists(filters, max_size=25), st.lists(messages, max_size=6))


def tables(filters: list[Row], messages: list[Row], kind: pa.DataType) -> tuple[pa.Table, pa.Table]:
    struct = pa.struct({"attr": pa.string(), "op": pa.string(), "value": kind, "upper": kind})
    schema = pa.schema({"key": pa.uint64(), "constraints": pa.list_(struct)})
    sent = pa.table({name: pa.array([row.get(name) for row in messages], kind) for name in OTHER_NAMES})
    return pa.Table.from_pylist(filters, schema), sent


@pytest.fixture(params=CONTENT, scope="module")
def system(request: pytest.FixtureRequest) -> System:
    return CONTENT[request.param]


def check(system: System, subscriptions: pa.Table, messages: pa.Table, threads: int = 1) -> int:
    """Compare all answers with brute force; returns how many there are."""
    right = matching_keys(subscriptions.to_pylist(), messages.to_pylist())
    matcher: Any = system(subscriptions, threads)
    try:
        prepared = matcher.prepare(messages)
        assert len(prepared) == len(messages)
        for first, last in ((0, len(right)), (1, len(right)), (0, 1), (2, 2)):
            due = right[first:last]
            given = matcher.match_many(prepared[first:last]).to_pylist()
            assert list(map(sorted, given)) == due
            given = matcher.match_many(prepared[first:last], unique=True).to_pylist()
            assert list(map(sorted, given)) == [sorted(set(keys)) for keys in due]
        assert matcher.nbytes() > 0
    finally:
        matcher.close()
    return sum(map(len, right))


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
