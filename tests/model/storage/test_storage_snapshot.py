import shutil
from typing import get_args
from unittest.mock import Mock

import pytest
from support.agreement import index_of
from support.index_files import contents_of, files_of, with_manifest

from tagmatch import IndexCorruptError, IndexExistsError, IndexNotFoundError, IndexVersionError, TagMatch, TagMatchError
from tagmatch.model.options import Layout
from tagmatch.model.storage.format import FORMAT_VERSION
from tagmatch.model.storage.tables import tables_of

SETS = [["a", "b"], ["a"], ["b", "c", "d"], [], ["é", "日本"]]


@pytest.fixture(params=get_args(Layout))
def index(request, tmp_path):
    path = tmp_path / "index"
    index_of(SETS, range(5), path, layout=request.param, max_partition_size=2).close()
    return path


def test_what_is_opened_is_what_was_saved(index):
    with TagMatch.open(index) as tm:
        memory = index_of(SETS, range(5), layout=tm.stats()["layout"], max_partition_size=2)
        assert dict(tables_of(tm.snapshot.only)) == dict(tables_of(memory.snapshot.only))
        tm.check()
        assert sorted(tm.match(["a", "b", "é"])) == [0, 1, 3]


@pytest.mark.slow
def test_every_flipped_byte_is_noticed(index):
    for file in files_of(index):
        good = file.read_bytes()
        step = 1 if file.suffix == ".json" else 7
        for place in [*range(0, len(good), step), len(good) - 1]:
            bad = bytearray(good)
            bad[place] ^= 1 << (place % 8)
            file.write_bytes(bad)
            with pytest.raises((IndexCorruptError, IndexVersionError)) as error:
                TagMatch.open(index)
            assert str(index) in str(error.value)
        file.write_bytes(good)
    with TagMatch.open(index) as tm:
        tm.check()


def test_every_file_cut_short_or_missing_is_named(index):
    for file in files_of(index):
        good = file.read_bytes()
        for damage in (lambda file=file, good=good: file.write_bytes(good[: len(good) // 2]), file.unlink):
            damage()
            with pytest.raises((IndexCorruptError, IndexNotFoundError), match=file.name):
                TagMatch.open(index)
        file.write_bytes(good)


def test_a_newer_format_is_told_from_damage(index):
    with_manifest(index, lambda manifest: manifest.update(format=FORMAT_VERSION + 1))
    with pytest.raises(IndexVersionError, match="upgrade"):
        TagMatch.open(index)


def test_a_build_that_did_not_finish_is_no_index(index, tmp_path):
    half = tmp_path / "half"
    shutil.copytree(index, half)
    (half / "MANIFEST.json").unlink()
    with pytest.raises(IndexNotFoundError, match="did not finish"):
        TagMatch.open(half)
    index_of([["x"]], [1], half).close()
    with TagMatch.open(half) as tm:
        assert dict(tm) == {frozenset(["x"]): (1,)}


def test_a_folder_or_file_that_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(IndexExistsError):
            TagMatch(path)
    with TagMatch() as tm, pytest.raises(IndexExistsError):
        tm.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_failed_save_changes_nothing(index, monkeypatch):
    before = contents_of(index)
    with TagMatch(index, layout="rarest") as tm:
        tm.add_set(["new"], 9)
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left")))
            with pytest.raises(TagMatchError, match="No space left"):
                tm.consolidate()
        assert {name: data for name, data in contents_of(index).items() if not name.startswith("staged-")} == before
        assert (tm.match(["new"]), tm.stats()["staged"]) == ([3], 1)
        tm.add_set(["newer"], 10)
        tm.remove_set(["new"], 9)
        tm.consolidate()
    with TagMatch.open(index) as tm:
        assert sorted(tm.match(["new", "newer"])) == [3, 10]


def test_old_snapshots_are_removed_and_still_answer_who_has_them_open(index):
    with TagMatch.open(index) as reader, TagMatch.open(index) as writer:
        writer.add_set(["z"], 7)
        writer.consolidate()
        assert len([entry for entry in index.iterdir() if entry.is_dir()]) == 1
        assert reader.match(["z"]) == [3]
        assert sorted(writer.match(["z"])) == [3, 7]
        reader.check()


def test_another_layout_can_be_asked_for_at_opening(index, monkeypatch):
    for each in get_args(Layout):
        with TagMatch.open(index, layout=each, max_partition_size=1) as tm:
            tm.check()
            assert tm.stats()["layout"] == each
            assert sorted(tm.match(["a", "b"])) == [0, 1, 3]
    with TagMatch.open(index) as tm:
        (other,) = {*get_args(Layout)} - {tm.stats()["layout"]}
    monkeypatch.setattr("tagmatch.partitioner.consolidation.merged", None)
    if other == "balanced":
        with TagMatch(index) as tm:
            assert sorted(tm.match(["a", "b"])) == [0, 1, 3]
    with pytest.raises(TypeError, match="not callable"):
        TagMatch(index, layout=other)


def test_to_save_over_a_damaged_index_mends_it(index):
    """The named files may be damaged; programs that have them open mapped them before."""
    with TagMatch.open(index) as tm:
        (keys,) = index.glob("segment-*/keys.arrow")
        data = keys.read_bytes()
        keys.unlink()  # not written over, as it is mapped
        keys.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(IndexCorruptError):
            TagMatch.open(index)
        tm.save(index)
    with TagMatch.open(index) as tm:
        tm.check()
        assert sorted(tm.match(["a", "b"])) == [0, 1, 3]


def test_ctrl_c_while_a_folder_is_cleared_away_leaves_nothing(tmp_path, monkeypatch):
    """It comes once, before anything is removed."""
    rmtree = shutil.rmtree

    def interrupted(*_, **__):
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        raise KeyboardInterrupt

    with TagMatch(tmp_path / "index") as tm:
        tm.add_set(["a"], 1)
        monkeypatch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tm.consolidate()
    assert not list((tmp_path / "index").glob("unfinished-*"))
