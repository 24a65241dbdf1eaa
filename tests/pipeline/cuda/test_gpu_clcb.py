"""CLCB on a device: constraints and areas together, and areas alone, as our own finders, against brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.circle_systems import PLACES, RADII, cases, check, random_case
from support.located_systems import AREA, POINT, check_located, located_workloads, on_a_grid, right_keys
from support.simulator import EXAMPLES, SIMULATED

from tagmatch.workloads.location import SCENARIOS, Location
from tagmatch.workloads.systems import clcb_cuda
from tagmatch.workloads.systems.catalogue import CIRCLES_GPU, LOCATED_GPU, OWN_CIRCLES_GPU
from tagmatch.workloads.systems.clcb_cuda import PARTS, ClcbCuda

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

CLCB = LOCATED_GPU["CLCB"]
ALONE = {"CLCB": CIRCLES_GPU["CLCB"]} | OWN_CIRCLES_GPU
alone = pytest.mark.parametrize("name", ALONE)


@EXAMPLES
@given(workload=located_workloads())
def test_constraints_and_areas(workload: tuple[pa.Table, pa.Table]) -> None:
    check_located(CLCB, *workload)


@alone
@EXAMPLES
@given(data=st.data())
def test_areas_alone(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(PLACES, RADII) if name == "CLCB" else cases())
    check(lambda circles: ALONE[name].build(circles, 1), case)


@pytest.mark.slow
@alone
def test_many_areas(seed: int, name: str) -> None:
    case = random_case(seed, *((300, 60) if SIMULATED else (5000, 500)))
    assert check(lambda circles: ALONE[name].build(circles, 2), case) > 5


def generated(scenario: str, subscribers: int, messages: int, **changes: Any) -> tuple[pa.Table, pa.Table]:
    location = Location(replace(SCENARIOS[scenario], subscribers=subscribers, filters_each=4, **changes))
    stored, sent = location.subscriptions(0, location.filters), location.messages(0, messages)
    return on_a_grid(stored, "area", AREA), on_a_grid(sent, "location", POINT)


@pytest.mark.parametrize(("scenario", "changes"), [("clcb", {"names": 5, "selectivity": 0.2}), ("every", {})])
def test_generated(scenario: str, changes: dict[str, Any]) -> None:
    """Enough messages for all bytes of counters, a few times."""
    assert check_located(CLCB, *generated(scenario, 12, 25, coverage=0.5, **changes)) > 100


def test_nothing_stored_or_sent() -> None:
    stored, sent = generated("every", 2, 3)
    for some, asked in ((stored.slice(0, 0), sent), (stored, sent.slice(0, 0))):
        # What was in memory before must not be taken for answers
        matcher: Any = CLCB(some, 1)
        for unique in (True, False):
            _, found = matcher._marked_and_found(unique)
            found.copy_to_device(np.full(len(found), 7, np.uint32))
        check_located(CLCB, some, asked)
        assert matcher.match_many(matcher.prepare(asked)).to_pylist() == right_keys(some, asked)


@pytest.mark.parametrize("copied", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_more_answers_than_are_copied_with_their_number(monkeypatch: pytest.MonkeyPatch, copied: int) -> None:
    monkeypatch.setattr(clcb_cuda, "_COPIED", copied)
    assert check_located(CLCB, *generated("every", 8, 9, coverage=0.5)) > 60


@pytest.mark.parametrize("size", [1, pytest.param(254, marks=pytest.mark.slow), 255])
def test_as_many_constraints_as_bytes_count(size: int) -> None:
    """A counter that is full must not count for the next message's, which is in the same 32 bits."""
    asked = [{"attr": "x", "op": ">", "value": i % 5, "upper": None} for i in range(size)]
    struct = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.int64(), "upper": pa.int64()})
    stored = pa.table(
        {
            "key": pa.array([1, 2], pa.uint64()),
            "constraints": pa.array([asked, asked[1:]], pa.list_(struct)),
            "area": pa.array([{"x": 0.5, "y": 0.5, "radius": 0.5}] * 2, AREA),
        }
    )
    values = [5, 0, 5, 5, 4, 5, 5, 5, 5]
    sent = pa.table({"x": values, "location": pa.array([{"x": 0.5, "y": 0.5}] * len(values), POINT)})
    assert check_located(CLCB, stored, sent) > 20


def test_parts_of_the_time() -> None:
    """Each takes some, and answers are right afterwards."""
    stored, sent = generated("every", 6, 9, coverage=0.5)
    matcher: Any = CLCB(stored, 1)
    prepared = matcher.prepare(sent)
    seconds = matcher.seconds_of_parts(prepared)
    assert tuple(seconds) == PARTS
    assert all(each > 0 for each in seconds.values())
    assert list(map(sorted, matcher.match_many(prepared).to_pylist())) == right_keys(stored, sent)
    assert matcher.device_nbytes() > 4 * 5 * len(stored)


def test_after_a_failure_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither counted nor marked."""
    stored, sent = generated("every", 6, 2, coverage=0.5)
    away = sent.set_column(1, "location", pa.array([{"x": 9.0, "y": 9.0}] * 2, POINT))
    matcher = ClcbCuda(stored)
    first, second = matcher.prepare(sent), matcher.prepare(away)

    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    for unique in (True, False):
        with monkeypatch.context() as patched:
            patched.setattr(matcher._workspace, "download", fail)
            with pytest.raises(KeyboardInterrupt):
                matcher.match_many(first, unique=unique)
        assert matcher.match_many(second, unique=unique).to_pylist() == [[], []]
        right = right_keys(stored, sent)
        due = [sorted(set(keys)) for keys in right] if unique else right
        for _ in range(5):
            assert list(map(sorted, matcher.match_many(first, unique=unique).to_pylist())) == due


def test_moves_are_there_at_once() -> None:
    matcher = CIRCLES_GPU["CLCB"].build(random_case(1, 5, 1).circles, 1)
    ids, quarter = np.array([3], np.uint32), np.array([0.25])
    matcher.move(ids, quarter, quarter)
    assert 3 in matcher.stab(quarter, quarter).ids
    matcher.move(ids, quarter * 30, quarter)
    assert 3 not in matcher.stab(quarter, quarter).ids
