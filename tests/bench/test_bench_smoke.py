"""The command `tagmatch-bench`: it has a command for each experiment, and runs one; all others run in nightly."""

from pathlib import Path

import pytest
import typer
from support.bench import app, measured
from typer.testing import CliRunner

from tagmatch import __version__
from tagmatch.workloads.commands import app as workload_app
from tagmatch_bench.figures.figure import FIGURES

OTHERS = "broker ccm content cpu first follow gpu host latency location paper pcm peers qos qos-real records serve"
OTHERS += " paper-scale spark threads updates"


@pytest.mark.slow
def test_an_experiment(tmp_path: Path) -> None:
    found = measured("layouts", tmp_path, "--scale", 0.0005, "--queries", 30, "--rounds", 1, "--seconds", 0.001)
    assert sum(row["keys"] for row in found.answers) > 0
    assert all(value > 0 for title in found.panels for value in found.values(title).values())


@pytest.mark.parametrize("command", [app, workload_app])
def test_version(command: typer.Typer) -> None:
    assert CliRunner().invoke(command, ["--version"]).stdout == f"tagmatch {__version__}\n"


def test_every_experiment_is_a_command() -> None:
    names = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert names == {*FIGURES, *OTHERS.split(), "record", "pages"}  # these measure the record, and show it
