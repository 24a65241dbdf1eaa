"""The command `tagmatch-bench broker`: what it measures, counts and compares, not how fast anything is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.bench import Found, at, measured, run
from support.content import matching_keys

from tagmatch import TagMatch
from tagmatch.model.errors import TagMatchError
from tagmatch.workloads.bench.figures.broker import ENGINES
from tagmatch.workloads.broker import broker
from tagmatch.workloads.broker.broker import Engine
from tagmatch.workloads.broker.engines import ContentEngine, TagmatchEngine
from tagmatch.workloads.broker.input_queue import InputQueue
from tagmatch.workloads.broker.wire import Events, Names, decoded, encoded
from tagmatch.workloads.content import SCENARIOS, Content, ContentOptions
from tagmatch.workloads.systems.ocm import Ocm
from tagmatch.workloads.systems.sff import Sff
from tagmatch.workloads.systems.tagmatch_content import TagmatchContent

pytestmark = pytest.mark.nightly

ON_A_DEVICE = {"CCM", "tagmatch, GPU"}
SMALL = ("--constraints", 3000, "--rounds", 2, "--threads", 2, "--events", 300, "--seconds", 0.05)
LOST = "events neither delivered once nor dropped"


@pytest.fixture(autouse=True)
def _easily_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few names and wide intervals, so that there are keys with few filters."""
    monkeypatch.setitem(SCENARIOS, "pcm", replace(SCENARIOS["pcm"], names=8))
    monkeypatch.setitem(SCENARIOS, "dense", replace(SCENARIOS["dense"], width=0.9))


@pytest.mark.parametrize("scenario", ["dense", "pcm"])
def test_command(tmp_path: Path, scenario: str) -> None:
    found = measured("broker", tmp_path, *SMALL, "--scenario", scenario, "--rate", 4000, "--rate", 300)
    assert found.unavailable.keys() <= ON_A_DEVICE
    engines = set(ENGINES) - found.unavailable.keys()
    *by_rate, most = found.panels
    assert by_rate == [
        "events processed a second",
        "events dropped",
        "delay, median",
        "delay, p99",
        "keys delivered a second",
        "events sent a second, as the client and the sockets can",
    ]
    for title in by_rate:
        assert found.places(title) == at(engines, {300, 4000})
        assert all(len(samples) == 2 for samples in found.values(title, "samples").values())
        positive = title not in ("events dropped", "keys delivered a second")
        assert not positive or all(value > 0 for value in found.values(title).values())
    assert found.places(most).keys() == engines
    published = {system: value for (system, _), value in found.published(most).items()}
    assert published == ({"OCM": 60_000, "CCM": 100_000} if scenario == "pcm" else {})
    assert {what.partition(":")[0] for what in found.limits} == engines
    assert all(found.value(what) == 0 and found.lines[what]["met"] for what in found.limits)
    compared = {(row["system"], row["where"]) for row in found.answers}
    rates = {f"{rate} events/s, beside OCM" for rate in ("300", "4,000")}
    assert compared == {("OCM", "beside brute force"), *((engine, where) for engine in engines for where in rates)}
    assert all(row["keys"] > row["queries"] / 10 for row in found.answers)


@pytest.mark.parametrize(
    ("engine", "system", "method", "more"),
    [
        ("SFF", Sff, "match_many", True),
        ("OCM", Ocm, "match_many", False),
        ("OCM", Ocm, "match_many", True),
        ("tagmatch", TagMatch, "match_unique", False),
    ],
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
    done = run("broker", tmp_path, *SMALL, "--rate", 2000)
    assert isinstance(done.exception, TagMatchError)
    assert f"{engine} gave" in str(done.exception)
    found = Found(tmp_path, "broker")
    assert found.counted(engine, "wrong" if more else "missing") > 0
    assert all(found.lines[what]["met"] for what in found.limits), "no event is lost"


@pytest.mark.parametrize("lost", ["the first", "all", "the last in the queue"])
def test_an_event_that_is_lost_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The first comes with others that wait, or with all; the last neither waits nor counts as dropped."""
    right, offer = broker.deliveries, InputQueue.offer

    def delivered(numbers: Any, keys: Any) -> Any:
        return right(numbers, keys)[: 0 if lost == "all" or (lost == "the first" and numbers[0] == 0) else None]

    def offered(self: InputQueue, events: Events) -> None:
        offer(self, events.part(0, len(events.numbers) - 1))
        self.offered += 1

    monkeypatch.setattr(broker, "deliveries", delivered)
    if lost == "the last in the queue":
        monkeypatch.setattr(InputQueue, "offer", offered)
    done = run("broker", tmp_path, *SMALL, "--rate", 500, "--skip", "OCM", "--skip", "SFF")
    assert isinstance(done.exception, TagMatchError)
    assert f"tagmatch: {LOST}" in str(done.exception)
    found = Found(tmp_path, "broker")
    assert {name: found.unavailable[name] for name in ("OCM", "SFF")} == dict.fromkeys(("OCM", "SFF"), "skipped")
    assert len(found.limits) == len(ENGINES) - len(found.unavailable)
    assert all(found.value(what) >= 2 for what in found.limits), "one or more in each round"


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
        bounds = zip(found.offsets[:-1], found.offsets[1:], strict=True)
        lists = [sorted(found.values[begin:end].tolist()) for begin, end in bounds]
        assert lists == right[first : first + count]
