"""The experiments of the paper: what they measure and report, at a tiny scale; not how fast anything is."""

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.bench import app
from typer.testing import CliRunner

from tagmatch.workloads.bench.figures.figure import FIGURES
from tagmatch.workloads.bench.harness.bench import Bench, BenchOptions
from tagmatch.workloads.bench.harness.data import make_workload
from tagmatch.workloads.bench.harness.results import Result
from tagmatch.workloads.systems.catalogue import PYTHON_DICT, RAREST, SYSTEMS
from tagmatch.workloads.systems.matcher import CallSize
from tagmatch.workloads.systems.python import RarestTagDict

FEW = ("--threads", "2", "--queries", "20", "--rounds", "1", "--seconds", "0.001", "--allow-changes", "--output")


def new_bench(**options: Any) -> Bench:
    few: dict[str, Any] = {"scale": 0.0005, "threads": 2, "queries": 60, "rounds": 1, "seconds": 0.001}
    return Bench(BenchOptions(**few | options), Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """All experiments, run once by the command."""
    folder = tmp_path_factory.mktemp("paper") / "results"
    done = CliRunner().invoke(app, ["paper", "--scale", "0.0005", *FEW, str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return folder, done.stdout


@pytest.mark.parametrize("name", FIGURES)
def test_experiment(written: tuple[Path, str], name: str) -> None:
    folder, printed = written
    found = json.loads((folder / f"{name}.json").read_text())
    assert (found["name"], found["parameters"]["scale"]) == (name, 0.0005)
    assert {"date", "commit", "machine", "versions"} <= found["circumstances"].keys()
    assert found["panels"]
    for panel in found["panels"]:
        assert all(math.isfinite(value["value"]) and value["value"] > 0 for value in panel["values"])
        systems, places = ({value[what] for value in panel["values"]} for what in ("system", "x"))
        assert len(panel["values"]) == len(systems) * len(places) > 0, "every system is measured everywhere"
    answers = found["answers"]
    assert all(row["missing"] == 0 and (row["wrong"] == 0 or not row["exact"]) for row in answers)
    systems = {value["system"] for value in found["panels"][0]["values"]}
    if name in ("table1", "table3", "fig2", "fig3", "fig4", "fig5", "fig7", "fig10", "fig11", "keys", "layouts"):
        assert sum(row["keys"] for row in answers) > 0
        assert {row["system"] for row in answers} >= systems
    if name == "table1":
        assert systems ^ found["unavailable"].keys() == SYSTEMS.keys()
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert found["title"] in (folder / f"{name}.md").read_text()
    assert found["title"] in printed


def test_several_figures_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have in common is made once; systems that are skipped are nowhere."""
    generated: list[int] = []

    def generate(sets: int, *arguments: Any, **options: Any) -> Any:
        generated.append(sets)
        return make_workload(sets, *arguments, **options)

    monkeypatch.setattr("tagmatch.workloads.bench.harness.bench.make_workload", generate)
    for command in (["fig2"], ["paper"]):
        generated.clear()
        few = ["fig2", "fig3", "fig9", "fig3", "--sets", "600", "--skip", "prefix tree", *FEW]
        options = [*command, *few, str(tmp_path)]
        assert CliRunner().invoke(app, options, catch_exceptions=False).exit_code == 0
        assert {path.name for path in tmp_path.glob("*.json")} == {"fig2.json", "fig3.json", "fig9.json"}
        assert generated == [600, 120, 240, 360, 480]
        panels = json.loads((tmp_path / "fig2.json").read_text())["panels"]
        systems = {value["system"] for panel in panels for value in panel["values"]}
        assert systems
        assert "prefix tree" not in systems
        for wrong, named in ((["fig33"], "fig33"), (["--sets", "500", "--scale", "0.0005"], "--sets")):
            done = CliRunner().invoke(app, [*command, *wrong])
            assert done.exit_code == 2
            assert named in done.stderr


class Wrong(RarestTagDict):
    """Forgets the first key of every answer, or gives a wrong one, where it gets as many queries as a whole batch."""

    forgets = False
    call_size: CallSize | None = None

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        found = super().match_many(queries, unique=unique)
        if self.call_size and len(queries) < self.call_size.whole:
            return found
        return [keys[1:] if self.forgets else [2**64 - 1, *keys] for keys in found]


def compared(name: str, system: Any, **options: Any) -> Result:
    """What is written down of a system that answers queries."""
    bench = new_bench(**options)
    workload = bench.workload(300)
    result = bench.result("fig2", "title", "about")
    with bench.built({name: lambda sets, _: system(sets)}, workload.sets, result) as matchers:
        bench.throughput(result, "here", matchers, workload.sets, workload.queries)
    return result


@pytest.mark.parametrize("name", [RAREST, PYTHON_DICT, "other"])
@pytest.mark.parametrize(("forgets", "fault"), [(True, "missed 60"), (False, "gave 60 wrong")])
def test_wrong_answers_are_found(monkeypatch: pytest.MonkeyPatch, name: str, forgets: bool, fault: str) -> None:
    """Whoever gives them, and with nobody there that gives others."""
    monkeypatch.setattr(Wrong, "forgets", forgets)
    # Each call asks for at least one query; all are asked here so that the counts are known
    (found,) = compared(name, Wrong, seconds=60.0).faults()
    assert f"fig2, here: {name}" in found
    assert fault in found


def test_answers_of_whole_batches_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """And few of slow systems; only those that take batches get many queries."""
    monkeypatch.setattr(Wrong, "call_size", CallSize(whole=50))
    options = {"queries": 20, "queries_in_batches": 60, "seconds": 60.0}
    for system, counts in ((Wrong, (60, 60)), (RarestTagDict, (20, 0))):
        assert [(row.queries, row.wrong) for row in compared("other", system, **options).answers] == [counts]
    monkeypatch.setattr("tagmatch.workloads.bench.harness.bench._MOST_CHECKED", 30)
    for name, system, counts in (("other", Wrong, (30, 30)), (PYTHON_DICT, RarestTagDict, (25, 0))):
        assert [(row.queries, row.wrong) for row in compared(name, system, seconds=1e-9).answers] == [counts]
