"""Snapshots by number: which ones are kept, that each answers as it did, and that nothing changes them."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import change_all, index_of
from support.index_files import contents_of
from support.segments import segments_stay

import tagmatch
from tagmatch import IndexCorruptError, IndexNotFoundError, InvalidValueError, TagMatch, backup, restore
from tagmatch.model.storage import folders
from tagmatch.model.storage.format import manifest_text

pytest_plugins = ["support.s3_bucket"]

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1, "durability": "none"}


def numbers(path: Any) -> list[int]:
    return [each.number for each in TagMatch.snapshots(path)]


def sets_at(path: Any, number: int | None) -> dict[Any, Any]:
    with TagMatch.open(path, snapshot=number, **OPTIONS) as tm:
        tm.check()
        return dict(tm)


def states(path: Path, count: int, first: int = 1, **options: Any) -> list[dict[Any, Any]]:
    """Consolidate some changes, one after the other; returns the contents then, before the first one too."""
    found: list[dict[Any, Any]] = [{}] if first == 1 else []
    with TagMatch(path, **OPTIONS, **options) as tm:
        for number in range(first, first + count):
            tm.add_sets([[f"t{number}", "all"], ["all"]], [number, number])
            if number > 1:
                tm.remove_set(["all"], number - 1)
            tm.consolidate()
            assert tm.stats()["number"] == number
            found.append(dict(tm))
    return found


@given(
    rounds=st.lists(st.tuples(strategies.changes(strategies.pairs), st.integers(0, 3) | st.none()), max_size=8),
    few=st.sampled_from([0, 1 << 14]),
    layout=strategies.layouts,
)
def test_each_that_is_kept_has_what_it_had(rounds: Any, few: int, layout: str, tmp_path_factory: Any) -> None:
    """Whatever is changed, merged, and however the number of those to keep changes; and nothing else is left."""
    path, oracle = tmp_path_factory.mktemp("index") / "index", Oracle()
    had: dict[int, Any] = {}
    with segments_stay(few):
        for changes, keep in rounds:
            there = numbers(path) if had else []
            keeps = json.loads((path / "MANIFEST.json").read_text()).get("keep_snapshots", 0) if had else 0
            keeps = keeps if keep is None else keep
            with TagMatch(path, layout=layout, keep_snapshots=keep, **OPTIONS) as tm:
                change_all(changes, tm, oracle)
                tm._engine.changing.merge()
                number = tm.stats()["number"]
                assert dict(tm) == dict(oracle)
            if number is None:
                continue  # nothing was saved yet
            if number not in there:
                assert numbers(path) == [*there, number][-keeps - 1 :]
            had[number] = dict(oracle)
            assert {each: sets_at(path, each) for each in numbers(path)} == {each: had[each] for each in numbers(path)}
            assert sets_at(path, None) == had[number]
            _nothing_else(path)


def _nothing_else(path: Path) -> None:
    named = "".join(file.read_text() for file in path.glob("MANIFEST*.json"))
    assert all(f'"{entry.name}"' in named for entry in path.iterdir() if entry.name not in ("LOCK", "MANIFEST.json"))
    assert len(list(path.glob("MANIFEST*.json"))) == len(TagMatch.snapshots(path))


def test_one_that_is_open_answers_as_then_though_it_is_not_kept_any_more(path: Path) -> None:
    stored = states(path, 2, keep_snapshots=1)
    with TagMatch.open(path, snapshot=1, **OPTIONS) as earlier:
        states(path, 1, 3)
        assert (dict(earlier), earlier.stats()["number"], numbers(path)) == (stored[1], 1, [2, 3])
        assert sorted(earlier.match(["t1", "t2", "t3", "all"])) == [1, 1]


@pytest.mark.usefixtures("segments_stay")
def test_what_changes_no_set_gets_no_number(path: Path) -> None:
    """The one before a merge need not be kept: it has the same sets."""
    ratio = patch("tagmatch.partitioner.consolidation._RATIO", 100)
    with ratio, TagMatch(path, keep_snapshots=5, **OPTIONS) as tm:
        tm.add_sets([[f"t{i}"] for i in range(50)], range(50))
        tm.consolidate()
        tm.add_set(["x"], 1)
        tm.consolidate()
        assert (tm.stats()["segments"], numbers(path)) == (2, [1, 2])
        assert tm._engine.changing.merge()
        assert (tm.stats()["segments"], tm.stats()["number"], numbers(path)) == (1, 2, [1, 2])
        tm.add_set(["x"], 1)  # is there
        tm.consolidate()
        tm.consolidate(full=True)
        before = contents_of(path)
        tm.save(path)
        assert contents_of(path) == before
    assert [len(sets_at(path, number)) for number in (1, 2)] == [50, 51]


def test_numbers_that_are_kept_and_others(tmp_path: Path, path: Path) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    stored = states(path, 5, keep_snapshots=2)
    found = TagMatch.snapshots(path)
    assert [(each.number, each.sets) for each in found] == [(number, len(stored[number])) for number in (3, 4, 5)]
    assert found[-1].until is None
    assert all(began <= each.until <= datetime.now(UTC) for each in found[:-1])
    states(tmp_path / "other", 1)
    for place, number, has in ((path, 0, "3, 4 and 5, the cur"), (path, 6, "3, 4"), (tmp_path / "other", 7, "1 only")):
        with pytest.raises(IndexNotFoundError, match=rf"not keep a snapshot {number}; it has {has}"):
            TagMatch.open(place, snapshot=number)
    for wrong, error in (("1", tagmatch.InvalidTypeError), (True, tagmatch.InvalidTypeError), (-1, InvalidValueError)):
        with pytest.raises(error, match=f"snapshot must be .*not {wrong!r}"):
            TagMatch.open(path, snapshot=wrong)
        with pytest.raises(error, match=f"keep_snapshots must be .*not {wrong!r}"):
            TagMatch().save(tmp_path / "x", keep_snapshots=wrong)


def test_it_is_read_only(path: Path) -> None:
    states(path, 3, keep_snapshots=1)
    with TagMatch(path, device="cpu") as tm:
        tm.add_set(["staged"], 9)
    before = contents_of(path)
    for number in (2, 3):
        with TagMatch.open(path, snapshot=number, layout="balanced", device="cpu") as tm:
            assert tm.stats()["staged"] == 0
            for change, arguments in ((tm.add_set, (["x"], 1)), (tm.remove_sets, ([["x"]], [1])), (tm.consolidate, ())):
                with pytest.raises(InvalidValueError, match=rf"change snapshot {number} of .*index: .*read-only"):
                    change(*arguments)
            with pytest.raises(InvalidValueError, match=rf"nothing to reload: .*index was opened at snapshot {number}"):
                tm.reload()
    assert contents_of(path) == before


def test_back_to_an_earlier_one(path: Path) -> None:
    """Saved over the index, it is its next snapshot, and who follows the index gets it."""
    stored = states(path, 3, keep_snapshots=2)
    with TagMatch.open(path, **OPTIONS) as follower, TagMatch.open(path, **OPTIONS) as writer:
        with TagMatch.open(path, snapshot=1, **OPTIONS) as tm:
            tm.save(path)
        assert numbers(path) == [2, 3, 4]
        assert follower.reload()
        assert (dict(follower), follower.stats()["number"]) == (stored[1], 4)
        writer.add_set(["x"], 1)
        with pytest.raises(tagmatch.IndexChangedError):
            writer.consolidate()
        writer.reload()
        writer.consolidate()
    assert sets_at(path, 3) == stored[3]
    assert sets_at(path, None) == {**stored[1], frozenset(["x"]): (1,)}


def test_manifests_that_are_damaged_or_swapped(path: Path) -> None:
    """Nothing that is kept is removed for one that is damaged."""
    stored = states(path, 3, keep_snapshots=2)
    earlier, manifest = path / "MANIFEST-2.json", path / "MANIFEST.json"
    good, text = earlier.read_bytes(), manifest.read_bytes()
    for bad in (good[:-1], text):
        earlier.write_bytes(bad)
        with pytest.raises(IndexCorruptError, match=r"MANIFEST-2\.json (has|does not have)"):
            TagMatch.open(path, snapshot=2)
    manifest.write_bytes(good)
    with pytest.raises(IndexCorruptError, match=r"MANIFEST\.json does not have the checksum"):
        TagMatch.open(path)
    manifest.write_bytes(text)
    index_of([["x"]], [1], path=path, **OPTIONS).close()
    earlier.write_bytes(good)
    assert sets_at(path, 2) == stored[2]
    index_of([["y"]], [1], path=path, **OPTIONS).close()
    assert numbers(path) == [3, 4, 5]
    _nothing_else(path)


def test_a_snapshot_that_goes_while_it_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states(path, 2, keep_snapshots=1)
    opened = folders.plain_file

    def changed(at: Path, name: str) -> Any:
        if name == "MANIFEST-1.json":
            monkeypatch.setattr(folders, "plain_file", opened)
            for key in range(2):
                index_of([["x"]], [key], path=path, **OPTIONS).close()
        return opened(at, name)

    monkeypatch.setattr(folders, "plain_file", changed)
    with pytest.raises(IndexNotFoundError, match="not keep a snapshot 1; it has"):
        TagMatch.open(path, snapshot=1)


def test_a_first_index_without_numbers_goes_on_from_zero(path: Path) -> None:
    """As a program of an earlier version leaves it, which removes the files of earlier snapshots."""
    states(path, 2, keep_snapshots=1)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    for name in ("checksum", "number", "keep_snapshots", "kept"):
        del manifest[name]
    (path / "MANIFEST.json").write_bytes(manifest_text(manifest))
    assert numbers(path) == [0]
    index_of([["x"]], [1], path=path, keep_snapshots=1, **OPTIONS).close()
    assert numbers(path) == [0, 1]
    assert os.path.exists(path / "MANIFEST-0.json")
    _nothing_else(path)


def test_numbers_of_copies(tmp_path: Path) -> None:
    """A copy has the number of its original, unless it replaces one that has a larger number."""
    path, place, new = tmp_path / "index", tmp_path / "backup", tmp_path / "new"
    stored = states(path, 3, keep_snapshots=4)
    assert backup(path, place, keep_snapshots=2).number == 3
    for number in (4, 5):
        stored += states(path, 1, number)
        assert backup(path, place, keep_snapshots=2).number == number
    assert numbers(place) == [3, 4, 5]
    assert restore(place, new, snapshot=4).number == 4
    assert (sets_at(new, None), sets_at(place, 3)) == (stored[4], stored[3])
    assert restore(place, path, snapshot=3, replace=True).number == 6
    assert (sets_at(path, None), numbers(path)) == (stored[3], [2, 3, 4, 5, 6])
    assert restore(path, path, snapshot=2, replace=True).number == 7
    assert (sets_at(path, None), numbers(path)) == (stored[2], [3, 4, 5, 6, 7])
    restore(place, tmp_path / "as it was")
    index_of([["x"]], [1], path=tmp_path / "as it was", **OPTIONS).close()
    assert numbers(tmp_path / "as it was") == [5, 6], "it does not keep earlier snapshots as the first one did"
    with pytest.raises(IndexNotFoundError, match="does not keep a snapshot 1; it has 3, 4 and 5"):
        restore(place, tmp_path / "other", snapshot=1)


@pytest.mark.slow
def test_on_a_store(tmp_path: Path, bucket: Any, uri: str) -> None:
    stored = []
    with TagMatch(**OPTIONS) as tm:
        for number in range(5):
            tm.add_set([f"t{number}"], number)
            tm.consolidate()
            stored.append(dict(tm))
            for _ in range(2):  # the same again
                tm.save(uri, keep_snapshots=2 if number == 0 else None)
    assert {number: sets_at(uri, number) for number in numbers(uri)} == dict(enumerate(stored[2:], 3))
    told = rf"index s3a://{bucket[1]}/folder/index does not keep a snapshot 2; it"
    with pytest.raises(IndexNotFoundError, match=told):
        TagMatch.open(uri, snapshot=2)
    with TagMatch.open(uri, snapshot=4, **OPTIONS) as tm:
        with pytest.raises(InvalidValueError, match="nothing to reload"):
            tm.reload()
        with pytest.raises(InvalidValueError, match="read-only"):
            tm.add_set(["x"], 1)
        tm.save(tmp_path / "copy")
        tm.save(uri, keep_snapshots=1)
    assert numbers(uri) == [5, 6]
    assert sets_at(uri, None) == sets_at(tmp_path / "copy", 1) == stored[3]
    bucket[0].delete_file("folder/index/MANIFEST-5.json")
    with pytest.raises(IndexCorruptError, match=r"MANIFEST-5\.json is missing"):
        TagMatch.open(uri, snapshot=5)
