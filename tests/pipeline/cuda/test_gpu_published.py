"""The paper's own subset match on the device against that of the CPU, and against Python sets."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba.cuda
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agreement import loaded
from support.simulator import SIMULATED

from tagmatch.model.arrays import I64Array, offsets_of
from tagmatch.model.empty import empty_segment
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.kernels.signature import SIGNATURE_WORDS
from tagmatch.model.options import LayoutOptions
from tagmatch.model.tables import Segment
from tagmatch.pipeline.cpu.balanced import BalancedSubsetMatch
from tagmatch.pipeline.cuda import published
from tagmatch.pipeline.cuda.published import PublishedSubsetMatch
from tagmatch.pipeline.cuda.published_kernels import MOST_QUERIES, QUERY_WORDS, packed_words, prefilter, unpack
from tagmatch.pipeline.matcher import Batches, Found, QueryBatch

# Small tables make small grids on purpose
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*(Grid size|Host array)")]

cuda: Any = numba.cuda


TAGS = [f"t{i}" for i in range(60)]
SMALL = {"streams": 1, "block_threads": 2}

some_tags = st.lists(st.sampled_from(TAGS[:6]), max_size=4)
# All tags together set so many bits that sets of other tags seem to be contained
query_tags = st.lists(st.sampled_from(TAGS[:8]), max_size=8) | st.sampled_from([TAGS, TAGS[:4] + TAGS[8:]])


def stored(sets: Sequence[Sequence[str]], **options: Any) -> Segment:
    """A snapshot of these sets and one of all tags, so that there is none that the vocabulary lacks."""
    tm, _ = loaded([(tags, 1) for tags in (*sets, TAGS)], layout="balanced", device="cpu", **options)
    with tm:
        return tm.snapshot.only


def asked(segment: Segment, queries: Sequence[Sequence[str]]) -> QueryBatch:
    tags = segment.vocabulary.tags
    names = [bytes(tags.data[a:b]).decode() for a, b in itertools.pairwise(tags.offsets)]
    rank = {name: i for i, name in enumerate(names)}
    offsets, ranks = flat([sorted({rank[tag] for tag in query}) for query in queries])
    return QueryBatch(offsets, ranks.astype(np.uint32))


def flat(lists: Sequence[Sequence[int]]) -> tuple[I64Array, I64Array]:
    lengths = np.array(list(map(len, lists)), np.int64)
    return offsets_of(lengths), np.array([value for each in lists for value in each], np.int64)


def pairs(found: Found) -> Counter[tuple[int, int]]:
    assert found.queries.dtype == found.sets.dtype == np.uint32
    return Counter(zip(found.queries.tolist(), found.sets.tolist(), strict=True))


def contained(segment: Segment, queries: QueryBatch) -> Counter[tuple[int, int]]:
    """Pairs of a query and a set, the empty one excepted, by Python sets."""
    held = segment.tagsets.ranks
    rows, asked_rows = (
        [set(values[a:b].tolist()) for a, b in itertools.pairwise(offsets)]
        for offsets, values in ((held.offsets, held.values), (queries.offsets, queries.ranks))
    )
    return Counter((q, s) for q, query in enumerate(asked_rows) for s, row in enumerate(rows) if row and row <= query)


def chosen(batches: Batches, rng: random.Random) -> Batches:
    """Some of the batches, in another order, with some of their queries, also in another order."""
    partitions = rng.sample(range(len(batches.partitions)), rng.randint(0, len(batches.partitions)))
    queued = [batches.queued[batches.offsets[p] : batches.offsets[p + 1]].tolist() for p in partitions]
    queued = [rng.sample(queries, rng.randint(0, len(queries))) for queries in queued]
    return Batches(batches.queries, batches.signatures, np.array(partitions, np.int64), *flat(queued))


def assert_as_on_cpu(match: PublishedSubsetMatch, segment: Segment, batches: Batches, *, exact: bool = True) -> None:
    found, expected = (each.match(batches) for each in (match, BalancedSubsetMatch(segment, exact=exact, batch_size=7)))
    assert pairs(found) == pairs(expected)
    assert found.rejected == expected.rejected


class Launches:
    """Counts launches of the kernel."""

    def __init__(self) -> None:
        self.kernel = published.match_batch
        self.count = 0
        self.failing = 0
        self._lock = threading.Lock()

    def __getitem__(self, configuration: tuple[Any, ...]) -> Any:
        def launch(*arguments: Any) -> None:
            with self._lock:
                self.count += 1
                if self.count == self.failing:
                    raise RuntimeError("no launch")
            self.kernel[configuration](*arguments)

        return launch


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    counted = Launches()
    monkeypatch.setattr(published, "match_batch", counted)
    return counted


class Late:
    """What the simulator is given for a stream is done as late as a device may do it: when it is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._waiting: deque[Callable[[], object]] = deque()
        self._done = 0
        self._kernel = published.match_batch
        array, event = type(cuda.device_array(1)), type(cuda.event())
        self._delay_copies(array, "copy_to_host")
        self._delay_copies(array, "copy_to_device")
        monkeypatch.setattr(published, "match_batch", self)
        monkeypatch.setattr(event, "record", lambda each, _: setattr(each, "after", self._done + len(self._waiting)))
        monkeypatch.setattr(event, "synchronize", lambda each: self._wait(getattr(each, "after", 0)))
        monkeypatch.setattr(cuda.stream, "synchronize", lambda _: self._wait(self._done + len(self._waiting)))

    def __getitem__(self, configuration: tuple[Any, ...]) -> Any:
        return lambda *arguments: self._later(lambda: self._kernel[configuration](*arguments))

    def _delay_copies(self, array: type, name: str) -> None:
        copy = getattr(array, name)
        self._monkeypatch.setattr(array, name, lambda self_, values, **_: self._later(lambda: copy(self_, values)))

    def _later(self, work: Callable[[], object]) -> None:
        self._waiting.append(work)

    def _wait(self, count: int) -> None:
        while self._done < count:
            self._waiting.popleft()()
            self._done += 1


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    if SIMULATED:
        Late(monkeypatch)


@settings(max_examples=10)
@given(
    sets=st.lists(some_tags, max_size=8),
    asked_tags=st.lists(query_tags, max_size=5),
    exact=st.booleans(),
    size=st.sampled_from([1, 3, 200]),
    batch_size=st.integers(1, 3) | st.just(MOST_QUERIES),
    room=st.integers(1, 6),
    rng=st.randoms(use_true_random=False),
)
def test_any_tables_and_batches(
    sets: list[list[str]],
    asked_tags: list[list[str]],
    exact: bool,
    size: int,
    batch_size: int,
    room: int,
    rng: random.Random,
) -> None:
    segment = stored(sets, max_partition_size=size)
    match = PublishedSubsetMatch(segment, exact=exact, batch_size=batch_size, result_room=room, **SMALL)
    cpu = BalancedSubsetMatch(segment, exact=exact, batch_size=batch_size)
    assert (match.partitions, match.batch_size, match.has_empty) == (cpu.partitions, batch_size, cpu.has_empty)
    queries = asked(segment, asked_tags)
    batches, expected = match.route(queries), cpu.route(queries)
    for name in ("signatures", "partitions", "offsets", "queued"):
        assert np.array_equal(getattr(batches, name), getattr(expected, name))
    if exact:
        assert pairs(match.match(batches)) == contained(segment, queries)
    assert_as_on_cpu(match, segment, batches, exact=exact)
    assert_as_on_cpu(match, segment, chosen(batches, rng), exact=exact)


def test_verification_turns_candidates_away() -> None:
    segment = stored([[tag] for tag in TAGS[:8]])
    queries = asked(segment, [TAGS[8:]])
    exact, by_signature = (PublishedSubsetMatch(segment, exact=exact, **SMALL) for exact in (True, False))
    found = exact.match(exact.route(queries))
    assert len(found.sets) == 0
    assert found.rejected > 0
    seeming = by_signature.match(by_signature.route(queries))
    assert (len(seeming.sets), seeming.rejected) == (found.rejected, 0)
    assert_as_on_cpu(exact, segment, exact.route(queries))


@pytest.mark.parametrize("queries", [1, 2, 3, 255, 256, 257, 600])
def test_so_many_queries_a_batch(queries: int) -> None:
    segment = stored([["t0"], ["t0", "t1"]])
    match = PublishedSubsetMatch(segment, exact=True, **SMALL)
    batch = asked(segment, [["t0", f"t{i % 3}"] if i % 5 else ["t2"] for i in range(queries)])
    assert pairs(match.match(match.route(batch))) == contained(segment, batch)


def test_each_query_contains_one_row_of_a_block() -> None:
    sets = [["t0", tag] for tag in TAGS[1:20]]
    segment = stored(sets)
    match = PublishedSubsetMatch(segment, exact=True, streams=1, block_threads=4)
    assert np.diff(segment.partitions.first_rows).max() > 4
    queries = asked(segment, sets)
    assert pairs(match.match(match.route(queries))) == contained(segment, queries)


@pytest.mark.parametrize(("missing", "part"), [(0, 1), (1, 1), (0, 10), (-1, 1)])
def test_results_that_just_fit_and_just_do_not(launches: Launches, missing: int, part: int) -> None:
    sets = [["t0", *(TAGS[1 + bit] for bit in range(4) if number >> bit & 1)] for number in range(16)]
    segment = stored(sets)
    queries = asked(segment, [TAGS[:5]] * 5 + [["t0"]])
    cpu = BalancedSubsetMatch(segment, exact=True, batch_size=MOST_QUERIES)
    batches = cpu.route(queries)
    partition_of = np.searchsorted(segment.partitions.first_rows, cpu.match(batches).sets, side="right")
    results = np.bincount(partition_of)
    greatest = int(results.max())
    assert greatest >= 20
    room = (greatest - missing) // part
    match = PublishedSubsetMatch(segment, exact=True, result_room=room, **SMALL)
    match_again, launches.count = int(np.count_nonzero(results > room)), 0
    assert pairs(match.match(batches)) == contained(segment, queries)
    assert launches.count == np.count_nonzero(np.diff(batches.offsets)) + match_again
    assert (match_again > 0) == (missing > 0 or part > 1)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("room", [2, 1000])
def test_calls_of_many_cycles(rng: random.Random, room: int) -> None:
    segment = stored([rng.sample(TAGS[:5], rng.randint(1, 4)) for _ in range(8)], max_partition_size=3)
    match = PublishedSubsetMatch(segment, exact=True, batch_size=1, result_room=room, **SMALL)
    for cycles in (0, 1, 2, 3, 12):
        queries = asked(segment, [rng.sample(TAGS[:5], rng.randint(0, 5)) for _ in range(8)])
        batches = match.route(queries)
        # As many of the batches, which are of one query each
        offsets = np.minimum(batches.offsets, cycles)
        some = Batches(queries, batches.signatures, batches.partitions, offsets, batches.queued)
        assert_as_on_cpu(match, segment, some)


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("streams", [1, 3])
def test_calls_of_many_threads(rng: random.Random, streams: int) -> None:
    segment = stored([rng.sample(TAGS[:5], rng.randint(1, 4)) for _ in range(8)], max_partition_size=4)
    match = PublishedSubsetMatch(segment, exact=True, batch_size=2, result_room=2, streams=streams, block_threads=2)
    calls = [asked(segment, [rng.sample(TAGS[:5], rng.randint(0, 5)) for _ in range(3)]) for _ in range(6)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda queries: match.match(match.route(queries)), calls))
    assert list(map(pairs, found)) == [contained(segment, queries) for queries in calls]


def test_after_a_failure_the_stream_works(launches: Launches) -> None:
    segment = stored([["t0"], ["t1"], ["t0", "t1"]], max_partition_size=1)
    match = PublishedSubsetMatch(segment, exact=True, result_room=1, **SMALL)
    queries = asked(segment, [["t0", "t1"], ["t1"]])
    batches = match.route(queries)
    for failing in range(1, 4):
        launches.failing = launches.count + failing
        with pytest.raises(RuntimeError, match="no launch"):
            match.match(batches)
        assert pairs(match.match(batches)) == contained(segment, queries)


@pytest.mark.parametrize("sets", [[], [[]]])
def test_without_partitions(sets: list[list[str]]) -> None:
    segment = empty_segment(LayoutOptions(layout="balanced"))
    if sets:
        tm, _ = loaded([([], 1)], layout="balanced", device="cpu")
        with tm:
            segment = tm.snapshot.only
    match = PublishedSubsetMatch(segment, exact=True, **SMALL)
    assert (match.partitions, match.has_empty) == (0, bool(sets))
    found = match.match(match.route(QueryBatch(np.zeros(3, np.int64), np.empty(0, np.uint32))))
    assert (len(found.queries), len(found.sets), found.rejected) == (0, 0, 0)


@pytest.mark.parametrize("batch_size", [0, MOST_QUERIES + 1])
def test_batches_that_8_bits_cannot_number(batch_size: int) -> None:
    with pytest.raises(InvalidValueError, match="256"):
        PublishedSubsetMatch(stored([["t0"]]), exact=True, batch_size=batch_size)


def test_memory() -> None:
    segment = stored([["t0"], ["t1"]])
    little, much = (PublishedSubsetMatch(segment, exact=True, result_room=room, **SMALL) for room in (400, 4000))
    assert much.nbytes - little.nbytes == 2 * 5 * 3600
    assert little.nbytes > segment.tagsets.nbytes


def test_packed_results_are_unpacked() -> None:
    for results in range(10):
        ids, sets = np.arange(250 - results, 250, dtype=np.uint8), np.arange(results, dtype=np.uint32) + 2**31
        packed = b"".join(ids[i : i + 4].tobytes().ljust(4) + sets[i : i + 4].tobytes() for i in range(0, results, 4))
        assert len(packed) == 4 * packed_words(results) <= 5 * results + 3
        unpacked = unpack(np.frombuffer(packed, np.uint32), results)
        assert [each.tolist() for each in unpacked] == [ids.tolist(), sets.tolist()]


# -- the prefilter ---------------------------------------------------------------------------------------------------


@cuda.jit
def _prefilter(last, first_words, second_words, third_words, batch, size, prefix_out, passed_out):
    prefix = cuda.shared.array(SIGNATURE_WORDS, np.uint64)
    passed = cuda.shared.array(1, np.int32)
    ids = cuda.shared.array(MOST_QUERIES, np.uint8)
    queries = cuda.shared.array((MOST_QUERIES, SIGNATURE_WORDS), np.uint64)
    prefilter(0, last, first_words, second_words, third_words, batch, size, prefix, passed, ids, queries)
    for word in range(SIGNATURE_WORDS):
        prefix_out[word] = prefix[word]
    for i in range(passed[0]):
        passed_out[ids[i]] = 1


def prefiltered(rows: Sequence[int], queries: Sequence[int]) -> tuple[int, list[bool]]:
    """The common prefix of rows in ascending order, and which queries pass; signatures are integers of 192 bits."""
    words = np.array([split(row) for row in rows], np.uint64)
    batch = np.zeros((len(queries), QUERY_WORDS), np.uint64)
    batch[:, :SIGNATURE_WORDS] = ~np.array([split(query) for query in queries], np.uint64)
    prefix, passed = np.zeros(SIGNATURE_WORDS, np.uint64), np.zeros(len(queries), np.int32)
    columns = (np.ascontiguousarray(words[:, w]) for w in range(SIGNATURE_WORDS))
    _prefilter[1, 1](len(rows) - 1, *columns, batch.ravel(), len(queries), prefix, passed)
    return sum(int(word) << shift for word, shift in zip(prefix, (128, 64, 0), strict=True)), (passed > 0).tolist()


def split(signature: int) -> list[int]:
    return [signature >> shift & 2**64 - 1 for shift in (128, 64, 0)]


signatures = st.lists(st.sampled_from([0, 1, 62, 63, 64, 65, 127, 128, 190, 191]), max_size=6).map(
    lambda bits: sum({1 << bit for bit in bits})
) | st.integers(0, 2**192 - 1)


@settings(max_examples=25)
@given(rows=st.lists(signatures, min_size=1, max_size=4).map(sorted), queries=st.lists(signatures, min_size=1))
def test_prefilter_passes_what_has_the_common_prefix(rows: list[int], queries: list[int]) -> None:
    queries = [*queries, queries[0] | rows[0], *rows]
    prefix, passed = prefiltered(rows, queries)
    bits = [f"{row:0192b}" for row in rows]
    length = next((i for i, column in enumerate(zip(*bits, strict=True)) if len(set(column)) > 1), 192)
    assert f"{prefix:0192b}" == bits[0][:length].ljust(192, "0")
    assert passed == [prefix & ~query == 0 for query in queries]
    for query, passes in zip(queries, passed, strict=True):
        assert passes or all(row & ~query for row in rows)


def test_prefilter_turns_queries_away() -> None:
    rows = [0b1010 << 188, 0b1011 << 188]
    assert prefiltered(rows, [0b1010 << 188, 0b1000 << 188, 0b0111 << 188, 2**192 - 1, 0]) == (
        0b1010 << 188,
        [True, False, False, True, False],
    )


def test_prefix_ends_at_any_bit() -> None:
    ones = 2**192 - 1
    for bit in range(192):
        prefix, _ = prefiltered([ones - (1 << bit), ones], [0])
        assert prefix == ones >> (bit + 1) << (bit + 1)
