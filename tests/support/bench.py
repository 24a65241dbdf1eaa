"""Commands of `tagmatch-bench` in this process, at a small size; what they found, and systems that answer wrongly."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tagmatch.model.errors import TagMatchError
from tagmatch_bench.commands.app import app

Values = dict[tuple[str, Any], Any]


def run(command: str, folder: Path, *options: object) -> Result:
    words = [command, "--allow-changes", "--output", folder, *options]
    return CliRunner().invoke(app, list(map(str, words)))


class Found:
    def __init__(self, folder: Path, command: str) -> None:
        written: dict[str, Any] = json.loads((folder / f"{command}.json").read_text())
        self.panels: dict[str, Any] = {panel["title"]: panel for panel in written["panels"]}
        self.answers, self.unavailable = written["answers"], written["unavailable"]
        self.parameters = written["parameters"]
        self.lines = {line["what"]: line for line in written["lines"]}
        assert len(self.lines) == len(written["lines"])
        #: Limits of lines with a target
        self.limits = {what: line["target"]["limit"] for what, line in self.lines.items() if line["target"]}

    def value(self, what: str) -> float:
        return float(self.lines[what]["value"])

    def values(self, title: str, what: str = "value", of: str = "values") -> Values:
        """Values of a panel, or their samples, by system and place; with `of="published"`, those of the paper."""
        return {(value["system"], value["x"]): value[what] for value in self.panels[title][of]}

    def published(self, title: str) -> Values:
        return self.values(title, of="published")

    def places(self, title: str) -> dict[str, set[Any]]:
        """The places at which each system is in a panel."""
        found: dict[str, set[Any]] = {}
        for system, place in self.values(title):
            found.setdefault(system, set()).add(place)
        return found

    def compared(self, against: str, where: str = "") -> Counter[str]:
        """How often each system was compared with something, where the place begins so."""
        rows = (row for row in self.answers if row["where"].startswith(where))
        return Counter(row["system"] for row in rows if row["where"].endswith(f"against {against}"))

    def counted(self, system: str, what: str) -> int:
        return sum(row[what] for row in self.answers if row["system"] == system)


def measured(command: str, folder: Path, *options: object) -> Found:
    """What a command finds, which is positive; all answers are right, and the plot is drawn."""
    done = run(command, folder, *options)
    assert done.exit_code == 0, done.exception or done.output
    found = Found(folder, command)
    assert all(row["missing"] == 0 and (row["wrong"] == 0 or not row["exact"]) for row in found.answers)
    assert (folder / f"{command}.png").read_bytes().startswith(b"\x89PNG") or not found.panels
    return found


def facts(rows: Iterable[Any]) -> Values:
    """Rows that a paper has, as `Found.published` gives them."""
    return {(row.what, row.x): row.value for row in rows}


def at(systems: Iterable[str], places: Iterable[Any]) -> dict[str, set[Any]]:
    """Each of the systems at each of the places."""
    return {system: set(places) for system in systems}


def spoil(monkeypatch: pytest.MonkeyPatch, system: Any, *, more: bool) -> None:
    """Let a system give a key too many to a message, or one too few."""
    right = system.match_many

    def wrong(self: Any, messages: Any, **options: Any) -> pa.ListArray:
        given = right(self, messages, **options)
        answers = given.to_pylist() if isinstance(given, pa.Array) else [list(keys) for keys in given]
        some = next((keys for keys in answers if keys), answers[0])
        if more:
            some.append(2**63)
        elif some:
            some.pop()
        return pa.array(answers, pa.list_(pa.uint64()))

    monkeypatch.setattr(system, "match_many", wrong)


def is_told(done: Result, folder: Path, command: str, system: str, *, more: bool) -> None:
    """A command ended with an error that names the system, and wrote down how many keys are wrong or missing."""
    assert isinstance(done.exception, TagMatchError), done.output
    assert f"{system} gave" in str(done.exception)
    found = Found(folder, command)
    assert found.counted(system, "wrong" if more else "missing") > 0
    assert found.counted(system, "missing" if more else "wrong") == 0
