"""Too little memory, several devices, and devices that fail: no match is lost, and the CPU goes on."""

import itertools
import random
import subprocess
import sys
import threading
from contextlib import nullcontext
from typing import Any

import numba.cuda
import pytest
from support.agreement import assert_agree, assert_keys, index_of, loaded
from support.failing_devices import LAUNCH_FAILED, OUT_OF_MEMORY, InjectedCudaError, ShortOfMemory
from support.hashes import colliding_tags
from support.simulator import SIMULATED

import tagmatch.pipeline.devices
from tagmatch import CudaOptions, DeviceError, DeviceWarning, TagMatch
from tagmatch.model.tables import Segment
from tagmatch.pipeline.cuda import device as memory
from tagmatch.pipeline.cuda import matcher as cuda_matcher
from tagmatch.pipeline.cuda import on_device
from tagmatch.pipeline.cuda.matcher import CudaMatcher

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

TIMEOUT = 60


TAGS = [f"t{i}" for i in range(12)]


def random_sets(rng: random.Random, count: int) -> list[list[str]]:
    """Without equal ones, so that every set has one key."""
    return list(map(list, {frozenset(rng.sample(TAGS, rng.randint(0, 3))) for _ in range(count)}))


def random_queries(rng: random.Random, count: int) -> list[list[str]]:
    return [rng.sample([*TAGS, "unknown"], rng.randint(0, 6)) for _ in range(count)]


def numbered(sets: list[list[str]], where: str | None = None, **options: Any) -> TagMatch[int]:
    """An index of sets whose keys are their numbers; the first may have a constraint."""
    return index_of(sets, range(len(sets)), where=where and [where, *[None] * (len(sets) - 1)], **options)


def test_a_million_sets_match_one_query(layout: str) -> None:
    tags = [f"t{i}" for i in range(1_415)]
    sets = [[tags[i], tags[j]] for i in range(1_415) for j in range(i)]
    assert len(sets) > 1_000_000
    with numbered(sets, layout=layout, device="cuda", threads=4) as tm:
        assert_keys(tm.match_many([tags[:2], tags, ["t0"]]), [[0], list(range(len(sets))), []])


def test_a_query_with_too_many_results_moves_to_the_cpu(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    everything = [f"t{i}" for i in range(100)]
    with numbered([[tag] for tag in everything], layout=layout, device="cuda", threads=1) as tm:
        ShortOfMemory(monkeypatch, 50)
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
        tm = numbered([["a"], ["b"]], where, layout=layout, device="cuda")
    with tm:
        for value in (1, 6):
            wanted = [1] if where and value > 5 else [0, 1]
            assert sorted(tm.match(["a", "b"], attributes={"p": value})) == wanted
        assert tm.stats()["device"] == "cpu"


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
    expected = nullcontext() if placement == "split" else pytest.warns(DeviceWarning, match="device='cpu'; ")
    with expected:
        tm = numbered(sets, layout=layout, cuda=CudaOptions(placement=placement))
    with tm:
        assert tm.stats()["devices"] == (["cpu"] if placement == "replicate" else ["cuda:0"] * 3)
        assert bool(tm.stats()["device_notes"]) == (placement != "split")
        _, oracle = loaded(zip(sets, range(len(sets)), strict=True), device="cpu")
        for query in random_queries(rng, 3):
            assert sorted(tm.match(query)) == oracle.match(query)


@pytest.mark.parametrize("placement", ["replicate", "split"])
def test_two_devices(engine: dict[str, Any], placement: Any) -> None:
    sets = [[f"t{i % 100}", f"u{i % 77}"] for i in range(5_000)]
    queries = [[f"t{i % 100}", f"u{i % 77}", f"t{i % 9}"] for i in range(3_000)]
    with numbered(sets, device="cpu") as tm:
        expected = list(map(sorted, tm.match_many(queries).to_pylist()))
    with numbered(sets, **engine, cuda=CudaOptions(placement=placement)) as tm:
        assert len(tm.stats()["devices"]) == len(numba.cuda.gpus)
        for _ in range(4):
            assert_keys(tm.match_many(queries), expected)


def test_process_that_used_two_devices_ends_well() -> None:
    """Numba unloads the kernels of all devices at the end; each is loaded once for all."""
    used = """
from tagmatch import CudaOptions, TagMatch
for each in ("rarest", "balanced"):
    with TagMatch(layout=each, device="cuda", cuda=CudaOptions(fewest_queries=1)) as tm:
        tm.add_sets([["a"], ["b"]], [1, 2])
        tm.consolidate()
        assert [sorted(*tm.match_many([["a", "b"]]).to_pylist()) for _ in range(4)] == [[1, 2]] * 4
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


def test_every_allocation_may_fail(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """Errors are kept, as futures keep them, and with them the frames that had the packet."""
    pairs, one = [([tag], i) for i, tag in enumerate(TAGS)], CudaOptions(streams=1)
    tm, oracle = loaded(pairs, layout=layout, device="cuda", threads=1, cuda=one)
    queries = [TAGS, ["t3", "t4", "x"], []]
    asked = [
        lambda: tm.match_many(queries), lambda: tm.match(queries[0]), lambda: tm.explain(queries[1]),
        lambda: tm.submit(queries[0]).result(TIMEOUT),
    ]  # fmt: skip
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
                break  # it did without them
            assert len(kept) > 0
            assert_keys(tm.match_many(queries), [oracle.match(query) for query in queries])
    assert tm.stats()["device"] == "cuda"
    assert_agree(tm, oracle, queries)


def test_tags_with_one_hash(engine: dict[str, Any]) -> None:
    tags = colliding_tags(20)
    sets = [*([tag] for tag in tags[:15]), tags[:3], ["x", *tags[2:5]]]
    tm, oracle = loaded(zip(sets, range(len(sets)), strict=True), **engine)
    assert_agree(tm, oracle, [tags, [*tags, "x"], tags[15:], *([tag] for tag in tags[::4]), []])


@pytest.mark.parametrize(
    ("owner", "where"),
    [(memory.Workspace, "upload"), (memory.Workspace, "download"), (cuda_matcher.CudaFilters, "launch")],
)
def test_a_device_that_fails(monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any], owner: type, where: str) -> None:
    """Queries on it fail, for any caller; later ones are answered by the CPU."""
    sets = [[], *([f"t{i}"] for i in range(10))]
    tm = numbered(sets, "p < 5", **engine | {"max_partition_size": 20})
    assert tm.stats()["device"] == "cuda"
    everything, keys = [f"t{i}" for i in range(10)], list(range(1, 11))
    assert sorted(tm.submit(everything).result(TIMEOUT)) == keys
    entered, release = threading.Semaphore(0), threading.Event()

    def fail(*_: Any) -> Any:
        entered.release()
        assert release.wait(TIMEOUT)
        raise InjectedCudaError(LAUNCH_FAILED)

    failing = []
    with monkeypatch.context() as patched:
        patched.setattr(owner, where, fail)
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
    # The next snapshot is on the device again
    tm.add_set(["b"], 20)
    tm.consolidate()
    assert tm.stats()["device"] == "cuda"
    assert sorted(tm.match([*everything, "b"])) == [*keys, 20]
    tm.close()
