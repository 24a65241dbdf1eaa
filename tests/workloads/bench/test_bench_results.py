"""What benchmarks measure with, and how results are written: workloads, circumstances, tables and plots."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from support.bench import app
from typer.testing import CliRunner

from tagmatch import TagMatchError
from tagmatch.workloads.bench.harness.data import make_workload
from tagmatch.workloads.bench.harness.plots import draw
from tagmatch.workloads.bench.harness.report import markdown, print_table
from tagmatch.workloads.bench.harness.results import Answers, Result, Row, Target
from tagmatch.workloads.bench.harness.timing import Samples

pytestmark = pytest.mark.nightly

CPU = ["cpu", "--sets", "300", "--queries", "50", "--threads", "2", "--no-growth", "--json"]
TINY = ["layouts", "--scale", "0.0005", "--queries", "30", "--rounds", "1", "--seconds", "0.001", "--output"]


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


# -- of what code ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["code.py", "added.py", "../at_the_top.toml"])
def test_results_of_changed_code_are_refused(checkout: Path, tmp_path: Path, name: str) -> None:
    (checkout / "tagmatch" / name).write_text("fast = False\n")
    for command in (TINY, CPU):
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
    for command in (TINY, CPU, ["host", "--output"], TINY):
        result = CliRunner().invoke(app, [*command, str(tmp_path / "results")])
        assert isinstance(result.exception, TagMatchError)
        assert "results would name no commit" in str(result.exception)
        assert "--allow-changes" in str(result.exception)
        if command[0] == "host":
            monkeypatch.setenv("PATH", str(tmp_path))
    CliRunner().invoke(app, [*TINY, str(tmp_path), "--allow-changes"], catch_exceptions=False)
    assert json.loads((tmp_path / "layouts.json").read_text())["circumstances"]["commit"] is None


@pytest.mark.parametrize("changed", [False, True])
def test_results_name_their_commit(checkout: Path, tmp_path: Path, changed: bool) -> None:
    """Words may change."""
    (checkout / "README.md").write_text("fast\n")
    if changed:
        (checkout / "tagmatch" / "code.py").write_text("fast = False\n")
    options = ["--allow-changes"] if changed else []
    result = CliRunner().invoke(app, [*TINY, str(tmp_path), *options], catch_exceptions=False)
    assert ("**Not reproducible**: measured at" in result.stdout) == changed
    assert ("with changes to tagmatch/code.py." in (tmp_path / "layouts.md").read_text()) == changed
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, check=True, capture_output=True, text=True)
    found = json.loads((tmp_path / "layouts.json").read_text())["circumstances"]
    assert found["commit"].startswith(head.stdout.strip())
    assert found["changed_files"] == (["tagmatch/code.py"] if changed else [])


# -- tables and plots --------------------------------------------------------------------------------------------------


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


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["layouts", "--allow-changes", "--output", str(tmp_path / "file" / "folder")])
    assert isinstance(result.exception, TagMatchError)
    assert "the folder cannot be made" in str(result.exception)


def test_plots_of_bars_and_lines(tmp_path: Path) -> None:
    """Also of nothing but zeros."""
    result = Result("x", {}, "Title")
    bars = result.panel("bars", "place", "unit", published=[Row("theirs", 2.0, "unit", x="b")])
    bars.add("ours", "a", 1)
    lines = result.panel("lines", "number", "unit", "lines", log=False, published=[Row("theirs", 2.0, "unit", x=3.0)])
    lines.add("ours", 1.0, 1)
    result.panel("nothing", "number", "unit", "lines", log=False, log_x=False).add("ours", 1.0, 0)
    draw(result, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
