"""`backup` and `restore`: what a copy has, of an index that is being changed too; what they refuse; and stores."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.fs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import assert_agree
from support.index_files import contents_of, files_of

from tagmatch import (
    IndexChangedError,
    IndexCorruptError,
    IndexExistsError,
    IndexLockedError,
    IndexNotFoundError,
    InvalidTypeError,
    InvalidValueError,
    Near,
    TagMatch,
    TagMatchError,
    backup,
    restore,
)
from tagmatch.model.storage import copies
from tagmatch.model.storage import folder as in_folder
from tagmatch.model.storage.folder import Folder
from tagmatch.model.storage.format import first_log_of
from tagmatch.model.storage.journal.journal import Journal
from tagmatch.model.storage.journal.records import single_record
from tagmatch.model.storage.store_folder import StoreFolder

pytest_plugins = ["support.s3_bucket"]

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
LOGGED: dict[str, Any] = {**OPTIONS, "durability": "os"}
QUERIES = [list(strategies.COMMON_TAGS + strategies.NUMBERED_TAGS), []]


def stored(path: Any) -> dict[Any, Any]:
    with TagMatch.open(path, **OPTIONS) as tm:
        tm.check()
        return dict(tm)


def with_staged(path: Path) -> dict[Any, Any]:
    """What there is when what is staged has taken effect."""
    with TagMatch.open(path, **OPTIONS) as tm:
        tm.consolidate()
        return dict(tm)


def saved_index(path: Path, sets: dict[tuple[str, ...], int], staged: dict[tuple[str, ...], int] | None = None) -> Path:
    with TagMatch(path, **LOGGED) as tm:
        tm.add_sets(list(sets), list(sets.values()))
        tm.consolidate()
        for tags, key in (staged or {}).items():
            tm.add_set(tags, key)
    return path


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return saved_index(tmp_path / "index", {("a",): 1, ("a", "b"): 2, (): 3}, {("staged",): 4, ("b",): 5})


ALL = {(frozenset(tags), (key,)) for tags, key in ((["a"], 1), (["a", "b"], 2), ([], 3), (["staged"], 4), (["b"], 5))}


# -- what a copy has ---------------------------------------------------------------------------------------------------


@strategies.fewer(3)
@given(
    rounds=st.lists(
        st.tuples(strategies.changes(strategies.pairs), st.sampled_from(["leave", "consolidate", "close", "back up"])),
        max_size=12,
    ),
    layout=strategies.layouts,
)
def test_a_copy_has_what_the_index_has(rounds: Any, layout: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """After any changes, staged in one log or in several, and copied over one another or for the first time."""
    folder, oracle = tmp_path_factory.mktemp("copies"), Oracle()
    path, place = folder / "index", folder / "backup"
    with TagMatch(path, layout=layout, **LOGGED) as tm:
        tm.consolidate(full=True)
    tm = TagMatch(path, layout=layout, **LOGGED)
    for changes, what in [*rounds, ([], "back up")]:
        for added, tags, key in changes:
            for database in (tm, oracle):
                (database.add_set if added else database.remove_set)(tags, key)
        if what == "consolidate":
            tm.consolidate()
            oracle.consolidate()
        elif what == "close":
            tm.close()
            tm = TagMatch(path, layout=layout, **LOGGED)
        elif what == "back up":
            copied = backup(path, place)
            assert (copied.sets, copied.staged) == (len(oracle), tm.stats()["staged"])
            _restored(place, folder, oracle)
    tm.close()


def _restored(place: Path, folder: Path, oracle: Oracle) -> None:
    """The backup, as it is and restored, has what the oracle has, and what it has staged is staged in order."""
    assert_agree(opened := TagMatch.open(place, **OPTIONS), oracle, QUERIES)
    opened.close()
    again = oracle.staged_again()
    for replace in (False, True):
        copied = restore(place, folder / "restored", replace=replace)
        assert copied.staged == oracle.staged
        with TagMatch.open(folder / "restored", **LOGGED) as tm:
            assert tm.stats()["staged"] == oracle.staged
            assert_agree(tm, oracle, QUERIES)
            tm.add_set(["last"], 1)
            tm.consolidate()
            again.add_set(["last"], 1)
            again.consolidate()
            assert_agree(tm, again, QUERIES)
            tm.add_set(["not in the copy"], 1)
    shutil.rmtree(folder / "restored")


def test_only_what_is_new_is_copied(tmp_path: Path) -> None:
    path, place = tmp_path / "index", tmp_path / "backup"
    with (
        patch("tagmatch.partitioner.consolidation.FEW_SETS", 0),
        patch("tagmatch.merging.Merging.begin"),
        TagMatch(path, **OPTIONS) as tm,
    ):
        tm.add_sets([[f"t{i}", "all"] for i in range(3_000)], range(3_000))
        tm.consolidate()
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
        if name.startswith("MANIFEST"):
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
    """With what was staged in the first one, and in the second one too."""
    restore(index, tmp_path / "second")
    with TagMatch(tmp_path / "second", **LOGGED) as tm:
        tm.add_set(["more"], 6)
        backup(tmp_path / "second", tmp_path / "third")
        assert tm.stats()["staged"] == 3
    assert set(with_staged(tmp_path / "third").items()) == ALL | {(frozenset(["more"]), (6,))}


def test_what_is_staged_stays_so_when_another_snapshot_is_saved_there(index: Path, tmp_path: Path) -> None:
    """Whether it came with a copy or not."""
    restore(index, tmp_path / "restored")
    for path in (index, tmp_path / "restored"):
        with TagMatch(**OPTIONS) as tm:
            tm.add_set(["saved"], 9)
            tm.consolidate()
            tm.save(path)
        assert with_staged(path) == {frozenset([tag]): (key,) for tag, key in (("saved", 9), ("staged", 4), ("b", 5))}


@pytest.mark.slow
@pytest.mark.parametrize("keep", [3, pytest.param(0, marks=pytest.mark.nightly)])
def test_while_a_program_writes(tmp_path: Path, keep: int) -> None:
    """Each copy has what was acknowledged before it began, and nothing that came after a change that it lacks."""
    path, place = tmp_path / "index", tmp_path / "backup"
    acknowledged, ended, failed = 0, threading.Event(), []
    with TagMatch(path, keep_snapshots=keep, **LOGGED) as tm:
        tm.add_sets([[f"base {i}"] for i in range(5_000)], range(5_000))
        tm.consolidate()

        def write() -> None:
            nonlocal acknowledged
            try:
                while not ended.is_set():
                    tm.add_set([f"n{acknowledged}"], acknowledged)
                    acknowledged += 1
                    if acknowledged % 7 == 0:
                        tm.consolidate(full=acknowledged % 5 == 0)
            except Exception as error:
                failed.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(12):
                before = acknowledged
                backup(path, place)
                after = acknowledged + 1
                restore(place, tmp_path / f"restored {number}")
                found = with_staged(tmp_path / f"restored {number}")
                count = len(found) - 5_000
                assert before <= count <= after
                assert all(found[frozenset([f"n{i}"])] == (i,) for i in range(count))
        finally:
            ended.set()
            writer.join()
        assert not failed
        assert acknowledged > 50


def test_files_that_go_while_it_is_copied(index: Path, tmp_path: Path) -> None:
    """A newer snapshot comes between the manifest and the files, or when these are open."""
    for module, function in ((in_folder, "read_plain"), (copies, "plain_file")):
        path = Path(shutil.copytree(index, tmp_path / f"index {function}"))
        place, real, done = tmp_path / f"backup {function}", getattr(module, function), []

        def changed(at: Path, name: str, path: Path = path, real: Any = real, done: Any = done) -> Any:
            found = real(at, name)
            if not done and at == path and Path(name).name in ("MANIFEST.json", "keys.arrow"):
                done.append(name)
                with TagMatch(path, **OPTIONS) as tm:
                    tm.add_set(["new"], 6)
                    tm.consolidate()
            return found

        with patch.object(module, function, changed):
            backup(path, place)
        assert done
        assert set(with_staged(place).items()) == ALL | {(frozenset(["new"]), (6,))}


def test_a_log_without_changes_that_goes_while_it_is_copied(tmp_path: Path) -> None:
    """A program removes it when its changes have been saved, after the manifest has replaced the one before."""
    path, real = saved_index(tmp_path / "index", {("a",): 1}), copies.plain_file
    journal = Journal.acquire(path, first_log_of(Folder(path).manifest()))
    journal.append(single_record(["b"], 2, removed=False), "os")
    journal.back_to(0)
    (log,) = path.glob("staged-*")

    def closed(at: Path, name: str) -> Any:
        if name == log.name:
            journal.close()
        return real(at, name)

    with patch.object(copies, "plain_file", closed):
        backup(path, tmp_path / "backup")
    assert not log.exists()
    assert with_staged(tmp_path / "backup") == {frozenset(["a"]): (1,)}


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_backup_replaces_backups_only(index: Path, tmp_path: Path) -> None:
    """Arguments that were swapped must not cost an index."""
    other = saved_index(tmp_path / "other", {("other",): 9})
    backup(index, tmp_path / "backup")
    changed = Path(shutil.copytree(tmp_path / "backup", tmp_path / "changed"))
    saved_index(changed, {("x",): 1})
    staged = Path(shutil.copytree(tmp_path / "backup", tmp_path / "staged"))
    with TagMatch(staged, **LOGGED) as tm:
        tm.add_set(["x"], 1)
    only_staged = tmp_path / "only staged"
    with TagMatch(only_staged, **LOGGED) as tm:
        tm.add_set(["x"], 1)
    damaged = Path(shutil.copytree(tmp_path / "backup", tmp_path / "damaged"))
    (damaged / "MANIFEST.json").write_bytes(b"{}")
    for target in (other, index, changed, staged, only_staged, damaged):
        before = contents_of(target)
        with pytest.raises(IndexExistsError, match=f"at {target} that is no backup, was changed .* another folder"):
            backup(index, target)
        assert contents_of(target) == before
    backup(other, tmp_path / "backup")
    assert stored(tmp_path / "backup") == {frozenset(["other"]): (9,)}


def test_an_index_is_replaced_only_if_that_is_said(index: Path, tmp_path: Path) -> None:
    other = saved_index(tmp_path / "other", {("other",): 9}, {("staged there",): 10})
    before = contents_of(other)
    with pytest.raises(IndexExistsError, match=f"there is an index at {other} already; with `replace`"):
        restore(index, other)
    assert contents_of(other) == before
    restore(index, other, replace=True)
    assert set(with_staged(other).items()) == ALL
    (other / "MANIFEST.json").write_bytes(b"damaged")
    with pytest.raises(IndexExistsError):
        restore(index, other)
    restore(index, other, replace=True)
    assert set(with_staged(other).items()) == ALL


@pytest.mark.parametrize("call", [backup, restore])
def test_what_is_not_an_index_is_left_alone(index: Path, tmp_path: Path, call: Any) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for target in (tmp_path / "mine", tmp_path / "mine" / "notes.txt"):
        with pytest.raises(IndexExistsError, match=r"(other files in it|is a file)"):
            call(index, target)
    with pytest.raises(IndexNotFoundError, match=r"there is no index at .*nothing: no such folder"):
        call(tmp_path / "nothing", tmp_path / "target")
    with pytest.raises(InvalidTypeError, match=r"(target|path) must be"):
        call(index, 7)
    with pytest.raises(InvalidValueError, match="is empty"):
        call("", tmp_path / "target")
    assert sorted(os.listdir(tmp_path)) == ["index", "mine"]
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]


def test_a_damaged_index_is_not_copied(index: Path, tmp_path: Path) -> None:
    """Each file, and the log: nothing is left at the target, or what was there."""
    place = tmp_path / "backup"
    backup(index, place)
    other = saved_index(tmp_path / "other", {("other",): 9}, {("staged there",): 10})
    before = contents_of(other)
    for source in (index, place):
        for file in files_of(source):
            good = file.read_bytes()
            damages = [good[:30] + bytes([good[30] ^ 1]) + good[31:], None]
            for bad in damages:
                file.unlink(missing_ok=True)
                if bad is not None:
                    file.write_bytes(bad)
                elif file.name.startswith("staged-"):
                    continue  # nothing says that it was there
                with pytest.raises((IndexCorruptError, IndexNotFoundError), match=str(source)) as told:
                    restore(source, other, replace=True)
                assert file.name in str(told.value)
                with pytest.raises((IndexCorruptError, IndexNotFoundError)):
                    restore(source, tmp_path / "new")
                file.unlink(missing_ok=True)
            file.write_bytes(good)
    assert contents_of(other) == before
    assert not (tmp_path / "new").exists()


def test_who_has_changes_staged_there_is_not_disturbed(index: Path, tmp_path: Path) -> None:
    other = saved_index(tmp_path / "other", {("other",): 9})
    with TagMatch(other, **LOGGED) as tm:
        tm.add_set(["more"], 10)
        with pytest.raises(IndexLockedError, match=f"staged for the index {other}; close it there"):
            restore(index, other, replace=True)
        tm.consolidate()
        assert tm.match(["more"]) == [10]
        restore(index, other, replace=True)  # nothing is staged any more
        tm.add_set(["too late"], 11)
        with pytest.raises(IndexChangedError):
            tm.consolidate()
        assert tm.reload()
        tm.consolidate()
        assert set(dict(tm).items()) == ALL | {(frozenset(["too late"]), (11,))}


def test_a_disk_that_is_full(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = saved_index(tmp_path / "other", {("other",): 9})
    before = contents_of(other)
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        for call in (
            lambda: restore(index, other, replace=True),
            lambda: restore(index, tmp_path / "new"),
            lambda: backup(index, tmp_path / "new"),
        ):
            with pytest.raises(TagMatchError, match=r"cannot write the index .*No space left"):
                call()
    assert contents_of(other) == before
    assert not (tmp_path / "new").exists()


# -- numbers -----------------------------------------------------------------------------------------------------------


def numbers(path: Any) -> list[int]:
    return [each.number for each in TagMatch.snapshots(path)]


def test_numbers_of_copies(tmp_path: Path) -> None:
    """A copy has the number of what it is a copy of, but where it replaces one that has a larger number."""
    path, place = tmp_path / "index", tmp_path / "backup"
    states: dict[int, Any] = {}
    with TagMatch(path, keep_snapshots=4, **OPTIONS) as tm:
        for number in range(1, 6):
            tm.add_set([f"t{number}"], number)
            tm.consolidate()
            states[number] = dict(tm)
            if number != 2:
                assert backup(path, place, keep_snapshots=2).number == number
    assert numbers(place) == [3, 4, 5]
    assert {number: stored_at(place, number) for number in (3, 4)} == {number: states[number] for number in (3, 4)}
    assert restore(place, tmp_path / "new", snapshot=4).number == 4
    assert stored(tmp_path / "new") == states[4]
    assert restore(place, path, snapshot=3, replace=True).number == 6
    assert (stored(path), numbers(path)) == (states[3], [2, 3, 4, 5, 6])
    assert restore(path, path, snapshot=2, replace=True).number == 7
    assert (stored(path), numbers(path)) == (states[2], [3, 4, 5, 6, 7])
    restore(place, tmp_path / "as it was")
    with TagMatch(tmp_path / "as it was", **OPTIONS) as tm:
        tm.add_set(["x"], 1)
        tm.consolidate()
    assert numbers(tmp_path / "as it was") == [5, 6], "it does not keep earlier snapshots as the first one did"
    with pytest.raises(IndexNotFoundError, match="does not keep a snapshot 1; it has 3, 4 and 5"):
        restore(place, tmp_path / "other", snapshot=1)


def stored_at(path: Any, number: int) -> Any:
    with TagMatch.open(path, snapshot=number, **OPTIONS) as tm:
        return dict(tm)


# -- stores ------------------------------------------------------------------------------------------------------------


def test_to_a_store_and_back(
    index: Path, tmp_path: Path, bucket: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = backup(index, uri)
    assert (first.sets, first.staged, first.old_bytes) == (3, 2, 0)
    assert stored(uri) == stored(index)
    uploaded: list[str] = []
    upload = StoreFolder.upload
    monkeypatch.setattr(
        StoreFolder, "upload", lambda store, file, name: (uploaded.append(name), upload(store, file, name))[1]
    )
    second = backup(index, uri)
    assert (second.old_bytes, [name.partition("-")[0] for name in uploaded]) == (_segments_bytes(index), ["changes"])
    restore(uri, tmp_path / "restored")
    assert set(with_staged(tmp_path / "restored").items()) == ALL
    with TagMatch(index, **OPTIONS) as tm:
        tm.consolidate()
    backup(index, uri)
    assert not any("changes-" in path for path in _paths(bucket)), "it is left behind"
    restore(uri, tmp_path / "restored", replace=True)
    assert set(stored(tmp_path / "restored").items()) == ALL
    with TagMatch(**OPTIONS) as tm:
        tm.save(uri)
    with pytest.raises(IndexExistsError, match=rf"s3a://{bucket[1]}/folder/index that is no backup"):
        backup(index, uri)
    with pytest.raises(IndexExistsError, match=rf"s3a://{bucket[1]}/folder/index already"):
        restore(index, uri)
    restore(index, uri, replace=True)
    assert stored(uri) == stored(index)


def _segments_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("segment-*/*"))


def _paths(bucket: Any) -> list[str]:
    return [info.path for info in bucket[0].get_file_info(pa.fs.FileSelector("", recursive=True))]


def test_a_store_with_damage(index: Path, tmp_path: Path, bucket: Any, uri: str) -> None:
    backup(index, uri)
    for name in ("/keys.arrow", ".log"):
        (path,) = (path for path in _paths(bucket) if path.endswith(name))
        good = bucket[0].open_input_file(path).readall()
        for bad, told in (
            (good[:-1] + b"x", "does not have the checksum"),
            (b"short", "checksum"),
            (None, "lacks a file"),
        ):
            bucket[0].delete_file(path)
            if bad is not None:
                with bucket[0].open_output_stream(path) as sink:
                    sink.write(bad)
            with pytest.raises(IndexCorruptError, match=rf"{bucket[1]}/folder/index.*{told}"):
                restore(uri, tmp_path / "restored")
            assert not (tmp_path / "restored").exists()
            if bad is None:
                with bucket[0].open_output_stream(path) as sink:
                    sink.write(good)
    with bucket[0].open_output_stream(path) as sink:
        sink.write(b"short")
    backup(index, uri)  # sees that by its size
    restore(uri, tmp_path / "restored")
    assert set(with_staged(tmp_path / "restored").items()) == ALL


def _positions(path: Any) -> dict[str, float]:
    """Clients by where they are, of those that ask for what is near."""
    with TagMatch.open(path, **OPTIONS) as tm:
        return {key: lon for lon in (1.0, 2.0, 3.0) for key in tm.match(["a"], location=(lon, 0))}


def _moving(path: Path) -> TagMatch[str]:
    tm: TagMatch[str] = TagMatch(path, key_type="string", **OPTIONS)
    tm.add_sets([["a"], ["a"]], ["ana", "bo"], area=Near(10))
    tm.move(["ana", "bo"], [1, 2], 0)
    tm.consolidate()
    return tm


def test_positions_come_with_copies(tmp_path: Path) -> None:
    """Those that were saved last; what is restored over an index has none but these."""
    index, copy, other = tmp_path / "index", tmp_path / "backup", tmp_path / "other"
    with _moving(index) as tm:
        first = backup(index, copy)
        assert _positions(copy) == {"ana": 1, "bo": 2}
        tm.move(["ana"], 3, 0)
        backup(index, copy)
        assert _positions(copy) == {"ana": 1, "bo": 2}
        tm.save_positions()
        second = backup(index, copy, keep_snapshots=1)
        assert _positions(copy) == {"ana": 3, "bo": 2}
        assert first.new_bytes > second.new_bytes > 0
    restore(copy, other)
    assert _positions(other) == {"ana": 3, "bo": 2}
    restore(copy, other, snapshot=TagMatch.snapshots(copy)[0].number, replace=True)
    assert _positions(other) == {}
    assert not list(other.glob("POSITIONS*"))
    restore(copy, other, replace=True)
    assert _positions(other) == {"ana": 3, "bo": 2}


def test_positions_that_cannot_be_copied_change_nothing(tmp_path: Path) -> None:
    index, copy, other = tmp_path / "index", tmp_path / "backup", tmp_path / "other"
    with _moving(index) as tm:
        backup(index, copy)
        tm.move(["ana"], 3, 0)
        tm.save_positions()
        backup(index, other)
    before = contents_of(copy)
    with (
        patch("tagmatch.model.storage.folder.replace_file", side_effect=OSError("no space")),
        pytest.raises(TagMatchError, match="no space"),
    ):
        restore(other, copy, replace=True)
    assert contents_of(copy) == before
    file = other / "POSITIONS.arrow"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(IndexCorruptError, match=f"the positions in {file} are damaged"):
        restore(other, copy, replace=True)
    assert contents_of(copy) == before


def test_positions_go_to_stores_and_back(tmp_path: Path, bucket: Any, uri: str) -> None:
    with _moving(tmp_path / "index") as tm:
        backup(tmp_path / "index", uri)
        restore(uri, tmp_path / "restored")
        assert _positions(tmp_path / "restored") == {"ana": 1, "bo": 2}
        backup(tmp_path / "index", uri)
        tm.move(["ana"], 3, 0)
        tm.consolidate()
        backup(tmp_path / "index", uri)
        restore(uri, tmp_path / "restored", replace=True)
    assert _positions(tmp_path / "restored") == {"ana": 3, "bo": 2}
    assert [path for path in _paths(bucket) if "POSITIONS" in path] == ["folder/index/POSITIONS.arrow"]
