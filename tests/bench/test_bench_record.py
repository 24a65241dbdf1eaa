"""Results are measured again by their commands."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tagmatch import TagMatchError
from tagmatch_bench import record
from tagmatch_bench.commands.app import app


def test_a_result_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A present one is replaced; others are left alone; a failure changes nothing."""
    small = "table1 --sets 1000 --rounds 1 --seconds 0.01 --threads 1 --allow-changes"
    commands = {"here/one": small, "here/same": small, "here/wrong": "table1 --sets 0", "there/two": small}
    monkeypatch.setattr(record, "commands", lambda: commands)
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    said: list[str] = []
    record.measure("here/one", said.append)
    made = tmp_path / "here" / "one.json"
    assert json.loads(made.read_text())["name"] == "table1"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [made]
    assert said == [f"here/one: tagmatch-bench {small}"]
    with pytest.raises(TagMatchError, match=r"here/wrong was not recorded: the command failed"):
        record.measure("here/wrong", said.append)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [made]
    said.clear()
    commands.pop("here/wrong")
    record.measure("here/", said.append)
    assert said == [f"here/one, here/same: tagmatch-bench {small}"]  # one run for both
    assert (tmp_path / "here" / "same.json").read_bytes() == made.read_bytes()


def test_results_that_are_unknown_are_named() -> None:
    with pytest.raises(TagMatchError, match=r"no result begins with 'nowhere'; there are two-cores/peers, "):
        record.measure("nowhere", print)


def test_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """They name the results to measure, and the pages that have new numbers."""
    measured: list[str] = []
    monkeypatch.setattr(record, "measure", lambda only, _: measured.append(only))
    monkeypatch.setattr(record, "fill_pages", lambda: [Path("page.md")])
    for words, expected in ((["pages"], []), (["record", "--only", "two-cores/peers"], ["two-cores/peers"])):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.output) == (0, "page.md has new numbers\n"), done.exception
        assert measured == expected


def test_a_value_stands_at_its_own_place_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that was measured at one place leaves the other columns of a table empty."""
    wanted = (
        "| share | 10 % | 100 % |\n| CPU | {h200-paper/paper-scale > match > tagmatch, balanced} |\n| GPU | {gpu} |"
    )
    monkeypatch.setattr(record, "tables", lambda: {"some": wanted.replace("gpu", "scale > tagmatch, rarest, GPU")})
    *_, cpu, gpu = record.table("some").splitlines()
    assert cpu.split("|")[2].strip() == ""
    assert all(cell.strip() for cell in [cpu.split("|")[3], *gpu.split("|")[2:4]])


def test_a_panel_of_two_runs_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = "h200-location-figure4/location + h200-location-figure4-large/location"
    row = f"| CLCB | {{{runs} > CLCB Figure 4: speed-ups over an R*-tree > CLCB against R*-tree}} |"
    monkeypatch.setattr(record, "tables", lambda: {"some": f"| share | 0.001 | 0.01 | 0.1 | 1 |\n{row}"})
    assert all(cell.strip() for cell in record.table("some").splitlines()[-1].strip("|").split("|"))
