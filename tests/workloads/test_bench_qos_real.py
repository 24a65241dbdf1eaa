"""The command `tagmatch-bench qos-real`: what it runs and compares."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tagmatch.workloads.bench.figures import published_qos
from tagmatch.workloads.bench.figures.qos_real import REAL_PARTS
from tagmatch.workloads.commands import bench_qos_real
from tagmatch.workloads.commands.bench import app

pytestmark = pytest.mark.slow

CHANNELS = ("channel 1", "channel 2")
THREE = ("QoS-ignorant", "DFGS + Smart Dispatch", "EDF")
ON_THREADS = ("QoS-ignorant", "FIFO", "DFGS + Smart Dispatch", "EDF")
ARRIVALS = ("periodic", "Poisson")
MESSAGES = 50
SMALL = ("--messages", f"{MESSAGES}", "--seeds", "2", "--subscriptions1", "300", "--subscriptions2", "3000")


def measured(folder: Path, *parts: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    words = [word for part in parts for word in ("--part", part)]
    done = CliRunner().invoke(app, ["qos-real", "--allow-changes", *SMALL, *more, *words, "--output", str(folder)])
    assert done.exit_code == 0, done.exception
    found: dict[str, Any] = json.loads((folder / "qos-real.json").read_text())
    assert (folder / "qos-real.png").read_bytes().startswith(b"\x89PNG")
    (answers,) = found["answers"]
    assert answers["keys"] > 0
    assert (answers["wrong"], answers["missing"]) == (0, 0)
    return found


def values(found: dict[str, Any], title: str, which: str = "values") -> dict[tuple[str, Any], float]:
    (panel,) = (panel for panel in found["panels"] if panel["title"] == title)
    return {(value["system"], value["x"]): value["value"] for value in panel[which]}


def lines(found: dict[str, Any]) -> dict[str, float]:
    return {line["what"]: line["value"] for line in found["lines"]}


def test_parts_are_those_of_the_command() -> None:
    assert tuple(bench_qos_real.RealPart) == REAL_PARTS


def test_failure_rates(tmp_path: Path) -> None:
    found = measured(tmp_path, "table2", "figure8", "figure9", "figure10")
    for name in ARRIVALS:
        failed = values(found, f"Table 2, 1 core, {name}")
        assert failed.keys() == {(policy, channel) for policy in THREE for channel in (*CHANNELS, "all")}
        assert all(0 <= value <= 100 for value in failed.values())
        # What both figures have is run once
        both = [values(found, f"Figure {number}, 7 cores, {name}") for number in (8, 9)]
        assert both[0].items() <= both[1].items()
        assert len({policy for policy, _ in both[1]}) == 5 * 3
    assert values(found, "Figure 10, periodic", "published") == {("QoS-ignorant, all, at least", 7): 5.0}
    offered = lines(found)["messages offered, each of them answered or dropped"]
    # 3 policies of Table 2, 5 at 9 places, 3 at 7; each periodic and Poisson, with two seeds
    assert offered == pytest.approx((3 + 5 * 9 + 3 * 7) * 2 * 2 * MESSAGES, rel=0.1)
    for policy in (*THREE, "DFGS", "Smart Dispatch"):
        assert lines(found)[f"{policy}: a message's CPU time beside matching"] > 0


def test_most_messages(tmp_path: Path) -> None:
    found = measured(tmp_path, "figure12", more=("--messages", "30"))
    for name in ARRIVALS:
        on_each, of_all = (
            values(found, f"Figure 12, {name}: under 1 % {fail}") for fail in ("fail on each channel", "of all fail")
        )
        assert on_each.keys() == {(policy, cores) for policy in THREE for cores in (1, 4, 7)}
        assert all(on_each[at] <= of_all[at] for at in of_all)
    assert lines(found)["Figure 12, paper: its QoS-aware system against QoS-ignorant, at least"] == 10


def test_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert published_qos.TABLE1.keys() == {6_000, 60_000, 600_000}
    monkeypatch.setattr(published_qos, "TABLE1", {600: (0.034, 65.0), 6_000: (0.15, 14.0)})  # which takes less
    found = measured(tmp_path, "table1", "threads", "dds")
    printed = values(found, "Table 1: a message alone", "published")
    assert printed == {("a message", "600"): 0.034, ("a message", "6,000"): 0.15}
    assert values(found, "Table 1: a message alone").keys() == {("H and C phases", at) for _, at in printed}
    shares = values(found, "Table 1: share of the H phase")
    assert 100 > shares["H and C phases", "600"] > shares["H and C phases", "6,000"] > 0
    for name in ARRIVALS:
        failed = values(found, f"Table 2, all times × 8, threads on the wall clock, {name}")
        clocks = ("", ", virtual clocks")
        assert failed.keys() == {
            (f"{policy}, {channel}{clock}", workers)
            for policy in ON_THREADS
            for channel in CHANNELS
            for clock in clocks
            for workers in ("1", "2")
        }
        of_dds = values(found, f"Table 2, all times × 8, one thread on the wall clock, beside CycloneDDS, {name}")
        there = {policy for policy, _ in of_dds}
        assert there - {"CycloneDDS"} == set(ON_THREADS)
        assert ("CycloneDDS" in there) == ("CycloneDDS" not in found["unavailable"])


def test_dds_is_left_out_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tagmatch.workloads.systems.cyclone_dds", raising=False)
    monkeypatch.setitem(sys.modules, "cyclonedds.core", None)
    found = measured(tmp_path, "dds", more=("--messages", "20"))
    assert "needs the Python package cyclonedds" in found["unavailable"]["CycloneDDS"]


@pytest.mark.parametrize(
    ("system", "rates", "more"),
    [
        ("TagMatch", ("1", "1.5"), ()),
        ("TagMatch, 2 threads", ("1", "2.4"), ("--pipeline-threads", "2", "--load", "0.5", "--load", "1.2")),
    ],
)
def test_pipeline(tmp_path: Path, system: str, rates: tuple[str, ...], more: tuple[str, ...]) -> None:
    found = measured(tmp_path, "pipeline", more=("--calls", "30", "--pipeline-seeds", "3", "--sets", "3000", *more))
    orders = ("fifo", "edf", "dfgs")
    for rate in rates:
        failed = values(found, f"{system}, Table 2's rates × {rate}, Poisson")
        assert failed.keys() == {(order, channel) for order in orders for channel in CHANNELS}
        for channel in CHANNELS:
            what = f"{system}, rates × {rate}, {channel}: edf fails more than dfgs by"
            difference = failed["edf", channel] - failed["dfgs", channel]
            assert math.isclose(lines(found)[what], difference, abs_tol=1e-9)
            low, high = (lines(found)[f"{what}, 95 % confidence, {end}"] for end in ("from", "to"))
            assert low <= difference <= high
