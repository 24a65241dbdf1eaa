"""Several writers of one index: staged changes outlast a program, one at a time stages, and losses are told."""

import errno
import fcntl
import gc
import os
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.agreement import index_of

from tagmatch import (
    IndexChangedError,
    IndexLockedError,
    IndexNotFoundError,
    InvalidValueError,
    StagedChangesWarning,
    TagMatch,
)
from tagmatch.model.storage import repository
from tagmatch.model.storage.log import Journal


@pytest.fixture
def index(path):
    index_of([["a"]], [1], path=path).close()
    return path


def keys(tm):
    return sorted(tm.match(["a", "b", "c"]))


def test_the_second_of_two_writers_keeps_its_changes_and_can_go_on(index):
    with TagMatch(index, durability="none") as a, TagMatch(index, durability="none") as b:
        for tm, tag, key in ((a, "b", 2), (b, "c", 3)):
            tm.add_set([tag], key)
        a.consolidate()
        for _ in range(2):
            with pytest.raises(IndexChangedError, match=r"another program has saved .*call reload\(\)"):
                b.consolidate()
            assert (keys(b), b.stats()["staged"]) == ([1], 1)
        assert b.reload()
        assert (keys(b), b.stats()["staged"]) == ([1, 2], 1)
        b.consolidate()
        assert keys(b) == [1, 2, 3]
        assert not b.reload()
        assert a.reload()
        assert keys(a) == [1, 2, 3]


def test_what_was_once_saved_is_not_taken_for_what_is_there(index):
    """The index comes back to what it was, by another writer; that is a change as well."""
    with TagMatch(index) as a, TagMatch(index) as b:
        a.add_set(["b"], 2)
        a.consolidate()
        b.reload()
        b.remove_set(["b"], 2)
        b.consolidate()
        a.add_set(["c"], 3)
        with pytest.raises(IndexChangedError):
            a.consolidate()
        a.reload()
        a.consolidate()
        assert keys(a) == [1, 3]


def test_an_index_that_was_removed_is_made_again(index):
    with TagMatch(index) as tm:
        index.rename(index.with_name("elsewhere"))
        tm.add_set(["b"], 2)
        with pytest.raises(IndexNotFoundError):
            tm.reload()
        assert (keys(tm), tm.stats()["staged"]) == ([1], 1)
        tm.consolidate()
        with TagMatch(index.with_name("nothing staged")) as other:
            other.consolidate()
    for place, found in ((index, [1, 2]), (index.with_name("nothing staged"), [])):
        assert keys(TagMatch.open(place)) == found


def test_changes_that_are_only_staged_are_no_index_yet(tmp_path):
    with TagMatch(tmp_path / "new") as tm:
        tm.add_set(["b"], 2)
    with pytest.raises(IndexNotFoundError, match=r"new: it has only staged changes; consolidate\(\) makes it an index"):
        TagMatch.open(tmp_path / "new")
    TagMatch(tmp_path / "new").consolidate()
    assert keys(TagMatch.open(tmp_path / "new")) == [2]


def test_reload_keeps_the_layout_that_was_asked_for(index):
    with TagMatch(index, layout="balanced", max_partition_size=3) as a:
        index_of([["b"]], [2], path=index).close()
        assert a.reload()
        a.check()
        assert (keys(a), a.stats()["layout"], a.stats()["max_partition_size"]) == ([1, 2], "balanced", 3)


def test_a_writer_waits_for_the_one_that_has_the_lock(index):
    with (index / "LOCK").open("ab") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writing = pool.submit(lambda: index_of([["b"]], [2], path=index).close())
        with TagMatch.open(index) as tm:  # readers do not wait
            assert keys(tm) == [1]
        assert not wait([writing], 0.2).done
        fcntl.flock(lock, fcntl.LOCK_UN)
        writing.result(60)


def test_what_a_killed_writer_left_goes(index):
    """Work of several machines stays, though none holds this lock."""
    left, job = index / "unfinished-1234", index / "unfinished-job-1"
    for folder in (left, job):
        folder.mkdir()
        (folder / "keys.arrow").write_bytes(b"half")
    with index_of([["c"]], [3], path=index) as tm:
        assert keys(tm) == [1, 3]
    assert list(index.glob("unfinished-*")) == [job]


def test_a_folder_is_enough_whose_parent_may_only_be_entered(tmp_path, monkeypatch):
    refused, real = [], os.open

    def refuse(name, *arguments, **options):
        if os.fspath(name) == str(tmp_path):
            refused.append(name)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(name, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    (tmp_path / "index").mkdir()
    index_of([["a"]], [1], path=tmp_path / "index", durability="none").close()
    assert refused
    assert keys(TagMatch.open(tmp_path / "index")) == [1]


LEAVE = {
    "close": lambda held: [tm.close() for tm in held * 2],
    "with": lambda held: held[0].__enter__().__exit__(None, None, None),
    "forget": lambda held: (held.clear(), gc.collect()),
}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
def test_changes_that_are_lost_are_told(tmp_path, leave):
    held = [TagMatch(tmp_path / "index", durability="none")]
    held[0].add_sets([["a"], ["b"]], [1, 2])
    assert not (tmp_path / "index").exists()
    assert "index', 0 sets, 2 staged changes, layout rarest>" in repr(held[0])
    with pytest.warns(StagedChangesWarning, match="2 staged changes of .*index are lost; call consolidate") as told:
        leave(held)
    assert len(told) == 1


def test_nothing_is_told_where_nothing_is_lost(index):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tm in (TagMatch(index), index_of([["a"]], [1])):
            assert "staged" not in repr(tm)
            tm.add_set(["b"], 2)
            with pytest.raises(TypeError), tm:  # tells enough
                tm.add_sets([["a"], None], [1, 2])


@pytest.mark.slow
def test_changes_that_are_lost_at_the_end_of_a_program_are_told():
    script = 'from tagmatch import TagMatch; tm = TagMatch(); tm.add_set(["a"], 1)'
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert "StagedChangesWarning: 1 staged change is lost; call" in done.stderr


def test_what_is_being_merged_is_not_taken_for_what_a_killed_program_left(index, monkeypatch):
    """Its files were removed one by one, and the rest of them was saved."""
    write_segment, location = repository.write_segment, repository.Repository.at(index)
    segment = location.open().only

    def removing(*arguments):
        monkeypatch.setattr(repository, "write_segment", write_segment)
        entry = write_segment(*arguments)
        index_of([["b"]], [2], path=index, device="cpu").close()
        return entry

    monkeypatch.setattr(repository, "write_segment", removing)
    with location.written_ahead(segment) as entry:
        assert all((index / entry["name"] / name).exists() for name in entry["files"])
    with TagMatch.open(index) as tm:
        tm.check()
        assert keys(tm) == [1, 2]


def test_one_at_a_time_stages_changes(path: Path) -> None:
    with TagMatch(path, device="cpu") as one, TagMatch(path, device="cpu") as other:
        one.add_set(["a"], 1)
        for change in (lambda: other.add_set(["b"], 2), lambda: other.add_sets([["b"]], [2])):
            with pytest.raises(IndexLockedError, match=r"another program, or another object.* has changes staged"):
                change()
        assert other.stats()["staged"] == 0
        one.consolidate()
        other.add_set(["b"], 2)
        with pytest.raises(IndexLockedError):
            one.add_set(["c"], 3)
        with pytest.raises(IndexChangedError):
            other.consolidate()
        other.reload()
        other.consolidate()
        assert sorted(other.match(["a", "b"])) == [1, 2]


def test_who_only_reads_takes_nothing(path: Path) -> None:
    with index_of([["a"]], [1], path=path, device="cpu") as tm:
        tm.add_set(["b"], 2)
        with TagMatch.open(path, device="cpu") as reader:
            assert (reader.stats()["staged"], reader.match(["a", "b"])) == (0, [1])
    with TagMatch.open(path, device="cpu") as reader, TagMatch.open(path, device="cpu") as writer:
        assert reader.stats()["staged"] == writer.stats()["staged"] == 1
        writer.consolidate()
        reader.reload()
        assert sorted(reader.match(["a", "b"])) == [1, 2]


@pytest.mark.parametrize("durability", [None, "none"])
def test_what_another_program_leaves_later_comes_first_as_well(path: Path, durability: Any) -> None:
    """It has the log when this object opens the index, and has ended when this one consolidates."""
    with index_of([["a"]], [0], path=path, device="cpu") as other:
        other.add_set(["a"], 1)
        tm = TagMatch(path, device="cpu", durability=durability)
        assert tm.stats()["staged"] == 0
    with tm:
        if durability == "none":
            tm.remove_set(["a"], 1)
        tm.consolidate()
        assert sorted(tm.match(["a"])) == ([0] if durability == "none" else [0, 1])
    assert not list(path.glob("staged-*"))


def test_a_torn_tail_is_told(path: Path) -> None:
    with TagMatch(path, device="cpu", durability="os") as tm:
        for key in range(3):
            tm.add_set(["a"], key)
    (log,) = path.glob("staged-*.log")
    log.write_bytes(log.read_bytes()[:-1])
    with TagMatch(path, device="cpu") as tm:
        assert tm.stats()["staged"] == 2
        with pytest.warns(StagedChangesWarning, match="not written wholly"):
            tm.consolidate()
        assert sorted(tm.match(["a"])) == [0, 1]


@pytest.mark.parametrize("durability", ["fsync", "os", None])
def test_what_could_not_be_staged_is_not_there_afterwards(tmp_path: Path, path: Path, durability: Any) -> None:
    """There is no memory for it when it is logged already, and then the program is killed."""
    with TagMatch(path, device="cpu", durability=durability) as tm:
        tm.add_set(["a"], 1)
        calls = (("append", lambda: tm.add_set(["b"], 2)), ("extend", lambda: tm.add_sets([["b"], ["c"]], [2, 3])))
        for name, call in calls:
            with patch(f"tagmatch.changing.StagedChanges.{name}", side_effect=MemoryError), pytest.raises(MemoryError):
                call()
            shutil.copytree(path, tmp_path / name)
            with TagMatch(tmp_path / name, device="cpu") as found:
                assert found.stats()["staged"] == tm.stats()["staged"] == 1


def test_another_program_saves_before_the_log_is_taken(tmp_path: Path, path: Path, monkeypatch: Any) -> None:
    """What is staged then goes to a log that counts."""
    with TagMatch(path, device="cpu") as tm, TagMatch(path, device="cpu") as other:
        acquire = Journal.acquire

        def later(*arguments: Any) -> Any:
            monkeypatch.setattr(Journal, "acquire", acquire)
            for key in (1, 2):
                other.add_set(["a"], key)
                other.consolidate()
            return acquire(*arguments)

        monkeypatch.setattr(Journal, "acquire", later)
        tm.add_set(["b"], 3)
        shutil.copytree(path, tmp_path / "copy")
    with TagMatch(tmp_path / "copy", device="cpu") as found:
        assert (found.stats()["staged"], sorted(found.match(["a"]))) == (1, [1, 2])


def move_away(path: Path, backup: Path) -> None:
    path.rename(path.parent / "moved")
    shutil.copytree(backup, path)


def copy_over(path: Path, backup: Path) -> None:
    """The folder and the files of locks stay: only the manifest says that the log does not count any more."""
    for file in path.glob("staged-*"):
        file.unlink()
    shutil.copytree(backup, path, dirs_exist_ok=True)


@pytest.mark.parametrize("replace", [move_away, copy_over, lambda path, _: shutil.rmtree(path)])
@pytest.mark.parametrize("later", [False, True])
def test_what_would_be_lost_is_not_acknowledged(tmp_path: Path, path: Path, replace: Any, later: bool) -> None:
    other = tmp_path / "backup"
    for each, count in ((path, 1 + 2 * (not later)), (other, 1 + 2 * later)):
        with TagMatch(each, device="cpu") as tm:
            for key in range(count):
                tm.add_set(["a"], key)
                tm.consolidate()
    with TagMatch(path, device="cpu", durability="fsync") as tm:
        tm.add_set(["b"], 40)
        replace(path, other)
        for call, tags, keys in ((tm.add_set, ["b"], 51), (tm.add_sets, [["b"]] * 2, [52, 53])) * 2:
            with pytest.raises(IndexChangedError, match=r"moved, removed or replaced.* consolidate\(\) saves them"):
                call(tags, keys)
        assert tm.stats()["staged"] == 1
        if path.exists():
            tm.reload()
        tm.consolidate()
        tm.add_set(["b"], 54)
        assert sorted(tm.match(["b"])) == [40]
    with TagMatch(path, device="cpu") as tm:
        tm.consolidate()
        assert sorted(tm.match(["b"])) == [40, 54]


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(("key_type", "other", "key"), [("string", "integer", "ana"), ("integer", "string", 7)])
def test_the_type_of_keys_without_a_snapshot(tmp_path: Path, moved: bool, key_type: Any, other: Any, key: Any) -> None:
    """Of those in its log, or of the clients that moved."""
    with TagMatch(tmp_path, device="cpu", key_type=key_type) as tm:
        if moved:
            tm.move([key], 9.0, 45.0)
            tm.save_positions()
        else:
            tm.add_sets([["a"]], [key])
    message = (
        f'have key_type "{key_type}", not "{other}": open' if moved else f'have keys of key_type "{key_type}".*open it'
    )
    with (
        pytest.raises(InvalidValueError, match=f"{message}.* key_type="),
        TagMatch(tmp_path, device="cpu", key_type=other) as tm,
    ):
        tm.consolidate()
    with TagMatch(tmp_path, device="cpu") as tm:
        assert (tm.stats()["key_type"], tm.stats()["positions"], tm.stats()["staged"]) == (key_type, moved, not moved)
