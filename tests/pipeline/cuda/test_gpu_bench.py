"""The command `tagmatch-bench gpu`: what it reports, not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tagmatch.workloads.bench.figures.figure import FIGURES
from tagmatch.workloads.bench.harness.bench import Bench, BenchOptions
from tagmatch.workloads.commands.bench import app

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]


def test_command(tmp_path: Path) -> None:
    options = ["--sets", "30", "--queries", "8", "--threads", "1", "--rounds", "1", "--seconds", "0.001"]
    options += ["--allow-changes"]
    done = CliRunner().invoke(app, ["gpu", *options, "--output", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    systems = {panel["title"]: [value["system"] for value in panel["values"]] for panel in found["panels"]}
    ours = ["tagmatch, rarest", "tagmatch, balanced"]
    several = [name for name in systems["end to end"] if name.endswith(" devices")]  # where there are more than one
    compared = [*ours, *several, "GPU scan, batched", *(f"{name}, dictionary-encoded" for name in ours)]
    assert systems == {
        "end to end": compared,
        "subset match alone": [*ours, "GPU scan, batched"],
        "one match, called again and again": [each for name in ours for each in (name, f"{name}, CPU")],
    }
    assert all(value["value"] > 0 for panel in found["panels"] for value in panel["values"])
    assert all(line["value"] > 0 for line in found["lines"])
    assert {row["system"] for row in found["answers"]} == set(compared)


@pytest.mark.parametrize(
    ("figure", "rows"),
    [
        ("fig8", ["tagmatch, rarest, GPU, whole build", "tagmatch, balanced, GPU, whole build"]),
        ("keys", ["tagmatch, rarest, GPU", "tagmatch, balanced, GPU"]),
    ],
)
def test_figures_have_rows_of_devices(figure: str, rows: list[str]) -> None:
    bench = Bench(BenchOptions(scale=0.0005, threads=1, queries=2, rounds=1, seconds=0.001), Console(stderr=True))
    result = FIGURES[figure](bench)
    for panel in result.panels:
        places = [{row.x for row in panel.rows if row.what == name} for name in rows]
        assert places == [{row.x for row in panel.rows}] * len(rows)
    assert not result.faults()
    assert not result.unavailable
