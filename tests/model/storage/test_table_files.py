"""Tables that are cut into parts: the bytes are those of one file, and readers have them as one array, mapped."""

import gc
import mmap
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.crafted import read_manifest
from support.parts import cut_every

import tagmatch
from tagmatch import IndexCorruptError, TagMatch
from tagmatch.model.options import Layout
from tagmatch.model.storage.format import FORMAT_VERSION
from tagmatch.model.storage.mapped import OpenFile
from tagmatch.model.storage.table_files import TableFile, read_table_file

SETS = [[f"tag {i % 311}", f"rare {i}", "all"][: i % 4] for i in range(1500)]
KEYS = [f"key {i} é" for i in range(len(SETS))]
QUERIES = [["all", "tag 7", "rare 7"], ["tag 310", "rare 621", "all"], []]
OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}


def build(path: Path, layout: Any) -> None:
    with TagMatch(path, layout=layout, key_type="string", durability="none", max_partition_size=9, **OPTIONS) as tm:
        tm.add_sets(SETS, KEYS)
        tm.consolidate()


def right(tags: list[str]) -> list[str]:
    return sorted(key for own, key in zip(SETS, KEYS, strict=True) if set(own) <= set(tags))


def answers(path: Path, **options: Any) -> list[list[str]]:
    with TagMatch.open(path, **OPTIONS, **options) as tm:
        tm.check()
        return [sorted(tm.match(tags)) for tags in QUERIES]


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
    assert read_manifest(tmp_path / "whole")["format"] < read_manifest(index)["format"] == 7 == FORMAT_VERSION


def test_they_are_mapped_as_one_array(index: Path) -> None:
    def mapped() -> list[str]:
        found = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
        return sorted(path.removeprefix(f"{index}/") for path in found if path.startswith(f"{index}/segment-"))

    with TagMatch.open(index, **OPTIONS) as tm:
        assert [sorted(tm.match(tags)) for tags in QUERIES] == list(map(right, QUERIES))
        assert mapped() == names(index)
        tm.add_set(["new"], "new")
        assert sorted(tm.match([])) == right([])
    del tm
    gc.collect()
    assert mapped() == [], "they stay mapped"


def test_they_are_changed_kept_copied_and_restored(index: Path, tmp_path: Path) -> None:
    expected = list(map(right, QUERIES))
    tagmatch.backup(index, tmp_path / "backup")
    with cut_every(), TagMatch(index, keep_snapshots=1, **OPTIONS) as tm:
        tm.add_sets([[*tags, "more"] for tags in SETS], KEYS)
        tm.consolidate()
        assert sorted(tm.match(["more"])) == sorted(2 * right([]))
    assert answers(index, snapshot=1) == expected
    assert answers(index) == expected
    tagmatch.restore(tmp_path / "backup", tmp_path / "restored")
    assert answers(tmp_path / "restored") == expected
    assert names(tmp_path / "restored") == names(tmp_path / "backup")
    with TagMatch.open(index, **OPTIONS) as tm:
        tm.save(tmp_path / "saved")
    assert answers(tmp_path / "saved") == expected


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
    assert answers(index) == list(map(right, QUERIES))
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
