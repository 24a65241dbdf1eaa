"""CCM, both versions, against brute force in plain Python."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import Any, cast

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
    tables,
    text_tables,
    text_workloads,
    workloads,
)
from support.simulator import EXAMPLES

from tagmatch import TagMatch
from tagmatch.workloads.broker.broker import Engine
from tagmatch.workloads.broker.engines import ContentEngine, TagmatchEngine
from tagmatch.workloads.broker.wire import Events, Names, decoded, encoded
from tagmatch.workloads.content import Content, ContentOptions
from tagmatch.workloads.systems import ccm
from tagmatch.workloads.systems.catalogue import CONTENT_GPU, System
from tagmatch.workloads.systems.content_matcher import ContentMatcher

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]


#: Also one by one, which goes through all stages of counters, and in several kernels
SYSTEMS = {
    **CONTENT_GPU,
    **{f"CCM, {at_once} at once": System("ccm:Ccm", {"at_once": at_once}) for at_once in (1, 3)},
    "CCM, 2011, memset": System("ccm_2011:Ccm2011", {"reset": "memset"}),
}


VARIANTS = ("CCM, 1 at once", "CCM, 2011, memset")


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS)) for name in SYSTEMS], scope="module"
)
def system(request: pytest.FixtureRequest) -> System:
    return SYSTEMS[request.param]


@EXAMPLES
@given(workload=workloads(WHOLE, NAMES) | workloads(st.integers(-3, 3), OTHER_NAMES), threads=st.sampled_from([1, 3]))
def test_whole_numbers(system: System, workload: tuple[list[Row], list[Row]], threads: int) -> None:
    check(system, *tables(*workload, pa.int64()), threads)


@EXAMPLES
@given(workload=workloads(REAL, NAMES))
def test_real_numbers(system: System, workload: tuple[list[Row], list[Row]]) -> None:
    check(system, *tables(*workload, pa.float64()))


@EXAMPLES
@given(workload=text_workloads())
def test_texts(system: System, workload: tuple[list[Row], list[Row]]) -> None:
    check(system, *text_tables(*workload))


@pytest.mark.parametrize("name", ["CCM, 3 at once", pytest.param("tagmatch", marks=pytest.mark.slow)])
def test_engines_of_a_broker(name: str) -> None:
    content = Content(ContentOptions(min_filters=30, max_filters=30, names=6))
    stored = content.subscriptions(0, content.filters).select(["key", "constraints"])
    sent = content.messages(0, 20)
    events, names = Events.of(sent), sent.column_names
    with ExitStack() as stack:
        if name == "tagmatch":
            index = stack.enter_context(TagMatch(device="cuda"))
            index.add_subscriptions(stored)
            index.consolidate()
            engine: Engine = TagmatchEngine(index, names, tables_from=1)
        else:
            engine = ContentEngine(cast("ContentMatcher", SYSTEMS[name](stored, 1)))
        some, _ = decoded(encoded(events, 0, len(sent), Names.of(names)), Names.of(engine.names))
        found = engine.interfaces(some)
    right = [sorted(set(keys)) for keys in matching_keys(stored.to_pylist(), sent.to_pylist())]
    assert sum(map(len, right)) > len(sent)
    assert [sorted(found.values[begin:end].tolist()) for begin, end in pairwise(found.offsets)] == right


@pytest.mark.parametrize("interfaces", [1, 10])
def test_generated(system: System, interfaces: int) -> None:
    """Enough messages for all stages of counters, a few times."""
    filters = {"min_filters": 40 // interfaces, "max_filters": 40 // interfaces}
    sizes = {"min_constraints": 1, "max_constraints": 3}
    content = Content(ContentOptions(interfaces=interfaces, **filters, **sizes, names=6, between=25))
    assert check(system, content.subscriptions(0, content.filters), content.messages(0, 25)) > 100


@pytest.mark.parametrize("reset", ["kernel", "memset"])
def test_parts_of_the_time(reset: str) -> None:
    """Each takes some, and answers are right afterwards."""
    content = Content(ContentOptions(interfaces=5, min_filters=6, max_filters=6, names=6))
    stored, sent = content.subscriptions(0, content.filters), content.messages(0, 9)
    matcher: Any = System("ccm_2011:Ccm2011", {"reset": reset})(stored, 1)
    prepared = matcher.prepare(sent)
    seconds = matcher.seconds_of_parts(prepared)
    assert list(seconds) == ["copy in", "kernel", "copy back"]
    assert all(each > 0 for each in seconds.values())
    right = matching_keys(stored.to_pylist(), sent.to_pylist())
    assert list(map(sorted, matcher.match_many(prepared).to_pylist())) == right
    assert list(map(sorted, matcher.match_many(prepared, unique=True).to_pylist())) == [sorted(set(k)) for k in right]


def of_size(size: int) -> list[Row]:
    """So many constraints, of which 6 satisfies all but one, and 7 all."""
    return [{"attr": "x", "op": ">", "value": 6 if i == 0 else i % 6, "upper": None} for i in range(size)]


@pytest.mark.parametrize("size", [16, 256])
def test_as_many_constraints_as_counters_hold_and_one_more(system: System, size: int) -> None:
    """A counter that is full must not count for the next stage, which is in the same 32 bits."""
    filters = [{"key": key, "constraints": of_size(count)} for key, count in enumerate((1, 2, size - 1, size))]
    messages = [{"x": value} for value in (7, 7, 6, 7, 3, 7, 7, 7, 7, 6, 7)]
    assert check(system, *tables(filters, messages, pa.int64())) > 30


def test_nothing_stored_or_sent(system: System) -> None:
    some = [{"key": 1, "constraints": []}], [{"x": 1}, {}]
    check(system, *tables([], some[1], pa.int64()))
    check(system, *tables(some[0], [], pa.int64()))
    check(system, tables(*some, pa.int64())[0], pa.table({"other": pa.array([None, 2], pa.int64())}))


@pytest.mark.parametrize("most_rows", [1, 3])
def test_more_lines_than_a_grid_has_rows(monkeypatch: pytest.MonkeyPatch, most_rows: int) -> None:
    monkeypatch.setattr(ccm, "MOST_ROWS", most_rows)
    content = Content(ContentOptions(interfaces=5, min_filters=6, max_filters=6, names=6, max_constraints=4))
    assert check(CONTENT_GPU["CCM"], content.subscriptions(0, content.filters), content.messages(0, 20)) > 10


def test_after_a_failure_nothing_is_left(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither counted nor marked."""
    filters = [{"key": 1, "constraints": of_size(1)}, {"key": 2, "constraints": of_size(2)}]
    matcher: Any = system(tables(filters, [], pa.int64())[0], 1)
    first, second = (matcher.prepare(tables([], [row], pa.int64())[1]) for row in ({"x": 7}, {"x": 1}))
    workspace = matcher._workspace

    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    for unique in (True, False):
        with monkeypatch.context() as patched:
            patched.setattr(workspace, "download", fail)
            with pytest.raises(KeyboardInterrupt):
                matcher.match_many(first, unique=unique)
        assert matcher.match_many(second, unique=unique).to_pylist() == [[]]
        for _ in range(9):
            assert sorted(*matcher.match_many(first, unique=unique).to_pylist()) == [1, 2]
