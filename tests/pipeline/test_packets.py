"""Calls with many queries in packets: how they are cut, where each writes its keys, and keys that are wanted once."""

import itertools
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import assert_keys, loaded
from support.pipelines import together
from support.places import lists_of, rows_of

from tagmatch.model.arrays import Lists, U64Array
from tagmatch.model.columns import rows_of_tags, tag_lists
from tagmatch.model.options import Wanted
from tagmatch.model.parallel import run
from tagmatch.pipeline.run import packets as module
from tagmatch.pipeline.run.packets import BulkCall, packet_ranges
from tagmatch.pipeline.segment import CpuMatcher, PacketSize
from tagmatch.pipeline.unique import merge_unique


def ranges(sizes: list[int], size: PacketSize, threads: int = 1) -> list[tuple[int, int]]:
    (chunk,) = tag_lists([[f"t{i}" for i in range(tags)] for tags in sizes], "queries")
    return packet_ranges(chunk.offsets, size, threads)


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    queries=st.integers(1, 40),
    tags=st.integers(1, 40),
    fewest=st.integers(1, 40),
    threads=st.integers(1, 4),
)
def test_all_queries_once_and_in_no_packet_too_many(
    sizes: list[int], queries: int, tags: int, fewest: int, threads: int
) -> None:
    found = ranges(sizes, PacketSize(queries, tags, fewest), threads)
    assert list(itertools.chain(*(range(first, last) for first, last in found))) == list(range(len(sizes)))
    for first, last in found:
        assert 0 < last - first <= queries
        assert sum(sizes[first:last]) - max(sizes[first:last]) <= tags


@pytest.mark.parametrize("without_tags", [0, 1, 3])
def test_queries_without_tags_make_no_packet_of_their_own(without_tags: int) -> None:
    sizes = [0] * without_tags + [1, 2, 0, 1]
    assert ranges(sizes, PacketSize(100, 100, fewest=100)) == [(0, len(sizes))]


def test_one_thread_has_one_packet_of_what_fits_and_several_are_busy_to_the_end() -> None:
    size = PacketSize(100, 1000, fewest=10)
    assert ranges([1] * 90, size) == [(0, 90)]
    assert [len(ranges([1] * count, size, threads=2)) for count in (15, 90, 410, 510)] == [2, 4, 6, 6]


Keys = list[list[int]]

KEYS = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5), min_size=1, max_size=4)


def memory(count: int) -> U64Array:
    return np.full(count, 2**64 - 1, np.uint64)  # unwritten


def none(count: int) -> None:
    """Packets have their own memory."""


def too_little(count: int) -> None:
    raise MemoryError(f"no room for {count} keys")


#: Of the tags nothing is asked here
NO_ROWS = rows_of_tags([])


def call_of(queries: list[int], memory: Callable[[int], Any]) -> BulkCall:
    """A call whose packets have these numbers of queries."""
    matcher: Any = SimpleNamespace(memory=memory)
    return BulkCall(matcher, [(NO_ROWS, 0, count) for count in queries], wanted=Wanted.keys)


def as_lists(found: Lists, dtype: type[np.unsignedinteger] = np.uint64) -> Keys:
    assert found.values.dtype == dtype
    assert found.offsets[0] == 0
    return rows_of(found)


def writing(answers: BulkCall, packet: int, keys: Keys, *, asks: bool, narrow: bool) -> Iterator[None]:
    """What a packet does: it may ask for its place, and gives its keys later."""
    lists = lists_of(keys, np.uint32 if narrow else np.uint64)
    if asks:
        space = answers.space(packet, len(lists.values))
        if space is not None:
            assert len(space) == len(lists.values)
            space[:] = lists.values
            lists = Lists(lists.offsets, space)
        yield
    answers.put(packet, lists)


@given(
    packets=st.lists(st.tuples(KEYS, st.booleans(), st.booleans()), max_size=6),
    memory=st.sampled_from([memory, none, too_little]),
    few=st.sampled_from([0, module._FEW]),
    most=st.sampled_from([0, 5, module._MOST]),
    data=st.data(),
)
def test_all_keys_in_order(
    packets: list[tuple[Keys, bool, bool]],
    memory: Callable[[int], U64Array | None],
    few: int,
    most: int,
    data: st.DataObject,
) -> None:
    turns = data.draw(st.permutations([*range(len(packets))] * 2))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_FEW", few)
        patched.setattr(module, "_MOST", most)
        answers = call_of([len(keys) for keys, _, _ in packets], memory)
        each = enumerate(packets)
        writers = [writing(answers, i, keys, asks=asks, narrow=narrow) for i, (keys, asks, narrow) in each]
        for turn in turns:
            next(writers[turn], None)
        found = answers.lists(threads=2)
    assert as_lists(found) == [keys for packet, _, _ in packets for keys in packet]


def test_packets_whose_place_is_known_are_not_copied() -> None:
    sizes, made = [4, 0, 3], []
    answers = call_of([1] * len(sizes), lambda count: made.append(memory(count)) or made[-1])
    for packet, size in enumerate(sizes):
        answers.space(packet, size)[:] = packet
    for packet, size in reversed(list(enumerate(sizes))):
        answers.put(packet, lists_of([[99] * size], np.uint64))  # at their final place already
    found = answers.lists(threads=1)
    assert as_lists(found) == [[packet] * size for packet, size in enumerate(sizes)]
    assert np.shares_memory(found.values, made[0])


def test_a_packet_waits_for_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No longer than copying takes, as these may have failed; where no memory is shared, nothing is waited for."""
    answers = call_of([1, 1, 1], memory)
    assert answers.space(1, 2) is None
    monkeypatch.setattr(module, "_COPY_S", 60.0)
    assert call_of([1, 1], none).space(1, 1000) is None
    with together([lambda: answers.space(1, 2), lambda: answers.space(2, 2)]) as places:
        assert answers.space(0, 2) is not None
    assert all(place.result(0) is not None for place in places)


def test_memory_is_asked_for_once_and_is_no_more_than_what_is_expected() -> None:
    """The first packet has 8 keys for 2 of 12 queries, so that 48 are expected, and a quarter more is asked for."""
    asked, queries = list[int](), [2, 4, 6]
    answers = call_of(queries, asked.append)
    for packet, (count, size) in enumerate(zip(queries, [4, 5, 6], strict=True)):
        answers.put(packet, lists_of([[7] * size] * count, np.uint32))
    assert len(answers.lists(threads=1)) == 12
    assert asked == [60]


def test_memory_of_which_little_was_taken_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW", 0)
    made, keys = list[U64Array](), [[1] * 100, *[[2]] * 9]
    answers = call_of([1, 9], lambda count: made.append(memory(count)) or made[-1])
    answers.put(0, lists_of(keys[:1], np.uint64))
    answers.put(1, lists_of(keys[1:], np.uint64))
    found = answers.lists(threads=1)
    assert as_lists(found) == keys
    assert not np.shares_memory(found.values, made[0])


def test_many_threads() -> None:
    keys = [[[packet * 1000 + i] * (packet % 4) for i in range(20)] for packet in range(200)]
    answers = call_of([20] * len(keys), memory)

    def work(packet: int) -> None:
        for _ in writing(answers, packet, keys[packet], asks=packet % 3 > 0, narrow=packet % 2 > 0):
            pass

    run(work, range(len(keys)), 8)
    assert as_lists(answers.lists(threads=8)) == [each for packet in keys for each in packet]


LARGEST = [1, 100, 2**8, 2**20, 2**32, 2**63, 2**64]


def assert_merged(answers: Keys, wanted: list[bool]) -> None:
    """Of keys of 64 bits and, if all fit, of 32 bits."""
    right = [sorted(set(keys)) if once else keys for keys, once in zip(answers, wanted, strict=True)]
    for bits, dtype in ((64, np.uint64), (32, np.uint32)):
        if max(itertools.chain([0], *answers)) < 2**bits:
            assert as_lists(merge_unique(lists_of(answers, dtype), np.array(wanted, np.bool_)), dtype) == right


@given(st.data(), st.sampled_from(LARGEST))
def test_any_answers(data: st.DataObject, largest: int) -> None:
    answers = data.draw(st.lists(st.lists(st.integers(0, largest - 1), max_size=80), max_size=6))
    assert_merged(answers, data.draw(st.lists(st.booleans(), min_size=len(answers), max_size=len(answers))))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 255, 256, 257, 5_000])
@pytest.mark.parametrize("largest", [*LARGEST, "64 a key"])
def test_answers_of_any_length(rng: random.Random, largest: int | str, length: int) -> None:
    """Drawn, ascending and descending, as they are, with high bytes in common, and about as many words as keys."""
    for beyond in (-1, 0, 1):
        span = largest if isinstance(largest, int) else 64 * length + beyond
        drawn = [0, span - 1, *(rng.randrange(span) for _ in range(length))][:length]
        alike = [[low + key for key in drawn] for low in (2**64 - span, min(2**32 - 7, 2**64 - span))]
        answers = [drawn, sorted(drawn), sorted(drawn, reverse=True), drawn, *alike, [drawn[0]] * length]
        assert_merged(answers, [True, True, True, False, True, True, True])


@pytest.mark.parametrize("largest", [100, 2**20, 2**63])
@pytest.mark.parametrize("runs", [2, 3, 17, 63, 64, 65])
def test_runs_of_any_length(rng: random.Random, runs: int, largest: int) -> None:
    """Ascending runs; some are shorter than those merged at once, and some many times as long."""
    answers = []
    for longest in (1, 9, 40, 300):
        lengths = [rng.choice([rng.randint(1, longest), rng.randint(1, 9)]) for _ in range(runs)]
        answers += [[key for count in lengths for key in sorted(rng.randrange(largest) for _ in range(count))]]
    assert_merged(answers, [True] * len(answers))


@pytest.mark.parametrize("spread", [1, 10**7, 10**15])
@pytest.mark.parametrize("sharing", [1, 3])
@pytest.mark.parametrize(("sets", "most_keys"), [(3, 300), (40, 60), (90, 30)])
def test_unique_keys_as_they_are_looked_up(
    rng: random.Random, sets: int, most_keys: int, sharing: int, spread: int
) -> None:
    """Of few sets and of many, with keys that are dense or not, which no two sets share, or some, in two packets."""
    owners = [number for number in range(sets) for _ in range(rng.choice([1, rng.randint(1, most_keys)]))]
    keys = rng.sample(range(len(owners)), len(owners))
    tags = [["all", f"t{owner}"][owner % 2 :] for owner in owners]
    rows = [(each, key // sharing * spread) for each, key in zip(tags, keys, strict=True)]
    tm, oracle = loaded(rows, device="cpu", threads=2)
    with tm:
        every = ["all", *(f"t{i}" for i in range(sets))]
        asked = [every, *(rng.sample(every, rng.randint(0, len(every))) for _ in range(30))]
        expected = [sorted(set(oracle.match(query))) for query in asked]
        assert tm.match_many(asked * 40, unique=True).to_pylist() == expected * 40


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
