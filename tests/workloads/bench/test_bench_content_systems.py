"""The systems that match constraints on attributes, against brute force in plain Python."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.systems import KINDS, check, matching_keys, subscriptions, tables

from tagmatch.workloads.content import SCENARIOS, Content, ContentOptions
from tagmatch.workloads.systems.catalogue import CONTENT, CONTENT_PHASES, CONTENT_SHARED, ENCODED, System

#: Also with as many nodes as there can be
SYSTEMS = {**CONTENT, **CONTENT_PHASES, **CONTENT_SHARED, "BE-Tree, to the end": System("be_tree:BeTree", {"leaf": 1})}
#: And our own, in each path
ALL = {**SYSTEMS, **ENCODED}


@pytest.fixture(params=ALL, scope="module")
def system(request: pytest.FixtureRequest) -> System:
    return ALL[request.param]


@pytest.fixture(params=SYSTEMS, scope="module")
def compared(request: pytest.FixtureRequest) -> System:
    return SYSTEMS[request.param]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), threads=st.sampled_from([1, 3]))
def test_constraints(system: System, kind: str, data: st.DataObject, threads: int) -> None:
    check(system, *data.draw(KINDS[kind]), threads)


OF_SCENARIOS: dict[str, tuple[ContentOptions, int]] = {
    "texts": (ContentOptions(interfaces=10, min_filters=60, max_filters=60, names=8, strings=0.5, values=20), 100),
    "300 interfaces": (ContentOptions(interfaces=300, min_filters=2, max_filters=2, names=8, between=25), 100),
    "dense": (replace(SCENARIOS["dense"], interfaces=600, values=1000, width=0.9), 1000),
}


@pytest.mark.parametrize("name", OF_SCENARIOS)
def test_generated(system: System, name: str) -> None:
    """Few names, so that there is much to find; slices and chunks."""
    options, least = OF_SCENARIOS[name]
    content = Content(options)
    whole = content.subscriptions(0, content.filters)
    half = len(whole) // 2
    stored = pa.concat_tables([whole.slice(1, half - 1), whole.slice(half)])
    assert check(system, stored, content.messages(0, 60).slice(3), threads=2) > least


def test_nothing_stored_or_sent(system: System) -> None:
    some = [{"key": 1, "constraints": []}], [{"x": 1}, {}]
    check(system, *tables([], some[1], pa.int64()))
    check(system, *tables(some[0], [], pa.int64()))
    check(system, tables(*some, pa.int64())[0], pa.table({"other": pa.array([None, 2], pa.int64())}))


@given(workload=KINDS["whole"], parts=st.integers(1, 4))
def test_a_message_in_tasks(workload: tuple[pa.Table, pa.Table], parts: int) -> None:
    """Each filter is in one SubC phase, whatever number there is."""
    stored, sent = workload
    matcher: Any = CONTENT_PHASES["H and C phases"](stored, 1)
    prepared = matcher.prepare(sent)
    for row, right in enumerate(matching_keys(stored.to_pylist(), sent.to_pylist())):
        bits = matcher.h_phase(prepared, row)
        found = [matcher.sub_c_phase(bits, part, parts) for part in range(parts)]
        assert sorted(matcher.keys_of(np.concatenate(found)).tolist()) == right


NUMBER = {"attr": "x", "op": "=", "value": 1, "upper": None}
TEXT = {"attr": "t", "op": "=", "text": "a"}
WHOLE_NUMBERS, REAL_NUMBERS = pa.int64(), pa.float64()
REFUSED = [
    (NUMBER | {"op": "prefix"}, REAL_NUMBERS, "operator 'prefix' is none of =, !=, <, >, between"),
    (NUMBER | {"value": None}, REAL_NUMBERS, "a constraint has no operand"),
    (NUMBER | {"op": "between"}, REAL_NUMBERS, "a constraint has no operand"),
    (NUMBER | {"value": float("nan")}, REAL_NUMBERS, "a constraint has NaN as its operand"),
    (TEXT | {"text": "12345678"}, WHOLE_NUMBERS, "a text of 8 bytes is longer than 7"),
    (TEXT | {"text": "ééé€"}, WHOLE_NUMBERS, "a text of 9 bytes is longer than 7"),
    (TEXT | {"text": "a\0"}, WHOLE_NUMBERS, "a text has a character of code 0"),
    (TEXT | {"op": "<"}, WHOLE_NUMBERS, "operator '<' is none of =, !=, prefix, contains"),
    (TEXT | {"attr": "x"}, WHOLE_NUMBERS, "attribute 'x' has constraints on numbers and on texts"),
    (TEXT, REAL_NUMBERS, "texts cannot be compared beside numbers of type double"),
]


def test_wrong_constraints(compared: System) -> None:
    for wrong, kind, message in REFUSED:
        asked = [{"key": 1, "constraints": [NUMBER, wrong]}]
        table = tables(asked, [], kind)[0] if wrong["attr"] == "x" and "value" in wrong else subscriptions(asked, kind)
        with pytest.raises(ValueError, match=message):
            compared(table, 1)


def test_messages_of_other_types_are_refused(compared: System) -> None:
    numbers = subscriptions([{"key": 1, "constraints": [NUMBER, TEXT | {"op": "prefix"}]}], WHOLE_NUMBERS)
    reals = tables([{"key": 1, "constraints": [NUMBER]}], [], REAL_NUMBERS)[0]
    for stored, sent, message in (
        (numbers, {"t": [5]}, "attribute 't' of messages is int64; constraints want texts"),
        (numbers, {"x": ["5"]}, "attribute 'x' of messages is string; constraints want numbers"),
        (numbers, {"t": ["12345678"]}, "a text of 8 bytes is longer than 7"),
        (numbers, {"t": ["\0"]}, "a text has a character of code 0"),
        (reals, {"x": [1.0, float("nan")]}, "attribute 'x' of a message is NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            compared(stored, 1).prepare(pa.table(sent))
    matcher: Any = compared(numbers, 1)
    nothing = matcher.prepare(pa.table({"x": pa.nulls(2), "t": pa.nulls(2), "other": ["12345678", "1"]}))
    assert matcher.match_many(nothing).to_pylist() == [[], []]
