"""The command `tagmatch-bench content`: what it measures and compares, not how fast anything is."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.content import holds, matching_keys
from typer.testing import CliRunner, Result

from tagmatch.model.errors import TagMatchError
from tagmatch.workloads.bench.figures import content as figure
from tagmatch.workloads.bench.figures.content_scenarios import figures, pcm, real
from tagmatch.workloads.bench.harness.content import Scenario
from tagmatch.workloads.bench.harness.content_reference import satisfied_rows
from tagmatch.workloads.bench.harness.results import Target
from tagmatch.workloads.commands.bench import app
from tagmatch.workloads.content import Content, ContentOptions
from tagmatch.workloads.systems.be_tree import BeTree
from tagmatch.workloads.systems.matcher import UnavailableError
from tagmatch.workloads.systems.ocm import Ocm
from tagmatch.workloads.systems.sff import Sff
from tagmatch.workloads.systems.tagmatch_content import TagmatchContent, TagmatchMatching

pytestmark = pytest.mark.slow

SYSTEMS = {"tagmatch, end to end", "tagmatch, matching alone", "OCM", "SFF", "BE-Tree", "H and C phases"}


def run(folder: Path, *more: str) -> Result:
    options = ["--allow-changes", "--constraints", "400", "--constraints", "4000", "--figures", "400"]
    options += ["--filters", "30", "--filters", "300", "--real", "500", "--mixed", "2000", "--messages", "1500"]
    options += ["--rounds", "2", "--seconds", "0.002", "--output", str(folder), *more]
    return CliRunner().invoke(app, ["content", *options])


def small_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets for sizes as small as those measured here."""
    monkeypatch.setattr(figure, "_AGAINST_OCM", {400: Target(5), 4000: Target(25)})
    monkeypatch.setattr(figure, "_AGAINST_SFF", {4000: Target(45)})
    monkeypatch.setattr(figure, "_IN_FIGURES", {400: Target(6)})
    monkeypatch.setattr(figure, "_DENSE", {30: Target(12, at_most=True), 300: Target(90, at_most=True)})
    monkeypatch.setattr(figure, "_LARGE", 4000)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_targets(monkeypatch)
    done = run(tmp_path)
    assert done.exit_code == 0, done.exception
    found = json.loads((tmp_path / "content.json").read_text())
    assert found["parameters"]["constraints"] == [400, 4000]
    places = {panel["title"]: {value["x"] for value in panel["values"]} for panel in found["panels"]}
    assert places == {
        "PCM, default scenario": {400, 4000},
        "PCM Figure 6": {1, 3, 5, 7, 9},
        "PCM Figure 7": {1, 2, 3, 5, 7, 9},
        "PCM Figure 8": {1, 10, 100},
        "PCM Figure 9": {10, 30, 100},
        "dense: 20 attributes, 10 intervals": {30, 300},
        "real data": {"Debian packages", "cities"},
        "tags and constraints": {"end to end", "matching alone"},
    }
    for panel in found["panels"]:
        systems = Counter(value["system"] for value in panel["values"])
        mixed = panel["title"] == "tags and constraints"
        assert systems.keys() == ({"tags alone", "constraints alone", "tags and constraints"} if mixed else SYSTEMS)
        assert set(systems.values()) == {len(places[panel["title"]])}, "every system is measured everywhere"
        assert all(value["value"] > 0 for value in panel["values"])
    limits = {line["what"]: line["target"]["limit"] for line in found["lines"] if line["target"]}
    of_figures = {what: limit for what, limit in limits.items() if what.startswith("PCM Figure")}
    assert len(of_figures) == 5 + 6 + 3 + 3
    assert set(of_figures.values()) == {6}
    assert {what: limit for what, limit in limits.items() if what not in of_figures} == {
        "PCM, 400 constraints: matching alone against OCM": 5,
        "PCM, 4,000 constraints: matching alone against OCM": 25,
        "PCM, 4,000 constraints: matching alone against SFF": 45,
        "PCM, 4,000 constraints: memory": 30,
        "PCM, 4,000 constraints: build, end to end": 1.5,
        "PCM, 4,000 constraints: build, index alone": 1.5,
        "PCM, 4,000 constraints: end to end, two threads against one": 1.8,
        "dense, 30 filters: matching alone": 12,
        "dense, 300 filters: matching alone": 90,
        "dense, 30 filters: end to end, two threads against one": 1.8,
        "tags and constraints: matching alone, time of the slower one alone": 1,
    }
    assert all(row["missing"] == row["wrong"] == 0 for row in found["answers"])
    assert "tagmatch, end to end, GPU" in found["unavailable"]
    assert (tmp_path / "content.png").read_bytes().startswith(b"\x89PNG")
    assert "≥ 25" in done.stdout


def test_every_system_is_compared_everywhere(tmp_path: Path) -> None:
    """With brute force and with OCM; and most answers have keys."""
    assert run(tmp_path).exit_code == 0
    answers = json.loads((tmp_path / "content.json").read_text())["answers"]
    compared = Counter((row["where"].partition(", beside ")[2], row["system"]) for row in answers)
    scenarios = 2 + 17 + 2 + 2
    assert compared == {
        **{("brute force", system): scenarios for system in SYSTEMS},
        **{("OCM", system): scenarios for system in SYSTEMS - {"OCM"}},
        **{("", what): 1 for what in ("tags alone", "constraints alone", "tags and constraints")},
    }
    assert all(row["queries"] >= 50 for row in answers)
    assert all(row["keys"] >= row["queries"] for row in answers if not row["where"].startswith(("PCM", "dense")))
    assert sum(row["keys"] for row in answers if row["where"].startswith("PCM")) > 1000


WRONG = {
    "OCM": (Ocm, "real"),
    "SFF": (Sff, "real"),
    "BE-Tree": (BeTree, "real"),
    "tagmatch, end to end": (TagmatchContent, "real"),
    "tagmatch, matching alone": (TagmatchMatching, "figures"),
    "tags and constraints": (TagmatchContent, "mixed"),
}


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_system_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, more: bool) -> None:
    """One that gives a key too many to one message, or one too few."""
    system, part = WRONG[name]
    right = system.match_many

    def wrong(self: Any, messages: Any, *, unique: bool = False) -> pa.ListArray:
        answers = right(self, messages, unique=unique).to_pylist()
        some = next((keys for keys in answers if keys), answers[0])
        if more:
            some.append(2**63)
        elif some:
            some.pop()
        return pa.array(answers, pa.list_(pa.uint64()))

    monkeypatch.setattr(system, "match_many", wrong)
    done = run(tmp_path, "--part", part)
    assert isinstance(done.exception, TagMatchError)
    assert f"{name} gave" in str(done.exception)
    found = json.loads((tmp_path / "content.json").read_text())["answers"]
    assert sum(row["wrong" if more else "missing"] for row in found if row["system"] == name) > 0
    assert sum(row["missing" if more else "wrong"] for row in found if row["system"] == name) == 0


def test_only_some_parts(tmp_path: Path) -> None:
    assert run(tmp_path, "--part", "dense", "--part", "real").exit_code == 0
    found = json.loads((tmp_path / "content.json").read_text())
    assert [panel["title"] for panel in found["panels"]] == ["dense: 20 attributes, 10 intervals", "real data"]


def test_bad_parameters(tmp_path: Path) -> None:
    for wrong in (["--constraints", "1"], ["--filters", "0"], ["--part", "tags"], ["--cities", str(tmp_path / "no")]):
        done = run(tmp_path, *wrong)
        assert done.exit_code == 2
        assert wrong[0] in done.stderr


# -- what it compares with ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"strings": 0.5, "values": 20},
        {"strings": 1.0, "min_constraints": 1, "max_constraints": 2},
        {"between": 50, "names": 6, "max_constraints": 4},
        {"min_attributes": 0},
    ],
)
def test_brute_force(changes: dict[str, Any]) -> None:
    content = Content(ContentOptions(interfaces=300, min_filters=1, max_filters=1, **({"names": 8} | changes)))
    stored, sent = content.subscriptions(0, 300), content.messages(0, 80)
    right = matching_keys(stored.to_pylist(), sent.to_pylist())
    assert [rows.tolist() for rows in satisfied_rows(stored, sent)] == right
    assert sum(map(len, right)) > 40


def test_figures_are_those_of_the_paper() -> None:
    """From a million constraints in the default scenario."""
    found = {figure.number: figure.places for figure in figures(1_000_000)}
    assert found.keys() == {6, 7, 8, 9}
    for attributes, changes in found[6].items():
        assert changes == {"min_attributes": attributes, "max_attributes": attributes}
    for constraints, changes in found[7].items():
        assert changes["min_constraints"] == changes["max_constraints"] == constraints
        assert 10 * constraints * changes["min_filters"] == pytest.approx(1_000_000, rel=0.001), "their sum is fixed"
    assert max(found[8]) == 250_000
    assert {changes["min_filters"] for changes in found[8].values()} == set(found[8])
    assert found[9] == {count: {"interfaces": count} for count in (10, 30, 100)}


def test_size_of_the_default_scenario() -> None:
    assert pcm(40_000, 10, 1).constraints == pytest.approx(40_000, rel=0.1)


@pytest.fixture(scope="module")
def of_real_data() -> dict[str, Scenario]:
    return {scenario.name: scenario for scenario in real(300, 60, 7, None)}


@pytest.mark.parametrize("name", ["cities", "Debian packages"])
def test_real_data_in_numbers_means_the_same(of_real_data: dict[str, Scenario], name: str) -> None:
    """Beside plain Python on texts and lists of values."""
    scenario = of_real_data[name]
    stored, sent = scenario.stored.to_pylist(), scenario.asked.to_pylist()
    assert {row["op"] for each in stored for row in each["constraints"]} >= {"=", "prefix"}
    assert all(len(each["constraints"]) >= 1 for each in stored)
    right = [
        [each["key"] for each in stored if all(any_holds(constraint, message) for constraint in each["constraints"])]
        for message in sent
    ]
    assert [rows.tolist() for rows in satisfied_rows(scenario.subscriptions, scenario.messages)] == right
    assert sum(map(len, right)) > 50


def any_holds(constraint: dict[str, Any], message: dict[str, Any]) -> bool:
    given = message.get(constraint["attr"])
    values = given if isinstance(given, list) else [given]
    return any(holds(constraint, {constraint["attr"]: value}) for value in values)


def test_cities_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cities.parquet"
    rows = {"name": ["Rome", "Oslo"], "country": ["IT", "NO"], "timezone": ["Europe/Rome", "Europe/Oslo"]}
    pq.write_table(pa.table(rows | {"population": [5, 6], "lat": [41.9, 59.9], "lon": [12.5, 10.8]}), path)
    scenario = next(each for each in real(20, 30, 1, path) if each.name == "cities")
    assert set(scenario.asked["name"].to_pylist()) == {"Rome", "Oslo"}
    assert pc.list_value_length(scenario.stored["constraints"]).to_pylist()
    with pytest.raises(UnavailableError, match="there is no "):
        list(real(20, 30, 1, tmp_path / "nothing"))


def test_only_the_first_encoded_messages_can_be_had() -> None:
    scenario = pcm(400, 700, 1)
    whole = TagmatchContent(scenario.stored)
    alone = TagmatchMatching(whole)
    prepared = alone.prepare(scenario.asked)
    assert len(prepared) == 700
    with pytest.raises(IndexError, match="only the first"):
        prepared[3:]
    for count in (1, 511, 512, 513, 700):
        given = alone.match_many(prepared[:count], unique=True).to_pylist()
        assert given == whole.match_many(scenario.asked[:count], unique=True).to_pylist()
        assert len(given) == count
    whole.close()
