"""Packets write their keys where these are to be, in whatever order they come by them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch.model.arrays import Lists, U64Array, offsets_of
from tagmatch.model.parallel import run
from tagmatch.pipeline.stages import answers as module
from tagmatch.pipeline.stages.answers import Answers

Keys = list[list[int]]

UNWRITTEN = 2**64 - 1

KEYS = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=5), min_size=1, max_size=4)


def memory(count: int) -> U64Array:
    return np.full(count, UNWRITTEN, np.uint64)


def none(count: int) -> None:
    """Packets have memory of their own."""


def too_little(count: int) -> None:
    raise MemoryError(f"no room for {count} keys")


def lists_of(keys: Keys, dtype: type[np.unsignedinteger]) -> Lists:
    values = np.array([key for each in keys for key in each], dtype)
    return Lists(offsets_of(np.array(list(map(len, keys)))), values)


def as_lists(found: Lists) -> Keys:
    assert found.values.dtype == np.uint64
    assert found.offsets[0] == 0
    return [found.values[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:], strict=False)]


class Writer:
    """What a packet does: it may ask for its place, and gives its keys later."""

    def __init__(self, answers: Answers, packet: int, keys: Keys, *, asks: bool, narrow: bool) -> None:
        self._answers, self._packet, self._keys = answers, packet, keys
        self._lists = lists_of(keys, np.uint32 if narrow else np.uint64)
        self._steps: list[Callable[[], None]] = [self._ask, self._put] if asks else [self._put]

    def step(self) -> None:
        if self._steps:
            self._steps.pop(0)()

    def _ask(self) -> None:
        space = self._answers.space(self._packet, len(self._lists.values))
        if space is not None:
            assert len(space) == len(self._lists.values)
            space[:] = self._lists.values
            self._lists = Lists(self._lists.offsets, space)

    def _put(self) -> None:
        self._answers.put(self._packet, self._lists)


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
        answers = Answers([len(keys) for keys, _, _ in packets], memory)
        writers = [Writer(answers, i, keys, asks=asks, narrow=narrow) for i, (keys, asks, narrow) in enumerate(packets)]
        for turn in turns:
            writers[turn].step()
        found = answers.lists(threads=2)
    assert as_lists(found) == [keys for packet, _, _ in packets for keys in packet]


@pytest.mark.parametrize("sizes", [[3], [4, 4, 4], [4, 0, 3]])
def test_packets_whose_place_is_known_are_not_copied(sizes: Sequence[int]) -> None:
    made: list[U64Array] = []
    answers = Answers([1] * len(sizes), lambda count: made.append(memory(count)) or made[-1])
    for packet, size in enumerate(sizes):
        space = answers.space(packet, size)
        assert space is not None
        space[:] = packet
    for packet, size in reversed(list(enumerate(sizes))):
        answers.put(packet, lists_of([[99] * size], np.uint64))  # where they are written already
    found = answers.lists(threads=1)
    assert as_lists(found) == [[packet] * size for packet, size in enumerate(sizes)]
    assert np.shares_memory(found.values, made[0])


def test_a_packet_has_no_place_before_those_before_it_say_how_many_keys_they_have() -> None:
    answers = Answers([1, 1, 1], memory)
    assert answers.space(1, 2) is None
    assert answers.space(2, 2) is None
    assert answers.space(0, 2) is not None
    assert answers.space(2, 2) is not None


def test_a_packet_waits_for_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COPY_S", 60.0)
    answers = Answers([1, 1, 1], memory)
    places: dict[int, U64Array | None] = {}
    threads = [threading.Thread(target=lambda i=i: places.setdefault(i, answers.space(i, 2))) for i in (2, 1)]
    for thread in threads:
        thread.start()
    assert answers.space(0, 2) is not None
    for thread in threads:
        thread.join(30)
    assert all(places[i] is not None for i in (1, 2))


@pytest.mark.parametrize("give", [memory, none])
def test_a_packet_waits_no_longer_than_copying_takes(give: Callable[[int], U64Array | None]) -> None:
    """The packet before it may have failed; where there is no memory to share, nothing is waited for."""
    answers = Answers([1, 1], give)
    assert answers.space(1, 1000) is None


def test_memory_is_asked_for_once_and_is_no_more_than_what_is_expected() -> None:
    """The first packet has 8 keys for 2 of 12 queries, so that 48 are expected, and a quarter more is asked for."""
    asked: list[int] = []
    answers = Answers([2, 4, 6], lambda count: asked.append(count))
    for packet, (queries, size) in enumerate(zip([2, 4, 6], [4, 5, 6], strict=True)):
        answers.put(packet, lists_of([[7] * size] * queries, np.uint32))
    assert len(answers.lists(threads=1)) == 12
    assert asked == [60]


def test_memory_of_which_little_was_taken_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW", 0)
    made: list[U64Array] = []
    answers = Answers([1, 9], lambda count: made.append(memory(count)) or made[-1])
    answers.put(0, lists_of([[1] * 100], np.uint64))
    answers.put(1, lists_of([[2]] * 9, np.uint64))
    found = answers.lists(threads=1)
    assert as_lists(found) == [[1] * 100, *[[2]] * 9]
    assert not np.shares_memory(found.values, made[0])


def test_many_threads() -> None:
    keys = [[[packet * 1000 + i] * (packet % 4) for i in range(20)] for packet in range(200)]
    answers = Answers([20] * len(keys), memory)

    def work(packet: int) -> None:
        writer = Writer(answers, packet, keys[packet], asks=packet % 3 > 0, narrow=packet % 2 > 0)
        writer.step()
        writer.step()

    run(work, range(len(keys)), 8)
    assert as_lists(answers.lists(threads=8)) == [each for packet in keys for each in packet]
