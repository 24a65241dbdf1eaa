"""The experiments of the paper: what they measure and report, at a tiny scale; not how fast anything is."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.bench import app, measured
from typer.testing import CliRunner

from tagmatch.workloads.bench.figures.figure import FIGURES
from tagmatch.workloads.bench.harness.bench import Bench, BenchOptions
from tagmatch.workloads.bench.harness.data import make_workload
from tagmatch.workloads.bench.harness.report import markdown
from tagmatch.workloads.bench.harness.results import Result
from tagmatch.workloads.systems.catalogue import PYTHON_DICT, RAREST, SYSTEMS
from tagmatch.workloads.systems.dictionaries import DictionaryEncoded
from tagmatch.workloads.systems.matcher import CallSize, UnavailableError, call_size_of
from tagmatch.workloads.systems.python import RarestTagDict

pytestmark = pytest.mark.nightly

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
        assert panel["values"], panel["title"]
        assert all(math.isfinite(value["value"]) and value["value"] > 0 for value in panel["values"])
        systems, places = ({value[what] for value in panel["values"]} for what in ("system", "x"))
        assert len(panel["values"]) == len(systems) * len(places), "every system is measured everywhere"
    answers = found["answers"]
    assert all(row["missing"] == 0 and (row["wrong"] == 0 or not row["exact"]) for row in answers)
    systems = {value["system"] for value in found["panels"][0]["values"]}
    if name in ("table1", "table3", "fig2", "fig3", "fig4", "fig5", "fig7", "fig10", "fig11", "keys", "layouts"):
        assert sum(row["keys"] for row in answers) > 0
        assert {row["system"] for row in answers} >= systems
    if name == "table1":
        assert systems | found["unavailable"].keys() == SYSTEMS.keys()
        assert not systems & found["unavailable"].keys()
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert found["title"] in (folder / f"{name}.md").read_text()
    assert found["title"] in printed


@pytest.mark.parametrize("command", [["fig2"], ["paper"]])
def test_several_figures_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """What they have in common is made once."""
    generated: list[int] = []

    def generate(sets: int, *arguments: Any, **options: Any) -> Any:
        generated.append(sets)
        return make_workload(sets, *arguments, **options)

    monkeypatch.setattr("tagmatch.workloads.bench.harness.bench.make_workload", generate)
    options = [*command, "fig2", "fig3", "fig9", "fig3", "--sets", "600", *FEW, str(tmp_path)]
    done = CliRunner().invoke(app, options, catch_exceptions=False)
    assert done.exit_code == 0
    assert {path.name for path in tmp_path.glob("*.json")} == {"fig2.json", "fig3.json", "fig9.json"}
    assert generated == [600, 120, 240, 360, 480]
    for wrong, named in ((["fig33"], "fig33"), (["--sets", "500", "--scale", "0.0005"], "--sets")):
        done = CliRunner().invoke(app, [*command, *wrong])
        assert done.exit_code == 2
        assert named in done.stderr


@pytest.mark.parametrize(
    ("asked", "sets"), [((), 1200), (("--sets", 800), 800), (("--scale", 0.0006), 600)], ids=["", "sets", "scale"]
)
def test_largest_partitioned_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[object, ...], sets: int
) -> None:
    """Figure 8 goes up to what was asked for, or else to what the machine is good for."""
    monkeypatch.setattr("tagmatch.workloads.bench.harness.bench._PARTITIONED_BY_CORE", 600)
    found = measured("fig8", tmp_path, *asked, "--threads", 2, "--queries", 1, "--rounds", 1)
    (panel,) = found.panels.values()
    assert {round(1e6 * value["x"]) for value in panel["values"]} == {round(sets / 2**halved) for halved in range(5)}
    assert found.parameters["largest"] == sets


# -- what answers are compared ---------------------------------------------------------------------------------------


class Liar(RarestTagDict):
    """Forgets the first key of every answer."""

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        return [keys[1:] for keys in super().match_many(queries, unique=unique)]


class Guesser(RarestTagDict):
    """Gives a wrong key with every answer."""

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        return [[2**64 - 1, *keys] for keys in super().match_many(queries, unique=unique)]


class InBatches(Guesser):
    """Is wrong where it gets whole batches."""

    call_size = CallSize(whole=50)

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        if len(queries) < self.call_size.whole:
            return RarestTagDict.match_many(self, queries, unique=unique)
        return super().match_many(queries, unique=unique)


def compared(systems: dict[str, Any], bench: Bench | None = None, **options: Any) -> Result:
    """What is written down of systems that answer queries."""
    bench = bench or new_bench()
    workload = bench.workload(300) if "queries_in_batches" in options else make_workload(300, 60, 1, 1)
    result = bench.result("fig2", "title", "about")
    with bench.built(systems, workload.sets, result) as matchers:
        # each call asks for at least one query; all are asked here so that the counts are known
        bench.options = BenchOptions(**{"queries": 60, "rounds": 1, "seconds": 60.0} | options)
        bench.throughput(result, "here", matchers, workload.sets, workload.queries)
    return result


@pytest.mark.parametrize("name", [RAREST, PYTHON_DICT, "other"])
@pytest.mark.parametrize(("system", "fault"), [(Liar, "missed 60"), (Guesser, "gave 60 wrong")])
def test_wrong_answers_are_found(system: type[RarestTagDict], fault: str, name: str) -> None:
    """Whoever gives them, and with nobody there that gives others."""
    (found,) = compared({name: lambda sets, _: system(sets)}).faults()
    assert f"fig2, here: {name}" in found
    assert fault in found


def test_answers_of_whole_batches_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """And few of slow systems."""
    monkeypatch.setattr("tagmatch.workloads.bench.harness.bench._MOST_CHECKED", 30)
    (found,) = compared({"other": lambda sets, _: InBatches(sets)}, seconds=1e-9).answers
    assert (found.queries, found.wrong) == (30, 30)
    (found,) = compared({PYTHON_DICT: SYSTEMS[PYTHON_DICT]}, seconds=1e-9).answers
    assert (found.queries, found.wrong) == (25, 0)


def test_only_systems_in_batches_get_many_queries() -> None:
    systems = {"few": lambda sets, _: RarestTagDict(sets), "many": lambda sets, _: InBatches(sets)}
    options = {"queries": 20, "queries_in_batches": 60, "seconds": 60.0}
    found = compared(systems, new_bench(**options), **options)
    assert {each.system: each.queries for each in found.answers} == {"few": 20, "many": 60}
    sets = make_workload(30, 1, 1, 1).sets
    assert call_size_of(DictionaryEncoded(InBatches(sets))) == InBatches.call_size
    assert call_size_of(DictionaryEncoded(Guesser(sets))) is None


def test_what_is_not_available_is_told() -> None:
    def build(*_: object) -> Any:
        raise UnavailableError("needs a rocket")

    result = new_bench().result("table1", "title", "about")
    with new_bench().built({"rocket": build}, make_workload(10, 1, 1, 1).sets, result) as matchers:
        assert not matchers
    assert result.unavailable == {"rocket": "needs a rocket"}
    assert "Not run here: rocket (needs a rocket)." in markdown(result)


@pytest.mark.parametrize("name", ["table1", "fig7", "fig8", "fig9", "layouts"])
def test_skipped_systems_are_nowhere(name: str) -> None:
    skipped = ("tagmatch, balanced", "CPU-only TagMatch (balanced, exact=False)", "prefix tree")
    result = FIGURES[name](new_bench(queries=30, skip=skipped))
    systems = {row.what for panel in result.panels for row in panel.rows}
    assert systems or name == "fig7"
    assert not any(system.startswith(skipped) for system in systems)


# -- data ------------------------------------------------------------------------------------------------------------
