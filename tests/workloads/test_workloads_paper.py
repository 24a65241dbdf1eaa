"""The experiments of the paper: what they measure and report, at a tiny scale; not how fast anything is."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from tagmatch.model.errors import TagMatchError
from tagmatch.workloads.bench.figures import published
from tagmatch.workloads.bench.figures.databases import fixed_size_sets
from tagmatch.workloads.bench.figures.figure import FIGURES
from tagmatch.workloads.bench.harness.bench import Bench, BenchOptions
from tagmatch.workloads.bench.harness.data import make_workload
from tagmatch.workloads.bench.harness.plots import draw
from tagmatch.workloads.bench.harness.report import markdown, number
from tagmatch.workloads.bench.harness.results import Answers, Panel, Result, Row, Target
from tagmatch.workloads.bench.harness.timing import Samples
from tagmatch.workloads.commands.bench import app
from tagmatch.workloads.systems.catalogue import PYTHON_DICT, RAREST, SYSTEMS
from tagmatch.workloads.systems.dictionaries import DictionaryEncoded
from tagmatch.workloads.systems.matcher import CallSize, UnavailableError, call_size_of
from tagmatch.workloads.systems.python import RarestTagDict

pytestmark = pytest.mark.slow

TINY = BenchOptions(scale=0.0005, threads=2, queries=60, rounds=1, seconds=0.001)


def new_bench() -> Bench:
    return Bench(TINY, Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """All experiments, run once by the command."""
    folder = tmp_path_factory.mktemp("paper") / "results"
    options = ["--scale", "0.0005", "--threads", "2", "--queries", "60", "--rounds", "1", "--seconds", "0.001"]
    options += ["--allow-changes"]
    done = CliRunner().invoke(app, ["paper", *options, "--output", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return folder, done.stdout


@pytest.mark.parametrize("name", FIGURES)
def test_experiment(written: tuple[Path, str], name: str) -> None:
    folder, printed = written
    found = json.loads((folder / f"{name}.json").read_text())
    assert found["name"] == name
    assert found["parameters"]["scale"] == 0.0005
    assert {"date", "commit", "machine", "versions"} <= found["circumstances"].keys()
    assert found["panels"]
    for panel in found["panels"]:
        assert panel["values"], panel["title"]
        assert all(math.isfinite(value["value"]) and value["value"] > 0 for value in panel["values"])
        systems = {value["system"] for value in panel["values"]}
        places = {value["x"] for value in panel["values"]}
        assert len(panel["values"]) == len(systems) * len(places), "every system is measured everywhere"
    assert all(row["missing"] == 0 for row in found["answers"])
    assert all(row["wrong"] == 0 for row in found["answers"] if row["exact"])
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert found["title"] in (folder / f"{name}.md").read_text()
    assert found["title"] in printed


def test_answers_are_compared_in_every_throughput_experiment(written: tuple[Path, str]) -> None:
    for name in ("table1", "table3", "fig2", "fig3", "fig4", "fig5", "fig7", "fig10", "fig11", "keys", "layouts"):
        result = json.loads((written[0] / f"{name}.json").read_text())
        found, panels = result["answers"], result["panels"]
        assert sum(row["keys"] for row in found) > 0
        assert {row["system"] for row in found} >= {value["system"] for value in panels[0]["values"]}


def test_all_systems_are_in_table_1(written: tuple[Path, str]) -> None:
    found = json.loads((written[0] / "table1.json").read_text())
    systems = {value["system"] for value in found["panels"][0]["values"]}
    assert systems | found["unavailable"].keys() == SYSTEMS.keys()
    assert not systems & found["unavailable"].keys()


def test_every_experiment_is_a_command() -> None:
    names = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    others = {
        "broker",
        "ccm",
        "content",
        "cpu",
        "gpu",
        "host",
        "latency",
        "location",
        "paper",
        "pcm",
        "qos",
        "qos-real",
        "serve",
        "spark",
        "threads",
        "updates",
    }
    assert names == {*FIGURES, *others}


@pytest.mark.parametrize(
    "wrong",
    [
        ["--scale", "0"],
        ["--scale", "1e9"],
        ["--queries", "0"],
        ["--rounds", "0"],
        ["--threads", "0"],
        ["--seconds", "-1"],
    ],
)
def test_bad_parameters(wrong: list[str]) -> None:
    result = CliRunner().invoke(app, ["table1", *wrong])
    assert result.exit_code == 2
    assert wrong[0] in result.stderr


def test_several_figures_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have in common is made once."""
    generated: list[int] = []

    def generate(sets: int, *arguments: Any, **options: Any) -> Any:
        generated.append(sets)
        return make_workload(sets, *arguments, **options)

    monkeypatch.setattr("tagmatch.workloads.bench.harness.bench.make_workload", generate)
    options = ["--sets", "600", "--threads", "2", "--queries", "20", "--rounds", "1", "--seconds", "0.001"]
    options += ["--allow-changes", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, ["fig2", "fig3", "fig9", "fig3", *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert {path.name for path in tmp_path.glob("*.json")} == {"fig2.json", "fig3.json", "fig9.json"}
    assert generated == [600, 120, 240, 360, 480]
    done = CliRunner().invoke(app, ["fig2", "fig33"])
    assert done.exit_code == 2
    assert "fig33" in done.stderr


def test_all_figures_or_those_that_are_named(tmp_path: Path) -> None:
    options = ["--sets", "500", "--threads", "2", "--queries", "20", "--rounds", "1", "--seconds", "0.001"]
    options += ["--allow-changes", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, ["paper", "fig9", "fig3", "fig9", *options], catch_exceptions=False)
    assert done.exit_code == 0
    assert {path.name for path in tmp_path.glob("*.json")} == {"fig3.json", "fig9.json"}
    done = CliRunner().invoke(app, ["paper", "fig33"])
    assert done.exit_code == 2
    assert "fig33" in done.stderr


def test_sets_or_scale() -> None:
    done = CliRunner().invoke(app, ["fig8", "--sets", "500", "--scale", "0.0005"])
    assert done.exit_code == 2
    assert "--sets" in done.stderr


def test_largest_partitioned_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figure 8 goes up to what was asked for, or else to what the machine is good for."""
    monkeypatch.setattr("tagmatch.workloads.bench.harness.bench._PARTITIONED_BY_CORE", 600)
    options = ["--threads", "2", "--queries", "1", "--rounds", "1", "--allow-changes", "--output", str(tmp_path)]
    for asked, sets in (([], 1200), (["--sets", "800"], 800), (["--scale", "0.0006"], 600)):
        done = CliRunner().invoke(app, ["fig8", *asked, *options], catch_exceptions=False)
        assert done.exit_code == 0
        found = json.loads((tmp_path / "fig8.json").read_text())
        (panel,) = found["panels"]
        sizes = {round(1e6 * value["x"]) for value in panel["values"]}
        assert sizes == {round(sets / 2**halved) for halved in range(5)}
        assert found["parameters"]["largest"] == sets


class Liar(RarestTagDict):
    """Forgets the first key of every answer."""

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        return [keys[1:] for keys in super().match_many(queries, unique=unique)]


class Guesser(RarestTagDict):
    """Gives a wrong key with every answer."""

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        return [[2**64 - 1, *keys] for keys in super().match_many(queries, unique=unique)]


@pytest.mark.parametrize("name", [RAREST, PYTHON_DICT, "other"])
@pytest.mark.parametrize(("system", "fault"), [(Liar, "missed 60"), (Guesser, "gave 60 wrong")])
def test_wrong_answers_are_found(system: type[RarestTagDict], fault: str, name: str) -> None:
    """Whoever gives them, and with nobody there that gives others."""
    bench = new_bench()
    workload = make_workload(300, 60, 1, 1)
    result = bench.result("fig2", "title", "about")
    systems = {name: lambda sets, _: system(sets)}
    with bench.built(systems, workload.sets, result) as matchers:
        # each call asks for at least one query; all are asked here so that the counts are known
        bench.options = BenchOptions(queries=60, rounds=1, seconds=60.0)
        bench.throughput(result, "here", matchers, workload.sets, workload.queries)
    (found,) = result.faults()
    assert f"fig2, here: {name}" in found
    assert fault in found


class InBatches(Guesser):
    """Is wrong where it gets whole batches."""

    call_size = CallSize(whole=50)

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        if len(queries) < self.call_size.whole:
            return RarestTagDict.match_many(self, queries, unique=unique)
        return super().match_many(queries, unique=unique)


def test_answers_of_whole_batches_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tagmatch.workloads.bench.harness.bench._MOST_CHECKED", 30)
    bench = new_bench()
    workload = make_workload(300, 60, 1, 1)
    result = bench.result("fig2", "title", "about")
    with bench.built({"other": lambda sets, _: InBatches(sets)}, workload.sets, result) as matchers:
        bench.options = BenchOptions(queries=60, rounds=1, seconds=1e-9)
        bench.throughput(result, "here", matchers, workload.sets, workload.queries)
    (compared,) = result.answers
    assert (compared.queries, compared.wrong) == (30, 30)


def test_only_systems_in_batches_get_many_queries() -> None:
    bench = Bench(BenchOptions(queries=20, queries_in_batches=60, rounds=1, seconds=60.0), Console(file=io.StringIO()))
    workload = bench.workload(300)
    assert len(workload.queries) == 60
    result = bench.result("fig2", "title", "about")
    systems = {"few": lambda sets, _: RarestTagDict(sets), "many": lambda sets, _: InBatches(sets)}
    with bench.built(systems, workload.sets, result) as matchers:
        rates = bench.throughput(result, "here", matchers, workload.sets, workload.queries)
    assert {name: rate.queries.items for name, rate in rates.items()} == {"few": 20, "many": 60}
    assert {compared.system: compared.queries for compared in result.answers} == {"few": 20, "many": 60}


def test_queries_in_dictionaries_are_as_many() -> None:
    assert call_size_of(DictionaryEncoded(InBatches(make_workload(30, 1, 1, 1).sets))) == InBatches.call_size
    assert call_size_of(DictionaryEncoded(Guesser(make_workload(30, 1, 1, 1).sets))) is None


def test_what_is_not_available_is_told() -> None:
    def build(*_: object) -> Any:
        raise UnavailableError("needs a rocket")

    bench = new_bench()
    result = bench.result("table1", "title", "about")
    with bench.built({"rocket": build}, make_workload(10, 1, 1, 1).sets, result) as matchers:
        assert not matchers
    assert result.unavailable == {"rocket": "needs a rocket"}
    assert "Not run here: rocket (needs a rocket)." in markdown(result)


def test_matchers_are_closed_after_an_error() -> None:
    closed = []

    class Closing(RarestTagDict):
        def close(self) -> None:
            closed.append(True)

    bench = new_bench()
    with (
        pytest.raises(ZeroDivisionError),
        bench.built({"x": lambda sets, _: Closing(sets)}, make_workload(10, 1, 1, 1).sets, bench.result("", "", "")),
    ):
        raise ZeroDivisionError
    assert closed == [True]


def test_published_numbers_are_those_of_the_paper() -> None:
    table1 = {(row.what, row.x): row.value for row in published.TABLE1}
    assert table1["TagMatch", "100 %"] == 35_300
    assert table1["GPU-only, plain", "10 %"] == 400
    assert ("CPU-only, state-of-the-art ICN", "100 %") not in table1
    assert len(table1) == 17


def test_markdown() -> None:
    result = Result("fig2", {}, "Figure 2", "What it shows.")
    panel = result.panel("match", "tags", "queries/s", published=[Row("theirs", 1234.5, "queries/s", x="2")])
    panel.add("ours", "1", Samples((1.0, 3.0, 2.0)))
    panel.add("ours", "2", 0.01234)
    result.answers = [Answers("1", "ours", True, 5, 10, 0, 0), Answers("1", "scan", False, 5, 40, 30, 0)]
    result.add("speed", 5.5, "times", Target(8, goal=30))
    text = markdown(result, images="plots/")
    assert "![Figure 2](plots/fig2.png)" in text
    assert "| tags | 1 | 2 |" in text
    assert "| ours | 2.00 | 0.0123 |" in text
    assert "| paper: theirs |  | 1,234 |" in text
    assert "Exact systems gave 10 keys to 5 queries: 0 wrong, 0 missing." in text
    assert "| speed | 5.50 times | ≥ 8, goal ≥ 30 | not met |" in text
    assert "Of the 40 keys of scan, 30 (75%) were wrong; 0 were missing." in text
    assert not result.faults()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.00123, "0.00123"), (1, "1.00"), (12.34, "12.3"), (123.4, "123"), (1e6, "1,000,000")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_plots_of_bars_and_lines(tmp_path: Path) -> None:
    result = Result("x", {}, "Title")
    bars = result.panel("bars", "place", "unit", published=[Row("theirs", 2.0, "unit", x="b")])
    bars.add("ours", "a", 1)
    lines = result.panel("lines", "number", "unit", "lines", log=False, published=[Row("theirs", 2.0, "unit", x=3.0)])
    lines.add("ours", 1.0, 1)
    result.panel("nothing", "number", "unit", "lines", log=False, log_x=False).add("ours", 1.0, 0)
    draw(result, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert isinstance(lines, Panel)


@given(count=st.integers(1, 300), size=st.integers(1, 5), seed=st.integers(0, 100))
def test_sets_of_fixed_size(count: int, size: int, seed: int) -> None:
    table = fixed_size_sets(count, size, seed)
    rows = [frozenset(tags) for tags in table["tags"].to_pylist()]
    assert len(rows) == len(set(rows)) == count
    assert {len(row) for row in rows} == {size}
    assert table["key"].equals(pa.chunked_array([np.arange(count, dtype=np.uint64)]))


@pytest.mark.parametrize("name", ["table1", "fig7", "fig8", "fig9", "layouts"])
def test_skipped_systems_are_nowhere(name: str) -> None:
    skipped = ("tagmatch, balanced", "CPU-only TagMatch (balanced, exact=False)", "prefix tree")
    bench = Bench(BenchOptions(scale=0.0005, queries=30, rounds=1, seconds=0.001, skip=skipped), Console())
    result = FIGURES[name](bench)
    systems = {row.what for panel in result.panels for row in panel.rows}
    assert systems or name == "fig7"
    assert not any(system.startswith(skipped) for system in systems)


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["layouts", "--allow-changes", "--output", str(tmp_path / "file" / "folder")])
    assert isinstance(result.exception, TagMatchError)
    assert "the folder cannot be made" in str(result.exception)


def test_few_answers_of_slow_systems_are_compared_too() -> None:
    bench = new_bench()
    workload = make_workload(300, 60, 1, 1)
    result = bench.result("fig10", "title", "about")
    with bench.built({PYTHON_DICT: SYSTEMS[PYTHON_DICT]}, workload.sets, result) as matchers:
        bench.options = BenchOptions(queries=60, rounds=1, seconds=1e-9)
        bench.throughput(result, "here", matchers, workload.sets, workload.queries)
    assert [answers.queries for answers in result.answers] == [25]
