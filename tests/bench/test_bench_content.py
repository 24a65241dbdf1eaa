"""Matchers of constraints on attributes, against brute force, and in `tagmatch-bench content`, `pcm` and `ccm`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bench import Found, at, facts, is_told, measured, run, spoil
from support.systems import KINDS, check, matching_keys, subscriptions, tables

from tagmatch_bench.figures import content as content_figure
from tagmatch_bench.figures import location_spatial
from tagmatch_bench.figures import pcm as pcm_figure
from tagmatch_bench.figures import published as papers
from tagmatch_bench.figures.pcm import BEST_PATH
from tagmatch_bench.harness.content import ALL as TIMED
from tagmatch_bench.harness.content import OCM_CALLED, OURS, OURS_ON_GPU
from tagmatch_bench.harness.results import Target
from tagmatch_bench.systems.catalogue import (
    CONTENT,
    CONTENT_ONE_BY_ONE,
    CONTENT_PHASES,
    CONTENT_SHARED,
    ENCODED,
    System,
)
from tagmatch_bench.systems.ocm import Ocm
from tagmatch_bench.systems.sff import Sff
from tagmatch_bench.systems.tagmatch_content import TagmatchContent, TagmatchMatching, TagmatchOneByOne
from tagmatch_bench.systems.tagmatch_encoded import TagmatchEncoded
from tagmatch_bench.workloads.content import SCENARIOS, Content, ContentOptions

#: Also with as many nodes as there can be
SYSTEMS = {**CONTENT, **CONTENT_PHASES, **CONTENT_SHARED, "BE-Tree, to the end": System("be_tree:BeTree", {"leaf": 1})}
#: And our own, in each path
ALL = {**SYSTEMS, **ENCODED}


@pytest.fixture(params=ALL, scope="module")
def system(request: pytest.FixtureRequest) -> System:
    return ALL[request.param]


@pytest.fixture(params=SYSTEMS, scope="module")
def compared(request: pytest.FixtureRequest) -> System:
    return SYSTEMS[request.param]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), threads=st.sampled_from([1, 3]))
def test_constraints(system: System, kind: str, data: st.DataObject, threads: int) -> None:
    check(system, *data.draw(KINDS[kind]), threads)


OF_SCENARIOS: dict[str, tuple[ContentOptions, int]] = {
    "texts": (ContentOptions(interfaces=10, min_filters=60, max_filters=60, names=8, strings=0.5, values=20), 100),
    "300 interfaces": (ContentOptions(interfaces=300, min_filters=2, max_filters=2, names=8, between=25), 100),
    "dense": (replace(SCENARIOS["dense"], interfaces=600, values=1000, width=0.9), 1000),
}


@pytest.mark.parametrize("name", OF_SCENARIOS)
def test_generated(system: System, name: str) -> None:
    """Few names, so that many filters match; slices and chunks."""
    options, least = OF_SCENARIOS[name]
    content = Content(options)
    whole = content.subscriptions(0, content.filters)
    half = len(whole) // 2
    stored = pa.concat_tables([whole.slice(1, half - 1), whole.slice(half)])
    assert check(system, stored, content.messages(0, 60).slice(3), threads=2) > least


def test_nothing_stored_or_sent(system: System) -> None:
    some = [{"key": 1, "constraints": []}], [{"x": 1}, {}]
    check(system, *tables([], some[1], pa.int64()))
    check(system, *tables(some[0], [], pa.int64()))
    check(system, tables(*some, pa.int64())[0], pa.table({"other": pa.array([None, 2], pa.int64())}))


@given(workload=KINDS["whole"], parts=st.integers(1, 4))
def test_a_message_in_tasks(workload: tuple[pa.Table, pa.Table], parts: int) -> None:
    """Each filter is in one SubC phase, for any number of them."""
    stored, sent = workload
    matcher: Any = CONTENT_PHASES["H and C phases"](stored, 1)
    prepared = matcher.prepare(sent)
    for row, right in enumerate(matching_keys(stored.to_pylist(), sent.to_pylist())):
        bits = matcher.h_phase(prepared, row)
        found = [matcher.sub_c_phase(bits, part, parts) for part in range(parts)]
        assert sorted(matcher.keys_of(np.concatenate(found)).tolist()) == right


NUMBER = {"attr": "x", "op": "=", "value": 1, "upper": None}
TEXT = {"attr": "t", "op": "=", "text": "a"}
WHOLE_NUMBERS, REAL_NUMBERS = pa.int64(), pa.float64()
REFUSED = [
    (NUMBER | {"op": "prefix"}, REAL_NUMBERS, "operator 'prefix' is not one of =, !=, <, >, between"),
    (NUMBER | {"value": None}, REAL_NUMBERS, "a constraint has no operand"),
    (NUMBER | {"op": "between"}, REAL_NUMBERS, "a constraint has no operand"),
    (NUMBER | {"value": float("nan")}, REAL_NUMBERS, "a constraint has NaN as its operand"),
    (TEXT | {"text": "12345678"}, WHOLE_NUMBERS, "a text of 8 bytes is longer than 7"),
    (TEXT | {"text": "ééé€"}, WHOLE_NUMBERS, "a text of 9 bytes is longer than 7"),
    (TEXT | {"text": "a\0"}, WHOLE_NUMBERS, "a text has a character of code 0"),
    (TEXT | {"op": "<"}, WHOLE_NUMBERS, "operator '<' is not one of =, !=, prefix, contains"),
    (TEXT | {"attr": "x"}, WHOLE_NUMBERS, "attribute 'x' has constraints on numbers and on texts"),
    (TEXT, REAL_NUMBERS, "texts cannot be compared together with numbers of type double"),
]


def test_wrong_constraints(compared: System) -> None:
    for wrong, kind, message in REFUSED:
        asked = [{"key": 1, "constraints": [NUMBER, wrong]}]
        table = tables(asked, [], kind)[0] if wrong["attr"] == "x" and "value" in wrong else subscriptions(asked, kind)
        with pytest.raises(ValueError, match=message):
            compared(table, 1)


def test_messages_of_other_types_are_refused(compared: System) -> None:
    numbers = subscriptions([{"key": 1, "constraints": [NUMBER, TEXT | {"op": "prefix"}]}], WHOLE_NUMBERS)
    reals = tables([{"key": 1, "constraints": [NUMBER]}], [], REAL_NUMBERS)[0]
    for stored, sent, message in (
        (numbers, {"t": [5]}, "attribute 't' of messages is int64; constraints want texts"),
        (numbers, {"x": ["5"]}, "attribute 'x' of messages is string; constraints want numbers"),
        (numbers, {"t": ["12345678"]}, "a text of 8 bytes is longer than 7"),
        (numbers, {"t": ["\0"]}, "a text has a character of code 0"),
        (reals, {"x": [1.0, float("nan")]}, "attribute 'x' of a message is NaN"),
    ):
        with pytest.raises(ValueError, match=message):
            compared(stored, 1).prepare(pa.table(sent))
    matcher: Any = compared(numbers, 1)
    nothing = matcher.prepare(pa.table({"x": pa.nulls(2), "t": pa.nulls(2), "other": ["12345678", "1"]}))
    assert matcher.match_many(nothing).to_pylist() == [[], []]


SHORT = ("--rounds", 2, "--seconds", 0.002)
SMALL = {
    "content": (
        *("--constraints", 400, "--constraints", 4000, "--figures", 400, "--filters", 30, "--filters", 300),
        *("--real", 500, "--mixed", 2000, "--messages", 1500, *SHORT),
    ),
    "pcm": ("--constraints", 400, "--events", 40, "--threads", 2, *SHORT),
}
SMALL["ccm"] = SMALL["pcm"]
#: Threads that share one message's tables spin, for long on a busy machine
SLOW = ("--skip", "OCM, sharing tables")


def part(*names: str) -> list[str]:
    return [word for name in names for word in ("--part", name)]


WRONG = {
    "content: OCM": ("real", Ocm), "content: tagmatch, matching alone": ("figures", TagmatchMatching),
    "content: tags and constraints": ("mixed", TagmatchContent), "pcm: SFF": ("much", Sff),
    "ccm: tagmatch": ("figure6", TagmatchOneByOne), f"pcm: {next(iter(ENCODED))}": ("figure8", TagmatchEncoded),
    'pcm: tagmatch, device="cpu"': ("throughput", TagmatchContent),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_system_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int) -> None:
    """One that gives a key too many to one message, or one too few."""
    (which, system), (command, _, called) = WRONG[name], name.partition(": ")
    # Of 40 events hardly one has a key
    more = command != "content" or (seed + len(called)) % 2 == 0
    spoil(monkeypatch, system, more=more)
    options = () if command == "content" else SLOW
    if command == "pcm":
        options += ("--call", "1", "--call", "40")
    is_told(run(command, tmp_path, *SMALL[command], *part(which), *options), tmp_path, command, called, more=more)


MEASURED = {"tagmatch, end to end", "tagmatch, matching alone", "OCM", "SFF", "BE-Tree", "H and C phases"}


def test_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With targets for sizes as small as those measured here; all are compared with brute force and with OCM."""
    monkeypatch.setattr(content_figure, "_AGAINST_OCM", {400: Target(5), 4000: Target(25)})
    monkeypatch.setattr(content_figure, "_AGAINST_SFF", {4000: Target(45)})
    monkeypatch.setattr(content_figure, "_IN_FIGURES", {400: Target(6)})
    monkeypatch.setattr(content_figure, "_DENSE", {30: Target(12, at_most=True), 300: Target(90, at_most=True)})
    monkeypatch.setattr(content_figure, "_LARGE", 4000)
    found = measured("content", tmp_path, *SMALL["content"], *part("pcm", "figures", "dense", "real", "mixed"))
    assert found.parameters["constraints"] == [400, 4000]
    mixed = ("tags alone", "constraints alone", "tags and constraints")
    assert {title: found.places(title) for title in found.panels} == {
        "PCM, default scenario": at(MEASURED, {400, 4000}), "PCM Figure 6": at(MEASURED, {1, 3, 5, 7, 9}),
        "PCM Figure 7": at(MEASURED, {1, 2, 3, 5, 7, 9}), "PCM Figure 8": at(MEASURED, {1, 10, 100}),
        "PCM Figure 9": at(MEASURED, {10, 30, 100}), "dense: 20 attributes, 10 intervals": at(MEASURED, {30, 300}),
        "real data": at(MEASURED, {"Debian packages", "cities"}),
        "tags and constraints": at(mixed, {"end to end", "matching alone"}),
    }  # fmt: skip
    assert all(value > 0 for title in found.panels for value in found.values(title).values())
    of_figures = [limit for what, limit in found.limits.items() if what.startswith("PCM Figure")]
    assert of_figures == [6] * (5 + 6 + 3 + 3)
    assert len(found.limits) == len(of_figures) + 11
    assert "tagmatch, end to end, GPU" in found.unavailable
    scenarios = 2 + 17 + 2 + 2
    assert found.compared("brute force") == dict.fromkeys(MEASURED, scenarios)
    assert found.compared("OCM") == dict.fromkeys(MEASURED - {"OCM"}, scenarios)
    assert len(found.answers) == (2 * len(MEASURED) - 1) * scenarios + len(mixed)
    assert all(row["queries"] >= 50 for row in found.answers)
    assert all(row["keys"] >= row["queries"] for row in found.answers if not row["where"].startswith(("PCM", "dense")))
    assert sum(row["keys"] for row in found.answers if row["where"].startswith("PCM")) > 1000


def test_areas_of_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location_spatial, "LARGE", 60)
    found = measured("content", tmp_path, "--areas", 60, "--messages", 500, *part("areas"), *SHORT)
    limits = sorted(limit for what, limit in found.limits.items() if what.startswith("60 areas, uniform"))
    # Of each of three coverages, three against the grid, two and moves against a tree, and two of memory
    assert limits == 9 * [1] + 6 * [50] + 6 * [80] + 3 * [500] == sorted(found.limits.values())
    assert all(row["queries"] > 0 for row in found.answers)


ON_A_DEVICE = {"CCM", "CCM, 2011", OURS_ON_GPU}
COMPARED = set(TIMED) - ON_A_DEVICE
PCM_PAIRS = {
    f"{own} against {other}" for own in ("OCM", "OCM, sharing tables", OURS, *ENCODED) for other in ("SFF", "BE-Tree")
}
PCM_PLACES: dict[str, set[Any]] = {
    "PCM Table 2": {"default"}, "PCM Figure 6": {1, 3, 5, 7, 9}, "PCM Figure 7": {1, 2, 3, 5, 7, 9},
    "PCM Figure 8": {1, 10, 100}, "PCM Figure 9": {10, 30, 100}, "scenarios that match much": {"10 names", "dense"},
}  # fmt: skip
CCM_PAIRS = {f"{system} against SFF" for system in ("OCM", OURS, *ENCODED)}
CCM_PLACES: dict[str, set[Any]] = {
    "CCM Table 2": {"default", "Zipf", "10 names", "dense"}, "CCM Figure 6": {1, 3, 5, 7, 9},
    "CCM Figure 7": {1, 2, 3, 4, 5, 7, 9}, "CCM Figure 8": {1, 4, 10, 40, 100}, "CCM Figure 9": {10, 30, 100},
    "CCM Figure 10": {10, 30, 100, 300, 1000}, "CCM Figure 11": {0, 25, 50, 75, 100},
}  # fmt: skip


def is_complete(found: Found, places: dict[str, set[Any]], pairs: set[str], published: dict[str, Any]) -> None:
    """Each system is measured at each place and right, with the paper's values, and ours has targets."""
    for title, where in places.items():
        assert found.places(title) == at(COMPARED, where)
        assert found.places(f"{title}: speed-ups") == at(pairs, where)
        assert all(value > 0 for value in found.values(title).values())
    for title, rows in published.items():
        assert found.published(title) == facts(rows)
    scenarios = sum(map(len, places.values()))
    compared = found.compared("brute force")
    assert {name: compared[name] for name in (OCM_CALLED, OURS, *ENCODED)} == dict.fromkeys(
        (OCM_CALLED, OURS, *ENCODED), scenarios
    )
    assert all(compared[system] >= scenarios for system in COMPARED)
    assert sum(row["keys"] for row in found.answers) > 100
    for own, without_target in ((OURS, {OCM_CALLED}), (BEST_PATH, set())):
        named = [what.partition(f": {own} against ")[2] for what in found.lines if f": {own} against " in what]
        limits = [what for what, limit in found.limits.items() if f": {own} against " in what and limit == 1]
        rivals = CONTENT_ONE_BY_ONE.keys() - ON_A_DEVICE
        assert {other: named.count(other) for other in named} == dict.fromkeys(rivals | without_target, scenarios)
        assert len(limits) == len(rivals) * scenarios


def test_pcm(tmp_path: Path) -> None:
    """Also, speed-ups are those of the medians."""
    found = measured("pcm", tmp_path, *SMALL["pcm"], "--call", 1, "--call", 16, "--call", 64)
    of_many = {*pcm_figure.PUBLISHED_SYSTEMS, pcm_figure.ONE_THREAD, pcm_figure.ALL_THREADS}
    throughput, calls = "PCM §4.2: throughput", "PCM §4.3: CPU or GPU, by the events of a call"
    published = {
        "PCM Table 2": papers.PCM_TABLE2,
        "PCM Table 2: speed-ups": papers.PCM_TABLE2_TIMES,
        **{f"PCM Figure {number}: speed-ups": rows for number, rows in papers.PCM_TIMES.items()},
        throughput: papers.PCM_THROUGHPUT,
    }
    is_complete(found, PCM_PLACES, PCM_PAIRS, published)
    assert found.places(throughput) == at(of_many - {"CCM, one at a time", "CCM, several at once"}, {"default"})
    assert found.places(calls) == at(('tagmatch, device="cpu"', 'tagmatch, device="auto"'), {1, 16, 64})
    assert len(found.panels) == 2 * len(PCM_PLACES) + 2
    assert {*ON_A_DEVICE, 'tagmatch, device="cuda"'} <= found.unavailable.keys()
    text = (tmp_path / "pcm.md").read_text()
    assert "| paper: CCM against SFF | 66.0 |" in text
    assert "0 wrong, 0 missing" in text
    medians, micros = found.values("PCM Figure 9"), found.values("PCM Figure 9", "samples")
    for (pair, place), samples in found.values("PCM Figure 9: speed-ups", "samples").items():
        system, other = pair.split(" against ")
        assert samples == pytest.approx(np.array(micros[other, place]) / np.array(micros[system, place]))
        best = min(ENCODED, key=lambda path, place=place: medians[path, place])
        line = found.lines[f"PCM Figure 9, {place:g} interfaces: {BEST_PATH} against {other}"]
        assert line["samples"] == pytest.approx(np.array(micros[other, place]) / np.array(micros[best, place]))


def test_ccm(tmp_path: Path) -> None:
    """Without a device, nothing is left to draw of what that does alone."""
    assert run("ccm", tmp_path, *SMALL["ccm"], *part("figure5")).exit_code == 0
    assert (Found(tmp_path, "ccm").panels, Found(tmp_path, "ccm").unavailable.keys()) == ({}, {"Memset", "Kernel"})
    found = measured("ccm", tmp_path, *SMALL["ccm"])
    published = {
        "CCM Table 2": papers.CCM_TABLE2,
        "CCM Table 2: speed-ups": papers.CCM_TABLE2_TIMES,
        "CCM Table 2: size": papers.CCM_TABLE2_SIZE,
        "CCM Table 2: deployment": papers.CCM_TABLE2_BUILD,
        **{f"CCM Figure {number}: speed-ups": rows for number, rows in papers.CCM_TIMES.items()},
        "CCM Figure 11: interfaces selected": papers.CCM_FIGURE11_SELECTED,
    }
    is_complete(found, CCM_PLACES, CCM_PAIRS, published)
    for title in ("CCM Table 2: size", "CCM Table 2: deployment"):
        assert found.places(title) == at(COMPARED - {OCM_CALLED}, {"default"})
    assert len(found.panels) == 2 * len(CCM_PLACES) + 3
    assert {"Memset", "Kernel", *ON_A_DEVICE} <= found.unavailable.keys()
