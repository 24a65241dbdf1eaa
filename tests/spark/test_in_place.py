"""An index on a store that is read in place: a task of the shuffle fetches the blocks that its sets need."""

from __future__ import annotations

import math
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.index_files import names
from support.segments import cut_every
from support.strategies import COMMON_NAMES

import tagmatch.model.storage.partial as partial
import tagmatch.model.storage.repository as repository
from tagmatch import Circle, IndexCorruptError, IndexNotFoundError, Near, TagMatch
from tagmatch.model.clock import now_us
from tagmatch.model.columns import strings_of
from tagmatch.model.kernels.hashing import hash_strings
from tagmatch.model.options import Layout
from tagmatch.model.storage.byte_store import ByteStore
from tagmatch.model.storage.folders import ArrowFolder
from tagmatch.model.storage.format import files_nbytes, files_of
from tagmatch.model.storage.repository import Repository, location_of
from tagmatch.model.where.constraints import Where
from tagmatch.partitioner.spark.batches import deserialized
from tagmatch.spark.answers import Answers
from tagmatch.spark.columns import AskedColumns
from tagmatch.spark.shuffle import PLACE, MetFilter, Shuffle, buckets_for, sent_queries, sent_sets

pytest_plugins = ["support.s3_bucket"]

LAYOUTS = [("rarest", "integer"), ("balanced", "string")]
KEYS: dict[str, Callable[[int], Any]] = {"integer": int, "string": "key {:05}".format}
HOUR = timedelta(hours=1)


@dataclass
class Counted:
    """What is read of a store, in bytes by table, and where this machine keeps it."""

    folder: Path
    of_tables: Counter[str] = field(default_factory=Counter)

    def forget(self) -> None:
        """As a machine that has read nothing yet."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.of_tables.clear()


def table_of(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted(tmp_path / "copies")
    found.folder.mkdir()
    read = ArrowFolder.read

    def counting(self: ArrowFolder, name: str, first: int = 0, last: int | None = None) -> bytes:
        contents = read(self, name, first, last)
        if last is not None:
            found.of_tables[table_of(name)] += len(contents)
        return contents

    monkeypatch.setattr(ArrowFolder, "read", counting)
    monkeypatch.delattr(ByteStore, "fetch")  # of whole files
    monkeypatch.setattr(repository, "folder_for_copies", lambda: found.folder)
    monkeypatch.setattr(partial, "BLOCK_BYTES", 1 << 10)
    return found


def plan_of(index: Any, bucket_sets: int, key_type: Any = "integer") -> Shuffle:
    location = location_of(index, "index")
    name = location.manifest()["snapshot"]
    buckets, _ = buckets_for(location.in_place(name), bucket_sets)
    labels = np.arange(2 * buckets.count)
    return Shuffle(location, name, now_us(), buckets, labels, AskedColumns(0), Answers(key_type=key_type))


def sets_of(plan: Shuffle, chunk: int, chunk_sets: int) -> list[tuple[tuple[str, ...], tuple[Any, ...]]]:
    """The sets that one task sends to buckets, with their keys.

    A set that has nothing but tags goes where a message with these looks for it.
    """
    found = []
    for number, records in deserialized(sent_sets(plan, chunk_sets, chunk)):
        if number > 2 * plan.buckets.count:
            continue  # the same once more, for another home
        for tags, keys in zip(records["tags"].to_pylist(), records["keys"].to_pylist(), strict=True):
            found.append((tuple(sorted(tags)), tuple(sorted(keys))))
            if tags and not any(tag.startswith("\0") for tag in tags):
                assert number // 2 in plan.buckets.of_hashes(hash_strings(strings_of(tags)))[1]
    return found


def test_sets_that_ask_for_a_place_alone_are_in_one_bucket_each(tmp_path: Path) -> None:
    with TagMatch(tmp_path / "index", device="cpu") as tm:
        tm.add_sets([[]] * 100, range(100), area=[Circle(9, 45, number) for number in range(90)] + [Near(1)] * 10)
        tm.consolidate()
    buckets = plan_of(tmp_path / "index", 20).buckets
    assert (buckets.names, buckets.has_others, buckets.count) == ({PLACE}, False, 5)


@pytest.mark.parametrize(("layout", "key_type"), LAYOUTS)
def test_a_task_reads_a_fraction(tmp_path: Path, counted: Counted, seed: int, layout: Any, key_type: Any) -> None:
    rng, chunk_sets, key = random.Random(seed), 1000, KEYS[key_type]
    names = [f"tag number {number}" for number in range(20_000)]
    sets = [[*rng.sample(names, 4), names[int(50 * rng.random() ** 2)]] for _ in range(20_000)]
    (tmp_path / "index").mkdir()
    index = Repository.at((tmp_path / "index").as_uri())
    with TagMatch(layout=layout, key_type=key_type, device="cpu") as tm:
        tm.add_sets(sets, list(map(key, range(len(sets)))))
        tm.consolidate()
        gone = range(0, len(sets), 7)  # a segment as large as this stays, and says which of its rows are deleted
        tm.remove_sets([sets[number] for number in gone], list(map(key, gone)))
        tm.consolidate()
        index.save(tm.snapshot)
    plan = plan_of(index, 50_000, key_type)
    sizes = Counter[str]()
    for path, expected in files_of(plan.index.manifest()["segments"]).items():
        sizes[table_of(path)] += expected["bytes"]
    # No tag is so frequent that its sets would go to several buckets: hashes and frequencies are read, for the filter
    assert counted.of_tables.total() < files_nbytes(plan.index.manifest()) / 5
    assert not plan.buckets.has_others
    found = []
    for chunk in range(20):
        counted.forget()
        found += sets_of(plan, chunk, chunk_sets)
        # Of rows and keys a twentieth is asked for, in whole blocks; of tags, all that these sets have
        for table in ("tagsets", "keys"):
            assert 0 < counted.of_tables[table] < sizes[table] / 20 + 8 * partial.BLOCK_BYTES
        assert counted.of_tables.total() < sizes.total() / 2
        assert counted.of_tables["partitions"] <= 3 * partial.BLOCK_BYTES
    assert sorted(found) == sorted(
        (tuple(sorted(set(tags))), (key(number),)) for number, tags in enumerate(sets) if number % 7
    )
    # What is there is not read again, by this process or another
    counted.of_tables.clear()
    last = sets_of(plan, 19, chunk_sets)
    assert last == found[-len(last) :]
    assert not counted.of_tables


def sent(plan: Shuffle, met_filter: MetFilter | None, queries: list[list[str]]) -> list[list[str]]:
    """The queries that come to buckets, once for each that they come to."""
    tags = pa.array(queries, pa.list_(pa.string()))
    numbers = pa.array(np.arange(len(queries)))
    rows = pa.StructArray.from_arrays([tags], ["tags"])
    batch = pa.record_batch([rows, numbers, numbers], ["query", "spread", "id"])
    batches = sent_queries([batch], plan, met_filter, merged=False, at_home=False)
    return [query for _, records in deserialized(batches) for query in records["tags"].to_pylist()]


@pytest.mark.parametrize("layout", get_args(Layout))
def test_tags_that_no_set_is_met_by_send_a_query_nowhere(tmp_path: Path, layout: Any) -> None:
    """Unknown tags and, as far as the driver knows it, tags of sets that all have a rarer one; by constraints, too."""
    path, stored = tmp_path / "index", [[f"rare {number}", "in all sets"] for number in range(500)]
    with TagMatch(path, layout=layout, device="cpu") as tm:
        tm.add_sets(stored, range(500))
        tm.consolidate()
    plan, location = plan_of(path, 10), location_of(path, "index")
    buckets, met_filter = buckets_for(location.in_place(plan.snapshot), 10)
    assert buckets.count == plan.buckets.count == 50
    unknown = [[f"unknown {number}"] for number in range(2000)]
    assert len(sent(plan, None, unknown)) == 2000
    assert len(sent(plan, met_filter, unknown)) < 2000 / 8
    assert sorted(sent(plan, met_filter, stored)) == sorted(stored)  # to the bucket of the rarer tag
    assert len(sent(plan, None, stored)) > 500
    _, none = buckets_for(location.in_place(plan.snapshot), 10, filtered=500)  # of 501 tags
    assert none is None


@given(st.lists(st.integers(0, 2**64 - 1), max_size=300), st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_a_filter_tells_all_that_are_among(known: list[int], others: list[int]) -> None:
    halves = [np.array(known[part::2], np.uint64) for part in range(2)]
    found = MetFilter.of(halves)
    assert all(found.among(half).all() for half in halves)
    assert found.among(np.array([*known, *others], np.uint64))[: len(known)].all()
    assert 8 * len(found.bits) <= max(64, 16 * max(1, len(known)))


ROWS = st.lists(
    st.tuples(
        st.frozensets(st.sampled_from(sorted(COMMON_NAMES)), max_size=3),
        st.integers(0, 20),
        st.sampled_from([None, None, "price < 3", "not price < 3", 'city = "Rome"']),
        st.sampled_from([None, None, HOUR, 2 * HOUR]),
    ),
    min_size=1,
    max_size=40,
)


@given(
    batches=st.lists(ROWS, min_size=1, max_size=3),
    kind=st.sampled_from([*LAYOUTS, ("balanced", "integer")]),
    hours=st.sampled_from([0.0, 1.5, 3.0]),
    sizes=st.tuples(st.sampled_from([50, 200, 1000]), st.sampled_from([64, 4096]), st.sampled_from([4096, 1 << 20])),
)
def test_all_that_sets_may_have(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Any]], kind: Any, hours: float, sizes: Any
) -> None:
    """Segments, removals, keys that expire, conditions, and tables in parts; the stored sets are sent."""
    folder, (layout, key_type), (chunk_sets, block, part) = tmp_path_factory.mktemp("store"), kind, sizes
    copies, key_of = tmp_path_factory.mktemp("copies"), KEYS[key_type]
    stored = defaultdict[tuple[Any, str | None], dict[Any, float]](dict)
    many = [(frozenset([f"tag {number}"]), number, None, HOUR if number % 2 else None) for number in range(600)]
    with TagMatch(layout=layout, key_type=key_type, device="cpu", max_partition_size=5) as tm:
        for rows in (many, *batches):
            for tags, number, where, lasts in rows:
                tm.add_set(tags, key_of(number), where=where, expires=lasts)
                stored[tags, where][key_of(number)] = math.inf if lasts is None else lasts / HOUR
            tm.consolidate()
        for tags, number, where, _ in (batches[0][0], *many[::3]):
            tm.remove_set(tags, key_of(number), where=where)
            del stored[tags, where][key_of(number)]
        tm.consolidate()
        with cut_every(part):
            Repository.at(folder.as_uri()).save(tm.snapshot)
    with (
        patch.object(partial, "BLOCK_BYTES", block),
        patch.object(repository, "folder_for_copies", lambda: copies),
    ):
        plan = plan_of(Repository.at(folder.as_uri()), chunk_sets, key_type)
        plan = replace(plan, now=plan.now + int(hours * 3_600_000_000))
        sent = [each for chunk in range(30) for each in sets_of(plan, chunk, chunk_sets)]
    found = dict[tuple[Any, str | None], Any]()
    for row, keys in sent:
        (where,) = [str(Where.of_tag(tag)) for tag in row if tag.startswith("\0")] or [None]
        place = frozenset(tag for tag in row if not tag.startswith("\0")), where
        assert place not in found
        found[place] = keys
    left = {place: tuple(sorted(key for key, lasts in keys.items() if lasts > hours)) for place, keys in stored.items()}
    assert {place: keys for place, keys in found.items() if keys} == {
        place: keys for place, keys in left.items() if keys
    }


def test_what_is_damaged(bucket: Any, uri: str, counted: Counted) -> None:
    """A file that is missing, cut short or another one, and a snapshot that is replaced while it is read."""
    location = location_of(uri, "index")
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[f"t{number}"] for number in range(5000)], range(5000))
        tm.consolidate()
        location.save(tm.snapshot)
        plan = plan_of(uri, 1000)
        (tags,) = (name for name in names(bucket) if name.endswith("tagsets.arrow"))
        contents = bucket[0].open_input_file(tags).readall()
        half = contents[: len(contents) // 2].ljust(len(contents) - 3000, b"\xff") + contents[-3000:]
        for damage, message in (
            (contents[:-5], "is damaged: .*tagsets.arrow is cut short"),
            (bytes(len(contents)), "is damaged: "),
            (half, "points beyond its data"),
            (None, r"lacks a file: .*tagsets.arrow"),
        ):
            counted.forget()
            bucket[0].delete_file(tags)
            if damage:
                with bucket[0].open_output_stream(tags) as sink:
                    sink.write(damage)
            with pytest.raises(IndexCorruptError, match=message):
                [sets_of(plan, chunk, 1000) for chunk in range(5)]
        location.save(tm.snapshot)
        counted.forget()
        there = location.in_place(plan.snapshot)
        tm.add_set(["new"], 7)
        tm.consolidate(full=True)
        location.save(tm.snapshot)
    with pytest.raises(IndexNotFoundError, match=r"no longer has snapshot-.*: a newer snapshot was saved"):
        there.fetch_rows(there.snapshot.segments[0], 0, 5000)
    with pytest.raises(IndexNotFoundError, match="no longer has"):
        sets_of(plan, 0, 1000)
    assert len(sets_of(plan_of(uri, 1000), 5, 1000)) == 1
    # Of the snapshot before nothing is left
    assert len([path for path in counted.folder.rglob("segment-*") if path.is_dir()]) == 1


@pytest.mark.usefixtures("bucket")
def test_the_driver_finds_columns_of_data_at_the_ends_of_tables(tmp_path: Path, uri: str, counted: Counted) -> None:
    """Of an index on a store, which it does not copy."""
    types = {"name": "string", "size": "int64", "kind": "dictionary"}
    with TagMatch(tmp_path / "index", device="cpu", threads=1, data=types) as tm:
        rows = [{"name": f"the name of {key}", "size": key, "kind": f"kind {key % 3}"} for key in range(3000)]
        data = {name: [row[name] for row in rows] for name in types}
        tm.put_many(pa.table({"tags": [[f"tag {key}", "a"] for key in range(3000)], "key": range(3000), **data}))
        tm.consolidate()
        tm.save(uri)
    location = location_of(uri, "index")
    counted.forget()
    given: dict[str, Any] = {"limit": None, "order_by": None, "score": None}
    manifest = location.manifest()
    found = Answers.of(location, manifest, output="rows", only="size > 1", columns=["kind"], **given)
    assert [field.name for field in found.fields] == ["key", "kind"]
    assert 0 < sum(counted.of_tables.values()) < files_nbytes(manifest) / 5
    # Nor does a task of the shuffle look at records, whose dictionaries stand before the places of columns
    plan = plan_of(uri, 1000)
    assert len(sets_of(plan, 0, 1000)) == 1000
    assert counted.of_tables["records"] < files_nbytes(manifest) / 20
    # If data is asked for, it does
    asked = replace(plan, answers=replace(found, on=()))
    sent = {
        key: data
        for _, records in deserialized(sent_sets(asked, 1000, 1))
        for keys, own in zip(records["keys"].to_pylist(), records["data"].to_pylist(), strict=True)
        for key, data in zip(keys, own, strict=True)
    }
    assert len(sent) == 1000
    assert all(data == {"kind": f"kind {key % 3}", "size": key} for key, data in sent.items())
