"""What the benchmarks of `tagmatch-bench` compare on a CUDA device, not how fast anything is."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tagmatch_bench.commands.app import app
from tagmatch_bench.figures import location_content, location_spatial
from tagmatch_bench.figures.figure import FIGURES
from tagmatch_bench.figures.improvement import CCM_COUNTERS, CCM_SHARED_MEMORY, CLCB_COUNTERS
from tagmatch_bench.figures.location import LocationSizes, location
from tagmatch_bench.figures.pcm import ccm, pcm
from tagmatch_bench.harness.bench import Bench, BenchOptions
from tagmatch_bench.harness.content import ALL
from tagmatch_bench.harness.results import Result
from tagmatch_bench.systems.catalogue import CIRCLES, CIRCLES_GPU, LOCATED, LOCATED_GPU, OWN_CIRCLES
from tagmatch_bench.systems.catalogue import OWN_CIRCLES_GPU as OWN_ON_GPU

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*Grid size")]

OURS = ["tagmatch, rarest", "tagmatch, balanced"]
SLOW = "OCM, sharing tables"


def bench(**options: Any) -> Bench:
    options = {"threads": 2, "queries": 6, "rounds": 2, "seconds": 0.001, "skip": (SLOW,)} | options
    return Bench(BenchOptions(**options), Console(file=io.StringIO()))


def shown(result: Result, *missing: str) -> dict[str, set[str]]:
    """The rows of each panel, if all answers are right."""
    assert not result.faults()
    assert result.unavailable.keys() <= set(missing)
    assert all(row.value > 0 for panel in result.panels for row in panel.rows)
    return {panel.title: {row.what for row in panel.rows} for panel in result.panels}


def test_command(tmp_path: Path) -> None:
    options = ["--sets", "30", "--queries", "8", "--threads", "1", "--rounds", "1", "--seconds", "0.001"]
    options += ["--allow-changes", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, ["gpu", *options], catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    systems = {panel["title"]: [value["system"] for value in panel["values"]] for panel in found["panels"]}
    several = [name for name in systems["end to end"] if name.endswith(" devices")]  # with more than one
    compared = [*OURS, *several, "GPU scan, batched", *(f"{name}, dictionary-encoded" for name in OURS)]
    assert systems == {
        "end to end": compared,
        "subset match alone": [*OURS, "GPU scan, batched"],
        f"{OURS[0]}, in other calls": ["match", "unique", "calls of 8"],
        "one match, called again and again": [each for name in OURS for each in (name, f"{name}, CPU")],
    }
    assert all(value["value"] > 0 for panel in found["panels"] for value in [*panel["values"], *found["lines"]])
    assert {row["system"] for row in found["answers"]} == set(compared)


@pytest.mark.parametrize(("figure", "what"), [("fig8", "GPU, whole build"), ("keys", "GPU")])
def test_figures_have_rows_of_devices(figure: str, what: str) -> None:
    found = shown(FIGURES[figure](bench(scale=0.0005, threads=1, queries=2, rounds=1)))
    assert all(rows >= {f"{name}, {what}" for name in OURS} for rows in found.values())


@pytest.mark.parametrize("keys", ["1", "5"])
def test_paper_scale(tmp_path: Path, keys: str) -> None:
    few = ["--sets", "60", "--share", "100", "--threads", "1", "--queries", "3", "--rounds", "1", "--seconds", "0.001"]
    places = ["--folder", str(tmp_path), "--output", str(tmp_path / "out"), "--allow-changes", "--keys", keys]
    parts = ["--part", "generate", "--part", "build", "--part", "table1"]
    done = CliRunner().invoke(app, ["paper-scale", *few, *places, *parts], catch_exceptions=False)
    assert "GB of device memory" in done.stderr
    answers = json.loads((tmp_path / "out" / "paper-scale.json").read_text())["answers"]
    assert [(row["wrong"], row["missing"]) for row in answers] == [(0, 0)] * 8
    assert {row["system"] for row in answers} == {*OURS, *(f"{name}, GPU" for name in OURS)}


def test_constraints() -> None:
    """CCM's Figure 5 of both versions, and of PCM Table 2, with all published systems, and calls of several sizes."""
    result = ccm(bench(), constraints=80, parts=("figure5",))
    parts, _ = shown(result, SLOW).values()
    assert parts == {"Memset", "Kernel"}
    assert {row.x for row in result.panels[0].rows} == {"copy in", "kernel", "copy back"}
    result = pcm(bench(), constraints=80, calls=(1, 6), parts=("table2", "throughput"))
    micros, times, many, by_size = shown(result, SLOW).values()
    assert micros == {*ALL} - {SLOW}
    assert times >= {row.what for row in result.panels[1].published}
    assert many >= {"CCM, one at a time", "CCM, several at once", "tagmatch, all threads"}
    assert len(by_size) == 3
    assert {row.system for row in result.answers} >= micros | many | by_size
    assert sum("the sooner device" in line.what for line in result.lines) == 2


def test_improvements() -> None:
    """Each with and without, which answer alike."""
    found = [
        ccm(bench(), constraints=80, parts=("improvements",)),
        pcm(bench(), constraints=80, parts=("improvements",)),
        location(bench(threads=1, queries=8), LocationSizes(parts=("improvements",), figures=60)),
    ]
    for result, improvement in zip(found, (CCM_SHARED_MEMORY, CCM_COUNTERS, CLCB_COUNTERS), strict=True):
        assert shown(result) == {"improvements of the paper": {improvement.name}}
        assert {row.system for row in result.answers} == {improvement.name, f"without {improvement.name}"}


def test_areas(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COVERAGES": (1e-2,), "DISTRIBUTIONS": {"uniform": "clcb"}, "LARGE": 60}.items():
        monkeypatch.setattr(location_spatial, name, value)
    monkeypatch.setattr(location_content, "CONTENTS", ("tags",))
    monkeypatch.setattr(location_content, "_FROM", 60)
    own, clients = ["tagmatch, areas", "tagmatch, clients"], [*OWN_ON_GPU][1]
    matching, on_gpu = "tagmatch, contents and areas", "tagmatch, contents and areas, GPU"
    skip = ({*OWN_CIRCLES, *CIRCLES, *CIRCLES_GPU} - {*own}) | {*LOCATED, *LOCATED_GPU}
    options = {"threads": 1, "queries": 8, "keys_per_set": 1, "skip": tuple(skip)}
    result = location(bench(**options), LocationSizes(parts=("spatial", "content"), filters=(60,), located=(60,)))
    found = shown(result, *skip, "R*-tree as Boost has it")
    messages, moves = (
        next(rows for title, rows in found.items() if title.endswith(what)) for what in ("messages", "moves")
    )
    assert messages == {*own, *OWN_ON_GPU, *(f"{name}, kernel only" for name in OWN_ON_GPU)}
    assert moves == {"tagmatch, clients", clients}
    assert {row.system for row in result.answers if "moved" in row.where} == {"tagmatch, clients", clients}
    assert {row.system for row in result.answers} >= {*own, *OWN_ON_GPU, on_gpu}
    compared = [*(f"messages, {name} against {cpu}" for name, cpu in zip(OWN_ON_GPU, own, strict=True))]
    for words in (*compared, f"{on_gpu} against {matching}"):
        assert [line.target.limit for line in result.lines if words in line.what and line.target] == [10], words
