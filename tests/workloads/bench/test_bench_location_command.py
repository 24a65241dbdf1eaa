"""The command `tagmatch-bench location`: what it measures and compares, not how fast anything is."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bench import Found, at, facts, measured, run

from tagmatch.model.errors import TagMatchError
from tagmatch.workloads.bench.figures import location_content, location_exact, location_live, location_spatial
from tagmatch.workloads.bench.figures import published_location as published
from tagmatch.workloads.bench.harness.located import WHOLE, great_circle
from tagmatch.workloads.systems.catalogue import ALERTS, CIRCLES, OWN_CIRCLES, OWN_CIRCLES_GPU
from tagmatch.workloads.systems.circles import Found as Circles
from tagmatch.workloads.systems.rstar_tree import RStarTree
from tagmatch.workloads.systems.tagmatch_circles import ClientCircles, FixedCircles

SERVERS = {"PostGIS", "Redis GEO"}
SPATIAL = {*OWN_CIRCLES, *CIRCLES} - SERVERS
MOVING = {"tagmatch, clients", "tagmatch, clients, end to end", "CLCB, CPU", "R*-tree", "H3 cells in a dict"}
MOVING |= {"DuckDB, bounds"}
LOCATED = {"tagmatch, end to end", "tagmatch, contents and areas", "tagmatch, a call each", "CLCB, CPU"}
SMALL = (
    *("--filters", 300, "--filters", 2000, "--located", 4000, "--figures", 3000, "--live", 6000, "--pairs", 30_000),
    *("--alerts", 400, "--messages", 600, "--rounds", 2, "--seconds", 0.002),
)


def of(*parts: str, skip: Any = ()) -> list[str]:
    """Options for some parts, and to leave out systems."""
    return [word for part in parts for word in ("--part", part)] + [word for name in skip for word in ("--skip", name)]


def found_in(folder: Path, *options: object) -> Found:
    found = measured("location", folder, *SMALL, *options)
    assert all(value > 0 for title in found.panels for value in found.values(title).values())
    return found


def test_spatial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "LARGE", 2000)
    found = found_in(tmp_path, *of("spatial", skip=SERVERS))
    whats = [f"areas, {each}, {share} % each" for each in ("uniform", "Zipf") for share in ("0.001", "0.01", "0.1")]
    for what in whats:
        assert found.places(f"{what}: messages") == at(SPATIAL, {300, 2000})
        assert found.places(f"{what}: moves") == at(MOVING, {300, 2000})
    assert found.places("areas: build").keys() == SPATIAL
    assert found.places("areas: memory").keys() == {*OWN_CIRCLES, "CLCB, CPU", "DuckDB, bounds"}
    assert len(found.limits) == 5 * len(whats)
    assert found.unavailable.keys() == {"R*-tree as Boost has it", *SERVERS, "CLCB", *OWN_CIRCLES_GPU}
    for where, systems in (
        ("each, beside brute force", SPATIAL),
        ("moved, beside brute force", MOVING),
        ("beside Shapely STRtree", SPATIAL - {"Shapely STRtree"}),
    ):
        assert Counter(row["system"] for row in found.answers if row["where"].endswith(where)) == dict.fromkeys(
            systems, 12
        )
    assert sum(row["keys"] for row in found.answers) > 10_000


@pytest.mark.usefixtures("postgis", "redis")
def test_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-3,))
    monkeypatch.setattr(location_spatial, "DISTRIBUTIONS", {"uniform": "clcb"})
    libraries = CIRCLES.keys() - SERVERS
    found = found_in(tmp_path, *of("spatial", skip=libraries))
    title = "areas, uniform, 0.1 % each: messages"
    assert found.places(title) == at({*OWN_CIRCLES, "PostGIS", "Redis GEO (dual)"}, {300, 2000})
    assert {name: found.unavailable[name] for name in libraries} == dict.fromkeys(libraries, "skipped")


def test_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_content, "_FROM", 4000)
    found = found_in(tmp_path, *of("content"), "--located", 8000)
    for kind in ("constraints", "tags"):
        title = f"CLCB's default scenario, {kind}"
        assert found.places(f"{title}: one by one") == at({"tagmatch, a call each", "CLCB, CPU"}, {4000, 8000})
        assert found.places(f"{title}: throughput") == at(LOCATED - {"tagmatch, a call each"}, {4000, 8000})
    assert list(found.limits.values()) == 8 * [2000]
    assert found.compared("brute force") == dict.fromkeys(LOCATED, 4)
    assert found.compared(WHOLE) == dict.fromkeys(LOCATED - {WHOLE}, 4)
    assert {"CLCB", "tagmatch, contents and areas, GPU"} <= found.unavailable.keys()


def test_table2(tmp_path: Path) -> None:
    found = found_in(tmp_path, *of("table2"))
    places = {published.WITHOUT_LOCATION, published.WITH_LOCATION}
    both = at(("tagmatch, end to end", "tagmatch, contents and areas", "SFF", "BE-Tree"), places)
    with_areas = at(("CLCB, CPU", "tagmatch, a call each"), {published.WITH_LOCATION})
    assert found.places("CLCB Table 2") == both | with_areas
    for title, rows in (
        ("", published.TABLE2), (": speed-ups", published.TABLE2_TIMES),
        (": times as long with areas", published.TABLE2_SLOWER), (": update", published.TABLE2_UPDATE),
    ):  # fmt: skip
        assert found.published(f"CLCB Table 2{title}") == facts(rows)
    assert found.places("CLCB Table 2: update").keys() == {"CLCB, CPU", "tagmatch, clients, end to end", "SFF"}
    for way in ("without areas", "areas as constraints"):
        assert found.compared("brute force", f"CLCB Table 2, {way}").keys() >= {"SFF", "BE-Tree"}


def test_figures(tmp_path: Path) -> None:
    found = found_in(tmp_path, *of(*(f"figure{number}" for number in (3, 4, 5, 6, 7))))
    names = {"R*-tree", "tagmatch, areas", "CLCB, CPU", "tagmatch, end to end", "tagmatch, contents and areas"}
    movers = {"tagmatch, clients", "tagmatch, clients, end to end", "CLCB, CPU", "R*-tree"}
    stored = {"tagmatch, contents and areas", "tagmatch, end to end, with the stored rows", "CLCB, CPU"}
    sizes, phases = {3, 30, 300}, at(["tagmatch, contents and areas"], {"contents", "areas", "keys"})
    due = {
        **{f"Figure 3, uniform, {percent} %": at(names, sizes) for percent in ("0.001", "0.01", "0.1", "1")},
        **{f"Figure 4, Zipf, {percent} %": at(names, sizes) for percent in ("0.001", "0.01", "0.1", "1")},
        **dict.fromkeys(("Figure 5 (a), uniform", "Figure 5 (b), Zipf"), at(movers, sizes)),
        **dict.fromkeys(("Figure 6 (a)", "Figure 6 (b), content selects all"), phases),
        "Figure 7: memory": at(stored, sizes),
    }
    assert {title: found.places(f"CLCB {title}") for title in due} == due
    for number in (3, 4):
        title = f"CLCB Figure {number}: speed-ups over an R*-tree"
        assert found.places(title) == at(
            {f"{name} against R*-tree" for name in names - {"R*-tree"}}, published.COVERAGES
        )
        assert found.published(title) == facts(published.TIMES[number])
    assert found.published("CLCB Figure 5 (a), uniform") == facts(published.FIGURE5)
    assert found.published("CLCB Figure 7: subscriptions in 1 GB") == facts(published.FIGURE7_AT_LEAST)


def test_live_exact_and_cities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_live, "_LARGE", 6000)
    found = found_in(tmp_path, *of("live", "exact", "cities"))
    assert found.places("moves and messages at once") == at({"moves", "messages"}, {"alone", "together"})
    for name in ("areas", "clients", "end to end"):
        what = f"30,000 areas and positions, tagmatch, {name}"
        assert found.value(f"{what}: wrong answers") == 0
        assert found.value(f"{what}: inside") > 1000
    for when in ("before", "after"):
        assert found.compared("brute force", f"live, {when} moves")
    near = "alerts near cities, 400 of them"
    assert found.places(near) == at(LOCATED - {"CLCB, CPU"} | ALERTS.keys(), {"cities"})
    assert sum(row["keys"] for row in found.answers if "cities" in row["where"]) > 100


WRONG = {
    "tagmatch, areas": (FixedCircles, "more"),
    "R*-tree": (RStarTree, "less"),
    "tagmatch, clients": (ClientCircles, ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_system_of_areas_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One that gives a circle too many to the first point that has one, or one too few; or that moves none."""
    system: Any
    system, fault = WRONG[name]
    right = system.stab

    def wrong(self: Any, x: Any, y: Any) -> Circles:
        found = right(self, x, y)
        if not len(found.ids):
            return found
        point = int(np.searchsorted(found.offsets, 1)) - 1
        offsets, place = found.offsets.copy(), int(found.offsets[point])
        offsets[point + 1 :] += 1 if fault == "more" else -1
        return Circles(offsets, np.insert(found.ids, place, 2**31) if fault == "more" else np.delete(found.ids, place))

    monkeypatch.setattr(system, *(("stab", wrong) if fault else ("move", lambda *_: None)))
    monkeypatch.setattr(location_spatial, "COVERAGES", (1e-3,))
    done = run("location", tmp_path, *SMALL, *of("spatial", skip=CIRCLES.keys() - {name}))
    assert isinstance(done.exception, TagMatchError)
    assert f"{'' if fault else 'moved, '}beside brute force: {name} gave" in str(done.exception)
    rows = [row for row in Found(tmp_path, "location").answers if row["where"].endswith("brute force")]
    for what, its in (("wrong", "more"), ("missing", "less")):
        assert not fault or (sum(row[what] for row in rows) > 0) == (fault == its)


@pytest.mark.parametrize("way", ["_fixed", "_of_clients"])
def test_one_wrong_pair_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    right = getattr(location_exact, way)

    def wrong(some: Any) -> Any:
        given = right(some)
        given[np.argmax(np.abs(great_circle(*some[:2], *some[3:]) - some.metres))] ^= True
        return given

    monkeypatch.setattr(location_exact, way, wrong)
    done = run("location", tmp_path, *SMALL, *of("exact"))
    assert isinstance(done.exception, TagMatchError)
    assert "wrong answers" in str(done.exception)
