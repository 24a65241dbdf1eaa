"""A device and the CPU: which of them answers, and that both answer alike."""

from __future__ import annotations

import random
import threading
from typing import Any

import numba.cuda
import numpy as np
import pyarrow as pa
import pytest
from support.agreement import assert_agree, assert_keys, loaded
from support.pipelines import together
from support.simulator import SIMULATED

from tagmatch import Circle, CudaOptions, InvalidValueError, TagMatch
from tagmatch.pipeline import devices
from tagmatch.pipeline.cuda.device import kernel

cuda: Any = numba.cuda

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

SETS = [([], 0), (["a"], 1), (["b"], 2), (["a", "b"], 3), (["a", "c"], 4)]
QUERIES = [["a"], ["a", "b"], ["c"], [], ["a", "b", "c"], ["x"]]


def hybrid(layout: str, fewest: int | None, **options: Any) -> Any:
    return loaded(SETS, layout=layout, device="cuda", threads=1, cuda=CudaOptions(fewest_queries=fewest), **options)


def test_small_packets_are_the_cpus(layout: str) -> None:
    tm, oracle = hybrid(layout, 4)
    with tm:
        assert tm.stats()["matched_by"] == {"cuda": 0, "cpu": 0}
        (note,) = tm.stats()["device_notes"]
        assert note == "packets of fewer than 4 queries are matched on the CPU, which is faster for few"
        for count, expected in ((3, {"cuda": 0, "cpu": 3}), (4, {"cuda": 4, "cpu": 3}), (6, {"cuda": 10, "cpu": 3})):
            assert_keys(tm.match_many(QUERIES[:count]), [oracle.match(query) for query in QUERIES[:count]])
            # In the calling thread, by a kernel of the CPU
            assert sorted(tm.match(["a", "b"])) == oracle.match(["a", "b"])
            assert tm.stats()["matched_by"] == expected
        assert tm.stats()["device"] == "cuda"
        assert_agree(tm, oracle, QUERIES)


def test_small_packets_keep_all_that_messages_have() -> None:
    """Also where their tags are of a dictionary, which the CPU looks up as far as these messages have them."""
    tags = pa.array([["x"], ["a"], ["a", "b"], [], ["b"]], pa.list_(pa.string()))
    encoded = pa.ListArray.from_arrays(tags.offsets, tags.values.dictionary_encode())
    messages = pa.table({"tags": encoded, "price": [9, 1, 9, 1, 1], "location": [[5.0, 5.0]] * 3 + [[0.0, 0.0]] * 2})
    found = []
    for options in ({"device": "cpu"}, {"device": "cuda", "cuda": CudaOptions(fewest_queries=4)}):
        with TagMatch(threads=1, **options) as tm:
            tm.add_set(["a"], 1, where="price < 5")
            tm.add_set([], 2, where="price < 5")
            tm.add_set(["b"], 3, area=Circle(5, 5, 1000))
            tm.add_set(["a"], 4)
            tm.consolidate()
            answers = [tm.match_many(messages.slice(first, 2)).to_pylist() for first in range(4)]
            found.append([list(map(sorted, each)) for each in answers])
    assert found == [[[[], [1, 2, 4]], [[1, 2, 4], [3, 4]], [[3, 4], [2]], [[2], [2]]]] * 2


@pytest.mark.parametrize("fewest", [0, 1])
def test_the_device_may_get_all(layout: str, fewest: int) -> None:
    tm, oracle = hybrid(layout, fewest)
    with tm:
        assert_agree(tm, oracle, QUERIES)
        assert tm.stats()["matched_by"]["cpu"] == 0 < tm.stats()["matched_by"]["cuda"]
        assert tm.stats()["device_notes"] == []


def test_measured(monkeypatch: pytest.MonkeyPatch, layout: str, rng: random.Random) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(devices, "_MOST_QUERIES", 8)
    tm, oracle = hybrid(layout, None)
    with tm:
        (note,) = tm.stats()["device_notes"] or [""]
        assert not note or "matched on the CPU" in note
        assert_agree(tm, oracle, QUERIES)
        before = tm.stats()["matched_by"]["cuda"]
        many = rng.choices(QUERIES, k=30)
        assert_keys(tm.match_many(many), [oracle.match(query) for query in many])
        assert tm.stats()["matched_by"]["cuda"] == before + 30


@pytest.mark.parametrize("wrong", [-1, 2.5, "all"])
def test_wrong_numbers(wrong: Any) -> None:
    with pytest.raises((InvalidValueError, TypeError), match="fewest_queries"):
        CudaOptions(fewest_queries=wrong)


def test_any_thread_may_launch_a_kernel_first() -> None:
    barrier = threading.Barrier(8)
    for _ in range(2 if SIMULATED else 20):

        @kernel
        def increment(values):
            i = cuda.grid(1)
            if i < len(values):
                values[i] += 1

        def launch(increment: Any = increment) -> None:
            values = cuda.to_device(np.zeros(4, np.int64))
            barrier.wait()
            increment[1, 4](values)
            assert values.copy_to_host().tolist() == [1] * 4

        with together([launch] * 8):
            pass
