"""`backup` and `restore`: what a copy has, of an index that is being changed too; what they refuse; and stores.

`test_state_machine.py` goes on with copies made at any time.
"""

import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.agreement import index_of
from support.index_files import contents_of, files_of, names

import tagmatch
from tagmatch import IndexCorruptError, IndexExistsError, IndexNotFoundError, TagMatch, backup, restore
from tagmatch.model.storage import folders
from tagmatch.model.storage.folders import ArrowFolder

pytest_plugins = ["support.s3_bucket"]

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
LOGGED: dict[str, Any] = {**OPTIONS, "durability": "os"}


def stored(path: Any) -> dict[Any, Any]:
    with TagMatch.open(path, **OPTIONS) as tm:
        tm.check()
        return dict(tm)


def with_staged(path: Path) -> dict[Any, Any]:
    """The contents when staged changes have taken effect."""
    with TagMatch.open(path, **OPTIONS) as tm:
        tm.consolidate()
        return dict(tm)


def saved_index(path: Path, sets: dict[str, int], staged: dict[str, int] | None = None) -> Path:
    """Each set is a word, whose letters are its tags."""
    with index_of(list(map(list, sets)), list(sets.values()), path, **LOGGED) as tm:
        for tags, key in (staged or {}).items():
            tm.add_set(list(tags), key)
    return path


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Of a snapshot, changes that are staged in two logs, and where clients are."""
    path = saved_index(tmp_path / "index", {"a": 1, "ab": 2, "": 3}, {"s": 4, "g": 6})
    with TagMatch(path, **LOGGED) as tm:
        for change in (tm.add_set, tm.remove_set):  # conditions have a log of another format
            change(["h"], 7, where="x = 1")
        tm.remove_set(["g"], 6)
        tm.add_set(["b"], 5)
    with TagMatch.open(path, **OPTIONS) as tm:
        tm.move([1], 9, 45)
        tm.save_positions()
    return path


ALL = {frozenset(tags): (key,) for tags, key in (("a", 1), ("ab", 2), ("", 3), ("s", 4), ("b", 5))}


@pytest.mark.usefixtures("segments_stay")
def test_only_what_is_new_is_copied(tmp_path: Path) -> None:
    path, place = tmp_path / "index", tmp_path / "backup"
    with index_of([[f"t{i}", "all"] for i in range(3_000)], range(3_000), path, **OPTIONS) as tm:
        first = backup(path, place)
        files = {file: file.stat().st_ino for file in files_of(place)}
        assert (first.old_bytes, first.new_bytes) == (0, _bytes(place))
        tm.add_set(["x"], 1)
        tm.remove_set(["t7", "all"], 7)
        tm.consolidate()
        second = backup(path, place)
        assert second.old_bytes > 20 * second.new_bytes > 0
        assert second.old_bytes + second.new_bytes == _bytes(place)
        for segment in place.glob("segment-*"):
            for file in segment.iterdir():
                assert files.get(file, file.stat().st_ino) == file.stat().st_ino, "it was written again"
        assert (second.number, stored(place)) == (2, dict(tm))
        third = backup(path, place)
        assert (third.new_bytes, third.old_bytes) == (0, _bytes(place))


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path) if not file.name.startswith("MANIFEST"))


def test_a_damaged_copy_is_mended_by_the_next(index: Path, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    backup(index, place)
    good = contents_of(place)
    for name in good:
        if name.startswith(("MANIFEST", "POSITIONS")):
            continue
        for bad in (good[name][:-1], b"", None):
            (place / name).unlink()
            if bad is not None:
                (place / name).write_bytes(bad)
            with pytest.raises(IndexCorruptError):
                TagMatch.open(place)
            backup(index, place)
            assert contents_of(place) == good


def test_a_copy_of_a_copy(index: Path, tmp_path: Path) -> None:
    restore(index, tmp_path / "second")
    with TagMatch(tmp_path / "second", **LOGGED) as tm:
        tm.add_set(["more"], 6)
        tm.remove_set(["s"], 4)
        backup(tmp_path / "second", tmp_path / "third")
        assert tm.stats()["staged"] == 8
    found = with_staged(tmp_path / "third")
    assert found == {**{tags: keys for tags, keys in ALL.items() if "s" not in tags}, frozenset(["more"]): (6,)}


def test_what_is_staged_stays_so_when_another_snapshot_is_saved_there(index: Path, tmp_path: Path) -> None:
    """Whether it came with a copy or not."""
    restore(index, tmp_path / "restored")
    for path in (index, tmp_path / "restored"):
        index_of([["saved"]], [9], **OPTIONS).save(path)
        assert with_staged(path) == {frozenset([tag]): (key,) for tag, key in (("saved", 9), ("s", 4), ("b", 5))}


@pytest.mark.parametrize("saves", [True, False])
def test_an_index_that_changes_while_it_is_copied(index: Path, tmp_path: Path, saves: bool) -> None:
    """A change, or a newer snapshot, comes between the manifest and the files, or when these are open."""
    real = folders.plain_file
    for opened in ("MANIFEST.json", "keys.arrow"):
        path = Path(shutil.copytree(index, tmp_path / f"index {opened}"))
        place, done = tmp_path / f"backup {opened}", list[str]()

        def changed(at: Path, name: str, path: Path = path, opened: str = opened, done: list[str] = done) -> Any:
            found = real(at, name)
            if not done and at == path and Path(name).name == opened:
                done.append(name)
                with TagMatch(path, **LOGGED) as tm:
                    tm.add_set(["new"], 6)
                    if saves:
                        tm.consolidate()
            return found

        with patch.object(folders, "plain_file", changed):
            backup(path, place)
        assert done
        more = {**ALL, frozenset(["new"]): (6,)}
        assert with_staged(place) in ([more] if saves else [more, ALL])


def test_a_backup_replaces_backups_only(index: Path, tmp_path: Path) -> None:
    """Arguments that were swapped must not cost an index."""
    other, place, only_staged = saved_index(tmp_path / "other", {"o": 9}), tmp_path / "backup", tmp_path / "only staged"
    backup(index, place)
    changed, staged, damaged = (
        Path(shutil.copytree(place, tmp_path / name)) for name in ("changed", "staged", "damaged")
    )
    saved_index(changed, {"x": 1})
    for path in (staged, only_staged):
        with TagMatch(path, **LOGGED) as tm:
            tm.add_set(["x"], 1)
    (damaged / "MANIFEST.json").write_bytes(b"{}")
    for target in (other, index, changed, staged, only_staged, damaged):
        before = contents_of(target)
        with pytest.raises(IndexExistsError, match=f"at {target} that is no backup, was changed .* another folder"):
            backup(index, target)
        assert contents_of(target) == before
    backup(other, place)
    assert stored(place) == {frozenset("o"): (9,)}


def test_an_index_is_replaced_only_if_that_is_said(index: Path, tmp_path: Path) -> None:
    other = saved_index(tmp_path / "other", {"o": 9}, {"t": 10})
    before = contents_of(other)
    with pytest.raises(IndexExistsError, match=f"there is an index at {other} already; `replace`"):
        restore(index, other)
    assert contents_of(other) == before
    restore(index, other, replace=True)
    assert with_staged(other) == ALL
    (other / "MANIFEST.json").write_bytes(b"damaged")
    with pytest.raises(IndexExistsError):
        restore(index, other)
    restore(index, other, replace=True)
    assert with_staged(other) == ALL


@pytest.mark.parametrize("call", [backup, restore])
def test_what_is_not_an_index_is_left_alone(index: Path, tmp_path: Path, call: Any) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for target in (tmp_path / "mine", tmp_path / "mine" / "notes.txt"):
        with pytest.raises(IndexExistsError, match=r"(other files in it|is a file)"):
            call(index, target)
    with pytest.raises(IndexNotFoundError, match=r"there is no index at .*nothing: no such folder"):
        call(tmp_path / "nothing", tmp_path / "target")
    with pytest.raises(tagmatch.InvalidTypeError, match=r"(target|path) must be"):
        call(index, 7)
    with pytest.raises(tagmatch.InvalidValueError, match="is empty"):
        call("", tmp_path / "target")
    assert sorted(os.listdir(tmp_path)) == ["index", "mine"]
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]


def test_a_damaged_index_is_not_copied(index: Path, tmp_path: Path) -> None:
    """Each file, and the log: nothing is left at the target, or its former contents."""
    place = tmp_path / "backup"
    backup(index, place)
    other = saved_index(tmp_path / "other", {"o": 9}, {"t": 10})
    before = contents_of(other)
    for source in (index, place):
        for file in files_of(source):
            good = file.read_bytes()
            flipped = good[:30] + bytes([good[30] ^ 1]) + good[31:]
            # Nothing says that a log was there, or that there were positions
            some = {"staged": [flipped], "POSITIONS.arrow": [good[:-20]]}.get(file.name.partition("-")[0])
            for bad in some or [flipped, None]:
                file.unlink()
                if bad is not None:
                    file.write_bytes(bad)
                for target, replace in ((other, True), (tmp_path / "new", False)):
                    with pytest.raises((IndexCorruptError, IndexNotFoundError), match=str(source)) as told:
                        restore(source, target, replace=replace)
                    assert file.name in str(told.value)
            file.write_bytes(good)
    assert contents_of(other) == before
    assert not (tmp_path / "new").exists()


def test_who_has_changes_staged_there_is_not_disturbed(index: Path, tmp_path: Path) -> None:
    other = saved_index(tmp_path / "other", {"o": 9})
    with TagMatch(other, **LOGGED) as tm:
        tm.add_set(["more"], 10)
        with pytest.raises(tagmatch.IndexLockedError, match=f"staged for the index {other}; close it there"):
            restore(index, other, replace=True)
        tm.consolidate()
        assert tm.match(["more"]) == [10]
        restore(index, other, replace=True)  # nothing is staged any more
        tm.add_set(["too late"], 11)
        with pytest.raises(tagmatch.IndexChangedError):
            tm.consolidate()
        assert tm.reload()
        tm.consolidate()
        assert dict(tm) == {**ALL, frozenset(["too late"]): (11,)}


@pytest.mark.slow
def test_to_a_store_and_back(index: Path, tmp_path: Path, bucket: Any, uri: str) -> None:
    first = backup(index, uri)
    assert (first.sets, first.staged, first.old_bytes) == (3, 6, 0)
    assert stored(uri) == stored(index)
    uploaded, put = [], ArrowFolder.put

    def noted(store: ArrowFolder, file: Any, name: str) -> Any:
        uploaded.append(name.partition("-")[0])
        return put(store, file, name)

    with patch.object(ArrowFolder, "put", noted):
        second = backup(index, uri)
    assert uploaded == ["changes", "changes", "POSITIONS.arrow"]
    assert second.old_bytes == sum(file.stat().st_size for file in index.glob("segment-*/*"))
    restore(uri, tmp_path / "restored")
    assert with_staged(tmp_path / "restored") == ALL
    with TagMatch(index, **OPTIONS) as tm:
        tm.consolidate()
    backup(index, uri)
    assert not any("changes-" in path for path in names(bucket)), "it is left behind"
    restore(uri, tmp_path / "restored", replace=True)
    assert stored(tmp_path / "restored") == ALL
    with TagMatch(**OPTIONS) as tm:
        tm.save(uri)
    with pytest.raises(IndexExistsError, match=rf"s3a://{bucket[1]}/folder/index that is no backup"):
        backup(index, uri)
    with pytest.raises(IndexExistsError, match=rf"s3a://{bucket[1]}/folder/index already"):
        restore(index, uri)
    restore(index, uri, replace=True)
    assert stored(uri) == stored(index)


@pytest.mark.slow
def test_a_store_with_damage(index: Path, tmp_path: Path, bucket: Any, uri: str) -> None:
    backup(index, uri)
    for name in ("/keys.arrow", ".log"):
        path, *_ = (path for path in names(bucket) if path.endswith(name))
        good = bucket[0].open_input_file(path).readall()
        for bad, told in ((good[:-1] + b"x", "checksum"), (b"short", "checksum"), (None, "lacks a file"), (good, "")):
            if bad is None:
                bucket[0].delete_file(path)
            else:
                with bucket[0].open_output_stream(path) as sink:
                    sink.write(bad)
            if told:
                with pytest.raises(IndexCorruptError, match=rf"{bucket[1]}/folder/index.*{told}"):
                    restore(uri, tmp_path / "restored")
                assert not (tmp_path / "restored").exists()
    with bucket[0].open_output_stream(path) as sink:
        sink.write(b"short")
    backup(index, uri)  # notices that by its size
    restore(uri, tmp_path / "restored")
    assert with_staged(tmp_path / "restored") == ALL
