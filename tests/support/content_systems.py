"""Workloads for the systems that match constraints on attributes, and what holds them to brute force."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from support.content import matching_keys
from support.strategies import BOUNDARY_KEYS

from tagmatch.workloads.systems.catalogue import ENCODED, System

NAMES = ("x", "y", "z", "price", "a b", "")
OTHER_NAMES = (*NAMES, "unknown", *(f"n{i}" for i in range(40)))
WHOLE = st.integers(-3, 3) | st.sampled_from([2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)])
REAL = st.sampled_from([-1.5, -0.0, 0.0, 0.5, 1.0, 1e300, float("inf"), float("-inf"), 5e-324])
#: Of attributes with texts
TEXT_NAMES = ("t", "name")
#: Of few characters, so that parts recur; as long as can be compared, of 1 to 4 bytes a character, and empty
TEXTS = st.text("ab", max_size=7) | st.text("aé", max_size=3) | st.sampled_from(["", "abababa", "日本", "😀a", "b😀"])

Row = dict[str, Any]


def constraints(values: st.SearchStrategy[Any], names: tuple[str, ...]) -> st.SearchStrategy[Row]:
    name, comparison = st.sampled_from(names), st.sampled_from(["=", "!=", "<", ">"])
    one = st.fixed_dictionaries({"attr": name, "op": comparison, "value": values, "upper": st.none()})
    ends = st.tuples(values, values).map(sorted)
    return one | st.builds(
        lambda name, ends: {"attr": name, "op": "between", "value": ends[0], "upper": ends[1]}, name, ends
    )


def workloads(values: st.SearchStrategy[Any], names: tuple[str, ...]) -> st.SearchStrategy[tuple[list[Row], list[Row]]]:
    """Few names and values, so that filters match; constraints repeat, in a filter too, and a filter may have none."""
    messages = st.dictionaries(st.sampled_from(OTHER_NAMES), values, max_size=20)
    return st.tuples(st.lists(filters_of(constraints(values, names)), max_size=25), st.lists(messages, max_size=6))


def filters_of(each: st.SearchStrategy[Row]) -> st.SearchStrategy[Row]:
    """Filters with such constraints."""
    keys = st.integers(0, 3) | st.sampled_from(BOUNDARY_KEYS)
    return st.fixed_dictionaries({"key": keys, "constraints": st.lists(each, max_size=4)})


def text_constraints() -> st.SearchStrategy[Row]:
    name, comparison = st.sampled_from(TEXT_NAMES), st.sampled_from(["=", "!=", "prefix", "contains"])
    return st.fixed_dictionaries({"attr": name, "op": comparison, "text": TEXTS})


def text_workloads() -> st.SearchStrategy[tuple[list[Row], list[Row]]]:
    """Texts beside whole numbers."""
    of_filters = filters_of(text_constraints() | constraints(WHOLE, ("x",)))
    messages = st.fixed_dictionaries({}, optional=dict.fromkeys(TEXT_NAMES, TEXTS) | {"x": WHOLE, "unknown": TEXTS})
    return st.tuples(st.lists(of_filters, max_size=25), st.lists(messages, max_size=6))


def text_tables(filters: list[Row], messages: list[Row]) -> tuple[pa.Table, pa.Table]:
    """A column of whole numbers, `x`; all others have texts."""
    kinds = {"x": pa.int64(), **dict.fromkeys((*TEXT_NAMES, "unknown"), pa.string())}
    return subscriptions(filters, pa.int64()), _columns(messages, kinds)


def _columns(messages: list[Row], kinds: dict[str, pa.DataType]) -> pa.Table:
    return pa.table({name: pa.array([row.get(name) for row in messages], kind) for name, kind in kinds.items()})


def subscriptions(filters: list[Row], kind: pa.DataType, **more: pa.DataType) -> pa.Table:
    """A table of filters; operands that one does not have are null."""
    operands = {"value": kind, "upper": kind, **(more or {"text": pa.string()})}
    struct = pa.struct({"attr": pa.string(), "op": pa.string(), **operands})
    return pa.Table.from_pylist(filters, pa.schema({"key": pa.uint64(), "constraints": pa.list_(struct)}))


def tables(filters: list[Row], messages: list[Row], kind: pa.DataType) -> tuple[pa.Table, pa.Table]:
    return subscriptions(filters, kind, value=kind), _columns(messages, dict.fromkeys(OTHER_NAMES, kind))


_FEW = st.integers(-3, 3)
#: Subscriptions and messages of each kind of attributes
KINDS: dict[str, st.SearchStrategy[tuple[pa.Table, pa.Table]]] = {
    "whole": (workloads(WHOLE, NAMES) | workloads(_FEW, OTHER_NAMES)).map(lambda t: tables(*t, pa.int64())),
    "real": workloads(REAL, NAMES).map(lambda t: tables(*t, pa.float64())),
    "texts": text_workloads().map(lambda t: text_tables(*t)),
}


def check(system: System, subscriptions: pa.Table, messages: pa.Table, threads: int = 1) -> int:
    """Compare all answers with brute force; returns how many there are."""
    right = matching_keys(subscriptions.to_pylist(), messages.to_pylist())
    ours = system in ENCODED.values()
    if ours:
        subscriptions, messages = _as_ours_take_them(subscriptions, messages)
    with closing(system(subscriptions, threads)) as matcher:
        assert matcher.nbytes() > 0
        return compare(matcher, matcher.prepare(messages), right, ours=ours)


def compare(matcher: Any, prepared: Any, right: list[list[int]], *, ours: bool = False) -> int:
    """Compare answers to some messages and to all; our systems store filters that are equal, with one key, once."""
    assert len(prepared) == len(right)
    for first, last in ((0, len(right)), (1, len(right)), (0, 1), (2, 2)):
        due, some = right[first:last], prepared[first:last]
        once, given = [sorted(set(keys)) for keys in due], matcher.match_many(some).to_pylist()
        assert [sorted(set(keys)) if ours else sorted(keys) for keys in given] == (once if ours else due)
        assert all(len(keys) <= len(most) for keys, most in zip(given, due, strict=True))
        assert list(map(sorted, matcher.match_many(some, unique=True).to_pylist())) == once
    return sum(map(len, right))


def _as_ours_take_them(subscriptions: pa.Table, messages: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The same, where every attribute has a name, and no constraint an operand without meaning."""
    rows = subscriptions.to_pylist()
    for row in rows:
        for constraint in row["constraints"]:
            constraint["attr"] = constraint["attr"] or "no name"
            if constraint["op"] != "between":
                constraint["upper"] = None
    stored = pa.Table.from_pylist(rows, subscriptions.schema)
    return stored, messages.rename_columns([name or "no name" for name in messages.schema.names])
