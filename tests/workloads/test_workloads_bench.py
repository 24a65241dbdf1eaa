"""The command `tagmatch-bench`: what it reports, not how fast anything is."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from tagmatch import TagMatchError, __version__
from tagmatch.workloads.bench.harness.data import make_workload
from tagmatch.workloads.bench.harness.reference import right_answers
from tagmatch.workloads.bench.harness.report import print_table
from tagmatch.workloads.bench.harness.results import Result, Target
from tagmatch.workloads.bench.harness.timing import Samples, alternate, rates
from tagmatch.workloads.commands.bench import app
from tagmatch.workloads.commands.workload import app as workload_app
from tagmatch.workloads.systems.matcher import CallSize

pytestmark = pytest.mark.slow

SMALL = ["cpu", "--sets", "300", "--queries", "50", "--threads", "2"]


def test_cpu(tmp_path: Path) -> None:
    file = tmp_path / "cpu.json"
    result = CliRunner().invoke(app, [*SMALL, "--allow-changes", "--json", str(file)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "queries/s" in result.stdout
    found = json.loads(file.read_text())
    assert found["parameters"] == {
        "sets": 300,
        "queries": 50,
        "threads": 2,
        "growth": True,
        "seed": 1,
        "keys_per_set": 5,
    }
    assert found["machine"]["usable_cores"] >= 1
    assert {"python", "numpy", "numba", "pyarrow", "tagmatch"} <= found["versions"].keys()
    assert {"date", "commit"} <= found.keys()
    lines = [line for section in found["sections"].values() for line in section]
    assert all(line["value"] == 0 for line in lines if line["target"] and line["target"]["required"])
    rates_of = {line["what"]: line["value"] for line in found["sections"]["match_many"]}
    assert rates_of.keys() == {
        "rarest",
        "rarest, dictionary-encoded",
        "balanced",
        "balanced, dictionary-encoded",
        "balanced, exact=False",
        "RarestTagDict",
        "SignatureScan",
    }
    assert [line["what"] for line in found["sections"]["against plain strings"]] == [
        "rarest, dictionary-encoded",
        "balanced, dictionary-encoded",
    ]
    assert all(rate > 0 for rate in rates_of.values())


@pytest.mark.parametrize(
    "wrong",
    [
        ["--sets", "0"],
        ["--queries", "0"],
        ["--threads", "0"],
        ["--seed", "-1"],
        ["--sets", "many"],
        ["--json", "no/such/folder/cpu.json"],
        ["--unknown"],
    ],
)
def test_bad_parameters(wrong: list[str]) -> None:
    result = CliRunner().invoke(app, ["cpu", *wrong])
    assert result.exit_code == 2
    assert wrong[0] in result.stderr


@pytest.mark.parametrize("command", [app, workload_app])
def test_version(command: typer.Typer) -> None:
    assert CliRunner().invoke(command, ["--version"]).stdout == f"tagmatch {__version__}\n"


@pytest.mark.parametrize(("keys_per_set", "low", "high"), [(1, 1, 1), (1.5, 1.3, 1.7), (5, 4, 5.5)])
def test_sets_and_keys_of_a_workload(keys_per_set: float, low: float, high: float) -> None:
    workload = make_workload(10_000, 100, seed=3, threads=2, keys_per_set=keys_per_set)
    stored = [frozenset(tags) for tags in workload.sets["tags"].to_pylist()]
    pairs = set(zip(stored, workload.sets["key"].to_pylist(), strict=True))
    assert len(set(stored)) == workload.distinct == 10_000
    assert len(pairs) == len(stored), "no pair twice"
    assert low <= len(pairs) / 10_000 == workload.keys_per_set <= high
    assert Counter(map(frozenset, workload.sample["tags"].to_pylist())) == Counter(set(stored))
    for query in workload.queries.to_pylist():
        assert any(tags <= set(query) for tags in stored)


def test_match_and_match_unique_differ_in_a_workload() -> None:
    """So that what makes keys unique has something to do."""
    workload = make_workload(20_000, 2000, seed=3, threads=2)
    given, unique = (
        right_answers(workload.sets, workload.queries, unique=unique, threads=2) for unique in (False, True)
    )
    assert sum(map(len, unique)) < sum(map(len, given))
    assert sum(map(len, unique)) > 4 * len(unique), "the key table has something to do"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, from which the code that is measured is taken to come."""
    folder = tmp_path / "checkout"
    (folder / "tagmatch").mkdir(parents=True)
    (folder / "tagmatch" / "code.py").write_text("fast = True\n")
    (folder / "README.md").write_text("slow\n")
    author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*author, "commit", "--quiet", "--message", "Code"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    monkeypatch.setattr("tagmatch.workloads.bench.harness.circumstances._CHECKOUT", folder / "tagmatch")
    return folder


TINY = ["layouts", "--scale", "0.0005", "--queries", "30", "--rounds", "1", "--seconds", "0.001", "--output"]


@pytest.mark.parametrize("name", ["code.py", "added.py", "../at_the_top.toml"])
@pytest.mark.parametrize("command", [TINY, [*SMALL, "--no-growth", "--json"]], ids=["paper", "cpu"])
def test_results_of_changed_code_are_refused(checkout: Path, tmp_path: Path, name: str, command: list[str]) -> None:
    (checkout / "tagmatch" / name).write_text("fast = False\n")
    result = CliRunner().invoke(app, [*command, str(tmp_path / "results")])
    assert isinstance(result.exception, TagMatchError)
    file = os.path.normpath(f"tagmatch/{name}")
    assert f"these files differ from it: {file}; commit them" in str(result.exception)
    assert not (tmp_path / "results").exists() or not any((tmp_path / "results").iterdir())


def test_results_are_refused_where_git_does_not_work(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows then what they are results of."""
    (checkout / ".git" / "HEAD").write_text("damaged\n")
    for command in (TINY, [*SMALL, "--no-growth", "--json"], ["host", "--output"]):
        result = CliRunner().invoke(app, [*command, str(tmp_path / "results")])
        assert isinstance(result.exception, TagMatchError)
        assert "results would name no commit" in str(result.exception)
        assert "--allow-changes" in str(result.exception)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(app, [*TINY, str(tmp_path / "results")])
    assert "results would name no commit" in str(result.exception)
    CliRunner().invoke(app, [*TINY, str(tmp_path), "--allow-changes"], catch_exceptions=False)
    assert json.loads((tmp_path / "layouts.json").read_text())["circumstances"]["commit"] is None


def test_results_of_changed_code_say_so(checkout: Path, tmp_path: Path) -> None:
    (checkout / "tagmatch" / "code.py").write_text("fast = False\n")
    result = CliRunner().invoke(app, [*TINY, str(tmp_path), "--allow-changes"], catch_exceptions=False)
    assert "**Not reproducible**: measured at" in result.stdout
    assert "with changes to tagmatch/code.py." in (tmp_path / "layouts.md").read_text()
    assert json.loads((tmp_path / "layouts.json").read_text())["circumstances"]["changed_files"] == ["tagmatch/code.py"]


def test_results_name_their_commit(checkout: Path, tmp_path: Path) -> None:
    """Words may change."""
    (checkout / "README.md").write_text("fast\n")
    result = CliRunner().invoke(app, [*TINY, str(tmp_path)], catch_exceptions=False)
    assert "Not reproducible" not in result.stdout
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, check=True, capture_output=True, text=True)
    found = json.loads((tmp_path / "layouts.json").read_text())["circumstances"]
    assert (found["commit"], found["changed_files"]) == (head.stdout.strip(), [])


def test_targets() -> None:
    assert Target(8).met_by(8)
    assert not Target(8).met_by(7.9)
    assert Target(6, at_most=True).met_by(6)
    assert not Target(6, at_most=True).met_by(6.1)
    assert str(Target(10, goal=8.5, at_most=True)) == "≤ 10, goal ≤ 8.5"


def test_result_with_sections() -> None:
    result = Result("cpu", {"sets": 5})
    result.add("ours", Samples((1.0, 4.0, 2.004)), "queries/s", section="speed")
    result.add("ours / theirs", 7, "times", Target(8), section="speed")
    result.add("wrong", 3, "keys", Target(0, at_most=True, required=True), section="answers")
    assert result.faults() == ["answers: wrong 3 keys"]
    printed = io.StringIO()
    print_table(result, Console(file=printed, width=100))
    lines = printed.getvalue().splitlines()
    assert any("ours" in line and "2.00 queries/s" in line for line in lines)
    assert any("ours / theirs" in line and "not met" in line for line in lines)


def test_alternation() -> None:
    calls: list[str] = []
    alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert calls == ["a", "b"] * 3


def test_no_more_rounds_than_there_is_time_for() -> None:
    assert len(alternate({"a": lambda: None}, rounds=3, most_seconds=0)["a"].values) == 1
    assert len(alternate({"a": lambda: None}, rounds=3, most_seconds=60)["a"].values) == 3


def test_rates() -> None:
    asked: list[int] = []
    found = rates({"fast": asked.append}, 1000, rounds=3, seconds=1e-9)
    assert len(found["fast"].values) == 3
    assert all(1 <= count <= 1000 for count in asked)
    assert found["fast"].over(found["fast"]) == 1


@pytest.mark.parametrize(
    ("items", "size", "expected"),
    [
        (1000, CallSize(), 20),
        (1000, CallSize(whole=8), 16),
        (1000, CallSize(whole=40), 40),
        (30, CallSize(whole=40), 30),
        (1000, CallSize(full=100), 100),
        (1000, CallSize(whole=30, full=100), 90),
        (1000, CallSize(full=500), 200),
        (1000, CallSize(full=500, most=150), 150),
        (100, CallSize(most=150), 20),
    ],
)
def test_calls_have_whole_batches(items: int, size: CallSize, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which an item takes a millisecond, with 20 ms a call and up to ten times as long for full ones."""
    asked: list[int] = []

    def seconds_of(work: Callable[[], object]) -> float:
        work()
        return asked[-1] / 1000

    monkeypatch.setattr("tagmatch.workloads.bench.harness.timing.seconds_of", seconds_of)
    found = rates({"x": asked.append}, items, rounds=3, seconds=0.02, sizes={"x": size})
    assert found["x"].items == expected
    assert asked[-3:] == [expected] * 3
    assert found["x"].median == pytest.approx(1000)


def test_calls_are_as_large_as_what_is_faster_in_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a device, for which calls of less than 50 items are too small: one of a thousand is, to begin with."""
    asked: list[int] = []

    def seconds_of(work: Callable[[], object]) -> float:
        work()
        return asked[-1] / (1000 if asked[-1] < 50 else 100_000)

    monkeypatch.setattr("tagmatch.workloads.bench.harness.timing.seconds_of", seconds_of)
    size = CallSize(whole=10, full=5000)
    found = rates({"x": asked.append}, 1_000_000, rounds=2, seconds=0.02, sizes={"x": size})
    assert found["x"].items == 5000
