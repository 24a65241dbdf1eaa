"""Indexes of earlier versions are opened, answer, and are written as today; tables are cut into parts."""

import gc
import json
import mmap
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support.agreement import assert_agree, assert_records, index_of
from support.conditions import Message
from support.index_files import MANIFEST, contents_of, read_manifest
from support.old_formats import CONTENTS, DATA, SETS
from support.segments import cut_every

import tagmatch
from tagmatch import IndexCorruptError, IndexVersionError, TagMatch, TagMatchError
from tagmatch.model.options import Layout
from tagmatch.model.storage.format import FORMAT_VERSION
from tagmatch.model.storage.tables import OpenFile, TableFile, read_table_file

EVERYTHING = [tag for tags in SETS for tag in tags]
QUERIES = [
    [*SETS[4], *SETS[9], *SETS[33]], ["all"], ["new", "staged", "é"], [], EVERYTHING,
    Message(EVERYTHING, {"x": 9, "y": True, "name": "IBM é", "city": ["Oslo", "Rome"], "list price": 1.5}),
    Message([*EVERYTHING, "staged", "sold"], {"x": 0.5, "y": True, "name": "é", "list price": float("nan")}),
]  # fmt: skip
OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}


def format_of(index: Path) -> int:
    found: int = json.loads((index / MANIFEST).read_text())["format"]
    return found


def test_every_format_is_here() -> None:
    found = {f"{name}-{each}.index": int(name[-1]) for name in CONTENTS for each in get_args(Layout)}
    assert {path.name for path in DATA.iterdir()} == {*found, "README.md"}
    assert {name: format_of(DATA / name) for name in found} == found
    assert set(found.values()) == set(range(1, FORMAT_VERSION + 1)), "one that the last version wrote is missing"


@pytest.mark.parametrize("name", CONTENTS)
def test_it_answers_and_can_be_changed_kept_copied_and_restored(tmp_path: Path, name: str, layout: str) -> None:
    index, oracle = Path(shutil.copytree(DATA / f"{name}-{layout}.index", tmp_path / "index")), Oracle()
    key_type, fill = CONTENTS[name]
    fill(oracle)
    before, stored, staged = contents_of(index), dict(oracle), oracle.staged
    # Snapshots without a number count as 0; formats 4 to 8 are for what an index has, as keys that expire
    number, written_as = int(format_of(index) >= 4), max(3, format_of(index))
    with TagMatch.open(index, key_type=key_type, **OPTIONS) as tm:
        assert_agree(tm, oracle, QUERIES)
        assert_records(tm, oracle)
        stats = tm.stats()
        assert (stats["layout"], stats["max_partition_size"], stats["number"]) == (layout, 7, number)
        assert stats["staged"] == staged
    assert contents_of(index) == before, "to read it changes it"
    tagmatch.backup(index, tmp_path / "backup")
    with TagMatch(index, layout=layout, max_partition_size=7, keep_snapshots=1, **OPTIONS) as tm:
        for database in (tm, oracle):
            database.add_set(["one", "more"], 5 if key_type == "integer" else "five")
            database.remove_set(SETS[12], next(iter(dict(oracle)[frozenset(SETS[12])])))
            database.consolidate()
        assert_agree(tm, oracle, QUERIES)
    with TagMatch.open(index, **OPTIONS) as tm:
        assert_agree(tm, oracle, QUERIES)
        assert_records(tm, oracle)
        assert (tm.stats()["number"], tm.stats()["staged"]) == (number + 1, 0)
    earlier = Oracle()
    fill(earlier)
    with TagMatch.open(index, snapshot=number, **OPTIONS) as tm:
        assert_agree(tm, earlier, QUERIES)
    tagmatch.restore(tmp_path / "backup", tmp_path / "restored")
    assert format_of(tmp_path / "restored") == written_as
    with TagMatch.open(tmp_path / "restored", **OPTIONS) as tm:
        assert (dict(tm), tm.stats()["staged"]) == (stored, staged)
        tm.consolidate()
        earlier.consolidate()
        assert_agree(tm, earlier, QUERIES)
        assert_records(tm, earlier)


@pytest.mark.parametrize("tag", ["\0+x", "\0-rprice\0[1:x", "\0=a\0b1", "\0+"])
def test_tags_that_stand_for_constraints_by_now_are_refused(tmp_path: Path, tag: str) -> None:
    """Versions before format 5 stored them as any other tag, and said nothing of them in the manifest."""
    index = tmp_path / "index"
    none: Any = lambda *_: None  # noqa: E731
    with (
        patch("tagmatch.model.columns.is_reserved", none),
        patch("tagmatch.model.storage.tables.has_reserved", none),
        TagMatch(index, **OPTIONS) as tm,
    ):
        tm.add_set(["a", tag], 7)
        with suppress(TagMatchError):  # it is saved, but what answers takes the tag for a constraint
            tm.consolidate()
    assert format_of(index) == 3
    with pytest.raises(IndexVersionError, match="which format 5 reserves for constraints"):
        TagMatch.open(index, **OPTIONS)


ROWS = [[f"tag {i % 311}", f"rare {i}", "all"][: i % 4] for i in range(1500)]
KEYS = [f"key {i} é" for i in range(len(ROWS))]
ASKED = [["all", "tag 7", "rare 7"], ["tag 310", "rare 621", "all"], []]


def build(path: Path, layout: Any) -> None:
    index_of(ROWS, KEYS, path, layout=layout, key_type="string", max_partition_size=9, **OPTIONS).close()


def right(tags: list[str]) -> list[str]:
    return sorted(key for own, key in zip(ROWS, KEYS, strict=True) if set(own) <= set(tags))


def answers(path: Path) -> list[list[str]]:
    with TagMatch.open(path, **OPTIONS) as tm:
        tm.check()
        return [sorted(tm.match(tags)) for tags in ASKED]


@pytest.fixture(params=get_args(Layout))
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    with cut_every():
        build(tmp_path / "index", request.param)
    return tmp_path / "index"


def names(index: Path) -> list[str]:
    (segment,) = read_manifest(index)["segments"]
    return sorted(f"{segment['name']}/{name}" for name in segment["files"])


def test_parts_have_the_bytes_of_one_file(index: Path, tmp_path: Path) -> None:
    """In a newer format, as older versions look for tables under their names alone."""
    build(tmp_path / "whole", read_manifest(index)["layout"])
    joined: dict[str, bytes] = {}
    for name in names(index):
        table = Path(name).name.partition(".arrow")[0]
        joined[table] = joined.get(table, b"") + (index / name).read_bytes()
    assert joined == {Path(name).stem: (tmp_path / "whole" / name).read_bytes() for name in names(tmp_path / "whole")}
    counts = [sum(f"/{table}.arrow." in name for name in names(index)) for table in ("tagsets", "keys", "vocabulary")]
    assert min(counts) > 2, "the index is too small for this test"
    assert read_manifest(tmp_path / "whole")["format"] < read_manifest(index)["format"] == 7


def test_they_are_mapped_as_one_array(index: Path) -> None:
    def mapped() -> list[str]:
        found = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
        return sorted(path.removeprefix(f"{index}/") for path in found if path.startswith(f"{index}/segment-"))

    with TagMatch.open(index, **OPTIONS) as tm:
        assert [sorted(tm.match(tags)) for tags in ASKED] == list(map(right, ASKED))
        assert mapped() == names(index)
        tm.add_set(["new"], "new")
        assert sorted(tm.match([])) == right([])
    del tm
    gc.collect()
    assert mapped() == [], "they stay mapped"


@pytest.mark.slow
def test_a_part_that_is_damaged_missing_or_short_is_named(index: Path) -> None:
    for name in names(index):
        good = (index / name).read_bytes()
        for bad in (None, good[:-1], good[:-1] + bytes([good[-1] ^ 1]), good):
            (index / name).unlink(missing_ok=True)
            if bad is not None:
                (index / name).write_bytes(bad)
            if bad != good:
                with pytest.raises(IndexCorruptError, match=Path(name).name):
                    TagMatch.open(index, **OPTIONS)
    assert answers(index) == list(map(right, ASKED))
    # Parts that are not whole pages: as of an index that was cut for machines with smaller ones
    with cut_every(mmap.PAGESIZE // 2), TagMatch.open(index, **OPTIONS) as tm:
        tm.save(index)
    with pytest.raises(IndexCorruptError, match=r"arrow\.00000 has \d+ bytes, which are not whole pages"):
        TagMatch.open(index, **OPTIONS)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=200), st.integers(1, 3000))
def test_any_table_cut_anywhere_is_whole_again(tmp_path_factory: Any, rows: list[list[int]], size: int) -> None:
    folder = tmp_path_factory.mktemp("table")
    table = pa.table({"a": pa.array(rows, pa.list_(pa.uint32())), "b": pa.array([str(row) for row in rows])})
    whole = TableFile.of("t.arrow", table, size)
    # In no order, as many processes write them
    for number in reversed(range(whole.parts)):
        whole.write(number, folder / whole.part_name(number))
    written = [folder / whole.part_name(number) for number in range(whole.parts)]
    assert all(file.stat().st_size == size for file in written[:-1])
    joined = b"".join(file.read_bytes() for file in written)
    with pa.ipc.open_file(pa.py_buffer(joined)) as reader:
        assert reader.read_all() == table
    if whole.parts == 1 or size % mmap.PAGESIZE == 0:
        assert read_table_file([OpenFile.at(file) for file in written]) == table
