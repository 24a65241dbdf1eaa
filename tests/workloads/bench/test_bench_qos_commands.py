"""The commands `tagmatch-bench qos` and `qos-real`: what they simulate or run, and compare."""

import math
import sys
from pathlib import Path

import pytest
from support.bench import Found, at, measured

from tagmatch.workloads.bench.figures import published_qos
from tagmatch.workloads.bench.figures.qos_figures import PARTS

CHANNELS = ("channel 1", "channel 2")
THREE = ("QoS-ignorant", "DFGS + Smart Dispatch", "EDF")
FIVE = ("QoS-ignorant", "DFGS", "Smart Dispatch", "DFGS + Smart Dispatch", "EDF")
ARRIVALS = ("periodic", "Poisson")


def found_in(command: str, folder: Path, *parts: str, more: tuple[object, ...] = ()) -> Found:
    words = [word for part in parts for word in ("--part", part)]
    return measured(command, folder, "--seeds", 2, *words, *more)


def simulated(folder: Path, *parts: str) -> Found:
    found = found_in("qos", folder, *parts, more=("--messages", 400))
    for title, panel in found.panels.items():
        for value in panel["values"]:
            assert value["value"] == pytest.approx(sum(value["samples"]) / 2) or title.startswith("Table 1")
            assert 0 <= value["value"] <= 100 or panel["unit"] == "messages/s"
    return found


def test_tables(tmp_path: Path) -> None:
    found = simulated(tmp_path, "table1", "table2")
    alone, printed = found.values("Table 1: a message alone"), found.published("Table 1: a message alone")
    times = {"6,000": 0.034, "60,000": 0.15, "600,000": 0.81}
    assert {place: alone["EDF", place] for _, place in alone} == times
    assert all(alone[system, place] == printed["a message", place] for system in THREE for _, place in printed)
    for arrivals in ARRIVALS:
        failed = found.values(f"Table 2, 1 core, {arrivals}")
        assert failed.keys() == {(system, channel) for system in THREE for channel in (*CHANNELS, "all")}
        assert failed["QoS-ignorant", "channel 1"] > 10
        lateness = found.values(f"Table 2, 1 core, {arrivals}: answers by lateness")
        shares = {place: share for (of, place), share in lateness.items() if of == "QoS-ignorant, channel 1"}
        assert math.isclose(sum(shares.values()), 100), "it drops nothing"
        late = sum(share for place, share in shares.items() if "+" in place and place != "to +0")
        assert late == pytest.approx(failed["QoS-ignorant", "channel 1"])


def test_failure_rates(tmp_path: Path) -> None:
    found = simulated(tmp_path, *(part for part in PARTS if part[0] == "f" and part != "figure12"))
    titles = {
        "Figure 6, 1 core": (THREE, 7), "Figure 7, 1 core": (THREE, 6), "Figure 8, 7 cores": (THREE, 9),
        "Figure 9, 7 cores": (FIVE, 9), "Figure 10": (THREE, 7),
        "Figure 11, 7 cores, channel 2 takes twice as long": (FIVE, 7),
    }  # fmt: skip
    assert found.panels.keys() == {f"{title}, {arrivals}" for title in titles for arrivals in ARRIVALS}
    for name in found.panels:
        policies, places = titles[name.rpartition(", ")[0]]
        systems = {f"{policy}, {channel}" for policy in policies for channel in (*CHANNELS, "all")}
        assert found.places(name).keys() == systems
        assert len(found.values(name)) == places * len(systems)
    assert found.published("Figure 10, periodic") == {("QoS-ignorant, all, at least", 7): 5.0}


@pytest.mark.parametrize("command", ["qos", "qos-real"])
def test_most_messages(tmp_path: Path, command: str) -> None:
    found = (
        simulated(tmp_path, "figure12") if command == "qos" else matched(tmp_path, "figure12", more=("--messages", 30))
    )
    for arrivals in ARRIVALS:
        on_each, of_all = (
            found.values(f"Figure 12, {arrivals}: under 1 % {fail}") for fail in ("fail on each channel", "of all fail")
        )
        assert on_each.keys() == of_all.keys()
        assert all(on_each[place] <= of_all[place] for place in of_all)
        if command == "qos":
            assert on_each["EDF", 1] > 3 * on_each["QoS-ignorant", 1]
            assert on_each["EDF, batches", 7] > on_each["EDF", 7] > 3 * on_each["EDF", 1]
    assert found.value("Figure 12, paper: its QoS-aware system against QoS-ignorant, at least") == 10


MESSAGES = 50


def matched(folder: Path, *parts: str, more: tuple[object, ...] = ()) -> Found:
    small = ("--messages", MESSAGES, "--subscriptions1", 300, "--subscriptions2", 3000)
    found = found_in("qos-real", folder, *parts, more=(*small, *more))
    (answers,) = found.answers
    assert answers["keys"] > 0
    return found


def test_real_failure_rates(tmp_path: Path) -> None:
    found = matched(tmp_path, "table2", "figure8", "figure9", "figure10")
    for name in ARRIVALS:
        failed = found.values(f"Table 2, 1 core, {name}")
        assert failed.keys() == {(policy, channel) for policy in THREE for channel in (*CHANNELS, "all")}
        assert all(0 <= value <= 100 for value in failed.values())
        # What both figures have is run once
        both = [found.values(f"Figure {number}, 7 cores, {name}") for number in (8, 9)]
        assert both[0].items() <= both[1].items()
    # 3 policies of Table 2, 5 at 9 places, 3 at 7; each periodic and Poisson, with two seeds
    offered = (3 + 5 * 9 + 3 * 7) * 2 * 2 * MESSAGES
    assert found.value("messages offered, each of them answered or dropped") == pytest.approx(offered, rel=0.1)
    assert all(found.value(f"{policy}: a message's CPU time beside matching") > 0 for policy in FIVE)


@pytest.mark.parametrize("dds", [True, False])
def test_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dds: bool) -> None:
    policies = {*THREE, "FIFO"}
    if not dds:
        monkeypatch.delitem(sys.modules, "tagmatch.workloads.systems.cyclone_dds", raising=False)
        monkeypatch.setitem(sys.modules, "cyclonedds.core", None)
        found = matched(tmp_path, "dds", more=("--messages", 20))
        assert "needs the Python package cyclonedds" in found.unavailable["CycloneDDS"]
        return
    assert published_qos.TABLE1.keys() == {6_000, 60_000, 600_000}
    monkeypatch.setattr(published_qos, "TABLE1", {600: (0.034, 65.0), 6_000: (0.15, 14.0)})  # which takes less
    found = matched(tmp_path, "table1", "threads", "dds")
    printed = found.published("Table 1: a message alone")
    assert printed == {("a message", "600"): 0.034, ("a message", "6,000"): 0.15}
    assert found.values("Table 1: a message alone").keys() == {("H and C phases", place) for _, place in printed}
    shares = found.values("Table 1: share of the H phase")
    assert 100 > shares["H and C phases", "600"] > shares["H and C phases", "6,000"] > 0
    for name in ARRIVALS:
        failed = found.places(f"Table 2, all times × 8, threads on the wall clock, {name}")
        clocks = ("", ", virtual clocks")
        systems = {f"{each}, {channel}{clock}" for each in policies for channel in CHANNELS for clock in clocks}
        assert failed == at(systems, {"1", "2"})
        there = found.places(f"Table 2, all times × 8, one thread on the wall clock, beside CycloneDDS, {name}").keys()
        assert there - {"CycloneDDS"} == policies
        assert ("CycloneDDS" in there) == ("CycloneDDS" not in found.unavailable)


def test_pipeline(tmp_path: Path) -> None:
    options = ("--pipeline-threads", 2, "--load", 0.5, "--load", 1.2, "--calls", 30, "--pipeline-seeds", 3)
    found = matched(tmp_path, "pipeline", more=(*options, "--sets", 3000))
    for rate in ("1", "2.4"):
        failed = found.values(f"TagMatch, 2 threads, Table 2's rates × {rate}, Poisson")
        assert failed.keys() == {(order, channel) for order in ("fifo", "edf", "dfgs") for channel in CHANNELS}
        for channel in CHANNELS:
            what = f"TagMatch, 2 threads, rates × {rate}, {channel}: edf fails more than dfgs by"
            difference = failed["edf", channel] - failed["dfgs", channel]
            assert math.isclose(found.value(what), difference, abs_tol=1e-9)
            low, high = (found.value(f"{what}, 95 % confidence, {end}") for end in ("from", "to"))
            assert low <= difference <= high
