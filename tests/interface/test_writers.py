"""Several writers of one index, what killed ones leave, and changes that nobody consolidates."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from support.agreement import index_of

from tagmatch import IndexChangedError, IndexNotFoundError, StagedChangesWarning, TagMatch
from tagmatch.model.storage import folder as folder_module


@pytest.fixture
def path(tmp_path):
    index_of([["a"]], [1], path=tmp_path / "index").close()
    return tmp_path / "index"


def keys(tm):
    return sorted(tm.match(["a", "b", "c"]))


def test_the_second_of_two_writers_keeps_its_changes_and_can_go_on(path):
    with TagMatch(path, durability="none") as a, TagMatch(path, durability="none") as b:
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


def test_what_was_once_saved_is_not_taken_for_what_is_there(path):
    """The index comes back to what it was, by another writer; that is a change as well."""
    with TagMatch(path) as a, TagMatch(path) as b:
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


def test_an_index_that_was_removed_is_made_again(path):
    with TagMatch(path) as tm:
        path.rename(path.with_name("elsewhere"))
        tm.add_set(["b"], 2)
        with pytest.raises(IndexNotFoundError):
            tm.reload()
        assert (keys(tm), tm.stats()["staged"]) == ([1], 1)
        tm.consolidate()
        with TagMatch(path.with_name("nothing staged")) as other:
            other.consolidate()
    for place, found in ((path, [1, 2]), (path.with_name("nothing staged"), [])):
        assert keys(TagMatch.open(place)) == found


def test_reload_keeps_the_layout_that_was_asked_for(path):
    with TagMatch(path, layout="balanced", max_partition_size=3) as a:
        index_of([["b"]], [2], path=path).close()
        assert a.reload()
        a.check()
        assert (keys(a), a.stats()["layout"], a.stats()["max_partition_size"]) == ([1, 2], "balanced", 3)


def test_a_writer_waits_for_the_one_that_has_the_lock(path):
    with (path / "LOCK").open("ab") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writing = pool.submit(lambda: index_of([["b"]], [2], path=path).close())
        with TagMatch.open(path) as tm:  # readers do not wait
            assert keys(tm) == [1]
        assert not wait([writing], 0.2).done
        fcntl.flock(lock, fcntl.LOCK_UN)
        writing.result(60)


def test_what_a_killed_writer_left_goes(path):
    """What several machines work on stays, of which none holds this lock."""
    left, job = path / "unfinished-1234", path / "unfinished-job-1"
    for folder in (left, job):
        folder.mkdir()
        (folder / "keys.arrow").write_bytes(b"half")
    with index_of([["c"]], [3], path=path) as tm:
        assert keys(tm) == [1, 3]
    assert list(path.glob("unfinished-*")) == [job]


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


def test_nothing_is_told_where_nothing_is_lost(path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tm in (TagMatch(path), index_of([["a"]], [1])):
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


def test_what_is_being_merged_is_not_taken_for_what_a_killed_program_left(path, monkeypatch):
    """Its files were removed one by one, and what was left of them was saved."""
    write_segment, folder = folder_module.write_segment, folder_module.Folder(path)
    segment = folder.open().only

    def meanwhile(*arguments):
        monkeypatch.setattr(folder_module, "write_segment", write_segment)
        entry = write_segment(*arguments)
        index_of([["b"]], [2], path=path, device="cpu").close()
        return entry

    monkeypatch.setattr(folder_module, "write_segment", meanwhile)
    with folder.written_ahead(segment) as entry:
        assert all((path / entry["name"] / name).exists() for name in entry["files"])
    with TagMatch.open(path) as tm:
        tm.check()
        assert keys(tm) == [1, 2]
