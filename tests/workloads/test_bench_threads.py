"""The command `tagmatch-bench threads`: what it reports, not how fast anything is."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tagmatch import Overloaded
from tagmatch.workloads.bench.harness.load import callers_rate, gather_rate, serve_tasks
from tagmatch.workloads.commands.bench import app

pytestmark = pytest.mark.slow


def test_command(tmp_path: Path) -> None:
    options = ["--sets", "300", "--queries", "60", "--threads", "2", "--rounds", "1", "--seconds", "0.001"]
    options += ["--allow-changes"]
    done = CliRunner().invoke(app, ["threads", *options, "--output", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads((tmp_path / "threads.json").read_text())
    places = {panel["title"]: {value["x"] for value in panel["values"]} for panel in found["panels"]}
    assert places == {
        "match": {1, 2},
        "match-unique": {1, 2},
        "speed-up of match": {1, 2},
        "match_many beside its kernels": {"rarest", "balanced"},
        "match, called again and again": {1, 2, 10, 50},
        "match by many callers": {1, 2, 10, 50},
    }
    systems = {"match, called again and again": 3, "match by many callers": 3}
    assert all(
        len(panel["values"]) == systems.get(panel["title"], 2) * len(places[panel["title"]])
        for panel in found["panels"]
    )
    assert all(value["value"] > 0 for panel in found["panels"] for value in panel["values"])
    limits = {line["what"]: line["target"] and line["target"]["limit"] for line in found["lines"]}
    assert limits == {
        "rarest: match_many against its kernels": 0.9,
        "balanced: match_many against its kernels": 0.9,
        "tagmatch, rarest: one caller of match against a dict": 2,
        "tagmatch, balanced: one caller of match against a dict": None,
        "tagmatch, rarest: 50 callers of match against one": 0.9,
        "tagmatch, balanced: 50 callers of match against one": None,
        "Python dict of rarest tags: 50 callers of match against one": None,
        "tagmatch, rarest: amatch, 1,000 at a time": 60_000,
        "tagmatch, rarest: amatch at half of that load, median": None,
        "tagmatch, rarest: amatch at half of that load, p99": 2,
        "tagmatch, balanced: amatch, 1,000 at a time": None,
        "tagmatch, balanced: amatch at half of that load, median": None,
        "tagmatch, balanced: amatch at half of that load, p99": None,
    }
    assert {row["system"] for row in found["answers"]} >= {"kernels alone, rarest", "kernels alone, balanced"}
    assert all(row["missing"] == row["wrong"] == 0 for row in found["answers"])
    assert (tmp_path / "threads.png").read_bytes().startswith(b"\x89PNG")
    assert "≥ 0.9" in done.stdout


def test_every_caller_asks() -> None:
    asked: list[tuple[int, str]] = []
    queries = [["a"], ["b"], ["c"]]
    rate = callers_rate(lambda query: asked.append((threading.get_ident(), query[0])), queries, 7, 0.001)
    assert rate > 0
    assert len({thread for thread, _ in asked}) == 7
    assert {tag for _, tag in asked} == {"a", "b", "c"}


def test_each_caller_goes_on_from_its_own_place() -> None:
    asked: dict[int, list[int]] = {}
    queries = [[str(number)] for number in range(70)]
    callers_rate(lambda query: asked.setdefault(threading.get_ident(), []).append(int(query[0])), queries, 7, 0.001)
    assert sorted(numbers[0] for numbers in asked.values()) == list(range(1, 70, 10))
    for numbers in asked.values():
        assert numbers == [(numbers[0] + i) % 70 for i in range(len(numbers))]


def test_tasks_ask_when_queries_are_due() -> None:
    """The second waits for nobody; the third is refused, and the fourth is late, as the loop is busy."""
    asked: list[str] = []

    async def ask(query: list[str]) -> None:
        asked.append(query[0])
        if query[0] == "slow":
            await asyncio.sleep(0.3)
        elif query[0] == "refused":
            raise Overloaded
        elif query[0] == "busy":
            time.sleep(0.2)

    due = np.array([0.01, 0.02, 0.03, 0.04, 0.05])
    served = serve_tasks(ask, cycle([["slow"], ["quick"], ["refused"], ["busy"], ["late"]]), due)
    assert asked == ["slow", "quick", "refused", "busy", "late"]
    assert served.rejected == 1
    assert len(served.latency) == 4
    slow, _, busy, late = served.latency
    assert slow >= 0.29
    assert busy >= 0.19
    assert late >= 0.19
    assert served.seconds >= 0.3


def test_tasks_that_fail_fail_the_measurement() -> None:
    async def ask(_: list[str]) -> None:
        raise ValueError("wrong")

    with pytest.raises(ExceptionGroup) as failed:
        serve_tasks(ask, [["a"]], np.zeros(1))
    assert failed.group_contains(ValueError, match="wrong")


def test_tasks_ask_together() -> None:
    asked: list[str] = []
    together: set[int] = set()
    running = 0

    async def ask(query: list[str]) -> None:
        nonlocal running
        running += 1
        asked.append(query[0])
        await asyncio.sleep(0)
        together.add(running)
        await asyncio.sleep(0)
        running -= 1

    assert gather_rate(ask, [["a"], ["b"], ["c"]], 5, 0.001) > 0
    assert asked[:10] == list("abcabcabca")
    assert len(asked) % 5 == 0
    assert together == {5}
