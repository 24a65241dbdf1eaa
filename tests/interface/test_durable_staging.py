"""Changes that are staged with a path outlast the program, and one program at a time stages them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support.agreement import index_of

import tagmatch
from tagmatch import IndexChangedError, IndexLockedError, InvalidValueError, StagedChangesWarning, TagMatch
from tagmatch.model.storage.journal.journal import Journal


def logs(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("staged-*"))


def test_one_at_a_time_stages_changes(tmp_path: Path) -> None:
    path = tmp_path / "index"
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
        with pytest.raises(tagmatch.IndexChangedError):
            other.consolidate()
        other.reload()
        other.consolidate()
        assert sorted(other.match(["a", "b"])) == [1, 2]


def test_who_only_reads_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "index"
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
def test_what_another_program_leaves_later_comes_first_as_well(tmp_path: Path, durability: Any) -> None:
    """It has the log when this object opens the index, and has ended when this one consolidates."""
    path = tmp_path / "index"
    with index_of([["a"]], [0], path=path, device="cpu") as other:
        other.add_set(["a"], 1)
        tm = TagMatch(path, device="cpu", durability=durability)
        assert tm.stats()["staged"] == 0
    with tm:
        if durability == "none":
            tm.remove_set(["a"], 1)
        tm.consolidate()
        assert sorted(tm.match(["a"])) == ([0] if durability == "none" else [0, 1])
    assert logs(path) == []


def test_a_torn_tail_is_told(tmp_path: Path) -> None:
    path = tmp_path / "index"
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
def test_what_could_not_be_staged_is_not_there_after_the_end_either(tmp_path: Path, durability: Any) -> None:
    """There is no memory for it when it is logged already, and then the program is killed."""
    path = tmp_path / "index"
    with TagMatch(path, device="cpu", durability=durability) as tm:
        tm.add_set(["a"], 1)
        calls = (("append", lambda: tm.add_set(["b"], 2)), ("extend", lambda: tm.add_sets([["b"], ["c"]], [2, 3])))
        for name, call in calls:
            with patch(f"tagmatch.staging.StagedChanges.{name}", side_effect=MemoryError), pytest.raises(MemoryError):
                call()
            shutil.copytree(path, tmp_path / name)
            with TagMatch(tmp_path / name, device="cpu") as found:
                assert found.stats()["staged"] == tm.stats()["staged"] == 1


def test_another_program_consolidates_before_the_log_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is staged then goes to a log that counts."""
    path = tmp_path / "index"
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


# -- the folder is another one -----------------------------------------------------------------------------------------


def move_away(path: Path, backup: Path) -> None:
    path.rename(path.parent / "moved")
    shutil.copytree(backup, path)


def remove(path: Path, backup: Path) -> None:  # noqa: ARG001
    shutil.rmtree(path)


def copy_over(path: Path, backup: Path) -> None:
    """The folder and the files of locks stay: only the manifest says that the log does not count any more."""
    for file in path.glob("staged-*"):
        file.unlink()
    shutil.copytree(backup, path, dirs_exist_ok=True)


@pytest.mark.parametrize("replace", [move_away, remove, copy_over])
@pytest.mark.parametrize("later", [False, True])
def test_what_would_be_lost_is_not_acknowledged(tmp_path: Path, replace: Any, later: bool) -> None:
    path, other = tmp_path / "index", tmp_path / "backup"
    for each, count in ((path, 1 + 2 * (not later)), (other, 1 + 2 * later)):
        with TagMatch(each, device="cpu") as tm:
            for key in range(count):
                tm.add_set(["a"], key)
                tm.consolidate()
    with TagMatch(path, device="cpu", durability="fsync") as tm:
        tm.add_set(["b"], 40)
        replace(path, other)
        for _ in range(2):
            for call in (lambda: tm.add_set(["b"], 51), lambda: tm.add_sets([["b"]] * 2, [52, 53])):
                with pytest.raises(IndexChangedError, match=r"moved, removed or replaced.* consolidate\(\) saves them"):
                    call()
        assert tm.stats()["staged"] == 1
        if replace is not remove:
            tm.reload()
        tm.consolidate()
        tm.add_set(["b"], 54)
        assert sorted(tm.match(["b"])) == [40]
    with TagMatch(path, device="cpu") as tm:
        tm.consolidate()
        assert sorted(tm.match(["b"])) == [40, 54]


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(("key_type", "other", "key"), [("string", "integer", "ana"), ("integer", "string", 7)])
def test_an_index_without_a_snapshot_has_the_type_of_its_keys(
    tmp_path: Path, moved: bool, key_type: Any, other: Any, key: Any
) -> None:
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
