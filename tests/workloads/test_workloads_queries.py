"""Queries that extend stored sets, and when they are due."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch import InputFileError, TagMatchError
from tagmatch.workloads.queries import (
    Extender,
    QueryOptions,
    StoredSets,
    arrival_times,
    by_interval,
    paced,
    read_tags,
    when_due,
)

STRINGS = pa.list_(pa.string())
TAGS = st.text("abcdé", max_size=2)


def learn(sets: list[list[str]], **options: int) -> StoredSets:
    return StoredSets.learn([pa.array(sets, STRINGS)], **options)


def queries_of(sets: list[list[str]], count: int, *options: object, **more: object) -> list[list[str]]:
    return Extender(learn(sets), QueryOptions(*options, **more)).queries(0, count).to_pylist()


def kept_sets(stored: StoredSets) -> list[list[str]]:
    return pa.LargeListArray.from_arrays(stored.offsets, stored.tags.take(pa.array(stored.numbers))).to_pylist()


@given(batches=st.lists(st.lists(st.lists(TAGS, max_size=4), max_size=8), max_size=4))
def test_all_sets_are_learned(batches: list[list[list[str]]]) -> None:
    stored = StoredSets.learn([pa.array(sets, STRINGS) for sets in batches])
    sets = list(itertools.chain.from_iterable(batches))
    assert kept_sets(stored) == sets
    frequencies = dict(zip(stored.tags.to_pylist(), stored.frequencies.tolist(), strict=True))
    assert frequencies == Counter(tag for tags in sets for tag in tags)


def test_sample() -> None:
    """Of many sets some are kept, each as likely, however they come; frequencies are those of all."""
    sets = [[f"t{i}", "x"] for i in range(5000)]
    stored = StoredSets.learn([pa.array(sets[i : i + 37], STRINGS) for i in range(0, 5000, 37)], sample=400, seed=3)
    kept = [int(tags[0][1:]) for tags in kept_sets(stored)]
    assert len(stored) == len(set(kept)) == 400
    assert kept == sorted(kept)
    assert np.histogram(kept, 4, (0, 5000))[0].min() > 60
    assert stored.frequencies[stored.tags.index("x").as_py()] == 5000
    assert kept_sets(learn(sets, sample=400, seed=3)) == kept_sets(stored)
    assert kept_sets(learn(sets, sample=400, seed=4)) != kept_sets(stored)


def test_sets_in_files(tmp_path: Path) -> None:
    sets = pa.array([["a", "b"], [], ["é", '"']], STRINGS)
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    with pytest.raises(InputFileError, match="no files of a known format"):
        list(read_tags(str(folder)))
    for name, part in (("b.parquet", sets.slice(1)), ("a.parquet", sets.slice(0, 1)), (".hidden.parquet", sets)):
        pq.write_table(pa.table({"tags": part}), folder / name)
    file = tmp_path / "sets.jsonl"
    file.write_text("".join(json.dumps({"tags": tags, "other": 1}) + "\n" for tags in sets.to_pylist()))
    for path in (folder, file):
        assert [tags for batch in read_tags(str(path)) for tags in batch.to_pylist()] == sets.to_pylist()
    pq.write_table(pa.table({"tag": [["a"]]}), folder / "a.parquet")
    with pytest.raises(InputFileError, match=r"a\.parquet has no column 'tags'"):
        list(read_tags(str(folder)))


@given(
    sets=st.lists(st.lists(TAGS, max_size=4), min_size=1, max_size=10),
    extra=st.tuples(st.integers(0, 3), st.integers(0, 3)).map(sorted),
    draw=st.sampled_from(["uniform", "frequency"]),
    seed=st.integers(0, 2**63 - 1),
)
def test_queries_extend_stored_sets(sets: list[list[str]], extra: list[int], draw: str, seed: int) -> None:
    sets += [[f"{i}"] for i in range(8)]  # tags enough for every query
    for tags in queries_of(sets, 40, seed, *extra, draw):
        assert len(set(tags)) == len(tags)
        assert set(tags) <= {tag for row in sets for tag in row}
        assert any(set(row) <= set(tags) and extra[0] <= len(tags) - len(set(row)) <= extra[1] for row in sets)


def test_draws() -> None:
    """Nine of ten sets hold `often`: nine of ten draws by frequency, but one of eleven uniform draws find it."""
    queries = queries_of([[f"s{i}"] for i in range(20)], 30_000, draw="uniform")
    first, lengths = Counter(tags[0] for tags in queries), Counter(map(len, queries))
    assert first == pytest.approx({f"s{i}": 1500 for i in range(20)}, rel=0.13)
    assert lengths == pytest.approx(dict.fromkeys((3, 4, 5), 10_000), rel=0.05)
    sets = [["often"]] * 90 + [[f"s{i}"] for i in range(10)]
    for draw, share in (("frequency", 0.9), ("uniform", 0.1)):
        drawn = Counter(tags[1] for tags in queries_of(sets, 20_000, 1, 1, 1, draw) if tags[0] != "often")
        assert drawn["often"] / drawn.total() == pytest.approx(share, abs=0.04)


def test_a_query_depends_on_its_number_alone() -> None:
    maker = Extender(learn([[f"t{i}", f"t{i + 1}"] for i in range(500)]), QueryOptions(seed=7))
    whole = maker.queries(0, 70_000, threads=2)
    assert maker.queries(65_000, 2000).equals(whole.slice(65_000, 2000))
    assert maker.queries(5, 0).to_pylist() == []
    assert not maker.queries(0, 50).equals(maker.queries(50, 50))


def test_whole_vocabulary() -> None:
    """Even the rarest of tags is found if all are asked for."""
    sets = [["a"]] * 100_000 + [["b"], ["c"]]
    assert all(sorted(tags) == ["a", "b", "c"] for tags in queries_of(sets, 200, 1, 2, 2))
    with pytest.raises(TagMatchError, match="only 3 different tags together; lower max_extra"):
        queries_of(sets, 1, 1, 3, 3)
    with pytest.raises(ValueError, match="only 2 different tags"):  # and memory has no room for more
        queries_of([["a", "b"]], 1, min_extra=2_000_000, max_extra=2_000_000_000)
    with pytest.raises(TagMatchError, match="no stored sets"):
        queries_of([], 1)


@pytest.mark.parametrize(
    "wrong",
    [{"min_extra": 3, "max_extra": 2}, {"min_extra": -1}, {"seed": -1}, {"seed": 0.5}, {"draw": "often"}],
    ids=str,
)
def test_wrong_options(wrong: dict[str, object]) -> None:
    with pytest.raises(TagMatchError, match=f"^{next(iter(wrong))} must be"):
        QueryOptions(**wrong)


class Clock:
    """Goes on only when a thread sleeps."""

    def __init__(self) -> None:
        self.time, self.sleeps = 100.0, 0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 1e6  # as long as the system can sleep
        self.time += seconds
        self.sleeps += 1


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    first = 0
    for size in sizes:
        yield pa.record_batch({"id": pa.array(range(first, first + size), pa.int64())})
        first += size


@pytest.mark.parametrize("burstiness", [0.0, 0.25, 1.0, 4.0])
def test_arrival_times(burstiness: float) -> None:
    rate = 250.0
    times = np.concatenate(list(itertools.islice(arrival_times(rate, burstiness, seed=9), 4)))
    gaps = np.diff(times, prepend=0.0)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.02)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(burstiness, rel=0.05, abs=1e-9)
    first, again, other = (next(arrival_times(5, seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (np.nan, 1), (np.inf, 1), (1, -0.1), (1, np.nan)])
def test_wrong_rates(rate: float, burstiness: float) -> None:
    with pytest.raises(TagMatchError, match=r"^(rate|burstiness) must be"):
        arrival_times(rate, burstiness)


def test_rows_come_when_due() -> None:
    """Late ones come at once."""
    clock = Clock()
    found: list[int] = []
    due_times = np.concatenate([np.arange(1, 11) / 2, 5 + np.arange(1, 5001) / 100_000])
    for due, batch in when_due(paced(batches(4, 6, 5000), [due_times]), now=clock.now, sleep=clock.sleep):
        elapsed = clock.time - 100
        assert due[-1] <= elapsed
        assert elapsed - due[0] <= 0.0021
        found += batch["id"].to_pylist()
    assert found == list(range(5010))
    # Once for each of the first, but not for each of those that come 100,000 a second
    assert clock.sleeps < 100
    pairs = when_due(paced(batches(1000), [np.arange(1000) / 100]), now=clock.now, sleep=clock.sleep)
    next(pairs)
    clock.time += 5
    due, batch = next(pairs)
    assert len(due) == len(batch) == 500


@pytest.mark.parametrize("times", [1, 1e6])
def test_rows_by_interval(times: float) -> None:
    """Also of intervals that are longer than the system can sleep."""
    clock = Clock()
    due = np.array([0.5, 1.5, 1.9, 2.0, 6.1, 6.2, 6.3]) * times
    found = []
    for number, table in by_interval(paced(batches(2, 3, 2), [due]), 2.0 * times, now=clock.now, sleep=clock.sleep):
        assert clock.time >= 100 + 2 * times * (number + 1)
        found.append((number, table["id"].to_pylist()))
    assert found == [(0, [0, 1, 2]), (1, [3]), (3, [4, 5, 6])]
    assert times > 1 or clock.sleeps == 3
