"""The command `tagmatch-bench qos`: what it simulates and compares."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tagmatch.workloads.bench.figures.qos_figures import PARTS
from tagmatch.workloads.bench.figures.qos_most import MostMessages
from tagmatch.workloads.bench.harness.confidence import Mean
from tagmatch.workloads.commands import bench_qos
from tagmatch.workloads.commands.bench import app

pytestmark = pytest.mark.slow

CHANNELS = ("channel 1", "channel 2", "all")
THREE = ("QoS-ignorant", "DFGS + Smart Dispatch", "EDF")
FIVE = ("QoS-ignorant", "DFGS", "Smart Dispatch", "DFGS + Smart Dispatch", "EDF")
ARRIVALS = ("periodic", "Poisson")


def simulated(folder: Path, *more: str) -> dict[str, Any]:
    options = ["--allow-changes", "--messages", "400", "--seeds", "2", "--output", str(folder), *more]
    done = CliRunner().invoke(app, ["qos", *options])
    assert done.exit_code == 0, done.exception
    found: dict[str, Any] = json.loads((folder / "qos.json").read_text())
    assert (folder / "qos.png").read_bytes().startswith(b"\x89PNG")
    for panel in found["panels"]:
        for value in panel["values"]:
            assert value["value"] == pytest.approx(sum(value["samples"]) / 2) or panel["title"].startswith("Table 1")
            assert 0 <= value["value"] <= 100 or panel["unit"] == "messages/s"
    return found


def values(found: dict[str, Any], title: str, which: str = "values") -> dict[tuple[str, Any], float]:
    (panel,) = (panel for panel in found["panels"] if panel["title"] == title)
    return {(value["system"], value["x"]): value["value"] for value in panel[which]}


def systems(found: dict[str, Any], title: str) -> set[str]:
    return {system for system, _ in values(found, title)}


def test_parts_are_those_of_the_command() -> None:
    assert tuple(bench_qos.Part) == PARTS


def test_tables(tmp_path: Path) -> None:
    found = simulated(tmp_path, "--part", "table1", "--part", "table2")
    alone = values(found, "Table 1: a message alone")
    assert {subscriptions: alone["EDF", subscriptions] for _, subscriptions in alone} == {
        "6,000": 0.034,
        "60,000": 0.15,
        "600,000": 0.81,
    }
    printed = values(found, "Table 1: a message alone", "published")
    assert all(alone[system, at] == printed["a message", at] for system in THREE for _, at in printed)
    for arrivals in ARRIVALS:
        failed = values(found, f"Table 2, 1 core, {arrivals}")
        assert failed.keys() == {(system, channel) for system in THREE for channel in CHANNELS}
        assert failed["QoS-ignorant", "channel 1"] > 10
        lateness = values(found, f"Table 2, 1 core, {arrivals}: answers by lateness")
        for channel in CHANNELS[:2]:
            of = f"QoS-ignorant, {channel}"  # which drops nothing
            assert math.isclose(sum(share for (system, _), share in lateness.items() if system == of), 100)
            late = sum(
                share for (system, at), share in lateness.items() if system == of and "+" in at and at != "to +0"
            )
            assert late == pytest.approx(failed["QoS-ignorant", channel])


def test_failure_rates(tmp_path: Path) -> None:
    wanted = [word for part in PARTS if part[0] == "f" and part != "figure12" for word in ("--part", part)]
    found = simulated(tmp_path, *wanted)
    titles = {
        "Figure 6, 1 core": (THREE, 7),
        "Figure 7, 1 core": (THREE, 6),
        "Figure 8, 7 cores": (THREE, 9),
        "Figure 9, 7 cores": (FIVE, 9),
        "Figure 10": (THREE, 7),
        "Figure 11, 7 cores, channel 2 takes twice as long": (FIVE, 7),
    }
    assert len(found["panels"]) == 2 * len(titles)
    widths = [line for line in found["lines"] if line["unit"] == "percentage points"]
    assert len(widths) == 2 * len(titles)
    for title, (policies, places) in titles.items():
        for arrivals in ARRIVALS:
            name = f"{title}, {arrivals}"
            assert systems(found, name) == {f"{policy}, {channel}" for policy in policies for channel in CHANNELS}
            assert len(values(found, name)) == 3 * len(policies) * places
    same = [values(found, f"Figure {number}, 7 cores, Poisson") for number in (8, 9)]
    assert same[0].items() <= same[1].items()
    assert values(found, "Figure 10, periodic", "published") == {("QoS-ignorant, all, at least", 7): 5.0}


def test_most_messages(tmp_path: Path) -> None:
    found = simulated(tmp_path, "--part", "figure12")
    for arrivals in ARRIVALS:
        on_each, of_all = (
            values(found, f"Figure 12, {arrivals}: under 1 % {fail}")
            for fail in ("fail on each channel", "of all fail")
        )
        assert len(on_each) == 5 * 7
        assert all(0 < on_each[at] <= of_all[at] for at in of_all)
        assert on_each["EDF", 1] > 3 * on_each["QoS-ignorant", 1]
        assert on_each["EDF, batches", 7] > on_each["EDF", 7] > 3 * on_each["EDF", 1]
    limits = [line["target"]["limit"] for line in found["lines"] if line["target"]]
    assert sorted(limits) == sorted(2 * 2 * [10, 1.5, 1.5, 1.5, 6])
    paper = [line["value"] for line in found["lines"] if "paper" in line["what"]]
    assert paper == [10]


def test_search_finds_the_most() -> None:
    tried = []

    def fails(factor: float) -> dict[str, float]:
        tried.append(factor)
        return {"one": 5.0 if 0.2 < factor < 0.3 or factor > 0.5 else 0.0, "other": factor}

    search = MostMessages(fails, 1.0)
    assert 0.49 < search.most(lambda failed: failed["one"] < 1) <= 0.5
    assert search.most(lambda failed: failed["other"] < 0) == 0
    assert len(tried) == len(set(tried))


def test_mean() -> None:
    mean = Mean((1.0, 2.0, 6.0))
    # 4.3027 is what Student's distribution has for two degrees of freedom
    assert (mean.mean, mean.half_width) == (3.0, pytest.approx(4.30265 * math.sqrt(7 / 3), rel=1e-5))
    assert Mean((2.0,)).half_width == 0
    assert mean.over(Mean((2.0, 4.0, 3.0))).values == (0.5, 0.5, 2.0)
    assert Mean((1.0,)).over(Mean((0.0,))).mean == math.inf
    assert mean.row("a", "b", 3).samples == (1.0, 2.0, 6.0)
