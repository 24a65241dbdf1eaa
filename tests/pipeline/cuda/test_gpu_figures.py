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
SLOW = ("OCM, sharing tables",)


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


# -- constraints and areas ---------------------------------------------------------------------------------------------


def test_parts_of_the_time() -> None:
    """CCM's Figure 5, of both versions."""
    result = ccm(bench(), CcmSizes(80, ("figure5",)))
    assert_right(result, "Memset", "Kernel")
    parts, copies = result.panels
    assert {(row.what, row.x) for row in parts.rows} == {
        (version, part) for version in ("Memset", "Kernel") for part in ("copy in", "kernel", "copy back")
    }
    assert all(row.value > 0 and len(row.samples) == 2 for row in parts.rows)
    assert parts.published == published_content.CCM_FIGURE5
    assert {row.x for row in copies.published} <= {row.x for row in copies.rows}


def test_latency_and_throughput() -> None:
    """Table 2 of PCM, with every published speed-up of systems that are here; and calls of several sizes."""
    result = pcm(bench(), PcmSizes(80, (1, 6), ("table2", "throughput")))
    micros, times, many, by_size = result.panels
    assert {row.what for row in micros.rows} == set(ALL) - set(SLOW)
    assert {row.what for row in times.rows} >= {row.what for row in times.published}
    assert {row.what for row in many.rows} >= {"CCM, one at a time", "CCM, several at once", "tagmatch, all threads"}
    assert (len({row.what for row in by_size.rows}), {row.x for row in by_size.rows}) == (3, {1.0, 6.0})
    assert_right(result, *(row.what for row in (*micros.rows, *many.rows, *by_size.rows)))
    assert sum("the sooner device" in line.what for line in result.lines) == 2


def test_areas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COVERAGES": (1e-2,), "DISTRIBUTIONS": {"uniform": "clcb"}, "LARGE": 60}.items():
        monkeypatch.setattr(location_spatial, name, value)
    monkeypatch.setattr(location_content, "CONTENTS", ("tags",))
    monkeypatch.setattr(location_content, "_FROM", 60)
    own, (areas, clients) = ["tagmatch, areas", "tagmatch, clients"], OWN_CIRCLES_GPU
    matching, on_gpu = "tagmatch, contents and areas", "tagmatch, contents and areas, GPU"
    skip = ({*OWN_CIRCLES, *CIRCLES, *CIRCLES_GPU} - {*own}) | {*LOCATED, *LOCATED_GPU}
    options = {"threads": 1, "queries": 8, "keys_per_set": 1, "skip": tuple(skip)}
    sizes = LocationSizes(parts=("spatial", "content"), filters=(60,), located=(60,))
    result = location(bench(**options), sizes)
    assert_right(result, *own, areas, clients, on_gpu, missing=(*skip, "R*-tree as Boost has it"))
    messages, moves = (
        next(panel for panel in result.panels if panel.title.endswith(what)) for what in ("messages", "moves")
    )
    kernels = {f"{name}, kernel only" for name in OWN_CIRCLES_GPU}
    assert {row.what for row in messages.rows} == {*own, *OWN_CIRCLES_GPU, *kernels}
    assert {row.what for row in moves.rows} == {"tagmatch, clients", clients}
    assert all(row.value > 0 for panel in (messages, moves) for row in panel.rows)
    assert {row.system for row in result.answers if "moved" in row.where} == {"tagmatch, clients", clients}
    compared = [*(f"messages, {name} against {cpu}" for name, cpu in zip(OWN_CIRCLES_GPU, own, strict=True))]
    for words in (*compared, f"{on_gpu} against {matching}"):
        assert [line.target.limit for line in result.lines if words in line.what and line.target] == [10], words
