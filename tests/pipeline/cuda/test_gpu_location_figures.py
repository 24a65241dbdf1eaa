"""Areas on a CUDA device as `tagmatch-bench location` has them: what is compared, not how fast anything is."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from rich.console import Console
from support.circle_systems import Case, cases, check, random_case
from support.simulator import SIMULATED

from tagmatch.workloads.bench.figures import location_content, location_spatial
from tagmatch.workloads.bench.figures.location import LocationSizes, location
from tagmatch.workloads.bench.harness.bench import Bench, BenchOptions
from tagmatch.workloads.bench.harness.results import Result
from tagmatch.workloads.systems.catalogue import (
    CIRCLES,
    CIRCLES_GPU,
    LOCATED,
    LOCATED_GPU,
    OWN_CIRCLES,
    OWN_CIRCLES_GPU,
    System,
)

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

_EXAMPLES = settings(max_examples=8 if SIMULATED else 100, deadline=None)
AREAS, CLIENTS = OWN_CIRCLES_GPU
MATCHING, MATCHING_GPU = "tagmatch, contents and areas", "tagmatch, contents and areas, GPU"


def _built(system: System) -> Callable[[Any], Any]:
    return lambda circles: system.build(circles, 1)


@pytest.mark.parametrize("system", OWN_CIRCLES_GPU.values(), ids=OWN_CIRCLES_GPU)
def test_circles_that_are_drawn(system: System) -> None:
    @_EXAMPLES
    @given(case=cases())
    def drawn(case: Case) -> None:
        check(_built(system), case)

    drawn()


@pytest.mark.parametrize("system", OWN_CIRCLES_GPU.values(), ids=OWN_CIRCLES_GPU)
def test_many_circles(seed: int, system: System) -> None:
    assert check(_built(system), random_case(seed, *((300, 60) if SIMULATED else (5000, 500)))) > 5


def _measured(part: str, skip: set[str], **sizes: Any) -> Result:
    options = BenchOptions(queries=8, rounds=2, seconds=0.001, keys_per_set=1, skip=tuple(skip))
    result = location(Bench(options, Console(file=io.StringIO())), LocationSizes(parts=(part,), **sizes))
    assert not result.faults()
    assert result.unavailable.keys() <= {*skip, "R*-tree as Boost has it"}
    return result


def test_areas_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-2,))
    monkeypatch.setattr(location_spatial, "DISTRIBUTIONS", {"uniform": "clcb"})
    monkeypatch.setattr(location_spatial, "LARGE", 60)
    own = ["tagmatch, areas", "tagmatch, clients"]
    skip = {*OWN_CIRCLES, *CIRCLES, *CIRCLES_GPU} - set(own)
    result = _measured("spatial", skip, filters=(60,))
    messages, moves = (
        next(panel for panel in result.panels if panel.title.endswith(what)) for what in ("messages", "moves")
    )
    assert {row.what for row in messages.rows} == {
        *own,
        *OWN_CIRCLES_GPU,
        *(f"{n}, kernel only" for n in OWN_CIRCLES_GPU),
    }
    assert {row.what for row in moves.rows} == {"tagmatch, clients", CLIENTS}
    assert all(row.value > 0 for panel in result.panels for row in panel.rows)
    limits = {line.what.partition(": ")[2]: line.target.limit for line in result.lines if line.target}
    for name, of_cpu in zip(OWN_CIRCLES_GPU, own, strict=True):
        assert limits[f"messages, {name} against {of_cpu}"] == 10
    assert {row.system for row in result.answers if "moved" in row.where} == {"tagmatch, clients", CLIENTS}
    assert {row.system for row in result.answers} == {*own, AREAS, CLIENTS}


def test_contents_and_areas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_content, "CONTENTS", ("tags",))
    monkeypatch.setattr(location_content, "_FROM", 60)
    result = _measured("content", {*LOCATED, *LOCATED_GPU}, located=(60,))
    ratios = [line for line in result.lines if f"{MATCHING_GPU} against {MATCHING}" in line.what]
    assert [line.target.limit for line in ratios if line.target] == [10]
    assert MATCHING_GPU in {row.system for row in result.answers}
