"""What the benchmarks of `tagmatch-bench` compare on a CUDA device, not how fast anything is."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tagmatch.workloads.bench.figures import location_content, location_spatial, published_content
from tagmatch.workloads.bench.figures.ccm import CcmSizes, ccm
from tagmatch.workloads.bench.figures.figure import FIGURES
from tagmatch.workloads.bench.figures.location import LocationSizes, location
from tagmatch.workloads.bench.figures.pcm import PcmSizes, pcm
from tagmatch.workloads.bench.harness.bench import Bench, BenchOptions
from tagmatch.workloads.bench.harness.content_latency import ALL
from tagmatch.workloads.bench.harness.results import Result
from tagmatch.workloads.commands.bench import app
from tagmatch.workloads.systems import ccm_2011
from tagmatch.workloads.systems.catalogue import (
    CIRCLES,
    CIRCLES_GPU,
    LOCATED,
    LOCATED_GPU,
    OWN_CIRCLES,
    OWN_CIRCLES_GPU,
)

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*Grid size")]

OURS = ["tagmatch, rarest", "tagmatch, balanced"]
CONSTRAINTS = 80
SLOW = ("OCM, sharing tables",)
AREAS, CLIENTS = OWN_CIRCLES_GPU
MATCHING, MATCHING_GPU = "tagmatch, contents and areas", "tagmatch, contents and areas, GPU"


def bench(**options: Any) -> Bench:
    options = {"threads": 2, "queries": 6, "rounds": 2, "seconds": 0.001, "skip": SLOW} | options
    return Bench(BenchOptions(**options), Console(file=io.StringIO()))


def assert_right(result: Result, *systems: str, missing: tuple[str, ...] = SLOW) -> None:
    assert {row.system for row in result.answers} >= set(systems)
    assert not result.faults()
    assert result.unavailable.keys() <= set(missing)


def test_command(tmp_path: Path) -> None:
    options = ["--sets", "30", "--queries", "8", "--threads", "1", "--rounds", "1", "--seconds", "0.001"]
    options += ["--allow-changes", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, ["gpu", *options], catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    systems = {panel["title"]: [value["system"] for value in panel["values"]] for panel in found["panels"]}
    several = [name for name in systems["end to end"] if name.endswith(" devices")]  # where there are more than one
    compared = [*OURS, *several, "GPU scan, batched", *(f"{name}, dictionary-encoded" for name in OURS)]
    assert systems == {
        "end to end": compared,
        "subset match alone": [*OURS, "GPU scan, batched"],
        "one match, called again and again": [each for name in OURS for each in (name, f"{name}, CPU")],
    }
    assert all(value["value"] > 0 for panel in found["panels"] for value in [*panel["values"], *found["lines"]])
    assert {row["system"] for row in found["answers"]} == set(compared)


@pytest.mark.parametrize(("figure", "what"), [("fig8", "GPU, whole build"), ("keys", "GPU")])
def test_figures_have_rows_of_devices(figure: str, what: str) -> None:
    result = FIGURES[figure](bench(scale=0.0005, threads=1, queries=2, rounds=1))
    for panel in result.panels:
        places = [{row.x for row in panel.rows if row.what == f"{name}, {what}"} for name in OURS]
        assert places == [{row.x for row in panel.rows}] * len(OURS)
    assert_right(result, missing=())


# -- constraints -------------------------------------------------------------------------------------------------------


def test_parts_of_the_time() -> None:
    """CCM's Figure 5, of both versions."""
    result = ccm(bench(), CcmSizes(CONSTRAINTS, ("figure5",)))
    assert_right(result, "Memset", "Kernel")
    parts, copies = result.panels
    assert {(row.what, row.x) for row in parts.rows} == {
        (version, part) for version in ("Memset", "Kernel") for part in ("copy in", "kernel", "copy back")
    }
    assert all(row.value > 0 and len(row.samples) == 2 for row in parts.rows)
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
    ccm(bench(), CcmSizes(CONSTRAINTS, ("figure5",)))
    assert len(cleared) == 4, "two rounds of two versions"
    assert min(cleared[:2]) >= 2 * 6
    assert cleared[2:] == [0, 0]


def test_latency() -> None:
    """Table 2 of PCM: every speed-up that is published of systems that are here."""
    result = pcm(bench(), PcmSizes(CONSTRAINTS, parts=("table2",)))
    micros, times = result.panels
    assert {row.what for row in micros.rows} == set(ALL) - set(SLOW)
    assert_right(result, *(row.what for row in micros.rows))
    assert {row.what for row in times.rows} >= {row.what for row in times.published}


def test_throughput() -> None:
    """Calls of several sizes on the CPU, on the device, and on either."""
    result = pcm(bench(), PcmSizes(CONSTRAINTS, (1, 6), ("throughput",)))
    many, by_size = result.panels
    assert {row.what for row in many.rows} >= {"CCM, one at a time", "CCM, several at once", "tagmatch, all threads"}
    assert len({row.what for row in by_size.rows}) == 3
    assert {row.x for row in by_size.rows} == {1.0, 6.0}
    assert_right(result, *(row.what for row in (*many.rows, *by_size.rows)))
    assert sum("the sooner device" in line.what for line in result.lines) == 2


# -- areas -------------------------------------------------------------------------------------------------------------


def measured(part: str, skip: set[str], **sizes: Any) -> Result:
    options = {"threads": 1, "queries": 8, "keys_per_set": 1, "skip": tuple(skip)}
    result = location(bench(**options), LocationSizes(parts=(part,), **sizes))
    assert_right(result, missing=(*skip, "R*-tree as Boost has it"))
    return result


def test_areas_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-2,))
    monkeypatch.setattr(location_spatial, "DISTRIBUTIONS", {"uniform": "clcb"})
    monkeypatch.setattr(location_spatial, "LARGE", 60)
    own = ["tagmatch, areas", "tagmatch, clients"]
    result = measured("spatial", {*OWN_CIRCLES, *CIRCLES, *CIRCLES_GPU} - set(own), filters=(60,))
    messages, moves = (
        next(panel for panel in result.panels if panel.title.endswith(what)) for what in ("messages", "moves")
    )
    kernels = {f"{name}, kernel only" for name in OWN_CIRCLES_GPU}
    assert {row.what for row in messages.rows} == {*own, *OWN_CIRCLES_GPU, *kernels}
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
    result = measured("content", {*LOCATED, *LOCATED_GPU}, located=(60,))
    ratios = [line for line in result.lines if f"{MATCHING_GPU} against {MATCHING}" in line.what]
    assert [line.target.limit for line in ratios if line.target] == [10]
    assert MATCHING_GPU in {row.system for row in result.answers}
