"""Too little memory, several devices, and devices that fail: no match is lost, and the CPU goes on."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba.cuda
import numpy as np
import pytest
from oracle import Oracle
from support.agreement import assert_agree, assert_keys, loaded
from support.collisions import colliding_tags
from support.failing_devices import LAUNCH_FAILED, OUT_OF_MEMORY, InjectedCudaError, ShortOfMemory
from support.simulator import SIMULATED

import tagmatch.pipeline.devices
from tagmatch import CudaOptions, DeviceError, DeviceWarning, TagMatch
from tagmatch.model.columns import tag_lists
from tagmatch.model.options import LayoutOptions, MatchOptions
from tagmatch.model.tables import Segment
from tagmatch.partitioner.local import build_segment
from tagmatch.partitioner.staging import StagedChanges
from tagmatch.pipeline.cpu.matcher import CpuMatcher
from tagmatch.pipeline.cuda import matcher as cuda_matcher
from tagmatch.pipeline.cuda import memory, pairs
from tagmatch.pipeline.cuda.matcher import CudaMatcher
from tagmatch.pipeline.cuda.support import on_device
from tagmatch.pipeline.devices import replicated, split

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

TIMEOUT = 60


def segment_of(sets: list[list[str]], layout: str, **options: Any) -> Segment:
    """The sets, whose keys are their numbers."""
    staged = StagedChanges(1)
    staged.extend(tag_lists(sets, "tags", stored=True), np.arange(len(sets), dtype=np.uint64), removed=False)
    wanted = LayoutOptions(layout, **options)
    return build_segment([], staged.changes(), wanted, threads=1)


def answers(matcher: Any, queries: list[list[str]]) -> list[list[int]]:
    (lists,) = tag_lists(queries, "queries")
    matched = matcher.preprocess(lists, 0, len(queries)).subset_match()
    keys = matched.key_lookup()
    assert matched.found == len(keys.values)
    return [sorted(keys.values[a:b].tolist()) for a, b in zip(keys.offsets[:-1], keys.offsets[1:], strict=True)]


def tags_and_constraints(sets: list[list[str]], where: str | None, **options: Any) -> TagMatch[int]:
    """These sets, whose keys are their numbers, of which the first has a constraint."""
    tm: TagMatch[int] = TagMatch(**options)
    for key, tags in enumerate(sets):
        tm.add_set(tags, key, where=None if key else where)
    tm.consolidate()
    return tm


def oracle_of(sets: list[list[str]]) -> Oracle:
    oracle = Oracle()
    oracle.add_sets(sets, range(len(sets)))
    oracle.consolidate()
    return oracle


def random_sets(rng: random.Random, count: int) -> list[list[str]]:
    """Without equal ones, so that every set has one key."""
    tags = [f"t{i}" for i in range(12)]
    return list(map(list, {frozenset(rng.sample(tags, rng.randint(0, 3))) for _ in range(count)}))


def random_queries(rng: random.Random, count: int) -> list[list[str]]:
    return [rng.sample([f"t{i}" for i in range(12)] + ["unknown"], rng.randint(0, 6)) for _ in range(count)]


# -- results that do not fit -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [7, 8, 9, 80])
@pytest.mark.parametrize("empty", [False, True])
def test_room_for_eight_results(monkeypatch: pytest.MonkeyPatch, layout: str, found: int, empty: bool) -> None:
    """Less, exactly full, one too many, ten times too many, which is seen; the empty set among them or not."""
    asked, ask = [], pairs.Room.ask
    monkeypatch.setattr(pairs.Room, "ask", lambda room, count: (asked.append(count), ask(room, count)))
    monkeypatch.setattr(cuda_matcher, "_FIRST_ROOM", 8)
    monkeypatch.setattr(memory, "_roomy", lambda count: max(1, count))
    sets = [[f"t{i}"] for i in range(found - empty)] + [[]] * empty
    matcher = CudaMatcher(segment_of(sets, layout), MatchOptions(device="cuda"))
    everything = [f"t{i}" for i in range(found)]
    for _ in range(2):
        assert answers(matcher, [everything]) == [list(range(found))]
    assert empty or asked == ([found] if found > 8 else [])
    assert answers(matcher, [["unknown"], everything, []]) == [
        [found - 1] * empty, list(range(found)), [found - 1] * empty
    ]  # fmt: skip


def test_a_million_sets_match_one_query(layout: str) -> None:
    tags = [f"t{i}" for i in range(1_415)]
    sets = [[tags[i], tags[j]] for i in range(1_415) for j in range(i)]
    assert len(sets) > 1_000_000
    matcher = CudaMatcher(segment_of(sets, layout), MatchOptions(device="cuda", threads=4))
    assert answers(matcher, [tags[:2], tags, ["t0"]]) == [[0], list(range(len(sets))), []]


# -- too little memory -------------------------------------------------------------------------------------------------


def test_packets_with_too_many_results_are_halved(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, layout: str
) -> None:
    sets, queries = random_sets(rng, 25), random_queries(rng, 10)
    monkeypatch.setattr(cuda_matcher, "_FIRST_ROOM", 2)
    matcher = CudaMatcher(segment_of(sets, layout), MatchOptions(device="cuda"))
    oracle = oracle_of(sets)
    short = ShortOfMemory(monkeypatch, max(20, *(len(oracle.match(query)) + 2 for query in queries)))
    assert answers(matcher, queries) == [oracle.match(query) for query in queries]
    assert short.refused > 0


def test_a_query_with_too_many_results_moves_to_the_cpu(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    with TagMatch(layout=layout, device="cuda", threads=1) as tm:
        tm.add_sets([[f"t{i}"] for i in range(100)], list(range(100)))
        tm.consolidate()
        ShortOfMemory(monkeypatch, 50)
        everything = [f"t{i}" for i in range(100)]
        with pytest.raises(DeviceError, match="CUDA device 0 is out of memory"):
            tm.match(everything)
        assert sorted(tm.match(everything)) == list(range(100))
        stats = tm.stats()
        assert (stats["device"], stats["devices"]) == ("cpu", ["cpu"])
        assert "CUDA device 0 is out of memory" in stats["device_notes"][0]


def test_keys_that_do_not_fit_stay_on_the_host(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, layout: str
) -> None:
    monkeypatch.setattr(cuda_matcher, "_LEFT_FOR_PACKETS", float("inf"))
    if SIMULATED:
        monkeypatch.setattr(cuda_matcher, "_LEFT_FOR_PACKETS", float("nan"))  # all memory is infinite there
    pairs = [(tags, key) for tags in random_sets(rng, 12) for key in range(rng.randint(1, 3))]
    tm, oracle = loaded(pairs, layout=layout, device="cuda")
    assert_agree(tm, oracle, random_queries(rng, 3))
    assert "the keys are looked up on the CPU" in tm.stats()["device_notes"][0]
    tm.close()


@pytest.mark.parametrize(("table", "where"), [("CudaTagIndex", None), ("CudaFilters", "p < 5")])
def test_tables_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, layout: Any, table: str, where: str | None) -> None:
    def full(*_: Any) -> None:
        with on_device(0):
            raise InjectedCudaError(OUT_OF_MEMORY)

    monkeypatch.setattr(cuda_matcher, table, full)
    advice = "out of memory; use fewer streams, placement='split' or device='cpu'; the CPU matches"
    with pytest.warns(DeviceWarning, match=advice):
        tm = tags_and_constraints([["a"], ["b"]], where, layout=layout, device="cuda")
    with tm:
        for value in (1, 6):
            wanted = [1] if where and value > 5 else [0, 1]
            assert sorted(tm.match(["a", "b"], attributes={"p": value})) == wanted
        assert tm.stats()["device"] == "cpu"


# -- several devices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [replicated, split])
@pytest.mark.parametrize("size", [1, 3, 200_000])
def test_several_devices(rng: random.Random, several: Callable[..., Any], size: int) -> None:
    """Here they are one, several times."""
    for count in (0, 1, 20):
        sets, queries = random_sets(rng, count), random_queries(rng, 5)
        segment = segment_of(sets, "balanced", max_partition_size=size)
        matcher, oracle = several(segment, MatchOptions(device="cuda"), [0, 0], CudaMatcher), oracle_of(sets)
        for _ in range(2):
            assert answers(matcher, queries) == [oracle.match(query) for query in queries]
        (lists,) = tag_lists(queries, "queries")
        found, expected = (each.set_ids(lists, 0, 5) for each in (matcher, CpuMatcher(segment, MatchOptions())))
        for i in range(5):
            ends, right = found.offsets, expected.offsets
            assert sorted(found.values[ends[i] : ends[i + 1]]) == sorted(expected.values[right[i] : right[i + 1]])
        assert matcher.nbytes > 0


@pytest.mark.parametrize("placement", ["auto", "replicate", "split"])
def test_tables_that_fit_only_in_parts(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, layout: str, placement: str
) -> None:
    """Each of three devices has memory for half of the sets."""
    sets = random_sets(rng, 20)
    make = CudaMatcher.__init__

    def with_little_memory(matcher: CudaMatcher, segment: Segment, *arguments: Any) -> None:
        if len(segment) > len(sets) / 2:
            with on_device(0):
                raise InjectedCudaError(OUT_OF_MEMORY)
        make(matcher, segment, *arguments)

    monkeypatch.setattr(CudaMatcher, "__init__", with_little_memory)
    monkeypatch.setattr(tagmatch.pipeline.devices, "_chosen", lambda _: [0, 0, 0])
    with TagMatch(layout=layout, cuda=CudaOptions(placement=placement)) as tm:
        tm.add_sets(sets, list(range(len(sets))))
        if placement == "split":
            tm.consolidate()
        else:
            with pytest.warns(DeviceWarning, match="device='cpu'; "):
                tm.consolidate()
        assert tm.stats()["devices"] == (["cpu"] if placement == "replicate" else ["cuda:0"] * 3)
        assert bool(tm.stats()["device_notes"]) == (placement != "split")
        oracle = oracle_of(sets)
        for query in random_queries(rng, 3):
            assert sorted(tm.match(query)) == oracle.match(query)


def test_two_devices(engine) -> None:
    sets = [[f"t{i % 100}", f"u{i % 77}"] for i in range(5_000)]
    queries = [[f"t{i % 100}", f"u{i % 77}", f"t{i % 9}"] for i in range(3_000)]
    with TagMatch(**engine | {"device": "cpu"}) as tm:
        tm.add_sets(sets, list(range(len(sets))))
        tm.consolidate()
        expected = list(map(sorted, tm.match_many(queries).to_pylist()))
    for placement in ("replicate", "split"):
        cuda = replace(engine.get("cuda", CudaOptions()), placement=placement)
        with TagMatch(**engine | {"cuda": cuda}) as tm:
            tm.add_sets(sets, list(range(len(sets))))
            tm.consolidate()
            assert len(tm.stats()["devices"]) == len(numba.cuda.gpus)
            for _ in range(4):
                assert list(map(sorted, tm.match_many(queries).to_pylist())) == expected


def test_process_that_used_two_devices_ends_well() -> None:
    """Numba unloads the kernels of all devices at the end, of which each is loaded once for all."""
    used = """
from tagmatch import CudaOptions, TagMatch
for each in ("rarest", "balanced"):
    with TagMatch(layout=each, device="cuda", cuda=CudaOptions(fewest_queries=1)) as tm:
        tm.add_sets([["a"], ["b"]], [1, 2])
        tm.consolidate()
        for _ in range(4):
            (keys,) = tm.match_many([["a", "b"]]).to_pylist()
            assert sorted(keys) == [1, 2]
        assert tm.stats()["matched_by"]["cuda"] == 4
        assert len(tm.stats()["devices"]) > 1
"""
    done = subprocess.run([sys.executable, "-c", used], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_device_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match="there is no CUDA device 99; there are "):
        TagMatch(device="cuda", cuda=CudaOptions(devices=(99,)))
    with TagMatch(cuda=CudaOptions(devices=(99,))) as tm:
        assert tm.stats()["device"] == "cpu"
        assert "there is no CUDA device 99" in tm.stats()["device_notes"][0]


def test_who_keeps_packets_does_not_keep_their_memory(layout: str) -> None:
    """Debuggers do: compute-sanitizer keeps the frames of all that called CUDA."""
    options = MatchOptions(device="cuda", cuda=CudaOptions(streams=1))
    matcher = CudaMatcher(segment_of([["a"], ["b"]], layout), options)
    (lists,) = tag_lists([["a", "b"]], "queries")
    kept = []
    for _ in range(3):
        kept.append(matcher.preprocess(lists, 0, 1))
        keys = kept[-1].subset_match().key_lookup()
        assert sorted(keys.values.tolist()) == [0, 1]
        assert len(matcher.set_ids(lists, 0, 1).values) == 2


def test_every_allocation_may_fail(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """Errors are kept, as futures keep them, and with them the frames that had the packet."""
    pairs = [([f"t{i}"], i) for i in range(10)]
    tm, oracle = loaded(pairs, layout=layout, device="cuda", threads=1, cuda=CudaOptions(streams=1))
    queries = [[f"t{i}" for i in range(10)], ["t3", "t4", "x"], []]
    asked = [
        lambda: tm.match_many(queries),
        lambda: tm.match(queries[0]),
        lambda: tm.explain(queries[1]),
        lambda: tm.submit(queries[0]).result(TIMEOUT),
    ]
    kept = []
    for ask, name in itertools.product(asked, ["device", "pinned"]):
        for number in itertools.count():
            calls = itertools.count()
            real = getattr(memory.Workspace, name)

            def fail_once(*arguments: Any, real=real, calls=calls, number=number) -> Any:
                if next(calls) == number:
                    raise MemoryError("injected")
                return real(*arguments)

            with monkeypatch.context() as patched:
                patched.setattr(memory.Workspace, name, fail_once)
                try:
                    ask()
                except MemoryError as error:
                    kept.append(error)
            if next(calls) <= number:
                break  # it did without so many
            assert len(kept) > 0
            assert_keys(tm.match_many(queries), [oracle.match(query) for query in queries])
    assert tm.stats()["device"] == "cuda"
    assert_agree(tm, oracle, queries)


def test_tags_with_one_hash(engine: dict[str, Any]) -> None:
    tags = colliding_tags(20)
    sets = [*([tag] for tag in tags[:15]), tags[:3], ["x", *tags[2:5]]]
    tm, oracle = loaded(zip(sets, range(len(sets)), strict=True), **engine)
    assert_agree(tm, oracle, [tags, [*tags, "x"], tags[15:], *([tag] for tag in tags[::4]), []])


# -- devices that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "where"),
    [(memory.Workspace, "upload"), (memory.Workspace, "download"), (cuda_matcher.CudaFilters, "launch")],
)
def test_a_device_that_fails(monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any], owner: type, where: str) -> None:
    """What is on it fails, whoever asks; what comes later is answered by the CPU."""
    sets = [[], *([f"t{i}"] for i in range(10))]
    tm = tags_and_constraints(sets, "p < 5", **engine | {"max_partition_size": 20})
    assert tm.stats()["device"] == "cuda"
    everything, keys = [f"t{i}" for i in range(10)], list(range(1, 11))
    assert sorted(tm.submit(everything).result(TIMEOUT)) == keys
    entered, release = threading.Semaphore(0), threading.Event()

    def fail(*_: Any) -> Any:
        entered.release()
        assert release.wait(TIMEOUT)
        raise InjectedCudaError(LAUNCH_FAILED)

    monkeypatch.setattr(owner, where, fail)
    failing = []
    for _ in range(2):
        failing.append(tm.submit(everything))
        assert entered.acquire(timeout=TIMEOUT)
    release.set()
    for future in failing:
        with pytest.raises(DeviceError, match=r"CUDA device 0 has failed: .*injected"):
            future.result(TIMEOUT)
    assert sorted(tm.submit(everything).result(TIMEOUT)) == keys
    assert sorted(tm.match(everything, attributes={"p": 1})) == [0, *keys]
    assert list(map(sorted, tm.match_many([everything, []]).to_pylist())) == [keys, []]
    assert len(tm.explain(everything)) == 10
    stats = tm.stats()
    assert (stats["device"], stats["queries_in_flight"]) == ("cpu", 0)
    assert "CUDA device 0 has failed" in stats["device_notes"][0]
    tm.close()


def test_the_next_snapshot_is_on_the_device_again(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    tm, _ = loaded([(["a"], 1)], layout=layout, device="cuda")
    with monkeypatch.context() as patched:
        patched.setattr(memory.Workspace, "download", lambda *_: (_ for _ in ()).throw(InjectedCudaError(700)))
        with pytest.raises(DeviceError):
            tm.match(["a"])
    assert tm.match(["a"]) == [1]
    assert tm.stats()["device"] == "cpu"
    tm.add_set(["b"], 2)
    tm.consolidate()
    assert tm.stats()["device"] == "cuda"
    assert sorted(tm.match(["a", "b"])) == [1, 2]
    tm.close()
