"""What `tagmatch-bench pcm` and `ccm` measure on a CUDA device: what is compared, not how fast anything is."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from tagmatch.workloads.bench.figures import published_content
from tagmatch.workloads.bench.figures.ccm import CcmSizes, ccm
from tagmatch.workloads.bench.figures.pcm import PcmSizes, pcm
from tagmatch.workloads.bench.harness.bench import Bench, BenchOptions
from tagmatch.workloads.bench.harness.content_latency import ALL
from tagmatch.workloads.bench.harness.results import Result
from tagmatch.workloads.systems import ccm_2011

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

_CONSTRAINTS = 80
_SLOW = ("OCM, sharing tables",)


def _bench() -> Bench:
    options = BenchOptions(threads=2, queries=6, rounds=2, seconds=0.001, skip=_SLOW)
    return Bench(options, Console(file=io.StringIO()))


def _right(result: Result, *systems: str) -> None:
    assert {row.system for row in result.answers} >= set(systems)
    assert not result.faults()
    assert result.unavailable.keys() <= set(_SLOW)


def test_parts_of_the_time() -> None:
    """CCM's Figure 5, of both versions."""
    result = ccm(_bench(), CcmSizes(_CONSTRAINTS, ("figure5",)))
    _right(result, "Memset", "Kernel")
    parts, copies = result.panels
    assert {(row.what, row.x) for row in parts.rows} == {
        (version, part) for version in ("Memset", "Kernel") for part in ("copy in", "kernel", "copy back")
    }
    assert all(row.value > 0 and len(row.samples) == 2 for row in parts.rows)
    for row in copies.rows:
        of = {part.x: part.samples for part in parts.rows if part.what == row.x}
        shares = [
            100 * (1 - kernel / sum(all_parts)) for kernel, *all_parts in zip(of["kernel"], *of.values(), strict=True)
        ]
        assert row.samples == pytest.approx(shares)
    assert parts.published == published_content.CCM_FIGURE5
    assert {row.x for row in copies.published} <= {row.x for row in copies.rows}


def test_only_one_version_clears_by_memset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters and marks, once for each event that is timed."""
    memset, seconds_of_parts = ccm_2011.device_memset, ccm_2011.Ccm2011.seconds_of_parts
    cleared: list[int] = []

    def count(*arguments: Any, **options: Any) -> None:
        if cleared:
            cleared[-1] += 1
        memset(*arguments, **options)

    def begin(self: ccm_2011.Ccm2011, messages: Any) -> dict[str, float]:
        cleared.append(0)
        return seconds_of_parts(self, messages)

    monkeypatch.setattr(ccm_2011, "device_memset", count)
    monkeypatch.setattr(ccm_2011.Ccm2011, "seconds_of_parts", begin)
    ccm(_bench(), CcmSizes(_CONSTRAINTS, ("figure5",)))
    assert len(cleared) == 4, "two rounds of two versions"
    assert min(cleared[:2]) >= 2 * 6
    assert cleared[2:] == [0, 0]


def test_wrong_answers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ccm_2011.Ccm2011.match_many

    def wrong(self: ccm_2011.Ccm2011, messages: Any, *, unique: bool = False) -> pa.ListArray:
        first, *others = right(self, messages, unique=unique).to_pylist()
        return pa.array([[*first, 2**63], *others], pa.list_(pa.uint64()))

    monkeypatch.setattr(ccm_2011.Ccm2011, "match_many", wrong)
    faults = ccm(_bench(), CcmSizes(_CONSTRAINTS, ("figure5",))).faults()
    assert [fault.partition(": ")[2] for fault in faults] == [
        f"{version} gave 1 wrong keys and missed 0" for version in ("Memset", "Kernel")
    ]


def test_latency() -> None:
    """Table 2 of PCM: every speed-up that is published of systems that are here."""
    result = pcm(_bench(), PcmSizes(_CONSTRAINTS, parts=("table2",)))
    micros, times = result.panels
    assert {row.what for row in micros.rows} == set(ALL) - set(_SLOW)
    _right(result, *(row.what for row in micros.rows))
    assert {row.what for row in times.rows} >= {row.what for row in times.published}


def test_throughput() -> None:
    """Calls of several sizes on the CPU, on the device, and on either."""
    result = pcm(_bench(), PcmSizes(_CONSTRAINTS, (1, 6), ("throughput",)))
    many, by_size = result.panels
    assert {row.what for row in many.rows} >= {"CCM, one at a time", "CCM, several at once", "tagmatch, all threads"}
    assert len({row.what for row in by_size.rows}) == 3
    assert {row.x for row in by_size.rows} == {1.0, 6.0}
    _right(result, *(row.what for row in (*many.rows, *by_size.rows)))
    assert sum("the sooner device" in line.what for line in result.lines) == 2
