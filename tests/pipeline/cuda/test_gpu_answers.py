"""Devices write answers into pinned memory, which callers keep as long as they like."""

import gc
import random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.agreement import assert_highlights, assert_keys, change_all, loaded
from support.failing_devices import OUT_OF_MEMORY, InjectedCudaError

from tagmatch import TagMatch
from tagmatch.pipeline.cuda import device, pairs
from tagmatch.pipeline.cuda import matcher as cuda_matcher
from tagmatch.pipeline.cuda.device import PinnedPool
from tagmatch.pipeline.run import packets
from tagmatch.pipeline.segment import PacketSize
from tagmatch.pipeline.unique import merge_all

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

TAGS = [f"t{i}" for i in range(9)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 128 keys in a block, and for three blocks."""
    for name, value in {"_BLOCK_BYTES": 1 << 10, "_FEWEST_BYTES": 8, "_MOST": 3 << 10}.items():
        monkeypatch.setattr(device, name, value)


def test_answers_that_are_kept_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any]) -> None:
    """Also those without pinned memory; released memory is used again."""
    monkeypatch.setattr(cuda_matcher, "_PACKET_SIZE", PacketSize(queries=3, tags=50, fewest=1, at_once=2))
    lent = []
    lend = PinnedPool.lend
    monkeypatch.setattr(PinnedPool, "lend", lambda pool, count: lent.append(lend(pool, count)) or lent[-1])
    rng = random.Random(11)
    sets = [(rng.sample(TAGS, rng.randint(1, 3)), key) for key in range(30)]
    tm, oracle = loaded(sets, **engine)
    with tm:
        kept = []
        for number in range(5):
            queries = [rng.sample(TAGS, rng.randint(2, 7)) for _ in range(2 + 2 * number)]
            kept.append((tm.match_many(queries), [oracle.match(query) for query in queries]))
        for answers, expected in kept:
            assert_keys(answers, expected)
        assert [memory is not None for memory in lent].count(True) in (1, 2, 3)
        assert lent[-1] is None
        del answers, kept
        lent.clear()
        gc.collect()
        assert_keys(tm.match_many(queries), expected)
        assert lent[-1] is not None
    # Answers outlive the index
    tm, _ = loaded(sets, **engine)
    with tm:
        answers = tm.match_many(queries)
    del tm
    gc.collect()
    assert_keys(answers, expected)


@pytest.mark.parametrize("many", [False, True], ids=["few keys", "many keys"])
def test_unique_keys_are_merged_on_the_device(
    monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any], many: bool
) -> None:
    """Unless a query has many: the CPU merges those."""
    monkeypatch.setattr(cuda_matcher, "_PACKET_SIZE", PacketSize(queries=3, tags=50, fewest=1, at_once=2))
    rng = random.Random(12)
    # Some keys are in several sets, and some are too wide for 32 bits
    sets = [([TAGS[key % 4]], (key // 3) << (rng.choice([0, 33]))) for key in range(12)]
    if many:
        sets += [(["many"], key // 2) for key in range(2 * pairs._MOST_ORDERED, 0, -1)]
    merged = []
    monkeypatch.setattr(packets, "merge_all", lambda answers: merged.append(len(answers)) or merge_all(answers))
    tm, oracle = loaded(sets, **engine)
    with tm:
        queries = [["t0", "many"], ["t1", "t0"], [], ["t2", "t3"], ["t3", "many"]]
        found = tm.match_many(queries, unique=True).to_pylist()
    assert found == [sorted(set(oracle.match(query))) for query in queries]
    assert bool(merged) == many


@pytest.mark.parametrize("left", [1 << 30, 1 << 60], ids=["keys there", "keys on the CPU"])
def test_pairs_of_the_device_are_counted(monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any], left: int) -> None:
    """In several packets and segments, one with deleted rows."""
    monkeypatch.setattr(cuda_matcher, "_PACKET_SIZE", PacketSize(queries=3, tags=50, fewest=1, at_once=2))
    monkeypatch.setattr(cuda_matcher, "_LEFT_FOR_PACKETS", left)
    sets = [([TAGS[key % 4]], key // 3) for key in range(12)]
    tm, oracle = loaded(sets, **engine)
    with tm:
        change_all([(True, ["t0", "t1"], 50), (False, ["t2"], 2)], tm, oracle)
        queries = [["t0", "t1"], ["t1"], [], ["t2", "t3"], ["t3"], ["t9"]]
        expected = [oracle.match(query) for query in queries]
        assert tm.match_counts(queries).to_pylist() == list(map(len, expected))
        assert tm.match_counts(queries, unique=True).to_pylist() == [len(set(keys)) for keys in expected]
        assert tm.match_exists_many(queries).to_pylist() == list(map(bool, expected))
        assert_highlights(tm, queries, expected, "integer")


def test_sets_that_ask_for_parts_are_the_cpus_and_best_keys_are_of_both(engine: dict[str, Any]) -> None:
    """Beside sets of the device, in two segments; by scores of data and messages, and counted by a column of data."""
    with TagMatch(data={"size": "int64"}, **engine) as tm:
        for key, (tags, where) in enumerate(
            [(["t0"], None), ([], 'at least 2 of tags {"t0", "t1", "t2"}'), (["t1"], "at least 1 of {x = 1, y = 1}")]
        ):
            tm.put(key, tags, where=where, data={"size": key % 2})
            tm.consolidate()
        rows = [["t0", "t1"], ["t1"], ["t0"], ["t3"]]
        messages = pa.table({"tags": rows, "x": [1, 1, 0, 1], "sign": [1, -1, 1, 1]})
        assert [sorted(keys) for keys in tm.match_many(messages).to_pylist()] == [[0, 1, 2], [2], [0], []]
        best = tm.match_best(messages, limit=2, score="size * sign").to_pylist()
        assert best == [[1, 0], [2], [0], []]
        counts = tm.match_counts(messages, count_by="size").to_pylist()
        assert [[(each["value"], each["count"]) for each in row] for row in counts] == [
            [(0, 2), (1, 1)], [(0, 1)], [(0, 1)], [],
        ]  # fmt: skip


def test_memory_is_lent_once_at_a_time() -> None:
    pool = PinnedPool(0)
    assert pool.lend(0) is None
    lent = [pool.lend(100) for _ in range(3)]
    places = [memory.__array_interface__["data"][0] for memory in lent]
    assert len(set(places)) == 3
    assert list(map(len, lent)) == [100, 100, 100]
    part = lent.pop(1)[5:]
    assert pool.lend(1) is None  # another packet still has some of it
    del part
    again = pool.lend(7)
    assert again.__array_interface__["data"][0] == places[1]
    # Free blocks that are too small, or far too large, are given back if there is no other room
    del again, lent
    for count in (128, 384, 128):
        memory = pool.lend(count)
        assert len(memory) == count
        memory[:] = 7
        del memory
    assert pool.lend(385) is None


def test_a_device_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise InjectedCudaError(OUT_OF_MEMORY)

    monkeypatch.setattr(device, "cuda", SimpleNamespace(pinned_array=fail))
    assert PinnedPool(0).lend(100) is None
