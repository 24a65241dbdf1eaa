"""The merge stage: keys ascending and each once, of the queries that want that."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import assert_keys, loaded

from tagmatch.model.arrays import Lists, UIntArray, offsets_of
from tagmatch.pipeline.cpu.key_lookup import merge_unique
from tagmatch.pipeline.cpu.matcher import CpuMatcher
from tagmatch.pipeline.matcher import PacketSize

LARGEST = [1, 100, 2**8, 2**20, 2**32, 2**63, 2**64]


def merged(answers: list[list[int]], wanted: list[bool]) -> list[list[int]]:
    """Of keys of 64 bits and, where all fit, of 32 bits."""
    keys = np.array([key for keys in answers for key in keys], np.uint64)
    found = merged_columns(answers, keys, wanted)
    if not keys.max(initial=0) >> np.uint64(32):
        assert merged_columns(answers, keys.astype(np.uint32), wanted) == found
    return found


def merged_columns(answers: list[list[int]], keys: UIntArray, wanted: list[bool]) -> list[list[int]]:
    lists = Lists(offsets_of(np.array([len(keys) for keys in answers], np.int64)), keys)
    found = merge_unique(lists, np.array(wanted, np.bool_))
    assert found.values.dtype == keys.dtype
    return [found.values[first:last].tolist() for first, last in zip(found.offsets, found.offsets[1:], strict=False)]


def expected(answers: list[list[int]], wanted: list[bool]) -> list[list[int]]:
    return [sorted(set(keys)) if once else keys for keys, once in zip(answers, wanted, strict=True)]


@given(st.data(), st.sampled_from(LARGEST))
def test_any_answers(data: st.DataObject, largest: int) -> None:
    answers = data.draw(st.lists(st.lists(st.integers(0, largest - 1), max_size=80), max_size=6))
    wanted = data.draw(st.lists(st.booleans(), min_size=len(answers), max_size=len(answers)))
    assert merged(answers, wanted) == expected(answers, wanted)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 255, 256, 257, 5_000])
@pytest.mark.parametrize("largest", LARGEST)
def test_answers_of_any_length(rng: random.Random, largest: int, length: int) -> None:
    """Drawn, ascending and descending, beside one that is wanted as it is, and with high bytes in common."""
    drawn = [rng.randrange(largest) for _ in range(length)]
    alike = [2**64 - largest + key for key in drawn]
    answers = [drawn, sorted(drawn), sorted(drawn, reverse=True), drawn, alike, [drawn[0]] * length]
    wanted = [True, True, True, False, True, True]
    assert merged(answers, wanted) == expected(answers, wanted)


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("length", [1, 2, 33, 1_000])
def test_as_many_words_as_keys(rng: random.Random, length: int, beyond: int) -> None:
    """From the least to the greatest there are about 64 numbers for each key, at both ends of what keys can be."""
    span = max(64 * length + beyond, 1)
    drawn = [rng.randrange(span) for _ in range(length)]
    ends = [0, span - 1] * 2 + drawn[4:]
    answers = [[key + low for key in ends[:length]] for low in (0, 2**32 - 7, 2**64 - span)]
    answers += [keys[::-1] for keys in answers]
    assert merged(answers, [True] * 6) == expected(answers, [True] * 6)


@pytest.mark.parametrize("at_once", [1, 2, 4])
@pytest.mark.parametrize("queries", [0, 1, 2, 40])
def test_more_threads_merge_than_have_packets(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch, queries: int, at_once: int
) -> None:
    """As with a device, which few threads keep busy; counted are the keys that the caller gets, and all of the work."""
    monkeypatch.setattr(CpuMatcher, "packet_size", PacketSize(queries=7, tags=50, fewest=1, at_once=at_once))
    tags = [f"t{i}" for i in range(8)]
    sets = [(rng.sample(tags, rng.randint(0, 3)), rng.randrange(12)) for _ in range(60)]
    tm, oracle = loaded(sets, device="cpu", threads=4)
    with tm:
        asked = [rng.sample(tags, rng.randint(0, 6)) for _ in range(queries)]
        expected = [sorted(set(oracle.match(query))) for query in asked]
        found = tm.match_many(asked, unique=True)
        assert_keys(found, expected)
        assert found.to_pylist() == expected
        stats = tm.stats()
        assert (stats["queries"], stats["matches"]) == (queries, sum(map(len, expected)))
        assert stats["stages"]["merge"]["service"]["count"] >= (queries > 0)
