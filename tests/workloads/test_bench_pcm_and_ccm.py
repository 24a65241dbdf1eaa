"""The commands `tagmatch-bench pcm` and `ccm`: what they measure and compare, not how fast anything is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner, Result

from tagmatch.model.errors import TagMatchError
from tagmatch.workloads.bench.figures import ccm as ccm_figures
from tagmatch.workloads.bench.figures import ccm_scenarios, pcm_throughput, published_content
from tagmatch.workloads.bench.figures import pcm as pcm_figures
from tagmatch.workloads.bench.figures.content_beside import BEST_PATH
from tagmatch.workloads.bench.figures.content_scenarios import Figure, Paper, figures, of_paper
from tagmatch.workloads.bench.harness.content_latency import ALL, OCM_CALLED, OURS, OURS_ON_GPU
from tagmatch.workloads.bench.harness.results import Row
from tagmatch.workloads.commands import bench_ccm, bench_pcm
from tagmatch.workloads.commands.bench import app
from tagmatch.workloads.content import SCENARIOS
from tagmatch.workloads.systems.catalogue import CONTENT_ONE_BY_ONE, ENCODED
from tagmatch.workloads.systems.ocm import Ocm
from tagmatch.workloads.systems.sff import Sff
from tagmatch.workloads.systems.tagmatch_content import TagmatchContent, TagmatchOneByOne
from tagmatch.workloads.systems.tagmatch_encoded import TagmatchEncoded

pytestmark = pytest.mark.slow

ON_A_DEVICE = {"CCM", "CCM, 2011", OURS_ON_GPU}
SYSTEMS = set(ALL) - ON_A_DEVICE
#: Threads that share one message's tables spin, for long on a busy machine
SLOW = ("--skip", "OCM, sharing tables")


def run(command: str, folder: Path, *more: str) -> Result:
    options = ["--allow-changes", "--constraints", "400", "--events", "40", "--threads", "2", "--rounds", "2"]
    options += ["--seconds", "0.002", "--output", str(folder), *more]
    return CliRunner().invoke(app, [command, *options])


def measured(command: str, folder: Path, *more: str) -> dict[str, Any]:
    done = run(command, folder, *more)
    assert done.exit_code == 0, done.exception
    found: dict[str, Any] = json.loads((folder / f"{command}.json").read_text())
    assert found["answers"]
    assert all(row["missing"] == row["wrong"] == 0 for row in found["answers"])
    assert (folder / f"{command}.png").read_bytes().startswith(b"\x89PNG")
    return found


def places(found: dict[str, Any], title: str) -> dict[str, set[Any]]:
    """The places at which each system is in a panel."""
    panel = next(panel for panel in found["panels"] if panel["title"] == title)
    systems: dict[str, set[Any]] = {}
    for value in panel["values"]:
        assert value["value"] > 0
        systems.setdefault(value["system"], set()).add(value["x"])
    return systems


def published(found: dict[str, Any], title: str) -> list[tuple[str, Any, float]]:
    panel = next(panel for panel in found["panels"] if panel["title"] == title)
    return [(value["system"], value["x"], value["value"]) for value in panel["published"]]


def facts(rows: list[Row]) -> list[tuple[str, Any, float]]:
    return [(row.what, row.x, row.value) for row in rows]


def in_all(systems: set[str], where: set[Any]) -> dict[str, set[Any]]:
    return dict.fromkeys(systems, where)


# -- PCM ---------------------------------------------------------------------------------------------------------------

PCM_PAIRS = {
    "OCM against SFF", "OCM against BE-Tree", "OCM, sharing tables against SFF", "OCM, sharing tables against BE-Tree",
    *(f"{own} against {other}" for own in (OURS, *ENCODED) for other in ("SFF", "BE-Tree")),
}  # fmt: skip
PCM_PLACES: dict[str, set[Any]] = {
    "PCM Table 2": {"default"},
    "PCM Figure 6": {1, 3, 5, 7, 9},
    "PCM Figure 7": {1, 2, 3, 5, 7, 9},
    "PCM Figure 8": {1, 10, 100},
    "PCM Figure 9": {10, 30, 100},
    "scenarios that match much": {"10 names", "dense"},
}


def test_pcm(tmp_path: Path) -> None:
    """Each system at each place, and what the paper prints beside it."""
    found = measured("pcm", tmp_path, "--call", "1", "--call", "16", "--call", "64")
    for title, where in PCM_PLACES.items():
        assert places(found, title) == in_all(SYSTEMS, where)
        assert places(found, f"{title}: speed-ups") == in_all(PCM_PAIRS, where)
    assert published(found, "PCM Table 2") == facts(published_content.PCM_TABLE2)
    assert published(found, "PCM Table 2: speed-ups") == facts(published_content.PCM_TABLE2_TIMES)
    for number, rows in published_content.PCM_TIMES.items():
        assert published(found, f"PCM Figure {number}: speed-ups") == facts(rows)
    of_many = {*pcm_throughput.PUBLISHED_SYSTEMS, pcm_throughput.ONE_THREAD, pcm_throughput.ALL_THREADS}
    of_many -= {"CCM, one at a time", "CCM, several at once"}
    assert places(found, "PCM §4.2: throughput") == in_all(of_many, {"default"})
    assert published(found, "PCM §4.2: throughput") == facts(published_content.PCM_THROUGHPUT)
    on_devices = {'tagmatch, device="cpu"', 'tagmatch, device="auto"'}
    assert places(found, "PCM §4.3: CPU or GPU, by the events of a call") == in_all(on_devices, {1, 16, 64})
    assert len(found["panels"]) == 2 * len(PCM_PLACES) + 2
    assert {*ON_A_DEVICE, 'tagmatch, device="cuda"'} <= found["unavailable"].keys()
    compared_with_brute_force(found, 1 + 5 + 6 + 3 + 3 + 2)
    ours_has_targets(found, 1 + 5 + 6 + 3 + 3 + 2)
    text = (tmp_path / "pcm.md").read_text()
    assert "| paper: CCM against SFF | 66.0 |" in text
    assert "0 wrong, 0 missing" in text


def compared_with_brute_force(found: dict[str, Any], scenarios: int) -> None:
    compared = Counter(row["system"] for row in found["answers"] if row["where"].endswith(", beside brute force"))
    assert {system: compared[system] for system in SYSTEMS - {"OCM", "SFF", "BE-Tree", "OCM, sharing tables"}} == {
        OCM_CALLED: scenarios,
        **dict.fromkeys([OURS, *ENCODED], scenarios),
    }
    assert all(compared[system] >= scenarios for system in SYSTEMS)
    assert sum(row["keys"] for row in found["answers"]) > 100


def ours_has_targets(found: dict[str, Any], scenarios: int) -> None:
    """To be ahead of each published system, in each scenario, also where ours gets events encoded."""
    published = dict.fromkeys(CONTENT_ONE_BY_ONE.keys() - ON_A_DEVICE, scenarios)
    for own, without_target in ((OURS, {OCM_CALLED: scenarios}), (BEST_PATH, {})):
        lines = [line for line in found["lines"] if f": {own} against " in line["what"]]
        others = Counter(line["what"].partition(f": {own} against ")[2] for line in lines)
        assert others == published | without_target
        limits = Counter(
            line["what"].partition(f": {own} against ")[2]
            for line in lines
            if line["target"] and line["target"]["limit"] == 1
        )
        assert limits == published
        assert len({line["what"] for line in lines}) == len(lines)


def test_only_some_parts_of_pcm(tmp_path: Path) -> None:
    found = measured("pcm", tmp_path, "--part", "figure9", "--part", "table2", *SLOW)
    titles = ["PCM Table 2", "PCM Table 2: speed-ups", "PCM Figure 9", "PCM Figure 9: speed-ups"]
    assert [panel["title"] for panel in found["panels"]] == titles
    assert found["unavailable"]["OCM, sharing tables"] == "skipped"
    assert found["parameters"]["queries"] == 40


def test_measured_speed_ups_are_those_of_the_medians(tmp_path: Path) -> None:
    found = measured("pcm", tmp_path, "--part", "table2", *SLOW)
    micros, times = found["panels"][:2]
    of = {value["system"]: value["samples"] for value in micros["values"]}
    for value in times["values"]:
        system, other = value["system"].split(" against ")
        assert value["samples"] == pytest.approx(np.array(of[other]) / np.array(of[system]))


def test_the_best_path_is_the_sooner_one(tmp_path: Path) -> None:
    """In each scenario by itself, and as the medians say."""
    found = measured("pcm", tmp_path, "--part", "figure9", *SLOW)
    micros = {(value["system"], value["x"]): value for value in found["panels"][0]["values"]}
    lines = {line["what"]: line["samples"] for line in found["lines"]}
    for place in (10, 30, 100):
        best = min((micros[path, place] for path in ENCODED), key=lambda value: value["value"])
        for other in ("SFF", "OCM", "BE-Tree"):
            ratios = np.array(micros[other, place]["samples"]) / np.array(best["samples"])
            assert lines[f"PCM Figure 9, {place} interfaces: {BEST_PATH} against {other}"] == pytest.approx(ratios)


WRONG = {
    "SFF": ("pcm", "much", Sff),
    "OCM": ("ccm", "figure9", Ocm),
    "tagmatch": ("ccm", "figure6", TagmatchOneByOne),
    **dict.fromkeys(ENCODED, ("pcm", "figure8", TagmatchEncoded)),
    "tagmatch, all threads": ("pcm", "throughput", TagmatchContent),
    'tagmatch, device="cpu"': ("pcm", "throughput", TagmatchContent),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_system_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One that gives a key too many to the first message."""
    command, part, system = WRONG[name]
    right = system.match_many

    def wrong(self: Any, messages: Any, *, unique: bool = False) -> Any:
        given = right(self, messages, unique=unique)
        lists = given.to_pylist() if isinstance(given, pa.Array) else given
        return pa.array([[*lists[0], 2**63], *lists[1:]], pa.list_(pa.uint64()))

    monkeypatch.setattr(system, "match_many", wrong)
    calls = ("--call", "1", "--call", "40") if command == "pcm" else ()
    done = run(command, tmp_path, "--part", part, *calls, *SLOW)
    assert isinstance(done.exception, TagMatchError)
    assert f"{name} gave" in str(done.exception)
    answers = json.loads((tmp_path / f"{command}.json").read_text())["answers"]
    assert sum(row["wrong"] for row in answers if row["system"] == name) > 0


# -- CCM ---------------------------------------------------------------------------------------------------------------

CCM_PLACES: dict[str, set[Any]] = {
    "CCM Table 2": {"default", "Zipf", "10 names", "dense"},
    "CCM Figure 6": {1, 3, 5, 7, 9},
    "CCM Figure 7": {1, 2, 3, 4, 5, 7, 9},
    "CCM Figure 8": {1, 4, 10, 40, 100},
    "CCM Figure 9": {10, 30, 100},
    "CCM Figure 10": {10, 30, 100, 300, 1000},
    "CCM Figure 11": {0, 25, 50, 75, 100},
}


CCM_PAIRS = {f"{system} against SFF" for system in ("OCM", OURS, *ENCODED)}


def test_ccm(tmp_path: Path) -> None:
    """Each system at each place, and what the paper prints beside it."""
    found = measured("ccm", tmp_path)
    for title, where in CCM_PLACES.items():
        assert places(found, title) == in_all(SYSTEMS, where)
        assert places(found, f"{title}: speed-ups") == in_all(CCM_PAIRS, where)
    for title, rows in {
        "CCM Table 2": published_content.CCM_TABLE2,
        "CCM Table 2: speed-ups": published_content.CCM_TABLE2_TIMES,
        "CCM Table 2: size": published_content.CCM_TABLE2_SIZE,
        "CCM Table 2: deployment": published_content.CCM_TABLE2_BUILD,
        **{f"CCM Figure {number}: speed-ups": rows for number, rows in published_content.CCM_TIMES.items()},
        "CCM Figure 11: interfaces selected": published_content.CCM_FIGURE11_SELECTED,
    }.items():
        assert published(found, title) == facts(rows)
    for title in ("CCM Table 2: size", "CCM Table 2: deployment"):
        assert places(found, title) == in_all(SYSTEMS - {OCM_CALLED}, {"default"})
    assert len(found["panels"]) == 2 * len(CCM_PLACES) + 3
    assert {"Memset", "Kernel", *ON_A_DEVICE} <= found["unavailable"].keys()
    compared_with_brute_force(found, sum(map(len, CCM_PLACES.values())))
    ours_has_targets(found, sum(map(len, CCM_PLACES.values())))


def test_only_what_a_device_does(tmp_path: Path) -> None:
    """Nothing is left to draw without one."""
    done = run("ccm", tmp_path, "--part", "figure5")
    assert done.exit_code == 0, done.exception
    found = json.loads((tmp_path / "ccm.json").read_text())
    assert found["panels"] == []
    assert found["unavailable"].keys() == {"Memset", "Kernel"}


# -- both --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["pcm", "ccm"])
def test_bad_parameters(tmp_path: Path, command: str) -> None:
    for wrong in (["--constraints", "1"], ["--events", "0"], ["--part", "figure4"], ["--skip", "Siena"]):
        done = run(command, tmp_path, *wrong)
        assert done.exit_code == 2
        assert wrong[0] in done.stderr


def test_parts_of_the_commands() -> None:
    assert tuple(bench_pcm.Part) == pcm_figures.PARTS
    assert tuple(bench_ccm.Part) == ccm_figures.PARTS


def test_what_is_published_is_measured_under_the_same_name() -> None:
    """But for what was never published, and what is compared with within a system."""
    rows = [*published_content.PCM_TABLE2, *published_content.CCM_TABLE2]
    assert {row.what for row in rows} - set(ALL) == {"BE-Tree 1.3", "CCM, 2011, ordered"}
    for pairs, times in (
        (pcm_figures._PAIRS, [published_content.PCM_TABLE2_TIMES, *published_content.PCM_TIMES.values()]),
        (ccm_figures._PAIRS, [published_content.CCM_TABLE2_TIMES, *published_content.CCM_TIMES.values()]),
    ):
        named = {published_content.against(*pair) for pair in pairs}
        assert {row.what for some in times for row in some} - named <= {
            "CCM against BE-Tree 1.3",
            "OCM against BE-Tree 1.3",
        }


def test_published_speed_ups_are_those_of_published_times() -> None:
    micros = {row.what: row.value for row in published_content.PCM_TABLE2}
    for row in published_content.PCM_TABLE2_TIMES:
        system, other = row.what.split(" against ")
        assert row.value == pytest.approx(micros[other] / micros[system], rel=0.01)
    of_ccm = {(row.what, row.x): row.value for row in published_content.CCM_TABLE2}
    (row,) = published_content.CCM_TABLE2_TIMES
    assert row.value == pytest.approx(of_ccm["SFF", "default"] / of_ccm["CCM, 2011", "default"], rel=0.01)


def test_figures_of_ccm_are_those_of_the_paper() -> None:
    """From a million constraints in the default scenario."""
    found = {figure.number: figure for figure in ccm_scenarios.figures(1_000_000)}
    assert list(found) == [6, 7, 8, 9, 10, 11]
    assert {figure.paper for figure in found.values()} == {"CCM"}
    for constraints, changes in found[7].places.items():
        assert changes["min_constraints"] == changes["max_constraints"] == constraints
        assert changes["min_filters"] == changes["max_filters"] == 25_000, "the number of filters is fixed"
    assert (min(found[8].places), max(found[8].places)) == (100, 250_000)
    assert {changes["min_filters"] for changes in found[8].places.values()} == set(found[8].places)
    assert found[11].places == {100 * (1 - changes["strings"]): changes for changes in found[11].places.values()}
    assert {number for number, figure in found.items() if figure.log_x} == {8, 9, 10}
    assert {figure.number for figure in figures(1_000_000) if figure.log_x} == {8, 9}


def test_every_published_place_is_measured() -> None:
    for some, times in (
        (figures(1_000_000), published_content.PCM_TIMES),
        (ccm_scenarios.figures(1_000_000), published_content.CCM_TIMES),
    ):
        of: dict[int, Figure] = {figure.number: figure for figure in some}
        assert of.keys() == times.keys()
        for number, rows in times.items():
            assert {row.x for row in rows} <= of[number].places.keys()


def test_half_of_the_constraints_have_the_most_frequent_name() -> None:
    """CCM §5, Distribution of Names: 500,000 of a million."""
    constraints = ccm_scenarios.table2(40_000, 10, 1)["Zipf"].subscriptions["constraints"].combine_chunks().flatten()
    of_first = pc.sum(pc.equal(pc.struct_field(constraints, "attr"), "a0")).as_py()
    assert of_first / len(constraints) == pytest.approx(0.5, abs=0.02)


def test_default_scenarios_are_those_of_the_generator() -> None:
    assert {paper.lower() for paper in get_args(Paper)} < SCENARIOS.keys()
    for paper in get_args(Paper):
        assert of_paper(paper, 40_000, 10, 1).constraints == pytest.approx(40_000, rel=0.1)
