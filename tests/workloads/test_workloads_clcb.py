"""CLCB on the CPU, constraints and areas together, against brute force."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.located_systems import AREA, POINT, check_located, located_workloads, on_a_grid

from tagmatch.workloads.location import SCENARIOS, Location
from tagmatch.workloads.systems.catalogue import LOCATED, System
from tagmatch.workloads.systems.clcb_tables import name_blooms


@pytest.fixture(params=LOCATED, scope="module")
def system(request: pytest.FixtureRequest) -> System:
    return LOCATED[request.param]


@given(workload=located_workloads(), threads=st.sampled_from([1, 3]))
def test_constraints_and_areas(system: System, workload: tuple[pa.Table, pa.Table], threads: int) -> None:
    check_located(system, *workload, threads)


@pytest.mark.parametrize("scenario", ["clcb", "zipf", "every"])
def test_generated(system: System, scenario: str) -> None:
    few = {} if scenario == "every" else {"names": 5}
    location = Location(replace(SCENARIOS[scenario], subscribers=60, coverage=0.05, **few))
    stored, sent = location.subscriptions(0, location.filters), location.messages(0, 60)
    found = check_located(system, on_a_grid(stored, "area", AREA), on_a_grid(sent, "location", POINT), threads=2)
    assert found > 20


@pytest.mark.parametrize("size", [254, 255, 300])
def test_as_many_constraints_as_bytes_count(system: System, size: int) -> None:
    asked = [{"attr": "x", "op": ">", "value": i % 5, "upper": None} for i in range(size)]
    struct = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.int64(), "upper": pa.int64()})
    stored = pa.table(
        {
            "key": pa.array([1, 2], pa.uint64()),
            "constraints": pa.array([asked, asked[:-1]], pa.list_(struct)),
            "area": pa.array([{"x": 0.5, "y": 0.5, "radius": 0.5}] * 2, AREA),
        }
    )
    sent = pa.table({"x": [5, 0, 5, 4], "location": pa.array([{"x": 0.5, "y": 0.5}] * 3 + [{"x": 0, "y": 0}], POINT)})
    assert check_located(system, stored, sent) == 8


def test_a_message_without_a_position(system: System) -> None:
    matcher: Any = system(Location(SCENARIOS["clcb"]).subscriptions(0, 5), 1)
    sent = pa.table({"location": pa.array([{"x": 0.5, "y": None}], POINT)})
    with pytest.raises(ValueError, match="a message has no position"):
        matcher.prepare(sent)


def test_false_positives_of_bloom_filters() -> None:
    """Of 32 bits with two a name: 10 % with six names (§4.3)."""
    blooms = name_blooms(20_000)
    of_six = np.bitwise_or.reduce(blooms[:12_000].reshape(-1, 6), axis=1)
    passed = (blooms[12_000:14_000] & ~of_six) == 0
    assert passed.mean() == pytest.approx(0.098, rel=0.1)
    assert {int(bloom).bit_count() for bloom in blooms} <= {1, 2}
