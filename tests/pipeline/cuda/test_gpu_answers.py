"""Devices write answers into pinned memory, which callers keep as long as they like."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
from support.agreement import assert_keys, loaded

from tagmatch.pipeline.cuda import matcher as cuda_matcher
from tagmatch.pipeline.cuda import pinned
from tagmatch.pipeline.cuda.pinned import PinnedPool
from tagmatch.pipeline.matcher import PacketSize

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

TAGS = [f"t{i}" for i in range(9)]
BLOCK = 1 << 10


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 128 keys in a block, and for three blocks."""
    monkeypatch.setattr(pinned, "_BLOCK", BLOCK)
    monkeypatch.setattr(pinned, "_FEWEST", 8)
    monkeypatch.setattr(pinned, "_MOST", 3 * BLOCK)


def test_answers_that_are_kept_stay_as_they_are(monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any]) -> None:
    """Also those for which there is no pinned memory left; what is let go of is used again."""
    monkeypatch.setattr(cuda_matcher, "_PACKET_SIZE", PacketSize(queries=3, tags=50, fewest=1, at_once=2))
    lent = []
    lend = PinnedPool.lend
    monkeypatch.setattr(PinnedPool, "lend", lambda pool, count: lent.append(lend(pool, count)) or lent[-1])
    rng = random.Random(11)
    sets = [rng.sample(TAGS, rng.randint(1, 3)) for _ in range(30)]
    tm, oracle = loaded([(tags, key) for key, tags in enumerate(sets)], **engine)
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
    tm, oracle = loaded([(tags, key) for key, tags in enumerate(sets)], **engine)
    with tm:
        answers = tm.match_many(queries)
    del tm
    gc.collect()
    assert_keys(answers, expected)


def test_unique_answers(engine: dict[str, Any]) -> None:
    tm, oracle = loaded([(["a"], 1), (["b"], 1), (["a", "b"], 2), (["c"], 3)], **engine)
    with tm:
        queries = [["a", "b", "c"], ["a"], ["x"], ["b", "c"]] * 3
        assert_keys(tm.match_many(queries, unique=True), [sorted(set(oracle.match(query))) for query in queries])


def addresses(*arrays: Any) -> list[int]:
    return [array.__array_interface__["data"][0] for array in arrays]


def test_memory_is_lent_once_at_a_time() -> None:
    pool = PinnedPool(0)
    a, b, c = (pool.lend(100) for _ in range(3))
    assert a is not None
    assert b is not None
    assert c is not None
    places = addresses(a, b, c)
    assert len(set(places)) == 3
    assert [len(a), len(b), len(c)] == [100, 100, 100]
    assert pool.lend(100) is None
    part = b[5:]
    del b
    assert pool.lend(1) is None  # somebody has some of it yet
    del part
    again = pool.lend(7)
    assert again is not None
    assert addresses(again) == places[1:2]


def test_few_keys_need_none() -> None:
    assert PinnedPool(0).lend(0) is None


def test_blocks_of_other_sizes_make_room() -> None:
    """Free blocks that are too small, or far too large, are given back when there is no other room."""
    pool = PinnedPool(0)
    for count in (128, 384, 128):
        memory = pool.lend(count)
        assert memory is not None
        assert len(memory) == count
        memory[:] = 7
        del memory
    assert pool.lend(385) is None


def test_a_device_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def pinned_array(self, *_: Any) -> Any:
            error = type("CudaAPIError", (Exception,), {"__module__": "numba.cuda"})
            raise error("CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(pinned, "cuda", Failing())
    assert PinnedPool(0).lend(100) is None
