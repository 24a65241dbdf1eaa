"""The command `tagmatch-bench broker`: what it measures, counts and compares, not how fast anything is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.content import matching_keys
from typer.testing import CliRunner, Result

from tagmatch import TagMatch
from tagmatch.model.errors import TagMatchError
from tagmatch.workloads.bench.figures.broker import ENGINES
from tagmatch.workloads.broker import broker
from tagmatch.workloads.broker.broker import Engine
from tagmatch.workloads.broker.engines import ContentEngine, TagmatchEngine
from tagmatch.workloads.broker.input_queue import InputQueue
from tagmatch.workloads.broker.wire import Events, Names, decoded, encoded
from tagmatch.workloads.commands.bench import app
from tagmatch.workloads.content import SCENARIOS, Content, ContentOptions
from tagmatch.workloads.systems.ocm import Ocm
from tagmatch.workloads.systems.sff import Sff
from tagmatch.workloads.systems.tagmatch_content import TagmatchContent

ON_A_DEVICE = {"CCM", "tagmatch, GPU"}
HERE = set(ENGINES) - ON_A_DEVICE


@pytest.fixture(autouse=True)
def _easily_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few names and wide intervals, so that there are keys with few filters."""
    monkeypatch.setitem(SCENARIOS, "pcm", replace(SCENARIOS["pcm"], names=8))
    monkeypatch.setitem(SCENARIOS, "dense", replace(SCENARIOS["dense"], width=0.9))


def run(folder: Path, *more: str) -> Result:
    options = ["--allow-changes", "--constraints", "3000", "--rounds", "2", "--threads", "2"]
    options += ["--events", "300", "--seconds", "0.05", "--output", str(folder), *more]
    return CliRunner().invoke(app, ["broker", *options])


def found_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "broker.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["dense", "pcm"])
def test_command(tmp_path: Path, scenario: str) -> None:
    done = run(tmp_path, "--scenario", scenario, "--rate", "4000", "--rate", "300")
    assert done.exit_code == 0, done.exception
    found = found_in(tmp_path)
    assert found["unavailable"].keys() <= ON_A_DEVICE
    engines = set(ENGINES) - found["unavailable"].keys()
    *by_rate, most = found["panels"]
    assert [panel["title"] for panel in by_rate] == [
        "events processed a second",
        "events dropped",
        "delay, median",
        "delay, p99",
        "keys delivered a second",
        "events sent a second, as the client and the sockets can",
    ]
    for panel in by_rate:
        places = {(value["system"], value["x"]) for value in panel["values"]}
        assert places == {(engine, rate) for engine in engines for rate in (300, 4000)}
        assert all(len(value["samples"]) == 2 for value in panel["values"])
    assert all(value["value"] > 0 for panel in (by_rate[0], *by_rate[2:4], by_rate[5]) for value in panel["values"])
    assert {value["system"] for value in most["values"]} == engines
    published = {value["system"]: value["value"] for value in most["published"]}
    assert published == ({"OCM": 60_000, "CCM": 100_000} if scenario == "pcm" else {})
    accounted = [line for line in found["lines"] if line["target"]]
    assert {line["what"].partition(":")[0] for line in accounted} == engines
    assert all(line["value"] == 0 and line["met"] for line in accounted)
    assert all(row["missing"] == row["wrong"] == 0 for row in found["answers"])
    compared = {(row["system"], row["where"]) for row in found["answers"]}
    rates = {f"{rate} events/s, beside OCM" for rate in ("300", "4,000")}
    assert compared == {("OCM", "beside brute force"), *((engine, where) for engine in engines for where in rates)}
    assert all(row["keys"] > row["queries"] / 10 for row in found["answers"])
    assert (tmp_path / "broker.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_drops_are_counted(tmp_path: Path) -> None:
    """Events that come together, of which at most one may wait: in, and out again, or dropped."""
    done = run(tmp_path, "--rate", "400000", "--queue", "1")
    assert done.exit_code == 0, done.exception
    found = found_in(tmp_path)
    dropped = {value["system"]: value["value"] for value in found["panels"][1]["values"]}
    assert dropped.keys() >= HERE
    for row in found["answers"]:
        if row["where"] != "beside brute force":
            share = 1 - row["queries"] / (2 * 400_000 * 0.05)
            assert share > 0.1
            assert 100 * share == pytest.approx(dropped[row["system"]], rel=1e-6)  # both rounds sent as many


@pytest.mark.slow
@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize(
    ("engine", "system", "method"),
    [("SFF", Sff, "match_many"), ("OCM", Ocm, "match_many"), ("tagmatch", TagMatch, "match_unique")],
)
def test_a_wrong_engine_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, system: Any, method: str, more: bool
) -> None:
    """One that gives a key too many to some events, or one too few; OCM also beside brute force."""
    right = getattr(system, method)

    def changed(keys: list[int]) -> list[int]:
        return [*keys, 2**63] if more else keys[1:]

    def wrong(self: Any, *args: Any, **options: Any) -> Any:
        given = right(self, *args, **options)
        if isinstance(given, set):
            return set(changed(list(given)))
        lists = given.to_pylist()
        return pa.array([*map(changed, lists[:40]), *lists[40:]], pa.list_(pa.uint64()))

    monkeypatch.setattr(system, method, wrong)
    done = run(tmp_path, "--rate", "2000")
    assert isinstance(done.exception, TagMatchError)
    assert f"{engine} gave" in str(done.exception)
    rows = [row for row in found_in(tmp_path)["answers"] if row["system"] == engine]
    assert sum(row["wrong" if more else "missing"] for row in rows) > 0
    assert all(line["met"] for line in found_in(tmp_path)["lines"] if line["target"]), "no event is lost"


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["the first", "all"])
def test_an_event_that_is_lost_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The first comes with others that wait, or with all."""
    right = broker.deliveries
    monkeypatch.setattr(
        broker,
        "deliveries",
        lambda numbers, keys: right(numbers, keys)[: 0 if lost == "all" or numbers[0] == 0 else None],
    )
    done = run(tmp_path, "--rate", "500", "--skip", "OCM", "--skip", "SFF")
    assert isinstance(done.exception, TagMatchError)
    assert "tagmatch: events neither delivered once nor dropped" in str(done.exception)
    found = found_in(tmp_path)
    assert {name: found["unavailable"][name] for name in ("OCM", "SFF")} == dict.fromkeys(("OCM", "SFF"), "skipped")
    lost = {line["what"]: line["value"] for line in found["lines"] if line["target"]}
    assert len(lost) == len(ENGINES) - len(found["unavailable"])
    assert all(value >= 2 for value in lost.values()), "one or more in each round"


@pytest.mark.slow
def test_an_event_that_the_queue_loses_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of those that come together neither waits nor counts as dropped."""
    right = InputQueue.offer

    def offer(self: InputQueue, events: Events) -> None:
        right(self, events.part(0, len(events.numbers) - 1))
        self.offered += 1

    monkeypatch.setattr(InputQueue, "offer", offer)
    done = run(tmp_path, "--rate", "20000", "--skip", "OCM")
    assert "SFF: events neither delivered once nor dropped" in str(done.exception)


def test_bad_parameters(tmp_path: Path) -> None:
    for wrong in (
        ["--constraints", "1"],
        ["--rate", "0"],
        ["--queue", "0"],
        ["--scenario", "figures"],
        ["--skip", "BE-Tree"],
    ):
        done = run(tmp_path, *wrong)
        assert done.exit_code == 2
        assert wrong[0] in done.stderr


# -- engines -----------------------------------------------------------------------------------------------------------

BUILDS: dict[str, Callable[[pa.Table, list[str]], Engine]] = {
    "OCM, sharing tables": lambda stored, _: ContentEngine(Ocm(stored, threads=2, share="tables")),
    "OCM": lambda stored, _: ContentEngine(Ocm(stored, threads=2)),
    "SFF": lambda stored, _: ContentEngine(Sff(stored)),
    "tagmatch, one by one": lambda stored, names: TagmatchEngine(TagmatchContent(stored).index, names),
    "tagmatch, tables": lambda stored, names: TagmatchEngine(TagmatchContent(stored).index, names, tables_from=1),
}


@pytest.mark.parametrize("name", BUILDS)
def test_engines_beside_brute_force(name: str) -> None:
    """Events without attributes are among them, and attributes that no filter asks for."""
    content = Content(ContentOptions(interfaces=20, min_filters=15, max_filters=15, names=6, min_attributes=0))
    stored = content.subscriptions(0, content.filters).select(["key", "constraints"])
    sent = content.messages(0, 120).append_column("unknown", pa.array([1, None, 3] * 40, pa.int64()))
    engine = BUILDS[name](stored, sent.column_names)
    events = Events.of(sent)
    right = [sorted(set(keys)) for keys in matching_keys(stored.to_pylist(), sent.to_pylist())]
    assert sum(map(len, right)) > 200
    for first, count in ((0, 120), (7, 1), (0, 0), (50, 30)):
        some, _ = decoded(encoded(events, first, count, Names.of(sent.column_names)), Names.of(engine.names))
        found = engine.interfaces(some)
        lists = [
            sorted(found.values[begin:end].tolist())
            for begin, end in zip(found.offsets[:-1], found.offsets[1:], strict=True)
        ]
        assert lists == right[first : first + count]
