"""Latency of single events: which systems are asked, and that all their answers are compared."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from tagmatch.workloads.bench.figures.content_scenarios import pcm
from tagmatch.workloads.bench.harness.bench import Bench, BenchOptions
from tagmatch.workloads.bench.harness.content_latency import ALL, OCM_CALLED, OURS, OURS_ON_GPU, latency
from tagmatch.workloads.bench.harness.results import Result
from tagmatch.workloads.systems.catalogue import ENCODED
from tagmatch.workloads.systems.ocm import Ocm
from tagmatch.workloads.systems.tagmatch_content import TagmatchOneByOne
from tagmatch.workloads.systems.tagmatch_encoded import TagmatchEncoded

ON_A_DEVICE = {"CCM", "CCM, 2011", OURS_ON_GPU}


def measured(*systems: str, skip: tuple[str, ...] = ()) -> tuple[Result, dict[str, float]]:
    bench = Bench(BenchOptions(threads=2, rounds=2, seconds=0.002, skip=skip), Console(file=io.StringIO()))
    result = bench.result("pcm", "title", "about")
    scenario = pcm(2000, 300, 3, names=10)
    found = latency(bench, result, scenario, systems or ALL)
    return result, {name: samples.median for name, samples in found.micros.items()}


def test_all_systems_are_asked_and_right() -> None:
    result, micros = measured()
    assert micros.keys() | result.unavailable.keys() == set(ALL)
    assert result.unavailable.keys() <= ON_A_DEVICE
    assert all(value > 0 for value in micros.values())
    compared = {row.system: row for row in result.answers if row.where.endswith("brute force")}
    assert compared.keys() == micros.keys()
    assert all(row.wrong == row.missing == 0 and row.keys > row.queries / 10 for row in result.answers)


def test_what_is_skipped_is_not_asked() -> None:
    result, micros = measured("OCM", OCM_CALLED, OURS, skip=("OCM",))
    assert micros.keys() == {OCM_CALLED, OURS}
    assert result.unavailable == {"OCM": "skipped"}


@pytest.mark.parametrize(
    ("name", "system"),
    [(OURS, TagmatchOneByOne), ("OCM, sharing tables", Ocm), *((each, TagmatchEncoded) for each in ENCODED)],
)
def test_a_wrong_system_is_found(monkeypatch: pytest.MonkeyPatch, name: str, system: Any) -> None:
    right = system.match_many

    def wrong(self: Any, messages: Any, *, unique: bool = False) -> pa.ListArray:
        given = right(self, messages, unique=unique)
        lists = given.to_pylist() if isinstance(given, pa.Array) else given
        return pa.array([[*lists[0], 2**63], *lists[1:]], pa.list_(pa.uint64()))

    monkeypatch.setattr(system, "match_many", wrong)
    result, _ = measured("BE-Tree", name)
    assert sum(row.wrong for row in result.answers if row.system == name) == 1
    assert len(result.faults()) == 1
